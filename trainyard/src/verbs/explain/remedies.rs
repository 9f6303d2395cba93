//! The smallest change that makes a plan fit: single changes in the order of what they cost, then pairs with full
//! recomputation, which costs time and nothing else.

use ir::{Bytes, Cluster, DeviceKind, Plan, Recompute, ZeroStage};

use super::Subject;
use crate::catalog::Catalog;
use crate::results::Remedy;
use crate::verbs::whatif::{self, World};
use crate::{Context, Error, words};

/// A change of a plan, or of the devices under it.
struct Change {
    words: String,
    plan: Plan,
    device: Option<DeviceKind>,
}

impl Change {
    fn of(words: impl Into<String>, plan: Plan) -> Self {
        Self { words: words.into(), plan, device: None }
    }
}

/// Changes of one key each and what becomes of them, in the order of what they cost; pairs only if none of them fits.
pub(super) fn remedies(subject: &Subject<'_>, context: &Context<'_>) -> Result<Vec<Remedy>, Error> {
    let mut found = try_all(subject, singles(&subject.plan, subject), context)?;
    if found.iter().any(|remedy| remedy.fits && !remedy.other_devices) {
        return Ok(found);
    }
    let mut full = subject.plan.clone();
    recompute(&mut full, Recompute::Full, None);
    if full != subject.plan {
        let mut pairs = singles(&full, subject);
        for pair in &mut pairs {
            pair.words = format!("full recomputation and {}", pair.words);
        }
        found.extend(try_all(subject, pairs, context)?);
    }
    Ok(found)
}

/// The fastest that fits on the devices that are there, else the fastest that fits; of equally fast ones the first.
pub(super) fn fastest(remedies: &[Remedy]) -> Option<usize> {
    let fitting = remedies.iter().enumerate().filter(|(_, remedy)| remedy.fits);
    let time = |remedy: &Remedy| remedy.step_s.unwrap_or(f64::INFINITY);
    let order = |a: &Remedy, b: &Remedy| a.other_devices.cmp(&b.other_devices).then(time(a).total_cmp(&time(b)));
    fitting.min_by(|(_, a), (_, b)| order(a, b)).map(|(index, _)| index)
}

fn try_all(subject: &Subject<'_>, changes: Vec<Change>, context: &Context<'_>) -> Result<Vec<Remedy>, Error> {
    let mut tried = Vec::with_capacity(changes.len());
    for (done, change) in changes.iter().enumerate() {
        context.step("what would fit", done as u64, changes.len() as u64, change.words.as_str())?;
        tried.push(try_one(subject, change)?);
    }
    Ok(tried)
}

fn try_one(subject: &Subject<'_>, change: &Change) -> Result<Remedy, Error> {
    let other;
    let mut world = subject.world();
    if let Some(device) = &change.device {
        let cluster = with_device(world.cost.cluster(), device);
        other = whatif::prices_on(subject.job.loaded, cluster)?;
        world = World { cost: &other, ..world };
    }
    let before = subject.prediction.iteration.seconds();
    let remedy = Remedy {
        change: change.words.clone(),
        other_devices: change.device.is_some(),
        plan: words::plan(&change.plan),
        fits: false,
        step_s: None,
        slower: None,
        memory_share: None,
        reason: String::new(),
    };
    Ok(match world.evaluate(&change.plan) {
        Err(infeasible) => {
            let reasons: Vec<String> = infeasible.reasons.iter().map(ToString::to_string).collect();
            Remedy { reason: format!("not legal: {}", reasons.join("; ")), ..remedy }
        }
        Ok(prediction) => {
            let problems = sched::memory_problems(&prediction);
            let reason = problems.first().map_or_else(String::new, |p| format!("{} {}", p.subject, p.message));
            Remedy {
                fits: problems.is_empty(),
                step_s: Some(prediction.iteration.seconds()),
                slower: Some(prediction.iteration.seconds() / before - 1.0),
                memory_share: Some(whatif::fullest(&prediction)),
                reason,
                ..remedy
            }
        }
    })
}

