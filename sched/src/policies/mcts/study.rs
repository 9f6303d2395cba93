//! What a finished search says about every node that it knows, for whoever learns from it.

use super::guide::{Judgement, View, rule};
use super::{Mcts, Search};
use crate::evaluate::Evaluator;
use crate::policies::Question;

/// A node of a finished search.
#[derive(Clone, PartialEq, Debug)]
pub struct Note {
    /// Numbers of its state (see [`learned::features`](crate::learned::features)).
    pub state: Vec<f64>,
    /// Numbers of each choice.
    pub choices: Vec<Vec<f64>>,
    /// Logarithms of the rules' weights.
    pub rules: Vec<f64>,
    /// Evaluations behind each choice.
    pub visits: Vec<u32>,
    /// What the best plan behind each takes, where one fits: nanoseconds, where time is made small (see [`Action::floor`]).
    ///
    /// [`Action::floor`]: super::Action::floor
    pub times: Vec<Option<u64>>,
}

/// What a search found, node by node.
#[derive(Clone, PartialEq, Debug)]
pub struct Study {
    /// Nodes with several choices that something was evaluated behind, in the order in which they were reached.
    pub notes: Vec<Note>,
    /// What the best plan takes.
    pub best: Option<u64>,
    /// What no plan goes under.
    pub floor: u64,
    /// Evaluations.
    pub used: u64,
}

/// What is noted while a search goes on.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Reached {
    /// The share of equal priors.
    explore: f32,
    /// Numbers of nodes in the tree, and what their guide was asked.
    notes: Vec<(usize, Note)>,
}

impl Reached {
    /// Notes a node that is about to have a number, and mixes its priors.
    pub(super) fn note(&mut self, number: usize, view: &View<'_>, judgement: &mut Judgement) {
        let equal = self.explore / view.actions.len() as f32;
        judgement.priors.iter_mut().for_each(|prior| *prior = (1.0 - self.explore) * *prior + equal);
        if view.actions.len() > 1 {
            self.notes.push((number, note(view)));
        }
    }
}

impl Mcts {
    /// Searches and tells of every node. Priors are mixed with equal ones, which have a share of `explore`, so that what the
    /// guide thinks little of is seen too.
    pub fn study(&self, ask: &Question<'_>, evaluator: &mut dyn Evaluator, budget: u64, explore: f32) -> Study {
        let mut silent = |_: u64, _: Option<(&ir::Plan, &ir::Prediction)>| {};
        let study = Some(Reached { explore, notes: Vec::new() });
        let mut search = Search::new(self, ask, evaluator, (budget, study), &mut silent);
        while search.goes_on() && search.round() {}
        let best = search.best.first().map(|(_, prediction)| ask.aim.units_of(prediction));
        let (floor, used, tree) = (search.floor, search.used, &search.tree);
        let mut notes = search.study.take().map(|study| study.notes).unwrap_or_default();
        for (node, note) in &mut notes {
            let children = &tree.nodes[*node].children;
            (note.visits, note.times) = children.iter().map(|child| (child.tried, child.best)).unzip();
        }
        notes.retain(|(_, note)| note.visits.iter().any(|visits| *visits > 0));
        Study { notes: notes.into_iter().map(|(_, note)| note).collect(), best, floor, used }
    }
}

/// What a node's guide was asked.
fn note(view: &View<'_>) -> Note {
    let job = &view.facts.job;
    Note {
        state: job.state(view),
        choices: (0..view.actions.len()).map(|at| job.choice(view, at)).collect(),
        rules: view.actions.iter().map(|action| rule(view, action)).collect(),
        visits: Vec::new(),
        times: Vec::new(),
    }
}
