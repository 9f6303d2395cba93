//! Rules of context, experts, sharding, overlap and recomputation; cases U05, U13, U15 and U24.

use ir::{ContextMethod, FeedForward, LayerRun, Mamba, Mixer, Recompute, Schedule, VocabularyDivision, ZeroStage};

use super::{ONE, check, check_nearest};
use crate::legality::{Runtime, refused_by};
use crate::testing::{dgx, plan, small_model, with_experts, workload};

fn run(layers: u32, mixer: Mixer, feed_forward: FeedForward) -> LayerRun {
    LayerRun { layers, mixer, feed_forward }
}

/// U15: a zig-zag of 8 ranks deals 16 parts.
#[test]
fn sequences_divide_by_twice_the_context_degree() {
    let (model, cluster) = (small_model(8), dgx(1));
    let good = workload(131_072, 8);
    let mut eight = plan(&model, &good, [1, 1, 1, 1], ONE);
    eight.mesh.context = 8;
    check(&eight, &model, &good, &cluster, &[]);
    let odd = workload(131_000, 8);
    check(
        &eight,
        &model,
        &odd,
        &cluster,
        &["131000 does not divide into 16 parts for context 8: each rank has an early and a late part"],
    );
    let text = super::legal(&eight, &model, &odd, &cluster)[0].to_string();
    assert!(text.contains("pad sequences to 130992 or 131008"), "{text}");
    check_nearest(&eight, &model, &odd, &cluster, |near| near.mesh.context == 4);
    // Heads: 8 query heads and 4 key and value heads.
    eight.mesh.context_method = ContextMethod::AllToAll;
    check(
        &eight,
        &model,
        &odd,
        &cluster,
        &["4 (key and value heads) over tensor 1 leave 4 to exchange over context 8"],
    );
    eight.mesh.context = 4;
    check(&eight, &model, &good, &cluster, &[]);
    // Sequence parallelism divides what context leaves.
    let mut both = plan(&model, &workload(4104, 8), [1, 4, 1, 1], ONE);
    both.mesh.context = 2;
    check(&both, &model, &workload(4104, 8), &cluster, &[]);
    let short = workload(4100, 8);
    check(&both, &model, &short, &cluster, &["sequence_length 4100 / context 2 x microbatch_size 1 = 2050 tokens"]);
}

#[test]
fn states_along_the_sequence_have_no_keys_and_values() {
    let (work, cluster) = (workload(64, 8), dgx(1));
    let mut model = small_model(4);
    model.variants.mamba = Some(Mamba { inner: 128, state: 16, convolution: 4, step_rank: 4, normalised: true });
    model.variants.pattern =
        vec![run(3, Mixer::Mamba, FeedForward::Dense), run(1, Mixer::Attention, FeedForward::Dense)];
    let mut ring = plan(&model, &work, [1, 1, 2, 1], ONE);
    ring.mesh.context = 2;
    check(&ring, &model, &work, &cluster, &["layers of mamba carry a state along the sequence"]);
    ring.mesh.context_method = ContextMethod::AllToAll;
    check(&ring, &model, &work, &cluster, &[]);
}

/// U13: the experts' mesh has its own product, in which expert_tensor counts.
#[test]
fn experts_divide_over_the_ranks_of_a_stage() {
    let (work, cluster) = (workload(32, 8), dgx(1));
    let model = with_experts(small_model(4), &[run(4, Mixer::Attention, FeedForward::Experts)]);
    let mut four = plan(&model, &work, [1, 4, 1, 1], ONE);
    (four.mesh.expert, four.mesh.expert_tensor) = (4, 1);
    check(&four, &model, &work, &cluster, &[]);
    // What Megatron-LM makes of an expert-tensor degree that is not set: the tensor degree.
    four.mesh.expert_tensor = 4;
    check(
        &four,
        &model,
        &work,
        &cluster,
        &["the 4 ranks of a stage (data 1 x context 1 x tensor 4) do not divide by expert 4 x expert_tensor 4 = 16"],
    );
    check_nearest(&four, &model, &work, &cluster, |near| near.mesh.expert * near.mesh.expert_tensor <= 4);
    (four.mesh.expert, four.mesh.expert_tensor) = (3, 1);
    check(&four, &model, &work, &cluster, &["8 experts do not divide over 3 ranks (expert can be 1, 2, 4, 8", "ranks"]);
    four.mesh.expert = 4;
    four.sequence_parallel = false;
    check(&four, &model, &work, &cluster, &["experts get each token once, and without it all 4 tensor ranks"]);
    check_nearest(&four, &model, &work, &cluster, |near| near.sequence_parallel);
    let dense = small_model(4);
    four.sequence_parallel = true;
    check(&four, &dense, &work, &cluster, &["plan.mesh.expert: is 4, and small has no experts"]);
    let mut odd = model.clone();
    odd.variants.experts.as_mut().unwrap().shared_ffn = 66;
    check(&four, &odd, &work, &cluster, &["the width of the shared experts, 66, does not divide by tensor 4"]);
}

