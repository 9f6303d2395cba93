//! Kernels bound by memory.

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
    /// All of them, in order.
    pub const ALL: [Self; 22] = [
        Self::Embedding,
        Self::EmbeddingBackward,
        Self::RmsNorm,
        Self::RmsNormBackward,
        Self::LayerNorm,
        Self::LayerNormBackward,
        Self::Rope,
        Self::SwiGlu,
        Self::SwiGluBackward,
        Self::Gelu,
        Self::GeluBackward,
        Self::Add,
        Self::CrossEntropy,
        Self::CrossEntropyBackward,
        Self::GradientNorm,
        Self::Optimizer,
        Self::Elementary,
        Self::Router,
        Self::Permute,
        Self::Scan,
        Self::Convolution,
        Self::Cast,
    ];
    /// Its name in measurements and calibrations.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Embedding => "embedding",
            Self::EmbeddingBackward => "embedding-backward",
            Self::RmsNorm => "rms-norm",
            Self::RmsNormBackward => "rms-norm-backward",
            Self::LayerNorm => "layer-norm",
            Self::LayerNormBackward => "layer-norm-backward",
            Self::Rope => "rope",
            Self::SwiGlu => "swi-glu",
            Self::SwiGluBackward => "swi-glu-backward",
            Self::Gelu => "gelu",
            Self::GeluBackward => "gelu-backward",
            Self::Add => "add",
            Self::CrossEntropy => "cross-entropy",
            Self::CrossEntropyBackward => "cross-entropy-backward",
            Self::GradientNorm => "gradient-norm",
            Self::Optimizer => "optimizer",
            Self::Elementary => "elementary",
            Self::Router => "router",
            Self::Permute => "permute",
            Self::Scan => "scan",
            Self::Convolution => "convolution",
            Self::Cast => "cast",
        }
    }
    /// The kind of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
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
