//! Kernels to seconds on one device.

use ir::counts::{Kernel, Shape, Streaming, flops, unit_kernels};
use ir::program::{CollectiveKind, Pass, Unit};
use ir::{AttentionKernel, DeviceKind, Precision, Recompute, SimDuration};

use crate::calibration::{Calibration, Measured};
use crate::curve::{Curve, Scatter, relative_line};
use crate::model::Basis;

/// A calibration with its measurements made ready for interpolation.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) calibration: Calibration,
    products: Option<Grid>,
    attention: [Option<Grid>; 2],
    streaming: Vec<Option<Curve>>,
    pub(crate) copies: Option<Curve>,
    pub(crate) collectives: Vec<CollectiveCurve>,
}

/// Measured times of a collective on one kind of link.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveCurve {
    pub(crate) link: String,
    pub(crate) kind: CollectiveKind,
    pub(crate) ranks: u32,
    pub(crate) curve: Curve,
}

/// Measured times over shapes of three sizes: a line in the FLOPs, times an interpolated factor.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    overhead: f64,
    rate: f64,
    factor: Scatter<3>,
}

impl Grid {
    /// Through points (sizes, FLOPs, seconds).
    pub(crate) fn new(points: &[([f64; 3], f64, f64)]) -> Option<Self> {
        let line: Vec<(f64, f64)> = points.iter().map(|(_, flops, seconds)| (*flops, *seconds)).collect();
        let (overhead, rate) = relative_line(&line)?;
        let factors = points.iter().map(|(sizes, flops, seconds)| (*sizes, seconds / (overhead + flops / rate)));
        Some(Self { overhead, rate, factor: Scatter::new(factors) })
    }
    /// Seconds, and whether this very shape was measured.
    pub(crate) fn at(&self, sizes: [f64; 3], flops: f64) -> (f64, bool) {
        let (factor, measured) = self.factor.at(sizes);
        ((self.overhead + flops / self.rate) * factor, measured)
    }
}

/// The sizes by which an attention core is interpolated: cores side by side, tokens, head width.
pub(crate) const fn attention_sizes(sequences: u64, sequence_length: u64, heads: u64, head_dim: u64) -> [f64; 3] {
    [sequences as f64 * heads as f64, sequence_length as f64, head_dim as f64]
}

/// FLOPs as the interpolation counts them.
pub(crate) const fn attention_kernel(point: [f64; 4], backward: bool) -> Kernel {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "sizes were checked to be positive; a cast saturates")]
    let whole = [point[0] as u64, point[1] as u64, point[2] as u64, point[3] as u64];
    Kernel::Attention {
        sequences: whole[0],
        sequence_length: whole[1],
        heads: whole[2],
        kv_heads: whole[2],
        head_dim: whole[3],
        kernel: AttentionKernel::Fused,
        backward,
    }
}

fn attention_grid(points: &[[f64; 5]], backward: bool) -> Option<Grid> {
    let rows: Vec<([f64; 3], f64, f64)> = points
        .iter()
        .map(|&[sequences, tokens, heads, width, microseconds]| {
            let count = flops(attention_kernel([sequences, tokens, heads, width], backward)).get() as f64;
            ([sequences * heads, tokens, width], count, microseconds * 1e-6)
        })
        .collect();
    Grid::new(&rows)
}

