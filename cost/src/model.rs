//! The cost model: one operation on one device to a duration.

use ir::counts::{Kernel, Shape, Streaming, UnitKind, gradient_norm_bytes, optimizer_bytes, unit_counts};
use ir::program::{Chunk, CollectiveKind, Pass, Program, UnitRange};
use ir::{
    Axis, Bytes, Cluster, CollectiveAlgorithm, DeviceId, DeviceKindId, Model, Precision, Problem, Recompute,
    SimDuration, Workload,
};

use crate::basis::Basis;
use crate::calibration::Calibration;
use crate::collective::{self, Exchange, Formula, Mixed, Pricing, Steps};
use crate::compute::{LONGEST, Prepared, Software, fitted, nanoseconds};
use crate::prices::{Prices, begins, kind_prices, neighbours, total};
use crate::profile::Ready;
use crate::{GroupPlace, PassTable, Slowing, Stack, StackConstants, Terms};

mod crossing;
mod profiled;
mod reach;
mod trust;

use crossing::crossing;
pub use crossing::deduplicated;
pub use trust::{NINETY_PERCENT, Spread, SpreadCause};

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

/// What is left of a collective of which `hidden` costs nothing: at least a nanosecond.
#[must_use]
pub fn exposed(collective: Priced, hidden: SimDuration) -> Priced {
    let left = collective.duration.nanoseconds().saturating_sub(hidden.nanoseconds()).max(1);
    Priced { duration: SimDuration::from_nanoseconds(left), ..collective }
}

/// Prices operations on the devices and links of one cluster.
#[derive(Clone, Debug)]
pub struct CostModel {
    cluster: Cluster,
    source: Source,
    stack: Stack,
    stragglers_per_doubling: f64,
    /// Measured layers, by kind of device; empty if there are none.
    profiles: Vec<Option<Ready>>,
    pub(crate) terms: Terms,
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
    /// Every device kind whose calibration is not among `calibrations`, with the nearest name; every device
    /// kind, and calibration that one names, with values that cannot be.
    pub fn new(cluster: Cluster, calibrations: Vec<Calibration>) -> Result<Self, Vec<Problem>> {
        let named = |of: &&Calibration| cluster.device_kinds.iter().any(|kind| kind.calibration == of.name);
        let mut problems: Vec<Problem> = calibrations
            .iter()
            .filter(named)
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
        // Only those that a device asks for are made ready, in the order in which they first are.
        let mut used: Vec<usize> = Vec::new();
        for index in &mut of_kind {
            let slot = used.iter().position(|of| of == index).unwrap_or(used.len());
            if slot == used.len() {
                used.push(*index);
            }
            *index = slot;
        }
        let mut left: Vec<Option<Calibration>> = calibrations.into_iter().map(Some).collect();
        let take = |index: usize| left[index].take().expect("each is taken once");
        let prepared = used.into_iter().map(take).map(Prepared::new).collect();
        Ok(Self::of(cluster, Source::Calibrations { prepared, of_kind }))
    }

    fn of(cluster: Cluster, source: Source) -> Self {
        let (stack, terms) = (Stack::default(), Terms::default());
        Self { cluster, source, stack, stragglers_per_doubling: 0.0, profiles: Vec::new(), terms }
    }

    /// With what a software stack adds. Without one nothing is added, and the spread is the hardware's own. Given
    /// durations stay as they are, but for what a stack adds to each pass and iteration.
    #[must_use]
    pub fn with_stack(self, stack: Stack) -> Self {
        let stragglers_per_doubling = self.stragglers_per_doubling.max(stack.constants.stragglers_per_doubling);
        Self { stack, stragglers_per_doubling, ..self }
    }

    /// With passes that lengthen by a share of their time for each doubling of the cluster's nodes, since everyone waits for
    /// the slowest: 0.004 to 0.01 in fits of published runs, most of which are fitted best by none. A stack's own share
    /// counts if it is larger.
    ///
    /// # Errors
    /// A share that is not from 0 to 1.
    pub fn with_stragglers(self, per_doubling: f64) -> Result<Self, Problem> {
        if (0.0..=1.0).contains(&per_doubling) {
            return Ok(Self { stragglers_per_doubling: self.stragglers_per_doubling.max(per_doubling), ..self });
        }
        let problem = Problem::new("stragglers", format!("{per_doubling} is not a share of a pass's time"));
        Err(problem.hint("from 0 to 1; 0.01 is 1 % for each doubling of the nodes"))
    }

