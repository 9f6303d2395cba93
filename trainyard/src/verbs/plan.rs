//! `plan`: how a scenario is divided, and why.

use std::collections::BTreeMap;

use cost::Paid;
use ir::{Plan, Prediction};
use reports::pareto::{FrontPoint, ParetoFront, Weighed};
use reports::unit::Unit;
use sched::{Measure, Runtime, refused_by};

use crate::job::{Decision, Job};
use crate::results::{Alternative, Header, ParetoPoint, ParetoSummary, PlanReport, PlanSummary, PredictionSummary};
use crate::scenario::{Loaded, PlanChoice, Scenario};
use crate::{Context, Error, Output, policy, words};

/// Decides how a scenario is divided.
///
/// # Errors
/// [`Error::Infeasible`] with every reason and the nearest legal plans, or the limits that stand in the way and what is nearest
/// to them; [`Error::Input`] if devices lack what the objective needs.
pub fn plan(loaded: &Loaded, context: &Context<'_>) -> Result<PlanReport, Error> {
    let lacks = loaded.scenario.unanswerable();
    if !lacks.is_empty() {
        return Err(loaded.error(lacks));
    }
    let job = Job::new(loaded, None)?;
    report(&job, context)
}

pub(crate) fn report(job: &Job<'_>, context: &Context<'_>) -> Result<PlanReport, Error> {
    let decision = job.decide(context)?;
    if let Some(error) = policy::misfit(job, &decision.prediction, context) {
        return Err(error);
    }
    if let Some(error) = policy::broken(job, &decision.prediction) {
        return Err(error);
    }
    let scenario = &job.loaded.scenario;
    let pareto = pareto(job, &decision, context)?;
    let expense = Expense::of(scenario, &decision.prediction);
    Ok(PlanReport {
        header: Header::new("plan", &scenario.name),
        policy: decision.policy,
        plan: PlanSummary::of(&decision.plan),
        prediction: PredictionSummary::of(&decision.prediction),
        objective: scenario.objective.minimise.name(),
        usd_per_million_tokens: expense.usd_per_million_tokens,
        joules_per_token: expense.joules_per_token,
        expense_notes: notes(scenario, &expense),
        pareto,
        stack_notes: job.cost.stack().notes.clone(),
        reasons: decision.reasons,
        runtimes: runtimes(scenario, &decision.plan),
        alternatives: decision.others.iter().map(Alternative::of).collect(),
        planned_scenario: planned(scenario, &decision.plan),
    })
}

/// A plan as a scenario of its own, which nothing is searched for.
fn planned(scenario: &Scenario, plan: &Plan) -> String {
    let mut planned = Scenario { plan: PlanChoice::Written(plan.clone()), ..scenario.clone() };
    planned.objective.pareto.clear();
    planned.to_toml()
}

/// Money and energy per token.
struct Expense {
    usd_per_million_tokens: Option<f64>,
    joules_per_token: Option<f64>,
}

impl Expense {
    fn of(scenario: &Scenario, prediction: &Prediction) -> Self {
        let tokens = scenario.workload.tokens_per_iteration() as f64;
        Self {
            usd_per_million_tokens: prediction.expense.usd.map(|usd| usd / tokens * 1e6),
            joules_per_token: prediction.expense.joules.map(|joules| joules / tokens),
        }
    }
}

/// On what money and energy rest.
fn notes(scenario: &Scenario, expense: &Expense) -> Vec<String> {
    let terms = &scenario.objective.terms;
    let mut notes = Vec::new();
    if expense.usd_per_million_tokens.is_some() {
        notes.push(
            match terms.paid {
                Paid::Devices => "the devices of the plan are paid",
                Paid::Nodes => "nodes that hold a rank are paid whole, idle nodes are released",
                Paid::Cluster => "the whole cluster is paid",
            }
            .to_owned(),
        );
    }
    if expense.joules_per_token.is_some() {
        let percent = |share: f64| format!("{:.0} %", share * 100.0);
        let site =
            if terms.site_factor > 1.0 { format!(", times {} for the site", terms.site_factor) } else { String::new() };
        notes.push(format!(
            "passes draw {} of the power limit, waiting {}{site}",
            percent(terms.busy_power),
            percent(terms.waiting_power)
        ));
    }
    notes
}

