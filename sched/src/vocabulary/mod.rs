//! A vocabulary divided over the positions of a pipeline (Yeung et al. 2024): what every position does for each microbatch,
//! what all of them exchange, and in which order.
//!
//! Beside its chunk of layers every position holds a *slice*: its rows of the embedding and of the head, with the final
//! norm. A microbatch passes the slices so:
//!
//! 1. [`Work::Embedding`]: each position looks up the tokens whose rows it holds; [`Exchange::Embedded`] adds them up.
//! 2. The layers, up to the last chunk; [`Exchange::Hidden`] gives its output to all.
//! 3. [`Work::Scores`]: final norm, logits of the slice and their statistics. [`Exchange::Statistics`] gives each
//!    position those of all.
//! 4. [`Work::Gradients`]: of the slice's weights and of the hidden states, which [`Exchange::HiddenGradient`] adds up.
//! 5. The layers, down to the first chunk; [`Exchange::EmbeddedGradient`] gives its gradient to all, and
//!    [`Work::EmbeddingGradient`] adds it to the rows.
//!
//! With one barrier the hidden states' gradient is computed with the scores, before the statistics of the other slices
//! are known, and [`Exchange::HiddenGradient`] scales it as it adds it up; [`Work::Gradients`] is that of weights alone.
//!
//! A broadcast is an all-gather of what one member has, a sum for one member is an all-reduce: rings move as many bytes
//! over each link, but for the way back of the sum.

mod order;
mod run;
#[cfg(test)]
mod tests;

use ir::counts::{Shape, activation_bytes, bytes_of};
use ir::program::{Chunk, CollectiveKind, Pass, UnitRange, UnitTensor};
use ir::{Bytes, VocabularyDivision};

use crate::passes::PassOp;

pub(crate) use order::order;
pub(crate) use run::{Times, run};

/// A pass of one microbatch on one position.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Work {
    Embedding,
    Scores,
    Gradients,
    EmbeddingGradient,
    /// Through the position's layers.
    Forward,
    Backward,
}

impl Work {
    pub(crate) const COUNT: usize = 6;
    /// All of them, each at its own index.
    const ALL: [Self; Self::COUNT] =
        [Self::Embedding, Self::Scores, Self::Gradients, Self::EmbeddingGradient, Self::Forward, Self::Backward];
    /// Those of a slice, each at its own index.
    pub(crate) const OF_SLICE: [Self; 4] = [Self::Embedding, Self::Scores, Self::Gradients, Self::EmbeddingGradient];
}

/// What all positions exchange of one microbatch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Exchange {
    Embedded,
    Hidden,
    /// Not with one barrier.
    Statistics,
    HiddenGradient,
    EmbeddedGradient,
}

impl Exchange {
    /// All of them, each at its own index.
    pub(crate) const ALL: [Self; 5] =
        [Self::Embedded, Self::Hidden, Self::Statistics, Self::HiddenGradient, Self::EmbeddedGradient];
}

/// What happens, in an order in which nothing comes before what it waits for.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Event {
    Pass { position: u32, work: Work, microbatch: u32 },
    Exchange { exchange: Exchange, microbatch: u32 },
}

/// The exchange that a pass waits for, beside messages between positions; of layers, that of the last or first chunk.
pub(crate) const fn awaited(division: VocabularyDivision, work: Work, (first, last): (bool, bool)) -> Option<Exchange> {
    match work {
        Work::Forward if first => Some(Exchange::Embedded),
        Work::Backward if last => Some(Exchange::HiddenGradient),
        Work::Embedding | Work::Forward | Work::Backward => None,
        Work::Scores => Some(Exchange::Hidden),
        Work::Gradients => match division {
            VocabularyDivision::OneBarrier => Some(Exchange::HiddenGradient),
            VocabularyDivision::Ends | VocabularyDivision::TwoBarriers | VocabularyDivision::Interlaced => {
                Some(Exchange::Statistics)
            }
        },
        Work::EmbeddingGradient => Some(Exchange::EmbeddedGradient),
    }
}

