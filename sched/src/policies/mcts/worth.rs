//! What times are worth by what is made small: the units that floors and plans are counted in.
//!
//! A search counts in whole units of a score (see [`Aim::units`]): nanoseconds where time is made small. Of money and energy
//! each rank costs something in every nanosecond of an iteration, whatever it does, so that a time that no plan goes under is
//! worth that much of it: for so many ranks at least, on the cheapest devices.

use super::super::Question;
use super::super::dynprog::kinds::Kind;
use super::steps::State;
use crate::aim::{Aim, Objective, Score};
use crate::evaluate::Evaluator;

/// See the module.
#[derive(Clone, Debug)]
pub(super) struct Worth<'a> {
    aim: &'a Aim,
    /// What the cheapest devices cost in a nanosecond at least, by how many there are; the first is of none.
    rates: Vec<f64>,
    /// What a device of each kind does.
    of_kinds: Vec<f64>,
}

impl<'a> Worth<'a> {
    pub(super) fn new(ask: &Question<'a>, kinds: &[Kind], evaluator: &dyn Evaluator) -> Self {
        let aim = ask.aim;
        let own = |kind: &Kind| kind.devices.iter().map(|device| aim.rate(evaluator.rate(*device))).collect::<Vec<_>>();
        let by_kind = kinds.iter().map(own).collect::<Vec<_>>();
        let of_kinds = by_kind.iter().map(|rates| rates.iter().copied().fold(f64::INFINITY, f64::min)).collect();
        let mut each = by_kind.concat();
        each.sort_by(f64::total_cmp);
        let sums = each.iter().scan(0.0, |sum, rate| {
            *sum += rate;
            Some(*sum)
        });
        Self { aim, rates: std::iter::once(0.0).chain(sums).collect(), of_kinds }
    }

    /// What each nanosecond of so many ranks costs at least.
    fn rate(&self, ranks: u64) -> f64 {
        let at = usize::try_from(ranks).unwrap_or(usize::MAX).min(self.rates.len() - 1);
        self.rates[at]
    }

    /// What no plan behind a state goes under whose iteration takes so many nanoseconds at least.
    pub(super) fn of_time(&self, time: u64, state: &State) -> u64 {
        if self.aim.objective == Objective::Time {
            return time;
        }
        self.aim.units(Score::of(Some(time as f64 * self.rate(ranks(state)))))
    }

    /// What no plan goes under on devices of which one of each kind computes so many nanoseconds of the first kind's in one:
    /// work of so many of those costs that on the kind where it is cheapest.
    pub(super) fn of_work(&self, work: f64, speeds: &[(f64, usize)]) -> Option<u64> {
        if self.aim.objective == Objective::Time {
            return None;
        }
        let each = speeds.iter().map(|(speed, kind)| self.of_kinds[*kind] / speed).reduce(f64::min)?;
        Some(self.aim.units(Score::of(Some(work * each))))
    }

    /// Nanoseconds from which on a plan behind a state cannot win.
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "not negative, and past all times")]
    pub(super) fn limit(&self, limit: u64, state: &State) -> u64 {
        if self.aim.objective == Objective::Time || limit == u64::MAX {
            return limit;
        }
        let rate = self.rate(ranks(state));
        if rate > 0.0 { (self.aim.of_units(limit) / rate * (1.0 + 1e-9)).ceil() as u64 } else { u64::MAX }
    }
}

/// How many ranks plans behind a state have at least.
fn ranks(state: &State) -> u64 {
    let degrees = state.degrees;
    let all = [degrees.data, degrees.tensor, degrees.context, degrees.pipeline];
    all.into_iter().map(|degree| u64::from(degree.max(1))).product()
}
