//! The text form of a program: prints, reads well, and parses back to an equal program.
//!
//! ```text
//! trainyard program, version 1
//! [model]                                    # model, workload and layout as TOML
//! hidden = 4096
//! [workload]
//! [layout]
//! [program]                                  # from here one thing per line
//! c0 on s0 layers 0..2 recompute none embedding
//! g0 tensor members 0..8 shifts 0..64/8      # instance i is the members moved by shift i
//! placement 8..16,0..8                       # device of each rank; absent if rank r is on device r
//! role0 on s0 ranks 0..32
//! b0 weights 1000B resident
//! i0 compute forward c0 u0..9 m0 on compute wait i3,i4 allocate b1 use b0 free b2
//! ```

use std::fmt::{Display, Write};

use serde::{Deserialize, Serialize};

use super::{Access, Chunk, Group, Instruction, Layout, Program, Role};
use crate::{DeviceId, Model, Recompute, Workload};

mod parse;
#[cfg(test)]
mod tests;
mod words;

pub use parse::parse;

const FIRST_LINE: &str = "trainyard program, version 1";
const BODY: &str = "[program]";

/// The part in TOML. A seed may exceed TOML's integers, so it is a text of its own.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Header {
    seed: String,
    model: Model,
    workload: Workload,
    layout: Layout,
}

/// Prints a program.
#[must_use]
pub fn print(program: &Program) -> String {
    let mut text = String::with_capacity(4096 + 96 * program.instructions());
    let mut line = |line: std::fmt::Arguments<'_>| writeln!(text, "{line}").expect("a string takes all text");
    line(format_args!("{FIRST_LINE}\n{}", header(program)));
    line(format_args!("{BODY}"));
    for (index, chunk) in program.chunks.iter().enumerate() {
        line(format_args!("c{index} {}", ChunkWords(chunk)));
    }
    for (index, group) in program.groups.iter().enumerate() {
        line(format_args!("g{index} {}", GroupWords(group)));
    }
    if !program.placement.is_empty() {
        line(format_args!("placement {}", DeviceWords(&program.placement)));
    }
    for (index, role) in program.roles.iter().enumerate() {
        line(format_args!("role{index} on {} ranks {}", role.stage, role.ranks));
        for (index, buffer) in role.buffers.iter().enumerate() {
            let resident = if buffer.resident { " resident" } else { "" };
            line(format_args!("b{index} {} {}B{resident}", buffer.kind.name(), buffer.bytes.get()));
        }
        for (index, instruction) in role.instructions().iter().enumerate() {
            line(format_args!("i{index} {}", InstructionWords(role, instruction)));
        }
    }
    text
}

/// Model, workload and layout.
pub(super) fn header(program: &Program) -> String {
    let header = Header {
        seed: program.workload.seed.to_string(),
        model: program.model.clone(),
        workload: Workload { seed: 0, ..program.workload.clone() },
        layout: program.layout.clone(),
    };
    toml::to_string(&header).expect("a table of numbers, words and tables of these")
}

pub(super) struct ChunkWords<'a>(pub(super) &'a Chunk);

impl Display for ChunkWords<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Chunk { stage, first_layer, layers, embedding, head, recompute, recomputed_layers } = self.0;
        let end = u64::from(*first_layer) + u64::from(*layers);
        let recompute = recompute_name(*recompute);
        write!(f, "on {stage} layers {first_layer}..{end} recompute {recompute}")?;
        if recomputed_layers != layers {
            write!(f, " of {recomputed_layers}")?;
        }
        f.write_str(if *embedding { " embedding" } else { "" })?;
        f.write_str(if *head { " head" } else { "" })
    }
}

const fn recompute_name(recompute: Recompute) -> &'static str {
    match recompute {
        Recompute::None => "none",
        Recompute::Selective => "selective",
        Recompute::Operations => "operations",
        Recompute::Full => "full",
    }
}

pub(super) struct GroupWords<'a>(pub(super) &'a Group);

impl Display for GroupWords<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Group { axis, members, shifts } = self.0;
        write!(f, "{} members {members} shifts {shifts}", axis.name())
    }
}

/// Devices in order of rank, neighbours that follow each other joined.
struct DeviceWords<'a>(&'a [DeviceId]);

impl Display for DeviceWords<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let follows = |a: &DeviceId, b: &DeviceId| a.raw().checked_add(1) == Some(b.raw());
        for (index, run) in self.0.chunk_by(follows).enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            match run {
                [one] => write!(f, "{}", one.raw())?,
                _ => write!(f, "{}..{}", run[0].raw(), u64::from(run[0].raw()) + run.len() as u64)?,
            }
        }
        Ok(())
    }
}

struct InstructionWords<'a>(&'a Role, &'a Instruction);

impl Display for InstructionWords<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self(role, instruction) = *self;
        write!(f, "{} on {}", instruction.op, instruction.stream.name())?;
        for (index, wait) in role.waits(instruction).iter().enumerate() {
            write!(f, "{}{wait}", if index == 0 { " wait " } else { "," })?;
        }
        let mut previous = None;
        for (buffer, access) in role.accesses(instruction) {
            if previous == Some(*access) {
                write!(f, ",{buffer}")?;
            } else {
                write!(f, " {} {buffer}", access_name(*access))?;
            }
            previous = Some(*access);
        }
        Ok(())
    }
}

const fn access_name(access: Access) -> &'static str {
    match access {
        Access::Allocate => "allocate",
        Access::Use => "use",
        Access::Free => "free",
    }
}
