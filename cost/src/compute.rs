//! Kernels to seconds on one device.

use ir::counts::{Kernel, Shape, Streaming, UnitKind, causal_scores, product_precision, unit_kernels};
use ir::program::{CollectiveKind, Pass};
use ir::{AttentionKernel, DeviceKind, Precision, Problem, Recompute, SimDuration};

use crate::basis::Basis;
use crate::calibration::{Calibration, Measured, penalty};
use crate::curve::Curve;
use crate::shapes::{Grid, attention_points, attention_sizes, attention_terms, product_points, product_terms};

/// A calibration with its measurements made ready for interpolation.
#[derive(Clone, Debug)]
pub(crate) struct Prepared {
    pub(crate) calibration: Calibration,
    /// Whether kernels of a format are those that were measured.
    measured_class: Option<crate::PrecisionClass>,
    products: Option<Grid>,
    attention: [Option<Grid>; 2],
    streaming: Vec<Option<Curve>>,
    /// By kind: seconds of a launch, share of the memory bandwidth, basis.
    rates: Vec<(f64, f64, Basis)>,
    pub(crate) copies: Option<Curve>,
    pub(crate) collectives: Vec<CollectiveCurve>,
}

/// Measured times of a collective on one kind of link.
#[derive(Clone, Debug)]
pub(crate) struct CollectiveCurve {
    pub(crate) link: String,
    pub(crate) kind: CollectiveKind,
    pub(crate) ranks: u32,
    pub(crate) nodes: u32,
    pub(crate) curve: Curve,
}

/// What software adds to kernels, as one cost model has it.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Software {
    /// Factor on kernels, stragglers in it.
    pub(crate) compute: f64,
    /// Factor on attention cores beside it.
    pub(crate) attention: f64,
    /// Of the host for each launch; `None`: the calibration's.
    pub(crate) launch_us: Option<f64>,
    /// Of a host that launches slowly: what the passes would take there is told beside what they take.
    pub(crate) slow_launch_us: f64,
    /// Each forward pass (again where it is recomputed) and each backward pass of a layer's experts.
    pub(crate) expert_sync_us: f64,
}

/// One unit's pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct UnitPrice {
    pub(crate) nanoseconds: u64,
    /// Of these, how many the device waits for the host's launches.
    pub(crate) idle: u64,
    /// Of these, how many the host waits for the experts' counts.
    pub(crate) held_up: u64,
    /// How many more there would be on a host that launches slowly.
    pub(crate) slower: u64,
    pub(crate) basis: Basis,
}

