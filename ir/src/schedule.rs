//! The order of passes over a pipeline, as a plan says it.

use serde::{Deserialize, Serialize};

use crate::grid::{Action, Grid};

/// The order of passes over a pipeline.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Schedule {
    /// All forward passes, then all backward passes (Huang et al. 2019).
    GPipe,
    /// One forward, one backward (Narayanan et al. 2019); with several chunks per position, interleaved (2021).
    OneForwardOneBackward,
    /// Zero bubble H1: backward split into input and weight gradients, memory of 1F1B (Qi et al. 2024).
    ZeroBubbleH1,
    /// Zero bubble H2: nearly twice the memory of 1F1B, and no bubble where all passes take as long (Qi et al. 2024).
    ZeroBubbleH2,
    /// Zero bubble in an order that is searched for, within a limit of memory (Qi et al. 2024, section 3).
    ZeroBubble(ZeroBubble),
    /// Two chunks on each position, down the pipeline and up again, in an order that is searched for within a limit of
    /// memory: ZB-V (Qi et al. 2024, section 6), V-Half and V-Min (Qi, Wan, Amar and Lin 2024).
    Vee(Vee),
    /// DualPipe cut in half: two chunks on each position, down the pipeline and up again (DeepSeek-AI 2025).
    DualPipeV,
    /// An order written out.
    Explicit(Grid),
}

/// The passes in which the gradients of a chunk are computed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Backward {
    /// Input and weight gradients together.
    Whole,
    /// Input gradients, and weight gradients later.
    Split,
    /// Some microbatches' together, some in two.
    Mixed,
}

impl Backward {
    /// The passes of each microbatch through a chunk; of mixed ones as if all were whole.
    #[must_use]
    pub const fn passes(self) -> &'static [Action] {
        match self {
            Self::Split => &[Action::Forward, Action::BackwardInput, Action::BackwardWeight],
            Self::Whole | Self::Mixed => &[Action::Forward, Action::Backward],
        }
    }
}

impl Schedule {
    /// Those that a name says all of, in order.
    pub const NAMED: [(&'static str, Self); 10] = [
        ("gpipe", Self::GPipe),
        ("1f1b", Self::OneForwardOneBackward),
        ("zero-bubble-h1", Self::ZeroBubbleH1),
        ("zero-bubble-h2", Self::ZeroBubbleH2),
        ("zero-bubble-1p", Self::ZeroBubble(ZeroBubble::unprofiled(1))),
        ("zero-bubble-2p", Self::ZeroBubble(ZeroBubble::unprofiled(2))),
        ("zero-bubble-v", Self::Vee(Vee::unprofiled(VeeMemory::Full))),
        ("v-half", Self::Vee(Vee::unprofiled(VeeMemory::Half))),
        ("v-min", Self::Vee(Vee::unprofiled(VeeMemory::Third))),
        ("dualpipe-v", Self::DualPipeV),
    ];
    /// Its name in text; `explicit` for an order written out.
    #[must_use]
    pub const fn name(&self) -> &'static str {
        match self {
            Self::GPipe => "gpipe",
            Self::OneForwardOneBackward => "1f1b",
            Self::ZeroBubbleH1 => "zero-bubble-h1",
            Self::ZeroBubbleH2 => "zero-bubble-h2",
            Self::ZeroBubble(ZeroBubble { memory: 0 | 1, .. }) => "zero-bubble-1p",
            Self::ZeroBubble(_) => "zero-bubble-2p",
            Self::Vee(Vee { memory: VeeMemory::Full, .. }) => "zero-bubble-v",
            Self::Vee(Vee { memory: VeeMemory::Half, .. }) => "v-half",
            Self::Vee(Vee { memory: VeeMemory::Third, .. }) => "v-min",
            Self::DualPipeV => "dualpipe-v",
            Self::Explicit(_) => "explicit",
        }
    }
    /// How its backward passes are divided; an order written out says it cell by cell.
    #[must_use]
    pub const fn backward(&self) -> Backward {
        match self {
            Self::GPipe | Self::OneForwardOneBackward => Backward::Whole,
            Self::ZeroBubbleH1 | Self::ZeroBubbleH2 | Self::ZeroBubble(_) | Self::Vee(_) => Backward::Split,
            Self::DualPipeV | Self::Explicit(_) => Backward::Mixed,
        }
    }
    /// Whether two chunks of each position lie down the pipeline and up again: chunk `c` on position `c`, and on
    /// `2 pipeline - 1 - c` on the way up.
    #[must_use]
    pub const fn is_vee(&self) -> bool {
        matches!(self, Self::Vee(_) | Self::DualPipeV)
    }
    /// The position of a chunk, where an order written out does not say otherwise.
    #[must_use]
    pub const fn position(&self, chunk: u32, pipeline: u32) -> u32 {
        let place = chunk % pipeline;
        let up = self.is_vee() && !(chunk / pipeline).is_multiple_of(2);
        if up { pipeline - 1 - place } else { place }
    }
    /// Chunks per position where a plan says nothing of them.
    #[must_use]
    pub const fn usual_chunks(&self) -> u32 {
        if self.is_vee() { 2 } else { 1 }
    }
}

