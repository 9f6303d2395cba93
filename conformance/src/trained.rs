//! Cases that a CPU trains, over what a plan may say of state and a model of its layers: ZeRO 0 to 3 with hybrid sharding,
//! prefetch, offload, recomputation per layer, both precisions, and every variant of a dense model.

use ir::{
    BranchNorms, FeedForward, GradientFormat, LayerRun, Mixer, MlpKind, Model, ParallelBranches, Plan, Positions,
    Precision, QueryKeyNorm, Recompute, ZeroStage,
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
            if dice.chance(40) {
                let recipe = &mut case.workload.recipe;
                case.workload.precision = Precision::Bf16;
                recipe.reduced_gradients = dice.pick(&[GradientFormat::Fp32, GradientFormat::Half]);
                recipe.gradients = dice.pick(&[GradientFormat::Fp32, GradientFormat::Fp32, GradientFormat::Half]);
            }
            if case.is_legal() {
                return case;
            }
        }
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
    let by_operation = plan.tensor == 1 && dice.chance(30);
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
