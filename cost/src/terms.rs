//! On what terms devices are used: what of their memory a plan may take, what is paid, what they draw.
//!
//! *Money* is price per device-hour over the time of an iteration. *Energy* is power over that time, linear in utilisation
//! (Fan, Weber and Barroso 2007, "Power Provisioning for a Warehouse-sized Computer"): with `L` the power limit of a device, `T`
//! the iteration and `w` the part of it in which its passes run,
//!
//! `E = site L (waiting T + (busy - waiting) w)`.
//!
//! Both grow with `T` and with `w`, so that bounds of these are bounds of money and energy.

use ir::{Bytes, Cluster, DeviceId, DeviceKind, DeviceKindId, Expense, NodeId, SimDuration};

use crate::CostModel;

/// What is paid while a plan runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Paid {
    /// The devices of its ranks.
    Devices,
    /// All devices of the nodes that hold its ranks: whole nodes that a plan leaves idle are released.
    #[default]
    Nodes,
    /// All devices of the cluster.
    Cluster,
}

impl Paid {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Devices, Self::Nodes, Self::Cluster];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Nodes => "nodes",
            Self::Cluster => "cluster",
        }
    }
}

/// Memory of each device that a plan leaves free.
#[derive(Clone, Copy, PartialEq, Debug)]
pub enum Headroom {
    /// A share of the device's memory, under 1.
    Share(f64),
    /// Bytes.
    Bytes(Bytes),
}

impl Headroom {
    /// What it leaves of a memory.
    #[must_use]
    pub fn of(self, memory: Bytes) -> Bytes {
        match self {
            Self::Bytes(bytes) => memory.saturating_sub(bytes),
            #[expect(
                clippy::cast_possible_truncation,
                clippy::cast_sign_loss,
                reason = "a share of bytes, not negative"
            )]
            Self::Share(share) => memory.saturating_sub(Bytes::new((memory.get() as f64 * share).ceil() as u64)),
        }
    }
}

/// See the module.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Terms {
    /// What a plan leaves free.
    pub headroom: Headroom,
    /// What is paid.
    pub paid: Paid,
    /// Power of a device whose passes run, as a share of its limit.
    pub busy_power: f64,
    /// Power of one that waits or exchanges what passes left, and of one that is paid and idle, as a share of its limit.
    pub waiting_power: f64,
    /// Power of the whole site over that of its devices.
    pub site_factor: f64,
}

impl Default for Terms {
    /// Everything may be used, whole nodes are paid, passes draw the limit, what waits half of it. Both shares are assumed, not
    /// measured: a scenario that has a figure of its own says it, and results name the shares that they rest on.
    fn default() -> Self {
        let headroom = Headroom::Bytes(Bytes::ZERO);
        Self { headroom, paid: Paid::default(), busy_power: 1.0, waiting_power: 0.5, site_factor: 1.0 }
    }
}

const HOUR_S: f64 = 3600.0;

impl CostModel {
    /// On other terms than the [default](Terms::default).
    #[must_use]
    pub fn with_terms(mut self, terms: Terms) -> Self {
        self.terms = terms;
        self
    }

    /// The terms.
    #[must_use]
    pub const fn terms(&self) -> &Terms {
        &self.terms
    }

    /// What a plan may take of a device's memory.
    #[must_use]
    pub fn usable(&self, kind: &DeviceKind) -> Bytes {
        self.terms.headroom.of(kind.memory)
    }

    /// What a device that holds a rank costs in a second at least, whatever else is paid: its rent, and its energy while it waits.
    #[must_use]
    pub fn least_rate(&self, device: DeviceId) -> Expense {
        let kind = self.cluster().device_kind(self.cluster().place(device).device_kind);
        let watts = self.terms.waiting_power.min(self.terms.busy_power) * self.terms.site_factor;
        Expense { usd: kind.usd_per_hour.map(|usd| usd / HOUR_S), joules: kind.tdp_watts.map(|limit| limit * watts) }
    }

