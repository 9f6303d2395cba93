//! Words of cells to values. Every function gives `None` for words that it does not understand.

use super::run::{
    Activation, AttentionForm, AttentionKernel, Dispatcher, Flags, Fp8Scaling, Graphs, MemoryKind, MemoryUnit,
    NumberFormat, Offload, Recomputation, ScheduleName, SplitRule, Task, VocabularyPlacement,
};

/// Numbers in a text, in order: `kv_lora512` gives 512.
pub(super) fn numbers(text: &str) -> Vec<u32> {
    text.split(|c: char| !c.is_ascii_digit()).filter_map(|digits| digits.parse().ok()).collect()
}

/// The number right behind `key`.
fn number_behind(text: &str, key: &str) -> Option<u32> {
    let rest = &text[text.find(key)? + key.len()..];
    let digits: String = rest.trim_start_matches(['=', ' ', ':']).chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok()
}

/// Parts of a name: `Qwen2.5-VL-7B` gives `qwen2`, `5`, `vl`, `7b`.
pub(super) fn tokens(text: &str) -> impl Iterator<Item = String> + '_ {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|token| !token.is_empty()).map(str::to_lowercase)
}

/// What a word of a model's name says about models that are none of decoder-only text.
pub(super) fn foreign_model(name: &str) -> Option<&'static str> {
    const MODALITIES: [(&str, &str); 19] = [
        ("vl", "it sees pictures"),
        ("vlm", "it sees pictures"),
        ("vision", "it sees pictures"),
        ("llava", "it sees pictures"),
        ("neva", "it sees pictures"),
        ("mllama", "it sees pictures"),
        ("clip", "it sees pictures"),
        ("vit", "it sees pictures"),
        ("multimodal", "it has several modalities"),
        ("omni", "it has several modalities"),
        ("diffusion", "it is a diffusion model"),
        ("dit", "it is a diffusion model"),
        ("flux", "it is a diffusion model"),
        ("sdxl", "it is a diffusion model"),
        ("wan", "it is a diffusion model"),
        ("whisper", "it hears speech"),
        ("bert", "it is an encoder"),
        ("t5", "it has an encoder and a decoder"),
        ("retro", "it retrieves"),
    ];
    tokens(name).find_map(|token| MODALITIES.iter().find(|(word, _)| *word == token).map(|(_, what)| *what))
}

/// The task, or what it is instead.
pub(super) fn task(text: &str) -> Result<Task, String> {
    let lower = text.to_lowercase();
    let has = |word: &str| lower.contains(word);
    if ["lora", "peft", "adapter", "dora", "prefix"].into_iter().any(has) {
        return Err("trains an adapter, not all parameters".to_owned());
    }
    const OTHERS: [&str; 15] = [
        "dpo",
        "rlhf",
        "grpo",
        "ppo",
        "rloo",
        "reward",
        "distil",
        "inference",
        "serving",
        "prefill",
        "multimodal",
        "vision",
        "image",
        "video",
        "diffusion",
    ];
    let joined = lower.replace(['-', '_', ' '], "");
    match () {
        () if OTHERS.into_iter().any(has) => {}
        () if joined.contains("sft") || joined.contains("finetun") => return Ok(Task::FullFineTuning),
        () if joined.is_empty() || joined.contains("train") => return Ok(Task::Pretraining),
        // What benchmarks of training say where there is nothing else to train.
        () if ["benchmark", "throughput", "languagemodel", "causallm"]
            .into_iter()
            .any(|word| joined.contains(word)) =>
        {
            return Ok(Task::Pretraining);
        }
        () => {}
    }
    Err(format!("`{text}` is not the training of all parameters of a language model"))
}