    /// The stack; the default where none was given.
    #[must_use]
    pub const fn stack(&self) -> &Stack {
        &self.stack
    }

    /// Prices by given durations of passes: they hold exactly, with no dispatch and no slowdown; collectives take one
    /// nanosecond. For plans without tensor parallelism ([`CostModel::problems`] names what does not fit).
    ///
    /// # Errors
    /// A table without stages or chunks.
    pub fn with_pass_table(cluster: Cluster, table: PassTable) -> Result<Self, Vec<Problem>> {
        let problems = table.problems();
        if problems.is_empty() { Ok(Self::of(cluster, Source::Table(table))) } else { Err(problems) }
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
        let formats = formats(program.workload.precision);
        let used = self.used_kinds(program);
        let mut problems = self.unprofiled(program.shape(), &used);
        for kind in used.into_iter().map(|id| self.cluster.device_kind(id)) {
            for format in formats.iter().filter(|format| kind.peak(**format).is_none()) {
                let supported: Vec<&str> = kind.peak.iter().map(|(format, _)| format.name()).collect();
                problems.push(
                    Problem::new(
                        "training.precision",
                        format!("device {} does not support {}", kind.name, format.name()),
                    )
                    .hint(format!("it supports {}", supported.join(", "))),
                );
            }
        }
        problems
    }

    /// Kinds of the devices that a program runs on, in order.
    fn used_kinds(&self, program: &Program) -> Vec<DeviceKindId> {
        let mut used: Vec<DeviceKindId> = if program.placement.is_empty() {
            self.first_kinds(u64::from(program.world()))
        } else {
            program.placement.iter().map(|device| self.cluster.place(*device).device_kind).collect()
        };
        used.sort_unstable();
        used.dedup();
        used
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

    /// Prices of one shape, for look-up: some tens of microseconds to make, nanoseconds to ask.
    #[must_use]
    pub fn prepare(&self, shape: Shape<'_>) -> Prices {
        let mut prices = match &self.source {
            Source::Table(table) => Prices::from_table(shape.model, table.clone()),
            Source::Calibrations { .. } => Prices::of_kinds(shape.model, self.cluster.device_kinds.len(), |id| {
                let software = self.software();
                kind_prices(self.dispatch(id), shape, |unit, pass, recompute| {
                    self.unit(id, &software, shape, unit, (pass, recompute))
                })
            }),
        };
        let kinds = (0..self.cluster.device_kinds.len()).map(DeviceKindId::at);
        prices.sync = kinds.map(|kind| self.message_sync(shape, kind)).collect();
        prices.hidden = self.stack.constants.hidden_in_launches;
        prices
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
        let held = || self.message_sync(shape, device)[neighbours(chunk)];
        let sync = if begins(chunk, pass, units) { held() } else { 0 };
        match &self.source {
            Source::Table(table) => {
                let duration = table.compute(chunk, pass, units).nanoseconds().saturating_add(sync);
                Priced::of_table(SimDuration::from_nanoseconds(duration))
            }
            Source::Calibrations { .. } => {
                let (nanoseconds, basis) = self.dispatch(device);
                let counts = unit_counts(shape.model, chunk, units);
                let of = |counts: [u32; UnitKind::COUNT], recompute| {
                    let there = UnitKind::ALL.into_iter().zip(counts).filter(|(_, count)| *count > 0);
                    there.map(move |(unit, count)| {
                        (count, self.unit(device, &self.software(), shape, unit, (pass, recompute)))
                    })
                };
                let units = of(counts.recomputed, chunk.recompute).chain(of(counts.kept, Recompute::None));
                total((nanoseconds + sync, basis), units)
            }
        }
    }

    /// What the stack and the size of the cluster add to kernels.
    fn software(&self) -> Software {
        let StackConstants { compute_factor, attention_factor, launch_us, expert_sync_us, .. } = self.stack.constants;
        let doublings = libm::log2(self.cluster.nodes().max(1) as f64);
        Software {
            compute: compute_factor * (1.0 + self.stragglers_per_doubling * doublings),
            attention: attention_factor,
            launch_us,
            slow_launch_us: self.stack.terms.slow_launch_us,
            expert_sync_us,
        }
    }

    /// Dispatch of one instruction on a kind of device: (nanoseconds, basis). Nothing rests on a dispatch that is nothing.
    fn dispatch(&self, device: DeviceKindId) -> (u64, Basis) {
        if self.profile(device).is_some() {
            return (0, Basis::Measured);
        }
        let calibration = &self.prepared(device).calibration;
        let instruction_us = calibration.dispatch.instruction_us;
        let basis = match (instruction_us > 0.0, calibration.threads, &calibration.measured) {
            (false, _, _) | (true, true, Some(_)) => Basis::Measured,
            (true, _, _) => Basis::Analytic,
        };
        (nanoseconds(instruction_us * 1e-6 * self.cluster.device_kind(device).slowdown), basis)
    }

    fn prepared(&self, device: DeviceKindId) -> &Prepared {
        match &self.source {
            Source::Calibrations { prepared, of_kind } => &prepared[of_kind[device.index()]],
            Source::Table(_) => unreachable!("a pass table has no calibrations"),
        }
    }

    fn pricing(&self, device: DeviceId) -> Pricing<'_> {
        Pricing {
            cluster: &self.cluster,
            prepared: self.prepared(self.cluster.place(device).device_kind),
            network: self.stack.constants.network_efficiency,
        }
    }

