//! Devices by kind, rows of them for the positions of a pipeline, and what chunks take there.

use ir::program::Chunk;
use ir::{DeviceId, Plan, Recompute, StagePlan, ZeroStage};
use rustc_hash::FxHashMap;

use super::Question;
use super::pipeline::{Cut, Held, Rows, Stage};
use crate::aim::usable;
use crate::evaluate::{Evaluator, StageCost};

/// Devices of one kind in nodes of one kind, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(in crate::policies) struct Kind {
    pub(in crate::policies) name: String,
    pub(in crate::policies) devices: Vec<DeviceId>,
    /// How many of them a node has.
    per_node: u32,
}

impl Kind {
    /// Rows of so many devices whose groups lie alike: whole nodes, or equal parts of one; 0 if they do not.
    pub(in crate::policies) fn rows(&self, wide: u32) -> u32 {
        let alike = wide > 0 && (wide.is_multiple_of(self.per_node) || self.per_node.is_multiple_of(wide));
        if alike { u32::try_from(self.devices.len()).unwrap_or(u32::MAX) / wide } else { 0 }
    }
}

/// The kinds of the devices that may be used, in order. Nodes of which some are avoided are a kind of their own.
pub(in crate::policies) fn kinds(ask: &Question<'_>) -> Vec<Kind> {
    let mut found: Vec<((u32, u32, usize), Kind)> = Vec::new();
    let cluster = ask.cluster;
    for (device, of_node, left) in usable(cluster, &ask.aim.avoid) {
        let place = cluster.place(device);
        let key = (of_node.raw(), place.device_kind.raw(), left);
        let at = found.iter().position(|(known, _)| *known == key).unwrap_or_else(|| {
            let name = cluster.device_kind(place.device_kind).name.clone();
            found.push((key, Kind { name, devices: Vec::new(), per_node: 0 }));
            found.len() - 1
        });
        found[at].1.devices.push(device);
    }
    for (_, kind) in &mut found {
        let node = |device: &DeviceId| cluster.place(*device).node;
        let first = kind.devices.first().map(node);
        let of_first = kind.devices.iter().take_while(|device| Some(node(device)) == first).count();
        kind.per_node = u32::try_from(of_first).unwrap_or(u32::MAX);
    }
    found.into_iter().map(|(_, kind)| kind).collect()
}

/// Kinds of which more than these choices would take too long.
const FEW: usize = 3;

/// Which kinds are looked at together: all; where fewer devices may do, each choice of a few, or of many each alone.
pub(super) fn subsets(kinds: Vec<Kind>, fewer: bool) -> Vec<Vec<Kind>> {
    if !fewer || kinds.len() < 2 {
        return vec![kinds];
    }
    let choices = 1u32 << kinds.len().min(FEW);
    if kinds.len() > FEW {
        return kinds.iter().map(|kind| vec![kind.clone()]).chain([kinds.clone()]).collect();
    }
    let of = |choice: u32| (0u32..).zip(&kinds).filter(move |(at, _)| choice >> at & 1 == 1);
    (1..choices).map(|choice| of(choice).map(|(_, kind)| kind.clone()).collect()).collect()
}

/// Devices of one pipeline position.
pub(in crate::policies) fn wide(plan: &Plan) -> u32 {
    plan.replicas() * plan.tensor
}

/// Rows of each kind for a plan's positions.
pub(in crate::policies) fn rows(kinds: &[Kind], plan: &Plan) -> Vec<u32> {
    let wide = wide(plan);
    match kinds {
        [_] => vec![plan.pipeline()],
        kinds => kinds.iter().map(|kind| kind.rows(wide)).collect(),
    }
}

/// Whether a chunk at an end of the model has the embedding or the head.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Ends {
    Own,
    Left,
}

/// What chunks take under the degrees of a plan, on rows of each kind.
pub(in crate::policies) struct Priced<'a> {
    evaluator: &'a mut dyn Evaluator,
    /// By kind: the plan with every position on the first row of that kind.
    plans: Vec<Plan>,
    rows: Vec<u32>,
    layers: u32,
    /// Whether layers differ, so that it matters which a chunk holds.
    patterned: bool,
    recompute: Vec<Recompute>,
    known: FxHashMap<Held, Option<Stage>>,
    /// Whether positions stand for others, so that messages between them say nothing.
    placed: bool,
    /// Whether groups of all positions of a kind lie alike.
    alike: bool,
}