/// The number format, with a remark where the words leave a choice, or why it is none that is priced.
pub(super) fn format(text: &str) -> Result<(NumberFormat, Option<String>), String> {
    let lower = text.to_lowercase();
    let has = |word: &str| lower.contains(word);
    if ["fp4", "nf4", "int4", "fp6", "int8"].into_iter().any(has) {
        return Err(if has(" or ") {
            format!("`{text}` leaves open which format ran, and one of them is not priced")
        } else {
            format!("products in `{text}` are not priced")
        });
    }
    if has("fp8") || has("float8") {
        let scaling = match (has("rowwise"), has("tensorwise")) {
            (true, true) => Fp8Scaling::NotStated,
            (true, false) => Fp8Scaling::Row,
            (false, true) => Fp8Scaling::Tensor,
            (false, false) if has("mxfp8") || has("fp8-mx") || has("fp8_mx") => Fp8Scaling::Microscaling,
            (false, false) if has("block") || has("subchannel") || has("-sc") => Fp8Scaling::Block,
            (false, false) if has("delayed") => Fp8Scaling::Delayed,
            (false, false) if has("current") || has("-cs") || has("_cs") => Fp8Scaling::Tensor,
            (false, false) => Fp8Scaling::NotStated,
        };
        return Ok((NumberFormat::Fp8(scaling), None));
    }
    let half = has("fp16") || has("float16") && !has("bfloat16");
    if has("bf16") || has("bfloat16") {
        let remark = half.then(|| format!("`{text}` read as BF16: the two cost the same"));
        return Ok((NumberFormat::Bf16, remark));
    }
    match (half || lower == "amp", has("tf32"), has("fp32") || has("float32")) {
        (true, _, _) => Ok((NumberFormat::Fp16, None)),
        (_, true, _) => Ok((NumberFormat::Tf32, None)),
        (_, _, true) => Ok((NumberFormat::Fp32, None)),
        _ => Err(if text.is_empty() { "is not given".to_owned() } else { format!("`{text}` is no known format") }),
    }
}

/// The activation of the feed-forward part.
pub(super) fn activation(text: &str) -> Option<Activation> {
    match text.to_lowercase().replace(['-', '_', ' '], "").as_str() {
        "gelu" | "geluapproximate" | "gelunew" | "gelufast" | "fastgelu" | "quickgelu" | "gelutanh"
        | "gelupytorchtanh" => Some(Activation::Gelu),
        "relu" => Some(Activation::Relu),
        "squaredrelu" | "relu2" => Some(Activation::SquaredRelu),
        "swiglu" | "silu" | "gatedsilu" | "silugated" | "swish" | "gatedswish" | "swishgated" => {
            Some(Activation::SwiGlu)
        }
        "geglu" | "gatedgelu" | "gelugated" => Some(Activation::GeGlu),
        _ => None,
    }
}

/// The form of attention.
pub(super) fn attention_form(text: &str) -> Option<AttentionForm> {
    let lower = text.to_lowercase();
    const PLAIN: [&str; 22] = [
        "mha",
        "gqa",
        "mqa",
        "full",
        "causal",
        "rope",
        "qk",
        "norm",
        "qknorm",
        "attention",
        "with",
        "multi",
        "grouped",
        "group",
        "query",
        "head",
        "multihead",
        "self",
        "dense",
        "standard",
        "softmax",
        "rotary",
    ];
    if tokens(&lower).all(|token| PLAIN.contains(&token.as_str())) {
        return Some(AttentionForm::Plain);
    }
    if lower == "alibi" {
        return Some(AttentionForm::LinearBias);
    }
    if lower.starts_with("mla") {
        return Some(AttentionForm::Latent {
            query_rank: number_behind(&lower, "q_lora"),
            key_value_rank: number_behind(&lower, "kv_lora")?,
            plain_head_dim: number_behind(&lower, "nope")?,
            rotary_head_dim: number_behind(&lower, "rope")?,
            value_head_dim: number_behind(&lower, ",v")?,
        });
    }
    if lower.starts_with("alternating sliding") {
        return Some(AttentionForm::AlternatingWindow { window: number_behind(&lower, "sliding")? });
    }
    if lower.starts_with("hybrid") && lower.contains("gateddeltanet") {
        return Some(AttentionForm::GatedDelta { delta_layers: number_behind(&lower, "gateddeltanet")? });
    }
    None
}