    fn mixed(&self, place: GroupPlace) -> Mixed<'_> {
        Mixed::new(place, |device| self.pricing(device))
    }

    /// Seconds of an exchange among several, and on what they rest.
    fn exchange(&self, exchange: Exchange, algorithm: CollectiveAlgorithm) -> (f64, Basis) {
        if exchange.place.is_mixed() {
            return self.mixed(exchange.place).collective(exchange, algorithm);
        }
        self.pricing(exchange.place.first).collective(exchange, algorithm)
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
                if place.is_mixed() {
                    let mixed = self.mixed(place);
                    let cheapest = || mixed.cheapest(whole(kind, bytes, place)).0;
                    return mixed.chosen(kind, place, algorithm).unwrap_or_else(cheapest);
                }
                let pricing = self.pricing(place.first);
                let cheapest = || pricing.cheapest(whole(kind, bytes, place)).0;
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
            Source::Calibrations { .. } => Priced::of(self.exchange(whole(kind, bytes, place), algorithm)),
        }
    }

    /// An all-to-all to experts whose tokens cross to each node once, whatever the experts there that want them: of what
    /// goes between nodes the part `crossing` does ([`deduplicated`] for experts chosen at random). `bytes` as in
    /// [`CostModel::collective`].
    #[must_use]
    pub fn expert_exchange(&self, bytes: Bytes, place: GroupPlace, crossing: f64) -> Priced {
        match &self.source {
            Source::Table(_) => Priced::of_table(SimDuration::ZERO),
            Source::Calibrations { .. } if place.ranks <= 1 => Priced::of((0.0, Basis::Measured)),
            Source::Calibrations { .. } => {
                let exchange =
                    Exchange { crossing: crossing.clamp(0.0, 1.0), ..whole(CollectiveKind::AllToAll, bytes, place) };
                Priced::of(self.exchange(exchange, CollectiveAlgorithm::Automatic))
            }
        }
    }

    /// A collective along an axis of a job: as [`CostModel::collective`], but tokens on their way to experts and back go
    /// to each node once where the recipe says so.
    #[must_use]
    pub fn collective_along(
        &self,
        (model, workload): (&Model, &Workload),
        axis: Axis,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Priced {
        match crossing(model, workload, axis, kind, place) {
            _ if self.is_in_passes(axis, place) => Priced::of_table(SimDuration::ZERO),
            Some(crossing) => self.expert_exchange(bytes, place, crossing),
            None => self.collective(kind, bytes, place, algorithm),
        }
    }

    /// [`CostModel::wire_bytes`] of a collective along an axis of a job.
    #[must_use]
    pub fn wire_bytes_along(
        &self,
        (model, workload): (&Model, &Workload),
        axis: Axis,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Bytes {
        if self.is_in_passes(axis, place) {
            return Bytes::new(1);
        }
        let all = self.wire_bytes(kind, bytes, place, algorithm);
        match crossing(model, workload, axis, kind, place) {
            Some(crossing) => {
                #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a size")]
                let part = (all.get() as f64 * crossing) as u64;
                Bytes::new(part.max(1))
            }
            None => all,
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

    /// A copy between a device and the memory of its host. Devices that share the link there copy together.
    #[must_use]
    pub fn host_copy(&self, bytes: Bytes, device: DeviceId) -> Priced {
        match &self.source {
            Source::Table(_) => Priced::of_table(SimDuration::ZERO),
            Source::Calibrations { .. } => Priced::of(self.pricing(device).host_copy(bytes, device)),
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

    /// The optimizer step of `parameters` parameters at a tensor degree, which alone a profile's updates depend on, with what
    /// the stack adds to each iteration and parameter.
    #[must_use]
    pub fn optimizer(&self, parameters: u64, precision: Precision, tensor: u32, device: DeviceKindId) -> Priced {
        let profiled = self.profile(device).and_then(|profile| profile.update(tensor, parameters));
        let priced = match (&self.source, profiled) {
            (Source::Table(table), _) => Priced::of_table(table.optimizer),
            (Source::Calibrations { .. }, Some(seconds)) => Priced::of((seconds, Basis::Measured)),
            (Source::Calibrations { .. }, None) => {
                self.step(Streaming::Optimizer, optimizer_bytes(parameters, precision), device)
            }
        };
        self.with_iteration(priced, parameters)
    }

    /// The same where the optimizer's state lives in host memory and is stepped there.
    #[must_use]
    pub fn host_optimizer(&self, parameters: u64, precision: Precision, device: DeviceKindId) -> Priced {
        let priced = match &self.source {
            Source::Table(table) => Priced::of_table(table.optimizer),
            Source::Calibrations { .. } => {
                let bytes = optimizer_bytes(parameters, precision).get() as f64;
                let (rate, basis) = match &self.prepared(device).calibration.host {
                    Some(host) => (host.optimizer_gb_per_s, fitted(host.rows)),
                    None => (ASSUMED_HOST_GB_PER_S, Basis::Assumed),
                };
                Priced::of((bytes / (rate * 1e9), basis))
            }
        };
        self.with_iteration(priced, parameters)
    }

    /// A whole number of nanoseconds for each iteration and parameter, added.
    fn with_iteration(&self, priced: Priced, parameters: u64) -> Priced {
        let StackConstants { iteration_us, optimizer_ns_per_parameter, .. } = self.stack.constants;
        let added = nanoseconds(iteration_us * 1e-6 + parameters as f64 * optimizer_ns_per_parameter * 1e-9);
        let sum = priced.duration.nanoseconds().saturating_add(added).min(LONGEST);
        Priced { duration: SimDuration::from_nanoseconds(sum), ..priced }
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

    /// How work of a device slows down beside the other kind.
    #[must_use]
    pub fn slowing(&self, device: DeviceKindId) -> Slowing {
        match &self.source {
            Source::Table(_) => Slowing::NONE,
            Source::Calibrations { .. } => {
                let interference = &self.prepared(device).calibration.interference;
                Slowing::new(interference.compute, interference.communication)
            }
        }
    }
}

/// Bytes per second that a host reads and writes while it steps the optimizer of one device, where nothing says otherwise: a
/// socket's memory bandwidth of some 200 GB/s over eight devices.
const ASSUMED_HOST_GB_PER_S: f64 = 25.0;

/// The number formats whose peaks a job needs: FP8 runs heads and attention cores in bfloat16.
fn formats(precision: Precision) -> Vec<Precision> {
    let outside = precision.outside_layers();
    if outside == precision { vec![precision] } else { vec![precision, outside] }
}

/// A collective of whole buffers.
const fn whole(kind: CollectiveKind, bytes: Bytes, place: GroupPlace) -> Exchange {
    Exchange { kind, bytes: bytes.get() as f64, place, crossing: 1.0 }
}

fn missing(subject: String, wanted: &str, calibrations: &[Calibration]) -> Problem {
    let problem = Problem::new(subject, format!("there is no calibration `{wanted}`"));
    let distance = |name: &str| strsim::damerau_levenshtein(name, wanted);
    match calibrations.iter().min_by_key(|calibration| distance(&calibration.name)) {
        Some(nearest) => problem.hint(format!("did you mean `{}`?", nearest.name)),
        None => problem.hint("none was given"),
    }
}
