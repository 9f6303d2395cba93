//! Cases over all axes, for the simulator and small ones to train: context, experts, ZeRO 0 to 3 with hybrid sharding, overlap, offload and recomputation per layer.

use ir::{ContextMethod, Experts, FeedForward, LayerRun, Mamba, Mixer, Recompute, Router, Scoring, ZeroStage};

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

    /// A case that a CPU trains in milliseconds, as [`tiny`](Self::tiny), whose sequences or experts (or both) are divided.
    #[must_use]
    pub fn tiny_wide(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed ^ 0x0e8b_a27d);
        loop {
            let fewer = dice.pick(&[1, 2, 2, 4]).min(ranks);
            let mut case = Self::tiny(dice.next(), ranks / fewer);
            case.divide_sequences(&mut dice);
            if dice.chance(70) {
                case.route(&mut dice);
            }
            let mesh = case.plan.mesh;
            let divided = mesh.context > 1 || case.model.variants.experts.is_some();
            case.cluster = clusters::cpu(ranks);
            if divided && case.plan.world() <= u64::from(ranks) && case.is_legal() {
                return case;
            }
        }
    }

    fn divide_sequences(&mut self, dice: &mut Dice) {
        let (plan, model, workload) = (&mut self.plan, &mut self.model, &mut self.workload);
        plan.mesh.context = dice.pick(&[1, 2, 2, 3, 4]);
        plan.mesh.context_method = dice.pick(&[ContextMethod::Ring, ContextMethod::AllGather, ContextMethod::AllToAll]);
        workload.sequence_length = 2 * plan.mesh.context * plan.tensor * dice.within(1, 3);
        if plan.mesh.context_method == ContextMethod::AllToAll {
            model.heads *= plan.mesh.context;
            model.kv_heads *= plan.mesh.context;
        }
    }

    /// Experts in the layers from some layer on.
    fn route(&mut self, dice: &mut Dice) {
        let (plan, model, workload) = (&mut self.plan, &mut self.model, &mut self.workload);
        let dense = dice.within(0, model.layers - 1);
        let run = |layers, feed_forward| LayerRun { layers, mixer: Mixer::Attention, feed_forward };
        let pattern = [run(dense, FeedForward::Dense), run(model.layers - dense, FeedForward::Experts)];
        model.variants.pattern = pattern[usize::from(dense == 0)..].to_vec();
        plan.mesh.expert = dice.pick(&[1, 2, 2, 4, 8]);
        plan.mesh.expert_tensor = dice.pick(&[1, 1, 2]);
        let count = plan.mesh.expert * dice.within(1, 3);
        model.variants.experts = Some(Experts {
            count,
            active: dice.within(1, 3).min(count),
            ffn: plan.mesh.expert_tensor * dice.within(2, 5),
            shared_ffn: dice.pick(&[0, plan.tensor * 3]),
            shared_gate: dice.chance(40),
            mlp: model.mlp,
            bias: dice.chance(40),
            router_bias: dice.chance(40),
            router: Router { scoring: dice.pick(&[Scoring::Softmax, Scoring::Sigmoid]), normalised: dice.chance(60) },
        });
        plan.sequence_parallel = plan.tensor > 1;
        workload.recipe.balance_loss = dice.pick(&[0.0, 0.02, 0.2]);
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
                router: Router::default(),
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
