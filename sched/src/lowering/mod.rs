//! From a plan to a program.
//!
//! Each pipeline position gets one instruction list from its row of the schedule's grid. Ranks of a position that are not
//! alike (unlike devices, paths, or loads of the links they share) get a role of their own with the same list: see
//! `colour`. So a program is as large as its distinct roles, however many ranks carry them out.

mod colour;
mod divided;
mod emit;
mod end;
mod groups;
mod held;
mod reductions;
mod template;

#[cfg(test)]
mod tests;

use cost::memory;
use ir::counts::{HeldParameters, Shape, held_parameters, message_bytes};
use ir::grid::{Action, Grid};
use ir::program::{Chunk, Direction, Layout, RankSet};
use ir::{
    Bytes, ChunkId, Cluster, MicrobatchId, Model, Op, Plan, Problem, Program, Rank, Role, RoleId, VocabularyDivision,
    Workload,
};
use rustc_hash::FxHashMap;

use crate::across::Across;
use crate::axes;
use crate::layout::{chunks, layout};
use crate::legality;
use crate::passes::{Bucket, buckets};
use crate::schedules::{self, Order};
use crate::shares::{Turn, turns};
use crate::vocabulary::{self, Event};
use emit::Emitter;
use groups::Groups;
pub(crate) use reductions::{OverReplicas, Reductions};
pub(crate) use template::{Runs, Templates, runs};

/// Whether like ranks share a role.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Folding {
    /// They do: the program is as large as its distinct roles.
    Folded,
    /// Every rank has a role of its own.
    Flat,
}

/// Lowers a plan.
///
/// # Errors
/// Every reason why the plan is not legal ([`legality::legal`]), or that the program would be too large because nearly
/// every rank is in a place unlike the others'.
pub fn lower(plan: &Plan, model: &Model, workload: &Workload, cluster: &Cluster) -> Result<Program, Vec<Problem>> {
    lower_as(Folding::Folded, plan, model, workload, cluster)
}

/// Lowers a plan to a folded or to a flat program.
///
/// # Errors
/// Every reason why the plan is not legal ([`legality::legal`]), or that the program would be too large.
pub fn lower_as(
    folding: Folding,
    plan: &Plan,
    model: &Model,
    workload: &Workload,
    cluster: &Cluster,
) -> Result<Program, Vec<Problem>> {
    let problems = legality::legal(plan, model, workload, cluster);
    if !problems.is_empty() {
        return Err(problems);
    }
    let layout = layout(plan);
    let chunks = chunks(plan);
    let lowering = Lowering::new(plan, model, workload, &layout, &chunks)?;
    lowering.program(folding, cluster)
}

/// The most instructions of all roles together: some gigabytes.
const MOST_INSTRUCTIONS: u64 = 1 << 24;

/// Everything that the lists of all positions share.
pub(crate) struct Lowering<'a> {
    plan: &'a Plan,
    model: &'a Model,
    workload: &'a Workload,
    layout: &'a Layout,
    /// As each position has it.
    layouts: Vec<Layout>,
    chunks: &'a [Chunk],
    /// Those that hold layers.
    layers: &'a [Chunk],
    reductions: Reductions<'a>,
    templates: Vec<Templates>,
    /// By chunk.
    last: Vec<LastPass>,
    /// What replicas do, each way once.
    courses: Vec<Course>,
    /// Of each replica, which of those it goes.
    course_of: Vec<u32>,
}

/// The pass that adds to a chunk's gradients last.
#[derive(Default)]
struct LastPass {
    /// Whether something is reduced beside it, part by part.
    by_part: bool,
    /// What of it, where passes scatter nothing; then with another template for it.
    buckets: Vec<Bucket>,
    templates: Option<Templates>,
}

impl LastPass {
    fn new(reductions: &Reductions<'_>, shape: Shape<'_>, plan: &Plan, (number, chunk): (usize, &Chunk)) -> Self {
        let held = held_parameters(shape, chunk, chunk.all_units());
        if !reductions.is_by_part(number, held) {
            return Self::default();
        }
        let buckets = reductions.bucket_of_passes().map_or_else(Vec::new, |least| buckets(shape, chunk, least));
        let in_buckets = || Templates::new(shape, chunk, plan.overlap_gradients, runs(&plan.schedule), &buckets);
        let templates = (!buckets.is_empty()).then(in_buckets);
        Self { by_part: true, buckets, templates }
    }
}

/// The order in which a replica goes through an iteration.
struct Course {
    turn: Turn,
    grid: Grid,
    /// Where the vocabulary is divided over positions: passes and exchanges in order.
    events: Vec<Event>,
    /// Receives of each position in the order of the grid, by direction: the chunk that reads and the microbatch.
    receives: Vec<[Vec<(ChunkId, MicrobatchId)>; 2]>,
}

