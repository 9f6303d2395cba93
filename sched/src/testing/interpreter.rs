//! The naive twin of a simulator: every rank, no sharing of links, ends by fixed point.

use std::sync::Arc;

use cost::{CostModel, GroupPlace};
use ir::program::unfold::unfold;
use ir::program::{Message, Stream};
use ir::{
    Backend, BackendError, Clock, InstructionId, IterationOutcome, Lane, Op, Problem, Program, Rank, Role, RoleId,
    SimDuration, SimTime, Span, Timeline, VerifiedProgram,
};
use rustc_hash::FxHashMap;

/// See the [module](self).
#[derive(Debug)]
pub(crate) struct Interpreter<'a> {
    cost: &'a CostModel,
    program: Option<Arc<VerifiedProgram>>,
    pub(crate) iterations: u64,
    pub(crate) refuse: Vec<Problem>,
}

impl<'a> Interpreter<'a> {
    pub(crate) const fn new(cost: &'a CostModel) -> Self {
        Self { cost, program: None, iterations: 0, refuse: Vec::new() }
    }
}

impl Backend for Interpreter<'_> {
    fn clock(&self) -> Clock {
        Clock::Simulated
    }
    fn unsupported(&self, _program: &VerifiedProgram) -> Vec<Problem> {
        self.refuse.clone()
    }
    fn load(&mut self, program: Arc<VerifiedProgram>) -> Result<(), BackendError> {
        self.program = Some(program);
        Ok(())
    }
    fn iterate(&mut self, iteration: u64) -> Result<IterationOutcome, BackendError> {
        let program = self.program.clone().unwrap();
        self.iterations += 1;
        let lanes = lanes(&program, self.cost);
        let timeline =
            Timeline { clock: Clock::Simulated, program: 0, iteration, input_wait: SimDuration::ZERO, lanes };
        Ok(IterationOutcome { timeline, loss: None, gradient_norm: None })
    }
}

/// What joins instructions of several ranks.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Meeting {
    Message { from: u32, to: u32, message: Message },
    Collective { group: u32, first: u32, number: u32 },
}

#[derive(Default)]
struct Met {
    arrived: u32,
    start: u64,
    ranks: Vec<(usize, usize)>,
}

fn lanes(folded: &Program, cost: &CostModel) -> Vec<Lane> {
    let program = unfold(folded);
    let mut state = State {
        program: &program,
        cost,
        prices: (0..program.layout.pipeline)
            .map(|position| cost.prepare(program.shape_in(&program.layout.at(position))))
            .collect(),
        ends: program.roles.iter().map(|role| vec![None; role.instructions().len()]).collect(),
        issued: program.roles.iter().map(|role| vec![0; role.instructions().len()]).collect(),
        starts: program.roles.iter().map(|role| vec![0; role.instructions().len()]).collect(),
        next: vec![[0; Stream::ALL.len()]; program.roles.len()],
        met: FxHashMap::default(),
        collectives: program.roles.iter().map(numbers).collect(),
    };
    while state.sweep() {}
    program
        .roles
        .iter()
        .enumerate()
        .map(|(rank, role)| {
            let time = SimTime::from_nanoseconds;
            let span = |i: usize| Span {
                instruction: InstructionId::at(i),
                issued: time(state.issued[rank][i]),
                start: time(state.starts[rank][i]),
                end: time(state.ends[rank][i].unwrap_or_else(|| panic!("i{i} of rank {rank} never ended"))),
            };
            Lane {
                role: folded.role_of(Rank::new(u32::try_from(rank).unwrap())).unwrap_or(RoleId::at(rank)),
                rank: Rank::new(u32::try_from(rank).unwrap()),
                multiplicity: 1,
                spans: (0..role.instructions().len()).map(span).collect(),
                memory: Vec::new(),
            }
        })
        .collect()
}

struct State<'a> {
    program: &'a Program,
    cost: &'a CostModel,
    prices: Vec<cost::Prices>,
    ends: Vec<Vec<Option<u64>>>,
    issued: Vec<Vec<u64>>,
    starts: Vec<Vec<u64>>,
    /// By rank and stream: the first instruction that is not issued.
    next: Vec<[usize; Stream::ALL.len()]>,
    met: FxHashMap<Meeting, Met>,
    /// By rank: of each instruction that is a collective, how many of its group come before it in the list, whose order
    /// is that of all members. Streams are not: one group may be used on several.
    collectives: Vec<Vec<u32>>,
}

/// Of each instruction of a list, how many collectives of the same group come before it.
fn numbers(role: &Role) -> Vec<u32> {
    let mut counts: FxHashMap<u32, u32> = FxHashMap::default();
    let number = |op: Op| {
        let Op::Collective { group, .. } = op else { return 0 };
        let count = counts.entry(group.raw()).or_default();
        *count += 1;
        *count
    };
    role.instructions().iter().map(|instruction| instruction.op).map(number).collect()
}

