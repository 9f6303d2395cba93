//! The cost model: one operation on one device to a duration.

use ir::counts::{Kernel, Shape, Streaming, gradient_norm_bytes, optimizer_bytes};
use ir::program::{Chunk, CollectiveKind, Pass, Program, UnitRange};
use ir::{Bytes, Cluster, CollectiveAlgorithm, DeviceId, DeviceKindId, Precision, Problem, SimDuration};

use crate::calibration::Calibration;
use crate::collective::{self, Formula, Pricing, Steps};
use crate::compute::{Prepared, nanoseconds};
use crate::prices::{CLASSES, Prices, class_counts, kind_prices, total};
use crate::{GroupPlace, PassTable};

/// On what a duration rests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Basis {
    /// Measured for just this.
    Measured,
    /// Between measured points, or from a fit of them.
    Interpolated,
    /// From a formula.
    Analytic,
}

/// A duration and its basis. Never zero: at least one nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priced {
    /// How long, when nothing else uses the device or the links.
    pub duration: SimDuration,
    /// On what it rests (the weakest of its parts).
    pub basis: Basis,
}

impl Priced {
    fn of((seconds, basis): (f64, Basis)) -> Self {
        Self { duration: SimDuration::from_nanoseconds(nanoseconds(seconds).max(1)), basis }
    }
    const fn of_table(duration: SimDuration) -> Self {
        let nanoseconds = if duration.nanoseconds() == 0 { 1 } else { duration.nanoseconds() };
        Self { duration: SimDuration::from_nanoseconds(nanoseconds), basis: Basis::Measured }
    }
}

/// Prices operations on the devices and links of one cluster.
#[derive(Clone, Debug)]
pub struct CostModel {
    cluster: Cluster,
    source: Source,
}

/// Where prices come from.
#[derive(Clone, Debug)]
enum Source {
    /// A calibration for each kind of device, by the kind's index into `of_kind`.
    Calibrations { prepared: Vec<Prepared>, of_kind: Vec<usize> },
    /// Given durations.
    Table(PassTable),
}

