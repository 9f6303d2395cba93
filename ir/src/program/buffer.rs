//! Pieces of memory of a role and what instructions do with them.

use crate::Bytes;

/// What a buffer holds. Order is the order of reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum BufferKind {
    /// Parameters in the training precision.
    Weights,
    /// Weight gradients.
    Gradients,
    /// Master weights and moments.
    OptimizerState,
    /// What forward passes keep for backward passes.
    Activations,
    /// What a pass needs only while it runs.
    Workspace,
    /// Logits and what the loss keeps of them.
    Logits,
    /// Buffers of collectives and messages.
    Communication,
    /// What the runtime takes for itself.
    Reserve,
}

impl BufferKind {
    /// All of them, in order.
    pub const ALL: [Self; 8] = [
        Self::Weights,
        Self::Gradients,
        Self::OptimizerState,
        Self::Activations,
        Self::Workspace,
        Self::Logits,
        Self::Communication,
        Self::Reserve,
    ];
    /// Its position in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }
    /// Its name in reports and in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Weights => "weights",
            Self::Gradients => "gradients",
            Self::OptimizerState => "optimizer-state",
            Self::Activations => "activations",
            Self::Workspace => "workspace",
            Self::Logits => "logits",
            Self::Communication => "communication",
            Self::Reserve => "reserve",
        }
    }
}

/// A piece of memory of a role, the same on each of its ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Buffer {
    /// What it holds.
    pub kind: BufferKind,
    /// Its size.
    pub bytes: Bytes,
    /// Whether it lives before, through and after the iteration; such a buffer is never allocated or freed in it.
    pub resident: bool,
}

/// What an instruction does with a buffer.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Access {
    /// Takes it, when it starts.
    Allocate,
    /// Reads or writes it.
    Use,
    /// Gives it back, when it ends.
    Free,
}