impl Course {
    fn new(turn: Turn, plan: &Plan, shape: Shape<'_>, layers: &[Chunk]) -> Result<Self, Vec<Problem>> {
        let grid = schedules::grid(&plan.schedule, plan.pipeline(), plan.chunks_per_stage(), turn.rounds)?;
        let division = plan.sharing.vocabulary;
        let events = match division {
            VocabularyDivision::Ends => Vec::new(),
            VocabularyDivision::TwoBarriers | VocabularyDivision::OneBarrier | VocabularyDivision::Interlaced => {
                vocabulary::order(shape, division, layers, turn.own)
            }
        };
        Ok(Self { receives: receives(&grid, layers, turn.own), turn, grid, events })
    }
}

impl<'a> Lowering<'a> {
    fn new(
        plan: &'a Plan,
        model: &'a Model,
        workload: &'a Workload,
        layout: &'a Layout,
        chunks: &'a [Chunk],
    ) -> Result<Self, Vec<Problem>> {
        let layouts = (0..layout.pipeline).map(|position| layout.at(position).into_owned()).collect::<Vec<_>>();
        let shape = Shape { model, workload, layout };
        let at = |chunk: &Chunk| Shape { layout: &layouts[chunk.stage.index()], ..shape };
        let division = plan.sharing.vocabulary;
        let layers = vocabulary::layers_of(chunks, division, plan.pipeline());
        let reductions = Reductions::new(model, workload, layout, plan, chunks);
        let of_layers = |chunk| Templates::new(at(chunk), chunk, plan.overlap_gradients, runs(&plan.schedule), &[]);
        let of_slice = |chunk| Templates::of_slice(at(chunk), chunk, division);
        let templates = layers.iter().map(of_layers).chain(chunks[layers.len()..].iter().map(of_slice)).collect();
        let last_pass = |of: (usize, &_)| LastPass::new(&reductions, at(of.1), plan, of);
        let last = chunks.iter().enumerate().map(last_pass).collect();
        let (mut courses, mut course_of) = (Vec::<Course>::new(), Vec::with_capacity(layout.data as usize));
        for turn in turns(layout, model.variants.experts.is_some(), &plan.schedule) {
            let known = courses.iter().position(|course| course.turn == turn);
            if known.is_none() {
                courses.push(Course::new(turn, plan, shape, layers)?);
            }
            let course = known.unwrap_or(courses.len() - 1);
            course_of.push(u32::try_from(course).expect("fewer courses than replicas"));
        }
        Ok(Self {
            plan,
            model,
            workload,
            layout,
            layouts,
            templates,
            last,
            courses,
            course_of,
            reductions,
            chunks,
            layers,
        })
    }

    /// The shape of what a position computes.
    fn shape(&self, position: u32) -> Shape<'_> {
        Shape { model: self.model, workload: self.workload, layout: &self.layouts[position as usize] }
    }

    /// Bytes of an activation as a rank of a position has it between its passes.
    fn held_bytes(&self, position: u32) -> Bytes {
        message_bytes(self.shape(position))
    }

    /// Whether the ranks of a position's tensor groups have unlike partners on others.
    fn has_unlike_lanes(&self, position: u32) -> bool {
        let beside = self.edges().into_iter().filter(|(a, b)| *a == position || *b == position);
        beside.into_iter().any(|(a, b)| Across::new(self.layout, a, b).is_unlike())
    }

    /// Parameters that one rank holds of a chunk before any division over replicas.
    fn parameters(&self, chunk: ChunkId) -> HeldParameters {
        let chunk = &self.chunks[chunk.index()];
        held_parameters(self.shape(chunk.stage.raw()), chunk, chunk.all_units())
    }

    /// Pairs of positions between which activations go.
    fn edges(&self) -> Vec<(u32, u32)> {
        let stages = self.layers.windows(2).map(|pair| (pair[0].stage.raw(), pair[1].stage.raw()));
        let mut edges = stages.filter(|(a, b)| a != b).collect::<Vec<_>>();
        edges.sort_unstable();
        edges.dedup();
        edges
    }

    fn program(&self, folding: Folding, cluster: &Cluster) -> Result<Program, Vec<Problem>> {
        let axes = axes::groups(self.layout, self.model.variants.experts.is_some(), self.reductions.embedding());
        let unlike = (0..self.layout.pipeline).map(|position| self.has_unlike_lanes(position)).collect::<Vec<_>>();
        let classes = colour::classes(self.plan, self.layout, cluster, (&self.edges(), &unlike), &axes);
        let groups = Groups::new(&axes, &classes);
        let world = u32::try_from(classes.len()).expect("a world checked by legality");
        let (role_of, members) = match folding {
            Folding::Folded => (classes.clone(), members(&classes)),
            Folding::Flat => ((0..world).collect(), (0..world).map(|rank| RankSet::run(rank, 1, 1)).collect()),
        };
        let mut lists: FxHashMap<[u32; 3], Role> = FxHashMap::default();
        let list_of = |ranks: &RankSet| {
            let place = self.layout.place_of(ranks.first());
            let course = self.course_of[(place.replica / self.layout.mesh.context) as usize];
            let lane = if unlike[place.position as usize] { place.tensor_index } else { 0 };
            [place.position, course, lane]
        };
        let mut total = 0;
        for ranks in &members {
            let key = list_of(ranks);
            let list = lists.entry(key).or_insert_with(|| Emitter::new(self, key).emit());
            total += list.instructions().len() as u64;
            if total > MOST_INSTRUCTIONS {
                let roles = members.len() as u64;
                return Err(vec![too_large(members.len(), total.max(roles * list.instructions().len() as u64))]);
            }
        }
        let roles = members
            .into_iter()
            .map(|ranks| {
                let first = ranks.first().raw();
                self.role(&lists[&list_of(&ranks)], ranks, cluster, |op| resolve(op, first, &role_of, &groups))
            })
            .collect();
        Ok(Program {
            model: self.model.clone(),
            workload: self.workload.clone(),
            layout: self.layout.clone(),
            chunks: self.chunks.to_vec(),
            groups: groups.families,
            roles,
            placement: self.placement(),
        })
    }

    /// Devices by rank; none where rank `r` is on device `r`.
    fn placement(&self) -> Vec<ir::DeviceId> {
        if self.plan.placement.is_empty() && self.layout.has_unlike_tensors() {
            return (0..self.layout.world()).map(|rank| self.plan.device(Rank::new(rank))).collect();
        }
        self.plan.placement.clone()
    }

    /// A position's list as the role of some of its ranks.
    fn role(&self, list: &Role, ranks: RankSet, cluster: &Cluster, map: impl FnMut(Op) -> Op) -> Role {
        let device = self.plan.device(ranks.first());
        let kind = cluster.device_kind(cluster.place(device).device_kind);
        let mut role = list.relabelled(ranks, map);
        role.buffers[end::RESERVE].bytes = memory::Figures::of(kind, &self.workload.recipe).reserve();
        role
    }
}

