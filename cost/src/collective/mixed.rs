//! Collectives of groups whose nodes or devices are of several kinds.
//!
//! All members carry out one algorithm with one protocol. Its steps and its bytes, inside nodes and between, take what they
//! take the slowest kind: every byte of a ring goes through each node, and a tree or a hierarchy ends with its last member.
//! So the price is at least that of each kind among its like, and that of the slowest where one kind is the slowest in all.
//! What was measured was measured among one kind: where there is such of a kind, the slowest price of all kinds counts.

use ir::CollectiveAlgorithm;
use ir::program::CollectiveKind;

use super::{Exchange, Formula, Pricing, Spans};
use crate::GroupPlace;
use crate::basis::Basis;
use crate::calibration::Protocol;

/// A group of several kinds: how each prices, and the place as if all were of that kind.
pub(crate) struct Mixed<'a>(Vec<(Pricing<'a>, GroupPlace)>);

impl<'a> Mixed<'a> {
    pub(crate) fn new(place: GroupPlace, pricing: impl Fn(ir::DeviceId) -> Pricing<'a>) -> Self {
        Self(place.of_each_kind().map(|place| (pricing(place.first), place)).collect())
    }

    /// Each kind, with the exchange as if all were of it.
    fn each(&self, exchange: Exchange) -> impl Iterator<Item = (&Pricing<'a>, Exchange)> {
        self.0.iter().map(move |(pricing, place)| (pricing, Exchange { place: *place, ..exchange }))
    }

    /// Seconds by formula, with the protocol that is cheapest for all; where they know none in common, with each its own.
    fn formula(&self, exchange: Exchange, formula: Formula) -> f64 {
        let with = |protocol: &dyn Fn(&Pricing<'a>, Exchange) -> Option<Spans>| {
            let spans = self.each(exchange).map(|(pricing, exchange)| protocol(pricing, exchange));
            spans.reduce(|a, b| Some(a?.slower(b?))).flatten().map(|spans| spans.seconds(formula))
        };
        let named = |name: &str| {
            with(&|pricing, exchange| {
                let protocol = pricing.calibration().protocol.iter().find(|protocol| protocol.name == name)?;
                Some(pricing.spans(exchange, formula, Some(protocol)))
            })
        };
        let names =
            self.0.iter().flat_map(|(pricing, _)| &pricing.calibration().protocol).map(|Protocol { name, .. }| name);
        let own = || with(&|pricing, exchange| Some(pricing.cheapest_spans(exchange, formula)));
        names.filter_map(|name| named(name)).reduce(f64::min).or_else(own).expect("a group has members")
    }

    /// The cheapest formula and its seconds.
    pub(crate) fn cheapest(&self, exchange: Exchange) -> (Formula, f64) {
        Formula::cheapest(exchange.kind, exchange.place, |formula| self.formula(exchange, formula))
    }

    /// As [`Pricing::chosen`]: of CPU threads, if any kind is such.
    pub(crate) fn chosen(
        &self,
        kind: CollectiveKind,
        place: GroupPlace,
        algorithm: CollectiveAlgorithm,
    ) -> Option<Formula> {
        self.0.iter().find_map(|(pricing, _)| pricing.chosen(kind, place, algorithm))
    }

    /// As [`Pricing::collective`].
    pub(crate) fn collective(&self, exchange: Exchange, algorithm: CollectiveAlgorithm) -> (f64, Basis) {
        let slowest = |a: (f64, Basis), b: (f64, Basis)| (a.0.max(b.0), a.1.max(b.1));
        let measured = |(pricing, exchange): (&Pricing<'a>, Exchange)| {
            pricing.calibration().threads || pricing.measured_or_fitted(exchange).is_some()
        };
        if self.each(exchange).any(measured) {
            let alone = self.each(exchange).map(|(pricing, exchange)| pricing.collective(exchange, algorithm));
            return alone.reduce(slowest).expect("a group has members");
        }
        let explicit = self.chosen(exchange.kind, exchange.place, algorithm);
        let seconds = explicit.map_or_else(|| self.cheapest(exchange).1, |formula| self.formula(exchange, formula));
        let bases = self.each(exchange).map(|(pricing, exchange)| pricing.formula_basis(exchange.place));
        (seconds, bases.max().expect("a group has members"))
    }
}
