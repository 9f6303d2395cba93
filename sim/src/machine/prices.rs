//! The duration of every node alone, and what each rendezvous puts on the wire.

use cost::{CostModel, GroupPlace, Slowing};
use ir::program::{Chunk, Pass, Role, UnitRange};
use ir::{Axis, Bytes, ChunkId, DeviceId, DeviceKindId, Op, Program, SimDuration};
use rustc_hash::FxHashMap;

use super::graph::{Graph, Meeting};

/// A rendezvous' work: its duration alone, and the bytes that each member puts on its way out meanwhile.
#[derive(Clone, Copy, Debug)]
pub(super) struct Transfer {
    /// Nanoseconds when nothing else uses the links.
    pub(super) alone: u64,
    /// Bytes on the wire per member.
    pub(super) wire: u64,
}

impl Transfer {
    /// Bytes per second of one member when it runs alone, at most `limit`.
    pub(super) fn cap(self, limit: u64) -> u64 {
        let nanoseconds = u128::from(ir::quantity::NANOSECONDS_PER_SECOND);
        let rate = u128::from(self.wire) * nanoseconds / u128::from(self.alone.max(1));
        u64::try_from(rate).unwrap_or(u64::MAX).min(limit).max(1)
    }
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Prices {
    /// Nanoseconds of each node that needs nobody else; 0 for the others.
    pub(super) local: Vec<u64>,
    /// Of each rendezvous.
    pub(super) transfers: Vec<Transfer>,
    /// How compute and exchanges of each role slow each other.
    pub(super) slowing: Vec<Slowing>,
}

impl Prices {
    pub(super) fn new(program: &Program, graph: &Graph, cost: &CostModel) -> Self {
        let mut local = vec![0; graph.predecessors.len()];
        for (index, role) in program.roles.iter().enumerate() {
            let base = graph.offsets[index] as usize;
            let kind = device_kind(program, cost, role);
            let mut known: FxHashMap<(Pass, ChunkId, UnitRange), u64> = FxHashMap::default();
            let layout = program.layout.at(role.stage.raw());
            let shape = program.shape_in(&layout);
            for (position, instruction) in role.instructions().iter().enumerate() {
                local[base + position] = match instruction.op {
                    Op::Compute { pass, chunk, units, .. } => *known.entry((pass, chunk, units)).or_insert_with(|| {
                        cost.compute(shape, program.chunk(chunk), pass, units, kind).duration.nanoseconds()
                    }),
                    Op::GradientNorm => {
                        cost.gradient_norm(stepped_parameters(program, role), kind).duration.nanoseconds()
                    }
                    Op::Optimizer => {
                        let (stepped, precision) = (stepped_parameters(program, role), program.workload.precision);
                        let priced = match program.layout.sharing.offload_optimizer {
                            true => cost.host_optimizer(stepped, precision, kind),
                            false => cost.optimizer(stepped, precision, program.layout.tensor, kind),
                        };
                        priced.duration.nanoseconds()
                    }
                    Op::HostCopy { bytes, .. } => {
                        cost.host_copy(bytes, program.device(role.ranks.first())).duration.nanoseconds()
                    }
                    Op::Collective { .. } | Op::Send { .. } | Op::Receive { .. } => 0,
                };
            }
        }
        let slowing = program.roles.iter().map(|role| cost.slowing(device_kind(program, cost, role))).collect();
        Self { local, transfers: transfers(program, graph, cost), slowing }
    }
}

/// What the device carries out of tensor-parallel collectives while it waits for launches; mostly nothing.
struct Hiding {
    /// Of each position; none where nothing is hidden.
    prices: Vec<cost::Prices>,
    known: FxHashMap<(DeviceKindId, ChunkId, Pass, UnitRange), SimDuration>,
}

impl Hiding {
    fn new(program: &Program, cost: &CostModel) -> Self {
        let hides = cost.stack().constants.hidden_in_launches > 0.0;
        let of = |position: u32| cost.prepare(program.shape_in(&program.layout.at(position)));
        let positions = if hides { program.layout.pipeline } else { 0 };
        Self { prices: (0..positions).map(of).collect(), known: FxHashMap::default() }
    }

