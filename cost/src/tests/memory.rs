//! Memory against published formulas.

use ir::counts::UnitKind;
use ir::program::{Pass, UnitRange};
use ir::{AttentionKernel, Bytes, ContextMethod, GradientFormat, LogitCopies, Precision, Recompute, ZeroStage};

use super::fixtures::*;
use super::memory_models::{deepseek, jamba, latent, llama, mixtral};
use crate::memory::{
    Figures, MemoryKind, add_unused, divided, kept, kept_tensors, kept_until_inputs, left_for_weights, logits,
    parameters, recomputed, recomputed_until_inputs, state, stepped_parameters, workspace,
};

/// Bytes per token and layer beyond a multiple of the hidden width: statistics, which are small.
fn per_token_layer(owned: &Owned, recompute: Recompute) -> u64 {
    let chunk = chunk(1, false, false, recompute);
    kept(owned.shape(), &chunk, chunk.all_units()).get() / owned.shape().tokens()
}

#[test]
fn a_gpt_layer_keeps_the_published_bytes() {
    let h = 6144;
    for (tensor, sequence_parallel, multiple) in [(1, false, 32 * h), (8, false, 8 * h + 3 * h), (8, true, h + 3 * h)] {
        let owned = Owned(
            gpt(6144, 48, 64),
            workload(Precision::Bf16, AttentionKernel::Fused),
            layout(tensor, sequence_parallel, 4),
        );
        // 34 h with two dropout masks of 1 h each, which nothing here has.
        let bytes = per_token_layer(&owned, Recompute::None);
        let statistics = 16 + 4 * 64;
        assert!(bytes >= multiple && bytes <= multiple + statistics, "{bytes} against {multiple}");
        // Full recomputation: the input, 2 h (over the tensor group under sequence parallelism).
        let input = if sequence_parallel { 2 * h / 8 } else { 2 * h };
        assert_eq!(per_token_layer(&owned, Recompute::Full), input);
        // What is thrown away comes back.
        let full = chunk(2, true, true, Recompute::Full);
        let none = chunk(2, true, true, Recompute::None);
        assert_eq!(
            kept(owned.shape(), &full, full.all_units()) + recomputed(owned.shape(), &full, full.all_units()),
            kept(owned.shape(), &none, none.all_units())
        );
        assert_eq!(recomputed(owned.shape(), &none, none.all_units()), Bytes::ZERO);
    }
}