impl UnitPrice {
    /// Both, one after the other.
    pub(crate) fn and(self, other: Self) -> Self {
        Self {
            nanoseconds: self.nanoseconds + other.nanoseconds,
            idle: self.idle + other.idle,
            held_up: self.held_up + other.held_up,
            slower: self.slower + other.slower,
            basis: self.basis.max(other.basis),
        }
    }
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
        let rate = |kind: Streaming| {
            let (row, _) = calibration.streaming(kind).expect("a calibration prices every streaming kernel");
            (row.overhead_us * 1e-6, row.bandwidth_fraction, fitted(row.rows))
        };
        let core = |points: &[[f64; 5]]| Grid::new(&attention_points(points), attention_terms);
        Self {
            measured_class: calibration.measured.as_ref().map(|of| crate::PrecisionClass::of(of.precision)),
            products: Grid::new(&product_points(&measured.matrix_products), product_terms),
            attention: [core(&measured.attention_forward), core(&measured.attention_backward)],
            streaming: Streaming::ALL.into_iter().map(of_kind).collect(),
            rates: Streaming::ALL.into_iter().map(rate).collect(),
            copies: curve(&measured.copies),
            collectives: measured
                .collectives
                .iter()
                .filter_map(|row| {
                    let (kind, curve) = (CollectiveKind::from_name(&row.kind)?, curve(&row.points)?);
                    let (link, ranks, nodes) = (row.link.clone(), row.ranks, row.nodes);
                    Some(CollectiveCurve { link, kind, ranks, nodes, curve })
                })
                .collect(),
            calibration,
        }
    }

    /// Seconds of one kernel on a device of this calibration, its slowdown not applied.
    pub(crate) fn kernel(&self, device: &DeviceKind, precision: Precision, kernel: Kernel) -> (f64, Basis) {
        match kernel {
            Kernel::MatrixProduct { m, n, k } => match self.grid(self.products.as_ref(), precision) {
                Some(grid) => measured(grid.at([m as f64, n as f64, k as f64])),
                None => self.product(device, precision, Product { groups: None, m, n, k }),
            },
            Kernel::GroupedProduct { groups, m, n, k } => match self.grid(self.products.as_ref(), precision) {
                Some(grid) => {
                    let (seconds, basis) = measured(grid.at([m as f64, n as f64, k as f64]));
                    (seconds * groups as f64, basis)
                }
                None => self.product(device, precision, Product { groups: Some(groups), m, n, k }),
            },
            Kernel::Attention { .. } => self.attention_core(device, precision.outside_layers(), Core::of(kernel)),
            Kernel::Streaming { kind, bytes, launches } => match &self.streaming[kind as usize] {
                Some(curve) => measured(curve.at(bytes.get() as f64)),
                None => {
                    let (overhead, share, basis) = self.rates[kind as usize];
                    let bandwidth = device.memory_bandwidth.get() * share;
                    (f64::from(launches) * overhead + bytes.get() as f64 / bandwidth, basis)
                }
            },
        }
    }

    /// A grid of measured times, if it is of this number format.
    fn grid<'a>(&self, grid: Option<&'a Grid>, precision: Precision) -> Option<&'a Grid> {
        grid.filter(|_| self.measured_class == Some(crate::PrecisionClass::of(precision)))
    }

    fn product(&self, device: &DeviceKind, precision: Precision, product: Product) -> (f64, Basis) {
        let (row, exact) = self.calibration.matrix_product(precision).expect("a calibration prices matrix products");
        let Product { groups, m, n, k } = product;
        let penalty = penalty(&row.alignment, [m, n, k]);
        let (count, m, n, k) = (groups.unwrap_or(1) as f64, m as f64, n as f64, k as f64);
        let tiles = (m / f64::from(row.tile_m), n / f64::from(row.tile_n));
        let processors = f64::from(device.multiprocessors.max(1));
        let waves = (count * libm::ceil(tiles.0) * libm::ceil(tiles.1) / processors).max(f64::MIN_POSITIVE);
        let useful = (count * tiles.0 * tiles.1 / (libm::ceil(waves) * processors)).clamp(f64::MIN_POSITIVE, 1.0);
        let utilisation = groups.and(row.grouped_utilisation).unwrap_or(row.utilisation);
        let rate = peak(device, precision) * utilisation * libm::pow(useful, row.wave_exponent);
        let (operand, result) = element_bytes(precision);
        let bytes = count * ((m * k + k * n) * operand + m * n * result);
        let memory = bytes / (device.memory_bandwidth.get() * row.memory_efficiency);
        let seconds = row.overhead_us * 1e-6 + (count * 2.0 * m * n * k / rate).max(memory) * penalty;
        (seconds, if exact && device.peak(precision).is_some() { fitted(row.rows) } else { Basis::Assumed })
    }

    fn attention_core(&self, device: &DeviceKind, precision: Precision, core: Core) -> (f64, Basis) {
        if core.is_plain_causal()
            && let Some(grid) = self.grid(self.attention[usize::from(core.backward)].as_ref(), precision)
        {
            return measured(grid.at(attention_sizes(core.cores, core.tokens as f64, 1.0, core.head_dim as f64)));
        }
        let (row, exact) = self.calibration.attention(core.kernel, precision).expect("a calibration prices attention");
        // Products with keys (over the head's width) and with values.
        let (with_keys, with_values) = match (core.backward, core.kernel) {
            (false, _) => (1.0, 1.0),
            (true, AttentionKernel::Plain) => (2.0, 2.0),
            (true, AttentionKernel::Fused) => (3.0, 2.0),
        };
        let utilisation = if core.backward { row.backward_utilisation } else { row.forward_utilisation };
        let scores = core.scores(f64::from(row.block));
        let width = core.head_dim as f64 * with_keys + core.value_dim as f64 * with_values;
        let penalty = penalty(&row.alignment, [core.head_dim, core.value_dim]);
        let arithmetic = scores * 2.0 * width * penalty / (peak(device, precision) * utilisation);
        let (_, softmax_share, _) = self.rates[Streaming::SwiGlu as usize];
        let score_bytes = row.bytes_per_score(core.backward, core.fused_softmax) * precision.bytes() as f64 / 2.0;
        let traffic = scores * score_bytes / (device.memory_bandwidth.get() * softmax_share);
        let seconds = f64::from(core.pieces) * row.overhead_us * 1e-6 + arithmetic + traffic;
        (seconds, if exact && device.peak(precision).is_some() { fitted(row.rows) } else { Basis::Assumed })
    }

    /// One unit's pass: its kernels with what the software adds, or the host's launches where those take longer; the
    /// device's slowdown applied. A backward pass is the sum of its two halves, to the nanosecond.
    pub(crate) fn unit(
        &self,
        device: &DeviceKind,
        software: &Software,
        shape: Shape<'_>,
        kind: UnitKind,
        (pass, recompute): (Pass, Recompute),
    ) -> UnitPrice {
        if pass == Pass::Backward {
            let half = |pass| self.unit(device, software, shape, kind, (pass, recompute));
            return half(Pass::BackwardInput).and(half(Pass::BackwardWeight));
        }
        let mut kernels = Vec::with_capacity(16);
        unit_kernels(shape, kind, pass, recompute, &mut kernels);
        let precision = product_precision(shape.workload, kind);
        let (mut seconds, mut launches, mut basis) = (0.0, 0.0, Basis::Measured);
        for kernel in kernels {
            let (time, on) = self.kernel(device, precision, kernel);
            let core = matches!(kernel, Kernel::Attention { .. });
            seconds += time * software.compute * if core { software.attention } else { 1.0 };
            launches += f64::from(kernel.launches());
            basis = basis.max(on);
        }
        let launch_us = software.launch_us.unwrap_or(self.calibration.dispatch.launch_us);
        let launches = if shape.workload.recipe.cuda_graphs { 0.0 } else { launches };
        let host = launches * launch_us * 1e-6;
        let on_slow_host = seconds.max(launches * software.slow_launch_us * 1e-6);
        let composition = self.calibration.in_training.of(device.slowdown).pass(pass, shape.tensor());
        let factor = composition * device.slowdown;
        let synced = kind == UnitKind::Experts && pass != Pass::BackwardWeight;
        let sync = if synced { software.expert_sync_us * 1e-6 * device.slowdown } else { 0.0 };
        UnitPrice {
            nanoseconds: nanoseconds(seconds.max(host) * factor + sync),
            idle: nanoseconds((host - seconds).max(0.0) * factor),
            held_up: nanoseconds(sync),
            slower: nanoseconds((on_slow_host - seconds.max(host)).max(0.0) * factor),
            basis,
        }
    }
}

