//! The program itself, lowered, verified and carried out once by a backend.

use std::sync::Arc;

use cost::{CostModel, GroupPlace};
use ir::prediction::AtRisk;
use ir::program::{Access, BufferKind, HostCopy, Instruction, Payload, Role, Stream};
use ir::{
    Axis, Backend, Bytes, Clock, DeviceKindId, Evaluation, Infeasible, InstructionId, Lane, Model, Op, Plan,
    Prediction, Problem, SimDuration, SimTime, StageId, StageMemory, Timeline, VerifiedProgram, Workload,
};

use super::Evaluator;
use super::closed_form::basis_shares;
use super::critical::{breakdown, last, stalled};
use super::input_time;
use super::prepared::{ByBasis, index};
use super::spent::Spent;
use crate::drive::{StaticController, drive};

/// Lowers a plan, verifies it, drives one iteration and summarises.
#[derive(Debug)]
pub struct OnBackend<'a, B> {
    model: &'a Model,
    workload: &'a Workload,
    cost: &'a CostModel,
    backend: B,
}

impl<'a, B: Backend> OnBackend<'a, B> {
    /// For one model and workload on the cost model's cluster, which also says on what simulated durations rest.
    #[must_use]
    pub const fn new(model: &'a Model, workload: &'a Workload, cost: &'a CostModel, backend: B) -> Self {
        Self { model, workload, cost, backend }
    }
    /// The backend.
    pub const fn backend(&mut self) -> &mut B {
        &mut self.backend
    }
}

impl<B: Backend> Evaluator for OnBackend<'_, B> {
    fn evaluate(&mut self, plan: &Plan) -> Evaluation {
        let no = |reasons| Infeasible { reasons, nearest: Vec::new() };
        let program = crate::lower(plan, self.model, self.workload, self.cost.cluster()).map_err(no)?;
        let program = VerifiedProgram::new(program).unwrap_or_else(|problems| {
            let all = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
            panic!("lowering made a program that does not verify:\n{all}\n{plan:?}")
        });
        let program = Arc::new(program);
        let mut timeline = None;
        let driven = drive(&mut self.backend, Arc::clone(&program), 1, &mut StaticController, &mut |_, outcome| {
            timeline = Some(outcome.timeline.clone());
            true
        });
        match (driven, timeline) {
            (Ok(_), Some(timeline)) => Ok(summarise(&program, &timeline, self.cost)),
            (Err(ir::BackendError::Unsupported(reasons)), _) => Err(no(reasons)),
            (Err(error), _) => Err(no(vec![Problem::new("backend", error.to_string())])),
            (Ok(_), None) => unreachable!("a driven iteration was observed"),
        }
    }
}

/// A timeline of a program as a prediction: iteration, bubble rate, and the memory walk by part.
///
/// Bubble rate and peaks are per position, over the lanes that the timeline has of it (the largest peak; the mean work,
/// weighted by the ranks that a lane stands for).
///
/// # Panics
/// If the timeline is not of this program.
#[must_use]
pub fn summarise(program: &VerifiedProgram, timeline: &Timeline, cost: &CostModel) -> Prediction {
    let mut memory: Vec<StageMemory> = Vec::new();
    let (mut longest, mut work, mut ranks) = (0, 0u128, 0u128);
    let mut by_position = vec![(0u128, 0u128); program.layout.pipeline as usize];
    let mut basis = [0; 4];
    for lane in &timeline.lanes {
        let role = &program.roles[lane.role.index()];
        let found = stage_memory(program, role, lane, cost);
        match memory.iter_mut().find(|stage| stage.stage == found.stage) {
            Some(stage) if headroom(&found) < headroom(stage) => *stage = found,
            Some(_) => {}
            None => memory.push(found),
        }
        let (span, busy) = passes(program, role, lane);
        longest = longest.max(span);
        work += u128::from(busy) * u128::from(lane.multiplicity);
        ranks += u128::from(lane.multiplicity);
        let here = &mut by_position[role.stage.index()];
        *here = (here.0 + u128::from(busy) * u128::from(lane.multiplicity), here.1 + u128::from(lane.multiplicity));
        add_basis(program, timeline.clock, role, lane, cost, &mut basis);
    }
    memory.sort_by_key(|stage| stage.stage);
    let mean = work as f64 / ranks.max(1) as f64;
    // A simulator's iteration waits for its input; that of another machine may not.
    let took = timeline.end().saturating_since(SimTime::ZERO);
    let input = SimDuration::from_nanoseconds(input_time(&program.workload, &program.layout));
    let iteration = match timeline.clock {
        Clock::Simulated => took.max(input),
        Clock::Measured => took,
    };
    let mean_of = |(work, ranks): &(u128, u128)| u64::try_from(work / (*ranks).max(1)).expect("a mean of times");
    let wide = |position: u32| program.layout.at(position).per_position();
    let positions = (0u32..).zip(&by_position).map(|(at, of)| (wide(at), mean_of(of))).collect::<Vec<_>>();
    let prediction = Prediction {
        iteration,
        interval: None,
        breakdown: stalled(breakdown(program, timeline), iteration - took),
        bubble_rate: (longest > 0).then(|| 1.0 - mean / longest as f64),
        memory,
        basis: basis_shares(basis),
        at_risk: at_risk(program, timeline, cost),
        expense: cost.expense(&program.placement, iteration, &positions),
    };
    match timeline.clock {
        Clock::Simulated => super::with_interval(cost, &kinds(program, timeline, cost), prediction),
        Clock::Measured => prediction,
    }
}