impl CostModel {
    /// Prices by the calibrations that the cluster's device kinds name.
    ///
    /// # Errors
    /// Every device kind whose calibration is not among `calibrations`, with the nearest name; every calibration or
    /// device kind with values that cannot be.
    pub fn new(cluster: Cluster, calibrations: Vec<Calibration>) -> Result<Self, Vec<Problem>> {
        let mut problems: Vec<Problem> = calibrations
            .iter()
            .flat_map(|calibration| {
                crate::calibration_text::problems(calibration).into_iter().map(|mut problem| {
                    problem.subject = format!("calibration {}: {}", calibration.name, problem.subject);
                    problem
                })
            })
            .collect();
        let mut of_kind = Vec::with_capacity(cluster.device_kinds.len());
        for kind in &cluster.device_kinds {
            let subject = |key: &str| format!("device {}: {key}", kind.name);
            match calibrations.iter().position(|calibration| calibration.name == kind.calibration) {
                Some(index) => of_kind.push(index),
                None => problems.push(missing(subject("calibration"), &kind.calibration, &calibrations)),
            }
            if kind.peak.is_empty() {
                problems.push(Problem::new(subject("peak"), "it has no peak rate").hint("one for each number format"));
            }
            if !(kind.slowdown.is_finite() && kind.slowdown > 0.0) {
                let message = format!("{} is not a factor of time", kind.slowdown);
                problems.push(
                    Problem::new(subject("slowdown"), message).hint("1 for a real device, more for a slower one"),
                );
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let prepared = calibrations.into_iter().map(Prepared::new).collect();
        Ok(Self { cluster, source: Source::Calibrations { prepared, of_kind } })
    }

    /// Prices by given durations of passes: they hold exactly, with no dispatch and no slowdown; collectives take one
    /// nanosecond. For plans without tensor parallelism ([`CostModel::problems`] names what does not fit).
    ///
    /// # Errors
    /// A table without stages or chunks.
    pub fn with_pass_table(cluster: Cluster, table: PassTable) -> Result<Self, Vec<Problem>> {
        let problems = table.problems();
        if problems.is_empty() { Ok(Self { cluster, source: Source::Table(table) }) } else { Err(problems) }
    }

    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }

    /// What of a program this model cannot price as it should be: number formats that a device lacks, and passes that a
    /// pass table does not hold.
    #[must_use]
    pub fn problems(&self, program: &Program) -> Vec<Problem> {
        if let Source::Table(table) = &self.source {
            return table.unpriced(program);
        }
        let precision = program.workload.precision;
        let mut used: Vec<DeviceKindId> = if program.placement.is_empty() {
            self.first_kinds(u64::from(program.world()))
        } else {
            program.placement.iter().map(|device| self.cluster.place(*device).device_kind).collect()
        };
        used.sort_unstable();
        used.dedup();
        used.into_iter()
            .map(|id| self.cluster.device_kind(id))
            .filter(|kind| kind.peak(precision).is_none())
            .map(|kind| {
                let formats: Vec<&str> = kind.peak.iter().map(|(format, _)| format.name()).collect();
                Problem::new(
                    "training.precision",
                    format!("device {} does not support {}", kind.name, precision.name()),
                )
                .hint(format!("it supports {}", formats.join(", ")))
            })
            .collect()
    }

    /// Kinds of the first devices, without walking over each.
    fn first_kinds(&self, devices: u64) -> Vec<DeviceKindId> {
        let mut left = devices;
        let mut kinds = Vec::new();
        for group in &self.cluster.groups {
            let node = &self.cluster.node_kind(group.kind).devices;
            let of_node = usize::try_from(left.min(node.len() as u64)).expect("at most a node");
            kinds.extend_from_slice(&node[..of_node]);
            left = left.saturating_sub(u64::from(group.count) * node.len() as u64);
        }
        kinds
    }

    /// Prices of one shape, for look-up: some ten microseconds to make, nanoseconds to ask.
    #[must_use]
    pub fn prepare(&self, shape: Shape<'_>) -> Prices {
        match &self.source {
            Source::Table(table) => Prices::from_table(table.clone()),
            Source::Calibrations { .. } => Prices::of_kinds(self.cluster.device_kinds.len(), |id| {
                let (kind, prepared) = (self.cluster.device_kind(id), self.prepared(id));
                kind_prices(self.dispatch(id), shape, |shape, unit, pass, recompute| {
                    prepared.unit(kind, shape, unit, pass, recompute)
                })
            }),
        }
    }

    /// One compute instruction: a pass over consecutive units of a chunk. Additive: the price of a range is the sum of
    /// the prices of its units plus one dispatch of the instruction.
    ///
    /// For many look-ups of one shape, use [`CostModel::prepare`].
    #[must_use]
    pub fn compute(
        &self,
        shape: Shape<'_>,
        chunk: &Chunk,
        pass: Pass,
        units: UnitRange,
        device: DeviceKindId,
    ) -> Priced {
        match &self.source {
            Source::Table(table) => Priced::of_table(table.compute(chunk, pass, units)),
            Source::Calibrations { .. } => {
                let (kind, prepared) = (self.cluster.device_kind(device), self.prepared(device));
                total(self.dispatch(device), class_counts(chunk, units), |class| {
                    prepared.unit(kind, shape, CLASSES[class], pass, chunk.recompute)
                })
            }
        }
    }

    /// Dispatch of one instruction on a kind of device: (nanoseconds, basis).
    fn dispatch(&self, device: DeviceKindId) -> (u64, Basis) {
        let prepared = self.prepared(device);
        let seconds = prepared.calibration.dispatch.instruction_us * 1e-6 * self.cluster.device_kind(device).slowdown;
        (nanoseconds(seconds), Basis::Measured)
    }

    fn prepared(&self, device: DeviceKindId) -> &Prepared {
        match &self.source {
            Source::Calibrations { prepared, of_kind } => &prepared[of_kind[device.index()]],
            Source::Table(_) => unreachable!("a pass table has no calibrations"),
        }
    }

    fn pricing(&self, device: DeviceId) -> Pricing<'_> {
        Pricing { cluster: &self.cluster, prepared: self.prepared(self.cluster.place(device).device_kind) }
    }

