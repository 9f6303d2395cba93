//! How arguments divide a model over devices.

use ir::{
    CollectiveAlgorithm, ContextMethod, Mesh, Model, Plan, Problem, Recompute, Schedule, Sharing, StagePlan, Workload,
    ZeroStage,
};

use super::layout;
use super::options::Options;
use crate::settings::Places;

/// Degrees and switches, for any number of devices.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Division {
    tensor: u32,
    sequence_parallel: bool,
    microbatch_size: u32,
    zero: ZeroStage,
    overlap_gradients: bool,
    mesh: Mesh,
    sharing: Sharing,
    stages: Vec<StagePlan>,
    /// Copies of what is divided over replicas.
    instances: u32,
    /// Where options stand.
    places: Places,
}

/// Most stages, and chunks of one, that are written out.
const MOST_STAGES: u32 = 1 << 16;
const MOST_CHUNKS: u32 = 1 << 10;

/// The division; after a fault (kept in the options) degrees may be stand-ins.
pub(super) fn read(options: &mut Options<'_>, model: &Model) -> Division {
    let tensor = options.count("tensor-model-parallel-size", 1);
    let pipeline = options.count("pipeline-model-parallel-size", 1);
    // They follow from the others.
    options.pass(&[
        "data-parallel-size",
        "transformer-pipeline-model-parallel-size",
        "virtual-pipeline-model-parallel-size",
        "encoder-tensor-model-parallel-size",
        "encoder-pipeline-model-parallel-size",
    ]);
    let layers = layers(options, model, pipeline);
    let (recompute, recompute_layers) = recompute(options);
    let stage = |layers: Vec<u32>| StagePlan { layers, recompute, recompute_layers, tensor: None };
    let sequence_parallel = options.switch("sequence-parallel", false);
    if tensor == 1 && sequence_parallel {
        options.report.notes.push("sequence-parallel does nothing with one tensor rank".to_owned());
    }
    let zero = zero(options);
    Division {
        tensor,
        sequence_parallel: sequence_parallel && tensor > 1,
        microbatch_size: options.needed("micro-batch-size"),
        zero,
        overlap_gradients: options.switch("overlap-grad-reduce", false),
        mesh: mesh(options, model, tensor),
        sharing: sharing(options, model, zero),
        stages: layers.into_iter().map(stage).collect(),
        instances: options.count("num-distributed-optimizer-instances", 1),
        places: options.places(),
    }
}

/// Where the parts of each stage are written out.
const LAYOUT: &str = "pipeline-model-parallel-layout";

/// The layers of a layout that is written out.
fn written_out(options: &mut Options<'_>, text: &str, beside: bool, (layers, pipeline): (u32, u32)) -> Vec<Vec<u32>> {
    let read = layout::read(text).and_then(|all| {
        let sum = all.iter().fold(0u32, |sum, count| sum.saturating_add(*count));
        let stages = u32::try_from(all.len()).unwrap_or(u32::MAX);
        if beside {
            Err("is written beside other options that divide layers".to_owned())
        } else if sum != layers {
            Err(format!("has {sum} layers, and the model {layers}"))
        } else if !stages.is_multiple_of(pipeline) {
            Err(format!("has {stages} stages, which do not divide over {pipeline} ranks"))
        } else {
            Ok(all)
        }
    });
    match read {
        Ok(all) => {
            let of = |position: usize| all.iter().skip(position).step_by(pipeline as usize).copied().collect();
            (0..pipeline as usize).map(of).collect()
        }
        Err(why) => {
            options.fault(LAYOUT, why, "each layer once, as in E,t*8|t*8|t*8,L");
            vec![vec![layers]]
        }
    }
}

