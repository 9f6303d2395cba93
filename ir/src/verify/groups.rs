//! All members of a group issue the same collectives in the same order, and one rank per role stands for all.

use rustc_hash::FxHashMap;

use super::Numbering;
use super::faults::{Faults, subject};
use crate::program::{Group, Op};
use crate::{GroupId, InstructionId, RoleId};

/// No instance.
const NONE: u32 = u32::MAX;

/// For each group, the instance of each rank ([`NONE`] if none holds it).
pub(super) fn instances(faults: &mut Faults<'_>) -> Vec<Vec<u32>> {
    faults.section("groups");
    let world = faults.program.world() as usize;
    faults
        .program
        .groups
        .iter()
        .enumerate()
        .map(|(index, group)| instances_of(faults, GroupId::at(index), group, world))
        .collect()
}

fn instances_of(faults: &mut Faults<'_>, id: GroupId, group: &Group, world: usize) -> Vec<u32> {
    let mut table = vec![NONE; world];
    if group.members.is_empty() || group.shifts.is_empty() {
        faults.add(id.to_string(), "has no members");
        return table;
    }
    if group.shifts.first().raw() != 0 {
        faults.add(id.to_string(), format!("its first shift is {}, not 0", group.shifts.first().raw()));
    }
    for (instance, shift) in (0u32..).zip(group.shifts.iter()) {
        for member in group.members.iter() {
            let rank = member.index() + shift.index();
            match table.get_mut(rank) {
                None => {
                    faults.add(id.to_string(), format!("has rank {rank}, but ranks are 0 to {}", world - 1));
                    return table;
                }
                Some(slot) if *slot != NONE => {
                    let message = format!("rank {rank} is in instance {} and in instance {instance}", *slot);
                    faults.add(id.to_string(), message);
                    return table;
                }
                Some(slot) => *slot = instance,
            }
        }
    }
    table
}

/// Joins the nodes of each collective; false if something does not match.
pub(super) fn check(
    faults: &mut Faults<'_>,
    owners: &[u32],
    instances: &[Vec<u32>],
    numbering: &Numbering,
    nodes: &mut [u32],
) -> bool {
    faults.section("collectives");
    let program = faults.program;
    let roles = program.roles.len();
    // The collectives of each group that each role issues, in order.
    let mut issued: Vec<Vec<InstructionId>> = vec![Vec::new(); program.groups.len() * roles];
    for (role_index, role) in program.roles.iter().enumerate() {
        for (index, instruction) in role.instructions().iter().enumerate() {
            if let Op::Collective { group, .. } = instruction.op {
                issued[group.index() * roles + role_index].push(InstructionId::at(index));
            }
        }
    }
    let mut sound = true;
    for (group, table) in instances.iter().enumerate() {
        let issued = &issued[group * roles..(group + 1) * roles];
        if issued.iter().all(Vec::is_empty) {
            continue;
        }
        let Some(classes) = classes(faults, GroupId::at(group), owners, table, issued) else {
            sound = false;
            continue;
        };
        for members in classes {
            sound &= same_order(faults, &members, issued, numbering, nodes);
        }
    }
    sound
}

/// The sets of roles that meet in instances of a group; `None` if the ranks of a role meet different ones.
fn classes(
    faults: &mut Faults<'_>,
    id: GroupId,
    owners: &[u32],
    table: &[u32],
    issued: &[Vec<InstructionId>],
) -> Option<Vec<Vec<u32>>> {
    let group = &faults.program.groups[id.index()];
    let mut class_of_roles: FxHashMap<Vec<u32>, u32> = FxHashMap::default();
    let mut classes: Vec<Vec<u32>> = Vec::new();
    let mut class_of_instance = Vec::with_capacity(group.shifts.len() as usize);
    for shift in group.shifts.iter() {
        // Counted, not as a set: two instances of the same roles in other numbers are not alike.
        let mut roles: Vec<u32> = group.members.iter().map(|member| owners[member.index() + shift.index()]).collect();
        roles.sort_unstable();
        let class = *class_of_roles.entry(roles).or_insert_with_key(|roles| {
            classes.push(roles.clone());
            u32::try_from(classes.len() - 1).expect("fewer classes than ranks")
        });
        class_of_instance.push(class);
    }
    let mut sound = true;
    let mut used = vec![false; classes.len()];
    for (index, role) in faults.program.roles.iter().enumerate() {
        let Some(first) = issued[index].first().copied() else { continue };
        let class_of = |rank: crate::Rank| class_of_instance.get(table[rank.index()] as usize).copied();
        let expected = class_of(role.ranks.first());
        if let Some(class) = expected {
            used[class as usize] = true;
        }
        let stray = role.ranks.iter().find(|rank| class_of(*rank).is_none() || class_of(*rank) != expected);
        if let Some(rank) = stray {
            sound = false;
            let message = if class_of(rank).is_none() {
                format!("rank {} is in no instance of {id}", rank.raw())
            } else {
                let other = role.ranks.first().raw();
                format!("ranks {other} and {} meet other roles in {id}, so they cannot share a role", rank.raw())
            };
            faults.at(RoleId::at(index), first, message);
        }
    }
    sound.then(|| {
        let mut kept: Vec<Vec<u32>> = classes.into_iter().zip(used).filter(|(_, used)| *used).map(|(c, _)| c).collect();
        kept.iter_mut().for_each(Vec::dedup);
        kept
    })
}

/// Whether the roles of one kind of instance issue the same collectives in the same order.
fn same_order(
    faults: &mut Faults<'_>,
    members: &[u32],
    issued: &[Vec<InstructionId>],
    numbering: &Numbering,
    nodes: &mut [u32],
) -> bool {
    let program = faults.program;
    let lead = members[0] as usize;
    let op = |role: usize, id: InstructionId| program.roles[role].instruction(id).op;
    let mut sound = true;
    for other in members[1..].iter().map(|role| *role as usize) {
        let (ours, theirs) = (&issued[lead], &issued[other]);
        let differs = ours.iter().zip(theirs).find(|(a, b)| op(lead, **a) != op(other, **b));
        if let Some((a, b)) = differs {
            sound = false;
            let message = format!(
                "{} issues another collective at this place of the group's order",
                subject(program, RoleId::at(lead), *a)
            );
            faults.order(RoleId::at(other), *b, message);
        } else if ours.len() != theirs.len() {
            sound = false;
            let (longer, at, shorter) = if ours.len() > theirs.len() {
                (lead, ours[theirs.len()], other)
            } else {
                (other, theirs[ours.len()], lead)
            };
            let message = format!("role{shorter} is a member of the group and does not take part");
            faults.order(RoleId::at(longer), at, message);
        } else {
            for (a, b) in ours.iter().zip(theirs) {
                let (a, b) = (numbering.number(lead, a.index()), numbering.number(other, b.index()));
                nodes[b as usize] = nodes[a as usize];
            }
        }
    }
    sound
}
