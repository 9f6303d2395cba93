//! What axes, sharding, overlap and offload do to time and memory.

use ir::{Activity, ContextMethod, Model, Plan, Prediction, Recompute, Schedule, Workload, ZeroStage};

use super::*;

/// A model of some billions of parameters.
fn large(layers: u32) -> Model {
    let mut model = small_model(layers);
    (model.hidden, model.heads, model.kv_heads, model.head_dim) = (4096, 32, 8, 128);
    (model.ffn, model.vocabulary) = (14336, 32_000);
    model
}

fn ask(model: &Model, work: &Workload, nodes: u32, degrees: [u32; 4], change: impl FnOnce(&mut Plan)) -> Prediction {
    let cost = analytic(dgx(nodes));
    let mut asked = plan(model, work, degrees, Schedule::OneForwardOneBackward);
    change(&mut asked);
    let found = ClosedForm::new(model, work, &cost).evaluate(&asked).unwrap_or_else(|no| panic!("{:?}", no.reasons));
    assert_eq!(found.breakdown.total(), found.iteration);
    let (low, high) = found.interval.unwrap();
    assert!(low <= found.iteration && found.iteration <= high, "{low:?} {high:?}");
    found
}

fn exposed(prediction: &Prediction, activity: Activity) -> f64 {
    prediction.breakdown.of(activity).seconds()
}

#[test]
fn deeper_sharding_needs_less_memory_and_prefetch_hides_its_gathers() {
    let (model, work) = (large(32), workload(4096, 32));
    let with = |zero: ZeroStage, prefetch: bool| {
        ask(&model, &work, 2, [16, 1, 1, 1], |plan| (plan.zero, plan.sharing.prefetch) = (zero, prefetch))
    };
    let peaks: Vec<_> = ZeroStage::ALL.iter().map(|zero| with(*zero, false).memory[0].peak).collect();
    assert!(peaks.is_sorted_by(|a, b| a > b), "{peaks:?}");
    let (plain, ahead) = (with(ZeroStage::Zero3, false), with(ZeroStage::Zero3, true));
    assert!(exposed(&ahead, Activity::Data) < 0.5 * exposed(&plain, Activity::Data), "{ahead:?} {plain:?}");
    assert_eq!(ahead.breakdown.of(Activity::Compute), plain.breakdown.of(Activity::Compute));
}

/// U30, U31: gathers inside a node instead of over the network, for each microbatch, and one reduction between nodes.
#[test]
fn hybrid_sharding_gathers_inside_the_domain() {
    let (model, work) = (large(32), workload(4096, 512));
    let with = |shard: Option<u32>| {
        ask(&model, &work, 4, [32, 1, 1, 1], |plan| (plan.zero, plan.sharing.shard) = (ZeroStage::Zero3, shard))
    };
    let (all, node) = (with(None), with(Some(8)));
    assert!(exposed(&node, Activity::Data) < exposed(&all, Activity::Data), "{:?} {:?}", node.breakdown, all.breakdown);
    assert!(node.memory[0].peak > all.memory[0].peak);
}

/// The sum over copies of shards hides behind what is left of the backward pass, as FSDP's second stream does it; only the
/// last part's has nothing to hide behind.
#[test]
fn copies_of_shards_are_summed_beside_the_backward_pass() {
    let (model, work) = (large(32), workload(4096, 32));
    let with = |overlap: bool, zero: ZeroStage| {
        ask(&model, &work, 4, [32, 1, 1, 1], |plan| {
            (plan.zero, plan.sharing.shard) = (zero, Some(8));
            plan.sharing.prefetch = zero == ZeroStage::Zero3;
            plan.overlap_gradients = overlap;
        })
    };
    for zero in [ZeroStage::Zero2, ZeroStage::Zero3] {
        let (apart, beside) = (with(false, zero), with(true, zero));
        let saved = exposed(&apart, Activity::Data) - exposed(&beside, Activity::Data);
        // Shards of 7e9 parameters over eight, twice three quarters of them over a NIC of 25 GB/s: a quarter of a second.
        assert!(saved > 0.1, "{saved} s of {:?}", apart.breakdown);
        assert!(exposed(&beside, Activity::Data) < 0.5 * exposed(&apart, Activity::Data), "{:?}", beside.breakdown);
        let cost = analytic(dgx(4));
        let mut asked = plan(&model, &work, [32, 1, 1, 1], Schedule::OneForwardOneBackward);
        (asked.zero, asked.sharing.shard) = (zero, Some(8));
        asked.sharing.prefetch = zero == ZeroStage::Zero3;
        let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&asked).unwrap();
        assert_eq!(carried.iteration, beside.iteration);
    }
}