/// The attention kernel, and whether norms were fused where the words say so.
pub(super) fn attention_kernel(text: &str) -> Option<(AttentionKernel, Option<bool>)> {
    let lower = text.to_lowercase();
    let fused_norms = (lower.contains("rms kernel") || lower.contains("norm kernel")).then_some(true);
    let kernel = if lower.contains("flash") {
        let version = number_behind(&lower, "attentionv").or_else(|| number_behind(&lower, "attention"));
        let version = version.or_else(|| number_behind(&lower, "attn")).unwrap_or(2);
        let old = lower.contains("triton");
        AttentionKernel::Flash { version: if old { 1 } else { u8::try_from(version.clamp(1, 4)).unwrap_or(2) } }
    } else if [
        "cudnn",
        "sdpa",
        "flex",
        "transformer engine",
        "te fused",
        "memory_efficient",
        "xformers",
        "fa2",
        "fa3",
        "pallas",
        "splash",
        "fa1",
        "fused attention",
        "fusedattention",
        "memory efficient",
        "memory-efficient",
        "efficient attention",
        "composable kernel",
        "aotriton",
    ]
    .iter()
    .any(|word| lower.contains(word))
    {
        AttentionKernel::Flash { version: if lower.contains("fa1") { 1 } else { 2 } }
    } else {
        match lower.as_str() {
            "fused" | "fused softmax" | "megatron fused softmax" => AttentionKernel::FusedSoftmax,
            "torch" | "plain" | "unfused" | "eager" | "math" | "local" | "naive" | "standard" => AttentionKernel::Plain,
            _ => return None,
        }
    };
    Some((kernel, fused_norms))
}

/// What was recomputed. `Some(None)`: the words say that it is not stated. `billion` is the model's size.
pub(super) fn recomputation(text: &str, billion: Option<f64>) -> Option<Option<Recomputation>> {
    const MODULES: [&str; 18] = [
        "core_attn",
        "attention",
        "attn",
        "mla_up_proj",
        "mlp",
        "moe",
        "moe_act",
        "act",
        "norm",
        "layernorm",
        "input_layernorm",
        "shared_expert",
        "shared_experts",
        "dense",
        "router",
        "embedding",
        "loss",
        "output",
    ];
    let lower = text.to_lowercase();
    if lower.is_empty() || lower.starts_with("none set in preset") || lower.contains("not stated") {
        return Some(None);
    }
    if let Some(rest) = lower.strip_prefix("none (")
        && let Some((size, rest)) = rest.split_once("b) / selective")
        && rest.contains("larger")
    {
        let most: f64 = size.parse().ok()?;
        // A model is named by a rounded size: 6.74 is "7B".
        let small = billion? < most + 0.5;
        return Some(Some(if small { Recomputation::None } else { Recomputation::PerOperation }));
    }
    let nothing = ["none", "no ", "without", "disabled", "not used"].into_iter().any(|word| lower.starts_with(word));
    if nothing || ["no", "false", "off", "0"].contains(&lower.as_str()) {
        return Some(Some(Recomputation::None));
    }
    let whole = ["full", "every layer", "activation checkpoint", "gradient checkpoint", "checkpoint", "ckpt on", "yes"];
    let simply = ["true", "on", "1", "uniform", "enabled"].contains(&lower.as_str());
    if simply || whole.into_iter().any(|word| lower.starts_with(word)) {
        let layers = number_behind(&lower, "layers").or_else(|| number_behind(&lower, "block"));
        return Some(Some(Recomputation::Full { layers }));
    }
    if lower.starts_with("selective") {
        let per_operation = lower.contains("op)") || lower.contains("per-op") || lower.contains("sac");
        return Some(Some(if per_operation { Recomputation::PerOperation } else { Recomputation::AttentionCore }));
    }
    if lower == "sac" || lower == "op" || lower.starts_with("per-op") {
        return Some(Some(Recomputation::PerOperation));
    }
    let named = lower.strip_prefix("modules:");
    let list = named.unwrap_or(&lower);
    let modules: Vec<String> = list.split([',', '+', ' ']).filter(|m| !m.is_empty()).map(str::to_owned).collect();
    let known = named.is_some() || modules.iter().all(|module| MODULES.contains(&module.as_str()));
    (known && !modules.is_empty()).then_some(Some(Recomputation::Modules(modules)))
}