/// Layers of each chunk of each position.
fn layers(options: &mut Options<'_>, model: &Model, pipeline: u32) -> Vec<Vec<u32>> {
    let ends = ["decoder-first-pipeline-num-layers", "decoder-last-pipeline-num-layers"]
        .map(|name| options.has(name).then(|| options.needed(name)));
    let per_chunk = options
        .has("num-layers-per-virtual-pipeline-stage")
        .then(|| options.needed("num-layers-per-virtual-pipeline-stage"));
    let chunks = options
        .has("num-virtual-stages-per-pipeline-rank")
        .then(|| options.needed("num-virtual-stages-per-pipeline-rank"));
    if pipeline > MOST_STAGES || pipeline > model.layers {
        let message = format!("{pipeline} stages for {} layers", model.layers);
        options.fault("pipeline-model-parallel-size", message, "at most one stage for each layer");
        return vec![vec![model.layers]];
    }
    if let Some(text) = options.has(LAYOUT).then(|| options.text(LAYOUT)).flatten() {
        let beside = ends.iter().any(Option::is_some) || per_chunk.or(chunks).is_some();
        return written_out(options, &text, beside, (model.layers, pipeline));
    }
    let fixed = ends.iter().flatten().copied().fold(0u32, u32::saturating_add);
    let middle = pipeline.saturating_sub(u32::try_from(ends.iter().flatten().count()).expect("two at most"));
    let rest = model.layers.saturating_sub(fixed);
    let even = if middle == 0 { u32::from(rest > 0) } else { rest % middle };
    if fixed > model.layers || even != 0 || (middle > 0 && rest == 0) {
        let message = format!("{rest} layers do not divide over {middle} stages");
        let hint =
            format!("a degree that divides {}, or decoder-first- and decoder-last-pipeline-num-layers", model.layers);
        options.fault("pipeline-model-parallel-size", message, hint);
        return vec![vec![model.layers]];
    }
    let each = rest.checked_div(middle).unwrap_or(0);
    let mut all: Vec<u32> = vec![each; middle as usize];
    all.splice(0..0, ends[0]);
    all.extend(ends[1]);
    let count = match (per_chunk, chunks) {
        (Some(_), Some(_)) => {
            options.fault(
                "num-virtual-stages-per-pipeline-rank",
                "is written beside num-layers-per-virtual-pipeline-stage",
                "one of the two",
            );
            1
        }
        (Some(per_chunk), None) => each / per_chunk.min(each.max(1)),
        (None, chunks) => chunks.unwrap_or(1),
    };
    let unlike = count > MOST_CHUNKS || all.iter().any(|layers| !layers.is_multiple_of(count) || *layers < count);
    if unlike || per_chunk.is_some_and(|per_chunk| per_chunk * count != each) {
        let message = format!("stages of {each} layers do not divide into {count} chunks");
        options.fault(
            "num-virtual-stages-per-pipeline-rank",
            message,
            "a number of chunks that divides the layers of every stage",
        );
        return vec![vec![model.layers]];
    }
    all.into_iter().map(|layers| vec![layers / count; count as usize]).collect()
}

fn recompute(options: &mut Options<'_>) -> (Recompute, Option<u32>) {
    let short = options.switch("recompute-activations", false);
    let modules = options.text("recompute-modules");
    let method = options.text("recompute-method");
    let layers = options.has("recompute-num-layers").then(|| options.needed("recompute-num-layers"));
    let granularity = options.text("recompute-granularity").or_else(|| short.then(|| "selective".to_owned()));
    match granularity.as_deref() {
        None => {
            options.assume("recompute-granularity", "none");
            (Recompute::None, None)
        }
        Some("selective") => {
            let core = |modules: &String| modules.trim_matches(['[', ']', '\'']) == "core_attn";
            if let Some(modules) = modules.filter(|modules| !core(modules)) {
                let message = format!("recomputation of `{modules}` is not modelled");
                options.fault("recompute-modules", message, "core_attn, or recompute-granularity full");
            }
            (Recompute::Selective, None)
        }
        Some("full") => match (method.as_deref(), layers) {
            (Some("uniform"), None | Some(1)) => (Recompute::Full, None),
            (Some("uniform"), Some(many)) => {
                let message = format!("one checkpoint for {many} layers is not modelled");
                options.fault("recompute-num-layers", message, "1, or recompute-method block");
                (Recompute::Full, None)
            }
            (Some("block"), layers) => (Recompute::Full, Some(layers.unwrap_or(1))),
            (Some(other), _) => {
                options.fault("recompute-method", format!("`{other}` is not known"), "uniform or block");
                (Recompute::Full, None)
            }
            (None, _) => {
                options.fault("recompute-granularity", "is full, and recompute-method is missing", "uniform or block");
                (Recompute::Full, None)
            }
        },
        Some(other) => {
            options.fault("recompute-granularity", format!("`{other}` is not known"), "selective or full");
            (Recompute::None, None)
        }
    }
}

