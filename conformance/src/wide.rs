//! Cases over all axes: context, experts, ZeRO 0 to 3 with hybrid sharding, overlap, offload and recomputation per layer.

use ir::{ContextMethod, Experts, FeedForward, LayerRun, Mamba, Mixer, Recompute, ZeroStage};

use crate::clusters;
use crate::dice::Dice;
use crate::swarm::Case;

impl Case {
    /// A case of at most `ranks` ranks on a random cluster, over any axis.
    #[must_use]
    pub fn wide(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed ^ 0x717d_e5ee);
        loop {
            let mut case = Self::spread(dice.next(), ranks);
            case.widen(&mut dice);
            if case.plan.world() <= u64::from(ranks) {
                let world = u32::try_from(case.plan.world()).expect("a small world");
                case.plan.placement.clear();
                if u64::from(world) > case.cluster.devices() {
                    case.cluster = clusters::random(&mut dice, world);
                }
                if case.is_legal() {
                    return case;
                }
            }
        }
    }

    /// Draws everything beyond data, tensor and pipeline; the result need not be legal.
    pub fn widen(&mut self, dice: &mut Dice) {
        let (plan, model, workload) = (&mut self.plan, &mut self.model, &mut self.workload);
        plan.mesh.context = dice.pick(&[1, 1, 2, 2, 4]);
        plan.mesh.context_method = dice.pick(&[ContextMethod::Ring, ContextMethod::AllGather, ContextMethod::AllToAll]);
        if dice.chance(50) {
            let first = dice.within(0, model.layers - 1);
            let mixer = dice.pick(&[Mixer::Attention, Mixer::Attention, Mixer::Mamba]);
            let run = |layers, mixer, feed_forward| LayerRun { layers, mixer, feed_forward };
            let pattern = [
                run(first, mixer, FeedForward::Dense),
                run(model.layers - first, Mixer::Attention, FeedForward::Experts),
            ];
            model.variants.pattern = pattern[usize::from(first == 0)..].to_vec();
            model.variants.mamba = (first > 0 && mixer == Mixer::Mamba).then_some(Mamba {
                inner: 64 * plan.tensor,
                state: 16,
                convolution: 4,
                step_rank: 8,
                normalised: dice.chance(50),
            });
            model.variants.experts = Some(Experts {
                count: 8,
                active: dice.pick(&[1, 2]),
                ffn: 128,
                shared_ffn: dice.pick(&[0, 64 * plan.tensor]),
                shared_gate: false,
                mlp: model.mlp,
                bias: false,
                router_bias: false,
                router: ir::Router::default(),
            });
            plan.mesh.expert = dice.pick(&[1, 2, 4]);
            plan.mesh.expert_tensor = dice.pick(&[1, 1, 2]);
            plan.sequence_parallel = plan.tensor > 1;
            plan.sharing.overlap_experts = plan.mesh.expert > 1 && dice.chance(50);
            workload.recipe.expert_imbalance = dice.pick(&[1.0, 1.25]);
        }
        plan.zero = dice.pick(&ZeroStage::ALL);
        if plan.zero != ZeroStage::Zero0 && dice.chance(40) {
            plan.sharing.shard = Some(dice.pick(&[1, 2, plan.replicas()]));
        }
        plan.sharing.prefetch = plan.zero == ZeroStage::Zero3 && dice.chance(70);
        plan.sharing.overlap_parameters = matches!(plan.zero, ZeroStage::Zero1 | ZeroStage::Zero2) && dice.chance(50);
        plan.sharing.overlap_tensor = plan.sequence_parallel && dice.chance(50);
        plan.sharing.offload_activations = dice.chance(25);
        plan.sharing.offload_optimizer = dice.chance(15);
        workload.recipe.sharded_loss = dice.chance(70);
        for stage in plan.stages.iter_mut().filter(|stage| stage.recompute != Recompute::None) {
            let most = stage.layers.iter().copied().max().unwrap_or(0);
            stage.recompute_layers = dice.chance(50).then(|| dice.within(0, most));
        }
    }
}