/// A zero-bubble order that is searched for: its limit of memory, and the profile that the search goes by. Times are in any
/// one unit; the order keeps nothing else of them, so a plan runs in the same order on a slower device.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ZeroBubble {
    /// How many times the microbatches of 1F1B's first position may live on any position: 1 for ZB-1p, 2 for ZB-2p.
    pub memory: u32,
    /// How long a forward pass takes.
    pub forward: u32,
    /// How long an input-gradient pass takes.
    pub backward_input: u32,
    /// How long a weight-gradient pass takes.
    pub backward_weight: u32,
    /// How long a message between neighbours takes.
    pub message: u32,
    /// What of a microbatch's activations waits for its weight pass, in thousandths.
    pub kept: u32,
}

impl ZeroBubble {
    /// All passes take as long, messages take nothing, and everything waits for the weight pass.
    #[must_use]
    pub const fn unprofiled(memory: u32) -> Self {
        Self { memory, forward: 1000, backward_input: 1000, backward_weight: 1000, message: 0, kept: 1000 }
    }
}

/// How much of 1F1B's activations a position may hold in an order of [`Vee`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum VeeMemory {
    /// As much: `2 p` half microbatches, ZB-V.
    Full,
    /// About half: `p + 2` half microbatches, V-Half.
    Half,
    /// About a third: `2 (p + 4) / 3` half microbatches (never more than [`VeeMemory::Half`]), V-Min.
    Third,
}

impl VeeMemory {
    /// Chunks of microbatches, each of half a position's layers, that may live on any of `pipeline` positions.
    #[must_use]
    pub const fn chunks(self, pipeline: u32) -> u32 {
        let half = if pipeline < 2 { 2 * pipeline } else { pipeline + 2 };
        match self {
            Self::Full => 2 * pipeline,
            Self::Half => half,
            Self::Third => {
                let third = (2 * (pipeline + 4)).div_ceil(3);
                if third < half { third } else { half }
            }
        }
    }
}

/// An order over two chunks a position, down the pipeline and up again, that is searched for: its limit of memory, and the
/// profile that the search goes by, in any one unit.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vee {
    /// How much of 1F1B's activations may live on a position.
    pub memory: VeeMemory,
    /// How long a forward pass of a chunk takes.
    pub forward: u32,
    /// How long an input-gradient pass takes.
    pub backward_input: u32,
    /// How long a weight-gradient pass takes.
    pub backward_weight: u32,
    /// How long a message between neighbours takes.
    pub message: u32,
}

impl Vee {
    /// All passes take as long, and messages take nothing.
    #[must_use]
    pub const fn unprofiled(memory: VeeMemory) -> Self {
        Self { memory, forward: 1000, backward_input: 1000, backward_weight: 1000, message: 0 }
    }
}