/// What of a simulated iteration hangs on the host, along the lane that ends last; nothing of a measured one does.
fn at_risk(program: &VerifiedProgram, timeline: &Timeline, cost: &CostModel) -> AtRisk {
    let mut spent = Spent::default();
    let Some(lane) = last(timeline).filter(|_| timeline.clock == Clock::Simulated) else { return spent.at_risk() };
    let role = &program.roles[lane.role.index()];
    let kind = cost.cluster().place(program.device(role.ranks.first())).device_kind;
    let prices = cost.prepare(program.shape_in(&program.layout.at(role.stage.raw())));
    for span in &lane.spans {
        if let Op::Compute { pass, chunk, units, .. } = role.instruction(span.instruction).op {
            spent.add_at_risk(prices.at_risk(program.chunk(chunk), pass, units, kind));
        }
    }
    spent.at_risk()
}

/// Kinds of the devices of a timeline.
fn kinds(program: &VerifiedProgram, timeline: &Timeline, cost: &CostModel) -> Vec<DeviceKindId> {
    let kind = |lane: &Lane| cost.cluster().place(program.device(lane.rank)).device_kind;
    let mut kinds: Vec<_> = timeline.lanes.iter().map(kind).collect();
    kinds.sort_unstable();
    kinds.dedup();
    kinds
}

/// Bytes left at the peak, negative if it does not fit.
fn headroom(stage: &StageMemory) -> i128 {
    i128::from(stage.capacity.get()) - i128::from(stage.peak.get())
}

/// Whether an op is part of a pass; what all positions exchange lies between passes, as messages do.
fn in_pass(program: &VerifiedProgram, instruction: &Instruction) -> bool {
    match instruction.op {
        Op::Collective { group, .. } if program.groups[group.index()].axis == Axis::Pipeline => false,
        // What is reduced beside passes, which do not wait for it.
        Op::Collective { .. } if instruction.stream == Stream::Data => false,
        Op::Compute { .. }
        | Op::HostCopy { what: HostCopy::Activations { .. } | HostCopy::Parameters { .. }, .. }
        | Op::Collective {
            payload: Payload::Activation { .. } | Payload::UnitParameters { .. } | Payload::UnitGradients { .. },
            ..
        } => true,
        Op::Collective { .. }
        | Op::Send { .. }
        | Op::Receive { .. }
        | Op::GradientNorm
        | Op::Optimizer
        | Op::HostCopy { what: HostCopy::OptimizerState, .. } => false,
    }
}

/// Nanoseconds from the start of a lane's first pass to the end of its last, and how many of them it was busy.
fn passes(program: &VerifiedProgram, role: &Role, lane: &Lane) -> (u64, u64) {
    let own = lane.spans.iter().filter(|span| in_pass(program, role.instruction(span.instruction)));
    let mut times = own.map(|span| (span.start, span.end)).collect::<Vec<_>>();
    times.sort_unstable();
    let start = times.first().map_or(SimTime::ZERO, |(start, _)| *start);
    let (mut end, mut busy) = (start, 0);
    for (from, to) in times {
        // What runs beside something else is busy time once.
        busy += to.saturating_since(from.max(end)).nanoseconds();
        end = end.max(to);
    }
    (end.saturating_since(start).nanoseconds(), busy)
}

