//! Random cases: a model, a workload, a cluster and a plan that is legal on them, all drawn from one seed.

use std::sync::Arc;

use ir::grid::{Action, Cell, Grid};
use ir::{
    AdamW, AttentionKernel, ChunkId, Cluster, CollectiveAlgorithm, DeviceId, MicrobatchId, MlpKind, Model, NormKind,
    Plan, Positions, Precision, Recompute, Schedule, StagePlan, Vee, VeeMemory, VerifiedProgram, Workload, ZeroStage,
};
use sched::Folding;

use crate::clusters;
use crate::dice::Dice;

/// A legal case.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is trained.
    pub model: Model,
    /// How.
    pub workload: Workload,
    /// On what.
    pub cluster: Cluster,
    /// Divided how.
    pub plan: Plan,
}

impl Case {
    /// A case that a CPU trains in milliseconds: FP32, tiny sizes, at most `ranks` ranks in one domain.
    #[must_use]
    pub fn tiny(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed);
        loop {
            let degrees = degrees(&mut dice, ranks);
            let layers = degrees.layers(&mut dice);
            let model = tiny_model(&mut dice, layers, degrees.tensor);
            let case = Self::divided(&mut dice, degrees, model, clusters::cpu(ranks), Precision::Fp32).in_buckets(seed);
            if case.is_legal() {
                return case.shared_out(seed);
            }
        }
    }

    /// A case of at most `ranks` ranks on a random cluster: unlike nodes, shared NICs, oversubscribed leaf switches.
    #[must_use]
    pub fn spread(seed: u64, ranks: u32) -> Self {
        let mut dice = Dice::new(seed);
        loop {
            let degrees = degrees(&mut dice, ranks);
            let layers = degrees.layers(&mut dice);
            let model = medium_model(&mut dice, layers, degrees.tensor);
            let cluster = clusters::random(&mut dice, degrees.world());
            let mut case = Self::divided(&mut dice, degrees, model, cluster, Precision::Fp16).in_buckets(seed);
            if dice.chance(15) {
                case.plan.placement = placement(&mut dice, &case.plan, &case.cluster);
            }
            if case.is_legal() {
                return case.shared_out(seed);
            }
        }
    }

    /// The same with unequal shares and the batch that they make, for half of the cases that can have such.
    #[must_use]
    pub fn shared_out(self, seed: u64) -> Self {
        let mut dice = Dice::new(seed ^ 0x54a2_e5e5);
        let (data, most) = (self.plan.data, self.plan.microbatches);
        if data < 2 || most < 2 || !self.plan.shares.are_equal() || dice.chance(50) {
            return self;
        }
        let mut counts: Vec<u32> = (0..data).map(|_| dice.within(1, most)).collect();
        counts[dice.index(data as usize)] = most;
        let mut case = self.clone();
        case.workload.global_batch = case.plan.microbatch_size * counts.iter().sum::<u32>();
        case.plan = case.plan.with_shares(counts);
        if case.is_legal() { case } else { self }
    }

    /// Gradients in buckets from one part to whole chunks.
    fn in_buckets(mut self, seed: u64) -> Self {
        let sizes = [Some(1), Some(1), Some(1_500), Some(20_000), Some(3_000_000), None];
        self.plan.sharing.bucket = Dice::new(seed ^ 0xb0c4_e7ed).pick(&sizes);
        self
    }

    fn divided(dice: &mut Dice, degrees: Degrees, model: Model, cluster: Cluster, precision: Precision) -> Self {
        let microbatches = if dice.chance(25) { dice.within(1, degrees.pipeline) } else { dice.within(1, 6) };
        let microbatch_size = dice.pick(&[1, 1, 2, 3]);
        let sequence_length = match precision {
            Precision::Fp32 | Precision::Tf32 => dice.within(5, 12),
            Precision::Fp16 | Precision::Bf16 | Precision::Fp8 => dice.pick(&[64, 128, 512]),
        };
        let plan = plan(dice, degrees, &model, microbatches, microbatch_size);
        let workload = workload(dice, degrees.data * microbatches * microbatch_size, sequence_length, precision);
        Self { model, workload, cluster, plan }
    }

    pub(crate) fn is_legal(&self) -> bool {
        sched::legal(&self.plan, &self.model, &self.workload, &self.cluster).is_empty()
    }

    /// The verified program, folded or flat.
    ///
    /// # Panics
    /// If a legal plan has no program or one that verification refuses: a bug.
    #[must_use]
    pub fn program(&self, folding: Folding) -> Arc<VerifiedProgram> {
        let program = sched::lower_as(folding, &self.plan, &self.model, &self.workload, &self.cluster)
            .unwrap_or_else(|problems| panic!("a legal plan was not lowered: {problems:#?}\n{:#?}", self.plan));
        let verified = VerifiedProgram::new(program);
        Arc::new(verified.unwrap_or_else(|problems| panic!("{}\n{:#?}", sentences(&problems), self.plan)))
    }

    /// The same training on one rank: one replica, no division, no recomputation, one microbatch after the other.
    #[must_use]
    pub fn on_one_rank(&self) -> Self {
        let plan = Plan {
            data: 1,
            tensor: 1,
            sequence_parallel: false,
            stages: vec![StagePlan {
                layers: vec![self.model.layers],
                recompute: Recompute::None,
                recompute_layers: None,
                tensor: None,
            }],
            microbatch_size: self.workload.global_batch,
            microbatches: 1,
            shares: ir::Shares::EQUAL,
            schedule: Schedule::GPipe,
            zero: ZeroStage::Zero0,
            overlap_gradients: false,
            collective: CollectiveAlgorithm::Automatic,
            mesh: ir::Mesh::default(),
            sharing: ir::Sharing::default(),
            placement: Vec::new(),
        };
        Self { plan, ..self.clone() }
    }
}

