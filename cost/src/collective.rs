//! Collectives and messages to seconds.
//!
//! With `n` members on `k` nodes, `g` of them in each, a buffer of `S` bytes, and `f(x)` = `2(x-1)/x` for an all-reduce,
//! `(x-1)/x` for an all-gather or reduce-scatter:
//!
//! | algorithm | steps between nodes | steps inside | bytes between nodes, each member | bytes inside |
//! |---|---|---|---|---|
//! | ring | `h(k)` | `h(n) - h(k)` | `f(n) S / g` | `f(n) S` |
//! | tree (all-reduce) | `2 floor(log2 k)` | `2 (g-1)` | `2 S / g` | `2 S` |
//! | hierarchical | `h(k)` | `h(g)` | `f(k) S / g` | `f(g) S` |
//!
//! where `h(x)` is `2(x-1)` for an all-reduce, `x-1` for the others. Ring and tree pipeline both kinds of link, so the
//! slower one counts; the hierarchical algorithm uses one after the other. All NICs that the members of a node have
//! carry the group (NVIDIA/nccl 2.30.7, `src/graph/tuning.cc`, for steps and algorithm bandwidths).
//!
//! An executor that emulates a link mirrors this: it moves [`wire_bytes`] over each member's outgoing link, plus the
//! link's latency once for each of the [`Steps`] over it.

use ir::program::CollectiveKind;
use ir::{Bytes, Cluster, CollectiveAlgorithm, DeviceId, Link, Path};

use crate::GroupPlace;
use crate::calibration::{Calibration, CollectiveFit, Protocol, SHARED_MEMORY};
use crate::compute::Prepared;
use crate::model::Basis;

/// Steps of a collective's algorithm, one message after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Steps {
    /// Over links inside nodes.
    pub inside: u32,
    /// Between nodes.
    pub between: u32,
}

/// A collective by its name.
pub(crate) fn kind_of_name(name: &str) -> Option<CollectiveKind> {
    [CollectiveKind::AllReduce, CollectiveKind::AllGather, CollectiveKind::ReduceScatter]
        .into_iter()
        .find(|kind| kind.name() == name)
}

/// An algorithm that a formula exists for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Formula {
    Ring,
    Tree,
    Hierarchical,
}

impl Formula {
    /// What an explicit algorithm comes to: only all-reduces have trees, and one node has no hierarchy.
    pub(crate) fn of(kind: CollectiveKind, place: GroupPlace, algorithm: CollectiveAlgorithm) -> Option<Self> {
        match algorithm {
            CollectiveAlgorithm::Automatic => None,
            CollectiveAlgorithm::Ring => Some(Self::Ring),
            CollectiveAlgorithm::Tree if kind == CollectiveKind::AllReduce => Some(Self::Tree),
            CollectiveAlgorithm::Hierarchical if place.nodes > 1 && place.per_node > 1 => Some(Self::Hierarchical),
            CollectiveAlgorithm::Tree | CollectiveAlgorithm::Hierarchical => Some(Self::Ring),
        }
    }
    /// All that apply, the ring first.
    fn all(kind: CollectiveKind, place: GroupPlace) -> impl Iterator<Item = Self> {
        let tree = (kind == CollectiveKind::AllReduce).then_some(Self::Tree);
        let hierarchical = (place.nodes > 1 && place.per_node > 1).then_some(Self::Hierarchical);
        [Some(Self::Ring), tree, hierarchical].into_iter().flatten()
    }
}

/// `2(x-1)` for an all-reduce, `x-1` for its halves.
const fn hops(kind: CollectiveKind, x: u32) -> u32 {
    let once = x.saturating_sub(1);
    match kind {
        CollectiveKind::AllReduce => 2 * once,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter => once,
    }
}

/// Steps of an algorithm.
pub(crate) const fn steps(kind: CollectiveKind, place: GroupPlace, formula: Formula) -> Steps {
    let between = hops(kind, place.nodes);
    match formula {
        Formula::Ring => Steps { inside: hops(kind, place.ranks).saturating_sub(between), between },
        Formula::Tree => Steps {
            inside: 2 * place.per_node.saturating_sub(1),
            between: if place.nodes > 1 { 2 * place.nodes.ilog2() } else { 0 },
        },
        Formula::Hierarchical => Steps { inside: hops(kind, place.per_node), between },
    }
}

