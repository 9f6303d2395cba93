//! A naive twin of the planners that search: it tries everything, without a thought, in cases small enough.

use ir::{Bytes, Plan, Recompute, Schedule, StagePlan, Workload, ZeroStage};
use ir::{Cluster, DeviceId, Fabric, FeedForward, LayerRun, Mixer, Model, NodeGroup, NodeKindId};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::Question;
use super::exhaustive::{Numbered, Space};
use crate::aim::fits;
use crate::evaluate::{ClosedForm, Evaluator};
use crate::testing::{device, node, random, small_model, with_experts, workload};

/// A small question with a small space.
pub(super) struct Case {
    pub(super) model: Model,
    pub(super) work: Workload,
    pub(super) cluster: Cluster,
    pub(super) space: Space,
}

impl Case {
    /// The one of a seed: every second on unlike devices, every third with experts.
    pub(super) fn draw(seed: u64) -> Self {
        let rng = &mut random(seed ^ 0x7713);
        let layers = rng.random_range(3..6);
        let mut model = small_model(layers);
        (model.hidden, model.ffn, model.head_dim) = (1024, 4096, 128);
        let experts = seed.is_multiple_of(3);
        if experts {
            let dense = rng.random_range(0..2);
            let run = |layers, feed_forward| LayerRun { layers, mixer: Mixer::Attention, feed_forward };
            let pattern = [run(dense, FeedForward::Dense), run(layers - dense, FeedForward::Experts)];
            model = with_experts(model, &pattern[usize::from(dense == 0)..]);
            model.variants.experts.as_mut().unwrap().ffn = 2048;
        }
        let cluster = if seed.is_multiple_of(2) { unlike(rng) } else { like(rng) };
        let schedules = [Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1, Schedule::GPipe];
        let space = Space {
            tensor: vec![[1, 2][rng.random_range(0..2)]],
            pipeline: vec![1, 2, 3],
            context: vec![1],
            expert: if experts { vec![1, 2] } else { vec![1] },
            microbatch_size: vec![[1, 2][rng.random_range(0..2)]],
            chunks: vec![1, 2],
            schedules: vec![schedules[rng.random_range(0..3)].clone()],
            zero: vec![ZeroStage::Zero1, ZeroStage::Zero0],
            ..Space::default()
        };
        let work = workload([512, 1024][rng.random_range(0..2)], [8, 12, 16][rng.random_range(0..3)]);
        let mut case = Self { model, work, cluster, space };
        // A memory in which some plans fit and some do not.
        let share = rng.random_range(0.2..1.2);
        for kind in &mut case.cluster.device_kinds {
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some bytes")]
            let bytes = (share * rng.random_range(4.0..6.0) * f64::from(1u32 << 30)) as u64;
            kind.memory = Bytes::new(bytes);
        }
        case
    }

    pub(super) fn words(&self) -> String {
        let kinds = self.cluster.device_kinds.iter().map(|kind| format!("{:.2}", kind.slowdown)).collect::<Vec<_>>();
        let sizes = self.cluster.groups.iter().map(|group| {
            let node = self.cluster.node_kind(group.kind);
            format!("{} x {}", group.count, node.devices.len())
        });
        format!(
            "{} layers{}, batch {}, nodes {}, slowdown {}, {:?}",
            self.model.layers,
            if self.model.variants.experts.is_some() { " with experts" } else { "" },
            self.work.global_batch,
            sizes.collect::<Vec<_>>().join(" + "),
            kinds.join(" "),
            self.space
        )
    }
}

/// One node or two, of four or eight devices in all.
fn like(rng: &mut ChaCha8Rng) -> Cluster {
    let (count, wide) = [(1, 8), (2, 4), (1, 4), (2, 2)][rng.random_range(0..4)];
    Cluster {
        device_kinds: vec![device("one", 80)],
        node_kinds: vec![node("one", &vec![0; wide], u32::try_from(wide).unwrap(), 4)],
        groups: vec![NodeGroup { kind: NodeKindId::new(0), count }],
        fabric: Fabric::one_switch(),
    }
}