fn singles(plan: &Plan, subject: &Subject<'_>) -> Vec<Change> {
    let mut changes = Vec::new();
    more_recomputation(plan, &mut changes);
    more_sharding(plan, &mut changes);
    smaller_microbatches(plan, &mut changes);
    larger_degrees(plan, &mut changes);
    offloading(plan, &mut changes);
    larger_devices(plan, subject, &mut changes);
    changes
}

fn recompute(plan: &mut Plan, how: Recompute, layers: Option<u32>) {
    for stage in &mut plan.stages {
        (stage.recompute, stage.recompute_layers) = (how, layers);
    }
}

fn more_recomputation(plan: &Plan, changes: &mut Vec<Change>) {
    let least = plan.stages.iter().map(|stage| stage.recompute).min().unwrap_or(Recompute::None);
    let part = plan.stages.iter().any(|stage| stage.recompute_layers.is_some());
    let deepest = plan.stages.iter().flat_map(|stage| &stage.layers).copied().max().unwrap_or(0);
    let mut push = |words: String, how, layers| {
        let mut changed = plan.clone();
        recompute(&mut changed, how, layers);
        changes.push(Change::of(words, changed));
    };
    if least < Recompute::Selective {
        push("selective recomputation".to_owned(), Recompute::Selective, None);
    }
    if least < Recompute::Full {
        for (share, layers) in [("a quarter", deepest.div_ceil(4)), ("half", deepest.div_ceil(2))] {
            if layers > 0 && layers < deepest {
                push(format!("full recomputation of {share} of the layers"), Recompute::Full, Some(layers));
            }
        }
    }
    if least < Recompute::Full || part {
        push("full recomputation".to_owned(), Recompute::Full, None);
    }
}

fn more_sharding(plan: &Plan, changes: &mut Vec<Change>) {
    if plan.replicas() < 2 {
        return;
    }
    for zero in ZeroStage::ALL.into_iter().filter(|zero| *zero > plan.zero) {
        changes.push(Change::of(format!("ZeRO-{}", zero.number()), Plan { zero, ..plan.clone() }));
    }
}

fn smaller_microbatches(plan: &Plan, changes: &mut Vec<Change>) {
    let (mut size, mut count) = (plan.microbatch_size, plan.microbatches);
    while size > 1 && size.is_multiple_of(2) && count <= u32::MAX / 2 {
        (size, count) = (size / 2, count * 2);
        let changed = Plan { microbatch_size: size, ..plan.clone() }.times_microbatches(plan.microbatch_size / size);
        changes.push(Change::of(format!("microbatches of {size}"), changed));
    }
}

/// Degrees doubled at the expense of replicas, whose microbatches become more.
fn larger_degrees(plan: &Plan, changes: &mut Vec<Change>) {
    for factor in [2, 4, 8] {
        // Which replicas would go is not guessed where they differ.
        let equal = plan.shares.are_equal();
        if !equal || !plan.data.is_multiple_of(factor) || plan.microbatches > u32::MAX / factor {
            continue;
        }
        let fewer = Plan { data: plan.data / factor, microbatches: plan.microbatches * factor, ..plan.clone() };
        let tensor = plan.tensor * factor;
        let degrees = plan.tensors().map(|tensor| tensor * factor).collect::<Vec<_>>();
        let changed = Plan { sequence_parallel: true, ..fewer.clone() }.with_tensors(&degrees);
        changes.push(Change::of(format!("tensor degree {tensor} in place of replicas"), changed));
        if let Some(stages) = deeper(plan, factor) {
            let pipeline = stages.len();
            let changed = Plan { stages, ..fewer.clone() };
            changes.push(Change::of(format!("pipeline degree {pipeline} in place of replicas"), changed));
        }
        let mut changed = fewer;
        changed.mesh.context *= factor;
        let context = changed.mesh.context;
        changes.push(Change::of(format!("context degree {context} in place of replicas"), changed));
    }
}