/// Bytes that each member puts on its links, as multiples of the buffer: (inside nodes, between nodes).
fn shares(kind: CollectiveKind, place: GroupPlace, formula: Formula) -> (f64, f64) {
    let part = |x: u32| f64::from(hops(kind, x)) / f64::from(x.max(1));
    let per_node = f64::from(place.per_node.max(1));
    let (inside, between) = match formula {
        Formula::Ring => (part(place.ranks), part(place.ranks) / per_node),
        Formula::Tree => (2.0, 2.0 / per_node),
        Formula::Hierarchical => (part(place.per_node), part(place.nodes) / per_node),
    };
    (if place.per_node > 1 { inside } else { 0.0 }, if place.nodes > 1 { between } else { 0.0 })
}

/// Bytes that each member puts on its slowest kind of outgoing link: between nodes if the group spans several.
pub(crate) fn wire_bytes(kind: CollectiveKind, bytes: Bytes, place: GroupPlace, formula: Formula) -> Bytes {
    if place.ranks <= 1 {
        return Bytes::ZERO;
    }
    let (inside, between) = shares(kind, place, formula);
    let exact = bytes.get() as f64 * if place.nodes > 1 { between } else { inside };
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "at most twice a size in memory; a cast saturates"
    )]
    Bytes::new(libm::ceil(exact) as u64)
}

/// What a collective or message is priced with.
pub(crate) struct Pricing<'a> {
    pub(crate) cluster: &'a Cluster,
    pub(crate) prepared: &'a Prepared,
}

/// What a step and a byte cost over one path.
struct Lane {
    latency: f64,
    bandwidth: f64,
}

