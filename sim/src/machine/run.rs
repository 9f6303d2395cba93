//! One iteration, event by event.
//!
//! An instant has two halves: everything that ends in it ends, then everything that can start starts. Events are ends
//! only. What starts is issued in the order in which it became ready, so that ties are broken by insertion and by
//! nothing else.

use cost::Slowing;
use ir::program::Stream;
use ir::{Bytes, InstructionId, Lane, Program, RoleId, SimTime, Span};
use rustc_hash::FxHashMap;

use super::beside::{Beside, Slot};
use super::graph::{ALONE, Graph, direction_word};
use super::memory::Memory;
use super::network::Network;
use super::prices::Prices;
use crate::fabric::flows::{Flows, NEVER};
use crate::fabric::{FlowId, FlowSpec};
use crate::queue::{Key, Queue};

/// What an event ends.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum End {
    /// A node that needed nobody else.
    Node(u32),
    /// A rendezvous that had its links for itself.
    Rendezvous(u32),
    /// A rendezvous that shares links: the flow of this slot.
    Flow(u32),
}

/// What an iteration is run on.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stage<'a> {
    pub(super) program: &'a Program,
    pub(super) graph: &'a Graph,
    pub(super) prices: &'a Prices,
    pub(super) network: &'a Network,
    pub(super) memory: &'a Memory,
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Run<'a, Q> {
    stage: Stage<'a>,
    queue: Q,
    flows: Flows,
    /// Of each flow slot: the rendezvous and the flow.
    flow_of: Vec<Option<(u32, FlowId)>>,
    /// Where compute and exchanges slow each other.
    slowed: Option<Slowed>,
    waiting: Vec<u32>,
    missing: Vec<u32>,
    ready: Vec<u32>,
    unfinished: usize,
    lanes: Vec<Lane>,
    in_use: Vec<u64>,
}

/// Work under way where compute and exchanges slow each other.
#[derive(Debug)]
struct Slowed {
    beside: Beside,
    /// By slot.
    work: Vec<Under>,
    /// The slot of each node, or of the rendezvous by its first node.
    slot_of: FxHashMap<u32, Slot>,
}

/// What a slot stands for.
#[derive(Clone, Copy, Debug)]
enum Under {
    /// What ends when nothing but its rate stretches it.
    Alone(End),
    /// A flow, and what it has at most alone.
    Flow(FlowId, u64),
}

impl Slowed {
    fn start(&mut self, now: u64, node: u32, roles: impl Iterator<Item = u32>, (alone, under): (u64, Under)) {
        let is_compute = matches!(under, Under::Alone(End::Node(_)));
        let slot = self.beside.start(now, roles, is_compute, alone);
        let at = slot as usize;
        if at == self.work.len() {
            self.work.push(under);
        } else {
            self.work[at] = under;
        }
        self.slot_of.insert(node, slot);
    }
    fn end(&mut self, node: u32) {
        if let Some(slot) = self.slot_of.remove(&node) {
            self.beside.end(slot);
        }
    }
}

/// A span of which nothing is known yet.
const BLANK: Span =
    Span { instruction: InstructionId::new(0), issued: SimTime::NEVER, start: SimTime::NEVER, end: SimTime::NEVER };

impl<'a, Q: Queue<End>> Run<'a, Q> {
    pub(super) fn new(stage: Stage<'a>, queue: Q) -> Self {
        let Stage { program, graph, prices, network, memory } = stage;
        let rendezvous = graph.meetings.len();
        let missing = (0..rendezvous).map(|r| length(graph.participants.of(number(r)))).collect();
        let lanes = program.roles.iter().enumerate().map(|(index, role)| {
            let mut changes = Vec::with_capacity(memory.changes[index] + 1);
            changes.push((SimTime::ZERO, memory.resident[index]));
            Lane {
                role: RoleId::at(index),
                rank: role.ranks.first(),
                multiplicity: role.ranks.len(),
                spans: vec![BLANK; role.instructions().len()],
                memory: changes,
            }
        });
        let ready = (0..number(graph.predecessors.len())).filter(|n| graph.predecessors[*n as usize] == 0).collect();
        Self {
            stage,
            queue,
            flows: network.flows(),
            flow_of: Vec::new(),
            slowed: Beside::new(&prices.slowing).map(|beside| Slowed {
                beside,
                work: Vec::new(),
                slot_of: FxHashMap::default(),
            }),
            waiting: graph.predecessors.clone(),
            missing,
            ready,
            unfinished: graph.predecessors.len(),
            lanes: lanes.collect(),
            in_use: memory.resident.iter().map(|bytes| bytes.get()).collect(),
        }
    }