/// Each stage cut into `factor` equal ones, where its layers divide.
fn deeper(plan: &Plan, factor: u32) -> Option<Vec<ir::StagePlan>> {
    let divides = |layers: &u32| *layers > 0 && layers.is_multiple_of(factor);
    if !plan.stages.iter().flat_map(|stage| &stage.layers).all(divides) {
        return None;
    }
    let cut = |stage: &ir::StagePlan| {
        let layers = stage.layers.iter().map(|layers| layers / factor).collect();
        vec![ir::StagePlan { layers, ..stage.clone() }; factor as usize]
    };
    Some(plan.stages.iter().flat_map(cut).collect())
}

fn offloading(plan: &Plan, changes: &mut Vec<Change>) {
    let sharing = plan.sharing;
    if !sharing.offload_optimizer {
        let sharing = ir::Sharing { offload_optimizer: true, ..sharing };
        changes.push(Change::of("optimizer state in host memory", Plan { sharing, ..plan.clone() }));
    }
    if !sharing.offload_activations {
        let sharing = ir::Sharing { offload_activations: true, ..sharing };
        changes.push(Change::of("activations in host memory", Plan { sharing, ..plan.clone() }));
    }
}

/// Devices of the catalog with more memory in place of those that are over theirs, no slower, joined by the same family
/// of links: of the same line first, then those that hold what is needed, smallest first.
fn larger_devices(plan: &Plan, subject: &Subject<'_>, changes: &mut Vec<Change>) {
    const MOST: usize = 3;
    let cluster = subject.job.cost.cluster();
    let over = subject.prediction.memory.iter().filter(|stage| stage.peak > stage.capacity);
    let Some(worst) = over.max_by_key(|stage| stage.peak) else { return };
    let present = cluster.device_kind(cluster.place(worst.device).device_kind);
    let (needed, precision) = (worst.peak, subject.job.loaded.scenario.workload.precision);
    let line = |name: &str| name.split('-').next().unwrap_or_default().to_owned();
    let catalog = Catalog::embedded();
    let mut others: Vec<&DeviceKind> = catalog.devices.iter().collect();
    others.retain(|device| device.memory > present.memory && device.peak(precision).is_some());
    let family = |link: &str| link.chars().take_while(char::is_ascii_alphabetic).collect::<String>();
    let joined = family(&cluster.node_kind(cluster.place(worst.device).node_kind).domain_link.name);
    let in_family = |device: &str| {
        let mut nodes = catalog.nodes.iter().filter(|node| family(&node.domain_link) == joined);
        nodes.any(|node| node.devices.iter().any(|name| name == device))
    };
    let rate = |device: &DeviceKind| device.peak(precision).map_or(0.0, ir::FlopsPerSecond::get);
    // A slower device is no remedy that anybody asks for.
    others.retain(|device| in_family(&device.name) && rate(device) >= rate(present));
    let same_line = |device: &&DeviceKind| line(&device.name) == line(&present.name);
    others.retain(|device| same_line(device) || device.memory >= Bytes::new(needed.get()));
    others.sort_by_key(|device| (!same_line(device), device.memory, device.name.clone()));
    for device in others.into_iter().take(MOST) {
        let words = format!("{} with {:.0} GiB in place of {}", device.name, device.memory.gib(), present.name);
        changes.push(Change { words, plan: plan.clone(), device: Some(device.clone()) });
    }
}

/// The cluster with one kind of device throughout.
fn with_device(cluster: &Cluster, device: &DeviceKind) -> Cluster {
    let mut cluster = cluster.clone();
    for node in &mut cluster.node_kinds {
        node.devices.fill(ir::DeviceKindId::at(0));
    }
    cluster.device_kinds = vec![device.clone()];
    cluster
}
