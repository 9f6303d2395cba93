//! Kernels to seconds on one device.

use ir::counts::{Kernel, Shape, Streaming, unit_kernels};
use ir::program::{CollectiveKind, Pass, Unit};
use ir::{AttentionKernel, DeviceKind, Precision, Problem, Recompute, SimDuration};

use crate::calibration::{Calibration, Measured};
use crate::curve::Curve;
use crate::model::Basis;
use crate::shapes::{Grid, attention_points, attention_sizes, attention_terms, product_points, product_terms};

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

impl Prepared {
    pub(crate) fn new(calibration: Calibration) -> Self {
        let none = Measured::default();
        let measured = calibration.measured.as_ref().unwrap_or(&none);
        let curve = |points: &[[f64; 2]]| Curve::new(points.iter().map(|[size, us]| (*size, us * 1e-6)));
        let of_kind = |kind: Streaming| {
            let row = |name: &str| measured.streaming.iter().find(|row| row.kernel == name);
            row(kind.name()).or_else(|| kind.stand_in().and_then(|k| row(k.name()))).and_then(|row| curve(&row.points))
        };
        let core = |points: &[[f64; 5]]| Grid::new(&attention_points(points), attention_terms);
        Self {
            products: Grid::new(&product_points(&measured.matrix_products), product_terms),
            attention: [core(&measured.attention_forward), core(&measured.attention_backward)],
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
                Some(grid) => measured(grid.at([m as f64, n as f64, k as f64])),
                None => self.product(device, precision, m, n, k),
            },
            Kernel::Attention {
                sequences, sequence_length, heads, head_dim, kernel: implementation, backward, ..
            } => {
                let sizes = attention_sizes(sequences as f64, sequence_length as f64, heads as f64, head_dim as f64);
                match &self.attention[usize::from(backward)] {
                    Some(grid) => measured(grid.at(sizes)),
                    None => {
                        let [cores, tokens, width] = sizes;
                        self.attention_core(device, precision, implementation, Core { cores, tokens, width, backward })
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
        let softmax =
            self.calibration.streaming(Streaming::SwiGlu).expect("a calibration prices every streaming kernel");
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
        let composition = self.calibration.in_training.of(device.slowdown).pass(pass, shape.tensor());
        (nanoseconds(seconds.max(host) * composition * device.slowdown), basis)
    }
}

#[derive(Clone, Copy)]
struct Core {
    cores: f64,
    tokens: f64,
    width: f64,
    backward: bool,
}

/// Longest duration of one part of an operation: 2.8 hours. A price that reaches it has been cut short, and is refused by
/// whoever evaluates it (see [`crate::too_long`]): some bandwidth or peak is then off by orders of magnitude.
pub(crate) const LONGEST: u64 = 10_000_000_000_000;

/// Most nanoseconds of all work of an iteration together: 146 years. Keeps event time inside 64 bits.
const MOST: u128 = 1 << 62;

/// Why durations cannot be worked with, if they cannot: one has reached the longest that a price can say, or their sum
/// would leave event time. `times` gives each duration in nanoseconds and how often it is spent.
#[must_use]
pub fn too_long(times: impl IntoIterator<Item = (u64, u64)>) -> Option<Problem> {
    let (mut total, mut longest) = (0u128, 0);
    for (time, count) in times {
        total += u128::from(time) * u128::from(count);
        longest = longest.max(time);
    }
    let message = if longest >= LONGEST {
        "a single pass, collective or message would take over 2.8 hours"
    } else if total >= MOST {
        "an iteration would take over a hundred years"
    } else {
        return None;
    };
    Some(Problem::new("cluster", message).hint("is a bandwidth, a latency or a peak in the wrong unit?"))
}

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
