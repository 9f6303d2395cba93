//! Units that cost the same.

use crate::program::{Chunk, Unit, UnitRange};
use crate::{FeedForward, Mixer, Model, Precision, Workload};

/// What a unit is. In one model, units of one kind have the same kernels, sizes and parameters (except that recomputation
/// may concern some of them only).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum UnitKind {
    /// [`Unit::Embedding`].
    Embedding,
    /// [`Unit::AttentionNorm`].
    AttentionNorm,
    /// [`Unit::Attention`] of a layer that attends to the whole sequence.
    Attention,
    /// Of a layer with a window.
    Window,
    /// Of a layer with latent attention.
    Latent,
    /// Of a layer with a selective state space.
    Mamba,
    /// Of a layer with a gated delta rule.
    GatedDelta,
    /// [`Unit::MlpNorm`] of a layer with a dense feed-forward part.
    MlpNorm,
    /// [`Unit::MlpNorm`] of a layer of experts, with the router.
    RouterNorm,
    /// [`Unit::Mlp`] of a layer with a dense feed-forward part.
    Dense,
    /// [`Unit::Mlp`] of a layer of experts.
    Experts,
    /// [`Unit::FinalNorm`].
    FinalNorm,
    /// [`Unit::Head`].
    Head,
    /// [`Unit::Loss`].
    Loss,
}

impl UnitKind {
    /// How many kinds there are.
    pub const COUNT: usize = 14;
    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Embedding,
        Self::AttentionNorm,
        Self::Attention,
        Self::Window,
        Self::Latent,
        Self::Mamba,
        Self::GatedDelta,
        Self::MlpNorm,
        Self::RouterNorm,
        Self::Dense,
        Self::Experts,
        Self::FinalNorm,
        Self::Head,
        Self::Loss,
    ];
    /// What a unit of a model is.
    ///
    /// # Panics
    /// If the unit is of a layer that the model does not have.
    #[must_use]
    pub fn of(model: &Model, unit: Unit) -> Self {
        match unit {
            Unit::Embedding => Self::Embedding,
            Unit::AttentionNorm(_) => Self::AttentionNorm,
            Unit::Attention(layer) => Self::of_mixer(model.layer(layer).mixer),
            Unit::MlpNorm(layer) => Self::of_parts(model.layer(layer).feed_forward).0,
            Unit::Mlp(layer) => Self::of_parts(model.layer(layer).feed_forward).1,
            Unit::FinalNorm => Self::FinalNorm,
            Unit::Head => Self::Head,
            Unit::Loss => Self::Loss,
        }
    }
    /// What a layer with that mixer has as [`Unit::Attention`].
    #[must_use]
    pub const fn of_mixer(mixer: Mixer) -> Self {
        match mixer {
            Mixer::Attention => Self::Attention,
            Mixer::Window => Self::Window,
            Mixer::Latent => Self::Latent,
            Mixer::Mamba => Self::Mamba,
            Mixer::GatedDelta => Self::GatedDelta,
        }
    }
    /// What a layer with that feed-forward part has as [`Unit::MlpNorm`] and [`Unit::Mlp`].
    #[must_use]
    pub const fn of_parts(part: FeedForward) -> (Self, Self) {
        match part {
            FeedForward::Dense => (Self::MlpNorm, Self::Dense),
            FeedForward::Experts => (Self::RouterNorm, Self::Experts),
        }
    }
    /// The mixer that it is, if it is one.
    #[must_use]
    pub const fn mixer(self) -> Option<Mixer> {
        match self {
            Self::Attention => Some(Mixer::Attention),
            Self::Window => Some(Mixer::Window),
            Self::Latent => Some(Mixer::Latent),
            Self::Mamba => Some(Mixer::Mamba),
            Self::GatedDelta => Some(Mixer::GatedDelta),
            Self::Embedding
            | Self::AttentionNorm
            | Self::MlpNorm
            | Self::RouterNorm
            | Self::Dense
            | Self::Experts
            | Self::FinalNorm
            | Self::Head
            | Self::Loss => None,
        }
    }
    /// Whether it is part of a layer.
    #[must_use]
    pub const fn in_layer(self) -> bool {
        !matches!(self, Self::Embedding | Self::FinalNorm | Self::Head | Self::Loss)
    }
    /// Whether a model has such units; of others there are no kernels.
    #[must_use]
    pub fn is_in(self, model: &Model) -> bool {
        let variants = &model.variants;
        match self {
            Self::Latent => variants.latent.is_some(),
            Self::Mamba => variants.mamba.is_some(),
            Self::GatedDelta => variants.delta.is_some(),
            Self::Window => variants.window.is_some(),
            Self::RouterNorm | Self::Experts => variants.experts.is_some(),
            Self::Embedding
            | Self::AttentionNorm
            | Self::Attention
            | Self::MlpNorm
            | Self::Dense
            | Self::FinalNorm
            | Self::Head
            | Self::Loss => true,
        }
    }
}

