//! Rules of tensor degrees that differ from stage to stage.

use ir::{FeedForward, LayerRun, Mixer, Plan, Schedule, StagePlan, VocabularyDivision};

use super::{ONE, check, check_nearest};
use crate::legality::{Runtime, refused_by};
use crate::testing::{dgx, plan, small_model, two_leaves_of_unlike_nodes, with_experts, workload};

#[test]
fn degrees_of_neighbours_divide_one_another() {
    let (mut model, work, cluster) = (small_model(6), workload(32, 8), dgx(2));
    (model.heads, model.kv_heads, model.ffn) = (12, 12, 120);
    let three = |degrees: &[u32]| plan(&model, &work, [2, 1, 3, 1], ONE).with_tensors(degrees);
    for degrees in [[4, 2, 1], [1, 4, 2], [4, 1, 2], [3, 1, 2], [1, 2, 4]] {
        check(&three(&degrees), &model, &work, &cluster, &[]);
    }
    let words = ["stage 0 with 3 tensor ranks hands over to stage 1 with 2: neither divides the other"];
    check(&three(&[3, 2, 1]), &model, &work, &cluster, &words);
    check_nearest(&three(&[3, 2, 1]), &model, &work, &cluster, |near| !near.has_unlike_tensors());
    // Interleaved, the last stage hands over to the first again.
    let twice = |degrees: &[u32]| plan(&model, &work, [1, 1, 3, 2], ONE).with_tensors(degrees);
    check(&twice(&[2, 1, 4]), &model, &work, &cluster, &[]);
    let words = ["stage 2 with 3 tensor ranks hands over to stage 0 with 2"];
    check(&twice(&[2, 1, 3]), &model, &work, &cluster, &words);
}

#[test]
fn each_stage_divides_its_own_matrices_and_tokens() {
    let (model, work, cluster) = (small_model(6), workload(32, 8), dgx(2));
    let two = |degrees: &[u32]| plan(&model, &work, [1, 1, 2, 1], ONE).with_tensors(degrees);
    check(
        &two(&[1, 8]),
        &model,
        &work,
        &cluster,
        &["4 (key and value heads) is fewer than the tensor degree 8 of stage 1"],
    );
    let odd = workload(30, 8);
    let divided = Plan { sequence_parallel: true, ..two(&[4, 2]) };
    check(&divided, &model, &odd, &cluster, &["= 30 tokens do not divide by tensor 4"]);
    check(&divided, &model, &work, &cluster, &[]);
    // A plan says the most of its stages' degrees.
    let mut less = two(&[4, 2]);
    less.tensor = 1;
    less.stages[0].tensor = Some(4);
    check(&less, &model, &work, &cluster, &["plan.tensor: is 1, and the most of the stages' is 4"]);
    let mut none = two(&[4, 2]);
    none.stages[1] = StagePlan { tensor: Some(0), ..none.stages[1].clone() };
    check(&none, &model, &work, &cluster, &["plan.stages[1].tensor: is zero"]);
    check(
        &Plan { data: 3, ..two(&[4, 2]) },
        &model,
        &workload(32, 24),
        &dgx(2),
        &["data 3 x stages of tensor 4, 2 = 18 ranks"],
    );
}

#[test]
fn what_does_not_go_with_unlike_degrees_is_named() {
    let (model, work, cluster) = (small_model(6), workload(32, 8), dgx(2));
    let two = || plan(&model, &work, [1, 1, 2, 1], ONE).with_tensors(&[4, 2]);
    check(&two(), &model, &work, &cluster, &[]);
    let mut context = two();
    context.mesh.context = 2;
    check(&context, &model, &work, &cluster, &["unlike tensor degrees (4, 2), and none of them shares sequences yet"]);
    let run = LayerRun { layers: 6, mixer: Mixer::Attention, feed_forward: FeedForward::Experts };
    let routed = with_experts(model.clone(), &[run]);
    let of_experts = Plan { sequence_parallel: true, ..two() };
    check(&of_experts, &routed, &work, &cluster, &["and none of them divides experts yet"]);
    let mut divided = two();
    divided.sharing.vocabulary = VocabularyDivision::TwoBarriers;
    let words = ["which would divide the vocabulary unlike ways", "and not over a tensor group too"];
    check(&divided, &model, &work, &cluster, &words);
    let mut scattered = work.clone();
    scattered.recipe.scattered_messages = true;
    check(&two(), &model, &scattered, &cluster, &["whose messages are not scattered and gathered again"]);
    let mut tied = model.clone();
    tied.tied_head = true;
    check(&two(), &tied, &work, &cluster, &["tied embedding would be divided one way on the first"]);
    let ends = plan(&model, &work, [1, 1, 3, 1], ONE).with_tensors(&[2, 4, 2]);
    check(&ends, &tied, &work, &cluster, &[]);
    let vee = Schedule::Vee(ir::Vee::unprofiled(ir::VeeMemory::Full));
    let down_and_up = plan(&model, &work, [1, 1, 2, 2], vee).with_tensors(&[4, 2]);
    check(&down_and_up, &model, &work, &cluster, &["and none of them goes down the pipeline and up again yet"]);
    for runtime in [Runtime::Megatron, Runtime::DeepSpeed, Runtime::Torchtitan] {
        let refused = refused_by(runtime, &two(), &model, &work);
        assert!(refused.iter().any(|problem| problem.subject == "plan.tensor"), "{refused:?}");
    }
}

/// Eight devices of one kind before eight of another: a group inside each is right, one over both is not.
#[test]
fn tensor_groups_of_each_stage_are_of_one_kind() {
    let (model, work) = (small_model(6), workload(32, 8));
    let cluster = two_leaves_of_unlike_nodes();
    let kinds = (0..u32::try_from(cluster.devices()).unwrap())
        .map(|device| cluster.place(ir::DeviceId::new(device)).device_kind)
        .collect::<Vec<_>>();
    let border = u32::try_from(kinds.iter().position(|kind| *kind != kinds[0]).unwrap()).unwrap();
    let mut apart = plan(&model, &work, [1, 1, 2, 1], ONE).with_tensors(&[4, 2]);
    let devices = |first: u32| (first..first + 6).map(ir::DeviceId::new).collect::<Vec<_>>();
    apart.placement = devices(border - 4);
    check(&apart, &model, &work, &cluster, &[]);
    apart.placement = devices(border - 5);
    check(&apart, &model, &work, &cluster, &["the tensor group of replica 0 on stage 1 would join unlike devices"]);
}
