//! A configuration to a training.

use ir::{
    AdamW, AttentionKernel, CollectiveAlgorithm, ContextMethod, GradientFormat, LogitCopies, Mesh, Model, Plan,
    Precision, Problem, Recipe, Recompute, Schedule, Shares, Sharing, SourceSpan, StagePlan, Vee, VeeMemory, Workload,
    ZeroStage,
};
use toml::de::{DeTable, DeValue};

use super::names;
use super::split::{self, Split};
use crate::settings::{Places, Setting, Settings, Value, place};
use crate::text::nearest;
use crate::training::{Asked, Divided, ModelGiven, Report};

/// What a configuration says.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Run {
    model: Option<&'static str>,
    workload: Workload,
    local_batch: u32,
    global_batch: Option<u32>,
    replicate: u32,
    /// `None`: whatever devices are left.
    shard: Option<u32>,
    tensor: u32,
    pipeline: u32,
    mesh: Mesh,
    reshard: Option<bool>,
    overlap_tensor: bool,
    offload: bool,
    schedule: Schedule,
    chunks: u32,
    microbatch: Microbatch,
    split: Split,
    checkpointing: Checkpointing,
    places: Places,
}

/// How a pipeline cuts a batch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Microbatch {
    Size(u32),
    Count(u32),
}

/// What is recomputed.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Checkpointing {
    None,
    Full,
    Operations,
    /// Every so many layers.
    Every(u32),
}

/// Reads a configuration. `file_name` is the file as the person named it.
///
/// # Errors
/// Every problem found, each with its place.
pub(crate) fn read(text: &str, file_name: &str, given: ModelGiven) -> Result<(Run, Report), Vec<Problem>> {
    let (given_keys, problems) = keys(text, file_name);
    if !problems.is_empty() {
        return Err(problems);
    }
    let mut settings = Settings::new(file_name, text, "torchtitan", given_keys);
    let run = run(&mut settings, given);
    settings.finish(&names::REST);
    let subjects = [
        ("training.sequence_length", names::SEQUENCE),
        ("training.iterations", names::STEPS),
        ("training.optimizer.learning_rate", names::LEARNING_RATE),
        ("training.optimizer.beta1", names::BETA1),
        ("training.optimizer.beta2", names::BETA2),
        ("training.optimizer.epsilon", names::EPSILON),
        ("training.optimizer.weight_decay", names::WEIGHT_DECAY),
        ("training.optimizer.clip_norm", names::MAX_NORM),
    ];
    if settings.problems.is_empty() {
        for Problem { subject, message, hint, .. } in run.workload.problems() {
            let key = subjects.iter().find(|(name, _)| *name == subject).map(|(_, key)| settings.written(key));
            settings.fault(key.unwrap_or(&subject), message, hint.unwrap_or_default());
        }
    }
    if settings.problems.is_empty() { Ok((run, settings.report)) } else { Err(settings.problems) }
}

/// The keys of a text, or the faults of its syntax.
fn keys(text: &str, file_name: &str) -> (Vec<Setting>, Vec<Problem>) {
    let (root, errors) = DeTable::parse_recoverable(text);
    let fault = |error: &toml::de::Error| {
        let message = format!("is not TOML: {}", error.message().replace('\n', ", "));
        let range = error.span().unwrap_or(0..0);
        Problem::new("file", message).at(SourceSpan { file: file_name.to_owned(), range })
    };
    let mut found = Vec::new();
    flatten("", root.get_ref(), &mut found);
    found.sort_by_key(|setting| setting.range.start);
    (found, errors.iter().take(20).map(fault).collect())
}

fn flatten(path: &str, table: &DeTable<'_>, found: &mut Vec<Setting>) {
    for (key, value) in table {
        let path = if path.is_empty() { key.get_ref().to_string() } else { format!("{path}.{}", key.get_ref()) };
        match value.get_ref() {
            DeValue::Table(inner) if !inner.is_empty() => flatten(&path, inner, found),
            other => found.push(Setting { path, value: value_of(other), range: key.span() }),
        }
    }
}

