//! A program made ready for its ranks: stream queues of each, and who meets whom.

use std::collections::BTreeMap;

use ir::program::{CollectiveKind, Message, Op, Payload, Stream};
use ir::{GroupId, InstructionId, Program, Rank, RoleId};

/// Streams of a rank.
pub(super) const STREAMS: usize = Stream::ALL.len();

/// What happens when all ends of a transaction have met.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Exchange {
    /// The first end's tensor goes to the second.
    Message(Message),
    /// All ends put something in, and all get something out.
    Collective(CollectiveKind, Payload),
}

/// One rank's part in a transaction.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct End {
    /// The rank.
    pub(super) rank: usize,
    /// Its stream, by position in [`Stream::ALL`].
    pub(super) stream: usize,
    /// Its instruction.
    pub(super) instruction: InstructionId,
}

/// A message or collective of the iteration, with every rank that takes part.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Transaction {
    /// Which.
    pub(super) exchange: Exchange,
    /// Sender and receiver, or all members in group order.
    pub(super) ends: Vec<End>,
    /// Bytes of the message, or of the whole buffer of the collective.
    pub(super) bytes: u64,
}

impl Transaction {
    /// Whether the end at `index` puts data in.
    pub(super) const fn gives(&self, index: usize) -> bool {
        match self.exchange {
            Exchange::Message(_) => index == 0,
            Exchange::Collective(..) => true,
        }
    }
    /// Whether the end at `index` gets data out.
    pub(super) const fn takes(&self, index: usize) -> bool {
        match self.exchange {
            Exchange::Message(_) => index == 1,
            Exchange::Collective(..) => true,
        }
    }
    /// The rank of the end at `index`.
    pub(super) fn rank_of(&self, index: usize) -> Rank {
        Rank::new(u32::try_from(self.ends[index].rank).expect("ranks are numbered in u32"))
    }
    /// FP32 numbers of the message, or of the whole buffer of the collective.
    pub(super) fn elements(&self) -> usize {
        usize::try_from(self.bytes / 4).expect("a tensor larger than memory")
    }
    /// How many ends put data in.
    pub(super) const fn givers(&self) -> usize {
        match self.exchange {
            Exchange::Message(_) => 1,
            Exchange::Collective(..) => self.ends.len(),
        }
    }
}

/// An end by the numbers of its transaction and of its place in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct EndId {
    /// Position in [`Script::transactions`].
    pub(super) transaction: usize,
    /// Position in [`Transaction::ends`].
    pub(super) end: usize,
}

/// What one rank does.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct RankScript {
    /// Its role in the folded program.
    pub(super) role: RoleId,
    /// Its instructions on each stream, in order.
    pub(super) streams: [Vec<InstructionId>; STREAMS],
    /// Its transactions on each stream, in order.
    pub(super) exchanges: [Vec<EndId>; STREAMS],
    /// The transaction of each instruction that has one.
    pub(super) end_of: Vec<Option<EndId>>,
}

/// What all ranks do.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Script {
    /// Every message and collective of an iteration.
    pub(super) transactions: Vec<Transaction>,
    /// By rank.
    pub(super) ranks: Vec<RankScript>,
}

/// What makes two instructions ends of one transaction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Key {
    Message { from: u32, to: u32, message: Message },
    Collective { group: GroupId, first: Rank, ordinal: u32 },
}

/// The instructions seen so far that share a key.
struct Meeting {
    exchange: Exchange,
    bytes: u64,
    ends: Vec<Option<End>>,
}

