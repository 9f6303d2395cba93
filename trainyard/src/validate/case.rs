//! A measured run as an ordinary job: cluster, model, training and plan.

use formats::measured_runs::{
    Activation, AttentionForm, Fault, ModelShape, Offload, Reason, Recomputation, ScheduleName, SplitRule,
    VocabularyPlacement,
};
use ir::{
    AdamW, Cluster, CollectiveAlgorithm, ContextMethod, Experts, FeedForward, GatedDelta, LatentAttention, LayerRun,
    Mesh, Mixer, MlpKind, Model, NormKind, Plan, Positions, Recompute, Schedule, Sharing, StagePlan, Variants, Vee,
    VeeMemory, VocabularyDivision, Workload, ZeroBubble,
};

use super::recipe::{PositionKind, ResolvedRun};

/// What is simulated for a row.
#[derive(Clone, PartialEq, Debug)]
pub struct Case {
    /// Devices and links.
    pub cluster: Cluster,
    /// What is trained.
    pub model: Model,
    /// How.
    pub workload: Workload,
    /// Divided how.
    pub plan: Plan,
}

impl Case {
    /// The case of a run.
    ///
    /// # Errors
    /// What of the run a plan cannot say, by name: schedules, placements and offloading that are not simulated.
    pub fn of(run: &ResolvedRun) -> Result<Self, Vec<Fault>> {
        let mut faults = Vec::new();
        let model = model(run);
        let workload = workload(run);
        let plan = plan(run, &model, &mut faults);
        if faults.is_empty() {
            Ok(Self { cluster: run.hardware.cluster(), model, workload, plan })
        } else {
            Err(faults)
        }
    }
}

fn other(column: &'static str, message: impl Into<String>) -> Fault {
    Fault::new(Reason::OtherModel, column, message)
}

fn mlp(activation: Activation) -> MlpKind {
    match activation {
        Activation::Gelu | Activation::Relu | Activation::SquaredRelu => MlpKind::Gelu,
        Activation::SwiGlu => MlpKind::SwiGlu,
        Activation::GeGlu => MlpKind::GeGlu,
    }
}

fn model(run: &ResolvedRun) -> Model {
    let (shape, family) = (&run.row.model, &run.family);
    let kind = mlp(shape.activation);
    let dense = shape.feed_forward.or(shape.experts.map(|experts| experts.feed_forward)).unwrap_or(4 * shape.hidden);
    Model {
        name: shape.name.clone(),
        hidden: shape.hidden,
        layers: shape.layers,
        heads: shape.heads,
        kv_heads: shape.key_value_heads,
        head_dim: shape.head_dim,
        ffn: dense,
        vocabulary: run.vocabulary,
        norm: family.norm,
        norm_epsilon: if family.norm == NormKind::RmsNorm { 1e-6 } else { 1e-5 },
        positions: match family.positions {
            PositionKind::Rope => Positions::Rope { theta: 10_000.0 },
            PositionKind::Learned => Positions::Learned { maximum: run.row.sequence_length },
            PositionKind::None => Positions::None,
        },
        mlp: kind,
        qkv_bias: family.biases,
        projection_bias: family.biases,
        mlp_bias: family.biases,
        tied_head: run.tied_head,
        variants: variants(shape, kind),
    }
}