fn too_large(roles: usize, instructions: u64) -> Problem {
    let message = format!("{roles} roles of {instructions} instructions are over {MOST_INSTRUCTIONS} instructions");
    Problem::new("plan", message).hint(
        "ranks share a role where their links are loaded alike: align stages with nodes and leaf switches, or use fewer \
         microbatches",
    )
}

/// An op of a position's list as the rank `first` carries it out.
fn resolve(op: Op, first: u32, role_of: &[u32], groups: &Groups) -> Op {
    let role = |shift: i64| {
        let rank = Rank::new(first).raw();
        let other = usize::try_from(i64::from(rank) + shift).expect("a peer outside the world");
        RoleId::new(role_of[other])
    };
    match op {
        Op::Collective { kind, group, payload, bytes } => {
            Op::Collective { kind, group: groups.family(group, first), payload, bytes }
        }
        Op::Send { mut peer, message, bytes } => {
            peer.role = role(peer.shift);
            Op::Send { peer, message, bytes }
        }
        Op::Receive { mut peer, message, bytes } => {
            peer.role = role(peer.shift);
            Op::Receive { peer, message, bytes }
        }
        Op::Compute { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => op,
    }
}

/// The ranks of each class.
fn members(classes: &[u32]) -> Vec<RankSet> {
    let count = classes.iter().max().map_or(0, |last| last + 1);
    let mut members = vec![Vec::new(); count as usize];
    for (rank, class) in (0u32..).zip(classes) {
        members[*class as usize].push(rank);
    }
    members.into_iter().map(RankSet::from_ascending).collect()
}

/// What each position receives of the first `microbatches`, in the order of its producers.
fn receives(grid: &Grid, chunks: &[Chunk], microbatches: u32) -> Vec<[Vec<(ChunkId, MicrobatchId)>; 2]> {
    let total = u32::try_from(chunks.len()).expect("more chunks than u32");
    let order = Order::of(grid, total).expect("legality checked the grid");
    let mut receives = vec![[Vec::new(), Vec::new()]; grid.rows.len()];
    for (row, place) in order.cells {
        let cell = grid.rows[row as usize][place as usize];
        let (direction, reader) = match cell.action {
            Action::Forward => (Direction::Forward, Some(cell.chunk.index() + 1)),
            Action::Backward | Action::BackwardInput => (Direction::Backward, cell.chunk.index().checked_sub(1)),
            Action::BackwardWeight => continue,
        };
        if cell.microbatch.raw() >= microbatches {
            continue;
        }
        if let Some((reader, chunk)) = reader.and_then(|reader| Some((reader, chunks.get(reader)?)))
            && chunk.stage.raw() != row
        {
            receives[chunk.stage.index()][direction as usize].push((ChunkId::at(reader), cell.microbatch));
        }
    }
    receives
}
