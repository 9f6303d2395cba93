//! A scenario ready to be worked on: its cost model, its plan, its program.

use std::sync::Arc;

use cost::{Calibration, CollectivePoints, CostModel, GraphUse, PrecisionClass, Profile, Stack, StackKey};
use ir::{Backend as _, Candidate, Infeasible, Plan, Prediction, Timeline, VerifiedProgram};
use reports::Metrics;
use sched::Start;
use sim::Simulator;

use crate::Error;
use crate::catalog::calibrations;
use crate::error::InputError;
use crate::facts;
use crate::policy::SearchLog;
use crate::progress::Context;
use crate::scenario::{CostChoice, Loaded, PlanChoice, PolicyName, Scenario};
use crate::source::Sources;

/// The cost model of a scenario. `measured` takes the place of the catalog's calibration of the same name, unless the
/// scenario names a file of its own.
pub(crate) fn cost_model(loaded: &Loaded, measured: Option<&Calibration>) -> Result<CostModel, Error> {
    let scenario = &loaded.scenario;
    let cluster = scenario.cluster.clone();
    let result = match &scenario.cost {
        CostChoice::PassTable(table) => CostModel::with_pass_table(cluster, table.clone()),
        CostChoice::Calibration { file, collectives, interference, profiles } => {
            let mut all: Vec<Calibration> = Vec::new();
            if let Some((name, text)) = file {
                all.push(Calibration::from_toml(text, name).map_err(|problems| {
                    let mut sources = loaded.sources.clone();
                    sources.add(name.clone(), text.clone());
                    Error::Input(InputError { problems, sources })
                })?);
            }
            all.extend(measured.cloned());
            all.extend(calibrations());
            // The first of a name counts.
            let mut names: Vec<String> = Vec::new();
            all.retain(|calibration| {
                let first = !names.contains(&calibration.name);
                names.push(calibration.name.clone());
                first
            });
            put_first(collectives, &mut all);
            if let Some(own) = interference {
                all.iter_mut().for_each(|calibration| calibration.interference.clone_from(own));
            }
            let stack = stack(loaded, &all)?;
            let profiles: Vec<Profile> = profiles.iter().map(|choice| choice.profile.clone()).collect();
            let model = CostModel::new(cluster, all).and_then(|model| match profiles.is_empty() {
                true => Ok(model),
                false => model.with_profiles(&profiles, &scenario.model),
            });
            model.map(|model| match stack {
                Some(stack) => model.with_stack(stack),
                None => model,
            })
        }
    };
    result.map(|model| model.with_terms(scenario.terms())).map_err(|problems| loaded.error(problems))
}

/// Puts the scenario's own measured collectives before those of every calibration: the first of a group counts.
fn put_first(collectives: &[CollectivePoints], calibrations: &mut [Calibration]) {
    if collectives.is_empty() {
        return;
    }
    for calibration in calibrations {
        let measured = calibration.measured.get_or_insert_default();
        measured.collectives.splice(0..0, collectives.iter().cloned());
    }
}

/// What is known of the software that a scenario names, by its own catalog and by the project's; `None` if it names none.
fn stack(loaded: &Loaded, calibrations: &[Calibration]) -> Result<Option<Stack>, Error> {
    let scenario = &loaded.scenario;
    let Some(key) = stack_key(scenario, calibrations) else { return Ok(None) };
    let known = crate::catalog::stacks();
    let Some((name, text)) = &scenario.stack.catalog else { return Ok(Some(known.resolve(&key))) };
    let own = cost::Stacks::from_toml(text, name).map_err(|problems| {
        let mut sources = loaded.sources.clone();
        sources.add(name.clone(), text.clone());
        Error::Input(InputError { problems, sources })
    })?;
    Ok(Some(crate::validate::bed::with(known, &own.stack).resolve(&key)))
}

fn stack_key(scenario: &Scenario, calibrations: &[Calibration]) -> Option<StackKey> {
    let class = scenario.stack.name.clone()?;
    let device = scenario.cluster.device_kinds.first()?;
    let calibration = calibrations.iter().find(|calibration| calibration.name == device.calibration);
    Some(StackKey {
        class,
        generation: calibration.map_or(device.calibration.as_str(), Calibration::generation).to_owned(),
        precision: PrecisionClass::of(scenario.workload.precision),
        experts: scenario.model.variants.experts.is_some(),
        graphs: if scenario.workload.recipe.cuda_graphs { GraphUse::Full } else { GraphUse::None },
        release: scenario.stack.release.clone(),
    })
}

