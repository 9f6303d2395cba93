//! The plainest reading of a program: every instruction takes its price, nothing shares anything. The oracle of the
//! simulator where no link is shared, and its lower bound where some are.

use std::collections::BTreeMap;

use cost::{CostModel, GroupPlace, Prices};
use ir::program::{Message, Stream};
use ir::{Axis, DeviceId, GroupId, Op, PhysicalLink, Program, Rank, Role};

/// When an instruction could begin, when all its partners could, and when it would end, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Times {
    /// When its stream and its waits let it begin.
    pub issued: u64,
    /// When every partner was there.
    pub start: u64,
    /// When it ended.
    pub end: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
enum Meeting {
    Message(Rank, Rank, Message),
    Collective(GroupId, Rank, u32),
}

#[derive(Clone, Debug, Default)]
struct Partners {
    /// How many there are in all.
    size: usize,
    /// Who came, and when: role, instruction, time.
    came: Vec<(usize, usize, u64)>,
}

/// Times of every instruction of every role of a flat program (role `r` is rank `r`).
///
/// # Panics
/// If the program is not flat, or some instruction never ends.
#[must_use]
pub fn times(program: &Program, cost: &CostModel) -> Vec<Vec<Times>> {
    let mut times: Vec<Vec<Option<Times>>> =
        program.roles.iter().map(|role| vec![None; role.instructions().len()]).collect();
    let keys: Vec<Vec<Option<(Meeting, usize)>>> = program.roles.iter().map(|role| meetings(program, role)).collect();
    let mut partners: BTreeMap<Meeting, Partners> = BTreeMap::new();
    let prices = (0..program.layout.pipeline)
        .map(|position| cost.prepare(program.shape_in(&program.layout.at(position))))
        .collect::<Vec<_>>();
    let mut reached: Vec<Vec<bool>> = times.iter().map(|role| vec![false; role.len()]).collect();
    loop {
        let mut progress = false;
        for (index, role) in program.roles.iter().enumerate() {
            let mut before: [Option<usize>; Stream::ALL.len()] = [None; Stream::ALL.len()];
            for (place, instruction) in role.instructions().iter().enumerate() {
                let previous = before[instruction.stream as usize].replace(place);
                let waits = role.waits(instruction).iter().map(|wait| wait.index());
                let ends = previous.into_iter().chain(waits).map(|wait| times[index][wait].map(|times| times.end));
                let issued = ends.chain([Some(0)]).try_fold(0, |latest: u64, end| Some(latest.max(end?)));
                let Some(issued) = issued.filter(|_| !reached[index][place]) else { continue };
                (reached[index][place], progress) = (true, true);
                let Some((meeting, size)) = keys[index][place] else {
                    let end = issued + duration(program, role, instruction.op, cost);
                    times[index][place] = Some(Times { issued, start: issued, end });
                    continue;
                };
                let partners = partners.entry(meeting).or_insert_with(|| Partners { size, came: Vec::new() });
                partners.came.push((index, place, issued));
                if partners.came.len() == partners.size {
                    let start = partners.came.iter().map(|(_, _, time)| *time).max().unwrap_or(0);
                    let end = start + exposed(program, role, instruction, cost, &prices[role.stage.index()]);
                    for (role, place, issued) in &partners.came {
                        times[*role][*place] = Some(Times { issued: *issued, start, end });
                    }
                }
            }
        }
        if !progress {
            break;
        }
    }
    let whole =
        |role: Vec<Option<Times>>| role.into_iter().map(|times| times.expect("an instruction that ends")).collect();
    times.into_iter().map(whole).collect()
}