/// The exchange that a pass has something for.
pub(crate) const fn fed(division: VocabularyDivision, work: Work, (first, last): (bool, bool)) -> Option<Exchange> {
    let one = matches!(division, VocabularyDivision::OneBarrier);
    match work {
        Work::Embedding => Some(Exchange::Embedded),
        Work::Forward if last => Some(Exchange::Hidden),
        Work::Backward if first => Some(Exchange::EmbeddedGradient),
        Work::Scores => Some(if one { Exchange::HiddenGradient } else { Exchange::Statistics }),
        Work::Gradients if !one => Some(Exchange::HiddenGradient),
        Work::Gradients | Work::Forward | Work::Backward | Work::EmbeddingGradient => None,
    }
}

const EMBEDDING: UnitRange = UnitRange { start: 0, end: 1 };
/// Final norm, head and loss.
pub(crate) const HEAD: UnitRange = UnitRange { start: 1, end: 4 };

/// The ops of one pass of a slice.
pub(crate) fn slice_ops(division: VocabularyDivision, work: Work) -> Vec<PassOp> {
    let compute = |pass, units| PassOp::Compute { pass, units };
    match (work, division) {
        (Work::Embedding, _) => vec![compute(Pass::Forward, EMBEDDING)],
        (Work::Scores, VocabularyDivision::OneBarrier) => {
            vec![compute(Pass::Forward, HEAD), compute(Pass::BackwardInput, HEAD)]
        }
        (Work::Scores, _) => vec![compute(Pass::Forward, HEAD)],
        (Work::Gradients, VocabularyDivision::OneBarrier) => vec![compute(Pass::BackwardWeight, HEAD)],
        (Work::Gradients, _) => vec![compute(Pass::Backward, HEAD)],
        (Work::EmbeddingGradient, _) => vec![compute(Pass::Backward, EMBEDDING)],
        (Work::Forward | Work::Backward, _) => panic!("{work:?} is a pass of layers"),
    }
}

/// An exchange as a collective: its kind, tensor, unit of the slice and pass, and the bytes of the whole buffer. The one
/// barrier carries two statistics of each token with the gradient.
pub(crate) fn collective(shape: Shape<'_>, exchange: Exchange) -> (CollectiveKind, (UnitTensor, u32, Pass), Bytes) {
    let all = activation_bytes(shape);
    match exchange {
        Exchange::Embedded => (CollectiveKind::AllReduce, (UnitTensor::Output, 0, Pass::Forward), all),
        Exchange::Hidden => (CollectiveKind::AllGather, (UnitTensor::Input, 1, Pass::Forward), all),
        Exchange::Statistics => {
            let bytes = ir::counts::unit_tensor_bytes(shape, ir::counts::UnitKind::Head, UnitTensor::LossStatistics);
            (CollectiveKind::AllGather, (UnitTensor::LossStatistics, 2, Pass::Forward), bytes)
        }
        Exchange::HiddenGradient => {
            let with = if shape.layout.sharing.vocabulary == VocabularyDivision::OneBarrier { 8 } else { 0 };
            let bytes = all + bytes_of([shape.tokens(), with]);
            (CollectiveKind::AllReduce, (UnitTensor::InputGradient, 1, Pass::Backward), bytes)
        }
        Exchange::EmbeddedGradient => (CollectiveKind::AllGather, (UnitTensor::OutputGradient, 0, Pass::Backward), all),
    }
}

/// The chunks of layers among all chunks of a plan: the rest are slices, one for each position.
pub(crate) fn layers_of(chunks: &[Chunk], division: VocabularyDivision, pipeline: u32) -> &[Chunk] {
    if division.is_ends() { chunks } else { &chunks[..chunks.len() - pipeline as usize] }
}
