//! Whether rules of thumb choose well among layouts that were measured: how much longer the chosen one took than the best.

use cost::StackKey;
use ir::{Evaluation, Infeasible, Plan, Problem, Workload};
use reports::scoreboard::ScoreKind;
use sched::{ClosedForm, Evaluator, Megatron, Planner, Question};

use super::measured_tables;
use super::predict::Subject;
use super::tables::Tables;
use crate::catalog::Catalog;

/// Layouts of one model on one cluster by one software, as they were measured.
struct Measured<'a> {
    rows: Vec<&'a Subject>,
    closed: ClosedForm<'a>,
}

/// Degrees and sizes that tell layouts apart.
fn layout(plan: &Plan) -> [u32; 5] {
    [plan.data, plan.tensor, plan.pipeline(), plan.chunks_per_stage(), plan.microbatch_size]
}

impl Measured<'_> {
    /// The row of a plan's layout and recomputation, and whether its layout was measured with more recomputation.
    fn rows(&self, plan: &Plan) -> (Option<&Subject>, bool) {
        let same = self.rows.iter().filter(|row| layout(&row.case.plan) == layout(plan));
        let order = |row: &Subject| row.case.plan.stages[0].recompute.cmp(&plan.stages[0].recompute);
        (same.clone().copied().find(|row| order(row).is_eq()), same.clone().any(|row| order(row).is_gt()))
    }
}

impl Evaluator for Measured<'_> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        match self.rows(plan).0.map(|row| row.case.plan.clone()) {
            Some(row) => self.closed.evaluate(&row),
            None => Err(Infeasible { reasons: vec![Problem::new("plan", "was not measured")], nearest: Vec::new() }),
        }
    }
    fn excess(&mut self, plan: &Plan) -> Option<f64> {
        match self.rows(plan) {
            (Some(row), _) => {
                let row = row.case.plan.clone();
                self.closed.excess(&row)
            }
            // Measured with more recomputation only: nobody measures what does not fit.
            (None, true) => Some(1.0),
            (None, false) => None,
        }
    }
}

/// What rows must share to be layouts of one training.
fn training(row: &Subject) -> (&str, u32, u64, &Workload, &StackKey) {
    let case = &row.case;
    (&case.model.name, case.model.layers, case.cluster.devices(), &case.workload, &row.run.stack)
}

/// The measured time of the layout that the rules choose over that of the best one, where so many were measured.
fn worst_choices(table: &str, least: usize) -> Vec<(String, f64)> {
    let all = Tables::read(&measured_tables(), &[], &Catalog::embedded()).expect("tables");
    let stacks = crate::catalog::stacks();
    let index = all.names().iter().position(|name| name == table).expect("a table");
    let subjects = all.of_table(ScoreKind::Fitted, index);
    let timed = subjects.into_iter().filter(|row| row.seconds().is_some()).collect::<Vec<_>>();
    let mut found = Vec::new();
    for (number, first) in timed.iter().enumerate() {
        if timed[..number].iter().any(|row| training(row) == training(first)) {
            continue;
        }
        let mut rows = timed.iter().copied().filter(|row| training(row) == training(first)).collect::<Vec<_>>();
        if rows.len() < least {
            continue;
        }
        let seconds = |row: &Subject| row.seconds().expect("only those that were timed");
        // Of several measurements of a layout the best.
        rows.sort_by(|a, b| seconds(a).total_cmp(&seconds(b)));
        let case = &first.case;
        let cost = first.cost(&stacks.resolve_in(&first.run.stack, table)).expect("prices");
        let mut closed = ClosedForm::new(&case.model, &case.workload, &cost);
        // What the memory figure refuses no policy chooses.
        let fits = rows.iter().find(|row| closed.excess(&row.case.plan).is_none());
        let Some(best) = fits.map(|row| seconds(row)) else { continue };
        let mut measured = Measured { rows: rows.clone(), closed };
        let ask = Question::new(&case.model, &case.workload, &case.cluster);
        let chosen = Megatron::default().plan(&ask, &mut measured, 100_000, &mut |_, _| {}).expect("a layout");
        let row = measured.rows(&chosen[0].plan).0.expect("a measured layout");
        let (of_all, took) = (seconds(rows[0]), seconds(row));
        let layouts = (layout(&row.case.plan), layout(&rows[0].case.plan));
        let words = format!("{} rows of {}: {layouts:?}, {:.3} of all", rows.len(), case.model.name, took / of_all);
        found.push((words, took / best));
    }
    found
}

#[test]
fn rules_of_thumb_choose_measured_layouts_near_the_best() {
    for (table, least, most) in [("aleph_alpha_llama_layout_sweep", 8, 1.1), ("bigscience_bloom176b_prequel", 4, 1.1)] {
        let choices = worst_choices(table, least);
        assert!(choices.len() > 1, "{table}: {} sweeps", choices.len());
        let worst = choices.iter().map(|(_, ratio)| *ratio).fold(0.0, f64::max);
        assert!(worst <= most, "{table}: {worst} {choices:#?}");
    }
}