/// What was decided.
#[derive(Clone, Debug)]
pub(crate) struct Decision {
    pub(crate) policy: &'static str,
    pub(crate) plan: Plan,
    pub(crate) prediction: Prediction,
    pub(crate) reasons: Vec<String>,
    pub(crate) others: Vec<Candidate>,
    pub(crate) search: SearchLog,
}

/// A scenario with its cost model.
#[derive(Debug)]
pub(crate) struct Job<'a> {
    pub(crate) loaded: &'a Loaded,
    pub(crate) cost: CostModel,
}

impl<'a> Job<'a> {
    pub(crate) fn new(loaded: &'a Loaded, measured: Option<&Calibration>) -> Result<Self, Error> {
        Ok(Self { loaded, cost: cost_model(loaded, measured)? })
    }
    /// The plan: the one written, or the one that the policy chooses.
    pub(crate) fn decide(&self, context: &Context<'_>) -> Result<Decision, Error> {
        match &self.loaded.scenario.plan {
            PlanChoice::Written(plan) => crate::policy::manual(self, plan, context),
            PlanChoice::Policy(PolicyName::Megatron, keys) => crate::policy::megatron(self, keys, context),
            PlanChoice::Policy(PolicyName::Exhaustive, keys) => crate::policy::exhaustive(self, keys, context),
            PlanChoice::Policy(PolicyName::DynProg, keys) => crate::policy::dynprog(self, keys, context),
            PlanChoice::Policy(PolicyName::Mcts, keys) => {
                crate::policy::mcts(self, (keys, PolicyName::Mcts, Start::Nothing), context)
            }
            PlanChoice::Policy(PolicyName::MctsSeeded, keys) => {
                crate::policy::mcts(self, (keys, PolicyName::MctsSeeded, Start::DynProg), context)
            }
            PlanChoice::Policy(PolicyName::Learned, keys) => crate::policy::learned(self, keys, context),
            PlanChoice::Policy(PolicyName::Random, keys) => crate::policy::random(self, keys, context),
        }
    }
    /// An error of reasons, with the places of the keys that they are about.
    pub(crate) fn infeasible(&self, infeasible: Infeasible) -> Error {
        let reasons = self.loaded.place(infeasible.reasons);
        let sources: Sources = self.loaded.sources.clone();
        Error::Infeasible { infeasible: Box::new(Infeasible { reasons, ..infeasible }), sources }
    }
    /// The verified program of a plan.
    pub(crate) fn program(&self, plan: &Plan) -> Result<Arc<VerifiedProgram>, Error> {
        let scenario = &self.loaded.scenario;
        let lowered = sched::lower(plan, &scenario.model, &scenario.workload, &scenario.cluster);
        let program = lowered.map_err(|reasons| self.infeasible(Infeasible { reasons, nearest: Vec::new() }))?;
        let verified = VerifiedProgram::new(program)
            .map_err(|reasons| self.infeasible(Infeasible { reasons, nearest: Vec::new() }))?;
        Ok(Arc::new(verified))
    }
    /// One simulated iteration.
    pub(crate) fn simulate(&self, program: &Arc<VerifiedProgram>) -> Result<Timeline, Error> {
        let mut simulator = Simulator::new(self.cost.clone());
        let refused = simulator.unsupported(program);
        if !refused.is_empty() {
            return Err(self.loaded.error(refused));
        }
        simulator.load(Arc::clone(program))?;
        Ok(simulator.iterate(0)?.timeline)
    }
    /// The numbers of a timeline of a plan's program.
    pub(crate) fn metrics(&self, plan: &Plan, program: &VerifiedProgram, timeline: &Timeline) -> Metrics {
        Metrics::of(
            program,
            timeline,
            Some(facts::rate(&self.loaded.scenario, plan)),
            &facts::capacity(&self.loaded.scenario, plan),
        )
    }
}