/// What is weighed of a prediction, as the page has it.
fn weighed(measure: Measure) -> Weighed {
    let (name, key, unit) = match measure {
        Measure::Time => ("iteration", "iteration_s", Unit::Seconds),
        Measure::Money => ("money per million tokens", "usd_per_million_tokens", Unit::Dollars),
        Measure::Energy => ("energy per token", "joules_per_token", Unit::Joules),
        Measure::Memory => ("peak memory", "peak_memory_bytes", Unit::Bytes),
    };
    Weighed { name: name.to_owned(), key: key.to_owned(), unit }
}

/// The front, where one is asked for.
fn pareto(job: &Job<'_>, decision: &Decision, context: &Context<'_>) -> Result<Option<ParetoSummary>, Error> {
    let scenario = &job.loaded.scenario;
    let measures = &scenario.objective.pareto;
    let PlanChoice::Policy(_, keys) = &scenario.plan else { return Ok(None) };
    if measures.is_empty() {
        return Ok(None);
    }
    let front = policy::front(job, keys, measures, decision, context)?;
    let (mut points, mut rows, mut scenarios) = (Vec::new(), Vec::new(), Vec::new());
    for (plan, prediction) in &front.points {
        let expense = Expense::of(scenario, prediction);
        let chosen = *plan == decision.plan;
        let value = |measure: &Measure| match measure {
            Measure::Money => expense.usd_per_million_tokens.unwrap_or(f64::NAN),
            Measure::Energy => expense.joules_per_token.unwrap_or(f64::NAN),
            Measure::Time | Measure::Memory => measure.of(prediction),
        };
        rows.push(FrontPoint {
            plan: words::plan(plan),
            devices: plan.world(),
            values: measures.iter().map(value).collect(),
            chosen,
        });
        points.push(ParetoPoint {
            plan: PlanSummary::of(plan),
            iteration_ms: prediction.iteration.seconds() * 1e3,
            usd_per_million_tokens: expense.usd_per_million_tokens,
            joules_per_token: expense.joules_per_token,
            peak_gib: Measure::Memory.of(prediction) / f64::from(1u32 << 30),
            chosen,
        });
        scenarios.push(planned(scenario, plan));
    }
    let names = measures.iter().map(|measure| measure.name()).collect::<Vec<_>>();
    let expense = Expense::of(scenario, &decision.prediction);
    let assumptions = notes(scenario, &expense).into_iter().map(|note| ("money and energy".to_owned(), note));
    let searched = "uniform plans of the keys that are left open, on any number of devices, and what the policy chose";
    let page = ParetoFront {
        title: format!("{}: plans that no other beats in {}", scenario.name, names.join(", ")),
        description: format!("Searched: {searched}. {}.", reports::show::capital(&front.notes.join("; "))),
        weighed: measures.iter().copied().map(weighed).collect(),
        points: rows,
        devices: scenario.cluster.devices(),
        assumptions: assumptions.collect(),
        command: format!("trainyard plan resolved.toml --pareto={} --out .", names.join(",")),
    };
    Ok(Some(ParetoSummary { measures: names, points, notes: front.notes, scenarios, page }))
}

/// Stages the page of a front with its picture and its rows, and each plan as a scenario of its own.
///
/// # Errors
/// [`Error::Files`] if one cannot be written.
pub fn stage_front(output: &mut Output, front: &ParetoSummary) -> Result<(), Error> {
    let page = front.page.document();
    output.stage("pareto.html", page.html().as_bytes())?;
    for (name, picture) in page.pictures() {
        output.stage(&name, picture.as_bytes())?;
    }
    let mut rows = Vec::new();
    front.page.csv(&mut rows).map_err(|error| Error::files("pareto.csv".as_ref(), error))?;
    output.stage("pareto.csv", &rows)?;
    for (number, scenario) in front.scenarios.iter().enumerate() {
        output.stage(&format!("pareto/{}.toml", number + 1), scenario.as_bytes())?;
    }
    Ok(())
}

/// What each runtime would refuse of a plan.
fn runtimes(scenario: &Scenario, plan: &ir::Plan) -> BTreeMap<&'static str, Vec<String>> {
    let refused = |runtime: Runtime| {
        let problems = refused_by(runtime, plan, &scenario.model, &scenario.workload);
        (runtime.name(), problems.iter().map(ToString::to_string).collect())
    };
    Runtime::ALL.into_iter().map(refused).collect()
}