impl Prepared {
    pub(crate) fn new(calibration: Calibration) -> Self {
        let none = Measured::default();
        let measured = calibration.measured.as_ref().unwrap_or(&none);
        let curve = |points: &[[f64; 2]]| Curve::new(points.iter().map(|[size, us]| (*size, us * 1e-6)));
        let of_kind = |kind: Streaming| {
            let row = |name: &str| measured.streaming.iter().find(|row| row.kernel == name);
            row(kind.name()).or_else(|| kind.stand_in().and_then(|k| row(k.name()))).and_then(|row| curve(&row.points))
        };
        let products: Vec<([f64; 3], f64, f64)> =
            measured.matrix_products.iter().map(|&[m, n, k, us]| ([m, n, k], 2.0 * m * n * k, us * 1e-6)).collect();
        Self {
            products: Grid::new(&products),
            attention: [
                attention_grid(&measured.attention_forward, false),
                attention_grid(&measured.attention_backward, true),
            ],
            streaming: Streaming::ALL.into_iter().map(of_kind).collect(),
            copies: curve(&measured.copies),
            collectives: measured
                .collectives
                .iter()
                .filter_map(|row| {
                    let kind = crate::collective::kind_of_name(&row.kind)?;
                    Some(CollectiveCurve { link: row.link.clone(), kind, ranks: row.ranks, curve: curve(&row.points)? })
                })
                .collect(),
            calibration,
        }
    }

    /// Seconds of one kernel on a device of this calibration, its slowdown not applied.
    pub(crate) fn kernel(&self, device: &DeviceKind, precision: Precision, kernel: Kernel) -> (f64, Basis) {
        match kernel {
            Kernel::MatrixProduct { m, n, k } => match &self.products {
                Some(grid) => measured(grid.at([m as f64, n as f64, k as f64], flops(kernel).get() as f64)),
                None => self.product(device, precision, m, n, k),
            },
            Kernel::Attention { sequences, sequence_length, heads, head_dim, kernel: implementation, backward, .. } => {
                match &self.attention[usize::from(backward)] {
                    Some(grid) => measured(grid.at(
                        attention_sizes(sequences, sequence_length, heads, head_dim),
                        flops(kernel).get() as f64,
                    )),
                    None => {
                        let cores = sequences as f64 * heads as f64;
                        let core = Core { cores, tokens: sequence_length as f64, width: head_dim as f64, backward };
                        self.attention_core(device, precision, implementation, core)
                    }
                }
            }
            Kernel::Streaming { kind, bytes, launches } => match &self.streaming[kind as usize] {
                Some(curve) => measured(curve.at(bytes.get() as f64)),
                None => {
                    let row = self.calibration.streaming(kind).expect("a calibration prices every streaming kernel");
                    let bandwidth = device.memory_bandwidth.get() * row.bandwidth_fraction;
                    (f64::from(launches) * row.overhead_us * 1e-6 + bytes.get() as f64 / bandwidth, fitted(row.rows))
                }
            },
        }
    }

    fn product(&self, device: &DeviceKind, precision: Precision, m: u64, n: u64, k: u64) -> (f64, Basis) {
        let row = self.calibration.matrix_product(precision).expect("a calibration prices matrix products");
        let (m, n, k) = (m as f64, n as f64, k as f64);
        let tiles = (m / f64::from(row.tile_m), n / f64::from(row.tile_n));
        let processors = f64::from(device.multiprocessors.max(1));
        let waves = (libm::ceil(tiles.0) * libm::ceil(tiles.1) / processors).max(f64::MIN_POSITIVE);
        let useful = (tiles.0 * tiles.1 / (libm::ceil(waves) * processors)).clamp(f64::MIN_POSITIVE, 1.0);
        let rate = peak(device, precision) * row.utilisation * libm::pow(useful, row.wave_exponent);
        let bytes = (m * k + k * n + m * n) * precision.bytes() as f64;
        let memory = bytes / (device.memory_bandwidth.get() * row.memory_efficiency);
        (row.overhead_us * 1e-6 + (2.0 * m * n * k / rate).max(memory), fitted(row.rows))
    }