/// Experts, windows and other mixers, with the layers that have them.
fn variants(shape: &ModelShape, kind: MlpKind) -> Variants {
    let experts = shape.experts.map(|experts| Experts {
        count: experts.count,
        active: experts.active,
        ffn: experts.feed_forward,
        shared_ffn: experts.shared * experts.feed_forward,
        shared_gate: false,
        mlp: kind,
        bias: false,
        router_bias: false,
        router: ir::Router::default(),
    });
    let mut variants = Variants { experts, ..Variants::default() };
    let mixer: Box<dyn Fn(u32) -> Mixer> = match shape.attention {
        AttentionForm::Plain | AttentionForm::LinearBias => Box::new(|_| Mixer::Attention),
        AttentionForm::Latent { query_rank, key_value_rank, plain_head_dim, rotary_head_dim, value_head_dim } => {
            variants.latent = Some(LatentAttention {
                query_rank,
                kv_rank: key_value_rank,
                plain_head_dim,
                rotary_head_dim,
                value_head_dim,
            });
            Box::new(|_| Mixer::Latent)
        }
        AttentionForm::AlternatingWindow { window } => {
            variants.window = Some(window);
            Box::new(|layer| if layer % 2 == 0 { Mixer::Window } else { Mixer::Attention })
        }
        AttentionForm::GatedDelta { delta_layers } => {
            // The proportions of Qwen3-Next, the one published model of the kind.
            variants.delta = Some(GatedDelta {
                key_heads: shape.heads,
                key_head_dim: (shape.head_dim / 2).max(1),
                value_heads: 2 * shape.heads,
                value_head_dim: (shape.head_dim / 2).max(1),
                convolution: 4,
            });
            Box::new(
                move |layer| {
                    if (layer + 1) % (delta_layers + 1) == 0 { Mixer::Attention } else { Mixer::GatedDelta }
                },
            )
        }
    };
    let routed = shape.experts.map_or(0, |experts| experts.layers.min(shape.layers));
    // Experts in every second, third, … layer where that divides, else in all after the first ones.
    let every = shape.layers.checked_div(routed).filter(|every| every * routed == shape.layers);
    let part = |layer: u32| match every {
        _ if routed == 0 => FeedForward::Dense,
        Some(every) if (layer + 1).is_multiple_of(every) => FeedForward::Experts,
        Some(_) => FeedForward::Dense,
        None if layer < shape.layers - routed => FeedForward::Dense,
        None => FeedForward::Experts,
    };
    for layer in 0..shape.layers {
        let run = LayerRun { layers: 1, mixer: mixer(layer), feed_forward: part(layer) };
        match variants.pattern.last_mut() {
            Some(last) if last.kind() == run.kind() => last.layers += 1,
            Some(_) | None => variants.pattern.push(run),
        }
    }
    let plain = |run: &LayerRun| run.kind() == ir::LayerKind::default();
    if variants.pattern.iter().all(plain) {
        variants.pattern.clear();
        (variants.experts, variants.window, variants.delta) = (None, None, None);
    }
    variants
}

fn workload(run: &ResolvedRun) -> Workload {
    Workload {
        sequence_length: run.row.sequence_length,
        global_batch: u32::try_from(run.row.batch.global).unwrap_or(u32::MAX),
        iterations: 1,
        precision: run.switches.precision,
        attention: run.switches.attention,
        vocabulary_divisor: run.switches.vocabulary_divisor,
        optimizer: AdamW::default(),
        seed: 0,
        recipe: run.switches.recipe,
    }
}

