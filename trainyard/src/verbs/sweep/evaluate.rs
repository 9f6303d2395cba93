//! What becomes of points: each is a scenario of its own, read, divided and predicted.
//!
//! Points that share cluster and sources of durations share a cost model; those that share model and training too share
//! the closed form's prices.

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use cost::CostModel;
use ir::{Plan, Prediction};
use reports::sweep::{Cell, ColumnKind, Outcome, SweepColumn, SweepPoint};
use reports::unit::Unit;
use sched::{ClosedForm, Evaluator as _};
use toml::{Table, Value};

use super::points::{Points, path, set};
use crate::error::in_a_line;
use crate::job::{Job, cost_model};
use crate::long_run::Setting;
use crate::scenario::{Loaded, PlanChoice, Scenario};
use crate::{Context, Error, facts, scenario, words};

/// The scenario that is varied.
#[derive(Debug)]
pub(super) struct Base<'a> {
    pub(super) table: Table,
    pub(super) folder: &'a Path,
    pub(super) points: Points,
    /// The names that each key goes through.
    pub(super) paths: Vec<Vec<String>>,
    /// Whether to simulate, or to use the closed form.
    pub(super) simulate: bool,
    /// Whether points can have checkpoints.
    pub(super) checkpoints: bool,
    pub(super) interrupt: Arc<AtomicBool>,
}

/// The result columns, in order; with checkpoints, what they and failures leave too.
pub(super) fn columns(checkpoints: bool) -> Vec<SweepColumn> {
    use ColumnKind::{Flag, Integer, Number, Text};
    let column = |name: &str, kind, unit| SweepColumn::new(name, kind, unit);
    let mut columns = vec![
        column("step_s", Number, Unit::Seconds),
        column("step_low_s", Number, Unit::Seconds),
        column("step_high_s", Number, Unit::Seconds),
        column("tokens_per_second", Number, Unit::TokensPerSecond),
        column("tokens_per_second_per_device", Number, Unit::TokensPerSecond),
        column("model_flops_utilization", Number, Unit::Share),
        column("bubble_rate", Number, Unit::Share),
        column("fits", Flag, Unit::Plain),
        column("peak_memory_bytes", Integer, Unit::Bytes),
        column("peak_memory_share", Number, Unit::Share),
        column("devices", Integer, Unit::Count),
        column("usd_per_million_tokens", Number, Unit::Dollars),
        column("assumed_share", Number, Unit::Share),
        column("plan", Text, Unit::Plain),
    ];
    if checkpoints {
        columns.extend([
            column("goodput", Number, Unit::Share),
            column(USEFUL, Number, Unit::TokensPerSecond),
            column("checkpoint_interval_s", Number, Unit::Seconds),
        ]);
    }
    columns
}

/// Tokens per second times goodput.
const USEFUL: &str = "useful_tokens_per_second";

/// The column that good points have most of.
pub(super) const fn objective(checkpoints: bool) -> &'static str {
    if checkpoints { USEFUL } else { "tokens_per_second" }
}

/// A value as a cell: what is not a number, a word or a switch is shown as it is written.
pub(super) fn cell(value: Option<&Value>, kind: ColumnKind) -> Cell {
    match (value, kind) {
        (None, _) => Cell::Empty,
        (Some(Value::Integer(number)), ColumnKind::Integer) => Cell::Integer(*number),
        (Some(Value::Integer(number)), ColumnKind::Number) => Cell::Number(*number as f64),
        (Some(Value::Float(number)), ColumnKind::Number) => Cell::Number(*number),
        (Some(Value::Boolean(flag)), ColumnKind::Flag) => Cell::Flag(*flag),
        (Some(Value::String(text)), _) => Cell::Text(text.clone()),
        (Some(other), _) => Cell::Text(other.to_string()),
    }
}

/// The kind that holds all of these values.
pub(super) fn kind(values: &[Value]) -> ColumnKind {
    let all = |is: fn(&Value) -> bool| !values.is_empty() && values.iter().all(is);
    if all(Value::is_integer) {
        ColumnKind::Integer
    } else if all(|value| value.is_integer() || value.is_float()) {
        ColumnKind::Number
    } else if all(Value::is_bool) {
        ColumnKind::Flag
    } else {
        ColumnKind::Text
    }
}