    fn attention_core(
        &self,
        device: &DeviceKind,
        precision: Precision,
        implementation: AttentionKernel,
        core: Core,
    ) -> (f64, Basis) {
        let row = self.calibration.attention(implementation).expect("a calibration prices attention");
        let (products, utilisation, score_bytes) = match (core.backward, implementation) {
            (false, _) => (2.0, row.forward_utilisation, row.score_bytes),
            (true, AttentionKernel::Fused) => (5.0, row.backward_utilisation, row.score_bytes_backward),
            (true, AttentionKernel::Plain) => (4.0, row.backward_utilisation, row.score_bytes_backward),
        };
        let scores = match implementation {
            AttentionKernel::Fused => core.tokens * (core.tokens + f64::from(row.block)).min(2.0 * core.tokens) / 2.0,
            AttentionKernel::Plain => core.tokens * core.tokens,
        } * core.cores;
        let arithmetic = scores * 2.0 * core.width * products / (peak(device, precision) * utilisation);
        let softmax = self.calibration.streaming(Streaming::Activation).expect("a calibration prices every streaming kernel");
        let traffic = scores * score_bytes * (precision.bytes() as f64 / 2.0)
            / (device.memory_bandwidth.get() * softmax.bandwidth_fraction);
        (row.overhead_us * 1e-6 + arithmetic + traffic, fitted(row.rows))
    }

    /// One unit's pass: its kernels, or the host's launches where those take longer; the device's slowdown applied.
    /// A backward pass is the sum of its two halves, to the nanosecond.
    pub(crate) fn unit(
        &self,
        device: &DeviceKind,
        shape: Shape<'_>,
        unit: Unit,
        pass: Pass,
        recompute: Recompute,
    ) -> (u64, Basis) {
        if pass == Pass::Backward {
            let (input, input_basis) = self.unit(device, shape, unit, Pass::BackwardInput, recompute);
            let (weight, weight_basis) = self.unit(device, shape, unit, Pass::BackwardWeight, recompute);
            return (input + weight, input_basis.max(weight_basis));
        }
        let mut kernels = Vec::with_capacity(8);
        unit_kernels(shape, unit, pass, recompute, &mut kernels);
        let (mut seconds, mut launches, mut basis) = (0.0, 0.0, Basis::Measured);
        for kernel in kernels {
            let (time, on) = self.kernel(device, shape.workload.precision, kernel);
            seconds += time;
            launches += f64::from(kernel.launches());
            basis = basis.max(on);
        }
        let host = launches * self.calibration.dispatch.launch_us * 1e-6;
        (nanoseconds(seconds.max(host) * device.slowdown), basis)
    }
}

#[derive(Clone, Copy)]
struct Core {
    cores: f64,
    tokens: f64,
    width: f64,
    backward: bool,
}

/// Longest duration of one part of an operation: 115 days. Keeps every sum of parts inside 64 bits.
const LONGEST: u64 = 10_000_000_000_000_000;

/// Whole nanoseconds, rounded up, at most [`LONGEST`]. Zero stays zero.
pub(crate) fn nanoseconds(seconds: f64) -> u64 {
    // A product of decimal constants lies a few units of the last place above or below the integer it means; the
    // tolerance keeps `ceil` from turning that into a nanosecond. It is far below what a price resolves.
    let adjusted = seconds * (1.0 - 4.0 * f64::EPSILON);
    SimDuration::from_seconds(adjusted.max(0.0)).map_or(LONGEST, |duration| duration.nanoseconds().min(LONGEST))
}

/// The peak in a number format; where the device has none, the lowest that it has (see [`crate::CostModel::problems`]).
fn peak(device: &DeviceKind, precision: Precision) -> f64 {
    device.peak(precision).map_or_else(
        || device.peak.iter().map(|(_, rate)| rate.get()).fold(f64::INFINITY, f64::min).min(1e18),
        ir::FlopsPerSecond::get,
    )
}

const fn fitted(rows: u32) -> Basis {
    if rows == 0 { Basis::Analytic } else { Basis::Interpolated }
}

const fn measured((seconds, exactly): (f64, bool)) -> (f64, Basis) {
    (seconds, if exactly { Basis::Measured } else { Basis::Interpolated })
}
