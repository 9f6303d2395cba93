//! What was measured or assumed about one kind of device: plain data, with where it comes from.
//!
//! Two layers. *Constants* are relative to the device's peaks, so that one calibration serves all devices of a
//! generation. *Measurements* are absolute times of one machine, interpolated; where there are any, they come first.

use ir::counts::Streaming;
use ir::program::Pass;
use ir::{AttentionKernel, Link, Precision, Problem};
use serde::{Deserialize, Serialize};

mod kernels;
mod links;
mod measured;

pub(crate) use kernels::penalty;
pub use kernels::{Alignment, Attention, MatrixProduct, StreamingRate};
pub use links::{CollectiveFit, Host, LinkEfficiency, MessageFit, Protocol};
pub use measured::{CollectivePoints, Measured, StreamingPoints};

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
    /// The device generation, by which software stacks are keyed; its name where it is not given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<String>,
    /// Standard deviation of the logarithm of what its constants give over what devices take, software apart. `None`: the
    /// catalog of stacks declares that of an unknown device.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spread: Option<f64>,
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
    /// The host, where it steps the optimizer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub host: Option<Host>,
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

/// How much longer work takes while the other kind runs beside it on the same device; 1 means not at all.
///
/// Kernels of collectives take multiprocessors and memory bandwidth from those of products, and wait for both themselves.
/// What was measured differs with sizes, precision and library more than with the device; so it is 1 where a software
/// stack's constants were fitted on whole iterations, which contain it. As a guide for others:
/// * FSDP and pipelines of GPT and LLaMA on four A100, H100, MI210 or MI250: compute takes 18.9 % longer in the mean, 40 % at
///   most (arXiv 2507.03114, abstract);
/// * Galvatron's overlap test on its clusters: 1.3 for both sides (PKU-DAIR/Hetu-Galvatron, profile of hardware);
/// * single kernels on an A100 beside an all-gather: products 1.76, attention 1.83 (NVIDIA/nccl issue 1428).
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Interference {
    /// Of compute beside communication.
    pub compute: f64,
    /// Of communication beside compute.
    pub communication: f64,
    /// On how many measurements they rest; 0 where they are assumed.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub rows: u32,
    /// Where they come from.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub source: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "the form that serde asks for")]
const fn is_zero(rows: &u32) -> bool {
    *rows == 0
}

impl Default for Interference {
    fn default() -> Self {
        Self { compute: 1.0, communication: 1.0, rows: 0, source: String::new() }
    }
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
    /// The device generation, by which software stacks are keyed.
    #[must_use]
    pub fn generation(&self) -> &str {
        self.generation.as_deref().unwrap_or(&self.name)
    }
    /// The constants of matrix products in a number format, and whether they are those of just this one (or of the other
    /// 16-bit one): else the nearest format's stand in.
    pub(crate) fn matrix_product(&self, precision: Precision) -> Option<(&MatrixProduct, bool)> {
        let of = |wanted: Precision| self.matrix_product.iter().find(|row| row.precision == wanted);
        let (same, near): (&[Precision], &[Precision]) = match precision {
            Precision::Fp32 => (&[Precision::Fp32], &[]),
            Precision::Tf32 => (&[Precision::Tf32], &[Precision::Bf16, Precision::Fp16]),
            Precision::Fp16 => (&[Precision::Fp16, Precision::Bf16], &[]),
            Precision::Bf16 => (&[Precision::Bf16, Precision::Fp16], &[]),
            Precision::Fp8 => (&[Precision::Fp8], &[Precision::Bf16, Precision::Fp16]),
        };
        let exact = same.iter().find_map(|precision| of(*precision)).map(|row| (row, true));
        exact.or_else(|| {
            near.iter()
                .find_map(|precision| of(*precision))
                .or_else(|| self.matrix_product.first())
                .map(|row| (row, false))
        })
    }
    /// The constants of an attention core, of its number format where there are such, and whether they are those of this
    /// implementation: else those of the other one.
    pub(crate) fn attention(&self, kernel: AttentionKernel, precision: Precision) -> Option<(&Attention, bool)> {
        let of = |wanted: Option<Precision>| {
            self.attention.iter().find(|row| row.kernel == kernel && row.precision == wanted).map(|row| (row, true))
        };
        let same = self.attention.iter().find(|row| row.kernel == kernel).or_else(|| self.attention.first());
        of(Some(precision)).or_else(|| of(None)).or_else(|| same.map(|row| (row, false)))
    }
    /// The rate of a streaming kernel, and whether a row names it or the kernel that [stands in](Streaming::stand_in): else
    /// that of `all`.
    pub(crate) fn streaming(&self, kind: Streaming) -> Option<(&StreamingRate, bool)> {
        let of = |name: &str| self.streaming.iter().find(|row| row.kernel == name);
        let named = of(kind.name()).or_else(|| kind.stand_in().and_then(|k| of(k.name())));
        named.map(|row| (row, true)).or_else(|| of("all").map(|row| (row, false)))
    }
    /// Bytes per second that large transfers reach over a link: the share of its line rate that was calibrated, else the
    /// link's own, else all of it.
    pub(crate) fn reached(&self, link: &Link) -> f64 {
        let calibrated = self.link_row(link).map(|row| row.efficiency);
        link.bandwidth.get() * calibrated.or(link.efficiency).unwrap_or(1.0)
    }
    /// Devices of a node that share one link of a kind.
    pub(crate) fn devices_share(&self, link: &Link) -> u32 {
        self.link_row(link).map_or(1, |row| row.devices_share.max(1))
    }
    fn link_row(&self, link: &Link) -> Option<&LinkEfficiency> {
        self.link.iter().find(|row| row.link == link.name)
    }
}