    /// What an iteration of so long costs whose ranks are on these devices (empty: rank `r` on device `r`); of each pipeline
    /// position how many of them it has, and how many nanoseconds its passes take.
    ///
    /// # Panics
    /// If the cluster lacks a device.
    #[must_use]
    pub fn expense(&self, placement: &[DeviceId], iteration: SimDuration, positions: &[(u32, u64)]) -> Expense {
        let cluster = self.cluster();
        let seconds = iteration.seconds();
        let kinds = cluster.device_kinds.len();
        // Nanoseconds, so that the order of ranks does not matter.
        let (mut ranks, mut busy) = (vec![0u64; kinds], vec![0u128; kinds]);
        let mut used = 0;
        for (wide, work) in positions {
            let (from, work) = (used, (*work).min(iteration.nanoseconds()));
            used += u64::from(*wide);
            for (kind, count) in on_position(cluster, placement, (from, used)) {
                ranks[kind.index()] += count;
                busy[kind.index()] += u128::from(work) * u128::from(count);
            }
        }
        let paid = match self.terms.paid {
            Paid::Devices => ranks.clone(),
            Paid::Nodes => of_nodes(cluster, placement, used),
            Paid::Cluster => first(cluster, cluster.devices()),
        };
        let sum = |of: &dyn Fn(usize, &DeviceKind) -> Option<f64>| {
            let kinds = paid.iter().enumerate().filter(|(_, count)| **count > 0);
            kinds.map(|(at, _)| of(at, &cluster.device_kinds[at])).sum::<Option<f64>>()
        };
        let Terms { busy_power, waiting_power, site_factor, .. } = self.terms;
        let usd = sum(&|at, kind| Some(kind.usd_per_hour? / HOUR_S * seconds * paid[at] as f64));
        let joules = sum(&|at, kind| {
            let waits = waiting_power * seconds * paid[at] as f64;
            Some(kind.tdp_watts? * site_factor * (waits + (busy_power - waiting_power) * busy[at] as f64 * 1e-9))
        });
        Expense { usd, joules }
    }
}

/// Devices of a pipeline position by kind, whose ranks are those from one to before another.
fn on_position(cluster: &Cluster, placement: &[DeviceId], (from, to): (u64, u64)) -> Vec<(DeviceKindId, u64)> {
    if cluster.device_kinds.len() == 1 {
        return vec![(DeviceKindId::new(0), to - from)];
    }
    if placement.is_empty() {
        let (before, until) = (first(cluster, from), first(cluster, to));
        let counts = until.into_iter().zip(before).map(|(until, before)| until - before);
        return counts.enumerate().map(|(kind, count)| (DeviceKindId::at(kind), count)).collect();
    }
    let at = |rank: u64| usize::try_from(rank).expect("fewer ranks than usize");
    let kind = |device: &DeviceId| (cluster.place(*device).device_kind, 1);
    placement[at(from)..at(to)].iter().map(kind).collect()
}

/// How many of the first devices of a cluster are of each kind.
fn first(cluster: &Cluster, devices: u64) -> Vec<u64> {
    let mut counts = vec![0; cluster.device_kinds.len()];
    let mut left = devices;
    for group in &cluster.groups {
        let node = &cluster.node_kind(group.kind).devices;
        let whole = (left / node.len() as u64).min(u64::from(group.count));
        node.iter().for_each(|kind| counts[kind.index()] += whole);
        left -= whole * node.len() as u64;
        if whole < u64::from(group.count) {
            let rest = usize::try_from(left).expect("less than a node");
            node[..rest].iter().for_each(|kind| counts[kind.index()] += 1);
            break;
        }
    }
    counts
}

/// Devices by kind of all nodes that hold a rank.
fn of_nodes(cluster: &Cluster, placement: &[DeviceId], ranks: u64) -> Vec<u64> {
    if placement.is_empty() {
        let mut whole = 0;
        for group in &cluster.groups {
            let size = cluster.node_kind(group.kind).devices.len() as u64;
            let nodes = (ranks - ranks.min(whole)).div_ceil(size).min(u64::from(group.count));
            whole += nodes * size;
            if whole >= ranks {
                break;
            }
        }
        return first(cluster, whole);
    }
    let mut counts = vec![0; cluster.device_kinds.len()];
    let mut nodes: Vec<(NodeId, ir::NodeKindId)> =
        placement.iter().map(|device| cluster.place(*device)).map(|place| (place.node, place.node_kind)).collect();
    nodes.sort_unstable();
    nodes.dedup();
    for (_, kind) in nodes {
        cluster.node_kind(kind).devices.iter().for_each(|kind| counts[kind.index()] += 1);
    }
    counts
}