impl Base<'_> {
    /// The scenario of a point, or why there is none.
    pub(super) fn scenario(&self, values: &[Option<Value>]) -> Result<Loaded, Error> {
        let mut table = self.table.clone();
        for (path, value) in self.paths.iter().zip(values) {
            if let Some(value) = value {
                set(&mut table, path, value.clone())
                    .map_err(|message| Error::problem(ir::Problem::new(path.join("."), message)))?;
            }
        }
        let text = toml::to_string(&table).expect("read from TOML");
        scenario::parse("scenario.toml", &text, self.folder)
    }

    /// Points of a range, in order. `kinds` are those of the key columns.
    ///
    /// # Errors
    /// [`Error::Interrupted`] only; what is wrong with a point is its outcome.
    pub(super) fn evaluate(&self, range: Range<u64>, kinds: &[ColumnKind]) -> Result<Vec<SweepPoint>, Error> {
        let values: Vec<_> = range.clone().map(|index| self.points.at(index)).collect();
        let read: Vec<Result<Loaded, Error>> = values.iter().map(|values| self.scenario(values)).collect();
        let mut costs = Costs::default();
        let models: Vec<Option<Result<usize, String>>> =
            read.iter().map(|loaded| loaded.as_ref().ok().map(|loaded| costs.of(loaded))).collect();
        let mut worlds: Vec<(&Loaded, usize, ClosedForm<'_>)> = Vec::new();
        let mut points = Vec::with_capacity(values.len());
        for (((index, values), loaded), model) in range.zip(&values).zip(&read).zip(models) {
            let keys = values.iter().zip(kinds).map(|(value, kind)| cell(value.as_ref(), *kind)).collect();
            let outcome = match (loaded, model) {
                (Err(error), _) => Outcome::Infeasible(error.in_a_line()),
                (Ok(_), Some(Err(reason))) => Outcome::Infeasible(reason),
                (Ok(loaded), Some(Ok(model))) => {
                    let cost = &costs.models[model].1;
                    let decided = match &loaded.scenario.plan {
                        PlanChoice::Written(plan) if !self.simulate => {
                            let world = world(&mut worlds, loaded, model, cost);
                            let plan = worlds[world].2.profiled(plan);
                            let prediction = worlds[world].2.evaluate(&plan);
                            prediction.map(|p| (plan, p)).map_err(|no| in_a_line(&no.reasons))
                        }
                        PlanChoice::Written(_) | PlanChoice::Policy(..) => match self.decide(loaded, cost) {
                            Err(Error::Interrupted) => return Err(Error::Interrupted),
                            other => other.map_err(|error| error.in_a_line()),
                        },
                    };
                    match decided {
                        Ok((plan, prediction)) => match self.results(loaded, &plan, &prediction) {
                            Ok(cells) => Outcome::Done(cells),
                            Err(problem) => Outcome::Infeasible(in_a_line(&[problem])),
                        },
                        Err(reason) => Outcome::Infeasible(reason),
                    }
                }
                (Ok(_), None) => unreachable!("what was read has a cost model or a reason"),
            };
            points.push(SweepPoint { index, keys, outcome });
        }
        Ok(points)
    }

    /// The cells of a prediction, those of a long run included.
    fn results(&self, loaded: &Loaded, plan: &Plan, prediction: &Prediction) -> Result<Vec<Cell>, ir::Problem> {
        let mut cells = results(loaded, plan, prediction);
        if self.checkpoints {
            let fits = sched::memory_problems(prediction).is_empty();
            let setting = Setting::of(&loaded.scenario, plan, prediction.iteration)?.filter(|_| fits);
            let tokens = loaded.scenario.workload.tokens_per_iteration() as f64 / prediction.iteration.seconds();
            cells.extend(setting.map_or([const { Cell::Empty }; 3], |setting| {
                let goodput = setting.expected().goodput();
                [goodput, goodput * tokens, setting.interval().seconds()].map(Cell::Number)
            }));
        }
        Ok(cells)
    }

    /// The plan and its prediction where the closed form alone does not give them.
    fn decide(&self, loaded: &Loaded, cost: &CostModel) -> Result<(Plan, Prediction), Error> {
        let context = Context::new(Arc::clone(&self.interrupt), |_| {});
        let job = Job { loaded, cost: cost.clone() };
        let decision = job.decide(&context)?;
        let simulated = matches!(loaded.scenario.plan, PlanChoice::Written(_));
        if self.simulate && !simulated {
            let program = job.program(&decision.plan)?;
            let timeline = job.simulate(&program)?;
            let prediction = sched::summarise(&program, &timeline, &job.cost);
            return Ok((decision.plan, prediction));
        }
        Ok((decision.plan, decision.prediction))
    }
}