fn value_of(value: &DeValue<'_>) -> Value {
    match value {
        DeValue::String(text) => Value::Text(text.to_string()),
        DeValue::Integer(number) => {
            let whole = i64::from_str_radix(number.as_str(), number.radix()).ok();
            #[expect(clippy::cast_precision_loss, reason = "counts lie far below 2^53")]
            whole.map_or_else(|| Value::Text(number.to_string()), |whole| Value::Number(whole as f64))
        }
        DeValue::Float(number) => {
            number.as_str().parse().map_or_else(|_| Value::Text(number.to_string()), Value::Number)
        }
        DeValue::Boolean(value) => Value::Bool(*value),
        DeValue::Datetime(time) => Value::Text(time.to_string()),
        DeValue::Array(items) => Value::List(items.iter().map(|item| value_of(item.get_ref())).collect()),
        DeValue::Table(_) => Value::Table,
    }
}

fn run(settings: &mut Settings<'_>, given: ModelGiven) -> Run {
    let pipeline = settings.whole_or(names::PIPELINE, 1, 1);
    let (schedule, chunks) = schedule(settings, pipeline);
    let tensor = settings.whole_or(names::TENSOR, 1, 1);
    let shard = settings.open(names::SHARD).unwrap_or_else(|| {
        settings.assume(names::SHARD[0], -1);
        None
    });
    let reshard =
        settings.choice(names::RESHARD, &[("default", None), ("always", Some(true)), ("never", Some(false))], 0);
    let overlap_tensor = settings.flag_or(names::ASYNC_TENSOR, false) && tensor > 1;
    Run {
        model: model(settings, given),
        workload: workload(settings, tensor),
        local_batch: settings.whole_or(names::LOCAL_BATCH, 1, 8),
        global_batch: settings.open(names::GLOBAL_BATCH).flatten(),
        replicate: settings.whole_or(names::REPLICATE, 1, 1),
        shard,
        tensor,
        pipeline,
        mesh: mesh(settings),
        reshard,
        overlap_tensor,
        offload: settings.flag_or(names::CPU_OFFLOAD, false),
        schedule,
        chunks,
        microbatch: microbatch(settings, pipeline),
        split: split::read(settings, pipeline),
        checkpointing: checkpointing(settings),
        places: settings.places(),
    }
}