/// Walks a role's buffers along its lane: what is in use at the moment of the peak, by part.
fn stage_memory(program: &VerifiedProgram, role: &Role, lane: &Lane, cost: &CostModel) -> StageMemory {
    let mut now = [0u64; BufferKind::ALL.len()];
    for buffer in role.buffers.iter().filter(|buffer| buffer.resident) {
        now[buffer.kind.index()] += buffer.bytes.get();
    }
    // Of one instant, what ends comes before what starts, as in an iteration.
    let mut changes: Vec<(SimTime, bool, InstructionId)> = Vec::with_capacity(2 * lane.spans.len());
    for span in &lane.spans {
        changes.push((span.start, true, span.instruction));
        // An instruction of no length still starts before it ends.
        let end = if span.end == span.start { span.end + ir::SimDuration::from_nanoseconds(1) } else { span.end };
        changes.push((end, false, span.instruction));
    }
    changes.sort_unstable();
    let (mut peak, mut at, mut most) = (now, None, now.iter().sum::<u64>());
    for (_, starts, id) in changes {
        let moment = if starts { Access::Allocate } else { Access::Free };
        let accesses = role.accesses(role.instruction(id)).iter().filter(|(_, access)| *access == moment);
        for buffer in accesses.map(|(buffer, _)| &role.buffers[buffer.index()]) {
            let part = &mut now[buffer.kind.index()];
            *part = if starts { *part + buffer.bytes.get() } else { *part - buffer.bytes.get() };
        }
        if now.iter().sum::<u64>() > most {
            (peak, at, most) = (now, Some(id), now.iter().sum());
        }
    }
    let device = program.device(lane.rank);
    let kind = cost.cluster().device_kind(cost.cluster().place(device).device_kind);
    let mut parts =
        BufferKind::ALL.iter().zip(peak).map(|(kind, bytes)| (kind.name(), Bytes::new(bytes))).collect::<Vec<_>>();
    parts.retain(|(_, bytes)| *bytes > Bytes::ZERO);
    parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
    let mut stage = StageMemory {
        stage: StageId::new(role.stage.raw()),
        device,
        capacity: cost.usable(kind),
        peak: Bytes::new(most),
        parts,
        moment: at.map_or_else(|| "the whole iteration".into(), |id| moment(role, id)),
    };
    cost::memory::add_unused(kind, &program.workload.recipe, &mut stage);
    stage
}

fn moment(role: &Role, id: InstructionId) -> String {
    match role.instruction(id).op {
        Op::Compute { pass, chunk, microbatch, .. } => {
            format!("{} pass of chunk {}, microbatch {} ({id})", pass.name(), chunk.raw(), microbatch.raw())
        }
        Op::Collective { kind, .. } => format!("{} ({id})", kind.name()),
        Op::Send { message, .. } => format!("send of microbatch {} ({id})", message.microbatch.raw()),
        Op::Receive { message, .. } => format!("receive of microbatch {} ({id})", message.microbatch.raw()),
        Op::GradientNorm => format!("gradient norm ({id})"),
        Op::Optimizer => format!("optimizer step ({id})"),
        Op::HostCopy { out: true, .. } => format!("copy to host memory ({id})"),
        Op::HostCopy { out: false, .. } => format!("copy from host memory ({id})"),
    }
}

/// Busy time of a lane by the basis of its durations: all measured on a measured clock, else as the cost model says.
fn add_basis(program: &VerifiedProgram, clock: Clock, role: &Role, lane: &Lane, cost: &CostModel, basis: &mut ByBasis) {
    let first = role.ranks.first();
    let kind = cost.cluster().place(program.device(first)).device_kind;
    let prices = cost.prepare(program.shape_in(&program.layout.at(role.stage.raw())));
    let mut seen: rustc_hash::FxHashMap<(ir::GroupId, ir::program::CollectiveKind, Bytes), usize> =
        rustc_hash::FxHashMap::default();
    for span in &lane.spans {
        let instruction = role.instruction(span.instruction);
        let on = match (clock, instruction.op) {
            (Clock::Measured, _) => 0,
            (Clock::Simulated, Op::Compute { pass, chunk, units, .. }) => {
                index(prices.compute(program.chunk(chunk), pass, units, kind).basis)
            }
            (Clock::Simulated, Op::Collective { kind, group, bytes, .. }) => {
                *seen.entry((group, kind, bytes)).or_insert_with(|| {
                    let members = program.groups[group.index()].instance_of(first).expect("verified: a member");
                    let devices = members.iter().map(|rank| program.device(rank)).collect::<Vec<_>>();
                    let place = GroupPlace::of(cost.cluster(), &devices);
                    let axis = program.groups[group.index()].axis;
                    let algorithm = program.layout.collective;
                    index(
                        cost.collective_along((&program.model, &program.workload), axis, kind, bytes, place, algorithm)
                            .basis,
                    )
                })
            }
            (Clock::Simulated, Op::Send { peer, bytes, .. } | Op::Receive { peer, bytes, .. }) => {
                let other = u32::try_from(i64::from(first.raw()) + peer.shift).expect("verified: a peer");
                index(cost.message(bytes, program.device(first), program.device(ir::Rank::new(other))).basis)
            }
            (Clock::Simulated, Op::HostCopy { bytes, .. }) => index(cost.host_copy(bytes, program.device(first)).basis),
            (Clock::Simulated, Op::GradientNorm) => index(cost.gradient_norm(1, kind).basis),
            (Clock::Simulated, Op::Optimizer) => {
                index(cost.optimizer(1, program.workload.precision, program.layout.tensor, kind).basis)
            }
        };
        // A message is counted once: where it is received.
        if instruction.stream != Stream::ForwardSend && instruction.stream != Stream::BackwardSend {
            basis[on] += (span.end - span.start).nanoseconds();
        }
    }
}