impl Script {
    /// Reads a verified program.
    ///
    /// # Panics
    /// If a rank has no role, a message has one end, or a collective misses a member: verification excludes all three.
    pub(super) fn new(program: &Program) -> Self {
        let mut meetings: BTreeMap<Key, Meeting> = BTreeMap::new();
        let mut keys: Vec<Vec<Option<(Key, usize)>>> = Vec::new();
        let mut ranks = Vec::new();
        for number in 0..program.world() {
            let rank = Rank::new(number);
            let role = program.role_of(rank).unwrap_or_else(|| panic!("rank {rank} has no role"));
            ranks.push(RankScript {
                role,
                streams: Default::default(),
                exchanges: Default::default(),
                end_of: vec![None; program.roles[role.index()].instructions().len()],
            });
            keys.push(gather(program, rank, role, &mut ranks[rank.index()].streams, &mut meetings));
        }
        let numbers: BTreeMap<Key, usize> = meetings.keys().enumerate().map(|(number, key)| (*key, number)).collect();
        let transactions = meetings.into_values().map(Meeting::complete).collect();
        for (script, keys) in ranks.iter_mut().zip(keys) {
            for (end_of, key) in script.end_of.iter_mut().zip(keys) {
                *end_of = key.map(|(key, end)| EndId { transaction: numbers[&key], end });
            }
            for (exchanges, stream) in script.exchanges.iter_mut().zip(&script.streams) {
                exchanges.extend(stream.iter().filter_map(|id| script.end_of[id.index()]));
            }
        }
        Self { transactions, ranks }
    }
}

/// Puts a rank's instructions into its stream queues and its ends into `meetings`; gives the key and place of each end.
fn gather(
    program: &Program,
    rank: Rank,
    role: RoleId,
    streams: &mut [Vec<InstructionId>; STREAMS],
    meetings: &mut BTreeMap<Key, Meeting>,
) -> Vec<Option<(Key, usize)>> {
    let mut ordinals: BTreeMap<GroupId, u32> = BTreeMap::new();
    let mut keys = Vec::new();
    for (index, instruction) in program.roles[role.index()].instructions().iter().enumerate() {
        let id = InstructionId::at(index);
        let stream = stream_index(instruction.stream);
        streams[stream].push(id);
        let met = match instruction.op {
            Op::Compute { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => None,
            Op::Send { peer, message, bytes } => {
                let to = peer_rank(rank, peer.shift);
                Some((Key::Message { from: rank.raw(), to, message }, 0, 2, Exchange::Message(message), bytes))
            }
            Op::Receive { peer, message, bytes } => {
                let from = peer_rank(rank, peer.shift);
                Some((Key::Message { from, to: rank.raw(), message }, 1, 2, Exchange::Message(message), bytes))
            }
            Op::Collective { kind, group, payload, bytes } => {
                let members = program.groups[group.index()]
                    .instance_of(rank)
                    .unwrap_or_else(|| panic!("rank {rank} issues {id} over group {group} without being in it"));
                let ordinal = ordinals.entry(group).or_default();
                let key = Key::Collective { group, first: members.first(), ordinal: *ordinal };
                *ordinal += 1;
                let place = members.index_of(rank).expect("the instance of a rank holds it") as usize;
                Some((key, place, members.len() as usize, Exchange::Collective(kind, payload), bytes))
            }
        };
        keys.push(met.map(|(key, place, size, exchange, bytes)| {
            let empty = || Meeting { exchange, bytes: bytes.get(), ends: vec![None; size] };
            let meeting = meetings.entry(key).or_insert_with(empty);
            assert_eq!(meeting.exchange, exchange, "ends of one transaction differ, at {id} of rank {rank}");
            let end = End { rank: rank.index(), stream, instruction: id };
            assert!(meeting.ends[place].replace(end).is_none(), "rank {rank} takes part twice, at {id}");
            (key, place)
        }));
    }
    keys
}

impl Meeting {
    fn complete(self) -> Transaction {
        let Self { exchange, bytes, ends } = self;
        let whole = |end: Option<End>| end.unwrap_or_else(|| panic!("{exchange:?} misses an end; others: {ends:?}"));
        let ends = ends.clone().into_iter().map(whole).collect();
        Transaction { exchange, ends, bytes }
    }
}

fn peer_rank(rank: Rank, shift: i64) -> u32 {
    u32::try_from(i64::from(rank.raw()) + shift).unwrap_or_else(|_| panic!("rank {rank} has a peer {shift} away"))
}

/// A stream's position in [`Stream::ALL`].
pub(super) const fn stream_index(stream: Stream) -> usize {
    match stream {
        Stream::Compute => 0,
        Stream::Tensor => 1,
        Stream::ForwardSend => 2,
        Stream::ForwardReceive => 3,
        Stream::BackwardSend => 4,
        Stream::BackwardReceive => 5,
        Stream::Data => 6,
        Stream::Context => 7,
        Stream::Expert => 8,
        Stream::Shard => 9,
        Stream::Host => 10,
    }
}