/// Equal matrix products: one, or a group in one kernel.
#[derive(Clone, Copy)]
struct Product {
    groups: Option<u64>,
    m: u64,
    n: u64,
    k: u64,
}

/// Bytes of an element of the operands and of the result of a matrix product.
const fn element_bytes(precision: Precision) -> (f64, f64) {
    match precision {
        Precision::Fp32 | Precision::Tf32 => (4.0, 4.0),
        Precision::Fp16 | Precision::Bf16 => (2.0, 2.0),
        Precision::Fp8 => (1.0, 2.0),
    }
}

/// [`Kernel::Attention`], for arithmetic.
#[derive(Clone, Copy)]
struct Core {
    /// Sequences times heads.
    cores: f64,
    tokens: u64,
    window: u64,
    context: u64,
    pieces: u32,
    head_dim: u64,
    value_dim: u64,
    kernel: AttentionKernel,
    fused_softmax: bool,
    backward: bool,
}

impl Core {
    fn of(kernel: Kernel) -> Self {
        match kernel {
            Kernel::Attention {
                sequences,
                sequence_length,
                heads,
                head_dim,
                value_dim,
                window,
                context,
                pieces,
                kernel,
                fused_softmax,
                backward,
                ..
            } => Self {
                cores: sequences as f64 * heads as f64,
                tokens: sequence_length,
                window: window.min(sequence_length),
                context: context.max(1),
                pieces: pieces.max(1),
                head_dim,
                value_dim,
                kernel,
                fused_softmax,
                backward,
            },
            Kernel::MatrixProduct { .. } | Kernel::GroupedProduct { .. } | Kernel::Streaming { .. } => {
                unreachable!("not an attention core: {kernel:?}")
            }
        }
    }

    /// Whether it is what an executor measures: all positions before each query, on one rank, values as wide as keys.
    const fn is_plain_causal(&self) -> bool {
        self.window == self.tokens && self.context == 1 && self.head_dim == self.value_dim
    }

    /// Scores that are computed on this rank, in blocks: each query's row has a partial block at the diagonal, and another
    /// where its window begins (if that is not the beginning); half of each is in vain. A plain core computes whole squares.
    fn scores(&self, block: f64) -> f64 {
        let (tokens, window) = (self.tokens as f64, self.window as f64);
        let each = match self.kernel {
            AttentionKernel::Plain => tokens * tokens,
            AttentionKernel::Fused => {
                // The causal half without the diagonal's: `s^2/2` for the whole sequence.
                let used = causal_scores(self.tokens, self.window) as f64 - tokens / 2.0;
                let edges = tokens + (tokens - window);
                (used + edges * block / 2.0).min(tokens * tokens)
            }
        };
        each * self.cores / self.context as f64
    }
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

pub(crate) const fn fitted(rows: u32) -> Basis {
    if rows == 0 { Basis::Assumed } else { Basis::Interpolated }
}

const fn measured((seconds, exactly): (f64, bool)) -> (f64, Basis) {
    (seconds, if exactly { Basis::Measured } else { Basis::Interpolated })
}