/// Two nodes, the second of devices some times slower.
fn unlike(rng: &mut ChaCha8Rng) -> Cluster {
    let mut slow = device("slow", 80);
    slow.slowdown = rng.random_range(1.2..3.0);
    let group = |kind| NodeGroup { kind: NodeKindId::new(kind), count: 1 };
    let (first, second) = [(4, 4), (4, 2), (2, 4), (2, 2)][rng.random_range(0..4)];
    let wide = |devices: usize| u32::try_from(devices).unwrap();
    Cluster {
        device_kinds: vec![device("quick", 80), slow],
        node_kinds: vec![
            node("quick", &vec![0; first], wide(first), 4),
            node("slow", &vec![1; second], wide(second), 4),
        ],
        groups: vec![group(0), group(1)],
        fabric: Fabric::one_switch(),
    }
}

/// Every way to give layers to so many stages.
fn splits(layers: u32, stages: u32) -> Vec<Vec<u32>> {
    if stages == 1 {
        return vec![vec![layers]];
    }
    let of = |first: u32| splits(layers - first, stages - 1).into_iter().map(move |rest| [vec![first], rest].concat());
    (1..=layers + 1 - stages).flat_map(of).collect()
}

/// Stages of a split with every recomputation.
fn recomputed(split: &[u32]) -> Vec<Vec<StagePlan>> {
    let Some((first, rest)) = split.split_first() else { return vec![Vec::new()] };
    let rest = recomputed(rest);
    let modes = [Recompute::None, Recompute::Selective, Recompute::Full];
    let stage = |recompute| StagePlan { layers: vec![*first], recompute, recompute_layers: None, tensor: None };
    modes.into_iter().flat_map(|mode| rest.iter().map(move |rest| [vec![stage(mode)], rest.clone()].concat())).collect()
}

/// Keeps the least time of what fits.
struct Least<'a, 'b> {
    closed: &'a mut ClosedForm<'b>,
    best: Option<u64>,
}

impl Least<'_, '_> {
    fn take(&mut self, plan: &Plan) {
        if let Ok(found) = self.closed.evaluate(plan)
            && fits(&found)
        {
            let time = found.iteration.nanoseconds();
            self.best = Some(self.best.map_or(time, |best| best.min(time)));
        }
    }
}

/// Devices of each node.
fn nodes(cluster: &Cluster) -> Vec<Vec<DeviceId>> {
    let mut first = 0u32;
    let mut found = Vec::new();
    for group in &cluster.groups {
        let wide = u32::try_from(cluster.node_kind(group.kind).devices.len()).unwrap();
        for _ in 0..group.count {
            found.push((first..first + wide).map(DeviceId::new).collect());
            first += wide;
        }
    }
    found
}

/// The least time of a question in a space, in nanoseconds: of all uniform plans, all cuts with every recomputation of every
/// stage on every assignment of kinds to stages, and replicas of one kind each with all shares. `None` if nothing fits.
pub(super) fn brute(space: &Space, ask: &Question<'_>, closed: &mut ClosedForm<'_>) -> Option<u64> {
    let mut least = Least { closed, best: None };
    let numbered = Numbered::new(space, ask);
    for number in 0..numbered.count() {
        least.take(&numbered.plan(number));
    }
    let experts = ask.model.variants.experts.as_ref().map_or(vec![1], |_| space.expert.clone());
    for pipeline in space.pipeline.iter().copied().filter(|pipeline| *pipeline <= ask.model.layers) {
        let keys = space.tensor.iter().flat_map(|t| space.microbatch_size.iter().map(move |b| (*t, *b)));
        for ((tensor, size), expert) in keys.flat_map(|keys| experts.iter().map(move |expert| (keys, *expert))) {
            for (zero, parallel) in space.zero.iter().flat_map(|zero| [(*zero, true), (*zero, false)]) {
                if parallel && tensor == 1 {
                    continue;
                }
                for stages in splits(ask.model.layers, pipeline).iter().flat_map(|split| recomputed(split)) {
                    let plan = Plan {
                        data: 1,
                        tensor,
                        sequence_parallel: parallel,
                        stages,
                        microbatch_size: size,
                        microbatches: 1,
                        shares: ir::Shares::EQUAL,
                        schedule: space.schedules[0].clone(),
                        zero,
                        overlap_gradients: false,
                        collective: ir::CollectiveAlgorithm::Automatic,
                        mesh: ir::Mesh { expert, ..ir::Mesh::default() },
                        sharing: ir::Sharing::default(),
                        placement: Vec::new(),
                    };
                    rows(&plan, ask, &mut least);
                    if ask.cluster.device_kinds.len() > 1 {
                        replicas(&plan, ask, &mut least);
                    }
                }
            }
        }
    }
    least.best
}

