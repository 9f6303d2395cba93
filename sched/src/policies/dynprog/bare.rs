//! What passes take at least, by what that depends on: found once for degrees that differ in nothing of it.

use std::rc::Rc;

use ir::{Backward, Mesh, Plan, Precision, Recompute, ZeroStage};
use rustc_hash::FxHashMap;

use super::super::Question;
use super::kinds::{Kind, Priced, rows, wide};
use crate::evaluate::Evaluator;

/// By kind and number of layers less one: nanoseconds of all passes of a microbatch, at least.
pub(in crate::policies) type Times = Rc<Vec<Vec<u64>>>;

/// See the module.
#[derive(Debug, Default)]
pub(in crate::policies) struct BareTimes {
    /// Looked up only.
    known: FxHashMap<Key, Times>,
}

/// What the times of passes depend on: of the number of positions, whether there are several.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Key {
    degrees: [u32; 3],
    mesh: Mesh,
    sequence_parallel: bool,
    several: bool,
    split: bool,
    zero: ZeroStage,
    microbatches: u32,
    rows: Vec<bool>,
    wide: u32,
    /// One replica alone on a kind.
    alone: Option<usize>,
}

impl Key {
    fn new(ask: &Question<'_>, plan: &Plan, rows: Vec<bool>) -> Self {
        let experts = ask.model.variants.experts.is_some();
        Self {
            degrees: [if experts { plan.data } else { 1 }, plan.tensor, plan.microbatch_size],
            mesh: plan.mesh,
            sequence_parallel: plan.sequence_parallel,
            several: plan.pipeline() > 1,
            split: plan.schedule.backward() == Backward::Split,
            zero: if experts { plan.zero } else { ZeroStage::Zero0 },
            microbatches: if ask.workload.precision == Precision::Fp8 { plan.microbatches } else { 1 },
            rows,
            wide: 0,
            alone: None,
        }
    }
}

impl BareTimes {
    /// Forgets everything: other devices are looked at.
    pub(in crate::policies) fn clear(&mut self) {
        self.known.clear();
    }

    /// Of a plan's passes on rows of each kind.
    pub(in crate::policies) fn of(
        &mut self,
        evaluator: &mut dyn Evaluator,
        (ask, kinds, recompute): (&Question<'_>, &[Kind], &[Recompute]),
        plan: &Plan,
    ) -> Times {
        let there = rows(kinds, plan).iter().map(|rows| *rows > 0).collect::<Vec<_>>();
        // Where groups of a position do not lie alike, they hang on its width.
        let unlike = kinds.len() == 1 && kinds[0].rows(wide(plan)) == 0;
        let key = Key { wide: if unlike { wide(plan) } else { 0 }, ..Key::new(ask, plan, there.clone()) };
        if let Some(known) = self.known.get(&key) {
            return Rc::clone(known);
        }
        let layers = ask.model.layers;
        let of = (layers, !ask.model.variants.pattern.is_empty());
        let mut priced = Priced::new(evaluator, (plan, recompute), kinds, of);
        let times = there.iter().enumerate().map(|(kind, there)| match there {
            true => (1..=layers).map(|layers| priced.bare(kind, layers)).collect(),
            false => Vec::new(),
        });
        let times = Rc::new(times.collect::<Vec<Vec<u64>>>());
        self.known.insert(key, Rc::clone(&times));
        times
    }

    /// Of one replica alone on devices of a kind.
    pub(in crate::policies) fn alone(
        &mut self,
        evaluator: &mut dyn Evaluator,
        (ask, kinds, recompute): (&Question<'_>, &[Kind], &[Recompute]),
        (plan, kind): (&Plan, usize),
    ) -> Times {
        let key = Key { alone: Some(kind), ..Key::new(ask, plan, Vec::new()) };
        if let Some(known) = self.known.get(&key) {
            return Rc::clone(known);
        }
        let layers = ask.model.layers;
        let of = (layers, !ask.model.variants.pattern.is_empty());
        let mut priced = Priced::of_one(evaluator, (plan, recompute), &kinds[kind], of);
        let times = Rc::new(vec![(1..=layers).map(|layers| priced.bare(0, layers)).collect::<Vec<_>>()]);
        self.known.insert(key, Rc::clone(&times));
        times
    }
}