/// Under ZeRO-0 and 1 gradients go bucket by bucket beside the last backward pass (Megatron-LM's `--overlap-grad-reduce`,
/// DDP's buckets), with sequence parallelism and a tied embedding too: only what the last bucket leaves has nothing to hide
/// behind. In one bucket, or with unequal shares, all of it does. The program says the same.
#[test]
fn gradients_are_reduced_bucket_by_bucket_beside_the_last_pass() {
    let mut model = large(16);
    model.tied_head = true;
    let work = workload(4096, 64);
    let with = |zero: ZeroStage, degrees: [u32; 4], overlap: bool, bucket: Option<u64>| {
        ask(&model, &work, 4, degrees, |plan| {
            (plan.zero, plan.overlap_gradients, plan.sharing.bucket) = (zero, overlap, bucket);
        })
    };
    for zero in [ZeroStage::Zero0, ZeroStage::Zero1] {
        for degrees in [[32, 1, 1, 1], [4, 8, 1, 1], [16, 1, 2, 1], [8, 2, 2, 1], [8, 2, 2, 2]] {
            let (apart, beside) = (with(zero, degrees, false, None), with(zero, degrees, true, None));
            let one = with(zero, degrees, true, Some(1 << 40));
            let data = |found: &Prediction| exposed(found, Activity::Data);
            let say = format!("{zero:?} {degrees:?}: {:?} {:?}", apart.breakdown, beside.breakdown);
            // Gathers of stepped parameters stay, which are half of ZeRO-1's. In a pipeline the last position has more to do and
            // waits for the first one's gradients of the tied embedding.
            let left = if zero == ZeroStage::Zero0 { 0.5 } else { 0.75 };
            assert!(degrees[2] > 1 || data(&beside) < left * data(&apart), "{say}");
            assert!(beside.iteration < apart.iteration && beside.iteration <= one.iteration, "{say}");
            assert!(one.iteration <= apart.iteration && (degrees[2] > 1 || beside.iteration < one.iteration), "{say}");
            let cost = analytic(dgx(4));
            let mut asked = plan(&model, &work, degrees, Schedule::OneForwardOneBackward);
            asked.zero = zero;
            let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&asked).unwrap();
            assert_eq!(carried.iteration, beside.iteration, "{say}");
        }
    }
    // Replicas of unequal shares have no last microbatch in common.
    let shared = |bucket| {
        ask(&model, &work, 4, [4, 8, 1, 1], |plan| {
            *plan = plan.clone().with_shares(vec![16, 16, 20, 12]);
            plan.sharing.bucket = bucket;
        })
    };
    assert_eq!(shared(None).iteration, shared(Some(1 << 40)).iteration);
}

#[test]
fn rings_hide_behind_long_sequences_and_gathers_do_not() {
    let (model, work) = (large(8), workload(65_536, 8));
    let with = |method: ContextMethod| {
        ask(&model, &work, 1, [1, 1, 1, 1], |plan| (plan.mesh.context, plan.mesh.context_method) = (8, method))
    };
    let [ring, gather, heads] = [ContextMethod::Ring, ContextMethod::AllGather, ContextMethod::AllToAll].map(with);
    assert!(exposed(&ring, Activity::Context) < 0.1 * exposed(&gather, Activity::Context), "{ring:?}");
    assert!(exposed(&gather, Activity::Context) > 0.0 && exposed(&heads, Activity::Context) > 0.0);
}

#[test]
fn overlap_moves_tensor_and_expert_communication_out_of_sight() {
    let (model, work) = (large(8), workload(4096, 16));
    let with = |overlap: bool| ask(&model, &work, 1, [1, 8, 1, 1], |plan| plan.sharing.overlap_tensor = overlap);
    let (plain, hidden) = (with(false), with(true));
    assert!(exposed(&hidden, Activity::Tensor) < 0.6 * exposed(&plain, Activity::Tensor), "{:?}", hidden.breakdown);
    let run = ir::LayerRun { layers: 8, mixer: ir::Mixer::Attention, feed_forward: ir::FeedForward::Experts };
    let mut routed = with_experts(model, &[run]);
    routed.variants.experts.as_mut().unwrap().ffn = 4096;
    let with = |expert: u32, overlap: bool| {
        ask(&routed, &work, 1, [8, 1, 1, 1], |plan| {
            (plan.mesh.expert, plan.sharing.overlap_experts) = (expert, overlap);
        })
    };
    assert_eq!(with(1, false).breakdown.of(Activity::Expert), ir::SimDuration::ZERO);
    let (plain, hidden) = (with(8, false), with(8, true));
    assert!(exposed(&hidden, Activity::Expert) < 0.5 * exposed(&plain, Activity::Expert), "{:?}", hidden.breakdown);
    assert!(with(8, false).memory[0].peak < with(1, false).memory[0].peak);
}