/// Every number of replicas and every assignment of kinds to the positions of a plan.
fn rows(plan: &Plan, ask: &Question<'_>, least: &mut Least<'_, '_>) {
    let (pipeline, batch) = (plan.pipeline(), ask.workload.global_batch);
    let (nodes, all) = (nodes(ask.cluster), ask.cluster.devices());
    let several = ask.cluster.device_kinds.len() > 1;
    for data in (1..=u32::try_from(all).unwrap()).filter(|data| batch.is_multiple_of(data * plan.microbatch_size)) {
        let zero = if data > 1 { plan.zero } else { ZeroStage::Zero0 };
        let plan = Plan { data, zero, overlap_gradients: data > 1, ..plan.clone() };
        let plan = plan.clone().with_shares(vec![batch / data / plan.microbatch_size]);
        let row = (data * plan.tensor) as usize;
        if plan.world() > all || (several && 2 * plan.world() <= all) {
            continue;
        }
        if !several {
            least.take(&plan);
            continue;
        }
        let alike = |node: &Vec<DeviceId>| row.is_multiple_of(node.len()) || node.len().is_multiple_of(row);
        for kinds in 0..1u32 << pipeline {
            let mut left = nodes.clone();
            let rows = (0..pipeline).map(|position| {
                let kind = (kinds >> position & 1) as usize;
                let there = alike(&nodes[kind]) && left[kind].len() >= row;
                there.then(|| left[kind].drain(..row).collect::<Vec<_>>())
            });
            if let Some(rows) = rows.collect::<Option<Vec<_>>>() {
                least.take(&Plan { placement: rows.concat(), ..plan.clone() });
            }
        }
    }
}

/// Replicas of one kind each, as many as there are devices for, with all shares.
fn replicas(plan: &Plan, ask: &Question<'_>, least: &mut Least<'_, '_>) {
    let (pipeline, tensor) = (plan.pipeline(), plan.tensor);
    let nodes = nodes(ask.cluster);
    let of = |node: &Vec<DeviceId>| u32::try_from(node.len()).unwrap() / (tensor * pipeline);
    let counts = nodes.iter().map(of).collect::<Vec<_>>();
    let batch = ask.workload.global_batch / plan.microbatch_size;
    if plan.mesh.expert > 1 || counts.contains(&0) || !ask.workload.global_batch.is_multiple_of(plan.microbatch_size) {
        return;
    }
    let mut placement = Vec::new();
    for position in 0..pipeline {
        for (node, count) in nodes.iter().zip(&counts) {
            let wide = (count * tensor) as usize;
            placement.extend_from_slice(&node[position as usize * wide..(position as usize + 1) * wide]);
        }
    }
    for first in 1..=batch / counts[0] {
        let rest = batch - first * counts[0];
        if rest > 0 && rest.is_multiple_of(counts[1]) {
            let shares = [vec![first; counts[0] as usize], vec![rest / counts[1]; counts[1] as usize]].concat();
            let data = counts.iter().sum();
            let plan = Plan { data, overlap_gradients: true, placement: placement.clone(), ..plan.clone() };
            least.take(&plan.with_shares(shares));
        }
    }
}