    /// What is left of a role's collective, whose share of the links shrinks with it.
    fn exposed(&mut self, program: &Program, cost: &CostModel, role: &Role, at: usize, whole: Transfer) -> Transfer {
        let (Some(prices), instruction) = (self.prices.get(role.stage.index()), &role.instructions()[at]) else {
            return whole;
        };
        let Op::Collective { group, .. } = instruction.op else { return whole };
        let Some((chunk, pass, units)) =
            role.followed(instruction).filter(|_| program.groups[group.index()].axis == Axis::Tensor)
        else {
            return whole;
        };
        let kind = device_kind(program, cost, role);
        let hidden = *self
            .known
            .entry((kind, chunk, pass, units))
            .or_insert_with(|| prices.hidden(program.chunk(chunk), pass, units, kind));
        let alone = whole.alone.saturating_sub(hidden.nanoseconds()).max(1);
        let wire = u128::from(whole.wire) * u128::from(alone) / u128::from(whole.alone.max(1));
        Transfer { alone, wire: u64::try_from(wire).unwrap_or(whole.wire) }
    }
}

fn transfers(program: &Program, graph: &Graph, cost: &CostModel) -> Vec<Transfer> {
    let mut known: FxHashMap<(ir::Axis, u32, ir::program::CollectiveKind, Bytes), Transfer> = FxHashMap::default();
    let mut known_messages: FxHashMap<(DeviceId, DeviceId, Bytes), Transfer> = FxHashMap::default();
    let mut hiding = Hiding::new(program, cost);
    let op_of = |node: u32| {
        let role = graph.role(node);
        let instruction = program.roles[role].instructions()[(node - graph.offsets[role]) as usize];
        (&program.roles[role], instruction.op)
    };
    graph
        .meetings
        .iter()
        .map(|meeting| match *meeting {
            Meeting::Message { sender } => {
                let (role, op) = op_of(sender);
                let Op::Send { peer, bytes, .. } = op else { panic!("message of node {sender} has no send: {op:?}") };
                let (from, to) = ends(program, role, peer.shift);
                *known_messages.entry((from, to, bytes)).or_insert_with(|| Transfer {
                    alone: cost.message(bytes, from, to).duration.nanoseconds(),
                    wire: bytes.get(),
                })
            }
            Meeting::Collective { group, composition, node } => {
                let (role, op) = op_of(node);
                let Op::Collective { kind, bytes, .. } = op else { panic!("node {node} is no collective: {op:?}") };
                let along = program.groups[group.index()].axis;
                let whole = *known.entry((along, composition, kind, bytes)).or_insert_with(|| {
                    let instance = program.groups[group.index()]
                        .instance_of(role.ranks.first())
                        .unwrap_or_else(|| panic!("no instance of group {group} holds {}", role.ranks.first()));
                    let devices: Vec<DeviceId> = instance.iter().map(|rank| program.device(rank)).collect();
                    let place = GroupPlace::of(cost.cluster(), &devices);
                    let (axis, algorithm) = (along, program.layout.collective);
                    let job = (&program.model, &program.workload);
                    let price = cost.collective_along(job, axis, kind, bytes, place, algorithm);
                    Transfer {
                        alone: price.duration.nanoseconds(),
                        wire: cost.wire_bytes_along(job, axis, kind, bytes, place, algorithm).get(),
                    }
                });
                hiding.exposed(program, cost, role, (node - graph.offsets[graph.role(node)]) as usize, whole)
            }
        })
        .collect()
}

/// The devices at both ends of a message of the role's first rank.
pub(super) fn ends(program: &Program, role: &Role, shift: i64) -> (DeviceId, DeviceId) {
    let from = role.ranks.first();
    let to = u32::try_from(i64::from(from.raw()) + shift).expect("verified: a peer inside the world");
    (program.device(from), program.device(ir::Rank::new(to)))
}

fn device_kind(program: &Program, cost: &CostModel, role: &Role) -> DeviceKindId {
    cost.cluster().place(program.device(role.ranks.first())).device_kind
}

/// Parameters that a rank of a role steps.
fn stepped_parameters(program: &Program, role: &Role) -> u64 {
    let chunks = program.chunks.iter().filter(|chunk: &&Chunk| chunk.stage == role.stage);
    let layout = program.layout.at(role.stage.raw());
    chunks.map(|chunk| cost::memory::stepped_parameters(program.shape_in(&layout), chunk)).sum()
}
