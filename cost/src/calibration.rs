//! What was measured or assumed about one kind of device: plain data, with where it comes from.
//!
//! Two layers. *Constants* are relative to the device's peaks, so that one calibration serves all devices of a
//! generation. *Measurements* are absolute times of one machine, interpolated; where there are any, they come first.

use ir::counts::Streaming;
use ir::program::Pass;
use ir::{AttentionKernel, Precision, Problem};
use serde::{Deserialize, Serialize};

/// The name of the link between threads of one host. Collectives and copies over it are priced by measurement; a CPU
/// worker's every other link is emulated, by latency and bandwidth.
pub const SHARED_MEMORY: &str = "shared-memory";

/// A calibration. Its text form is TOML, units in the names of keys.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Calibration {
    /// Its name, by which a device kind asks for it.
    pub name: String,
    /// What it is for.
    pub device: String,
    /// Where its figures come from.
    pub source: String,
    /// Whether its devices are CPU threads of one process: links other than [`SHARED_MEMORY`] are then emulated.
    #[serde(default)]
    pub threads: bool,
    /// Overheads.
    #[serde(default)]
    pub dispatch: Dispatch,
    /// Slowing of work that overlaps.
    #[serde(default)]
    pub interference: Interference,
    /// What training takes beyond its kernels.
    #[serde(default)]
    pub in_training: InTraining,
    /// Matrix products, by number format.
    pub matrix_product: Vec<MatrixProduct>,
    /// Attention cores, by implementation.
    pub attention: Vec<Attention>,
    /// Streaming kernels.
    pub streaming: Vec<StreamingRate>,
    /// What links reach.
    #[serde(default)]
    pub link: Vec<LinkEfficiency>,
    /// Protocols of the collective library; empty means a step costs its link's latency and nothing else.
    #[serde(default)]
    pub protocol: Vec<Protocol>,
    /// Fits of measured collectives.
    #[serde(default)]
    pub collective_fit: Vec<CollectiveFit>,
    /// Fits of measured messages.
    #[serde(default)]
    pub message_fit: Vec<MessageFit>,
    /// Absolute times of one machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub measured: Option<Measured>,
}

/// Overheads of running anything.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Dispatch {
    /// Of each instruction.
    pub instruction_us: f64,
    /// Of the host for each kernel: a unit takes at least this times its launches.
    pub launch_us: f64,
}

/// What training takes beyond the sum of its kernels measured alone: caches that other work has emptied in between, waking
/// from a wait, and what no kernel accounts for. Measured on whole iterations of small models.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct InTraining {
    /// Of devices at their own speed.
    pub real: Composition,
    /// Of emulated slower devices, which share cores and caches with others and wait between instructions.
    pub emulated: Composition,
}

/// Factors on the sum of the kernels, and time added to each exchange.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Composition {
    /// On forward passes and recomputation.
    pub forward: f64,
    /// On backward passes of both kinds.
    pub backward: f64,
    /// On the sum of squares of gradients.
    pub gradient_norm: f64,
    /// On the optimizer step.
    pub optimizer: f64,
    /// On passes of ranks that share matrices, beside the above: each waits for the slower one of the moment, time and again.
    pub in_step: f64,
    /// Added to each collective and message in shared memory.
    pub exchange_us: f64,
}

impl Default for Composition {
    fn default() -> Self {
        Self { forward: 1.0, backward: 1.0, gradient_norm: 1.0, optimizer: 1.0, in_step: 1.0, exchange_us: 0.0 }
    }
}

impl Composition {
    /// The factor on a pass of one of `tensor` ranks.
    #[must_use]
    pub const fn pass(&self, pass: Pass, tensor: u64) -> f64 {
        let alone = match pass {
            Pass::Forward | Pass::Recompute => self.forward,
            Pass::Backward | Pass::BackwardInput | Pass::BackwardWeight => self.backward,
        };
        if tensor > 1 { alone * self.in_step } else { alone }
    }
}

impl InTraining {
    /// That of a device with this slowdown.
    #[must_use]
    pub fn of(&self, slowdown: f64) -> &Composition {
        if slowdown > 1.0 { &self.emulated } else { &self.real }
    }
}

/// How much longer work takes while the other kind runs beside it; 1 means not at all.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interference {
    /// Of compute beside communication.
    pub compute: f64,
    /// Of communication beside compute.
    pub communication: f64,
}

impl Default for Interference {
    fn default() -> Self {
        Self { compute: 1.0, communication: 1.0 }
    }
}

/// `t = overhead + max(2mnk / (peak utilisation w^wave_exponent), bytes / (bandwidth memory_efficiency))`, where `w` is
/// the share of the multiprocessors' tiles that does useful work: `(m/tile_m) (n/tile_n)` over whole waves of whole tiles.
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
    /// Measured rows that the constants rest on; 0 means assumed.
    pub rows: u32,
    /// Where they come from.
    pub source: String,
}

/// An attention core: FLOPs over a share of the peak, plus the traffic of the scores where they reach memory.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Attention {
    /// Which implementation. A plain one computes the whole square of scores.
    pub kernel: AttentionKernel,
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
    /// Measured rows that the constants rest on; 0 means assumed.
    pub rows: u32,
    /// Where they come from.
    pub source: String,
}