/// Cost models of clusters and sources of durations.
#[derive(Debug, Default)]
struct Costs<'a> {
    models: Vec<(&'a Loaded, CostModel)>,
    refused: Vec<(&'a Loaded, String)>,
}

fn same_cost(a: &Loaded, b: &Loaded) -> bool {
    let (a, b) = (&a.scenario, &b.scenario);
    // What a stack's constants are keyed by.
    let key = |of: &Scenario| {
        let Scenario { model, workload, .. } = of;
        (workload.precision, model.variants.experts.is_some(), workload.recipe.cuda_graphs)
    };
    (&a.cluster, &a.cost, &a.stack, a.terms()) == (&b.cluster, &b.cost, &b.stack, b.terms()) && key(a) == key(b)
}

impl<'a> Costs<'a> {
    fn of(&mut self, loaded: &'a Loaded) -> Result<usize, String> {
        if let Some(known) = self.models.iter().rposition(|(other, _)| same_cost(other, loaded)) {
            return Ok(known);
        }
        if let Some((_, reason)) = self.refused.iter().find(|(other, _)| same_cost(other, loaded)) {
            return Err(reason.clone());
        }
        match cost_model(loaded, None) {
            Ok(model) => {
                self.models.push((loaded, model));
                Ok(self.models.len() - 1)
            }
            Err(error) => {
                let reason = error.in_a_line();
                self.refused.push((loaded, reason.clone()));
                Err(reason)
            }
        }
    }
}

/// The closed form of a point's model, training and cost model.
fn world<'a>(
    worlds: &mut Vec<(&'a Loaded, usize, ClosedForm<'a>)>,
    loaded: &'a Loaded,
    model: usize,
    cost: &'a CostModel,
) -> usize {
    let (of, with) = (&loaded.scenario.model, &loaded.scenario.workload);
    let same = |(other, number, _): &(&Loaded, usize, ClosedForm<'_>)| {
        *number == model && other.scenario.model == *of && other.scenario.workload == *with
    };
    worlds.iter().rposition(same).unwrap_or_else(|| {
        worlds.push((loaded, model, ClosedForm::new(of, with, cost)));
        worlds.len() - 1
    })
}

/// The cells of a prediction. What does not fit has no time: it would never run.
fn results(loaded: &Loaded, plan: &Plan, prediction: &Prediction) -> Vec<Cell> {
    let scenario = &loaded.scenario;
    let fits = sched::memory_problems(prediction).is_empty();
    let seconds = prediction.iteration.seconds();
    let tokens = scenario.workload.tokens_per_iteration() as f64;
    let number = |value: Option<f64>| value.filter(|v| v.is_finite()).map_or(Cell::Empty, Cell::Number);
    let timed = |value: Option<f64>| if fits { number(value) } else { Cell::Empty };
    let rate = facts::rate(scenario, plan);
    let utilization = rate.peak.map(|peak| rate.flops_per_token.get() as f64 * tokens / seconds / peak.get());
    let peak = prediction.memory.iter().map(|stage| stage.peak.get()).max().unwrap_or(0);
    let share = |stage: &ir::StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64;
    let usd = prediction.expense.usd.map(|usd| usd / tokens * 1e6);
    let count = |n: u64| Cell::Integer(i64::try_from(n).unwrap_or(i64::MAX));
    vec![
        timed(Some(seconds)),
        timed(prediction.interval.map(|(least, _)| least.seconds())),
        timed(prediction.interval.map(|(_, most)| most.seconds())),
        timed(Some(tokens / seconds)),
        timed(Some(tokens / seconds / plan.world() as f64)),
        timed(utilization),
        timed(prediction.bubble_rate),
        Cell::Flag(fits),
        count(peak),
        number(prediction.memory.iter().map(share).reduce(f64::max)),
        count(plan.world()),
        timed(usd),
        number(Some(prediction.basis.assumed)),
        Cell::Text(words::plan(plan)),
    ]
}

/// The names that each key goes through.
pub(super) fn paths(points: &Points) -> Vec<Vec<String>> {
    points.keys.iter().map(|key| path(key).expect("checked when it was read")).collect()
}