fn zero(options: &mut Options<'_>) -> ZeroStage {
    let distributed = options.switch("use-distributed-optimizer", false);
    let wrapped = ["use-megatron-fsdp", "use-custom-fsdp"].map(|name| options.switch(name, false));
    let torch = options.switch("use-torch-fsdp2", false);
    let strategy = options.text("data-parallel-sharding-strategy");
    if torch {
        return ZeroStage::Zero3;
    }
    let wrapped = wrapped.into_iter().any(|wrapped| wrapped);
    match strategy.as_deref().filter(|_| wrapped) {
        Some("optim") => ZeroStage::Zero1,
        Some("optim_grads") => ZeroStage::Zero2,
        Some("optim_grads_params") => ZeroStage::Zero3,
        Some("no_shard") => ZeroStage::Zero0,
        Some(other) => {
            let hint = "no_shard, optim, optim_grads or optim_grads_params";
            options.fault("data-parallel-sharding-strategy", format!("`{other}` is not known"), hint);
            ZeroStage::Zero0
        }
        None if distributed => ZeroStage::Zero1,
        None => ZeroStage::Zero0,
    }
}

fn mesh(options: &mut Options<'_>, model: &Model, tensor: u32) -> Mesh {
    let context = options.count("context-parallel-size", 1);
    let way = options.text("cp-comm-type").map(|way| way.trim_matches(['[', ']', '\'', '"']).to_owned());
    let context_method = match way.as_deref() {
        None | Some("p2p") => ContextMethod::Ring,
        Some("all_gather") => ContextMethod::AllGather,
        Some("a2a") => ContextMethod::AllToAll,
        Some(other) => {
            options.fault("cp-comm-type", format!("`{other}` is not modelled"), "p2p, all_gather or a2a");
            ContextMethod::Ring
        }
    };
    let routed = model.variants.experts.is_some();
    if !routed {
        options.pass(&["expert-model-parallel-size", "expert-tensor-parallel-size"]);
        let context_method = if context > 1 { context_method } else { ContextMethod::Ring };
        return Mesh { context, context_method, ..Mesh::default() };
    }
    let expert = options.count("expert-model-parallel-size", 1);
    let own = options.has("expert-tensor-parallel-size");
    let expert_tensor = options.count("expert-tensor-parallel-size", tensor);
    if !own && tensor > 1 {
        let message = format!(
            "expert-tensor-parallel-size: {tensor}, Megatron's default being that of tensor-model-parallel-size"
        );
        options.report.notes.push(message);
    }
    let context_method = if context > 1 { context_method } else { ContextMethod::Ring };
    Mesh { context, context_method, expert, expert_tensor }
}

fn sharing(options: &mut Options<'_>, model: &Model, zero: ZeroStage) -> Sharing {
    let fraction = options.number::<f64>("optimizer-offload-fraction");
    let offload_optimizer = options.switch("optimizer-cpu-offload", false);
    if offload_optimizer && fraction.is_some_and(|fraction| (fraction - 1.0).abs() > 1e-9) {
        options.fault("optimizer-offload-fraction", "a part of the optimizer in host memory is not modelled", "1.0");
    }
    let offload_activations = options.switch("cpu-offloading", false);
    let layers = options.number::<u32>("cpu-offloading-num-layers");
    if offload_activations && layers.is_some_and(|layers| layers + 1 < model.layers) {
        let message = "activations of some layers in host memory are not modelled";
        options.fault("cpu-offloading-num-layers", message, format!("{}", model.layers));
    }
    options.pass(&[
        "scatter-gather-tensors-in-pipeline",
        "align-grad-reduce",
        "align-param-gather",
        "overlap-param-gather-with-optimizer-step",
        "overlap-p2p-communication",
        "overlap-p2p-comm",
        "batch-p2p-comm",
        "tp-comm-overlap-ag",
        "tp-comm-overlap-rs",
        "tp-comm-split-ag",
        "tp-comm-split-rs",
        "tp-comm-bulk-dgrad",
        "tp-comm-bulk-wgrad",
    ]);
    // Where parameters are divided, what is gathered beside other work are those of the next layer.
    let torch = options.switch("use-torch-fsdp2", false);
    let overlapped = options.switch("overlap-param-gather", false);
    let divided = zero == ZeroStage::Zero3;
    Sharing {
        prefetch: divided && (overlapped || torch),
        overlap_parameters: !divided && overlapped,
        overlap_tensor: options.switch("tp-comm-overlap", false),
        overlap_experts: options.switch("overlap-moe-expert-parallel-comm", false),
        offload_activations,
        offload_optimizer,
        bucket: bucket(options),
        ..Sharing::default()
    }
}