/// The model by its flavour: its name in the catalog.
fn model(settings: &mut Settings<'_>, given: ModelGiven) -> Option<&'static str> {
    let family = settings.text_or(names::NAME, "llama3");
    let flavour = settings.text_or(names::FLAVOUR, "debugmodel");
    if given == ModelGiven::Yes {
        settings.report.notes.push(format!("the model is the one given, in place of {family} {flavour}"));
        return None;
    }
    let found = names::FLAVOURS.iter().find(|(name, word, _)| *name == family && word.eq_ignore_ascii_case(&flavour));
    if found.is_none() {
        let of_family: Vec<&str> =
            names::FLAVOURS.iter().filter(|(name, ..)| *name == family).map(|(_, word, _)| *word).collect();
        let (key, message, hint) = if of_family.is_empty() {
            let mut families: Vec<&str> = names::FLAVOURS.iter().map(|(name, ..)| *name).collect();
            families.dedup();
            let hint = nearest(&family, &families).unwrap_or_else(|| format!("one of {}", families.join(", ")));
            (names::NAME, format!("`{family}` is no family of models that is known here"), hint)
        } else {
            let near = nearest(&flavour, &of_family).unwrap_or_else(|| format!("one of {}", of_family.join(", ")));
            (names::FLAVOUR, format!("`{flavour}` is no flavour of {family} that is known here"), near)
        };
        let key = settings.written(key);
        settings.fault(key, message, format!("{hint}; --model takes any model"));
    }
    found.map(|(_, _, name)| *name)
}

fn workload(settings: &mut Settings<'_>, tensor: u32) -> Workload {
    let compiled = settings.flag_or(names::COMPILE, false);
    // Before compilation had a table of its own, the loss was not compiled.
    let late = settings.written(names::COMPILE) == names::COMPILE[0];
    let parts = settings.take(names::COMPONENTS).map(|(_, value)| value);
    let has = |part: &str| match &parts {
        Some(Value::List(items)) => items.contains(&Value::Text(part.to_owned())),
        _ => late || part == "model",
    };
    let (fused, fused_loss) = (compiled && has("model"), compiled && has("loss"));
    let precision = precision(settings);
    let reduced =
        settings.choice(names::REDUCTION, &[("float32", GradientFormat::Fp32), ("bfloat16", GradientFormat::Half)], 0);
    // Both are priced alike.
    settings.choice(names::OPTIMIZER, &[("AdamW", ()), ("Adam", ())], 0);
    let clip = settings.number_or(names::MAX_NORM, 1.0);
    let loss_parallel = !settings.flag_or(names::NO_LOSS_PARALLEL, false) || tensor == 1;
    let early = settings.flag(names::EARLY_STOP).unwrap_or(true);
    let seed = settings.whole(names::SEED, 0);
    let optimizer = AdamW {
        learning_rate: settings.number_or(names::LEARNING_RATE, 8e-4),
        beta1: settings.number_or(names::BETA1, 0.9),
        beta2: settings.number_or(names::BETA2, 0.95),
        epsilon: settings.number_or(names::EPSILON, 1e-8),
        weight_decay: settings.number_or(names::WEIGHT_DECAY, 0.1),
        warmup_iterations: settings.whole_or(names::WARMUP, 0, 200),
        clip_norm: (clip > 0.0).then_some(clip),
    };
    Workload {
        sequence_length: settings.whole_or(names::SEQUENCE, 1, 2048),
        // Known with the devices.
        global_batch: 1,
        iterations: settings.whole_or(names::STEPS, 1, 10_000),
        precision,
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 1,
        optimizer,
        seed: u64::from(seed.unwrap_or(1)),
        recipe: recipe((fused, fused_loss), loss_parallel, reduced, early),
    }
}

/// What torchtitan does where compilation fuses norms, activations and loss, or does not; the catalog of recipes has the
/// sources.
pub(super) fn recipe(
    (fused, fused_loss): (bool, bool),
    sharded_loss: bool,
    reduced_gradients: GradientFormat,
    early_stop_recompute: bool,
) -> Recipe {
    Recipe {
        fused_normalisation: fused,
        fused_activation: fused,
        fused_loss,
        sharded_loss,
        logits: LogitCopies::Freed,
        gradients: GradientFormat::Half,
        reduced_gradients,
        early_stop_recompute,
        ..Recipe::default()
    }
}

fn precision(settings: &mut Settings<'_>) -> Precision {
    let plain = settings.choice(names::PARAMETERS, &[("bfloat16", Precision::Bf16), ("float32", Precision::Fp32)], 0);
    let old = settings.flag(names::OLD_FLOAT8).unwrap_or(false);
    let recipe = settings.text(names::MX_RECIPE);
    let converters: Vec<String> = match settings.take(names::CONVERTERS) {
        Some((_, Value::Text(text))) => text.split(',').map(|one| one.trim().to_owned()).collect(),
        Some((key, Value::List(items))) => {
            let text = |item: &Value| if let Value::Text(text) = item { Some(text.clone()) } else { None };
            let texts: Option<Vec<String>> = items.iter().map(text).collect();
            texts.unwrap_or_else(|| {
                settings.fault(key, "does not list names of converters", "[\"float8\"]");
                Vec::new()
            })
        }
        Some((key, other)) => {
            settings.fault(key, format!("is {}, not a list of converters", other.shown()), "[\"float8\"]");
            Vec::new()
        }
        None => Vec::new(),
    };
    let mut eight = old;
    for converter in converters.iter().filter(|one| !one.is_empty()) {
        match converter.as_str() {
            "float8" | "quantize.linear.float8" | "quantize.dense.float8" => eight = true,
            "mx" | "quantize.linear.mx" if recipe.as_deref().is_none_or(|recipe| recipe.contains("fp8")) => {
                eight = true
            }
            "quantize.grouped_mm.float8" | "quantize.grouped_mm.mx" => eight = true,
            other => {
                let message = format!("`{other}` is not modelled");
                settings.fault(names::CONVERTERS[0], message, "float8, or none");
            }
        }
    }
    if eight { Precision::Fp8 } else { plain }
}

fn mesh(settings: &mut Settings<'_>) -> Mesh {
    let context = settings.whole_or(names::CONTEXT, 1, 1);
    let methods = [("allgather", ContextMethod::AllGather), ("alltoall", ContextMethod::Ring)];
    let told = context > 1 || settings.has(names::ROTATION);
    let method = if told { settings.choice(names::ROTATION, &methods, 0) } else { ContextMethod::Ring };
    Mesh {
        context,
        context_method: if context > 1 { method } else { ContextMethod::Ring },
        expert: settings.whole_or(names::EXPERT, 1, 1),
        expert_tensor: settings.whole_or(names::EXPERT_TENSOR, 1, 1),
    }
}

/// The order of passes, and chunks of each position where nothing else says how many.
fn schedule(settings: &mut Settings<'_>, pipeline: u32) -> (Schedule, u32) {
    let one = Schedule::OneForwardOneBackward;
    if pipeline == 1 {
        let _ = settings.text(names::SCHEDULE);
        return (one, 1);
    }
    let name = settings.text_or(names::SCHEDULE, "1F1B");
    match name.to_lowercase().as_str() {
        "1f1b" => (one, 1),
        "interleaved1f1b" => (one, 2),
        "gpipe" => (Schedule::GPipe, 1),
        "loopedbfs" => (Schedule::GPipe, 2),
        "zbvzerobubble" => (Schedule::Vee(Vee::unprofiled(VeeMemory::Full)), 2),
        "dualpipev" => (Schedule::DualPipeV, 2),
        "interleavedzerobubble" => {
            let key = settings.written(names::SCHEDULE);
            settings.fault(key, format!("{name} is not modelled"), "ZBVZeroBubble or Interleaved1F1B");
            (one, 2)
        }
        _ => {
            let words = ["1F1B", "Interleaved1F1B", "GPipe", "LoopedBFS", "ZBVZeroBubble", "DualPipeV"];
            let hint = nearest(&name, &words).unwrap_or_else(|| format!("one of {}", words.join(", ")));
            let key = settings.written(names::SCHEDULE);
            settings.fault(key, format!("`{name}` is no order that is known here"), hint);
            (one, 1)
        }
    }
}

fn microbatch(settings: &mut Settings<'_>, pipeline: u32) -> Microbatch {
    let (size, count) = (settings.whole(names::MICROBATCH, 1), settings.whole(names::MICROBATCHES, 1));
    match (size, count) {
        (Some(_), Some(_)) => {
            let key = settings.written(names::MICROBATCHES);
            settings.fault(key, "is written beside pipeline_parallel_microbatch_size", "one of the two");
            Microbatch::Size(1)
        }
        (None, Some(count)) => Microbatch::Count(count),
        (Some(size), None) => Microbatch::Size(size),
        (None, None) => {
            if pipeline > 1 {
                settings.assume(names::MICROBATCH[0], 1);
            }
            Microbatch::Size(1)
        }
    }
}

fn checkpointing(settings: &mut Settings<'_>) -> Checkpointing {
    const SELECTIVE: &str = "selective";
    let mode = settings.text_or(names::CHECKPOINTING, SELECTIVE);
    let key = settings.written(names::CHECKPOINTING);
    match mode.as_str() {
        "none" => {
            let _ = settings.text(names::SELECTION);
            Checkpointing::None
        }
        "full" => {
            let _ = settings.text(names::SELECTION);
            Checkpointing::Full
        }
        SELECTIVE => {
            let option = settings.text_or(names::SELECTION, "2");
            match (option.as_str(), option.parse::<u32>()) {
                ("op", _) => Checkpointing::Operations,
                (_, Ok(every)) if every > 0 => Checkpointing::Every(every),
                _ => {
                    let key = settings.written(names::SELECTION);
                    settings.fault(key, format!("`{option}` is not known"), "\"op\", or a number of layers");
                    Checkpointing::Full
                }
            }
        }
        "memory_budget" => {
            settings.fault(key, "recomputation within a budget is not modelled", "none, selective or full");
            Checkpointing::None
        }
        other => {
            let words = ["none", SELECTIVE, "full"];
            let hint = nearest(other, &words).unwrap_or_else(|| format!("one of {}", words.join(", ")));
            settings.fault(key, format!("`{other}` is not known"), hint);
            Checkpointing::None
        }
    }
}

impl Run {
    /// The model's name in the catalog, if it is not given.
    pub(crate) const fn catalog_model(&self) -> Option<&'static str> {
        self.model
    }

    /// Where keys stand.
    pub(crate) const fn places(&self) -> &Places {
        &self.places
    }

    /// Devices, where all degrees are written.
    pub(crate) fn devices(&self) -> Option<u64> {
        let shard = u64::from(self.shard?);
        self.ranks_beside().checked_mul(u64::from(self.replicate))?.checked_mul(shard)
    }

    /// Ranks of one replica.
    fn ranks_beside(&self) -> u64 {
        u64::from(self.tensor).saturating_mul(u64::from(self.pipeline)).saturating_mul(u64::from(self.mesh.context))
    }

    /// The workload and the plan of a model on so many devices.
    ///
    /// # Errors
    /// Every reason why the degrees do not divide them, the batch or the layers.
    pub(crate) fn divide(&self, model: &Model, asked: Asked) -> Result<Divided, Vec<Problem>> {
        let mut problems = Vec::new();
        let data = self.data(asked.devices).unwrap_or_else(|problem| {
            problems.push(problem);
            1
        });
        let batch = self.batch(data, asked).unwrap_or_else(|problem| {
            problems.push(problem);
            (1, 1, 1)
        });
        let stages = self.stages(model).unwrap_or_else(|problem| {
            problems.push(problem);
            Vec::new()
        });
        if !problems.is_empty() {
            return Err(place(&self.places, problems));
        }
        let (global_batch, microbatch_size, microbatches) = batch;
        let workload = Workload { global_batch, ..self.workload.clone() };
        let zero = self.zero(data);
        let hybrid = self.replicate > 1 && zero != ZeroStage::Zero0;
        let sharing = Sharing {
            shard: hybrid.then(|| data / self.replicate * self.mesh.context),
            prefetch: zero == ZeroStage::Zero3,
            overlap_parameters: zero == ZeroStage::Zero2,
            overlap_tensor: self.overlap_tensor,
            offload_optimizer: self.offload,
            offload_parameters: self.offload,
            ..Sharing::default()
        };
        let plan = Plan {
            data,
            tensor: self.tensor,
            sequence_parallel: self.tensor > 1,
            stages,
            microbatch_size,
            microbatches,
            shares: Shares::EQUAL,
            schedule: self.schedule.clone(),
            zero,
            overlap_gradients: true,
            collective: CollectiveAlgorithm::Automatic,
            mesh: if model.variants.experts.is_some() {
                self.mesh
            } else {
                Mesh { expert: 1, expert_tensor: 1, ..self.mesh }
            },
            sharing,
            placement: Vec::new(),
        };
        Ok(Divided { workload, plan, assumed: Vec::new() })
    }

    /// Replicas.
    fn data(&self, devices: u64) -> Result<u32, Problem> {
        let beside = self.ranks_beside();
        let each = beside.saturating_mul(u64::from(self.replicate)).saturating_mul(u64::from(self.shard.unwrap_or(1)));
        let fits = match self.shard {
            Some(_) => devices == each,
            None => devices > 0 && devices.is_multiple_of(each),
        };
        if fits {
            return u32::try_from(devices / beside).map_err(|_| Problem::new(names::SHARD[0], "is out of reach"));
        }
        let words = "replicate x shard x tensor x pipeline x context";
        let (message, hint) = match self.shard {
            Some(_) => (
                format!("degrees multiply to {each} ({words}), and there are {devices} devices"),
                "-1 takes what is left".to_owned(),
            ),
            None => {
                let (below, above) = (devices / each * each, devices.div_ceil(each).max(1).saturating_mul(each));
                let nearest = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
                (
                    format!("{devices} devices do not divide by {each} ({words})"),
                    format!("the nearest are {nearest} devices"),
                )
            }
        };
        Err(Problem::new(names::SHARD[0], message).hint(hint))
    }

    /// Sequences of an iteration, of a microbatch, and microbatches of a replica.
    fn batch(&self, data: u32, asked: Asked) -> Result<(u32, u32, u32), Problem> {
        let round = u64::from(self.local_batch) * u64::from(data);
        let wanted = self.global_batch.or(asked.global_batch).map_or(round, u64::from);
        let fault = |key: &'static str, message: String, hint: String| Err(Problem::new(key, message).hint(hint));
        if wanted == 0 || !wanted.is_multiple_of(round) {
            let (below, above) = (wanted / round * round, wanted.div_ceil(round).max(1) * round);
            let nearest = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            let message =
                format!("{wanted} sequences do not divide by local_batch_size {} x {data} replicas", self.local_batch);
            return fault(names::GLOBAL_BATCH[0], message, format!("the nearest is {nearest}"));
        }
        let Ok(global) = u32::try_from(wanted) else {
            return fault(
                names::LOCAL_BATCH[0],
                format!("{wanted} sequences are out of reach"),
                "a smaller batch".to_owned(),
            );
        };
        let steps = u32::try_from(wanted / round).unwrap_or(u32::MAX);
        if self.pipeline == 1 {
            return Ok((global, self.local_batch, steps));
        }
        if steps > 1 {
            let message = format!(
                "a pipeline that empties {steps} times in an iteration, to accumulate gradients, is not modelled"
            );
            let hint = format!(
                "local_batch_size = {}: one pipeline over all of it",
                u64::from(self.local_batch) * u64::from(steps)
            );
            return fault(names::GLOBAL_BATCH[0], message, hint);
        }
        let (key, size) = match self.microbatch {
            Microbatch::Size(size) => (names::MICROBATCH[0], size),
            Microbatch::Count(count) => (
                names::MICROBATCHES[0],
                if self.local_batch.is_multiple_of(count) { self.local_batch / count } else { 0 },
            ),
        };
        if size == 0 || !self.local_batch.is_multiple_of(size) {
            let message = format!("does not divide local_batch_size {}", self.local_batch);
            return fault(key, message, format!("a divisor of {}", self.local_batch));
        }
        Ok((global, size, self.local_batch / size))
    }

    fn stages(&self, model: &Model) -> Result<Vec<StagePlan>, Problem> {
        let divided = self.split.stages(model.layers, self.pipeline, (&self.schedule, self.chunks));
        let all = divided.map_err(|(key, message, hint)| Problem::new(key, message).hint(hint))?;
        let stage = |layers: Vec<u32>| {
            let (recompute, recompute_layers) = match self.checkpointing {
                Checkpointing::None => (Recompute::None, None),
                Checkpointing::Full | Checkpointing::Every(1) => (Recompute::Full, None),
                Checkpointing::Operations => (Recompute::Operations, None),
                Checkpointing::Every(every) => {
                    let each: Vec<u32> = layers.iter().map(|layers| layers / every).collect();
                    let exact = layers.len() == 1 || layers.iter().all(|layers| layers.is_multiple_of(every));
                    if !exact || each.iter().any(|count| *count != each[0]) {
                        let message = format!("every {every} layers of chunks of {layers:?} layers is not modelled");
                        return Err(Problem::new(names::SELECTION[0], message).hint("\"op\", or mode = \"full\""));
                    }
                    if each[0] == 0 { (Recompute::None, None) } else { (Recompute::Full, Some(each[0])) }
                }
            };
            Ok(StagePlan { layers, recompute, recompute_layers, tensor: None })
        };
        all.into_iter().map(stage).collect()
    }

    /// FSDP over the shards, data parallelism alone, or neither.
    fn zero(&self, data: u32) -> ZeroStage {
        let sharded = data / self.replicate * self.mesh.context > 1;
        // Without a pipeline, parameters are let go after each forward pass unless that is forbidden.
        match self.reshard {
            _ if !sharded => ZeroStage::Zero0,
            Some(false) => ZeroStage::Zero2,
            Some(true) => ZeroStage::Zero3,
            None if self.pipeline > 1 => ZeroStage::Zero2,
            None => ZeroStage::Zero3,
        }
    }
}