impl<'a> Priced<'a> {
    /// For the degrees of a plan and the recomputation that is looked at. On a cluster of one kind positions are where they
    /// are, else rows of a kind are as its first one.
    pub(in crate::policies) fn new(
        evaluator: &'a mut dyn Evaluator,
        (plan, recompute): (&Plan, &[Recompute]),
        kinds: &[Kind],
        (layers, patterned): (u32, bool),
    ) -> Self {
        let (wide, pipeline) = (wide(plan), plan.pipeline());
        let rows = rows(kinds, plan);
        let alike = kinds.iter().zip(&rows).all(|(kind, rows)| *rows == 0 || kind.rows(wide) > 0);
        let plans = kinds.iter().zip(&rows).map(|(kind, rows)| {
            let mut plan = plan.clone();
            if kinds.len() > 1 && *rows > 0 {
                let first = kind.devices.iter().take(wide as usize);
                plan.placement = (0..pipeline).flat_map(|_| first.clone().copied()).collect();
            }
            plan
        });
        let plans = plans.collect();
        let (recompute, known) = (recompute.to_vec(), FxHashMap::default());
        Self { evaluator, plans, rows, layers, patterned, recompute, known, placed: kinds.len() > 1, alike }
    }

    /// One replica alone on devices of a kind.
    pub(in crate::policies) fn of_one(
        evaluator: &'a mut dyn Evaluator,
        (plan, recompute): (&Plan, &[Recompute]),
        kind: &Kind,
        (layers, patterned): (u32, bool),
    ) -> Self {
        let mut plan = plan.clone();
        let row = kind.devices.iter().take(wide(&plan) as usize).copied().collect::<Vec<_>>();
        plan.placement = row.repeat(plan.stages.len());
        let rows = vec![plan.pipeline()];
        let (recompute, known) = (recompute.to_vec(), FxHashMap::default());
        Self { evaluator, plans: vec![plan], rows, layers, patterned, recompute, known, placed: true, alike: true }
    }

    /// A plan on the devices that it names, whatever their kinds.
    pub(in crate::policies) fn of_placed(
        evaluator: &'a mut dyn Evaluator,
        (plan, recompute): (&Plan, &[Recompute]),
        (layers, patterned): (u32, bool),
    ) -> Self {
        let rows = vec![plan.pipeline()];
        let (plans, recompute, known) = (vec![plan.clone()], recompute.to_vec(), FxHashMap::default());
        Self { evaluator, plans, rows, layers, patterned, recompute, known, placed: true, alike: false }
    }

    /// What the passes of one microbatch take at least through so many layers, on whatever row of a kind; 0 where that is
    /// not known.
    pub(in crate::policies) fn bare(&mut self, kind: usize, layers: u32) -> u64 {
        // With no more recomputation than there must be, and without the ends, unless it is the whole model.
        let pipeline = self.plans[kind].pipeline();
        let whole = pipeline == 1 && layers == self.layers;
        let alike = self.alike && (pipeline > 1 || whole);
        let Some(recompute) = self.recompute.first().copied().filter(|_| alike) else { return 0 };
        let recomputed = if recompute == Recompute::None { 0 } else { layers };
        let firsts = if self.patterned { 0..=self.layers - layers } else { 0..=0 };
        let ends = if whole { Ends::Own } else { Ends::Left };
        let time = |first| {
            let held = Held { position: 1.min(pipeline - 1), kind, first, layers };
            self.cost(held, (recompute, recomputed), ends).map_or(0, |cost| cost.forward.saturating_add(cost.backward))
        };
        firsts.map(time).min().unwrap_or(0)
    }

    fn cost(&mut self, held: Held, (recompute, recomputed): (Recompute, u32), ends: Ends) -> Option<StageCost> {
        let chunk = Chunk {
            stage: ir::StageId::new(held.position),
            first_layer: held.first,
            layers: held.layers,
            embedding: ends == Ends::Own && held.position == 0,
            head: ends == Ends::Own && held.first + held.layers == self.layers,
            recompute,
            recomputed_layers: recomputed,
        };
        self.evaluator.stage(&self.plans[held.kind], &chunk)
    }

