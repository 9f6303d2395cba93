//! Sizes, ranks, devices, chunks: what instructions refer to.

use super::faults::Faults;
use crate::Rank;

/// The largest world: verification keeps a few words per rank.
const MOST_RANKS: u64 = 1 << 24;
/// The most microbatches of an iteration on one replica.
const MOST_MICROBATCHES: u32 = 1 << 20;
/// The most layers, so that positions of units fit well into 32 bits.
const MOST_LAYERS: u32 = 1 << 24;

/// The role of each rank; `None` if nothing more can be checked.
pub(super) fn check(faults: &mut Faults<'_>) -> Option<Vec<u32>> {
    faults.section("size");
    let program = faults.program;
    let layout = &program.layout;
    for (name, size) in [
        ("data", layout.data),
        ("tensor", layout.tensor),
        ("pipeline", layout.pipeline),
        ("mesh.context", layout.mesh.context),
        ("mesh.expert", layout.mesh.expert),
        ("mesh.expert_tensor", layout.mesh.expert_tensor),
        ("microbatch_size", layout.microbatch_size),
        ("microbatches", layout.microbatches),
    ] {
        if size == 0 {
            faults.add(format!("layout.{name}"), "is zero");
        }
    }
    if layout.microbatches > MOST_MICROBATCHES {
        faults.add("layout.microbatches", format!("{} is over {MOST_MICROBATCHES}", layout.microbatches));
    }
    if let Some(fault) = layout.shares.fault(layout.data, layout.microbatches) {
        faults.add("layout.shares", fault);
    }
    tensors(faults);
    let degrees = [layout.data, layout.mesh.context, layout.tensor, layout.pipeline];
    let world = degrees.iter().try_fold(1u64, |world, d| world.checked_mul(u64::from(*d))).unwrap_or(u64::MAX);
    if world > MOST_RANKS {
        faults.add("layout", format!("{} ranks are over {MOST_RANKS}", degrees.map(|d| d.to_string()).join(" x ")));
    }
    if !faults.is_empty() {
        return None;
    }
    let world = usize::try_from(layout.world()).expect("limited above");
    let owners = owners(faults, world);
    placement(faults, world);
    chunks(faults);
    faults.is_empty().then_some(owners)
}

/// Tensor degrees of positions, where they are not one: as many as positions, the greatest the layout's, and not all
/// alike.
fn tensors(faults: &mut Faults<'_>) {
    let layout = &faults.program.layout;
    let tensors = &layout.tensors;
    if tensors.is_empty() {
        return;
    }
    let alone = layout.mesh.context == 1 && faults.program.model.variants.experts.is_none();
    let fault = if tensors.len() != layout.pipeline as usize {
        format!("are {} for {} positions", tensors.len(), layout.pipeline)
    } else if tensors.contains(&0) {
        "are zero somewhere".to_owned()
    } else if tensors.iter().max() != Some(&layout.tensor) || tensors.iter().all(|tensor| *tensor == layout.tensor) {
        format!("are {tensors:?}, of which {} is not the most, or all are alike", layout.tensor)
    } else if !alone {
        "differ beside shared sequences or experts".to_owned()
    } else {
        return;
    };
    faults.add("layout.tensors", fault);
}

fn owners(faults: &mut Faults<'_>, world: usize) -> Vec<u32> {
    faults.section("ranks");
    const NONE: u32 = u32::MAX;
    let mut owners = vec![NONE; world];
    for (index, role) in faults.program.roles.iter().enumerate() {
        let name = format!("role{index}");
        if role.ranks.is_empty() {
            faults.add(&name, "has no rank");
        }
        if role.stage.raw() >= faults.program.layout.pipeline {
            faults.add(&name, format!("is on position {}, past the last one", role.stage.raw()));
        }
        for rank in role.ranks.iter() {
            match owners.get_mut(rank.index()) {
                None => {
                    faults.add(&name, format!("has rank {}, but ranks are 0 to {}", rank.raw(), world - 1));
                    break;
                }
                Some(owner) if *owner != NONE => {
                    let other = *owner;
                    faults.add(&name, format!("has rank {}, which is also of role{other}", rank.raw()));
                }
                Some(owner) => *owner = u32::try_from(index).expect("fewer roles than 2^32"),
            }
        }
    }
    let without = owners.iter().filter(|owner| **owner == NONE).count();
    if let Some(first) = owners.iter().position(|owner| *owner == NONE) {
        faults.add("program", format!("rank {first} has no role ({without} of {world} ranks have none)"));
    }
    owners
}

