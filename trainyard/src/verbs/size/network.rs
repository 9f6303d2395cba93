//! The bandwidth between nodes at which exchanges stop mattering: the step of a plan over the rate of its network.
//!
//! Exchanges *matter* by what they lengthen the step: a step less the same step on a network a thousand times as fast.
//! Formulae price them at every rate, since a measured curve holds at its own; the curve is then moved so that it passes
//! through the prediction.

use ir::{Activity, Plan, Problem};
use reports::show;

use super::trial;
use crate::job::Job;
use crate::results::{NetworkPoint, NetworkReport};
use crate::scenario::Loaded;
use crate::verbs::whatif::{self, Links, World};
use crate::{Context, Error, words};

/// Share of a step under which exchanges do not matter.
const UNSEEN: f64 = 0.01;
/// A network this many times as fast as it is counts as free.
const FREE: f64 = 1000.0;
/// Powers of two around the rate as it is that the curve shows.
const RANGE: std::ops::RangeInclusive<i32> = -6..=6;

/// The curve, and where it crosses.
pub(super) fn network(loaded: &Loaded, context: &Context<'_>) -> Result<NetworkReport, Error> {
    let cluster = &loaded.scenario.cluster;
    if cluster.nodes() < 2 {
        let problem = Problem::new("size.ask", "`network` asks about exchanges between nodes, and the cluster has one");
        return Err(loaded.error(vec![problem.hint("a cluster of two nodes or more")]));
    }
    context.step("size", 0, 0, "the plan whose network is asked for")?;
    let trial = trial::as_it_is(loaded, context)?;
    let curve = Curve::new(loaded, trial.plan, context)?;
    let mut points = Vec::new();
    for power in RANGE {
        points.push(curve.point(libm::exp2(f64::from(power)))?);
    }
    let compute_s = curve.compute_s;
    let unseen = curve.crossing(|point| point.exposed_share < UNSEEN)?;
    let as_compute = curve.crossing(|point| point.exposed_s <= compute_s)?;
    let present = curve.node_gbit_per_s;
    let here = curve.point(1.0)?;
    let words_of = |rate: Option<f64>| {
        rate.map_or_else(|| "no rate in the range".to_owned(), |rate| format!("{} Gb/s a node", show::number(rate)))
    };
    Ok(NetworkReport {
        question: format!(
            "{}: at which bandwidth between nodes do exchanges stop mattering?",
            loaded.scenario.model.name
        ),
        answer: format!(
            "From {} on, exchanges between nodes lengthen a step by less than 1 %; at {} they take as long as compute. With \
             {} Gb/s as it is they are {:.1} % of the step.",
            words_of(unseen),
            words_of(as_compute),
            show::number(present),
            here.exposed_share * 100.0
        ),
        plan: words::plan(&curve.plan),
        present_gbit_per_s: present,
        points,
        one_percent_gbit_per_s: unseen,
        as_compute_gbit_per_s: as_compute,
    })
}

/// The step of a plan by the rate of the network.
struct Curve<'a> {
    loaded: &'a Loaded,
    context: &'a Context<'a>,
    plan: Plan,
    /// The prediction over the same by formulae.
    anchor: f64,
    free_s: f64,
    compute_s: f64,
    node_gbit_per_s: f64,
}

impl<'a> Curve<'a> {
    fn new(loaded: &'a Loaded, plan: Plan, context: &'a Context<'a>) -> Result<Self, Error> {
        let job = Job::new(loaded, None)?;
        let scenario = &loaded.scenario;
        let world = World { model: &scenario.model, workload: &scenario.workload, cost: &job.cost };
        let prediction = world.evaluate(&plan).map_err(|infeasible| job.infeasible(infeasible))?;
        let spent = |activity| prediction.breakdown.of(activity).seconds();
        let nics = |group: &ir::NodeGroup| {
            let kind = scenario.cluster.node_kind(group.kind);
            f64::from(kind.nics) * kind.nic.bandwidth.get() * 8e-9
        };
        let mut curve = Self {
            loaded,
            context,
            plan,
            anchor: 1.0,
            free_s: 0.0,
            compute_s: spent(Activity::Compute) + spent(Activity::Recomputation),
            node_gbit_per_s: scenario.cluster.groups.iter().map(nics).fold(f64::INFINITY, f64::min),
        };
        curve.anchor = prediction.iteration.seconds() / curve.formula_s(1.0)?;
        curve.free_s = curve.formula_s(FREE)? * curve.anchor;
        Ok(curve)
    }

    /// The step by formulae at `factor` times the network's rate, seconds.
    fn formula_s(&self, factor: f64) -> Result<f64, Error> {
        self.context.step("size", 0, 0, format!("network x {factor:.3}"))?;
        let scenario = &self.loaded.scenario;
        let cluster = whatif::with_links(&scenario.cluster, Links::Network, factor);
        let cost = whatif::prices_on(self.loaded, cluster)?;
        let world = World { model: &scenario.model, workload: &scenario.workload, cost: &cost };
        let evaluation = world.evaluate(&self.plan);
        let prediction = evaluation
            .map_err(|no| Error::Infeasible { infeasible: Box::new(no), sources: self.loaded.sources.clone() })?;
        Ok(prediction.iteration.seconds())
    }

    fn point(&self, factor: f64) -> Result<NetworkPoint, Error> {
        let step_s = self.formula_s(factor)? * self.anchor;
        let exposed_s = (step_s - self.free_s).max(0.0);
        Ok(NetworkPoint {
            node_gbit_per_s: self.node_gbit_per_s * factor,
            step_s,
            exposed_s,
            exposed_share: exposed_s / step_s,
        })
    }

    /// The lowest rate in the range at which something holds that holds for all higher ones: a step never lengthens as its
    /// network speeds up. `None` if it holds nowhere in the range, or everywhere.
    fn crossing(&self, holds: impl Fn(&NetworkPoint) -> bool) -> Result<Option<f64>, Error> {
        let at = |power: f64| self.point(libm::exp2(power));
        let (mut low, mut high) = (f64::from(*RANGE.start()), f64::from(*RANGE.end()));
        if holds(&at(low)?) || !holds(&at(high)?) {
            return Ok(None);
        }
        // To 1 % of the rate.
        while high - low > 0.0144 {
            let middle = f64::midpoint(low, high);
            if holds(&at(middle)?) { high = middle } else { low = middle }
        }
        Ok(Some(self.node_gbit_per_s * libm::exp2(high)))
    }
}