#[test]
fn recomputation_layer_by_layer_lies_between_none_and_all() {
    let (model, work) = (large(16), workload(4096, 16));
    let with = |layers: u32| {
        ask(&model, &work, 1, [2, 1, 4, 1], |plan| {
            for stage in &mut plan.stages {
                (stage.recompute, stage.recompute_layers) = (Recompute::Full, Some(layers));
            }
        })
    };
    let all: Vec<_> = (0..=4).map(with).collect();
    assert!(all.is_sorted_by(|a, b| a.iteration < b.iteration), "{all:?}");
    assert!(all.is_sorted_by(|a, b| a.memory[0].peak > b.memory[0].peak), "{all:?}");
    assert_eq!(all[0].breakdown.of(Activity::Recomputation), ir::SimDuration::ZERO);
    let share = exposed(&all[4], Activity::Recomputation) / exposed(&all[4], Activity::Compute);
    assert!((0.2..0.45).contains(&share), "a forward pass is a third of all: {share}");
}

/// U24: offload frees what recomputation would, for time on the host's link instead of the device.
#[test]
fn offload_frees_activations_and_the_optimizer() {
    let (model, work) = (large(16), workload(4096, 16));
    let with = |activations: bool, optimizer: bool| {
        ask(&model, &work, 1, [8, 1, 1, 1], |plan| {
            (plan.sharing.offload_activations, plan.sharing.offload_optimizer) = (activations, optimizer);
        })
    };
    let (none, activations, optimizer) = (with(false, false), with(true, false), with(false, true));
    assert!(activations.memory[0].peak < none.memory[0].peak && activations.iteration >= none.iteration);
    assert!(optimizer.iteration > none.iteration && exposed(&optimizer, Activity::HostCopy) > 0.0);
}

/// Parameters in host memory (ZeRO-Infinity) leave no weights on the device, and cross the host's link before each of the
/// two passes of each microbatch; what is stepped there need not come back.
#[test]
fn parameters_in_host_memory_cross_the_link_for_each_pass() {
    let (model, work) = (large(16), workload(4096, 16));
    let with = |parameters: bool, prefetch: bool| {
        ask(&model, &work, 1, [8, 1, 1, 1], |plan| {
            (plan.zero, plan.sharing.prefetch) = (ZeroStage::Zero3, prefetch);
            (plan.sharing.offload_optimizer, plan.sharing.offload_parameters) = (true, parameters);
        })
    };
    let weights = |prediction: &Prediction| {
        prediction.memory[0].parts.iter().find(|(part, _)| *part == "weights").map(|(_, bytes)| *bytes)
    };
    let (device, host) = (with(false, false), with(true, false));
    let shard = weights(&device).unwrap();
    assert_eq!(weights(&host), None);
    let lighter = device.memory[0].peak - host.memory[0].peak;
    assert!(lighter >= shard, "{lighter:?} {shard:?}");
    // Weights are held in FP32 here, and travel in 16 bit.
    let moved = ir::Bytes::new(shard.get() / 2);
    let once = analytic(dgx(1)).host_copy(moved, ir::DeviceId::new(0)).duration.seconds();
    // Two microbatches of two passes, less the way back of the step.
    let more = (exposed(&host, Activity::HostCopy) - exposed(&device, Activity::HostCopy)) / once;
    assert!((3.0..3.3).contains(&more), "{more} of {once} s");
    let ahead = with(true, true);
    assert!(
        ahead.iteration < host.iteration && exposed(&ahead, Activity::HostCopy) < exposed(&host, Activity::HostCopy)
    );
}

#[test]
fn whole_logits_and_slow_input_are_seen() {
    let model = large(8);
    let mut work = workload(4096, 16);
    let with = |work: &Workload| ask(&model, work, 1, [1, 8, 1, 1], |_| {});
    let sharded = with(&work);
    work.recipe.sharded_loss = false;
    assert!(exposed(&with(&work), Activity::Tensor) > exposed(&sharded, Activity::Tensor));
    work.recipe.sharded_loss = true;
    work.recipe.input_tokens_per_second = Some(1000.0);
    let starved = with(&work);
    assert!((starved.iteration.seconds() - 65.536).abs() < 1e-6, "{starved:?}");
    assert_eq!(starved.iteration, sharded.iteration + starved.breakdown.of(Activity::Stall));
    let cost = analytic(dgx(1));
    let asked = plan(&model, &work, [1, 8, 1, 1], Schedule::OneForwardOneBackward);
    let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&asked).unwrap();
    assert_eq!((carried.iteration, carried.breakdown.total()), (starved.iteration, starved.iteration));
}