    /// The fastest way to recompute what does not fit otherwise: of each mode, the fewest first layers that do.
    fn price(&mut self, held: Held) -> Option<Stage> {
        let mut best: Option<Stage> = None;
        for recompute in self.recompute.clone() {
            let Some((cost, recomputed)) = self.fewest(held, recompute) else { continue };
            let stage = Stage {
                forward: cost.forward,
                backward: cost.backward,
                input: cost.input,
                messages: if self.placed { 0 } else { cost.messages },
                step: cost.step,
                recompute,
                recomputed: recomputed.filter(|layers| *layers < held.layers),
            };
            let time = |stage: &Stage| stage.forward.saturating_add(stage.backward);
            if best.as_ref().is_none_or(|best| time(&stage) < time(best)) {
                best = Some(stage);
            }
            if recompute == Recompute::None {
                break;
            }
        }
        best
    }

    fn fewest(&mut self, held: Held, recompute: Recompute) -> Option<(StageCost, Option<u32>)> {
        let all = self.cost(held, (recompute, held.layers), Ends::Own)?;
        if !all.fits {
            return None;
        }
        // One mode for all layers was asked for.
        if recompute == Recompute::None || self.recompute.len() == 1 {
            return Some((all, None));
        }
        let (mut few, mut enough, mut best) = (0, held.layers, all);
        while enough - few > 1 {
            let middle = few + (enough - few) / 2;
            let cost = self.cost(held, (recompute, middle), Ends::Own)?;
            if cost.fits {
                (enough, best) = (middle, cost);
            } else {
                few = middle;
            }
        }
        Some((best, Some(enough)))
    }
}

impl Rows for Priced<'_> {
    fn rows(&self) -> &[u32] {
        &self.rows
    }

    fn stage(&mut self, held: Held) -> Option<Stage> {
        let ends = held.position == 0 || held.first + held.layers == self.layers;
        // Like layers are alike wherever they are.
        let key = if self.patterned || ends { held } else { Held { first: 1, ..held } };
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let found = self.price(held);
        self.known.insert(key, found);
        found
    }
}

/// A cut as a plan: rows of each kind are taken in order, and on a cluster of one kind ranks stay where they are.
pub(in crate::policies) fn placed(plan: &Plan, cut: &Cut, kinds: &[Kind]) -> Plan {
    let mut used = vec![0usize; kinds.len()];
    let wide = wide(plan) as usize;
    let mut placement = Vec::new();
    let stages = cut.iter().map(|(held, stage)| {
        let first = used[held.kind] * wide;
        used[held.kind] += 1;
        if kinds.len() > 1 {
            placement.extend_from_slice(&kinds[held.kind].devices[first..first + wide]);
        }
        let recompute_layers = stage.recomputed.filter(|_| stage.recompute != Recompute::None);
        StagePlan { layers: vec![held.layers], recompute: stage.recompute, recompute_layers, tensor: None }
    });
    let stages = stages.collect();
    // Of one kind ranks are where they were.
    let placement = if kinds.len() > 1 { placement } else { plan.placement.clone() };
    Plan { stages, placement, ..plan.clone() }
}

/// A plan whose replicas are each of one kind, as many as there are devices for, with how many of each.
pub(in crate::policies) fn of_kinds(kinds: &[Kind], plan: &Plan, batch: u32) -> Option<(Plan, Vec<u32>)> {
    let (tensor, pipeline) = (plan.tensor, plan.pipeline());
    let one = tensor * pipeline;
    let whole = |kind: &Kind| kind.rows(tensor) * tensor / one;
    let counts = kinds.iter().map(whole).collect::<Vec<_>>();
    let data = counts.iter().sum::<u32>();
    let microbatches = batch / plan.microbatch_size;
    let divides = batch.is_multiple_of(plan.microbatch_size);
    if !divides || microbatches < data || counts.iter().filter(|count| **count > 0).count() < 2 {
        return None;
    }
    let mut placement = Vec::with_capacity((data * one) as usize);
    for position in 0..pipeline {
        for (kind, count) in kinds.iter().zip(&counts) {
            let row = (count * tensor) as usize;
            let first = position as usize * row;
            placement.extend_from_slice(&kind.devices[first..first + row]);
        }
    }
    let plan = Plan {
        data,
        microbatches: microbatches.div_ceil(data),
        zero: if plan.zero == ZeroStage::Zero0 || data == 1 { ZeroStage::Zero0 } else { ZeroStage::Zero1 },
        overlap_gradients: data > 1,
        placement,
        ..plan.clone()
    };
    Some((plan, counts))
}
