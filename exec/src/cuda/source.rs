//! Which sources there are, and how one is built.

use crate::device::Element;

/// A file of `exec/kernels`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Source {
    Attention,
    Elementwise,
    Embedding,
    Loss,
    Norm,
    Optimizer,
    Routing,
}

/// What every source includes.
pub(super) const COMMON: &str = include_str!("../../kernels/common.cuh");

impl Source {
    #[cfg(test)]
    pub(super) const ALL: [Self; 7] =
        [Self::Attention, Self::Elementwise, Self::Embedding, Self::Loss, Self::Norm, Self::Optimizer, Self::Routing];

    /// The file's name without `.cu`.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::Elementwise => "elementwise",
            Self::Embedding => "embedding",
            Self::Loss => "loss",
            Self::Norm => "norm",
            Self::Optimizer => "optimizer",
            Self::Routing => "routing",
        }
    }

    pub(super) fn text(self) -> &'static str {
        match self {
            Self::Attention => include_str!("../../kernels/attention.cu"),
            Self::Elementwise => include_str!("../../kernels/elementwise.cu"),
            Self::Embedding => include_str!("../../kernels/embedding.cu"),
            Self::Loss => include_str!("../../kernels/loss.cu"),
            Self::Norm => include_str!("../../kernels/norm.cu"),
            Self::Optimizer => include_str!("../../kernels/optimizer.cu"),
            Self::Routing => include_str!("../../kernels/routing.cu"),
        }
    }
}

/// A source as it is built: for an element and, if it is attention, for heads of at most so many elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Module {
    pub(super) source: Source,
    pub(super) element: Element,
    pub(super) head: Option<usize>,
}

/// The sizes of heads for which attention is built; others are padded to the next.
pub(super) const HEADS: [usize; 2] = [64, 128];

impl Module {
    /// Every way in which a source is built.
    #[cfg(test)]
    pub(super) fn all() -> Vec<Self> {
        let heads = |source| match source {
            Source::Attention => HEADS.map(Some).to_vec(),
            _ => vec![None],
        };
        let of_source = |source| {
            let elements = [Element::F32, Element::Bf16].into_iter();
            elements.flat_map(move |element| heads(source).into_iter().map(move |head| Self { source, element, head }))
        };
        Source::ALL.into_iter().flat_map(of_source).collect()
    }

    /// What the compiler is told beside the architecture.
    pub(super) fn definitions(self) -> Vec<String> {
        let element = (self.element == Element::Bf16).then(|| "-DELEMENT_BF16".to_owned());
        element.into_iter().chain(self.head.map(|head| format!("-DHEAD={head}"))).collect()
    }

    /// For file names and messages.
    pub(super) fn name(self) -> String {
        let head = self.head.map_or_else(String::new, |head| format!("-{head}"));
        format!("{}-{}{head}", self.source.name(), self.element.name())
    }
}