/// `t = launches overhead + bytes / (memory bandwidth bandwidth_fraction)`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StreamingRate {
    /// Name of the kind ([`Streaming::name`]); `all` where no row names the kind.
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

/// Share of a link's line rate that collectives and messages reach.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEfficiency {
    /// Name of the link.
    pub link: String,
    /// Share of the line rate.
    pub efficiency: f64,
    /// Where it comes from.
    pub source: String,
}

/// One protocol of a collective library. The cheapest is taken for each size, as the library does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Its name.
    pub name: String,
    /// Fixed time of a collective.
    pub base_us: f64,
    /// Time of a step inside a domain.
    pub domain_step_us: f64,
    /// Time of a step through the host.
    pub host_step_us: f64,
    /// Time of a step between nodes.
    pub network_step_us: f64,
    /// Share of the bandwidth that carries data.
    pub bandwidth_fraction: f64,
    /// Most that it reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_cap_gb_per_s: Option<f64>,
    /// Where it comes from.
    pub source: String,
}

/// A fit of measured collectives inside one domain, of `n` members and a buffer of `S` bytes:
/// `t = (overhead_us_per_rank n + root_us_per_sqrt_mib sqrt(S)) share + factor S / bus`, where `factor` is
/// `2(n-1)/n` for an all-reduce and `(n-1)/n` for the others, and `share` is 1 for an all-reduce and 1/2 for the others
/// (which are its two halves).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveFit {
    /// Name of the link.
    pub link: String,
    /// Fewest members for which it holds; the row with the most that fits is taken.
    pub from_ranks: u32,
    /// Only for all-reduces.
    #[serde(default)]
    pub all_reduce_only: bool,
    /// Fixed time for each member.
    pub overhead_us_per_rank: f64,
    /// Bus bandwidth of large buffers.
    pub bus_gb_per_s: f64,
    /// Slow start.
    pub root_us_per_sqrt_mib: f64,
    /// Measured rows that it rests on; 0 means assumed.
    pub rows: u32,
    /// Where it comes from.
    pub source: String,
}

/// A fit of measured messages: `t = overhead + S / bandwidth + root sqrt(S)`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageFit {
    /// Name of the link.
    pub link: String,
    /// Fixed time.
    pub overhead_us: f64,
    /// Bandwidth of large messages, as a share of the line rate.
    pub bandwidth_fraction: f64,
    /// Slow start.
    pub root_us_per_sqrt_mib: f64,
    /// Measured rows that it rests on; 0 means assumed.
    pub rows: u32,
    /// Where it comes from.
    pub source: String,
}

/// Absolute times. Kernels and copies are those of one CPU worker (FP32); collectives may be of any link.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Measured {
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
    /// Collectives inside one domain.
    #[serde(default)]
    pub collectives: Vec<CollectivePoints>,
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
    /// Name of the link that joins the members; between threads, [`SHARED_MEMORY`].
    #[serde(default = "shared_memory")]
    pub link: String,
    /// Its name ([`ir::program::CollectiveKind::name`]).
    pub kind: String,
    /// Members.
    pub ranks: u32,
    /// `[bytes of the whole buffer, microseconds]`.
    pub points: Vec<[f64; 2]>,
}

fn shared_memory() -> String {
    SHARED_MEMORY.to_owned()
}

impl Calibration {
    /// Reads a calibration's text; `file` names it in problems.
    ///
    /// # Errors
    /// Every fault of form or of value: unknown keys, wrong types, numbers that are not finite or out of range.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        crate::calibration_text::parse(text, file)
    }
    /// Its text.
    ///
    /// # Panics
    /// Never: every calibration has a text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a calibration is tables, arrays, numbers and texts")
    }
    /// The constants of matrix products in a number format, or the nearest there are: those of the other 16-bit format,
    /// else the first.
    pub(crate) fn matrix_product(&self, precision: Precision) -> Option<&MatrixProduct> {
        let of = |wanted: Precision| self.matrix_product.iter().find(|row| row.precision == wanted);
        let other = match precision {
            Precision::Fp16 => Precision::Bf16,
            Precision::Bf16 => Precision::Fp16,
            Precision::Fp32 => Precision::Fp32,
        };
        of(precision).or_else(|| of(other)).or_else(|| self.matrix_product.first())
    }
    /// The constants of an attention core, or of the other one.
    pub(crate) fn attention(&self, kernel: AttentionKernel) -> Option<&Attention> {
        self.attention.iter().find(|row| row.kernel == kernel).or_else(|| self.attention.first())
    }
    /// The rate of a streaming kernel: its own, else that of the kernel that [stands in](Streaming::stand_in), else that of `all`.
    pub(crate) fn streaming(&self, kind: Streaming) -> Option<&StreamingRate> {
        let of = |name: &str| self.streaming.iter().find(|row| row.kernel == name);
        of(kind.name()).or_else(|| kind.stand_in().and_then(|k| of(k.name()))).or_else(|| of("all"))
    }
    /// Share of a link's line rate that is reached; 1 where nothing is known.
    pub(crate) fn efficiency(&self, link: &str) -> f64 {
        self.link.iter().find(|row| row.link == link).map_or(1.0, |row| row.efficiency)
    }
}
