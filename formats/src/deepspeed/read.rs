//! A configuration to a training.

use ir::{
    AdamW, AttentionKernel, CollectiveAlgorithm, GradientFormat, Mesh, Model, Plan, Precision, Problem, Recipe,
    Recompute, Schedule, Shares, Sharing, SourceSpan, StagePlan, Workload, ZeroStage,
};

use super::names;
use crate::json;
use crate::settings::{Places, Settings, Value, place};
use crate::training::{Asked, Assumption, Divided, ModelGiven, Report};

/// What a configuration says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Run {
    workload: Workload,
    /// Whether the file says how long sequences are.
    has_length: bool,
    batch: Option<u32>,
    microbatch: Option<u32>,
    steps: Option<u32>,
    pipeline: u32,
    tensor: u32,
    zero: ZeroStage,
    sharing: Sharing,
    overlap_gradients: bool,
    recompute: Recompute,
    sizes: Vec<(&'static str, u32, names::OfModel)>,
    places: Places,
}

/// Sequences where neither file nor program says how long they are: what recent models are trained with at first.
const SEQUENCE_LENGTH: u32 = 4096;

/// Reads a configuration. `file_name` is the file as the person named it.
///
/// # Errors
/// Every problem found, each with its place.
pub(crate) fn read(text: &str, file_name: &str, given: ModelGiven) -> Result<(Run, Report), Vec<Problem>> {
    let keys = json::settings(text).map_err(|json::Fault { message, range }| {
        let problem = Problem::new("file", format!("is not JSON: {message}"));
        vec![
            problem
                .hint("a DeepSpeed configuration is one object")
                .at(SourceSpan { file: file_name.to_owned(), range }),
        ]
    })?;
    let mut settings = Settings::new(file_name, text, "DeepSpeed", keys);
    let run = run(&mut settings);
    settings.finish(&names::REST);
    if given == ModelGiven::No {
        settings.fault(
            "model",
            "is not in the file: the program around it has it",
            "--model NAME, or --model config.json",
        );
    }
    let subjects = [
        ("training.sequence_length", names::LENGTH),
        ("training.iterations", names::ITERATIONS),
        ("training.optimizer.learning_rate", names::LEARNING_RATE),
        ("training.optimizer.beta1", names::BETAS),
        ("training.optimizer.beta2", names::BETAS),
        ("training.optimizer.epsilon", names::EPSILON),
        ("training.optimizer.weight_decay", names::WEIGHT_DECAY),
        ("training.optimizer.clip_norm", names::CLIPPING),
        ("training.vocabulary_divisor", names::DIVISOR),
    ];
    if settings.problems.is_empty() {
        for Problem { subject, message, hint, .. } in run.workload.problems() {
            let key = subjects.iter().find(|(name, _)| *name == subject).map(|(_, key)| settings.written(key));
            settings.fault(key.unwrap_or(&subject), message, hint.unwrap_or_default());
        }
    }
    if settings.problems.is_empty() { Ok((run, settings.report)) } else { Err(settings.problems) }
}

fn run(settings: &mut Settings<'_>) -> Run {
    let sizes = names::SIZES.into_iter().filter_map(|(key, of)| {
        let value = settings.whole(key, 1)?;
        Some((settings.written(key), value, of))
    });
    let sizes: Vec<_> = sizes.collect();
    let length = settings.whole(names::LENGTH, 1);
    let pipeline = settings.whole(names::STAGES, 0).unwrap_or(1).max(1);
    let tensor = settings.whole(names::TENSOR, 0).unwrap_or(1).max(1);
    if settings.whole(names::SEQUENCES, 1).is_some_and(|ranks| ranks > 1) {
        settings.fault(
            names::SEQUENCES[0],
            "ranks that share sequences are not read from here",
            "context and context_method in [plan] of the scenario",
        );
    }
    let zero = zero(settings);
    let sharing = sharing(settings, zero);
    // Without overlap, gradients are reduced after the last backward pass.
    let overlap_gradients = settings.flag_or(names::OVERLAP, zero == ZeroStage::Zero3);
    Run {
        workload: workload(settings, length),
        has_length: length.is_some(),
        batch: settings.whole(names::BATCH, 1),
        microbatch: settings.whole(names::MICROBATCH, 1),
        steps: settings.whole(names::STEPS, 1),
        pipeline,
        tensor,
        zero,
        overlap_gradients,
        recompute: recompute(settings, tensor, &sharing),
        sharing,
        sizes,
        places: settings.places(),
    }
}

