//! Loss and gradients of a whole model against the reference in double precision.

use std::sync::Arc;

use ir::program::{Pass, UnitRange};
use ir::{
    BranchNorms, ChunkId, Experts, FeedForward, LayerRun, MicrobatchId, Mixer, MlpKind, Model, ParallelBranches,
    Positions, QueryKeyNorm, Router, Scoring, Variants, VerifiedProgram, Workload,
};

use super::lockstep::{Lockstep, sequences};
use super::programs::{Division, FIRST, program};
use super::reference::Reference;
use super::{gpt2, lively, llama, workload};
use crate::state::Weights;
use crate::state::parameters::Parameters;

/// Weight of the loss that balances experts, where there are any.
const BALANCE: f64 = 0.3;

/// Two microbatches of two sequences.
fn step(model: &Model) -> Arc<VerifiedProgram> {
    let recipe = ir::Recipe { balance_loss: BALANCE, ..ir::Recipe::default() };
    let workload = Workload { global_batch: 4, recipe, ..workload() };
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
    rank.all_parameters().flat_map(Parameters::gradient_parts).for_each(|part| all.put(&part));
    (all, rank.loss().unwrap())
}

fn check(model: &Model) {
    let weights = lively(model);
    assert!(weights.problems(model).is_empty());
    let program = step(model);
    let sequences = sequences(&program, 0);
    let mut reference = Reference::new(model, &weights);
    // The loss that is reported, and with what balances experts.
    let mean = |reference: &Reference<'_>| {
        reference.balance.set(0.0);
        let total: f64 = sequences.iter().map(|s| reference.loss(&s[..s.len() - 1], &s[1..])).sum();
        let loss = total / program.workload.tokens_per_iteration() as f64;
        [loss, loss + BALANCE * reference.balance.get() / f64::from(program.workload.global_batch)]
    };
    let (gradients, loss) = gradients(model, &weights);
    let [wanted, _] = mean(&reference);
    assert!(((loss - wanted) / wanted).abs() <= 1e-6, "loss {loss}, reference {wanted}");

    let offset = 1e-5;
    for (name, gradient) in gradients.iter() {
        let scale = gradient.data.iter().fold(1e-3, |scale: f64, value| scale.max(f64::from(value.abs())));
        // Elements spread over the tensor; fewer where there are many tensors.
        let last = if name.contains(".experts.") { 2 } else { 6 };
        for index in (0..=last).map(|i| i * (gradient.data.len() - 1) / last) {
            let value = f64::from(weights.get(name).unwrap().data[index]);
            let mut at = |by: f64| {
                reference.tensors.get_mut(name).unwrap()[index] = value + by;
                mean(&reference)[1]
            };
            let slope = (at(offset) - at(-offset)) / (2.0 * offset);
            reference.tensors.get_mut(name).unwrap()[index] = value;
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

/// A dense layer below layers of experts.
fn routed(model: Model, change: impl FnOnce(&mut Experts)) -> Model {
    let mut experts = Experts {
        count: 5,
        active: 2,
        ffn: 6,
        shared_ffn: 0,
        shared_gate: false,
        mlp: model.mlp,
        bias: false,
        router_bias: false,
        router: Router::default(),
    };
    change(&mut experts);
    let run = |layers, feed_forward| LayerRun { layers, mixer: Mixer::Attention, feed_forward };
    let pattern = vec![run(1, FeedForward::Dense), run(2, FeedForward::Experts)];
    let variants = Variants { experts: Some(experts), pattern, ..Variants::default() };
    Model { layers: 3, variants, ..model }
}

/// Every switch of experts: shared parts with and without a gate, biases, both scorings, weights that add up to one or not.
#[test]
fn experts_too() {
    check(&routed(llama(), |_| {}));
    check(&routed(llama(), |experts| {
        (experts.shared_ffn, experts.shared_gate, experts.active) = (4, true, 1);
        experts.router = Router { scoring: Scoring::Sigmoid, normalised: false };
    }));
    check(&routed(gpt2(), |experts| {
        (experts.shared_ffn, experts.bias, experts.router_bias, experts.active) = (4, true, true, 3);
        experts.router.scoring = Scoring::Sigmoid;
    }));
    check(&routed(gpt2(), |experts| experts.router.normalised = false));
    check(&routed(llama(), |experts| (experts.mlp, experts.shared_ffn) = (MlpKind::GeGlu, 4)));
}