/// Parameters of a bucket of gradients, where that is said.
fn bucket(options: &mut Options<'_>) -> Option<u64> {
    let bucket = options.number::<u64>("ddp-bucket-size");
    if bucket == Some(0) {
        options.fault("ddp-bucket-size", "is zero", "write a positive number");
    }
    bucket.filter(|bucket| *bucket > 0)
}

impl Division {
    pub(super) const fn places(&self) -> &Places {
        &self.places
    }

    /// The plan on so many devices.
    pub(super) fn plan(&self, workload: &Workload, devices: u64) -> Result<Plan, Vec<Problem>> {
        self.divided(workload, devices).map_err(|problems| crate::settings::place(&self.places, problems))
    }

    fn divided(&self, workload: &Workload, devices: u64) -> Result<Plan, Vec<Problem>> {
        let pipeline = u32::try_from(self.stages.len()).expect("few stages");
        let degrees = [self.tensor, pipeline, self.mesh.context].map(u64::from);
        let each = degrees.into_iter().fold(1, u64::saturating_mul);
        let mut problems = Vec::new();
        if devices == 0 || !devices.is_multiple_of(each) {
            let message =
                format!("{devices} devices do not divide into groups of {each} (tensor x pipeline x context)");
            let (below, above) = (devices / each * each, devices.div_ceil(each).max(1).saturating_mul(each));
            let nearest = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            return Err(vec![
                Problem::new("--tensor-model-parallel-size", message)
                    .hint(format!("the nearest are {nearest} devices")),
            ]);
        }
        let data = u32::try_from(devices / each).unwrap_or(u32::MAX);
        let round = u64::from(data) * u64::from(self.microbatch_size);
        if !u64::from(workload.global_batch).is_multiple_of(round) {
            let message = format!(
                "{} sequences do not divide by {data} replicas x {} (micro-batch-size)",
                workload.global_batch, self.microbatch_size
            );
            let batch = u64::from(workload.global_batch);
            let (below, above) = (batch / round * round, batch.div_ceil(round) * round);
            let nearest = if below == 0 { above.to_string() } else { format!("{below} or {above}") };
            problems.push(Problem::new("--global-batch-size", message).hint(format!("the nearest is {nearest}")));
        }
        let over = data.saturating_mul(self.mesh.context);
        if !over.is_multiple_of(self.instances) {
            let message = format!("{} copies do not divide {over} replicas", self.instances);
            problems.push(Problem::new("--num-distributed-optimizer-instances", message).hint("a divisor of them"));
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        let shard = (self.instances > 1).then(|| over / self.instances);
        Ok(Plan {
            data,
            tensor: self.tensor,
            sequence_parallel: self.sequence_parallel,
            stages: self.stages.clone(),
            microbatch_size: self.microbatch_size,
            microbatches: u32::try_from(u64::from(workload.global_batch) / round).expect("no more than the batch"),
            shares: ir::Shares::EQUAL,
            schedule: Schedule::OneForwardOneBackward,
            zero: self.zero,
            overlap_gradients: self.overlap_gradients,
            collective: CollectiveAlgorithm::Automatic,
            mesh: self.mesh,
            sharing: Sharing { shard, ..self.sharing },
            placement: Vec::new(),
        })
    }
}