/// The format in which a unit's matrix products run. In FP8 those of mixers and of feed-forward parts do; routers, heads
/// and the cores of attention run in [`Precision::outside_layers`].
#[must_use]
pub const fn product_precision(workload: &Workload, kind: UnitKind) -> Precision {
    match kind {
        UnitKind::Attention
        | UnitKind::Window
        | UnitKind::Latent
        | UnitKind::Mamba
        | UnitKind::GatedDelta
        | UnitKind::Dense
        | UnitKind::Experts => workload.precision,
        UnitKind::Embedding
        | UnitKind::AttentionNorm
        | UnitKind::MlpNorm
        | UnitKind::RouterNorm
        | UnitKind::FinalNorm
        | UnitKind::Head
        | UnitKind::Loss => workload.precision.outside_layers(),
    }
}

/// How many units of each kind (in the order of [`UnitKind::ALL`]) a range holds.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct UnitCounts {
    /// In layers that the chunk's recomputation concerns.
    pub recomputed: [u32; UnitKind::COUNT],
    /// All others.
    pub kept: [u32; UnitKind::COUNT],
}

impl UnitCounts {
    /// Both together.
    #[must_use]
    pub fn all(&self) -> [u32; UnitKind::COUNT] {
        let mut sums = self.recomputed;
        for (sum, kept) in sums.iter_mut().zip(self.kept) {
            *sum += kept;
        }
        sums
    }
}

/// Counts the units of a range of a chunk. Takes time in the number of the model's runs of layers, not of layers.
///
/// # Panics
/// If the chunk has no such range.
#[must_use]
pub fn unit_counts(model: &Model, chunk: &Chunk, units: UnitRange) -> UnitCounts {
    assert!(units.start <= units.end && units.end <= chunk.units(), "units {units:?} of a chunk of {}", chunk.units());
    let first = u32::from(chunk.embedding);
    let layers_end = first + 4 * chunk.layers;
    // Layers whose unit number `place` lies below position `end`.
    let below = |end: u32, place: u32| (end.clamp(first, layers_end) - first + 3 - place) / 4;
    // Of the units of that number in the range: their first layer, the first that is not recomputed, and the end.
    let recomputed = chunk.recomputed_layers.min(chunk.layers);
    let split = |place: u32| {
        let (start, end) = (below(units.start, place), below(units.end, place));
        [start, recomputed.clamp(start, end), end]
    };
    let ranges = [split(0), split(1), split(2), split(3)];
    let mut counts = UnitCounts::default();
    for (half, counts) in [&mut counts.recomputed, &mut counts.kept].into_iter().enumerate() {
        let [norms, mixers, part_norms, parts] = ranges.map(|range| (range[half], range[half + 1] - range[half]));
        if norms.1 + mixers.1 + part_norms.1 + parts.1 == 0 {
            continue;
        }
        let kinds = |(start, layers): (u32, u32)| {
            if layers == 0 { ([0; 5], [0; 2]) } else { model.kinds_of(chunk.first_layer + start, layers) }
        };
        let of_mixers = kinds(mixers);
        let of_norms = if part_norms == mixers { of_mixers } else { kinds(part_norms) };
        let of_parts = if parts == part_norms { of_norms } else { kinds(parts) };
        counts[UnitKind::AttentionNorm as usize] = norms.1;
        counts[UnitKind::Attention as usize..=UnitKind::GatedDelta as usize].copy_from_slice(&of_mixers.0);
        counts[UnitKind::MlpNorm as usize..=UnitKind::RouterNorm as usize].copy_from_slice(&of_norms.1);
        counts[UnitKind::Dense as usize..=UnitKind::Experts as usize].copy_from_slice(&of_parts.1);
    }
    let has = |position: u32, present: bool| u32::from(present && units.start <= position && position < units.end);
    counts.kept[UnitKind::Embedding as usize] = has(0, chunk.embedding);
    for (place, kind) in [UnitKind::FinalNorm, UnitKind::Head, UnitKind::Loss].into_iter().enumerate() {
        counts.kept[kind as usize] = has(layers_end + u32::try_from(place).expect("three"), chunk.head);
    }
    counts
}