/// Problems, one a line.
#[must_use]
pub fn sentences(problems: &[ir::Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[derive(Clone, Copy)]
struct Degrees {
    data: u32,
    tensor: u32,
    pipeline: u32,
    chunks: u32,
}

impl Degrees {
    const fn world(self) -> u32 {
        self.data * self.tensor * self.pipeline
    }
    /// Enough layers for every chunk, a few more, or two fewer (the first and last chunk may be empty of layers).
    fn layers(self, dice: &mut Dice) -> u32 {
        let chunks = self.pipeline * self.chunks;
        let spare = dice.within(0, 4);
        if chunks > 2 && dice.chance(20) { chunks - 2 + spare } else { chunks + spare }
    }
}

fn degrees(dice: &mut Dice, ranks: u32) -> Degrees {
    loop {
        let degree = |dice: &mut Dice| match dice.within(0, 7) {
            0..=2 => 1,
            3 | 4 => 2,
            5 => dice.pick(&[3, 4]),
            6 => 4.min(ranks),
            _ => dice.within(1, 8.min(ranks)),
        };
        let degrees = Degrees {
            data: degree(dice),
            tensor: dice.pick(&[1, 1, 2, 2, 4, 8]),
            pipeline: degree(dice),
            chunks: dice.pick(&[1, 1, 1, 2, 2, 3]),
        };
        let wide =
            if ranks > 8 { Degrees { data: degrees.data * dice.within(1, ranks / 8), ..degrees } } else { degrees };
        if wide.world() <= ranks {
            return wide;
        }
    }
}

/// Either family, or a mixture of both.
fn family(dice: &mut Dice, model: Model) -> Model {
    match dice.within(0, 2) {
        0 => model,
        1 => Model {
            norm: NormKind::LayerNorm,
            positions: Positions::Learned { maximum: 512 },
            mlp: MlpKind::Gelu,
            qkv_bias: true,
            projection_bias: true,
            mlp_bias: true,
            tied_head: true,
            ..model
        },
        _ => Model {
            norm: dice.pick(&[NormKind::RmsNorm, NormKind::LayerNorm]),
            positions: dice.pick(&[Positions::Rope { theta: 500.0 }, Positions::Learned { maximum: 512 }]),
            mlp: dice.pick(&[MlpKind::SwiGlu, MlpKind::Gelu]),
            qkv_bias: dice.chance(50),
            projection_bias: dice.chance(50),
            mlp_bias: dice.chance(50),
            tied_head: dice.chance(50),
            ..model
        },
    }
}

fn llama(name: &str, layers: u32, [hidden, heads, kv_heads, head_dim, ffn, vocabulary]: [u32; 6]) -> Model {
    Model {
        name: name.into(),
        hidden,
        layers,
        heads,
        kv_heads,
        head_dim,
        ffn,
        vocabulary,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 1e4 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    }
}

fn tiny_model(dice: &mut Dice, layers: u32, tensor: u32) -> Model {
    let kv_heads = tensor * dice.pick(&[1, 1, 2]);
    let heads = kv_heads * dice.pick(&[1, 2]);
    let sizes = [
        dice.pick(&[12, 16, 20]),
        heads,
        kv_heads,
        dice.pick(&[2, 4, 6]),
        tensor * dice.within(2, 5),
        dice.pick(&[256, 256, 259]),
    ];
    let model = llama("tiny", layers, sizes);
    family(dice, model)
}

fn medium_model(dice: &mut Dice, layers: u32, tensor: u32) -> Model {
    let kv_heads = tensor * dice.pick(&[1, 2]);
    let heads = kv_heads * dice.pick(&[1, 2, 4]);
    let hidden = dice.pick(&[256, 1024, 2048]);
    let model = llama("medium", layers, [hidden, heads, kv_heads, 64, tensor * 256, 8000]);
    family(dice, model)
}

fn workload(dice: &mut Dice, global_batch: u32, sequence_length: u32, precision: Precision) -> Workload {
    Workload {
        sequence_length,
        global_batch,
        iterations: 20,
        precision,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: dice.pick(&[1, 2, 8]),
        optimizer: AdamW {
            learning_rate: 2e-3,
            warmup_iterations: dice.pick(&[0, 3, 10]),
            clip_norm: dice.pick(&[None, Some(1.0), Some(0.25)]),
            ..AdamW::default()
        },
        seed: dice.next(),
        recipe: ir::Recipe::default(),
    }
}

/// A plan of these degrees; not always a legal one.
fn plan(dice: &mut Dice, degrees: Degrees, model: &Model, microbatches: u32, microbatch_size: u32) -> Plan {
    let recompute = [Recompute::None, Recompute::None, Recompute::Selective, Recompute::Full];
    let uniform = dice.pick(&recompute);
    let mixed = dice.chance(25);
    let stages: Vec<StagePlan> = layers_of_stages(dice, degrees, model.layers)
        .into_iter()
        .map(|layers| StagePlan {
            layers,
            recompute: if mixed { dice.pick(&recompute) } else { uniform },
            recompute_layers: None,
            tensor: None,
        })
        .collect();
    Plan {
        data: degrees.data,
        tensor: degrees.tensor,
        sequence_parallel: degrees.tensor > 1 && dice.chance(50),
        schedule: schedule(dice, degrees, microbatches),
        stages,
        microbatch_size,
        microbatches,
        shares: ir::Shares::EQUAL,
        zero: dice.pick(&[ZeroStage::Zero0, ZeroStage::Zero1]),
        overlap_gradients: dice.chance(50),
        collective: dice.pick(&[
            CollectiveAlgorithm::Automatic,
            CollectiveAlgorithm::Automatic,
            CollectiveAlgorithm::Ring,
            CollectiveAlgorithm::Tree,
            CollectiveAlgorithm::Hierarchical,
        ]),
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
        placement: Vec::new(),
    }
}

/// One layer for each chunk that must have one, the rest anywhere.
fn layers_of_stages(dice: &mut Dice, degrees: Degrees, layers: u32) -> Vec<Vec<u32>> {
    let chunks = (degrees.pipeline * degrees.chunks) as usize;
    let mut counts = vec![1u32; chunks];
    if layers < degrees.pipeline * degrees.chunks {
        counts[0] = 0;
        counts[chunks - 1] = 0;
    }
    let spare = layers.saturating_sub(counts.iter().sum());
    for _ in 0..spare {
        counts[dice.index(chunks)] += 1;
    }
    let pipeline = degrees.pipeline as usize;
    (0..pipeline).map(|stage| counts.iter().skip(stage).step_by(pipeline).copied().collect()).collect()
}

fn schedule(dice: &mut Dice, degrees: Degrees, microbatches: u32) -> Schedule {
    let memory = dice.pick(&[VeeMemory::Full, VeeMemory::Half, VeeMemory::Third]);
    match dice.within(0, 12) {
        10 => Schedule::ZeroBubbleH2,
        11 | 12 if degrees.chunks == 2 && degrees.pipeline > 1 && microbatches >= 2 * degrees.pipeline => {
            Schedule::DualPipeV
        }
        11 | 12 if degrees.chunks == 2 && degrees.pipeline > 1 => Schedule::Vee(Vee::unprofiled(memory)),
        0 | 1 => Schedule::GPipe,
        2..=5 => Schedule::OneForwardOneBackward,
        6 | 7 => Schedule::ZeroBubbleH1,
        _ => Schedule::Explicit(any_grid(dice, degrees, microbatches)),
    }
}

/// Chunks on rows in turn, or there and back again (as V-shaped schedules place them), in any order of passes that the
/// passes themselves allow.
fn any_grid(dice: &mut Dice, degrees: Degrees, microbatches: u32) -> Grid {
    let total = degrees.pipeline * degrees.chunks;
    let there_and_back = dice.chance(50);
    let row = |chunk: u32| {
        let (turn, place) = (chunk / degrees.pipeline, chunk % degrees.pipeline);
        if there_and_back && turn % 2 == 1 { degrees.pipeline - 1 - place } else { place }
    };
    let split = dice.pick(&[0, 50, 100]);
    let mut waiting: Vec<Cell> = Vec::new();
    for (chunk, microbatch) in (0..total).flat_map(|chunk| (0..microbatches).map(move |m| (chunk, m))) {
        let cell = |action| Cell { chunk: ChunkId::new(chunk), action, microbatch: MicrobatchId::new(microbatch) };
        waiting.push(cell(Action::Forward));
        if dice.chance(split) {
            waiting.extend([cell(Action::BackwardInput), cell(Action::BackwardWeight)]);
        } else {
            waiting.push(cell(Action::Backward));
        }
    }
    let mut rows = vec![Vec::new(); degrees.pipeline as usize];
    let mut done: Vec<Cell> = Vec::new();
    while !waiting.is_empty() {
        let ready: Vec<usize> = (0..waiting.len()).filter(|index| is_ready(waiting[*index], total, &done)).collect();
        let cell = waiting.swap_remove(dice.pick(&ready));
        rows[row(cell.chunk.raw()) as usize].push(cell);
        done.push(cell);
    }
    Grid { rows }
}

fn is_ready(cell: Cell, chunks: u32, done: &[Cell]) -> bool {
    let passed = |chunk: u32, actions: &[Action]| {
        let same = |other: &&Cell| other.chunk.raw() == chunk && other.microbatch == cell.microbatch;
        done.iter().filter(same).any(|other| actions.contains(&other.action))
    };
    let chunk = cell.chunk.raw();
    match cell.action {
        Action::Forward => chunk == 0 || passed(chunk - 1, &[Action::Forward]),
        Action::Backward | Action::BackwardInput => {
            let next = chunk + 1 == chunks || passed(chunk + 1, &[Action::Backward, Action::BackwardInput]);
            next && passed(chunk, &[Action::Forward])
        }
        Action::BackwardWeight => passed(chunk, &[Action::BackwardInput]),
    }
}

/// Ranks on devices of the cluster in a random order of tensor groups.
fn placement(dice: &mut Dice, plan: &Plan, cluster: &Cluster) -> Vec<DeviceId> {
    let groups = u32::try_from(cluster.devices()).expect("a small cluster") / plan.tensor;
    let mut order: Vec<u32> = (0..groups).collect();
    dice.shuffle(&mut order);
    let wanted = (plan.data * plan.pipeline()) as usize;
    order
        .iter()
        .take(wanted)
        .flat_map(|group| (0..plan.tensor).map(move |i| DeviceId::new(group * plan.tensor + i)))
        .collect()
}
