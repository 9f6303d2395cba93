//! Collectives from measured curves and fits.

use ir::Path;
use ir::program::CollectiveKind;

use super::{Exchange, Formula, Pricing, hops, is_exchange};
use crate::GroupPlace;
use crate::basis::Basis;
use crate::calibration::{CollectiveFit, SHARED_MEMORY};
use crate::compute::{CollectiveCurve, fitted};

const MIB: f64 = 1_048_576.0;

impl Pricing<'_> {
    /// The measured curve of just these members; else, inside a domain, a fit; else the formula times what the nearest
    /// measured group takes over its own formula at this size.
    pub(super) fn measured_or_fitted(&self, exchange: Exchange) -> Option<(f64, Basis)> {
        let Exchange { kind, bytes, place, .. } = exchange;
        let alone = place.nic_groups <= 1 && place.leaf_groups <= 1 && exchange.crossing >= 1.0;
        let path = if place.nodes > 1 { Path::Leaf } else { self.inner_path(place) };
        let link = &self.link(place, path).name;
        let mut curves = self.prepared.collectives.iter().filter(|of| of.link == *link);
        let exact = curves.find(|of| of.kind == kind && of.ranks == place.ranks && of.nodes == place.nodes);
        if let Some(found) = exact.filter(|_| alone) {
            let (seconds, exactly) = found.curve.at(bytes);
            return Some((seconds, if exactly { Basis::Measured } else { Basis::Interpolated }));
        }
        if place.nodes <= 1
            && let Some(fit) = self.fit(kind, link, place.ranks)
        {
            return Some((seconds_of(fit, exchange), fitted(fit.rows)));
        }
        let (of, there) = self.nearest_curve(exchange, link)?;
        let known = Exchange { kind: of.kind, place: there, crossing: 1.0, ..exchange };
        let ratio = of.curve.at(bytes).0 / self.cheapest(known).1;
        Some((self.cheapest(exchange).1 * ratio, Basis::Interpolated))
    }

    /// The measured group over a link whose members and nodes are nearest in ratio, and where it would be here. Kinds but
    /// all-to-alls serve each other, those of the same kind first.
    fn nearest_curve(&self, exchange: Exchange, link: &str) -> Option<(&CollectiveCurve, GroupPlace)> {
        let place = exchange.place;
        let across = place.nodes > 1;
        let apart = |a: u32, b: u32| libm::fabs(libm::log2(f64::from(a.max(1)) / f64::from(b.max(1))));
        let distance = |of: &CollectiveCurve| {
            let other = if of.kind == exchange.kind { 0.0 } else { 1.0 };
            other + apart(of.ranks, place.ranks) + apart(of.nodes, place.nodes)
        };
        let fits = |of: &&CollectiveCurve| {
            of.link == link && (of.nodes > 1) == across && is_exchange(of.kind) == is_exchange(exchange.kind)
        };
        let of = self.prepared.collectives.iter().filter(fits).min_by(|a, b| distance(a).total_cmp(&distance(b)))?;
        let per_node = (of.ranks / of.nodes.max(1)).max(1);
        let home = self.cluster.node_kind(self.cluster.place(place.first).node_kind);
        let devices = (home.devices.len() as u64).max(1);
        let nics = (u64::from(per_node) * u64::from(home.nics)).div_ceil(devices).clamp(1, u64::from(home.nics.max(1)));
        let there = GroupPlace {
            ranks: of.ranks,
            nodes: of.nodes,
            per_node,
            path: if across { Path::Leaf } else { place.path },
            nics: if across { u32::try_from(nics).expect("at most the NICs of a node") } else { 0 },
            leaf_nodes: if across { of.nodes } else { 0 },
            nic_groups: 1,
            leaf_groups: 1,
            node_groups: 1,
            ..place
        };
        Some((of, there))
    }

    /// The fit of a kind over a link: of those that hold for so many members one for just this kind first, then the one
    /// from the most members.
    pub(super) fn fit(&self, kind: CollectiveKind, link: &str, ranks: u32) -> Option<&CollectiveFit> {
        let serves = |fit: &&CollectiveFit| match &fit.kind {
            Some(name) => name == kind.name(),
            None => !is_exchange(kind) && (kind == CollectiveKind::AllReduce || !fit.all_reduce_only),
        };
        self.calibration()
            .collective_fit
            .iter()
            .filter(|fit| fit.link == link && fit.from_ranks <= ranks)
            .filter(serves)
            .max_by_key(|fit| (fit.kind.is_some(), fit.from_ranks))
    }

    /// Between CPU threads: the measured curve of copies and sums in shared memory; over an emulated link its own time,
    /// behind which the copies happen, so that the longer of the two counts.
    pub(super) fn between_threads(&self, exchange: Exchange, explicit: Option<Formula>) -> (f64, Basis) {
        let Exchange { kind, bytes, place, .. } = exchange;
        let shared = self.between_curves(kind, bytes, place.ranks);
        let link = self.link(place, if place.nodes > 1 { place.path } else { self.inner_path(place) });
        let emulated = || explicit.map_or_else(|| self.cheapest(exchange).1, |f| self.formula(exchange, f));
        match shared {
            Some((seconds, basis)) if link.name == SHARED_MEMORY => {
                (seconds + self.exchange_overhead(place.first), basis)
            }
            Some((seconds, _)) => (seconds.max(emulated()), Basis::Interpolated),
            None => (emulated(), Basis::Analytic),
        }
    }

    /// Between measured curves of one kind: that of `ranks`, else linear in the ranks between the neighbours, else in
    /// proportion to the nearest.
    fn between_curves(&self, kind: CollectiveKind, size: f64, ranks: u32) -> Option<(f64, Basis)> {
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
}

fn seconds_of(fit: &CollectiveFit, exchange: Exchange) -> f64 {
    let Exchange { kind, bytes, place, .. } = exchange;
    let share = if kind == CollectiveKind::AllReduce || fit.kind.is_some() { 1.0 } else { 0.5 };
    let ranks = f64::from(place.ranks);
    let factor = f64::from(hops(kind, place.ranks)) / ranks.max(1.0);
    let slow = fit.overhead_us + fit.overhead_us_per_rank * ranks + fit.root_us_per_sqrt_mib * (bytes / MIB).sqrt();
    slow * 1e-6 * share + bytes * factor / (fit.bus_gb_per_s * 1e9)
}