/// The stage of sharding, and its group. `Some((None, None))`: the words say that it is not stated.
pub(super) fn zero(text: &str) -> Option<(Option<u8>, Option<u32>)> {
    let lower = text.to_lowercase();
    if lower.is_empty() || lower.starts_with("zero (stage per") {
        return Some((None, None));
    }
    let group = number_behind(&lower, "shard group").or_else(|| number_behind(&lower, "shard "));
    let mut head = lower.as_str();
    for word in ["deepspeed", "zero", "stage"] {
        head = head.trim_start_matches(word).trim_start_matches(['-', '_', ' ']);
    }
    // The strategies of PyTorch's FullyShardedDataParallel.
    let strategy = lower.replace(['-', '_', ' '], "");
    let by_strategy = [("fullshard", 3), ("hybridshard", 3), ("shardgradop", 2), ("noshard", 0)];
    if let Some((_, stage)) = by_strategy.iter().find(|(word, _)| strategy.contains(word)) {
        return Some((Some(*stage), group));
    }
    let stage = match head.chars().next()? {
        digit @ '0'..='3' => u8::try_from(digit.to_digit(10)?).ok(),
        _ if lower.contains("fsdp") || lower.contains("hsdp") => Some(3),
        _ if lower.contains("optimizer") => Some(1),
        _ if ["ddp", "none", "no", "off"].contains(&lower.as_str()) => Some(0),
        _ => return None,
    };
    Some((stage, group))
}

/// What was moved to the host.
pub(super) fn offload(text: &str) -> Option<Offload> {
    let lower = text.to_lowercase();
    let has = |word: &str| lower.contains(word);
    match () {
        () if lower == "none" || lower == "no" => Some(Offload::None),
        () if has("checkpoint") => Some(Offload::Checkpoints),
        () if has("activation") => Some(Offload::Activations { layers: number_behind(&lower, "layers") }),
        () if has("param") => Some(Offload::OptimizerAndParameters),
        () if has("optimizer") => Some(Offload::Optimizer),
        () => None,
    }
}

/// The schedule, and where the vocabulary stood if its name says so.
pub(super) fn schedule(text: &str) -> Option<(ScheduleName, Option<VocabularyPlacement>)> {
    use ScheduleName as S;
    use VocabularyPlacement as V;
    let lower = text.to_lowercase().replace('_', "-");
    let (head, tail) = lower.split_once('/').map_or((lower.as_str(), ""), |(head, tail)| (head.trim(), tail.trim()));
    let placement = match tail {
        "baseline" => Some(V::Ends),
        "redis" => Some(V::Redistributed),
        "vocab-1" => Some(V::ShardedTwoBarriers),
        "vocab-2" => Some(V::ShardedOneBarrier),
        "interlaced" => Some(V::Interlaced),
        _ => None,
    };
    let schedule = match head {
        "gpipe" | "afab" | "fthenb" | "f-then-b" => S::GPipe,
        // The same order of passes under its older names (Narayanan et al. 2019, Fan et al. 2021).
        "dapple" | "pipedream-flush" | "pipedream flush" | "pipedream-1f1b" | "non-interleaved" | "one-f-one-b" => {
            S::OneForwardOneBackward
        }
        "zb-1p" | "zb1p" => S::ZeroBubble1p,
        "zb-2p" | "zb2p" => S::ZeroBubble2p,
        "zb-h1" | "zbh1" => S::ZeroBubbleH1,
        "zb-h2" | "zbh2" => S::ZeroBubbleH2,
        "zb-v" | "zbv" => S::ZeroBubbleV,
        // Interleaving and splitting together is another schedule than either.
        _ if lower.contains("zero") || lower.contains("zb") => return None,
        "v-half" => S::VHalf,
        "v-min" => S::VMin,
        "dualpipe" => S::DualPipe,
        "dualpipe-v" | "dualpipev" => S::DualPipeV,
        _ if head.starts_with("1f1b") || head.starts_with("interleaved") => S::OneForwardOneBackward,
        _ => return None,
    };
    Some((schedule, placement))
}

