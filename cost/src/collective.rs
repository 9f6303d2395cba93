//! Collectives to seconds.
//!
//! With `n` members on `k` nodes, `g` of them in each, a buffer of `S` bytes, and `f(x)` = `2(x-1)/x` for an all-reduce,
//! `(x-1)/x` for the others:
//!
//! | algorithm | steps between nodes | steps inside | bytes between nodes, each member | bytes inside |
//! |---|---|---|---|---|
//! | ring | `h(k)` | `h(n) - h(k)` | `f(n) S / g` | `f(n) S` |
//! | tree (all-reduce) | `2 floor(log2 k)` | `2 (g-1)` | `2 S / g` | `2 S` |
//! | hierarchical | `h(k)` | `h(g)` | `f(k) S / g` | `f(g) S` |
//! | all-to-all, direct | `n - g` | `g - 1` | `(n-g) S / n` | `(g-1) S / n` |
//! | all-to-all, hierarchical | `k - 1` | `g - 1` | `(k-1) S / k` | `(g-1) S / g` |
//!
//! where `h(x)` is `2(x-1)` for an all-reduce, `x-1` for the others. Ring, tree and direct exchange use both kinds of link
//! together, so the slower one counts; the hierarchical algorithms use one after the other. All NICs that the members of
//! a node have carry the group (NVIDIA/nccl 2.30.7, `src/graph/tuning.cc`, for steps and algorithm bandwidths).
//!
//! Groups alike that run at the same time share the NICs of their node, the up-link of their leaf and a host link
//! ([`GroupPlace::with_siblings`]); a ring leaves a leaf once, an all-to-all with all that goes elsewhere.
//!
//! A group over nodes or devices of several kinds goes at the pace of the slowest, in one algorithm: see [`mixed`].
//!
//! Where leaves are rails (NVIDIA/nccl 2.30.7, PXN, on by default), a ring stays on them: it enters and leaves a node by NICs
//! of one rank. What a direct all-to-all sends to other rails goes over the domain first, or without one over the spine.
//!
//! An executor that emulates a link mirrors this: it moves [`wire_bytes`] over each member's outgoing link, plus the
//! link's latency once for each of the [`Steps`] over it.

use ir::program::CollectiveKind;
use ir::{Bytes, Cluster, CollectiveAlgorithm, DeviceId, Link, Path};

use crate::GroupPlace;
use crate::basis::Basis;
use crate::calibration::{Calibration, Protocol};
use crate::compute::Prepared;

mod measured;
mod message;
mod mixed;

pub(crate) use mixed::Mixed;

/// Steps of a collective's algorithm, one message after the other.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Steps {
    /// Over links inside nodes.
    pub inside: u32,
    /// Between nodes.
    pub between: u32,
}

/// An algorithm that a formula exists for. `Ring` is the direct exchange of an all-to-all.
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
    /// The one that takes the fewest seconds, and these; the first of equals.
    fn cheapest(kind: CollectiveKind, place: GroupPlace, seconds: impl Fn(Self) -> f64) -> (Self, f64) {
        Self::all(kind, place)
            .map(|formula| (formula, seconds(formula)))
            .reduce(|best, next| if next.1 < best.1 { next } else { best })
            .expect("a ring always applies")
    }
    /// All that apply, the ring first.
    fn all(kind: CollectiveKind, place: GroupPlace) -> impl Iterator<Item = Self> {
        let tree = (kind == CollectiveKind::AllReduce).then_some(Self::Tree);
        let hierarchical = (place.nodes > 1 && place.per_node > 1).then_some(Self::Hierarchical);
        [Some(Self::Ring), tree, hierarchical].into_iter().flatten()
    }
}

/// `2(x-1)` for an all-reduce, `x-1` for the others.
const fn hops(kind: CollectiveKind, x: u32) -> u32 {
    let once = x.saturating_sub(1);
    match kind {
        CollectiveKind::AllReduce => 2 * once,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => once,
    }
}

const fn is_exchange(kind: CollectiveKind) -> bool {
    matches!(kind, CollectiveKind::AllToAll)
}

