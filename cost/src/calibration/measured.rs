//! Absolute times of one machine.

use ir::Precision;
use serde::{Deserialize, Serialize};

use super::SHARED_MEMORY;

/// Absolute times. Kernels are those of one number format; collectives may be of any link.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
    /// The number format of matrix products and attention cores. Both 16-bit formats take the same time; others are
    /// priced by constants.
    #[serde(default = "fp32")]
    pub precision: Precision,
    /// `[m, n, k, microseconds]` of matrix products.
    #[serde(default)]
    pub matrix_products: Vec<[f64; 4]>,
    /// `[sequences, tokens of each, heads, head width, microseconds]` of forward attention cores.
    #[serde(default)]
    pub attention_forward: Vec<[f64; 5]>,
    /// The same, backward.
    #[serde(default)]
    pub attention_backward: Vec<[f64; 5]>,
    /// `[bytes, microseconds]` of copies between threads.
    #[serde(default)]
    pub copies: Vec<[f64; 2]>,
    /// Streaming kernels.
    #[serde(default)]
    pub streaming: Vec<StreamingPoints>,
    /// Collectives inside one domain, or over equal parts of several nodes.
    #[serde(default)]
    pub collectives: Vec<CollectivePoints>,
}

const fn fp32() -> Precision {
    Precision::Fp32
}

impl Default for Measured {
    fn default() -> Self {
        Self {
            precision: fp32(),
            matrix_products: Vec::new(),
            attention_forward: Vec::new(),
            attention_backward: Vec::new(),
            copies: Vec::new(),
            streaming: Vec::new(),
            collectives: Vec::new(),
        }
    }
}

/// Measured times of a streaming kernel.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingPoints {
    /// Name of the kind.
    pub kernel: String,
    /// `[bytes, microseconds]`.
    pub points: Vec<[f64; 2]>,
}

/// Measured times of a collective.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectivePoints {
    /// Name of the link that joins the members, between nodes that of their NICs; between threads, [`SHARED_MEMORY`].
    #[serde(default = "shared_memory")]
    pub link: String,
    /// Its name ([`ir::program::CollectiveKind::name`]).
    pub kind: String,
    /// Members.
    pub ranks: u32,
    /// Nodes that hold equal parts of them.
    #[serde(default = "one_node", skip_serializing_if = "is_one_node")]
    pub nodes: u32,
    /// `[bytes of the whole buffer, microseconds]`.
    pub points: Vec<[f64; 2]>,
}

fn shared_memory() -> String {
    SHARED_MEMORY.to_owned()
}

const fn one_node() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_one_node(nodes: &u32) -> bool {
    *nodes == 1
}
