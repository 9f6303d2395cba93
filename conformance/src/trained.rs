//! Cases that a CPU trains, over what a plan may say of state and a model of its layers: ZeRO 0 to 3 with hybrid sharding,
//! prefetch, offload, recomputation per layer, both precisions, and every variant of a dense model.

use ir::{
    BranchNorms, FeedForward, GradientFormat, LayerRun, Mixer, MlpKind, Model, ParallelBranches, Plan, Positions,
    Precision, QueryKeyNorm, Recompute, Workload, ZeroStage,
};

use crate::dice::Dice;
use crate::swarm::Case;

impl Case {
    /// A [`tiny`](Self::tiny) case with all that.
    #[must_use]
    pub fn trained(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed ^ 0x5a4d_ed00);
        loop {
            let mut case = Self::tiny(dice.next(), ranks);
            share(&mut dice, &mut case.plan);
            recompute(&mut dice, &mut case.plan);
            if dice.chance(60) {
                vary(&mut dice, &mut case.model, case.plan.tensor);
            }
            halve(&mut dice, &mut case.workload);
            if case.is_legal() {
                return case.shared_out(seed);
            }
        }
    }

    /// The same of a [`tiny_wide`](Self::tiny_wide) case, but for what the executor refuses with experts or sequences that
    /// ranks share.
    #[must_use]
    pub fn trained_wide(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed ^ 0x30e1_57a6);
        loop {
            let mut case = Self::tiny_wide(dice.next(), ranks);
            share(&mut dice, &mut case.plan);
            recompute(&mut dice, &mut case.plan);
            let plan = &mut case.plan;
            if plan.sharing.shard.is_some() {
                plan.sharing.shard = Some(dice.pick(&[2, plan.replicas()]));
            }
            for stage in plan.stages.iter_mut().filter(|stage| stage.recompute == Recompute::Operations) {
                stage.recompute = Recompute::Selective;
            }
            let routed = case.model.variants.experts.is_some();
            plan.sharing.offload_activations &= !routed;
            if routed {
                vary_routed(&mut dice, &mut case.model);
            } else if dice.chance(60) {
                vary(&mut dice, &mut case.model, case.plan.tensor);
            }
            halve(&mut dice, &mut case.workload);
            if case.plan.world() <= u64::from(ranks) && case.is_legal() {
                return case.shared_out(seed);
            }
        }
    }
}

/// Half precision, now and then.
fn halve(dice: &mut Dice, workload: &mut Workload) {
    if dice.chance(40) {
        workload.precision = Precision::Bf16;
        workload.recipe.reduced_gradients = dice.pick(&[GradientFormat::Fp32, GradientFormat::Half]);
        workload.recipe.gradients = dice.pick(&[GradientFormat::Fp32, GradientFormat::Fp32, GradientFormat::Half]);
    }
}

/// What layers may have beside experts.
fn vary_routed(dice: &mut Dice, model: &mut Model) {
    model.mlp = dice.pick(&[MlpKind::Gelu, MlpKind::SwiGlu, MlpKind::GeGlu]);
    let variants = &mut model.variants;
    variants.exact_gelu = dice.chance(50);
    variants.query_key_norm = dice.pick(&[QueryKeyNorm::None, QueryKeyNorm::Head]);
    variants.experts.as_mut().expect("a routed model").mlp = dice.pick(&[model.mlp, MlpKind::GeGlu]);
    if dice.chance(40) {
        variants.pattern.iter_mut().for_each(|run| run.mixer = dice.pick(&[Mixer::Attention, Mixer::Window]));
        let windows = variants.pattern.iter().any(|run| run.mixer == Mixer::Window);
        variants.window = windows.then(|| dice.within(1, 6));
    }
}

/// Sharding, overlap and offload.
fn share(dice: &mut Dice, plan: &mut Plan) {
    plan.zero = dice.pick(&[ZeroStage::Zero1, ZeroStage::Zero2, ZeroStage::Zero2, ZeroStage::Zero3, ZeroStage::Zero3]);
    if plan.data == 1 && plan.tensor * plan.pipeline() <= 4 && dice.chance(80) {
        // Halves of the batch for two replicas.
        if plan.microbatches.is_multiple_of(2) {
            (plan.data, plan.microbatches) = (2, plan.microbatches / 2);
        } else if plan.microbatch_size.is_multiple_of(2) {
            (plan.data, plan.microbatch_size) = (2, plan.microbatch_size / 2);
        }
    }
    if dice.chance(40) {
        plan.sharing.shard = Some(dice.pick(&[1, 2, plan.data]));
    }
    plan.sharing.prefetch = plan.zero == ZeroStage::Zero3 && dice.chance(60);
    plan.sharing.overlap_parameters = matches!(plan.zero, ZeroStage::Zero1 | ZeroStage::Zero2) && dice.chance(50);
    plan.sharing.offload_activations = dice.chance(30);
    plan.sharing.offload_optimizer = dice.chance(25);
}

/// By operation, and of the first layers of each chunk only.
fn recompute(dice: &mut Dice, plan: &mut Plan) {
    let by_operation = plan.tensor == 1 && dice.chance(45);
    for stage in plan.stages.iter_mut().filter(|stage| stage.recompute != Recompute::None) {
        if by_operation {
            stage.recompute = Recompute::Operations;
        }
        let most = stage.layers.iter().copied().max().unwrap_or(0);
        stage.recompute_layers = dice.chance(60).then(|| dice.within(0, most));
    }
}

/// What layers of dense models have; tensor ranks cannot divide all of it.
fn vary(dice: &mut Dice, model: &mut Model, tensor: u32) {
    model.mlp = dice.pick(&[MlpKind::Gelu, MlpKind::SwiGlu, MlpKind::GeGlu]);
    if dice.chance(20) {
        model.positions = Positions::None;
    }
    let variants = &mut model.variants;
    variants.exact_gelu = dice.chance(50);
    variants.head_bias = dice.chance(30);
    variants.plain_norms = dice.chance(20);
    variants.query_key_norm = dice.pick(&[QueryKeyNorm::None, QueryKeyNorm::Head, QueryKeyNorm::Head]);
    if tensor == 1 && dice.chance(30) {
        variants.query_key_norm = QueryKeyNorm::Width;
    }
    if tensor == 1 && dice.chance(40) {
        variants.branch_norms = dice.pick(&[BranchNorms::After, BranchNorms::Both]);
        // What an untrained branch leaves is as small as 1e-3. A norm after it would make it, and what rounding left in it,
        // a thousand times larger: then one rank differs from itself with another microbatch size.
        model.norm_epsilon = 1e-2;
    } else if tensor == 1 && dice.chance(60) {
        variants.parallel_branches = dice.pick(&[ParallelBranches::OwnNorms, ParallelBranches::OneNorm]);
    }
    if dice.chance(40) {
        let first = dice.within(0, model.layers - 1);
        let run = |layers, mixer| LayerRun { layers, mixer, feed_forward: FeedForward::Dense };
        let pattern = [run(first, Mixer::Attention), run(model.layers - first, Mixer::Window)];
        variants.pattern = pattern[usize::from(first == 0)..].to_vec();
        variants.window = Some(dice.within(1, 6));
    }
}