    /// The formula that an algorithm comes to: for `Automatic` the cheapest.
    fn formula(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Formula {
        match &self.source {
            Source::Table(_) => Formula::of(kind, place, algorithm).unwrap_or(Formula::Ring),
            Source::Calibrations { .. } => {
                let pricing = self.pricing(place.first);
                let cheapest = || pricing.cheapest(kind, bytes.get() as f64, place).0;
                pricing.chosen(kind, place, algorithm).unwrap_or_else(cheapest)
            }
        }
    }

    /// One collective alone. `bytes` is the whole buffer (see [`ir::Op::Collective`]).
    #[must_use]
    pub fn collective(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Priced {
        match &self.source {
            Source::Table(_) => Priced::of_table(SimDuration::ZERO),
            Source::Calibrations { .. } if place.ranks <= 1 => Priced::of((0.0, Basis::Measured)),
            Source::Calibrations { .. } => {
                Priced::of(self.pricing(place.first).collective(kind, bytes, place, algorithm))
            }
        }
    }

    /// Bytes that each member puts on its slowest outgoing link during a collective: what the fabric is loaded with.
    ///
    /// Between nodes if the group spans several (each member its share of the node's), else inside: the table of
    /// [`Steps`]' module. An executor moves just this over an emulated link.
    #[must_use]
    pub fn wire_bytes(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Bytes {
        if place.ranks <= 1 {
            return Bytes::ZERO;
        }
        collective::wire_bytes(kind, bytes, place, self.formula(kind, bytes, place, algorithm))
    }

    /// Steps of a collective, each of which costs its link's latency once. A ring all-reduce of `n` members takes
    /// `2(n-1)`, a gather or scatter `n-1`; of those of a group on `k` nodes `2(k-1)` or `k-1` go between nodes.
    #[must_use]
    pub fn steps(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Steps {
        collective::steps(kind, place, self.formula(kind, bytes, place, algorithm))
    }

    /// One message alone, latency included.
    #[must_use]
    pub fn message(&self, bytes: Bytes, from: DeviceId, to: DeviceId) -> Priced {
        match &self.source {
            Source::Table(table) => Priced::of_table(table.transfer),
            Source::Calibrations { .. } => {
                let path = self.cluster.path(from, to);
                Priced::of(self.pricing(from).message(bytes, from, path))
            }
        }
    }

    /// The sum of squares over `parameters` gradients (FP32: 4 bytes read of each).
    #[must_use]
    pub fn gradient_norm(&self, parameters: u64, device: DeviceKindId) -> Priced {
        match &self.source {
            Source::Table(table) => Priced::of_table(table.gradient_norm),
            Source::Calibrations { .. } => self.step(Streaming::GradientNorm, gradient_norm_bytes(parameters), device),
        }
    }

    /// The optimizer step of `parameters` parameters.
    #[must_use]
    pub fn optimizer(&self, parameters: u64, precision: Precision, device: DeviceKindId) -> Priced {
        match &self.source {
            Source::Table(table) => Priced::of_table(table.optimizer),
            Source::Calibrations { .. } => {
                self.step(Streaming::Optimizer, optimizer_bytes(parameters, precision), device)
            }
        }
    }

    fn step(&self, kind: Streaming, bytes: Bytes, device: DeviceKindId) -> Priced {
        let (device_kind, prepared) = (self.cluster.device_kind(device), self.prepared(device));
        let (dispatch, _) = self.dispatch(device);
        if bytes == Bytes::ZERO {
            return Priced::of((dispatch as f64 * 1e-9, Basis::Measured));
        }
        let kernel = Kernel::Streaming { kind, bytes, launches: 1 };
        let (seconds, basis) = prepared.kernel(device_kind, Precision::Fp32, kernel);
        let composition = prepared.calibration.in_training.of(device_kind.slowdown);
        let factor = if kind == Streaming::Optimizer { composition.optimizer } else { composition.gradient_norm };
        Priced::of((seconds * factor * device_kind.slowdown + dispatch as f64 * 1e-9, basis))
    }

    /// How much longer overlapping work takes on a device: (compute beside communication, communication beside compute).
    #[must_use]
    pub fn interference(&self, device: DeviceKindId) -> (f64, f64) {
        match &self.source {
            Source::Table(_) => (1.0, 1.0),
            Source::Calibrations { .. } => {
                let interference = self.prepared(device).calibration.interference;
                (interference.compute, interference.communication)
            }
        }
    }
}

fn missing(subject: String, wanted: &str, calibrations: &[Calibration]) -> Problem {
    let problem = Problem::new(subject, format!("there is no calibration `{wanted}`"));
    let distance = |name: &str| strsim::damerau_levenshtein(name, wanted);
    match calibrations.iter().min_by_key(|calibration| distance(&calibration.name)) {
        Some(nearest) => problem.hint(format!("did you mean `{}`?", nearest.name)),
        None => problem.hint("none was given"),
    }
}
