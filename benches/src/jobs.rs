//! Training jobs of published size.

use std::sync::Arc;

use cost::CostModel;
use ir::{
    AdamW, AttentionKernel, Backend, Cluster, CollectiveAlgorithm, MlpKind, Model, NormKind, Plan, Positions,
    Precision, Program, Recompute, Schedule, StagePlan, VerifiedProgram, Workload, ZeroStage,
};
use sim::Simulator;
use sim::machine::End;
use sim::queue::Queue;
use trainyard_conformance::clusters;

/// A job on its cluster, and a plan for it.
#[derive(Clone, Debug)]
pub struct Job {
    /// What is trained.
    pub model: Model,
    /// How.
    pub workload: Workload,
    /// On what.
    pub cluster: Cluster,
    /// Divided how.
    pub plan: Plan,
}

impl Job {
    /// The folded program, not yet verified.
    ///
    /// # Panics
    /// If the plan is not legal.
    #[must_use]
    pub fn lowered(&self) -> Program {
        sched::lower(&self.plan, &self.model, &self.workload, &self.cluster)
            .unwrap_or_else(|problems| panic!("{problems:?}"))
    }
    /// The verified program.
    ///
    /// # Panics
    /// If verification refuses it.
    #[must_use]
    pub fn program(&self) -> Arc<VerifiedProgram> {
        Arc::new(VerifiedProgram::new(self.lowered()).unwrap_or_else(|problems| panic!("{problems:?}")))
    }
    /// Prices on its cluster.
    #[must_use]
    pub fn cost(&self) -> CostModel {
        clusters::priced(self.cluster.clone())
    }
    /// A simulator that has loaded the program.
    ///
    /// # Panics
    /// If the simulator refuses it.
    #[must_use]
    pub fn simulator<Q: Queue<End> + Default>(&self) -> Simulator<Q> {
        let mut simulator = Simulator::<Q>::with_queue(self.cost());
        simulator.load(self.program()).unwrap_or_else(|error| panic!("{error}"));
        simulator
    }
}

fn stages(layers: &[u32], recompute: Recompute) -> Vec<StagePlan> {
    layers
        .iter()
        .map(|layers| StagePlan { layers: vec![*layers], recompute, recompute_layers: None, tensor: None })
        .collect()
}

fn workload(sequence_length: u32, global_batch: u32) -> Workload {
    Workload {
        sequence_length,
        global_batch,
        iterations: 1,
        precision: Precision::Bf16,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 128,
        optimizer: AdamW::default(),
        seed: 1,
        recipe: ir::Recipe::default(),
    }
}

/// GPT-3 175B on 1,024 A100: tensor 8, pipeline 16, data 8, as Narayanan et al. 2021 (table 1), by 1F1B with full
/// recomputation.
#[must_use]
pub fn gpt3_175b() -> Job {
    let model = Model {
        name: "gpt3-175b".into(),
        hidden: 12288,
        layers: 96,
        heads: 96,
        kv_heads: 96,
        head_dim: 128,
        ffn: 49152,
        vocabulary: 50257,
        norm: NormKind::LayerNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Learned { maximum: 2048 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        variants: ir::Variants::default(),
    };
    let plan = Plan {
        data: 8,
        tensor: 8,
        sequence_parallel: false,
        stages: stages(&[6; 16], Recompute::Full),
        microbatch_size: 1,
        microbatches: 192,
        shares: ir::Shares::EQUAL,
        schedule: Schedule::OneForwardOneBackward,
        zero: ZeroStage::Zero1,
        overlap_gradients: true,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
        placement: Vec::new(),
    };
    Job { model, workload: workload(2048, 1536), cluster: clusters::dgx_a100(128), plan }
}

/// Llama-3.1-405B on 16,384 H100: tensor 8, pipeline 16, data 128, 16 million tokens, as Grattafiori et al. 2024 (table
/// 4), by 1F1B with sequence parallelism; the first and the last stage hold a layer less.
#[must_use]
pub fn llama_405b() -> Job {
    let model = Model {
        name: "llama-3.1-405b".into(),
        hidden: 16384,
        layers: 126,
        heads: 128,
        kv_heads: 8,
        head_dim: 128,
        ffn: 53248,
        vocabulary: 128_256,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 5e5 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    };
    let mut layers = [8; 16];
    (layers[0], layers[15]) = (7, 7);
    let plan = Plan {
        data: 128,
        tensor: 8,
        sequence_parallel: true,
        stages: stages(&layers, Recompute::None),
        microbatch_size: 1,
        microbatches: 16,
        shares: ir::Shares::EQUAL,
        schedule: Schedule::OneForwardOneBackward,
        zero: ZeroStage::Zero1,
        overlap_gradients: true,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
        placement: Vec::new(),
    };
    Job { model, workload: workload(8192, 2048), cluster: clusters::dgx_h100(2048), plan }
}