#[test]
fn switches_stand_with_what_they_speak_of() {
    let (model, work, cluster) = (small_model(4), workload(32, 8), dgx(1));
    let good = plan(&model, &work, [4, 1, 2, 1], ONE);
    let with = |change: &dyn Fn(&mut ir::Plan), expect: &[&str]| {
        let mut plan = good.clone();
        change(&mut plan);
        check(&plan, &model, &work, &cluster, expect);
    };
    with(&|p| p.sharing.shard = Some(2), &[]);
    with(&|p| p.sharing.shard = Some(3), &["3 ranks do not divide the 4 replicas"]);
    with(&|p| (p.sharing.shard, p.zero) = (Some(2), ZeroStage::Zero0), &["ZeRO-0 divides none"]);
    with(&|p| p.sharing.prefetch = true, &["gathers parameters ahead, and ZeRO-1 keeps them whole"]);
    with(&|p| (p.sharing.prefetch, p.zero) = (true, ZeroStage::Zero3), &[]);
    with(&|p| (p.sharing.overlap_parameters, p.zero) = (true, ZeroStage::Zero3), &["which ZeRO-3 does not"]);
    with(&|p| p.sharing.overlap_tensor = true, &["which only sequence parallelism has"]);
    with(&|p| p.sharing.overlap_experts = true, &["experts are not divided"]);
    with(&|p| p.stages[1].recompute_layers = Some(1), &["says how many layers are computed again"]);
    with(
        &|p| (p.stages[1].recompute_layers, p.stages[1].recompute) = (Some(3), Recompute::Full),
        &["3 of the first layers of each chunk, and the largest has 2 (at most 2"],
    );
    // All at once.
    with(
        &|p| {
            p.mesh.context = 3;
            (p.sharing.prefetch, p.sharing.overlap_tensor, p.sharing.shard) = (true, true, Some(5));
        },
        &["32 does not divide into 6 parts", "5 ranks do not", "prefetch", "overlap_tensor", "24 ranks"],
    );
    with(&|p| (p.mesh.context, p.mesh.expert) = (0, 0), &["plan.mesh.context: is zero", "plan.mesh.expert: is zero"]);
}

/// U05, U24 and others: what runs here, one runtime or another refuses, and says so by name.
#[test]
fn runtimes_refuse_what_is_legal() {
    let (model, work, cluster) = (small_model(8), workload(32, 20), dgx(1));
    let good = plan(&model, &work, [2, 1, 4, 1], ONE);
    let with = |change: &dyn Fn(&mut ir::Plan), expect: [&[&str]; 3]| {
        let mut plan = good.clone();
        change(&mut plan);
        check(&plan, &model, &work, &cluster, &[]);
        for (runtime, expect) in Runtime::ALL.into_iter().zip(expect) {
            let found: Vec<String> =
                refused_by(runtime, &plan, &model, &work).iter().map(ToString::to_string).collect();
            assert_eq!(found.len(), expect.len(), "{found:#?}");
            for (text, words) in found.iter().zip(expect) {
                assert!(text.contains(words) && text.contains(runtime.name()), "{words} in {text}");
            }
        }
    };
    let fsdp: &[&str] = &["it shards by FSDP"];
    with(&|_| {}, [&[], &[], fsdp]);
    with(&|p| p.zero = ZeroStage::Zero3, [&["not ZeRO-3"], &["incompatible with its pipeline"], &[]]);
    with(
        &|p| {
            p.sharing.offload_activations = true;
            p.stages.iter_mut().for_each(|stage| stage.recompute = Recompute::Selective);
        },
        [&["with pipeline parallelism", "exclude each other"], &[], fsdp],
    );
    with(&|p| (p.mesh.context, p.data, p.microbatches) = (2, 1, 20), [&[], &["exchanges heads"], fsdp]);
    with(
        &|p| (p.sharing.overlap_parameters, p.overlap_gradients) = (true, false),
        [&["need overlapped gradient reduction"], &[], fsdp],
    );
    // 10 microbatches over 4 stages, interleaved: PyTorch relaxed Megatron's rule.
    with(
        &|p| p.stages.iter_mut().for_each(|stage| stage.layers = vec![1, 1]),
        [&["10 microbatches do not divide by 4 stages"], &["one chunk a stage"], fsdp],
    );
}

/// A divided vocabulary has its place in plain 1F1B over several positions and nothing else.
#[test]
fn a_divided_vocabulary_goes_with_1f1b_alone() {
    let (model, work, cluster) = (small_model(8), workload(64, 16), dgx(2));
    let mut good = plan(&model, &work, [4, 1, 4, 1], ONE);
    for division in [VocabularyDivision::TwoBarriers, VocabularyDivision::OneBarrier, VocabularyDivision::Interlaced] {
        good.sharing.vocabulary = division;
        check(&good, &model, &work, &cluster, &[]);
        assert!(!refused_by(Runtime::Megatron, &good, &model, &work).is_empty());
    }
    let wrong = |change: &dyn Fn(&mut ir::Plan), expect: &[&str]| {
        let mut plan = good.clone();
        change(&mut plan);
        check(&plan, &model, &work, &cluster, expect);
        check_nearest(&plan, &model, &work, &cluster, |near| near.sharing.vocabulary == VocabularyDivision::Ends);
    };
    wrong(&|plan| plan.schedule = Schedule::ZeroBubbleH1, &["whose passes have their place in plain 1F1B alone"]);
    wrong(
        &|plan| (plan.zero, plan.sharing.prefetch) = (ZeroStage::Zero3, true),
        &["whose slices are not sharded over replicas"],
    );
    let mut empty = good;
    empty.stages[0].layers = vec![0];
    empty.stages[1].layers = vec![4];
    check(&empty, &model, &work, &cluster, &["chunk 0 has no layers"]);
}

#[test]
fn parameters_in_host_memory_need_zero_3_and_a_step_there() {
    let (model, work, cluster) = (small_model(8), workload(64, 16), dgx(1));
    let mut asked = plan(&model, &work, [8, 1, 1, 1], ONE);
    asked.sharing.offload_parameters = true;
    check(
        &asked,
        &model,
        &work,
        &cluster,
        &["which ZeRO-3 over two or more replicas", "and are stepped on the device"],
    );
    (asked.zero, asked.sharing.offload_optimizer) = (ZeroStage::Zero3, true);
    check(&asked, &model, &work, &cluster, &[]);
}