/// Steps of an algorithm.
pub(crate) const fn steps(kind: CollectiveKind, place: GroupPlace, formula: Formula) -> Steps {
    let between = hops(kind, place.nodes);
    match formula {
        Formula::Ring if is_exchange(kind) => Steps {
            inside: place.per_node.saturating_sub(1),
            between: place.ranks.saturating_sub(if place.nodes > 1 { place.per_node } else { place.ranks }),
        },
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
    let (ranks, per_node) = (f64::from(place.ranks.max(1)), f64::from(place.per_node.max(1)));
    let (inside, between) = match formula {
        Formula::Ring if is_exchange(kind) => ((per_node - 1.0) / ranks, (ranks - per_node) / ranks),
        Formula::Hierarchical if is_exchange(kind) => (part(place.per_node), part(place.nodes)),
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
    /// Share of the calibrated bandwidth between nodes that the software reaches.
    pub(crate) network: f64,
}

/// What is exchanged among whom.
#[derive(Clone, Copy)]
pub(crate) struct Exchange {
    pub(crate) kind: CollectiveKind,
    pub(crate) bytes: f64,
    pub(crate) place: GroupPlace,
    /// Part of the bytes between nodes that crosses: below 1 where an all-to-all sends what several members of a node want
    /// to that node once.
    pub(crate) crossing: f64,
}

/// What a step and a byte cost over one path.
struct Lane {
    latency: f64,
    bandwidth: f64,
}

/// What a collective takes, in seconds: its steps, its bytes inside nodes and those between.
#[derive(Clone, Copy)]
struct Spans {
    latencies: f64,
    inside: f64,
    between: f64,
}

impl Spans {
    fn seconds(self, formula: Formula) -> f64 {
        self.latencies
            + match formula {
                Formula::Ring | Formula::Tree => self.inside.max(self.between),
                Formula::Hierarchical => self.inside + self.between,
            }
    }
    /// Of both the slower of each.
    const fn slower(self, other: Self) -> Self {
        Self {
            latencies: self.latencies.max(other.latencies),
            inside: self.inside.max(other.inside),
            between: self.between.max(other.between),
        }
    }
}

impl Pricing<'_> {
    const fn calibration(&self) -> &Calibration {
        &self.prepared.calibration
    }
    fn link(&self, place: GroupPlace, path: Path) -> &Link {
        self.cluster.link_of_path(place.first, path)
    }
    /// The path between members of one node.
    fn inner_path(&self, place: GroupPlace) -> Path {
        match place.path {
            Path::Host => Path::Host,
            Path::Local | Path::Domain => Path::Domain,
            Path::Leaf | Path::Rail | Path::Spine => {
                let node = self.cluster.node_kind(self.cluster.place(place.first).node_kind);
                if place.per_node > node.domain_size.max(1) { Path::Host } else { Path::Domain }
            }
        }
    }
    /// Bandwidth that one member reaches inside a node. A link through the host is divided by the devices that share it.
    /// Where a fit of measured collectives says more of this kind, it counts: a switch that adds up passes more than a ring.
    fn inner_bandwidth(&self, kind: CollectiveKind, place: GroupPlace, path: Path) -> f64 {
        let link = self.link(place, path);
        let reached = self.calibration().reached(link);
        if path == Path::Host || self.calibration().devices_share(link) > 1 {
            let at_once = place.per_node.saturating_mul(place.node_groups);
            return reached / f64::from(self.calibration().devices_share(link).min(at_once).max(1));
        }
        match self.fit(kind, &link.name, place.per_node) {
            Some(fit) if !is_exchange(kind) => fit.bus_gb_per_s * 1e9,
            Some(_) | None => reached,
        }
    }
    /// Bandwidth that the members of a node reach together between nodes: of all their NICs, divided by the groups that use
    /// them. On its way over the spine a group has its part of its leaf's up-link.
    fn outer_bandwidth(&self, exchange: Exchange) -> f64 {
        let place = exchange.place;
        let nic = self.calibration().reached(self.link(place, Path::Leaf));
        let nics = nic * f64::from(place.nics.max(1)) / f64::from(place.nic_groups.max(1));
        let rails = self.changes_rail(exchange.kind, place);
        let whole = if rails > 0.0 && place.path != Path::Spine && self.inner_path(place) == Path::Host {
            // No neighbour hands on what changes rails: all nodes under the leaf send it over the spine.
            let senders = f64::from(place.leaf_nodes.max(1)) * f64::from(place.leaf_groups.max(1));
            nics.min(self.up_link(place) / (senders * rails))
        } else if place.path == Path::Spine {
            // Of an all-to-all all nodes under a leaf send across; a ring leaves a leaf from one node.
            let senders = if is_exchange(exchange.kind) {
                let (under, nodes) = (f64::from(place.leaf_nodes.max(1)), f64::from(place.nodes));
                under * (nodes - under).max(1.0) / (nodes - 1.0).max(1.0)
            } else {
                1.0
            };
            nics.min(self.up_link(place) / (f64::from(place.leaf_groups.max(1)) * senders))
        } else {
            nics
        };
        whole * self.network
    }
    /// Of what an all-to-all sends between nodes of one leaf, the share that goes to another rail: to all rails alike.
    fn changes_rail(&self, kind: CollectiveKind, place: GroupPlace) -> f64 {
        let rails = self.cluster.fabric.rails && is_exchange(kind) && place.nodes > 1;
        if rails { 1.0 - 1.0 / f64::from(place.nics.max(1)) } else { 0.0 }
    }
    /// What a whole leaf reaches towards the spine.
    fn up_link(&self, place: GroupPlace) -> f64 {
        if let Some(link) = &self.cluster.fabric.up_link {
            return self.calibration().reached(link);
        }
        let nic = self.link(place, Path::Leaf);
        let share = self.calibration().reached(nic) / nic.bandwidth.get();
        crate::place::up_link(self.cluster, place.narrowest_leaf) * share
    }
    fn lane(&self, place: GroupPlace, path: Path, protocol: Option<&Protocol>, bandwidth: f64) -> Lane {
        let link = self.link(place, path);
        match protocol {
            None => Lane { latency: link.latency.seconds(), bandwidth },
            Some(protocol) => {
                let step = match path {
                    Path::Local | Path::Domain => protocol.domain_step_us,
                    Path::Host => protocol.host_step_us,
                    Path::Leaf | Path::Rail | Path::Spine => protocol.network_step_us,
                };
                // A library's steps are those of a data centre; over a WAN the link's own latency is the longer.
                let wan = path == Path::Spine && self.cluster.fabric.up_link.is_some();
                let wire = if wan { link.latency.seconds() } else { 0.0 };
                let cap = protocol.bandwidth_cap_gb_per_s.map_or(f64::INFINITY, |cap| cap * 1e9);
                Lane { latency: (step * 1e-6).max(wire), bandwidth: (bandwidth * protocol.bandwidth_fraction).min(cap) }
            }
        }
    }

    /// Seconds by formula, with the cheapest protocol.
    pub(crate) fn formula(&self, exchange: Exchange, formula: Formula) -> f64 {
        self.cheapest_spans(exchange, formula).seconds(formula)
    }

    fn cheapest_spans(&self, exchange: Exchange, formula: Formula) -> Spans {
        let cheaper = |a: Spans, b: Spans| if b.seconds(formula) < a.seconds(formula) { b } else { a };
        let spans = self.calibration().protocol.iter().map(|protocol| self.spans(exchange, formula, Some(protocol)));
        spans.reduce(cheaper).unwrap_or_else(|| self.spans(exchange, formula, None))
    }

    fn spans(&self, exchange: Exchange, formula: Formula, protocol: Option<&Protocol>) -> Spans {
        let Exchange { kind, bytes, place, crossing } = exchange;
        let path = self.inner_path(place);
        let inner = self.lane(place, path, protocol, self.inner_bandwidth(kind, place, path));
        let steps = steps(kind, place, formula);
        let (inside, between) = shares(kind, place, formula);
        // In a fabric of rails what goes to another rail is handed on inside the node; a hierarchical exchange has done so.
        let handed_on = if formula == Formula::Ring && path == Path::Domain {
            between * crossing * self.changes_rail(kind, place)
        } else {
            0.0
        };
        let inside = bytes * (inside + handed_on) / inner.bandwidth;
        let mut latencies = protocol.map_or(0.0, |protocol| protocol.base_us * 1e-6);
        // Messages of an all-to-all are under way together, where a library sends them.
        let together = protocol.filter(|_| is_exchange(kind)).map(|protocol| protocol.peer_us * 1e-6);
        let stepped = |steps: u32, latency: f64| match together {
            Some(peer) if steps > 0 => latency + f64::from(steps - 1) * peer.min(latency),
            Some(_) | None => f64::from(steps) * latency,
        };
        latencies += stepped(steps.inside, inner.latency);
        if place.nodes <= 1 {
            return Spans { latencies, inside, between: 0.0 };
        }
        let outer = self.lane(place, place.path, protocol, self.outer_bandwidth(exchange));
        latencies += stepped(steps.between, outer.latency) + if handed_on > 0.0 { inner.latency } else { 0.0 };
        // All members of a node together, over all their NICs.
        let between = bytes * between * crossing * f64::from(place.per_node) / outer.bandwidth;
        Spans { latencies, inside, between }
    }

    /// The cheapest formula and its seconds.
    pub(crate) fn cheapest(&self, exchange: Exchange) -> (Formula, f64) {
        Formula::cheapest(exchange.kind, exchange.place, |formula| self.formula(exchange, formula))
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
    pub(crate) fn collective(&self, exchange: Exchange, algorithm: CollectiveAlgorithm) -> (f64, Basis) {
        let explicit = self.chosen(exchange.kind, exchange.place, algorithm);
        if self.calibration().threads {
            return self.between_threads(exchange, explicit);
        }
        let by_formula =
            || explicit.map_or_else(|| self.cheapest(exchange).1, |formula| self.formula(exchange, formula));
        let Some((seconds, basis)) = self.measured_or_fitted(exchange) else {
            return (by_formula(), self.formula_basis(exchange.place));
        };
        // What was measured is the algorithm that the library chose; another one costs in proportion to its formula.
        let penalty = explicit.map_or(1.0, |_| by_formula() / self.cheapest(exchange).1);
        (seconds * penalty, basis)
    }

    /// A formula over links of which something is known is analytic; over links that are taken at their word, assumed.
    fn formula_basis(&self, place: GroupPlace) -> Basis {
        let path = if place.nodes > 1 { Path::Leaf } else { self.inner_path(place) };
        let link = self.link(place, path);
        let calibration = self.calibration();
        let known = link.efficiency.is_some() || calibration.link.iter().any(|row| row.link == link.name);
        if known && !calibration.protocol.is_empty() { Basis::Analytic } else { Basis::Assumed }
    }

    /// What an exchange in shared memory takes in training beyond its curve, in seconds.
    fn exchange_overhead(&self, device: DeviceId) -> f64 {
        let kind = self.cluster.device_kind(self.cluster.place(device).device_kind);
        self.calibration().in_training.of(kind.slowdown).exchange_us * 1e-6
    }
}