fn zero(settings: &mut Settings<'_>) -> ZeroStage {
    let number = settings.whole_or(names::ZERO, 0, 0);
    let stage = ZeroStage::from_number(number);
    if stage.is_none() {
        settings.fault(names::ZERO[0], format!("is {number}"), "0, 1, 2 or 3");
    }
    for (key, what) in [
        (names::REDUCE_SCATTER, "gradients all-reduced where they are divided are not modelled"),
        (names::GATHER, "parameters that are broadcast instead of gathered are not modelled"),
    ] {
        if settings.flag(key) == Some(false) && stage != Some(ZeroStage::Zero0) {
            settings.fault(key[0], what, "true");
        }
    }
    stage.unwrap_or(ZeroStage::Zero0)
}

/// Whether a device of offloading is host memory.
fn is_host(settings: &mut Settings<'_>, key: names::Key, table: &str) -> bool {
    let word = settings.text(key);
    match word.as_deref() {
        None if settings.has_table(table) && !settings.has(key) => {
            settings.assume(key[0], "none");
            false
        }
        None | Some("none") => false,
        Some("cpu") => true,
        Some(other) => {
            let message = format!("`{other}` as a tier of memory is not modelled");
            settings.fault(key[0], message, "cpu, or none");
            false
        }
    }
}

fn sharing(settings: &mut Settings<'_>, zero: ZeroStage) -> Sharing {
    let optimizer = is_host(settings, names::OPTIMIZER_DEVICE, "zero_optimization.offload_optimizer");
    let parameters = is_host(settings, names::PARAMETER_DEVICE, "zero_optimization.offload_param");
    let old = settings.flag(names::OLD_OFFLOAD).unwrap_or(false);
    let old_parameters = settings.flag(names::OLD_PARAMETER_OFFLOAD).unwrap_or(false);
    if settings.number(names::OFFLOAD_RATIO).is_some_and(|ratio| (ratio - 1.0).abs() > 1e-9) {
        settings.fault(names::OFFLOAD_RATIO[0], "a part of the optimizer in host memory is not modelled", "1.0");
    }
    let bucket = settings.number(names::PREFETCH);
    if bucket.is_none() && zero == ZeroStage::Zero3 {
        settings.assume(names::PREFETCH[0], "5e7");
    }
    let shard = settings.open(names::SHARD).flatten();
    Sharing {
        shard: shard.filter(|_| zero != ZeroStage::Zero0),
        prefetch: zero == ZeroStage::Zero3 && bucket.is_none_or(|bucket| bucket > 0.0),
        offload_optimizer: optimizer || old,
        offload_parameters: zero == ZeroStage::Zero3 && (parameters || old_parameters),
        ..Sharing::default()
    }
}

/// What the program recomputes: the file only says how it stores what it keeps.
fn recompute(settings: &mut Settings<'_>, tensor: u32, sharing: &Sharing) -> Recompute {
    let on_host = settings.flag(names::CHECKPOINTS_ON_CPU).unwrap_or(false);
    let divided = settings.flag(names::PARTITIONED).unwrap_or(false);
    if divided && tensor > 1 {
        let key = settings.written(names::PARTITIONED);
        settings.fault(key, "kept activations divided over tensor ranks are not modelled", "false");
    }
    if on_host || sharing.offload_activations {
        settings.fault(
            names::CHECKPOINTS_ON_CPU[0],
            "kept activations in host memory are not read from here",
            "offload = [\"activations\"] in [plan] of the scenario, or false",
        );
    }
    let layers = settings.whole(names::CHECKPOINT_LAYERS, 1);
    if layers.is_some_and(|layers| layers > 1) {
        let key = settings.written(names::CHECKPOINT_LAYERS);
        settings.fault(key, "one checkpoint for several layers is not modelled", "1");
    }
    let said = settings.flag(names::CHECKPOINTED);
    let configured = settings.has_table("activation_checkpointing");
    match (said, configured) {
        (Some(true), _) => Recompute::Full,
        (Some(false), _) => Recompute::None,
        (None, true) => {
            note(
                settings,
                "activation_checkpointing",
                "full",
                "the section is there; the program decides which layers",
            );
            Recompute::Full
        }
        (None, false) => {
            note(settings, "activation_checkpointing", "none", "the section is not there; the program decides");
            Recompute::None
        }
    }
}

