//! What the step depends on: the same plan with one thing halved or doubled.

use cost::{CostModel, SHARED_MEMORY};
use ir::{Plan, Workload};

use super::Subject;
use crate::results::Sensitivity;
use crate::verbs::whatif::{self, Links, World};
use crate::{Context, Error};

/// One change of the world or the plan.
struct Otherwise {
    what: String,
    cost: Option<CostModel>,
    workload: Workload,
    plan: Plan,
    /// The step on links of these names as they are: what the changed one is compared with.
    anchor: f64,
    note: &'static str,
}

/// The list, in a fixed order.
pub(super) fn sensitivity(subject: &Subject<'_>, context: &Context<'_>) -> Result<Vec<Sensitivity>, Error> {
    let mut all = stragglers(subject)?;
    all.extend(links(subject)?);
    all.extend(devices(subject)?);
    all.extend(batches(subject));
    let mut rows = Vec::with_capacity(all.len());
    for (done, otherwise) in all.iter().enumerate() {
        context.step("what it depends on", done as u64, all.len() as u64, otherwise.what.as_str())?;
        rows.push(row(subject, otherwise));
    }
    Ok(rows)
}

fn row(subject: &Subject<'_>, otherwise: &Otherwise) -> Sensitivity {
    let world = World {
        workload: &otherwise.workload,
        cost: otherwise.cost.as_ref().unwrap_or(subject.world().cost),
        ..subject.world()
    };
    let before = subject.prediction.iteration.seconds();
    let tokens = |workload: &Workload| f64::from(workload.global_batch) * f64::from(workload.sequence_length);
    let rate = tokens(subject.world().workload) / before;
    match world.evaluate(&otherwise.plan) {
        Ok(prediction) => {
            let step = before * prediction.iteration.seconds() / otherwise.anchor;
            Sensitivity {
                what: otherwise.what.clone(),
                step_s: Some(step),
                step_change: Some(step / before - 1.0),
                tokens_per_second_change: Some(tokens(&otherwise.workload) / step / rate - 1.0),
                fits: whatif::fits(&prediction),
                note: otherwise.note.to_owned(),
            }
        }
        Err(infeasible) => Sensitivity {
            what: otherwise.what.clone(),
            step_s: None,
            step_change: None,
            tokens_per_second_change: None,
            fits: false,
            note: infeasible.reasons.iter().map(ToString::to_string).collect::<Vec<_>>().join("; "),
        },
    }
}

fn otherwise(subject: &Subject<'_>, what: impl Into<String>) -> Otherwise {
    Otherwise {
        what: what.into(),
        cost: None,
        workload: subject.world().workload.clone(),
        plan: subject.plan.clone(),
        anchor: subject.prediction.iteration.seconds(),
        note: "",
    }
}

/// Devices and network adapters that are slower than their like, as if they were not: what each kind of straggler costs.
fn stragglers(subject: &Subject<'_>) -> Result<Vec<Otherwise>, Error> {
    let cluster = subject.job.cost.cluster();
    let mut all = Vec::new();
    let mut push = |what: String, cluster: ir::Cluster| -> Result<(), Error> {
        let cost = whatif::prices_on(subject.job.loaded, cluster)?;
        all.push(Otherwise { cost: Some(cost), ..otherwise(subject, what) });
        Ok(())
    };
    for (index, slow) in cluster.device_kinds.iter().enumerate() {
        let like = |kind: &&ir::DeviceKind| kind.calibration == slow.calibration && kind.slowdown < slow.slowdown;
        let fastest = cluster.device_kinds.iter().filter(like).min_by(|a, b| a.slowdown.total_cmp(&b.slowdown));
        if let Some(fast) = fastest {
            let mut cluster = cluster.clone();
            cluster.device_kinds[index].slowdown = fast.slowdown;
            push(format!("{} as fast as {}", slow.name, fast.name), cluster)?;
        }
    }
    let network = |kind: &ir::NodeKind| f64::from(kind.nics) * kind.nic.bandwidth.get();
    for (index, slow) in cluster.node_kinds.iter().enumerate().filter(|_| cluster.nodes() > 1) {
        let like = |kind: &&ir::NodeKind| kind.devices.len() == slow.devices.len() && network(kind) > network(slow);
        let fastest = cluster.node_kinds.iter().filter(like).max_by(|a, b| network(a).total_cmp(&network(b)));
        if let Some(fast) = fastest {
            let mut cluster = cluster.clone();
            (cluster.node_kinds[index].nic, cluster.node_kinds[index].nics) = (fast.nic.clone(), fast.nics);
            push(format!("network of {} as fast as that of {}", slow.name, fast.name), cluster)?;
        }
    }
    Ok(all)
}