fn plan(run: &ResolvedRun, model: &Model, faults: &mut Vec<Fault>) -> Plan {
    let (layout, switches) = (&run.row.layout, &run.switches);
    let (recompute, recompute_layers) = recompute(&switches.recomputation);
    let schedule = schedule(layout.schedule, run.chunks, faults);
    let (pipeline, chunks) = (layout.pipeline, run.chunks.max(schedule.usual_chunks()));
    let redistributed = layout.vocabulary == Some(VocabularyPlacement::Redistributed) && chunks == 1 && pipeline > 1;
    let layers = redistributed
        .then(|| redistribute(model, run.row.sequence_length, pipeline))
        .or_else(|| split(run, model, faults))
        .unwrap_or_else(|| sched::legality::balanced_stages(model.layers, pipeline, chunks, recompute))
        .into_iter()
        .map(|stage| StagePlan { recompute, recompute_layers, ..stage })
        .collect();
    Plan {
        data: layout.data,
        tensor: layout.tensor,
        sequence_parallel: switches.sequence_parallel && layout.tensor > 1,
        stages: layers,
        microbatch_size: run.microbatch,
        microbatches: run.microbatches,
        shares: ir::Shares::EQUAL,
        schedule,
        zero: switches.zero,
        overlap_gradients: switches.overlap_gradients && layout.data * layout.context > 1,
        collective: CollectiveAlgorithm::Automatic,
        mesh: Mesh {
            context: layout.context,
            context_method: ContextMethod::Ring,
            expert: layout.expert,
            expert_tensor: layout.expert_tensor.unwrap_or(1),
        },
        sharing: Sharing {
            shard: switches.shard_group,
            prefetch: switches.prefetch && switches.zero == ir::ZeroStage::Zero3,
            overlap_parameters: switches.overlap_parameters && switches.zero == ir::ZeroStage::Zero1,
            overlap_tensor: switches.overlap_tensor && layout.tensor > 1,
            overlap_experts: switches.overlap_experts && layout.expert > 1,
            offload_activations: matches!(switches.offload, Offload::Activations { .. } | Offload::Checkpoints),
            offload_optimizer: matches!(switches.offload, Offload::Optimizer | Offload::OptimizerAndParameters),
            offload_parameters: switches.offload == Offload::OptimizerAndParameters,
            vocabulary: vocabulary(layout.vocabulary),
            bucket: None,
        },
        placement: Vec::new(),
    }
}

fn vocabulary(placement: Option<VocabularyPlacement>) -> VocabularyDivision {
    match placement {
        None | Some(VocabularyPlacement::Ends | VocabularyPlacement::Redistributed) => VocabularyDivision::Ends,
        Some(VocabularyPlacement::ShardedTwoBarriers) => VocabularyDivision::TwoBarriers,
        Some(VocabularyPlacement::ShardedOneBarrier) => VocabularyDivision::OneBarrier,
        Some(VocabularyPlacement::Interlaced) => VocabularyDivision::Interlaced,
    }
}

/// Named modules are taken as selective: what they drop and redo is small beside the products that stay.
fn recompute(recomputation: &Recomputation) -> (Recompute, Option<u32>) {
    match recomputation {
        Recomputation::None => (Recompute::None, None),
        Recomputation::AttentionCore => (Recompute::Selective, None),
        Recomputation::PerOperation => (Recompute::Operations, None),
        Recomputation::Modules(modules) => {
            let core = modules.iter().any(|module| module.contains("attn") || module.contains("attention"));
            (if core { Recompute::Selective } else { Recompute::None }, None)
        }
        Recomputation::Full { layers } => (Recompute::Full, *layers),
    }
}

fn schedule(name: Option<ScheduleName>, chunks: u32, faults: &mut Vec<Fault>) -> Schedule {
    let refused = |word: &str| other("pp_schedule", format!("the schedule {word} is not simulated"));
    match name {
        None | Some(ScheduleName::OneForwardOneBackward) => Schedule::OneForwardOneBackward,
        Some(ScheduleName::GPipe) if chunks <= 1 => Schedule::GPipe,
        Some(ScheduleName::ZeroBubbleH1) if chunks <= 1 => Schedule::ZeroBubbleH1,
        Some(ScheduleName::ZeroBubble1p) if chunks <= 1 => Schedule::ZeroBubble(ZeroBubble::unprofiled(1)),
        Some(ScheduleName::ZeroBubble2p) if chunks <= 1 => Schedule::ZeroBubble(ZeroBubble::unprofiled(2)),
        Some(ScheduleName::ZeroBubbleH2) if chunks <= 1 => Schedule::ZeroBubbleH2,
        Some(ScheduleName::ZeroBubbleV) => Schedule::Vee(Vee::unprofiled(VeeMemory::Full)),
        Some(ScheduleName::VHalf) => Schedule::Vee(Vee::unprofiled(VeeMemory::Half)),
        Some(ScheduleName::VMin) => Schedule::Vee(Vee::unprofiled(VeeMemory::Third)),
        Some(ScheduleName::DualPipeV) => Schedule::DualPipeV,
        Some(name) => {
            faults.push(refused(&format!("{name:?}")));
            Schedule::OneForwardOneBackward
        }
    }
}

