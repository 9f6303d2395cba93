//! Rows of a calibration that price kernels.

use ir::{AttentionKernel, Precision};
use serde::{Deserialize, Serialize};

/// `t = overhead + max(2mnk c / (peak utilisation w^wave_exponent), bytes / (bandwidth memory_efficiency)) penalty` for `c`
/// equal products side by side (1 where there is one), where `w` is the share of the multiprocessors' tiles that does
/// useful work: `c (m/tile_m) (n/tile_n)` over whole waves of the `c ceil(m/tile_m) ceil(n/tile_n)` whole tiles, and
/// `bytes` counts both operands and the result once.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MatrixProduct {
    /// Number format.
    pub precision: Precision,
    /// Fixed time.
    pub overhead_us: f64,
    /// Share of the peak that large products reach.
    pub utilisation: f64,
    /// How much a partial wave costs.
    pub wave_exponent: f64,
    /// Share of the memory bandwidth that products reach.
    pub memory_efficiency: f64,
    /// Rows of a tile.
    pub tile_m: u32,
    /// Columns of a tile.
    pub tile_n: u32,
    /// Share of the peak that large products reach where several equal ones are one kernel (experts); the ordinary one
    /// where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grouped_utilisation: Option<f64>,
    /// What sizes cost that do not fit the units of the hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alignment: Vec<Alignment>,
    /// Measured rows that the constants rest on; 0 means assumed.
    pub rows: u32,
    /// Where they come from.
    pub source: String,
}

/// A declared penalty: an operation of which a size is not a multiple of `multiple` takes `time_factor` times as long. Of
/// several that apply the largest counts.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Alignment {
    /// Elements that sizes should be a multiple of: of matrix products `m`, `n` and `k`; of attention the widths of a head.
    pub multiple: u32,
    /// What it costs if they are not; 1 or more.
    pub time_factor: f64,
}

/// The penalty of `sizes`: 1 where all are aligned.
pub(crate) fn penalty<const N: usize>(alignment: &[Alignment], sizes: [u64; N]) -> f64 {
    let applies = |row: &&Alignment| sizes.iter().any(|size| !size.is_multiple_of(u64::from(row.multiple.max(1))));
    alignment.iter().filter(applies).map(|row| row.time_factor).fold(1.0, f64::max)
}

/// An attention core: FLOPs over a share of the peak, plus the traffic of the scores where they reach memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Which implementation. A plain one computes the whole square of scores.
    pub kernel: AttentionKernel,
    /// The number format that it was measured in; any where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub precision: Option<Precision>,
    /// Share of the peak, forward.
    pub forward_utilisation: f64,
    /// Share of the peak, backward.
    pub backward_utilisation: f64,
    /// Fixed time.
    pub overhead_us: f64,
    /// Scores are computed in blocks: a causal row of `s` scores costs `s/2 + block/2` (0 for a plain core).
    pub block: u32,
    /// Bytes moved for each score, forward, in half precision; twice that in FP32.
    pub score_bytes: f64,
    /// The same of the backward pass.
    pub score_bytes_backward: f64,
    /// Bytes moved for each score, forward, where the softmax is made of elementary kernels; 2.6 times `score_bytes` where
    /// it is not given (26 against 10 bytes in fits of published runs).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elementary_score_bytes: Option<f64>,
    /// The same of the backward pass.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elementary_score_bytes_backward: Option<f64>,
    /// What widths of a head cost that do not fit the units of the hardware.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub alignment: Vec<Alignment>,
    /// Measured rows that the constants rest on; 0 means assumed.
    pub rows: u32,
    /// Where they come from.
    pub source: String,
}

/// Traffic of an elementary softmax over that of a fused one.
const ELEMENTARY: f64 = 2.6;

impl Attention {
    /// Bytes moved for each score in half precision.
    pub(crate) fn bytes_per_score(&self, backward: bool, fused_softmax: bool) -> f64 {
        let (fused, elementary) = if backward {
            (self.score_bytes_backward, self.elementary_score_bytes_backward)
        } else {
            (self.score_bytes, self.elementary_score_bytes)
        };
        if fused_softmax { fused } else { elementary.unwrap_or(fused * ELEMENTARY) }
    }
}

/// `t = launches overhead + bytes / (memory bandwidth bandwidth_fraction)`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingRate {
    /// Name of the kind ([`ir::counts::Streaming::name`]); `all` where no row names the kind.
    pub kernel: String,
    /// Fixed time of each launch.
    pub overhead_us: f64,
    /// Share of the memory bandwidth.
    pub bandwidth_fraction: f64,
    /// Measured rows that the constants rest on; 0 means assumed.
    pub rows: u32,
    /// Where they come from.
    pub source: String,
}
