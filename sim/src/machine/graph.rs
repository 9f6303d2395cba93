//! A program as a dependency graph: one node per instruction of each role's representative rank.
//!
//! Edges are waits and stream order. Where several ranks must come together (a collective, a message) the nodes share
//! a *rendezvous*. A folded role is followed through its first rank: verification has proved that its other ranks see
//! the same, so a rendezvous has one participant per role that takes part.

use ir::program::{Direction, Message};
use ir::{GroupId, Op, Program, Rank, RoleId};
use rustc_hash::FxHashMap;

/// No rendezvous: the node needs nobody else.
pub(super) const ALONE: u32 = u32::MAX;

/// Lists of small numbers, one list per index, stored end to end.
#[derive(Clone, Debug, Default)]
pub(super) struct Lists {
    starts: Vec<u32>,
    items: Vec<u32>,
}

impl Lists {
    /// From (index, item) pairs; the items of an index keep their order.
    fn collect(count: usize, pairs: &[(u32, u32)]) -> Self {
        let mut starts = vec![0u32; count + 1];
        for (index, _) in pairs {
            starts[*index as usize + 1] += 1;
        }
        for index in 0..count {
            starts[index + 1] += starts[index];
        }
        let mut next = starts.clone();
        let mut items = vec![0; pairs.len()];
        for (index, item) in pairs {
            let slot = &mut next[*index as usize];
            items[*slot as usize] = *item;
            *slot += 1;
        }
        Self { starts, items }
    }
    pub(super) fn of(&self, index: u32) -> &[u32] {
        &self.items[self.starts[index as usize] as usize..self.starts[index as usize + 1] as usize]
    }
}

/// What joins the participants of a rendezvous.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(super) enum Meeting {
    /// The sending node.
    Message { sender: u32 },
    /// The group, the roles of the instance (an index into [`Graph::compositions`]) and one participating node.
    Collective { group: GroupId, composition: u32, node: u32 },
}

/// See the [module](self).
#[derive(Debug)]
pub(super) struct Graph {
    /// First node of each role, and one past the last node.
    pub(super) offsets: Vec<u32>,
    /// The role of each node.
    role_of_node: Vec<u32>,
    /// How many predecessors each node has.
    pub(super) predecessors: Vec<u32>,
    /// Successors of each node.
    pub(super) dependents: Lists,
    /// The rendezvous of each node, or [`ALONE`].
    pub(super) rendezvous_of: Vec<u32>,
    /// Nodes of each rendezvous.
    pub(super) participants: Lists,
    /// What each rendezvous is.
    pub(super) meetings: Vec<Meeting>,
    /// Distinct (group, roles of one instance).
    pub(super) compositions: Vec<(GroupId, Vec<RoleId>)>,
    /// The role of each rank.
    pub(super) role_of: Vec<u32>,
}

fn number(value: usize) -> u32 {
    u32::try_from(value).expect("more instructions than u32")
}

impl Graph {
    /// Of a verified program.
    pub(super) fn new(program: &Program) -> Self {
        let mut offsets = vec![0u32];
        for role in &program.roles {
            offsets.push(offsets[offsets.len() - 1] + number(role.instructions().len()));
        }
        let nodes = offsets[program.roles.len()] as usize;
        let roles = 0..program.roles.len();
        let role_of_node =
            roles.flat_map(|role| (offsets[role]..offsets[role + 1]).map(move |_| number(role))).collect();
        let mut graph = Self {
            offsets,
            role_of_node,
            predecessors: vec![0; nodes],
            dependents: Lists::default(),
            rendezvous_of: vec![ALONE; nodes],
            participants: Lists::default(),
            meetings: Vec::new(),
            compositions: Vec::new(),
            role_of: role_of(program),
        };
        graph.join_dependents(program);
        graph.join_meetings(program);
        graph
    }

    /// The role that a node belongs to.
    pub(super) fn role(&self, node: u32) -> usize {
        self.role_of_node[node as usize] as usize
    }

    /// The role that a node belongs to, and its place in the role's list.
    pub(super) fn place(&self, node: u32) -> (usize, usize) {
        let role = self.role(node);
        (role, (node - self.offsets[role]) as usize)
    }