    /// Runs to the end.
    ///
    /// # Errors
    /// If instructions are left that nothing will ever let start: the first of them, in words, with its role.
    pub(super) fn finish(mut self) -> Result<Vec<Lane>, (RoleId, String)> {
        let mut now = 0;
        let mut ends = Vec::new();
        loop {
            self.start_all(now);
            match self.queue.drain_instant(&mut ends) {
                Some(instant) => now = instant,
                None => break,
            }
            for end in ends.drain(..) {
                self.end(now, end);
            }
        }
        if self.unfinished == 0 { Ok(self.lanes) } else { Err(self.stuck()) }
    }

    fn start_all(&mut self, now: u64) {
        let mut ready = std::mem::take(&mut self.ready);
        for node in ready.drain(..) {
            self.issue(now, node);
        }
        self.ready = ready;
        self.pace(now);
        let keys = u32::from(self.slowed.is_some());
        for change in self.flows.update(now) {
            // Beside the keys of flows those of slots, where there are any.
            let key = Key::new((change.flow.slot() << keys) + keys);
            if change.at == NEVER {
                self.queue.cancel(key);
            } else {
                self.queue.schedule(key, change.at, End::Flow(change.flow.slot()));
            }
        }
    }

    /// Lets what started and ended in an instant change the pace of what is beside it.
    fn pace(&mut self, now: u64) {
        let Some(slowed) = &mut self.slowed else { return };
        for change in slowed.beside.update(now) {
            match slowed.work[change.slot as usize] {
                Under::Alone(end) => self.queue.schedule(Key::new(change.slot << 1), change.end, end),
                Under::Flow(flow, cap) => {
                    let cap = u128::from(cap) * u128::from(change.rate) / u128::from(Slowing::WHOLE);
                    let cap = u64::try_from(cap).expect("at most the cap alone").max(1);
                    if self.flows.solver().cap(flow) != cap {
                        self.flows.set_cap(now, flow, cap);
                    }
                }
            }
        }
    }

    fn issue(&mut self, now: u64, node: u32) {
        let (role, index) = self.stage.graph.place(node);
        let span = &mut self.lanes[role].spans[index];
        span.instruction = InstructionId::at(index);
        span.issued = SimTime::from_nanoseconds(now);
        let rendezvous = self.stage.graph.rendezvous_of[node as usize];
        if rendezvous == ALONE {
            span.start = span.issued;
            self.take(now, node, role);
            self.alone(now, node, role);
            return;
        }
        self.missing[rendezvous as usize] -= 1;
        if self.missing[rendezvous as usize] > 0 {
            return;
        }
        for participant in self.stage.graph.participants.of(rendezvous) {
            self.start(now, *participant);
        }
        let transfer = self.stage.prices.transfers[rendezvous as usize];
        let under = match &self.stage.network.routes[self.stage.network.kind_of[rendezvous as usize] as usize] {
            None if self.slowed.is_none() => {
                return self.queue.push(now + transfer.alone, End::Rendezvous(rendezvous));
            }
            None => Under::Alone(End::Rendezvous(rendezvous)),
            Some(route) => {
                let spec = FlowSpec { cap: transfer.cap(route.limit), count: 1, hops: &route.hops };
                let flow = self.flows.start(now, transfer.alone, spec);
                let slot = flow.slot() as usize;
                if slot >= self.flow_of.len() {
                    self.flow_of.resize(slot + 1, None);
                }
                self.flow_of[slot] = Some((rendezvous, flow));
                Under::Flow(flow, spec.cap)
            }
        };
        if let Some(slowed) = &mut self.slowed {
            let nodes = self.stage.graph.participants.of(rendezvous);
            let roles = nodes.iter().map(|node| number(self.stage.graph.role(*node)));
            slowed.start(now, nodes[0], roles, (transfer.alone, under));
        }
    }

    /// A node that needs nobody else: compute, or a copy, which nothing slows.
    fn alone(&mut self, now: u64, node: u32, role: usize) {
        let alone = self.stage.prices.local[node as usize];
        let (_, index) = self.stage.graph.place(node);
        let computes = self.stage.program.roles[role].instructions()[index].stream == Stream::Compute;
        match &mut self.slowed {
            Some(slowed) if computes => {
                let under = Under::Alone(End::Node(node));
                slowed.start(now, node, std::iter::once(number(role)), (alone, under));
            }
            _ => self.queue.push(now + alone, End::Node(node)),
        }
    }

