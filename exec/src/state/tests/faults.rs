//! What is not finite is found and named; memory does not grow.

use ir::program::{BufferKind, Pass};
use ir::{Bytes, MicrobatchId, Rank, Recompute};

use super::lockstep::Lockstep;
use super::programs::{Division, program};
use super::{gpt2, llama, workload};
use crate::state::{NotFinite, Weights};

fn spoiled(name: &str) -> Weights {
    let mut weights = Weights::initial(&llama(), 1);
    let mut tensor = weights.get(name).unwrap().clone();
    let middle = tensor.data.len() / 2;
    tensor.data[middle] = f32::NAN;
    weights.insert(name, tensor.shape, tensor.data);
    weights
}

#[test]
fn a_weight_that_is_not_a_number_is_named() {
    let division = Division { tensor: 2, positions: 2, ..Division::ONE };
    let check = |name: &str, rank: u32, layer: Option<u32>| {
        let mut ranks = Lockstep::new(&program(&llama(), &workload(), &division), Some(&spoiled(name)));
        let found = ranks.iterate(0).unwrap_err();
        let pass = Some((MicrobatchId::new(0), Pass::Forward));
        let wanted = NotFinite { rank: Rank::new(rank), iteration: 0, layer, pass, tensor: name.to_owned() };
        assert_eq!(found, wanted);
    };
    // The middle of a matrix divided by rows is on the second tensor rank, by columns on either.
    check("layers.1.attention.q.weight", 1, Some(1));
    check("layers.3.mlp.up.weight", 3, Some(3));
    // Ends have no layer; the final norm is on both tensor ranks, of which either may be first.
    for name in ["final_norm.weight", "head.weight"] {
        let found = Lockstep::new(&program(&llama(), &workload(), &division), Some(&spoiled(name))).iterate(0);
        let found = found.unwrap_err();
        assert_eq!((found.layer, found.tensor.as_str()), (None, name));
    }
}

#[test]
fn a_poisoned_rank_is_named_in_its_iteration() {
    let mut ranks = Lockstep::new(&program(&gpt2(), &workload(), &Division { positions: 2, ..Division::ONE }), None);
    ranks.iterate(0).unwrap();
    ranks.ranks[1].poison();
    let found = ranks.iterate(1).unwrap_err();
    assert_eq!((found.rank, found.iteration, found.layer), (Rank::new(1), 1, Some(2)));
    let words = "layers.2.attention_norm.weight in layer 2, forward of microbatch 0, iteration 1, rank 1";
    assert_eq!(found.to_string(), words);
}

#[test]
fn a_gradient_that_is_not_finite_is_named() {
    let mut ranks = Lockstep::new(&program(&gpt2(), &workload(), &Division::ONE), None);
    ranks.iterate(0).unwrap();
    let rank = &mut ranks.ranks[0];
    let parameters = &mut rank.chunks[0].1;
    let shard = parameters.shards.iter().find(|shard| shard.parameter.name == "layers.1.mlp.down.bias").unwrap();
    let piece = parameters.gradients.piece_mut(shard.segment).host();
    piece[shard.range.start] = f32::INFINITY;
    let found = rank.gradient_norm().unwrap_err();
    assert_eq!(found.to_string(), "gradient of layers.1.mlp.down.bias in layer 1, iteration 0, rank 0");
    let before = ranks.weights();
    assert!(ranks.ranks[0].optimizer().is_err());
    assert_eq!(ranks.weights(), before, "nothing is stepped by a gradient that is not finite");
}

/// An iteration's buffers serve the next one, and the peak does not depend on the number of microbatches beyond those
/// in flight.
#[test]
fn memory_does_not_grow() {
    for (split, recompute) in [(false, Recompute::None), (true, Recompute::None), (true, Recompute::Full)] {
        let division = Division { split, recompute, positions: 2, ..Division::ONE };
        let mut ranks = Lockstep::new(&program(&llama(), &workload(), &division), None);
        ranks.train(2);
        let peaks: Vec<_> = ranks.ranks.iter().map(|rank| (rank.peak_bytes(), rank.pool.idle())).collect();
        for iteration in 2..5 {
            ranks.iterate(iteration).unwrap();
        }
        let later: Vec<_> = ranks.ranks.iter().map(|rank| (rank.peak_bytes(), rank.pool.idle())).collect();
        assert_eq!(peaks, later);
    }
}

#[test]
fn recomputation_saves_memory() {
    let peak = |recompute| {
        let mut ranks = Lockstep::new(&program(&llama(), &workload(), &Division { recompute, ..Division::ONE }), None);
        ranks.train(1);
        ranks.ranks[0].peak_bytes()[&BufferKind::Activations]
    };
    let (none, selective, full) = (peak(Recompute::None), peak(Recompute::Selective), peak(Recompute::Full));
    assert!(selective < none && full < selective, "{none:?} {selective:?} {full:?}");
    // Per microbatch and layer one input of [tokens, hidden]; beside them one layer and the final norm.
    let input = Bytes::new(4 * 16 * 16);
    assert!(full.get() >= 4 * 4 * input.get());
    assert!(full.get() <= 4 * 6 * input.get() + none.get() / 12, "{full:?} of {none:?}");
}
