//! Questions of the form "and if it were otherwise?": a plan priced again with one thing changed.

use std::sync::Arc;

use cost::CostModel;
use ir::{BytesPerSecond, Cluster, DeviceKindId, Evaluation, Link, Model, Plan, Prediction, Workload};
use reports::sizing::Interval;
use sched::{ClosedForm, Evaluator as _, Relief};

use crate::Error;
use crate::job::cost_model;
use crate::progress::Context;
use crate::scenario::{CostChoice, Loaded, Scenario};

/// What a plan is priced for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct World<'a> {
    pub(crate) model: &'a Model,
    pub(crate) workload: &'a Workload,
    pub(crate) cost: &'a CostModel,
}

impl World<'_> {
    /// A plan in the closed form.
    pub(crate) fn evaluate(self, plan: &Plan) -> Evaluation {
        self.without(plan, Relief::Nothing)
    }
    /// A plan in the closed form, with a part that costs nothing.
    pub(crate) fn without(self, plan: &Plan, relief: Relief) -> Evaluation {
        ClosedForm::new(self.model, self.workload, self.cost).relieved(relief).evaluate(plan)
    }
}

/// The same scenario otherwise.
pub(crate) fn changed(loaded: &Loaded, change: impl FnOnce(&mut Scenario)) -> Loaded {
    let mut loaded = loaded.clone();
    change(&mut loaded.scenario);
    loaded
}

/// Prices on another cluster, by what the scenario's prices rest on.
///
/// # Errors
/// What [`cost_model`] says of the cluster's devices.
pub(crate) fn prices_on(loaded: &Loaded, cluster: Cluster) -> Result<CostModel, Error> {
    cost_model(&changed(loaded, |scenario| scenario.cluster = cluster), None)
}

/// A context that stops with this one and tells nobody.
pub(crate) fn quiet<'a>(context: &Context<'_>) -> Context<'a> {
    Context::new(Arc::clone(&context.interrupt), |_| {})
}

/// Links that a change can make faster or slower.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Links {
    /// Those between nodes: network adapters and up-links.
    Network,
    /// Those inside a domain.
    Domain,
}

/// The cluster with links at `factor` times their rate. They get names of their own: curves that were measured on the links
/// as they are do not hold, and formulae take their place. To be compared with factor 1, which changes the names too.
pub(crate) fn with_links(cluster: &Cluster, links: Links, factor: f64) -> Cluster {
    let scale = |link: &mut Link| {
        link.name = format!("{} x {factor}", link.name);
        link.bandwidth = BytesPerSecond::new(link.bandwidth.get() * factor).unwrap_or(link.bandwidth);
    };
    let mut cluster = cluster.clone();
    for kind in &mut cluster.node_kinds {
        match links {
            Links::Network => scale(&mut kind.nic),
            Links::Domain => scale(&mut kind.domain_link),
        }
    }
    if links == Links::Network {
        cluster.fabric.up_link.iter_mut().for_each(scale);
    }
    cluster
}

/// Kinds of the devices that a plan uses, in order.
pub(crate) fn kinds_of(cluster: &Cluster, plan: &Plan) -> Vec<DeviceKindId> {
    let mut kinds: Vec<DeviceKindId> = if plan.placement.is_empty() {
        let mut left = plan.world();
        let mut kinds = Vec::new();
        for group in &cluster.groups {
            let node = &cluster.node_kind(group.kind).devices;
            kinds.extend(node.iter().take(usize::try_from(left).unwrap_or(usize::MAX)));
            left = left.saturating_sub(u64::from(group.count) * node.len() as u64);
        }
        kinds
    } else {
        plan.placement.iter().map(|device| cluster.place(*device).device_kind).collect()
    };
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// An iteration with its 90 % interval, in seconds: the prediction's own, else what the cost model knows of its spread.
pub(crate) fn seconds(cost: &CostModel, plan: &Plan, prediction: &Prediction) -> Interval {
    let expected = prediction.iteration.seconds();
    let (low, high) = match prediction.interval {
        Some((low, high)) => (low.seconds(), high.seconds()),
        None => cost.spread(&kinds_of(cost.cluster(), plan), prediction).interval(expected),
    };
    Interval { low, expected, high }
}

/// Whether every stage's peak is within its device's memory.
pub(crate) fn fits(prediction: &Prediction) -> bool {
    prediction.memory.iter().all(|stage| stage.peak <= stage.capacity)
}

/// The largest share of its memory that a stage takes.
pub(crate) fn fullest(prediction: &Prediction) -> f64 {
    let share = |stage: &ir::StageMemory| stage.peak.get() as f64 / stage.capacity.get().max(1) as f64;
    prediction.memory.iter().map(share).fold(0.0, f64::max)
}

/// What to say where no software is named: nothing is added for it.
pub(crate) fn unnamed_stack(loaded: &Loaded) -> Option<String> {
    let scenario = &loaded.scenario;
    let plain = scenario.stack.name.is_none() && matches!(scenario.cost, CostChoice::Calibration { .. });
    plain.then(|| {
        "No software stack is named (training.stack): kernels are priced alone, and the interval is the hardware's own. \
         Measured steps of training software are longer."
            .to_owned()
    })
}

/// How far a time may be off, and why, in words.
fn spread(spread: cost::Spread) -> String {
    let causes: Vec<String> =
        spread.causes().into_iter().map(|(cause, of)| format!("{} {of:.3}", cause.name())).collect();
    let (below, above) = (spread.below(), spread.above());
    let range =
        if above - below < 5e-4 { format!("{above:.3}") } else { format!("{below:.3} below, {above:.3} above") };
    format!("{range} (standard deviation of the logarithm: {})", causes.join(", "))
}

/// On what prices rest, as a page states it: stack, shares by basis, what is assumed.
pub(crate) fn basis(loaded: &Loaded, cost: &CostModel, plan: &Plan, prediction: &Prediction) -> Vec<(String, String)> {
    let scenario = &loaded.scenario;
    let basis = &prediction.basis;
    let share = |share: f64| format!("{:.1} %", share * 100.0);
    let stack = cost.stack();
    let mut rows = vec![
        ("trainyard".to_owned(), env!("CARGO_PKG_VERSION").to_owned()),
        ("durations measured".to_owned(), share(basis.measured)),
        ("durations interpolated".to_owned(), share(basis.interpolated)),
        ("durations from formulas".to_owned(), share(basis.analytic)),
        ("durations assumed".to_owned(), share(basis.assumed)),
        ("spread".to_owned(), spread(cost.spread(&kinds_of(cost.cluster(), plan), prediction))),
    ];
    if stack.rows > 0 {
        let tables = stack.tables.join(", ");
        rows.push(("stack rests on".to_owned(), format!("{} measured rows of {tables}", stack.rows)));
    } else {
        let words = "none is calibrated: the spread is the hardware's own, and software adds nothing";
        rows.push((
            "stack".to_owned(),
            scenario.stack.name.clone().map_or_else(|| words.to_owned(), |n| format!("{n}: {words}")),
        ));
    }
    // What is assumed is said of the program, which a plan that is not legal here does not have.
    if let Ok(program) = sched::lower(plan, &scenario.model, &scenario.workload, cost.cluster()) {
        rows.extend(cost.assumptions(&program).into_iter().map(|note| ("assumed".to_owned(), note)));
    }
    rows
}