fn placement(faults: &mut Faults<'_>, world: usize) {
    faults.section("placement");
    let placement = &faults.program.placement;
    if placement.is_empty() {
        return;
    }
    if placement.len() != world {
        faults.add("placement", format!("names {} devices for {world} ranks", placement.len()));
        return;
    }
    let mut by_device: Vec<_> = placement.iter().zip(0u32..).map(|(device, rank)| (*device, Rank::new(rank))).collect();
    by_device.sort_unstable();
    for pair in by_device.windows(2).filter(|pair| pair[0].0 == pair[1].0) {
        let (device, first, second) = (pair[0].0.raw(), pair[0].1.raw(), pair[1].1.raw());
        faults.add("placement", format!("device {device} has rank {first} and rank {second}"));
    }
}

fn chunks(faults: &mut Faults<'_>) {
    faults.section("layers");
    let program = faults.program;
    if program.chunks.is_empty() {
        faults.add("chunks", "there is none");
        return;
    }
    if program.model.layers > MOST_LAYERS {
        faults.add("model.layers", format!("{} is over {MOST_LAYERS}", program.model.layers));
        return;
    }
    let divided = !program.layout.sharing.vocabulary.is_ends();
    let slices = if divided { program.layout.pipeline as usize } else { 0 };
    let Some(main) = program.chunks.len().checked_sub(slices).filter(|main| *main > 0) else {
        faults.add("chunks", format!("are {}, which is no model beside {slices} slices", program.chunks.len()));
        return;
    };
    slices_of_vocabulary(faults, main);
    let mut next = 0u64;
    let last = main - 1;
    for (index, chunk) in program.chunks[..main].iter().enumerate() {
        let name = format!("c{index}");
        if chunk.stage.raw() >= program.layout.pipeline {
            faults.add(&name, format!("is on position {}, past the last one", chunk.stage.raw()));
        }
        if u64::from(chunk.first_layer) != next {
            faults.add(&name, format!("begins with layer {}, but layer {next} is next", chunk.first_layer));
        }
        next = u64::from(chunk.first_layer) + u64::from(chunk.layers);
        let part = |has: bool, should: bool, what: &str| match (has, should) {
            (true, false) => Some(format!("has the {what}, which belongs to another chunk")),
            (false, true) => Some(format!("lacks the {what}")),
            (true, true) | (false, false) => None,
        };
        let wrong = [
            part(chunk.embedding, index == 0 && !divided, "embedding"),
            part(chunk.head, index == last && !divided, "head"),
        ];
        wrong.into_iter().flatten().for_each(|message| faults.add(&name, message));
        if chunk.layers == 0 && !chunk.embedding && !chunk.head {
            faults.add(&name, "holds nothing");
        }
    }
    let total: u64 = program.chunks[..main].iter().map(|chunk| u64::from(chunk.layers)).sum();
    if total != u64::from(program.model.layers) {
        faults.add("chunks", format!("hold {total} layers, but the model has {}", program.model.layers));
    }
}

/// Where the vocabulary is divided over positions: after the model's chunks one slice for each position, in order, with an
/// embedding, a head and no layer.
fn slices_of_vocabulary(faults: &mut Faults<'_>, main: usize) {
    let program = faults.program;
    for (position, (number, chunk)) in (0u32..).zip(program.chunks.iter().enumerate().skip(main)) {
        let name = format!("c{number}");
        if chunk.stage.raw() != position {
            faults.add(&name, format!("is the slice of position {position} and on position {}", chunk.stage.raw()));
        }
        if chunk.layers > 0 || !chunk.embedding || !chunk.head {
            faults.add(&name, "is no slice of the vocabulary: an embedding and a head without layers");
        }
    }
}