impl Pricing<'_> {
    const fn calibration(&self) -> &Calibration {
        &self.prepared.calibration
    }
    fn link(&self, place: GroupPlace, path: Path) -> &Link {
        self.cluster.link_of_path(place.first, path)
    }
    /// The path between members of one node.
    const fn inner_path(place: GroupPlace) -> Path {
        match place.path {
            Path::Host => Path::Host,
            Path::Local | Path::Domain | Path::Leaf | Path::Spine => Path::Domain,
        }
    }
    fn lane(&self, place: GroupPlace, path: Path, protocol: Option<&Protocol>) -> Lane {
        let link = self.link(place, path);
        let reached = link.bandwidth.get() * self.calibration().efficiency(&link.name);
        let bandwidth = if path >= Path::Leaf { reached * f64::from(place.nics.max(1)) } else { reached };
        match protocol {
            None => Lane { latency: link.latency.seconds(), bandwidth },
            Some(protocol) => {
                let step = match path {
                    Path::Local | Path::Domain => protocol.domain_step_us,
                    Path::Host => protocol.host_step_us,
                    Path::Leaf | Path::Spine => protocol.network_step_us,
                };
                let cap = protocol.bandwidth_cap_gb_per_s.map_or(f64::INFINITY, |cap| cap * 1e9);
                Lane { latency: step * 1e-6, bandwidth: (bandwidth * protocol.bandwidth_fraction).min(cap) }
            }
        }
    }

    /// Seconds by formula, with the cheapest protocol.
    pub(crate) fn formula(&self, kind: CollectiveKind, bytes: f64, place: GroupPlace, formula: Formula) -> f64 {
        let protocols = &self.calibration().protocol;
        if protocols.is_empty() {
            return self.with_protocol(kind, bytes, place, formula, None);
        }
        protocols
            .iter()
            .map(|protocol| self.with_protocol(kind, bytes, place, formula, Some(protocol)))
            .fold(f64::INFINITY, f64::min)
    }

    fn with_protocol(
        &self,
        kind: CollectiveKind,
        bytes: f64,
        place: GroupPlace,
        formula: Formula,
        protocol: Option<&Protocol>,
    ) -> f64 {
        let inner = self.lane(place, Self::inner_path(place), protocol);
        let steps = steps(kind, place, formula);
        let (inside, between) = shares(kind, place, formula);
        let inner_time = bytes * inside / inner.bandwidth;
        let mut seconds = protocol.map_or(0.0, |protocol| protocol.base_us * 1e-6);
        seconds += f64::from(steps.inside) * inner.latency;
        if place.nodes <= 1 {
            return seconds + inner_time;
        }
        let outer = self.lane(place, place.path, protocol);
        seconds += f64::from(steps.between) * outer.latency;
        // All members of a node together, over all their NICs.
        let outer_time = bytes * between * f64::from(place.per_node) / outer.bandwidth;
        seconds
            + match formula {
                Formula::Ring | Formula::Tree => inner_time.max(outer_time),
                Formula::Hierarchical => inner_time + outer_time,
            }
    }

    /// The cheapest formula and its seconds.
    pub(crate) fn cheapest(&self, kind: CollectiveKind, bytes: f64, place: GroupPlace) -> (Formula, f64) {
        Formula::all(kind, place)
            .map(|formula| (formula, self.formula(kind, bytes, place, formula)))
            .reduce(|best, next| if next.1 < best.1 { next } else { best })
            .expect("a ring always applies")
    }

    /// The formula of an algorithm; `None` if any may be taken. Between CPU threads `Automatic` is the ring: an executor
    /// must know without asking what it costs.
    pub(crate) fn chosen(
        &self,
        kind: CollectiveKind,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Option<Formula> {
        Formula::of(kind, place, algorithm).or_else(|| self.calibration().threads.then_some(Formula::Ring))
    }

    /// Seconds of a collective, and on what they rest.
    pub(crate) fn collective(
        &self,
        kind: CollectiveKind,
        bytes: Bytes,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> (f64, Basis) {
        let size = bytes.get() as f64;
        let explicit = self.chosen(kind, place, algorithm);
        if self.calibration().threads {
            return self.between_threads(kind, size, place, explicit);
        }
        let by_formula =
            || explicit.map_or_else(|| self.cheapest(kind, size, place).1, |f| self.formula(kind, size, place, f));
        let Some((seconds, basis)) = self.measured_or_fitted(kind, size, place) else {
            return (by_formula(), Basis::Analytic);
        };
        // What was measured is the algorithm that the library chose; another one costs in proportion to its formula.
        let penalty = explicit.map_or(1.0, |_| by_formula() / self.cheapest(kind, size, place).1);
        (seconds * penalty, basis)
    }

    /// Inside one domain: the measured curve of just these members, else a fit.
    fn measured_or_fitted(&self, kind: CollectiveKind, size: f64, place: GroupPlace) -> Option<(f64, Basis)> {
        if place.nodes > 1 || place.path != Path::Domain {
            return None;
        }
        let link = &self.link(place, Path::Domain).name;
        let mut curves = self.prepared.collectives.iter();
        if let Some(found) = curves.find(|of| of.kind == kind && of.ranks == place.ranks && of.link == *link) {
            let (seconds, exactly) = found.curve.at(size);
            return Some((seconds, if exactly { Basis::Measured } else { Basis::Interpolated }));
        }
        let fit = self.fit(kind, link, place.ranks)?;
        let basis = if fit.rows == 0 { Basis::Analytic } else { Basis::Interpolated };
        Some((fitted(fit, kind, size, place.ranks), basis))
    }

    fn fit(&self, kind: CollectiveKind, link: &str, ranks: u32) -> Option<&CollectiveFit> {
        self.calibration()
            .collective_fit
            .iter()
            .filter(|fit| fit.link == link && fit.from_ranks <= ranks)
            .filter(|fit| kind == CollectiveKind::AllReduce || !fit.all_reduce_only)
            .max_by_key(|fit| fit.from_ranks)
    }

    /// Between CPU threads: the measured curve of copies and sums in shared memory; over an emulated link its own time,
    /// behind which the copies happen, so that the longer of the two counts.
    fn between_threads(
        &self,
        kind: CollectiveKind,
        size: f64,
        place: GroupPlace,
        explicit: Option<Formula>,
    ) -> (f64, Basis) {
        let shared = self.measured_collective(kind, size, place.ranks);
        let link = self.link(place, if place.nodes > 1 { place.path } else { Self::inner_path(place) });
        let emulated =
            || explicit.map_or_else(|| self.cheapest(kind, size, place).1, |f| self.formula(kind, size, place, f));
        match shared {
            Some((seconds, basis)) if link.name == SHARED_MEMORY => (seconds + self.exchange(place.first), basis),
            Some((seconds, _)) => (seconds.max(emulated()), Basis::Interpolated),
            None => (emulated(), Basis::Analytic),
        }
    }

    /// What an exchange in shared memory takes in training beyond its curve, in seconds.
    fn exchange(&self, device: DeviceId) -> f64 {
        let kind = self.cluster.device_kind(self.cluster.place(device).device_kind);
        self.calibration().in_training.of(kind.slowdown).exchange_us * 1e-6
    }

    /// Between measured curves of one kind: that of `ranks`, else linear in the ranks between the neighbours, else in
    /// proportion to the nearest.
    fn measured_collective(&self, kind: CollectiveKind, size: f64, ranks: u32) -> Option<(f64, Basis)> {
        let mut below: Option<(u32, f64, bool)> = None;
        let mut above: Option<(u32, f64, bool)> = None;
        let of_kind = self.prepared.collectives.iter().filter(|of| of.kind == kind && of.link == SHARED_MEMORY);
        for measured in of_kind {
            let (seconds, exactly) = measured.curve.at(size);
            if measured.ranks <= ranks && below.is_none_or(|best| measured.ranks > best.0) {
                below = Some((measured.ranks, seconds, exactly));
            }
            if measured.ranks >= ranks && above.is_none_or(|best| measured.ranks < best.0) {
                above = Some((measured.ranks, seconds, exactly));
            }
        }
        Some(match (below?, above) {
            ((at, seconds, exactly), _) if at == ranks => {
                (seconds, if exactly { Basis::Measured } else { Basis::Interpolated })
            }
            ((low, from, _), Some((high, to, _))) => {
                let along = f64::from(ranks - low) / f64::from(high - low);
                (from + (to - from) * along, Basis::Interpolated)
            }
            ((low, seconds, _), None) => (seconds * f64::from(ranks) / f64::from(low), Basis::Interpolated),
        })
    }

    /// Seconds of a message over a path, and on what they rest.
    pub(crate) fn message(&self, bytes: Bytes, from: DeviceId, path: Path) -> (f64, Basis) {
        let link = self.cluster.link_of_path(from, path);
        let size = bytes.get() as f64;
        let calibration = self.calibration();
        let plain = link.latency.seconds() + size / (link.bandwidth.get() * calibration.efficiency(&link.name));
        if calibration.threads {
            let copy = self.prepared.copies.as_ref().map(|curve| curve.at(size));
            return match (copy, path == Path::Local || link.name == SHARED_MEMORY) {
                (Some((seconds, true)), true) => (seconds + self.exchange(from), Basis::Measured),
                (Some((seconds, false)), true) => (seconds + self.exchange(from), Basis::Interpolated),
                (Some((seconds, _)), false) => (seconds.max(plain), Basis::Interpolated),
                (None, _) => (plain, Basis::Analytic),
            };
        }
        if path == Path::Local {
            // Read once, written once.
            let kind = self.cluster.device_kind(self.cluster.place(from).device_kind);
            return (2.0 * size / kind.memory_bandwidth.get(), Basis::Analytic);
        }
        match calibration.message_fit.iter().find(|fit| fit.link == link.name) {
            None => (plain, Basis::Analytic),
            Some(fit) => {
                let seconds = fit.overhead_us * 1e-6
                    + size / (link.bandwidth.get() * fit.bandwidth_fraction)
                    + fit.root_us_per_sqrt_mib * 1e-6 * (size / MIB).sqrt();
                (seconds, if fit.rows == 0 { Basis::Analytic } else { Basis::Interpolated })
            }
        }
    }
}

const MIB: f64 = 1_048_576.0;

fn fitted(fit: &CollectiveFit, kind: CollectiveKind, size: f64, ranks: u32) -> f64 {
    let share = if kind == CollectiveKind::AllReduce { 1.0 } else { 0.5 };
    let factor = f64::from(hops(kind, ranks)) / f64::from(ranks.max(1));
    let slow = fit.overhead_us_per_rank * f64::from(ranks) + fit.root_us_per_sqrt_mib * (size / MIB).sqrt();
    slow * 1e-6 * share + size * factor / (fit.bus_gb_per_s * 1e9)
}