    fn join_dependents(&mut self, program: &Program) {
        let mut edges = Vec::with_capacity(self.predecessors.len() * 3);
        for (index, role) in program.roles.iter().enumerate() {
            let base = self.offsets[index];
            let mut last_on_stream = [None; ir::program::Stream::ALL.len()];
            for (position, instruction) in role.instructions().iter().enumerate() {
                let node = base + number(position);
                let previous = last_on_stream[instruction.stream as usize].replace(node);
                let waits = role.waits(instruction).iter().map(|wait| base + wait.raw());
                for predecessor in previous.into_iter().chain(waits) {
                    edges.push((predecessor, node));
                    self.predecessors[node as usize] += 1;
                }
            }
        }
        self.dependents = Lists::collect(self.predecessors.len(), &edges);
    }

    fn join_meetings(&mut self, program: &Program) {
        let mut sent: FxHashMap<(u32, u32, Message), u32> = FxHashMap::default();
        let mut collectives: FxHashMap<(u32, u32), u32> = FxHashMap::default();
        let mut pairs = Vec::new();
        for (index, role) in program.roles.iter().enumerate() {
            let mut composition_of: FxHashMap<GroupId, (u32, u32)> = FxHashMap::default();
            for (position, instruction) in role.instructions().iter().enumerate() {
                let node = self.offsets[index] + number(position);
                let role_number = number(index);
                let meeting = match instruction.op {
                    Op::Compute { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => continue,
                    Op::Send { peer, message, .. } => {
                        let meetings = &mut self.meetings;
                        *sent
                            .entry((role_number, peer.role.raw(), message))
                            .and_modify(|m| meetings[*m as usize] = Meeting::Message { sender: node })
                            .or_insert_with(|| new_meeting(meetings, Meeting::Message { sender: node }))
                    }
                    Op::Receive { peer, message, .. } => {
                        let meetings = &mut self.meetings;
                        *sent
                            .entry((peer.role.raw(), role_number, message))
                            .or_insert_with(|| new_meeting(meetings, Meeting::Message { sender: node }))
                    }
                    Op::Collective { group, .. } => {
                        let (composition, count) = composition_of
                            .entry(group)
                            .or_insert_with(|| (self.composition(program, group, role.ranks.first()), 0));
                        let key = (*composition, *count);
                        *count += 1;
                        let meetings = &mut self.meetings;
                        *collectives.entry(key).or_insert_with(|| {
                            new_meeting(meetings, Meeting::Collective { group, composition: key.0, node })
                        })
                    }
                };
                self.rendezvous_of[node as usize] = meeting;
                pairs.push((meeting, node));
            }
        }
        self.participants = Lists::collect(self.meetings.len(), &pairs);
    }

    /// The roles of the group instance that holds `rank`, as an index into [`Self::compositions`].
    fn composition(&mut self, program: &Program, group: GroupId, rank: Rank) -> u32 {
        let instance = program.groups[group.index()]
            .instance_of(rank)
            .unwrap_or_else(|| panic!("rank {rank} is in no instance of group {group}"));
        let mut roles: Vec<RoleId> = instance.iter().map(|r| RoleId::new(self.role_of[r.index()])).collect();
        roles.sort_unstable();
        roles.dedup();
        let entry = (group, roles);
        let found = self.compositions.iter().position(|known| *known == entry);
        number(found.unwrap_or_else(|| {
            self.compositions.push(entry);
            self.compositions.len() - 1
        }))
    }
}

fn new_meeting(meetings: &mut Vec<Meeting>, meeting: Meeting) -> u32 {
    meetings.push(meeting);
    number(meetings.len() - 1)
}

fn role_of(program: &Program) -> Vec<u32> {
    let mut roles = vec![0; program.world() as usize];
    for (index, role) in program.roles.iter().enumerate() {
        for rank in role.ranks.iter() {
            roles[rank.index()] = number(index);
        }
    }
    roles
}

/// The word for a direction in messages to people.
pub(super) const fn direction_word(direction: Direction) -> &'static str {
    match direction {
        Direction::Forward => "activation",
        Direction::Backward => "gradient",
    }
}
