//! Any division trains as one rank does.

use ir::program::BufferKind;
use ir::{Bytes, Model, Recompute, ZeroStage};

use super::lockstep::Lockstep;
use super::programs::{Division, program};
use super::{gpt2, llama, workload};
use crate::kernels::testing::long_tests;
use crate::state::{RankState, Weights};

/// Long enough for the warm-up, for weights that have moved, and for moments that matter.
const ITERATIONS: u64 = 20;

/// Largest relative difference of two series.
fn difference(a: &[f64], b: &[f64]) -> f64 {
    assert_eq!(a.len(), b.len());
    a.iter().zip(b).map(|(a, b)| ((a - b) / b).abs()).fold(0.0, f64::max)
}

fn one_rank(model: &Model) -> Vec<f64> {
    Lockstep::new(&program(model, &workload(), &Division { microbatches: 8, ..Division::ONE }), None).train(ITERATIONS)
}

/// Every pair of a tensor and a pipeline division; replicas, recomputation and splitting take turns over them.
fn divisions() -> Vec<Division> {
    let pipelines = [(1, 1), (2, 1), (2, 2), (1, 2), (3, 1)];
    let replicas = [(1, ZeroStage::Zero0), (2, ZeroStage::Zero0), (2, ZeroStage::Zero1)];
    let recomputes = [Recompute::None, Recompute::Selective, Recompute::Full];
    let mut all = Vec::new();
    for (row, (tensor, sequence_parallel)) in [(1, false), (2, false), (2, true), (4, true)].into_iter().enumerate() {
        for (column, (positions, chunks_per_position)) in pipelines.into_iter().enumerate() {
            for (turn, recompute) in recomputes.into_iter().enumerate() {
                let (data, zero) = replicas[(row + column + turn) % 3];
                let split = (row + turn) % 2 == 0;
                let microbatches = if data == 2 && split { 4 } else { 2 };
                let replicas = Division { data, zero, microbatches, ..Division::ONE };
                let pipeline = Division { positions, chunks_per_position, split, recompute, ..replicas };
                all.push(Division { tensor, sequence_parallel, ..pipeline });
            }
        }
    }
    all
}

/// The bound of the whole project is 1e-4; the worst seen here is below 3e-7.
const TOLERANCE: f64 = 2e-6;

fn check_all(model: &Model) {
    let workload = workload();
    let wanted = one_rank(model);
    assert!(*wanted.last().unwrap() < 0.9 * wanted[0], "the model does not learn: {wanted:?}");
    // Four has no factor in common with the turns of pipelines, replicas and recomputation.
    for division in divisions().into_iter().step_by(if long_tests() { 1 } else { 4 }) {
        let mut ranks = Lockstep::new(&program(model, &workload, &division), None);
        let error = difference(&ranks.train(ITERATIONS), &wanted);
        assert!(error <= TOLERANCE, "{division:?}: losses differ by {error:e} from one rank's");
        for rank in &ranks.ranks {
            let held = rank.bytes_held();
            for kind in [BufferKind::Activations, BufferKind::Workspace, BufferKind::Logits] {
                assert_eq!(held[&kind], Bytes::new(0), "{division:?}: {} left", kind.name());
            }
        }
    }
}

#[test]
fn llama_divided_trains_as_one_rank() {
    check_all(&llama());
}

#[test]
fn gpt2_divided_trains_as_one_rank() {
    check_all(&gpt2());
}

/// Before the first step the shards of any division are the slices of the same weights, to the bit.
#[test]
fn every_division_starts_from_the_same_weights() {
    for model in [llama(), gpt2()] {
        let wanted = Weights::initial(&model, workload().seed);
        for division in divisions() {
            let ranks = Lockstep::new(&program(&model, &workload(), &division), None);
            assert_eq!(ranks.weights(), wanted, "{division:?}");
        }
    }
}

/// A tied head of one rank per end: both copies stay equal to the bit.
#[test]
fn copies_of_a_tied_head_stay_equal() {
    let division = Division { positions: 2, tensor: 2, ..Division::ONE };
    let mut ranks = Lockstep::new(&program(&gpt2(), &workload(), &division), None);
    ranks.train(3);
    let table = |rank: &RankState| -> Vec<f32> {
        rank.weights().find(|part| part.name == "embedding.weight").unwrap().data.to_vec()
    };
    for tensor_index in [0, 1] {
        let (first, last) = (table(&ranks.ranks[tensor_index]), table(&ranks.ranks[tensor_index + 2]));
        assert_eq!(first, last);
    }
}

/// The same work in the same order, cut into input and weight gradients or not, recomputed or not.
#[test]
fn split_and_recomputed_passes_give_the_same_bits() {
    for model in [llama(), gpt2()] {
        let train = |split, recompute| {
            let division = Division { split, recompute, ..Division::ONE };
            let mut ranks = Lockstep::new(&program(&model, &workload(), &division), None);
            (ranks.train(3), ranks.weights())
        };
        let wanted = train(false, Recompute::None);
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Operations, Recompute::Full] {
            assert_eq!(train(false, recompute), wanted);
            assert_eq!(train(true, recompute), wanted);
        }
    }
}

/// Weights and moments carried into another division go on as if nothing had happened.
#[test]
fn training_state_survives_a_change_of_division() {
    for model in [llama(), gpt2()] {
        let wanted = one_rank(&model);
        let before = Division { data: 2, tensor: 2, zero: ZeroStage::Zero1, microbatches: 2, ..Division::ONE };
        let after = Division { positions: 2, sequence_parallel: true, tensor: 2, ..Division::ONE };
        let mut ranks = Lockstep::new(&program(&model, &workload(), &before), None);
        let mut losses = ranks.train(ITERATIONS / 2);
        let mut moments = [Weights::default(), Weights::default()];
        for rank in &ranks.ranks {
            for (all, parts) in moments.iter_mut().zip(rank.moments()) {
                parts.iter().for_each(|part| all.put(part));
            }
        }
        let mut next = Lockstep::new(&program(&model, &workload(), &after), Some(&ranks.weights()));
        next.ranks.iter_mut().for_each(|rank| rank.load_moments(&moments[0], &moments[1]));
        losses.extend((ITERATIONS / 2..ITERATIONS).map(|iteration| next.iterate(iteration).unwrap()));
        let error = difference(&losses, &wanted);
        assert!(error <= TOLERANCE, "losses differ by {error:e}");
    }
}