/// Stages where the row says how layers were cut.
fn split(run: &ResolvedRun, model: &Model, faults: &mut Vec<Fault>) -> Option<Vec<StagePlan>> {
    let (pipeline, layers) = (run.row.layout.pipeline, model.layers);
    let stage = |layers: u32| StagePlan {
        layers: vec![layers],
        recompute: Recompute::None,
        recompute_layers: None,
        tensor: None,
    };
    let one_chunk = run.chunks <= 1;
    match run.row.layout.split.as_ref()? {
        SplitRule::Bounds(bounds) if one_chunk && bounds.len() == pipeline as usize + 1 => {
            let elements = bounds.last().copied().unwrap_or(0);
            let around = elements.checked_sub(layers)?;
            // Of what stands around the layers, a third before them and two thirds behind.
            let first = around / 3;
            let inside = |element: u32| element.clamp(first, first + layers) - first;
            Some(bounds.windows(2).map(|pair| stage(inside(pair[1]) - inside(pair[0]))).collect())
        }
        SplitRule::EndsOneLess if one_chunk && pipeline > 2 => {
            ends(layers + 2, pipeline, 1).map(|list| list.into_iter().map(stage).collect())
        }
        SplitRule::EndsCountAsLayers if one_chunk && pipeline > 1 => {
            ends(layers + 2, pipeline, 1).map(|list| list.into_iter().map(stage).collect())
        }
        SplitRule::EndsOneLess | SplitRule::EndsCountAsLayers | SplitRule::Bounds(_) => None,
        SplitRule::Words(words) => {
            faults.push(other("pp_layer_split", format!("`{words}` is not understood")));
            None
        }
    }
}

/// Layers moved off the last stage until no stage takes longer than it must, by FLOPs: the head weighs as many layers as
/// its FLOPs are of a layer's (Yeung et al. 2024).
fn redistribute(model: &Model, sequence_length: u32, pipeline: u32) -> Vec<StagePlan> {
    let head = 2.0 * f64::from(model.vocabulary) * f64::from(model.hidden);
    let scores = 2.0 * model.query_width() as f64 * f64::from(sequence_length);
    let layer = 2.0 * model.layer_parameters(model.layer(0)) as f64 + scores;
    let weight = head / layer;
    let longest = |last: u32| {
        let others = (model.layers - last).div_ceil(pipeline - 1);
        f64::from(others).max(f64::from(last) + weight)
    };
    let last = (0..=model.layers / pipeline).rev().min_by(|a, b| longest(*a).total_cmp(&longest(*b))).unwrap_or(0);
    let rest = model.layers - last;
    let (each, over) = (rest / (pipeline - 1), rest % (pipeline - 1));
    // The longer ones late, where fewer microbatches are in flight.
    let of = |stage: u32| if stage == pipeline - 1 { last } else { each + u32::from(stage + over >= pipeline - 1) };
    let plan = |stage: u32| StagePlan {
        layers: vec![of(stage)],
        recompute: Recompute::None,
        recompute_layers: None,
        tensor: None,
    };
    (0..pipeline).map(plan).collect()
}

/// `total` over `pipeline` equally, `less` fewer on the first and on the last stage.
fn ends(total: u32, pipeline: u32, less: u32) -> Option<Vec<u32>> {
    let each = total.is_multiple_of(pipeline).then_some(total / pipeline)?;
    let mut list = vec![each; pipeline as usize];
    *list.first_mut()? = each.checked_sub(less)?;
    let last = list.last_mut()?;
    *last = last.checked_sub(less)?;
    Some(list)
}