    fn start(&mut self, now: u64, node: u32) {
        let (role, index) = self.stage.graph.place(node);
        self.lanes[role].spans[index].start = SimTime::from_nanoseconds(now);
        self.take(now, node, role);
    }

    /// A node of a role takes the memory that it needs.
    fn take(&mut self, now: u64, node: u32, role: usize) {
        let taken = self.stage.memory.taken[node as usize];
        if taken > 0 {
            self.hold(now, role, self.in_use[role] + taken);
        }
    }

    fn end(&mut self, now: u64, end: End) {
        let rendezvous = match end {
            End::Node(node) => {
                if let Some(slowed) = &mut self.slowed {
                    slowed.end(node);
                }
                return self.end_node(now, node);
            }
            End::Rendezvous(rendezvous) => rendezvous,
            End::Flow(slot) => {
                let (rendezvous, flow) = self.flow_of[slot as usize].take().expect("an end for each flow");
                self.flows.finish(now, flow);
                rendezvous
            }
        };
        let participants = self.stage.graph.participants.of(rendezvous);
        if let Some(slowed) = &mut self.slowed {
            slowed.end(participants[0]);
        }
        for participant in participants {
            self.end_node(now, *participant);
        }
    }

    fn end_node(&mut self, now: u64, node: u32) {
        let (role, index) = self.stage.graph.place(node);
        self.lanes[role].spans[index].end = SimTime::from_nanoseconds(now);
        let given = self.stage.memory.given[node as usize];
        if given > 0 {
            let left = self.in_use[role].checked_sub(given).expect("verified: freed after it was allocated");
            self.hold(now, role, left);
        }
        self.unfinished -= 1;
        for dependent in self.stage.graph.dependents.of(node) {
            self.waiting[*dependent as usize] -= 1;
            if self.waiting[*dependent as usize] == 0 {
                self.ready.push(*dependent);
            }
        }
    }

    /// Notes what a rank of a role holds from now on: of one instant, all that was given back and all that was taken then,
    /// each as one change, so that the order of what happens at once is not in it.
    fn hold(&mut self, now: u64, role: usize, bytes: u64) {
        let grows = bytes > self.in_use[role];
        self.in_use[role] = bytes;
        let (now, bytes) = (SimTime::from_nanoseconds(now), Bytes::new(bytes));
        if let [.., (_, before), last] = self.lanes[role].memory.as_mut_slice()
            && last.0 == now
            && (last.1 > *before) == grows
        {
            last.1 = bytes;
        } else {
            self.lanes[role].memory.push((now, bytes));
        }
    }

    /// The first unfinished instruction that has been reached, or failing that the first unfinished one, and its partner.
    fn stuck(&self) -> (RoleId, String) {
        let graph = self.stage.graph;
        let spans = self.lanes.iter().enumerate().flat_map(|(role, lane)| {
            lane.spans.iter().enumerate().map(move |(index, span)| (role, InstructionId::at(index), span))
        });
        let (role, instruction, _) = spans
            .filter(|(_, _, span)| span.end == SimTime::NEVER)
            .min_by_key(|(_, _, span)| span.issued)
            .expect("called with unfinished instructions");
        let node = graph.offsets[role] + instruction.raw();
        let op = self.stage.program.roles[role].instruction(instruction).op;
        let what = match op {
            ir::Op::Send { message, peer, .. } | ir::Op::Receive { message, peer, .. } => format!(
                "the {} of microbatch {} over edge {} waits for {}",
                direction_word(message.direction),
                message.microbatch.raw(),
                message.edge.raw(),
                peer.role
            ),
            ir::Op::Collective { .. } => {
                let mut places =
                    graph.participants.of(graph.rendezvous_of[node as usize]).iter().map(|other| graph.place(*other));
                let absent = places.find(|(role, index)| self.lanes[*role].spans[*index].issued == SimTime::NEVER);
                let absent = absent.map_or(role, |(role, _)| role);
                format!("a collective waits for role{absent}")
            }
            ir::Op::Compute { .. } | ir::Op::GradientNorm | ir::Op::Optimizer | ir::Op::HostCopy { .. } => {
                "it was never reached".into()
            }
        };
        (RoleId::at(role), format!("instruction {instruction} ({op:?}) cannot end: {what}"))
    }
}

fn number(value: usize) -> u32 {
    u32::try_from(value).expect("more instructions than u32")
}

fn length(list: &[u32]) -> u32 {
    number(list.len())
}