fn note(settings: &mut Settings<'_>, name: &str, value: &str, source: &str) {
    let (name, value, source) = (name.to_owned(), value.to_owned(), source.to_owned());
    settings.report.assumed.push(Assumption { name, value, source });
}

fn precision(settings: &mut Settings<'_>) -> Precision {
    let (half, brain) = (settings.flag(names::FP16), settings.flag(names::BF16));
    match (half, brain) {
        (Some(true), Some(true)) => {
            settings.fault(names::FP16[0], "and bf16.enabled exclude each other", "one of the two");
            Precision::Bf16
        }
        (Some(true), _) => Precision::Fp16,
        (_, Some(true)) => Precision::Bf16,
        _ => {
            if half.is_none() && brain.is_none() {
                settings.assume(names::FP16[0], false);
                settings.assume(names::BF16[0], false);
            }
            Precision::Fp32
        }
    }
}

fn format_of(settings: &mut Settings<'_>, key: names::Key) -> Option<GradientFormat> {
    let word = settings.text(key)?;
    match word.as_str() {
        "fp32" => Some(GradientFormat::Fp32),
        "fp16" | "bf16" | "bfloat16" => Some(GradientFormat::Half),
        other => {
            settings.fault(key[0], format!("`{other}` is not known"), "fp32, fp16 or bf16");
            None
        }
    }
}

fn workload(settings: &mut Settings<'_>, length: Option<u32>) -> Workload {
    let precision = precision(settings);
    let gradients = format_of(settings, names::ACCUMULATION);
    let reduced = format_of(settings, names::COMMUNICATION);
    let whole = settings.flag(names::FP32_REDUCTION).unwrap_or(false).then_some(GradientFormat::Fp32);
    let neox = settings.has(names::CHECKPOINTED) || settings.has(names::SOFTMAX);
    let softmax = settings.flag(names::SOFTMAX);
    let (activation, norms) = (settings.flag(names::ACTIVATION), settings.flag(names::NORMS));
    // GPT-NeoX without `attention_config` writes scores to memory; others have PyTorch's fused kernel.
    let attention = if neox { AttentionKernel::Plain } else { AttentionKernel::Fused };
    if !neox {
        note(settings, "attention", "fused", "PyTorch's scaled_dot_product_attention; the program decides");
    }
    let divisor = settings.whole(names::DIVISOR, 1).unwrap_or_else(|| {
        if neox {
            note(settings, names::DIVISOR[0], "128", "GPT-NeoX's default");
        }
        if neox { 128 } else { 1 }
    });
    let iterations = settings.whole(names::ITERATIONS, 1).unwrap_or_else(|| {
        note(settings, "iterations", "1", "the program decides; time and memory of one do not depend on it");
        1
    });
    Workload {
        sequence_length: length.unwrap_or(SEQUENCE_LENGTH),
        // Known with the devices.
        global_batch: 1,
        iterations,
        precision,
        attention,
        vocabulary_divisor: divisor,
        optimizer: optimizer(settings),
        seed: u64::from(settings.whole(names::NEOX_SEED, 0).unwrap_or(1)),
        recipe: Recipe {
            fused_normalisation: norms.unwrap_or(false),
            fused_softmax: softmax.unwrap_or(true),
            fused_activation: activation.unwrap_or(false),
            fused_loss: false,
            // GPT-NeoX has the loss of Megatron-LM.
            sharded_loss: neox,
            gradients: gradients.unwrap_or(GradientFormat::Half),
            reduced_gradients: whole.or(reduced).unwrap_or(GradientFormat::Half),
            scattered_messages: true,
            ..Recipe::default()
        },
    }
}

