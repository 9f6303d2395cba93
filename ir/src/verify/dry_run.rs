//! Carries the folded program out once, without times: what cannot be reached waits in a circle.
//!
//! An instruction waits for the one before it on its stream and for its listed waits. Both ends of a message, and all
//! members of a collective, are one node. The program can be carried out if and only if this graph has no circle
//! (Kahn 1962).

use super::Numbering;
use super::faults::{Faults, subject};
use crate::program::{Program, Stream};
use crate::{InstructionId, Role, RoleId};

/// Instructions of a circle that are named.
const NAMED: usize = 12;

const NONE: u32 = u32::MAX;

/// What each instruction waits for, one role at a time: waits, and the one before it on its stream.
fn for_each_wait(role: &Role, mut visit: impl FnMut(usize, InstructionId)) {
    let mut last = [NONE; Stream::ALL.len()];
    for (index, instruction) in role.instructions().iter().enumerate() {
        let before = &mut last[instruction.stream as usize];
        if *before != NONE {
            visit(index, InstructionId::new(*before));
        }
        *before = InstructionId::at(index).raw();
        role.waits(instruction).iter().for_each(|wait| visit(index, *wait));
    }
}

/// `nodes[i]` is the node of instruction `i`: the number of the first instruction that happens with it.
pub(super) fn check(faults: &mut Faults<'_>, numbering: &Numbering, nodes: &[u32]) {
    faults.section("order");
    let program = faults.program;
    let size = nodes.len();
    let mut awaited_by_start = vec![0u32; size + 1];
    let mut open_waits = vec![0u32; size];
    for_each_edge(program, numbering, nodes, |from, to| {
        awaited_by_start[from as usize + 1] += 1;
        open_waits[to as usize] += 1;
    });
    for index in 0..size {
        awaited_by_start[index + 1] += awaited_by_start[index];
    }
    let mut next = awaited_by_start.clone();
    let mut awaited_by = vec![0u32; awaited_by_start[size] as usize];
    for_each_edge(program, numbering, nodes, |from, to| {
        let at = &mut next[from as usize];
        awaited_by[*at as usize] = to;
        *at += 1;
    });
    // Followers of a node that is not the first of its kind are empty, so that only true nodes count.
    let is_node = |index: usize| nodes[index] as usize == index;
    let mut ready: Vec<u32> =
        (0u32..).zip(&open_waits).filter(|(n, open)| **open == 0 && is_node(*n as usize)).map(|(n, _)| n).collect();
    while let Some(node) = ready.pop() {
        let followers = awaited_by_start[node as usize] as usize..awaited_by_start[node as usize + 1] as usize;
        for follower in &awaited_by[followers] {
            let open = &mut open_waits[*follower as usize];
            *open -= 1;
            if *open == 0 {
                ready.push(*follower);
            }
        }
    }
    if let Some(stuck) = (0..size).find(|index| is_node(*index) && open_waits[*index] > 0) {
        name_circle(faults, numbering, nodes, &open_waits, stuck);
    }
}

fn for_each_edge(program: &Program, numbering: &Numbering, nodes: &[u32], mut visit: impl FnMut(u32, u32)) {
    for (index, role) in program.roles.iter().enumerate() {
        let own = &nodes[numbering.first[index] as usize..];
        for_each_wait(role, |instruction, wait| visit(own[wait.index()], own[instruction]));
    }
}

/// Follows unmet waits from a stuck node until a node comes again, and reports that circle.
fn name_circle(faults: &mut Faults<'_>, numbering: &Numbering, nodes: &[u32], open_waits: &[u32], stuck: usize) {
    let program = faults.program;
    // For each node, one unmet wait: the instruction that waits and the one it waits for.
    let mut unmet: Vec<(u32, u32)> = vec![(NONE, NONE); nodes.len()];
    for (index, role) in program.roles.iter().enumerate() {
        let first = numbering.first[index];
        for_each_wait(role, |instruction, wait| {
            let (waiting, awaited) = (numbering.number(index, instruction), first + wait.raw());
            let slot = &mut unmet[nodes[waiting as usize] as usize];
            if slot.0 == NONE && open_waits[nodes[awaited as usize] as usize] > 0 {
                *slot = (waiting, awaited);
            }
        });
    }
    let mut order = vec![NONE; nodes.len()];
    let mut path: Vec<(u32, u32)> = Vec::new();
    let mut node = u32::try_from(stuck).expect("counted in u32");
    while order[node as usize] == NONE {
        order[node as usize] = u32::try_from(path.len()).expect("counted in u32");
        let step = unmet[node as usize];
        path.push(step);
        node = nodes[step.1 as usize];
    }
    let circle = &path[order[node as usize] as usize..];
    let name = |number: u32| {
        let (role, instruction) = numbering.place(number);
        subject(program, role, instruction)
    };
    let mut links: Vec<String> = circle
        .iter()
        .take(NAMED)
        .map(|(waiting, awaited)| format!("{} waits for {}", name(*waiting), name(*awaited)))
        .collect();
    if circle.len() > NAMED {
        links.push(format!("{} more", circle.len() - NAMED));
    }
    let (role, instruction): (RoleId, InstructionId) = numbering.place(circle[0].0);
    faults.order(role, instruction, format!("instructions wait for each other in a circle: {}", links.join("; ")));
}
