//! Loss and gradients of a whole model against the reference in double precision.

use std::sync::Arc;

use ir::program::{Pass, UnitRange};
use ir::{
    BranchNorms, ChunkId, FeedForward, LayerRun, MicrobatchId, Mixer, MlpKind, Model, ParallelBranches, Positions,
    QueryKeyNorm, VerifiedProgram, Workload,
};

use super::lockstep::{Lockstep, sequences};
use super::programs::{Division, FIRST, program};
use super::reference::Reference;
use super::{gpt2, lively, llama, workload};
use crate::state::Weights;

/// Two microbatches of two sequences.
fn step(model: &Model) -> Arc<VerifiedProgram> {
    let workload = Workload { global_batch: 4, ..workload() };
    program(model, &workload, &Division { microbatches: 2, ..Division::ONE })
}

/// The gradients of one rank after all microbatches, and its loss.
fn gradients(model: &Model, weights: &Weights) -> (Weights, f64) {
    let program = step(model);
    let mut ranks = Lockstep::new(&program, Some(weights));
    ranks.feed(0);
    let rank = &mut ranks.ranks[FIRST.index()];
    let chunk = ChunkId::new(0);
    let units: UnitRange = program.chunk(chunk).all_units();
    for microbatch in (0..program.layout.microbatches).map(MicrobatchId::new) {
        rank.compute(Pass::Forward, chunk, units, microbatch).unwrap();
        rank.compute(Pass::Backward, chunk, units, microbatch).unwrap();
    }
    let mut all = Weights::default();
    rank.chunks.iter().flat_map(|(_, parameters)| parameters.gradient_parts()).for_each(|part| all.put(&part));
    (all, rank.loss().unwrap())
}

fn check(model: &Model) {
    let weights = lively(model);
    assert!(weights.problems(model).is_empty());
    let program = step(model);
    let sequences = sequences(&program, 0);
    let mut reference = Reference::new(model, &weights);
    let mean = |reference: &Reference<'_>| {
        let total: f64 = sequences.iter().map(|s| reference.loss(&s[..s.len() - 1], &s[1..])).sum();
        total / program.workload.tokens_per_iteration() as f64
    };
    let (gradients, loss) = gradients(model, &weights);
    let wanted = mean(&reference);
    assert!(((loss - wanted) / wanted).abs() <= 1e-6, "loss {loss}, reference {wanted}");

    let offset = 1e-5;
    for (name, gradient) in gradients.iter() {
        let scale = gradient.data.iter().fold(1e-3, |scale: f64, value| scale.max(f64::from(value.abs())));
        // Seven elements spread over the tensor.
        for index in (0..7).map(|i| i * (gradient.data.len() - 1) / 6) {
            let mut at = |by: f64| {
                let value = f64::from(weights.get(name).unwrap().data[index]);
                reference.tensors.get_mut(name).unwrap()[index] = value + by;
                mean(&reference)
            };
            let slope = (at(offset) - at(-offset)) / (2.0 * offset);
            at(0.0);
            let error = (f64::from(gradient.data[index]) - slope).abs();
            assert!(error <= 2e-5 * scale, "{name}[{index}]: {} but {slope}, scale {scale}", gradient.data[index]);
        }
    }
}

#[test]
fn llama_gradients_equal_finite_differences() {
    check(&llama());
}

#[test]
fn gpt2_gradients_equal_finite_differences() {
    check(&gpt2());
}

/// Every switch of the model alone: a tied head without biases, biases with rotary positions, one key head for all.
#[test]
fn mixed_models_too() {
    check(&Model { tied_head: true, kv_heads: 1, ..llama() });
    check(&Model { tied_head: false, qkv_bias: false, layers: 1, ..gpt2() });
    check(&Model { qkv_bias: true, mlp_bias: true, layers: 2, ..llama() });
}

/// Every variant of a dense model, alone and with others.
#[test]
fn variants_too() {
    let varied = |model: Model, change: fn(&mut Model)| {
        let mut model = Model { layers: 2, ..model };
        change(&mut model);
        check(&model);
    };
    varied(llama(), |m| m.mlp = MlpKind::GeGlu);
    varied(gpt2(), |m| m.variants.exact_gelu = true);
    varied(llama(), |m| (m.mlp, m.variants.exact_gelu, m.positions) = (MlpKind::GeGlu, true, Positions::None));
    varied(llama(), |m| m.variants.query_key_norm = QueryKeyNorm::Head);
    varied(llama(), |m| m.variants.query_key_norm = QueryKeyNorm::Width);
    varied(gpt2(), |m| m.variants.branch_norms = BranchNorms::After);
    varied(llama(), |m| m.variants.branch_norms = BranchNorms::Both);
    varied(gpt2(), |m| m.variants.parallel_branches = ParallelBranches::OwnNorms);
    varied(llama(), |m| m.variants.parallel_branches = ParallelBranches::OneNorm);
    varied(gpt2(), |m| (m.variants.head_bias, m.variants.plain_norms) = (true, true));
    varied(llama(), |m| {
        let run = |mixer| LayerRun { layers: 1, mixer, feed_forward: FeedForward::Dense };
        (m.variants.pattern, m.variants.window) = (vec![run(Mixer::Window), run(Mixer::Attention)], Some(3));
        m.variants.query_key_norm = QueryKeyNorm::Head;
        m.variants.branch_norms = BranchNorms::Both;
    });
}