/// Of each instruction that needs others: what joins them, and how many they are.
fn meetings(program: &Program, role: &Role) -> Vec<Option<(Meeting, usize)>> {
    assert_eq!(role.ranks.len(), 1, "a flat program has one rank in each role");
    let rank = role.ranks.first();
    let mut counts: BTreeMap<GroupId, u32> = BTreeMap::new();
    let other = |shift: i64| Rank::new(u32::try_from(i64::from(rank.raw()) + shift).expect("a peer in the world"));
    let meeting = |op: Op| match op {
        Op::Send { peer, message, .. } => Some((Meeting::Message(rank, other(peer.shift), message), 2)),
        Op::Receive { peer, message, .. } => Some((Meeting::Message(other(peer.shift), rank, message), 2)),
        Op::Collective { group, .. } => {
            let members = members(program, group, rank);
            let count = counts.entry(group).or_insert(0);
            *count += 1;
            Some((Meeting::Collective(group, members[0], *count), members.len()))
        }
        Op::Compute { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => None,
    };
    role.instructions().iter().map(|instruction| instruction.op).map(meeting).collect()
}

fn members(program: &Program, group: GroupId, rank: Rank) -> Vec<Rank> {
    let instance = program.groups[group.index()].instance_of(rank).expect("a member of the group");
    instance.iter().collect()
}

fn devices(program: &Program, group: GroupId, rank: Rank) -> Vec<DeviceId> {
    members(program, group, rank).into_iter().map(|rank| program.device(rank)).collect()
}

fn duration(program: &Program, role: &Role, op: Op, cost: &CostModel) -> u64 {
    let kind = cost.cluster().place(program.device(role.ranks.first())).device_kind;
    let layout = program.layout.at(role.stage.raw());
    let stepped = || -> u64 {
        let own = program.chunks.iter().filter(|chunk| chunk.stage == role.stage);
        own.map(|chunk| cost::memory::stepped_parameters(program.shape_in(&layout), chunk)).sum()
    };
    let priced = match op {
        Op::Compute { pass, chunk, units, .. } => {
            cost.compute(program.shape_in(&layout), program.chunk(chunk), pass, units, kind)
        }
        Op::GradientNorm => cost.gradient_norm(stepped(), kind),
        Op::Optimizer if program.layout.sharing.offload_optimizer => {
            cost.host_optimizer(stepped(), program.workload.precision, kind)
        }
        Op::Optimizer => cost.optimizer(stepped(), program.workload.precision, program.layout.tensor, kind),
        Op::HostCopy { bytes, .. } => cost.host_copy(bytes, program.device(role.ranks.first())),
        Op::Collective { .. } | Op::Send { .. } | Op::Receive { .. } => panic!("{op:?} has partners"),
    };
    priced.duration.nanoseconds()
}

/// Nanoseconds of a message or collective, less what the device carries out while it waits for launches.
fn exposed(program: &Program, role: &Role, instruction: &ir::Instruction, cost: &CostModel, prices: &Prices) -> u64 {
    let whole = transfer(program, role, instruction.op, cost);
    let kind = cost.cluster().place(program.device(role.ranks.first())).device_kind;
    let of_tensor = match instruction.op {
        Op::Collective { group, .. } => program.groups[group.index()].axis == Axis::Tensor,
        _ => false,
    };
    match role.followed(instruction).filter(|_| of_tensor) {
        Some((chunk, pass, units)) => {
            let hidden = prices.hidden(program.chunk(chunk), pass, units, kind).nanoseconds();
            whole.saturating_sub(hidden).max(1)
        }
        None => whole,
    }
}

/// Nanoseconds of a message or collective alone.
///
/// # Panics
/// If the op has no partners.
#[must_use]
pub fn transfer(program: &Program, role: &Role, op: Op, cost: &CostModel) -> u64 {
    let rank = role.ranks.first();
    let device = |shift: i64| program.device(Rank::new(u32::try_from(i64::from(rank.raw()) + shift).expect("a peer")));
    let priced = match op {
        Op::Send { peer, bytes, .. } => cost.message(bytes, device(0), device(peer.shift)),
        Op::Receive { peer, bytes, .. } => cost.message(bytes, device(peer.shift), device(0)),
        Op::Collective { kind, group, bytes, .. } => {
            let place = GroupPlace::of(cost.cluster(), &devices(program, group, rank));
            cost.collective(kind, bytes, place, program.layout.collective)
        }
        Op::Compute { .. } | Op::GradientNorm | Op::Optimizer | Op::HostCopy { .. } => {
            panic!("{op:?} has no partners")
        }
    };
    priced.duration.nanoseconds()
}

/// Seconds that each link needs for all messages of an iteration of a flat program, with nothing else to carry.
#[must_use]
pub fn link_seconds(program: &Program, cost: &CostModel) -> BTreeMap<PhysicalLink, f64> {
    let cluster = cost.cluster();
    let mut seconds: BTreeMap<PhysicalLink, f64> = BTreeMap::new();
    for role in &program.roles {
        let from = role.ranks.first();
        for instruction in role.instructions() {
            let Op::Send { peer, bytes, .. } = instruction.op else { continue };
            let to = Rank::new(u32::try_from(i64::from(from.raw()) + peer.shift).expect("a peer in the world"));
            for link in cluster.links(program.device(from), program.device(to)) {
                *seconds.entry(link).or_default() += bytes.get() as f64 / cluster.capacity(link).get();
            }
        }
    }
    seconds
}