#[test]
fn a_llama_layer_keeps_the_published_bytes() {
    // 8 h with fused norms, 24 h with elementary ones; 2 (q + 2 kv) + 2 q + 6 ffn.
    let rest = 2 * (8192 + 2 * 1024) + 2 * 8192 + 6 * 28_672;
    for (fused, multiple) in [(true, 8 * 8192 + rest), (false, 24 * 8192 + rest)] {
        let mut owned = Owned(llama(80), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
        owned.1.recipe.fused_normalisation = fused;
        let bytes = per_token_layer(&owned, Recompute::None);
        assert!(bytes >= multiple && bytes < multiple + 300, "{bytes} against {multiple}");
    }
}

#[test]
fn plain_attention_keeps_its_scores_unless_recomputed() {
    // Per score: 5 bytes (Korthikanti et al. 2022), 9 where nothing is fused.
    for (fused, each) in [(true, 5), (false, 9)] {
        let mut owned = Owned(gpt(6144, 48, 64), workload(Precision::Bf16, AttentionKernel::Plain), layout(8, true, 4));
        owned.1.recipe.fused_softmax = fused;
        let difference = per_token_layer(&owned, Recompute::None) - per_token_layer(&owned, Recompute::Selective);
        assert_eq!(difference, each * 2048 * 64 / 8);
        // Inside packed documents there are fewer.
        owned.1.recipe.document_length = Some(512);
        let packed = per_token_layer(&owned, Recompute::None) - per_token_layer(&owned, Recompute::Selective);
        assert_eq!(packed, each * 512 * 64 / 8);
    }
}

#[test]
fn recomputation_concerns_the_first_layers() {
    let owned = Owned(gpt(1024, 8, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let of = |recompute, layers| {
        let mut chunk = chunk(8, false, false, recompute);
        chunk.recomputed_layers = layers;
        kept(owned.shape(), &chunk, chunk.all_units()).get()
    };
    let (none, full) = (of(Recompute::None, 8), of(Recompute::Full, 8));
    assert_eq!(of(Recompute::Full, 0), none);
    assert_eq!(8 * of(Recompute::Full, 3), 3 * full + 5 * none);
}

fn sums(owned: &Owned, chunk: &ir::program::Chunk) -> [u64; 3] {
    let shape = owned.shape();
    let (weights, gradients, optimizer) = state(shape, parameters(shape, chunk), stepped_parameters(shape, chunk));
    [weights, gradients, optimizer].map(Bytes::get)
}

#[test]
fn state_is_that_of_published_recipes() {
    let mut owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(2, false, 1));
    owned.2.data = 8;
    let chunk = chunk(4, true, true, Recompute::None);
    let held = parameters(owned.shape(), &chunk);
    assert_eq!(stepped_parameters(owned.shape(), &chunk), held);
    assert_eq!(sums(&owned, &chunk), [2 * held, 4 * held, 12 * held]);
    let part = held.div_ceil(8);
    // Megatron-LM's distributed optimizer, DeepSpeed's ZeRO-1 and 2.
    owned.2.zero = ZeroStage::Zero1;
    assert_eq!(sums(&owned, &chunk), [2 * held, 4 * held, 12 * part]);
    owned.1.recipe.gradients = GradientFormat::Half;
    assert_eq!(sums(&owned, &chunk), [2 * held, 2 * held, 12 * part]);
    owned.2.zero = ZeroStage::Zero2;
    assert_eq!(sums(&owned, &chunk), [2 * held, 2 * part, 12 * part]);
    // ZeRO-3: DeepSpeed keeps half-precision weights beside FP32 ones, FSDP only these; 16 bytes either way.
    owned.2.zero = ZeroStage::Zero3;
    assert_eq!(sums(&owned, &chunk), [2 * part, 2 * part, 12 * part]);
    owned.1.recipe.gradients = GradientFormat::Fp32;
    assert_eq!(sums(&owned, &chunk), [4 * part, 4 * part, 8 * part]);
    // Hybrid: inside a domain of four, two copies.
    owned.2.sharing.shard = Some(4);
    assert_eq!(sums(&owned, &chunk)[0], 4 * held.div_ceil(4));
    owned.2.sharing.offload_optimizer = true;
    assert_eq!(sums(&owned, &chunk)[2], 0);
    owned.2 = layout(2, false, 1);
    owned.1.precision = Precision::Tf32;
    assert_eq!(sums(&owned, &chunk), [4 * held, 4 * held, 8 * held]);
}

#[test]
fn experts_are_divided_over_fewer_copies() {
    let mut owned = Owned(mixtral(), workload(Precision::Bf16, AttentionKernel::Fused), layout(2, true, 1));
    (owned.2.data, owned.2.mesh.expert, owned.2.zero) = (16, 8, ZeroStage::Zero1);
    let chunk = chunk(2, false, false, Recompute::None);
    // One of eight experts in each of two layers, four copies of it; all else over 16 replicas.
    let experts = 2 * 3 * 4096 * 14_336;
    let held = parameters(owned.shape(), &chunk);
    let stepped = stepped_parameters(owned.shape(), &chunk);
    assert_eq!(stepped, experts / 4 + (held - experts).div_ceil(16));
    owned.2.zero = ZeroStage::Zero0;
    assert_eq!(stepped_parameters(owned.shape(), &chunk), held);
}

#[test]
fn experts_keep_what_reaches_them() {
    let mut owned = Owned(mixtral(), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    (owned.2.data, owned.2.mesh.expert) = (8, 8);
    let of = |owned: &Owned| {
        let tensors = kept_tensors(owned.shape(), UnitKind::Experts);
        tensors.iter().find(|tensor| tensor.name == "experts' activation input").expect("it is kept").bytes.get()
    };
    // 2,048 tokens go to two experts each; gate and up.
    assert_eq!(of(&owned), 2048 * 2 * 2 * 14_336 * 2);
    owned.1.recipe.expert_imbalance = 1.5;
    assert_eq!(of(&owned), 3 * 2048 * 2 * 14_336 * 2);
    // The sequence-parallel group sends each token once.
    (owned.1.recipe.expert_imbalance, owned.2.tensor, owned.2.sequence_parallel) = (1.0, 2, true);
    assert_eq!(of(&owned), 2048 * 2 * 14_336 * 2);
}

#[test]
fn context_ranks_keep_their_tokens() {
    for model in [llama(8), mixtral(), latent()] {
        let mut owned = Owned(model, workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
        let chunk = chunk(4, true, true, Recompute::None);
        let of = |owned: &Owned| kept(owned.shape(), &chunk, chunk.all_units()).get();
        let whole = of(&owned);
        (owned.2.mesh.context, owned.2.mesh.context_method) = (4, ContextMethod::Ring);
        assert_eq!(of(&owned) * 4, whole, "{}", owned.0.name);
    }
}

#[test]
fn eight_bit_inputs_are_kept_converted() {
    let mut owned = Owned(llama(8), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let of = |owned: &Owned| per_token_layer(owned, Recompute::None);
    let half = of(&owned);
    owned.1.precision = Precision::Fp8;
    // Normed inputs and the activation's output at 1 byte; the core's output as it is and converted.
    assert_eq!(half - of(&owned), 2 * 8192 + 28_672 - 8192);
}

#[test]
fn logits_are_those_of_the_loss() {
    let mut owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(4, false, 2));
    let head = chunk(1, false, true, Recompute::None);
    let part = 2 * 2048 * 51_200 / 4;
    assert_eq!(logits(owned.shape(), &head).get(), part * 10);
    assert_eq!(logits(owned.shape(), &chunk(1, true, false, Recompute::None)), Bytes::ZERO);
    owned.1.recipe.fused_loss = false;
    assert_eq!(logits(owned.shape(), &head).get(), part * 16);
    // Every tensor rank gathers all of them, in parts that it concatenates.
    owned.1.recipe.sharded_loss = false;
    assert_eq!(logits(owned.shape(), &head).get(), 4 * part * (16 + 2 * 4) + part * 2);
    owned.1.recipe.fused_loss = true;
    assert_eq!(logits(owned.shape(), &head).get(), 4 * part * (10 + 2 * 2) + part * 2);
    owned.2.tensor = 1;
    for (copies, fused, each) in [
        (LogitCopies::Held, true, 10),
        (LogitCopies::Held, false, 16),
        (LogitCopies::Freed, true, 10),
        (LogitCopies::Freed, false, 12),
        (LogitCopies::Half, true, 4),
        (LogitCopies::Half, false, 4),
    ] {
        (owned.1.recipe.logits, owned.1.recipe.fused_loss) = (copies, fused);
        assert_eq!(logits(owned.shape(), &head).get(), 2 * 2048 * 51_200 * each, "{copies:?} {fused}");
    }
}

/// An amount of memory of a range of units.
type Amount = fn(ir::counts::Shape<'_>, &ir::program::Chunk, UnitRange) -> Bytes;

/// Qi et al. 2024: `M_B = 34h + 5as` before and `M_W = 32h` between the two halves of a backward pass, there with 2h of
/// dropout masks; here norms wait for their weights too, which adds their inputs (4h) and the gradients of their outputs
/// (4h).
#[test]
fn a_split_backward_leaves_what_the_weights_need() {
    let owned = Owned(gpt(2304, 22, 24), workload(Precision::Fp16, AttentionKernel::Plain), layout(1, false, 6));
    let layer = chunk(1, false, false, Recompute::None);
    let (h, scores, tokens) = (2304, 5 * 24 * 2048, owned.shape().tokens());
    let of = |amount: Amount| amount(owned.shape(), &layer, layer.all_units()).get() / tokens;
    let statistics = 16;
    assert_eq!(of(kept), 32 * h + scores + statistics);
    assert_eq!(of(kept) - of(kept_until_inputs) + of(left_for_weights), 40 * h + statistics);
    // A fused core keeps little: its 6 h of queries, keys and values, and the 8 h before the activation, all make place for
    // gradients.
    let owned = Owned(gpt(2304, 22, 24), workload(Precision::Fp16, AttentionKernel::Fused), layout(1, false, 6));
    let of = |amount: Amount| amount(owned.shape(), &layer, layer.all_units()).get() / tokens;
    assert_eq!((of(kept_until_inputs), of(left_for_weights)), (0, 22 * h - 14 * h - 4 * 24));
    // Full recomputation keeps the layer's input alone; what it brings back is divided in the same way.
    let full = chunk(1, false, false, Recompute::Full);
    let again = |amount: Amount| amount(owned.shape(), &full, full.all_units()).get() / tokens;
    assert_eq!((again(kept_until_inputs), again(recomputed_until_inputs)), (0, 0));
    assert_eq!(again(left_for_weights), of(left_for_weights));
    let space = |pass| workspace(owned.shape(), &layer, pass, layer.all_units()).get();
    assert_eq!(space(Pass::BackwardWeight), 0);
    assert!(space(Pass::Backward) > space(Pass::BackwardInput), "one pass holds what two would hand over");
    assert!(space(Pass::Forward) >= 2 * tokens * h, "at least a branch's output");
}

#[test]
fn gathered_inputs_are_there_while_they_are_used() {
    let of = |sequence_parallel| {
        let owned =
            Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(8, sequence_parallel, 1));
        let layer = chunk(1, false, false, Recompute::None);
        [Pass::Forward, Pass::Backward].map(|pass| workspace(owned.shape(), &layer, pass, layer.all_units()).get())
    };
    let whole = 2048 * 1024 * 2;
    // Forward a gathered input more; backward one too, while the gradients of the residual stream and of the norm are
    // divided.
    assert_eq!(of(true)[0] - of(false)[0], whole);
    assert!(of(true)[1] > of(false)[1], "{:?} and {:?}", of(true), of(false));
}

#[test]
fn whole_ranges_are_the_sum_of_their_parts() {
    for model in [gpt(1024, 4, 16), mixtral(), deepseek(), jamba()] {
        for recompute in Recompute::ALL {
            let mut owned = Owned(model.clone(), workload(Precision::Bf16, AttentionKernel::Plain), layout(2, true, 3));
            owned.1.recipe.fused_normalisation = false;
            let mut chunk = chunk(3, true, true, recompute);
            chunk.recomputed_layers = 2;
            let parts = || (0..chunk.units()).map(|at| UnitRange { start: at, end: at + 1 });
            for of in [kept, recomputed, kept_until_inputs, recomputed_until_inputs, left_for_weights] {
                let sum: Bytes = parts().map(|units| of(owned.shape(), &chunk, units)).sum();
                assert_eq!(of(owned.shape(), &chunk, chunk.all_units()), sum, "{} {recompute:?}", model.name);
            }
            for pass in [Pass::Forward, Pass::Recompute, Pass::Backward, Pass::BackwardInput] {
                let most = parts().map(|units| workspace(owned.shape(), &chunk, pass, units)).max();
                assert_eq!(Some(workspace(owned.shape(), &chunk, pass, chunk.all_units())), most);
            }
        }
    }
}

#[test]
fn kinds_of_memory_differ_by_gigabytes() {
    let (resident, passing) = (Bytes::from_gib(10), Bytes::from_gib(50));
    let figures = Figures::of(&a100(), &ir::Recipe::default());
    let shown = MemoryKind::ALL.map(|kind| figures.shown(kind, resident, passing).gib());
    let close = |found: f64, expected: f64| assert!((found - expected).abs() < 1e-6, "{found} against {expected}");
    close(shown[0], 60.5);
    close(shown[1], 66.5);
    close(shown[2], 82.5);
    let expands = ir::Recipe { expandable_segments: true, ..ir::Recipe::default() };
    close(Figures::of(&a100(), &expands).shown(MemoryKind::Reserved, resident, passing).gib(), 60.5);
    close(figures.needed(resident, passing).gib(), 68.0);
    close(figures.reserve().gib(), 2.0);
    let core = Figures::of(&device("core", "cpu", 0.1, 1e10, 1), &ir::Recipe::default());
    assert_eq!(core.needed(resident, passing), resident + passing);
    assert!(MemoryKind::ALL.into_iter().all(|kind| core.shown(kind, resident, passing) == resident + passing));
    assert!(MemoryKind::ALL.into_iter().all(|kind| MemoryKind::from_name(kind.name()) == Some(kind)));
}

#[test]
fn a_peak_holds_what_the_allocator_cannot_use() {
    use ir::{DeviceId, StageId, StageMemory};
    let stage = |reserve: u64| {
        let parts =
            vec![("activations", Bytes::new(7000)), ("weights", Bytes::new(4000)), ("reserve", Bytes::new(reserve))];
        StageMemory {
            stage: StageId::new(0),
            device: DeviceId::new(0),
            capacity: Bytes::new(20_000),
            peak: Bytes::new(11_000 + reserve),
            parts,
            moment: String::new(),
        }
    };
    let mut of_gpu = stage(5000);
    assert_eq!(divided(&of_gpu), (Bytes::new(4000), Bytes::new(7000)));
    add_unused(&a100(), &ir::Recipe::default(), &mut of_gpu);
    assert_eq!(of_gpu.peak, Bytes::new(16_840));
    let parts = [("activations", Bytes::new(7000)), ("reserve", Bytes::new(5840)), ("weights", Bytes::new(4000))];
    assert_eq!(of_gpu.parts, parts);
    let mut of_core = stage(0);
    add_unused(&device("core", "cpu", 0.1, 1e10, 1), &ir::Recipe::default(), &mut of_core);
    assert_eq!(of_core, stage(0));
}

#[test]
fn elementary_activations_keep_the_activated_gate() {
    let mut owned = Owned(llama(80), workload(Precision::Bf16, AttentionKernel::Fused), layout(4, false, 1));
    let fused = per_token_layer(&owned, Recompute::None);
    owned.1.recipe.fused_activation = false;
    assert_eq!(per_token_layer(&owned, Recompute::None) - fused, 2 * 28_672 / 4);
    // No gate, nothing more.
    let mut owned = Owned(gpt(1024, 4, 16), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let fused = per_token_layer(&owned, Recompute::None);
    owned.1.recipe.fused_activation = false;
    assert_eq!(per_token_layer(&owned, Recompute::None), fused);
}

/// torchtitan's selection by operation on Llama-3-8B keeps every second product, counted from the queries', the core's
/// output and a layer's input. A compiled layer drops what nobody reads.
#[test]
fn a_choice_of_operations_keeps_every_second_product() {
    let mut model = llama(32);
    (model.hidden, model.heads, model.ffn) = (4096, 32, 14_336);
    let mut owned = Owned(model, workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 2));
    // Input, queries, values, core, gate.
    let compiled = 4096 + 4096 + 1024 + 4096 + 14_336;
    let statistics = 4 * 32;
    assert_eq!(per_token_layer(&owned, Recompute::Operations), 2 * compiled + statistics);
    owned.1.precision = Precision::Fp8;
    assert_eq!(per_token_layer(&owned, Recompute::Operations), 2 * compiled + statistics);
    // Operation by operation, the feed-forward part's output too.
    owned.1.precision = Precision::Bf16;
    owned.1.recipe.fused_activation = false;
    assert_eq!(per_token_layer(&owned, Recompute::Operations), 2 * (compiled + 4096) + statistics);
}