fn optimizer(settings: &mut Settings<'_>) -> AdamW {
    if settings.has_table("optimizer") {
        settings.choice(names::OPTIMIZER, &names::OPTIMIZERS, 0);
    } else {
        note(settings, "optimizer", "AdamW", "the program has it");
    }
    let betas = match settings.take(names::BETAS) {
        Some((key, Value::List(items))) => match items[..] {
            [Value::Number(first), Value::Number(second)] => Some((first, second)),
            _ => {
                settings.fault(key, "is not a pair of numbers", "[0.9, 0.999]");
                None
            }
        },
        Some((key, other)) => {
            settings.fault(key, format!("is {}, not a pair of numbers", other.shown()), "[0.9, 0.999]");
            None
        }
        None => {
            settings.assume(names::BETAS[0], "[0.9, 0.999]");
            None
        }
    };
    let (beta1, beta2) = betas.unwrap_or((0.9, 0.999));
    let clip = settings.number_or(names::CLIPPING, 0.0);
    AdamW {
        learning_rate: settings.number_or(names::LEARNING_RATE, 1e-3),
        beta1,
        beta2,
        epsilon: settings.number_or(names::EPSILON, 1e-8),
        weight_decay: settings.number_or(names::WEIGHT_DECAY, 0.0),
        warmup_iterations: settings.whole(names::WARMUP, 0).unwrap_or(0),
        clip_norm: (clip > 0.0).then_some(clip),
    }
}

impl Run {
    /// Where keys stand.
    pub(crate) const fn places(&self) -> &Places {
        &self.places
    }

    /// Devices, where the batch says how many replicas there are.
    pub(crate) fn devices(&self) -> Option<u64> {
        let each = u64::from(self.microbatch?) * u64::from(self.steps?);
        let batch = u64::from(self.batch?);
        let beside = u64::from(self.pipeline) * u64::from(self.tensor);
        batch.is_multiple_of(each).then(|| batch / each)?.checked_mul(beside)
    }

    /// The workload and the plan of a model on so many devices.
    ///
    /// # Errors
    /// Every reason why the degrees do not divide them, the batch or the layers; sizes that the model has otherwise.
    pub(crate) fn divide(&self, model: &Model, asked: Asked) -> Result<Divided, Vec<Problem>> {
        let mut problems = Vec::new();
        for (key, value, of) in &self.sizes {
            let wanted = of(model);
            if *value != wanted {
                let message = format!("is {value}, and {} has {wanted}", model.name);
                problems.push(Problem::new(*key, message).hint("the model that the file is for, with --model"));
            }
        }
        let replicas = self.replicas(asked.devices).unwrap_or_else(|problem| {
            problems.push(problem);
            1
        });
        let mut assumed = Vec::new();
        let batch = self.solve(replicas, asked, &mut assumed);
        let (global_batch, microbatch_size, microbatches) = batch.unwrap_or_else(|problem| {
            problems.push(problem);
            (1, 1, 1)
        });
        if !model.layers.is_multiple_of(self.pipeline) {
            let message = format!("{} layers do not divide over {} stages", model.layers, self.pipeline);
            let fits = (1..=model.layers.min(self.pipeline)).rev().find(|stages| model.layers.is_multiple_of(*stages));
            let hint = format!("{} does; or layers_per_stage in [plan] of the scenario", fits.unwrap_or(1));
            problems.push(Problem::new(names::STAGES[0], message).hint(hint));
        }
        if !problems.is_empty() {
            return Err(place(&self.places, problems));
        }
        let sequence_length = self.length(asked, model, &mut assumed);
        let stage = StagePlan {
            layers: vec![model.layers / self.pipeline],
            recompute: self.recompute,
            recompute_layers: None,
            tensor: None,
        };
        let shard = self.sharing.shard.filter(|shard| *shard < replicas);
        let plan = Plan {
            data: replicas,
            tensor: self.tensor,
            sequence_parallel: false,
            stages: vec![stage; self.pipeline as usize],
            microbatch_size,
            microbatches,
            shares: Shares::EQUAL,
            schedule: Schedule::OneForwardOneBackward,
            zero: self.zero,
            overlap_gradients: self.overlap_gradients,
            collective: CollectiveAlgorithm::Automatic,
            mesh: Mesh::default(),
            sharing: Sharing { shard, ..self.sharing },
            placement: Vec::new(),
        };
        let workload = Workload { global_batch, sequence_length, ..self.workload.clone() };
        Ok(Divided { workload, plan, assumed })
    }

    fn replicas(&self, devices: u64) -> Result<u32, Problem> {
        let beside = u64::from(self.pipeline) * u64::from(self.tensor);
        if devices > 0 && devices.is_multiple_of(beside) {
            return Ok(u32::try_from(devices / beside).unwrap_or(u32::MAX));
        }
        let (below, above) = (devices / beside * beside, devices.div_ceil(beside).max(1).saturating_mul(beside));
        let nearest = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
        let message = format!("{devices} devices do not divide into replicas of {beside} (stages x tensor)");
        Err(Problem::new(names::STAGES[0], message).hint(format!("the nearest are {nearest} devices")))
    }