/// How layers were cut into stages; `None` if nothing is said beyond what a schedule's name already does.
pub(super) fn split(text: &str) -> Option<SplitRule> {
    let lower = text.to_lowercase();
    if lower.is_empty() || ["equal layers", "layers redistributed", "interlaced"].iter().any(|w| lower.starts_with(w)) {
        return None;
    }
    if lower.starts_with('[') && lower.ends_with(']') {
        let bounds = numbers(&lower);
        let rising = bounds.len() >= 2 && bounds.windows(2).all(|pair| pair[0] < pair[1]);
        return Some(if rising { SplitRule::Bounds(bounds) } else { SplitRule::Words(text.to_owned()) });
    }
    if lower.contains("first and last stage have 1 fewer layer") {
        return Some(SplitRule::EndsOneLess);
    }
    if lower.contains("embedding and head count as one layer each") || lower.contains("transformer|embedding") {
        return Some(SplitRule::EndsCountAsLayers);
    }
    Some(SplitRule::Words(text.to_owned()))
}

/// Which memory, and in which unit, as far as the words say.
pub(super) fn memory_kind(text: &str) -> (Option<MemoryKind>, Option<MemoryUnit>) {
    let lower = text.to_lowercase();
    let has = |word: &str| lower.contains(word);
    let kind = match () {
        () if has("reserved") => Some(MemoryKind::Reserved),
        () if has("allocated") => Some(MemoryKind::Allocated),
        () if has("nvidia-smi") || has("driver") || has("rocm-smi") => Some(MemoryKind::Driver),
        () => None,
    };
    // "GB" is what people write for either; only "GiB" is stated.
    (kind, has("gib").then_some(MemoryUnit::Gibibyte))
}

/// Switches, from a list separated by semicolons and plus signs.
pub(super) fn flags(text: &str) -> Flags {
    let mut flags = Flags::default();
    // Commas separate too, but not inside a bracketed list.
    let mut depth = 0;
    let parts = text.split(|c: char| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ';' || c == '+' || (c == ',' && depth == 0)
    });
    for part in parts.map(str::trim).filter(|part| !part.is_empty()) {
        let lower = part.to_lowercase();
        match lower.as_str() {
            "dropless" => flags.dropless = Some(true),
            "tokendrop" => flags.dropless = Some(false),
            "force-balanced routing" => flags.balanced = Some(true),
            "w/ mtp" => flags.multi_token_prediction = Some(true),
            "w/o mtp" => flags.multi_token_prediction = Some(false),
            "vanilla tp" => flags.tensor_overlap = Some(false),
            "asynctp" | "async tp" => flags.tensor_overlap = Some(true),
            // A list of what was switched on, as in `FSDP + compile`: what is not in it was off.
            "fsdp" => flags.compiled = flags.compiled.or(Some(false)),
            "compile" | "torch.compile" => flags.compiled = Some(true),
            "no comm overlap" => flags.overlap = Some(false),
            "use_megatron_fsdp=true" => flags.megatron_fsdp = Some(true),
            "moe_a2a_overlap=true" => flags.expert_overlap = Some(true),
            "pack_sample_into_one=true" => flags.packed = Some(true),
            "pack_sample_into_one=false" => flags.packed = Some(false),
            "cuda_graph_impl=full_iteration" => flags.graphs = Some(Graphs::FullIteration),
            "cuda_graph_impl=none" => flags.graphs = Some(Graphs::None),
            // Graphs of the router alone spare the host little.
            _ if lower.starts_with("cuda_graph_scope") && !lower.contains("attn") => {}
            _ if lower.starts_with("cuda_graph") => {
                flags.graphs = flags.graphs.max(Some(Graphs::Modules));
            }
            _ if lower.starts_with("ce fusion") => flags.fused_loss = Some(true),
            _ if lower.contains("hybridep") => flags.dispatcher = Some(Dispatcher::HybridEp),
            _ if lower.contains("deepep") => flags.dispatcher = Some(Dispatcher::DeepEp),
            _ if lower.contains("alltoall") => flags.dispatcher = Some(Dispatcher::AllToAll),
            _ => flags.other.push(part.to_owned()),
        }
    }
    flags
}