/// Launches that devices wait for are seen, and hide collectives in the closed form as in the program.
#[test]
fn collectives_hide_in_launches() {
    let constants = cost::StackConstants { launch_us: Some(30.0), hidden_in_launches: 0.6, ..Default::default() };
    let mut hidden = 0;
    for seed in 0..120 {
        let (plan, model, work, cluster) = random_wide_case(seed);
        let plain = analytic(cluster);
        let cost = plain.clone().with_stack(cost::Stack { constants, ..Default::default() });
        if crate::lower(&plan, &model, &work, cost.cluster()).unwrap().roles.len() != plan.stages.len() {
            continue;
        }
        let closed = ClosedForm::new(&model, &work, &cost).evaluate(&plan).unwrap();
        let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&plan).unwrap();
        assert_eq!(closed.iteration, carried.iteration, "seed {seed}: {plan:#?}");
        assert!(closed.breakdown.of(Activity::Launch) > ir::SimDuration::ZERO);
        let whole = ClosedForm::new(&model, &work, &plain).evaluate(&plan).unwrap();
        hidden += u32::from(closed.breakdown.of(Activity::Tensor) < whole.breakdown.of(Activity::Tensor));
    }
    assert!(hidden > 5, "{hidden}");
}

/// The bubble of the breakdown is the schedule's: (p-1) passes of each kind.
#[test]
fn breakdowns_tell_bubble_from_work() {
    let (model, work) = (large(32), workload(4096, 64));
    let found = ask(&model, &work, 1, [1, 1, 8, 1], |_| {});
    let (bubble, compute) = (exposed(&found, Activity::Bubble), exposed(&found, Activity::Compute));
    // The last stage also holds the head, so that the others wait for it too.
    let formula = 7.0 / 64.0;
    assert!(bubble / compute > 0.8 * formula && bubble / compute < 3.0 * formula, "{:?}", found.breakdown);
    let parts = found.breakdown.parts();
    assert_eq!(parts[0].0, Activity::Compute);
}

/// On a host that launches slowly the same plan would take longer, by as much as its launches; its interval says so, upwards
/// alone. Graphs need no launches, and large units do not wait for them.
#[test]
fn a_slow_host_lengthens_the_upper_end_of_the_interval() {
    let with = |hidden: u32, graphs: bool, slow_launch_us: f64| {
        let mut model = large(4);
        (model.hidden, model.ffn, model.heads, model.kv_heads) = (hidden, 3 * hidden, hidden / 128, hidden / 128);
        let mut work = workload(if hidden > 1024 { 4096 } else { 1024 }, 16);
        work.recipe.cuda_graphs = graphs;
        let terms = cost::SpreadTerms { slow_launch_us, ..cost::SpreadTerms::default() };
        let cost = analytic(dgx(1)).with_stack(cost::Stack { terms, ..cost::Stack::default() });
        let asked = plan(&model, &work, [2, 2, 2, 1], Schedule::OneForwardOneBackward);
        ClosedForm::new(&model, &work, &cost).evaluate(&asked).unwrap_or_else(|no| panic!("{:?}", no.reasons))
    };
    let ends = |found: &Prediction| {
        let (low, high) = found.interval.unwrap();
        (found.iteration.seconds() / low.seconds(), high.seconds() / found.iteration.seconds())
    };
    let (small, quick) = (with(256, false, 80.0), with(256, false, 0.0));
    assert_eq!(small.iteration, quick.iteration, "what is predicted stays");
    assert_eq!(quick.at_risk, ir::prediction::AtRisk::default());
    let share = small.at_risk.slow_launches.seconds() / small.iteration.seconds();
    let ((below, above), (plain, _)) = (ends(&small), ends(&quick));
    assert!(share > 1.0, "{share}");
    assert!((below / plain - 1.0).abs() < 1e-6 && above >= (1.0 + share) * 0.999, "{below} {above} {share}");
    assert_eq!(with(256, true, 80.0).at_risk, ir::prediction::AtRisk::default());
    let large = with(8192, false, 80.0);
    assert!(large.at_risk.slow_launches.seconds() < 0.1 * large.iteration.seconds(), "{:?}", large.at_risk);
}