    /// Sequences of an iteration, of a microbatch, and steps of accumulation, of which any may be unsaid: DeepSpeed's rule
    /// that the first is the product of the others and the replicas.
    fn solve(&self, replicas: u32, asked: Asked, assumed: &mut Vec<Assumption>) -> Result<(u32, u32, u32), Problem> {
        let batch =
            self.batch.or(if self.microbatch.is_some() && self.steps.is_some() { None } else { asked.global_batch });
        let fault = |key: names::Key, message: String, hint: String| Err(Problem::new(key[0], message).hint(hint));
        let mut one = |key: names::Key| {
            let source = "DeepSpeed's rule for what the batch leaves open".to_owned();
            assumed.push(Assumption { name: key[0].to_owned(), value: "1".to_owned(), source });
            1
        };
        let of = u64::from(replicas);
        match (batch.map(u64::from), self.microbatch, self.steps) {
            (Some(batch), Some(micro), Some(steps)) => {
                let product = (u64::from(micro) * u64::from(steps)).saturating_mul(of);
                if product == batch {
                    return Ok((narrow(batch), micro, steps));
                }
                let message = format!(
                    "{batch} is not train_micro_batch_size_per_gpu {micro} x gradient_accumulation_steps {steps} x {replicas} replicas = {product}"
                );
                let fits = batch / (u64::from(micro) * u64::from(steps));
                let hint = format!("train_batch_size {product}, or {fits} replicas");
                fault(names::BATCH, message, hint)
            }
            (Some(batch), Some(micro), None) => {
                self.rest(batch, u64::from(micro) * of, names::MICROBATCH).map(|steps| (narrow(batch), micro, steps))
            }
            (Some(batch), None, Some(steps)) => {
                self.rest(batch, u64::from(steps) * of, names::STEPS).map(|micro| (narrow(batch), micro, steps))
            }
            (Some(batch), None, None) => {
                let steps = one(names::STEPS);
                self.rest(batch, of, names::BATCH).map(|micro| (narrow(batch), micro, steps))
            }
            (None, Some(micro), steps) => {
                let steps = steps.unwrap_or_else(|| one(names::STEPS));
                let batch = (u64::from(micro) * u64::from(steps)).saturating_mul(of);
                match u32::try_from(batch) {
                    Ok(batch) => Ok((batch, micro, steps)),
                    Err(_) => fault(
                        names::MICROBATCH,
                        format!("{batch} sequences are out of reach"),
                        "a smaller one".to_owned(),
                    ),
                }
            }
            (None, None, _) => fault(
                names::BATCH,
                "neither it nor train_micro_batch_size_per_gpu is written as a number".to_owned(),
                "write one of them, or give --global-batch".to_owned(),
            ),
        }
    }

    /// How often `part` goes into the batch.
    fn rest(&self, batch: u64, part: u64, key: names::Key) -> Result<u32, Problem> {
        if batch.is_multiple_of(part) {
            return Ok(narrow(batch / part));
        }
        let what = match key {
            names::MICROBATCH => "train_micro_batch_size_per_gpu x replicas",
            names::STEPS => "gradient_accumulation_steps x replicas",
            _ => "replicas",
        };
        let (below, above) = (batch / part * part, batch.next_multiple_of(part));
        let nearest = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
        let message = format!("{batch} sequences do not divide by {part} ({what})");
        Err(Problem::new(names::BATCH[0], message).hint(format!("the nearest is {nearest}")))
    }

    fn length(&self, asked: Asked, model: &Model, assumed: &mut Vec<Assumption>) -> u32 {
        match asked.sequence_length {
            _ if self.has_length => self.workload.sequence_length,
            Some(length) => length,
            None => {
                let length = match model.positions {
                    ir::Positions::Learned { maximum } => SEQUENCE_LENGTH.min(maximum),
                    ir::Positions::Rope { .. } | ir::Positions::None => SEQUENCE_LENGTH,
                };
                assumed.push(Assumption {
                    name: "sequence_length".to_owned(),
                    value: length.to_string(),
                    source: "the program decides; --sequence-length says it".to_owned(),
                });
                length
            }
        }
    }
}

fn narrow(number: u64) -> u32 {
    u32::try_from(number).unwrap_or(u32::MAX)
}