fn links(subject: &Subject<'_>) -> Result<Vec<Otherwise>, Error> {
    let (loaded, cluster) = (subject.job.loaded, subject.job.cost.cluster());
    let mut all = Vec::new();
    for (links, name) in [(Links::Network, "bandwidth between nodes"), (Links::Domain, "bandwidth inside domains")] {
        let shared = cluster.node_kinds.iter().any(|kind| kind.domain_link.name == SHARED_MEMORY);
        let absent = match links {
            Links::Network => cluster.nodes() < 2,
            Links::Domain => shared || cluster.node_kinds.iter().all(|kind| kind.devices.len() < 2),
        };
        if absent {
            continue;
        }
        let step = |factor: f64| -> Result<(CostModel, f64), Error> {
            let cost = whatif::prices_on(loaded, whatif::with_links(cluster, links, factor))?;
            let evaluation = World { cost: &cost, ..subject.world() }.evaluate(&subject.plan);
            let prediction = evaluation.map_err(|infeasible| subject.job.infeasible(infeasible))?;
            Ok((cost, prediction.iteration.seconds()))
        };
        let (_, anchor) = step(1.0)?;
        for (factor, words) in [(0.5, "halved"), (2.0, "doubled")] {
            let (cost, _) = step(factor)?;
            all.push(Otherwise {
                cost: Some(cost),
                anchor,
                note: "by formula, anchored at the prediction",
                ..otherwise(subject, format!("{name} {words}"))
            });
        }
    }
    Ok(all)
}

fn devices(subject: &Subject<'_>) -> Result<Vec<Otherwise>, Error> {
    let plan = &subject.plan;
    let mut cluster = subject.job.cost.cluster().clone();
    if !plan.placement.is_empty() || cluster.devices() > (1 << 19) {
        return Ok(Vec::new());
    }
    for group in &mut cluster.groups {
        group.count *= 2;
    }
    let cost = whatif::prices_on(subject.job.loaded, cluster)?;
    let twice = Otherwise { cost: Some(cost), ..otherwise(subject, "devices doubled, the batch as it is") };
    let wider = plan.clone().twice_replicas();
    let mut strong = Vec::new();
    if let Some(plan) = wider.clone().half_microbatches() {
        strong.push(Otherwise { plan, cost: twice.cost.clone(), ..otherwise(subject, twice.what.clone()) });
    }
    let mut workload = subject.world().workload.clone();
    workload.global_batch = workload.global_batch.saturating_mul(2);
    strong.push(Otherwise { plan: wider, workload, what: "devices and batch doubled".to_owned(), ..twice });
    Ok(strong)
}

fn batches(subject: &Subject<'_>) -> Vec<Otherwise> {
    let plan = &subject.plan;
    let mut all = Vec::new();
    if let Some(fewer) = plan.clone().half_microbatches() {
        let plan = Plan { microbatch_size: plan.microbatch_size * 2, ..fewer };
        all.push(Otherwise { plan, ..otherwise(subject, "microbatches doubled") });
    }
    if plan.microbatch_size.is_multiple_of(2) {
        let plan = Plan { microbatch_size: plan.microbatch_size / 2, ..plan.clone() }.times_microbatches(2);
        all.push(Otherwise { plan, ..otherwise(subject, "microbatches halved") });
    }
    let length = subject.world().workload.sequence_length;
    let mut push = |what: &str, sequence_length| {
        let workload = Workload { sequence_length, ..subject.world().workload.clone() };
        all.push(Otherwise { workload, ..otherwise(subject, what) });
    };
    push("sequences doubled", length.saturating_mul(2));
    if length.is_multiple_of(2) {
        push("sequences halved", length / 2);
    }
    all
}
