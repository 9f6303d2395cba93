//! Kernels bound by memory.
use crate::named::named;

/// A streaming kernel; each kind has its own effective bandwidth.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Streaming {
    /// Gathering embedding rows, positions added.
    Embedding,
    /// Adding gradients to embedding rows.
    EmbeddingBackward,
    /// RMSNorm.
    RmsNorm,
    /// Its input gradient (with the residual's added) or weight gradient.
    RmsNormBackward,
    /// LayerNorm.
    LayerNorm,
    /// Its input gradient (with the residual's added) or weight gradient.
    LayerNormBackward,
    /// Rotary embedding, forward or backward.
    Rope,
    /// SwiGLU.
    SwiGlu,
    /// Its gradient.
    SwiGluBackward,
    /// GELU.
    Gelu,
    /// Its gradient.
    GeluBackward,
    /// Additions and copies of activations, biases.
    Add,
    /// Softmax statistics over logits.
    CrossEntropy,
    /// The gradient of the logits.
    CrossEntropyBackward,
    /// Sum of squares of gradients.
    GradientNorm,
    /// The AdamW step.
    Optimizer,
    /// What PyTorch runs where nothing is fused: one operation after another, each through memory.
    Elementary,
    /// Choosing experts for tokens: scores to the best few, their weights and counts.
    Router,
    /// Copying tokens into the order of their experts, or back with their weights.
    Permute,
    /// A recurrence along the sequence: a selective scan, a delta rule.
    Scan,
    /// A short causal convolution along the sequence.
    Convolution,
    /// Conversion between number formats, with its scales and the transposed copy.
    Cast,
}

impl Streaming {
    /// The kind whose rate stands in where this one was not measured: the forward kernel of a backward one, the kernel
    /// that does the same for Llama-like models, and an addition for what plain models do not have.
    #[must_use]
    pub const fn stand_in(self) -> Option<Self> {
        match self {
            Self::EmbeddingBackward => Some(Self::Embedding),
            Self::RmsNormBackward | Self::LayerNorm => Some(Self::RmsNorm),
            Self::LayerNormBackward => Some(Self::RmsNormBackward),
            Self::SwiGluBackward | Self::Gelu => Some(Self::SwiGlu),
            Self::GeluBackward => Some(Self::SwiGluBackward),
            Self::CrossEntropyBackward => Some(Self::CrossEntropy),
            Self::Elementary | Self::Router | Self::Permute | Self::Scan | Self::Convolution | Self::Cast => {
                Some(Self::Add)
            }
            Self::Embedding
            | Self::RmsNorm
            | Self::Rope
            | Self::SwiGlu
            | Self::Add
            | Self::CrossEntropy
            | Self::GradientNorm
            | Self::Optimizer => None,
        }
    }
}

named!(Streaming {
    Embedding = "embedding",
    EmbeddingBackward = "embedding-backward",
    RmsNorm = "rms-norm",
    RmsNormBackward = "rms-norm-backward",
    LayerNorm = "layer-norm",
    LayerNormBackward = "layer-norm-backward",
    Rope = "rope",
    SwiGlu = "swi-glu",
    SwiGluBackward = "swi-glu-backward",
    Gelu = "gelu",
    GeluBackward = "gelu-backward",
    Add = "add",
    CrossEntropy = "cross-entropy",
    CrossEntropyBackward = "cross-entropy-backward",
    GradientNorm = "gradient-norm",
    Optimizer = "optimizer",
    Elementary = "elementary",
    Router = "router",
    Permute = "permute",
    Scan = "scan",
    Convolution = "convolution",
    Cast = "cast",
});