impl State<'_> {
    /// Issues what can be issued; whether there was any.
    fn sweep(&mut self) -> bool {
        let mut any = false;
        for rank in 0..self.program.roles.len() {
            for stream in Stream::ALL {
                while self.issue(rank, stream) {
                    any = true;
                }
            }
        }
        any
    }

    fn issue(&mut self, rank: usize, stream: Stream) -> bool {
        let role = &self.program.roles[rank];
        let from = self.next[rank][stream as usize];
        let list = role.instructions();
        let Some(at) = (from..list.len()).find(|i| list[*i].stream == stream) else { return false };
        let previous = (0..from).rev().find(|i| list[*i].stream == stream);
        let mut ready = 0;
        for wait in role.waits(&list[at]).iter().map(|wait| wait.index()).chain(previous) {
            let Some(end) = self.ends[rank][wait] else { return false };
            ready = ready.max(end);
        }
        self.next[rank][stream as usize] = at + 1;
        self.issued[rank][at] = ready;
        let me = u32::try_from(rank).unwrap();
        let device = self.program.device(Rank::new(me));
        let kind = self.cost.cluster().place(device).device_kind;
        let layout = self.program.layout.at(role.stage.raw());
        let shape = self.program.shape_in(&layout);
        let stepped = || {
            let held = self.program.chunks.iter().filter(|chunk| chunk.stage == role.stage);
            held.map(|chunk| cost::memory::stepped_parameters(shape, chunk)).sum::<u64>()
        };
        let alone = match list[at].op {
            Op::Compute { pass, chunk, units, .. } => {
                self.cost.compute(shape, self.program.chunk(chunk), pass, units, kind)
            }
            Op::GradientNorm => self.cost.gradient_norm(stepped(), kind),
            Op::Optimizer if self.program.layout.sharing.offload_optimizer => {
                self.cost.host_optimizer(stepped(), self.program.workload.precision, kind)
            }
            Op::Optimizer => {
                self.cost.optimizer(stepped(), self.program.workload.precision, self.program.layout.tensor, kind)
            }
            Op::HostCopy { bytes, .. } => self.cost.host_copy(bytes, device),
            Op::Send { peer, message, bytes } => {
                let other = u32::try_from(i64::from(me) + peer.shift).unwrap();
                let price = self.cost.message(bytes, device, self.program.device(Rank::new(other)));
                self.meet(Meeting::Message { from: me, to: other, message }, 2, (rank, at), price);
                return true;
            }
            Op::Receive { peer, message, bytes } => {
                let other = u32::try_from(i64::from(me) + peer.shift).unwrap();
                let price = self.cost.message(bytes, self.program.device(Rank::new(other)), device);
                self.meet(Meeting::Message { from: other, to: me, message }, 2, (rank, at), price);
                return true;
            }
            Op::Collective { kind: collective, group, bytes, .. } => {
                let members = self.program.groups[group.index()].instance_of(Rank::new(me)).unwrap();
                let devices = members.iter().map(|rank| self.program.device(rank)).collect::<Vec<_>>();
                let (axis, algorithm) = (self.program.groups[group.index()].axis, self.program.layout.collective);
                let place = place(self.cost, axis, &devices);
                let job = (&self.program.model, &self.program.workload);
                let price = self.cost.collective_along(job, axis, collective, bytes, place, algorithm);
                let tensor = axis == ir::Axis::Tensor;
                let price = match role.followed(&list[at]).filter(|_| tensor) {
                    Some((chunk, pass, units)) => {
                        let hidden =
                            self.prices[role.stage.index()].hidden(self.program.chunk(chunk), pass, units, kind);
                        cost::exposed(price, hidden)
                    }
                    None => price,
                };
                let number = self.collectives[rank][at];
                let meeting = Meeting::Collective { group: group.raw(), first: members.first().raw(), number };
                self.meet(meeting, members.len(), (rank, at), price);
                return true;
            }
        };
        self.starts[rank][at] = ready;
        self.ends[rank][at] = Some(ready + alone.duration.nanoseconds());
        true
    }

    fn meet(&mut self, meeting: Meeting, wanted: u32, (rank, at): (usize, usize), price: cost::Priced) {
        let met = self.met.entry(meeting).or_default();
        met.arrived += 1;
        met.start = met.start.max(self.issued[rank][at]);
        met.ranks.push((rank, at));
        if met.arrived == wanted {
            let (start, end) = (met.start, met.start + price.duration.nanoseconds());
            for (rank, at) in met.ranks.clone() {
                self.starts[rank][at] = start;
                self.ends[rank][at] = Some(end);
            }
        }
    }
}

/// Links are shared by groups alike and by nothing else, as in the closed form.
fn place(cost: &CostModel, axis: ir::Axis, devices: &[ir::DeviceId]) -> GroupPlace {
    match axis {
        ir::Axis::Embedding => GroupPlace::of(cost.cluster(), devices),
        _ => GroupPlace::with_siblings(cost.cluster(), devices),
    }
}
