//! The model that arguments describe.

use ir::{
    Experts, FeedForward, LatentAttention, LayerRun, Mixer, MlpKind, Model, NormKind, Positions, QueryKeyNorm, Router,
    Scoring, Variants,
};

use super::options::Options;

/// Layers that lists of layers are written out for.
const MOST_LAYERS: u32 = 1 << 16;

/// The model; after a fault (kept in the options) sizes may be stand-ins.
pub(super) fn read(options: &mut Options<'_>, name: String) -> Model {
    let (hidden, layers, heads) =
        (options.needed("hidden-size"), options.needed("num-layers"), options.needed("num-attention-heads"));
    let mlp = if options.switch("swiglu", false) { MlpKind::SwiGlu } else { MlpKind::Gelu };
    let ffn = options.count("ffn-hidden-size", default_ffn(hidden, mlp));
    let grouped = options.switch("group-query-attention", false);
    let groups =
        if grouped { options.count("num-query-groups", 1) } else { options.number("num-query-groups").unwrap_or(1) };
    let bias = options.unless("disable-bias-linear", "add-bias-linear");
    let untied = options.switch("untie-embeddings-and-output-weights", false);
    let query_key_norm = if options.switch("qk-layernorm", false) { QueryKeyNorm::Head } else { QueryKeyNorm::None };
    let mut variants = Variants { query_key_norm, ..Variants::default() };
    let latent = options.switch("multi-latent-attention", false).then(|| latent(options));
    let window = options.text("window-size").map(|text| window(options, &text));
    let mixer = match (latent, window) {
        (Some(_), _) => Mixer::Latent,
        (None, Some(_)) => Mixer::Window,
        (None, None) => Mixer::Attention,
    };
    (variants.latent, variants.window) = (latent, window.filter(|_| latent.is_none()));
    let routed = options.has("num-experts").then(|| experts(options, (ffn, mlp, bias)));
    if let Some(routed) = routed {
        let frequency = options.text("moe-layer-freq").unwrap_or_else(|| "1".to_owned());
        variants.experts = Some(routed);
        variants.pattern = pattern(options, &frequency, layers, mixer);
    } else if mixer != Mixer::Attention {
        variants.pattern = vec![LayerRun { layers, mixer, feed_forward: FeedForward::Dense }];
    }
    if options.has("mtp-num-layers") {
        options.report.notes.push("layers that predict further tokens (mtp-num-layers) are not counted".to_owned());
        options.pass(&["mtp-num-layers", "mtp-loss-scaling-factor"]);
    }
    Model {
        name,
        hidden,
        layers,
        heads,
        kv_heads: if grouped { groups } else { heads },
        head_dim: options.count("kv-channels", (hidden / heads).max(1)),
        ffn,
        vocabulary: vocabulary(options),
        norm: norm(options),
        norm_epsilon: epsilon(options),
        positions: positions(options),
        mlp,
        qkv_bias: bias || options.switch("add-qkv-bias", false),
        projection_bias: bias,
        mlp_bias: bias,
        tied_head: !untied,
        variants,
    }
}

/// Four times the width, or so much less for three matrices that their sizes are about those of two; a multiple of 64.
pub(super) const fn default_ffn(hidden: u32, mlp: MlpKind) -> u32 {
    match mlp {
        MlpKind::SwiGlu | MlpKind::GeGlu => {
            // The quotient is below the dividend's third.
            #[expect(clippy::cast_possible_truncation, reason = "at most 8/3 of a width that is refused beyond 2^22")]
            let width = (hidden as u64 * 8 / 3 / 64 * 64) as u32;
            if width == 0 { 64 } else { width }
        }
        MlpKind::Gelu => hidden.saturating_mul(4),
    }
}

fn vocabulary(options: &mut Options<'_>) -> u32 {
    if options.has("vocab-size") {
        return options.needed("vocab-size");
    }
    let _ = options.number::<u32>("vocab-size");
    if options.has("padded-vocab-size") {
        options.report.notes.push("vocabulary: that of padded-vocab-size, since vocab-size is not there".to_owned());
        return options.needed("padded-vocab-size");
    }
    let hint = "the tokenizer has it; write --vocab-size, or bring the log with its block of arguments";
    options.fault("vocab-size", "is missing", hint);
    1
}

fn norm(options: &mut Options<'_>) -> NormKind {
    match options.text_or("normalization", "LayerNorm").as_str() {
        "LayerNorm" => NormKind::LayerNorm,
        "RMSNorm" => NormKind::RmsNorm,
        other => {
            options.fault("normalization", format!("`{other}` is not known"), "LayerNorm or RMSNorm");
            NormKind::LayerNorm
        }
    }
}

fn epsilon(options: &mut Options<'_>) -> f64 {
    let old = options.number("layernorm-epsilon");
    options.number("norm-epsilon").or(old).unwrap_or_else(|| {
        options.assume("norm-epsilon", "1e-5");
        1e-5
    })
}

fn positions(options: &mut Options<'_>) -> Positions {
    let rotary = options.switch("use-rotary-position-embeddings", false);
    let (theta, share) = (options.number("rotary-base"), options.number::<f64>("rotary-percent"));
    let maximum = options.has("max-position-embeddings").then(|| options.needed("max-position-embeddings"));
    if share.is_some_and(|share| !(share > 0.0 && share <= 1.0)) {
        options.fault("rotary-percent", "is not a share", "more than 0, at most 1");
    }
    // Scaling of frequencies and interleaving change angles, neither sizes nor work.
    options.pass(&["rotary-interleaved", "use-rope-scaling", "rotary-seq-len-interpolation-factor"]);
    let written = options.has("position-embedding-type") || rotary;
    if !written {
        options.assume("position-embedding-type", "learned_absolute");
    }
    match options.text("position-embedding-type").as_deref() {
        None | Some("learned_absolute") if rotary => Positions::Rope { theta: theta.unwrap_or(10_000.0) },
        Some("rope" | "yarn") => Positions::Rope { theta: theta.unwrap_or(10_000.0) },
        Some("none") => Positions::None,
        None | Some("learned_absolute") => match maximum {
            Some(maximum) => Positions::Learned { maximum },
            None => {
                options.fault(
                    "max-position-embeddings",
                    "is missing: positions are learned",
                    "write it, or --position-embedding-type rope",
                );
                Positions::None
            }
        },
        Some(other) => {
            options.fault(
                "position-embedding-type",
                format!("`{other}` is not known"),
                "learned_absolute, rope or none",
            );
            Positions::None
        }
    }
}

fn window(options: &mut Options<'_>, text: &str) -> u32 {
    // (left, right): so many positions before a query, besides its own.
    let left = text
        .trim_matches(['(', ')', '[', ']', '"', '\''])
        .split(',')
        .next()
        .and_then(|left| left.trim().parse::<u32>().ok());
    left.and_then(|left| left.checked_add(1)).unwrap_or_else(|| {
        options.fault("window-size", format!("`{text}` is not a window"), "two numbers, as in 4095,0");
        1
    })
}

fn latent(options: &mut Options<'_>) -> LatentAttention {
    LatentAttention {
        query_rank: options.has("q-lora-rank").then(|| options.needed("q-lora-rank")),
        kv_rank: options.count("kv-lora-rank", 32),
        plain_head_dim: options.count("qk-head-dim", 128),
        rotary_head_dim: options.count("qk-pos-emb-head-dim", 64),
        value_head_dim: options.count("v-head-dim", 128),
    }
}

fn experts(options: &mut Options<'_>, (ffn, mlp, bias): (u32, MlpKind, bool)) -> Experts {
    let scoring = match options.text("moe-router-score-function").as_deref() {
        None | Some("softmax") => Scoring::Softmax,
        Some("sigmoid") => Scoring::Sigmoid,
        Some(other) => {
            options.fault("moe-router-score-function", format!("`{other}` is not known"), "softmax or sigmoid");
            Scoring::Softmax
        }
    };
    // Softmax before the choice leaves weights as they are; after it they add up to one.
    let before = options.switch("moe-router-pre-softmax", false);
    options.pass(&[
        "moe-grouped-gemm",
        "moe-router-num-groups",
        "moe-router-group-topk",
        "moe-router-topk-scaling-factor",
        "moe-router-load-balancing-type",
    ]);
    Experts {
        count: options.needed("num-experts"),
        active: options.count("moe-router-topk", 2),
        ffn: options.count("moe-ffn-hidden-size", ffn),
        shared_ffn: if options.has("moe-shared-expert-intermediate-size") {
            options.needed("moe-shared-expert-intermediate-size")
        } else {
            0
        },
        shared_gate: options.switch("moe-shared-expert-gate", false),
        mlp,
        bias,
        router_bias: false,
        router: Router { scoring, normalised: scoring == Scoring::Sigmoid || !before },
    }
}

/// Which layers have experts: every n-th, or a list such as `([0]*3+[1]*58)`.
fn pattern(options: &mut Options<'_>, text: &str, layers: u32, mixer: Mixer) -> Vec<LayerRun> {
    if layers > MOST_LAYERS {
        return Vec::new();
    }
    let routed = if let Ok(every) = text.trim().parse::<u32>() {
        (every > 0).then(|| (0..layers).map(|layer| layer % every == 0).collect())
    } else {
        list(text, layers as usize)
    };
    let Some(routed) = routed.filter(|routed: &Vec<bool>| routed.len() == layers as usize) else {
        let hint = format!("a number, or {layers} ones and zeros, as in ([0]*1+[1]*{})", layers.saturating_sub(1));
        options.fault("moe-layer-freq", format!("`{text}` does not say which of {layers} layers have experts"), hint);
        return Vec::new();
    };
    let mut runs: Vec<LayerRun> = Vec::new();
    for has in routed {
        let feed_forward = if has { FeedForward::Experts } else { FeedForward::Dense };
        match runs.last_mut().filter(|last| last.feed_forward == feed_forward) {
            Some(last) => last.layers += 1,
            None => runs.push(LayerRun { layers: 1, mixer, feed_forward }),
        }
    }
    runs
}

/// Sums of lists, each maybe repeated: `[0]*3+[1,0]*2`.
fn list(text: &str, most: usize) -> Option<Vec<bool>> {
    let bare: String = text.chars().filter(|c| !c.is_whitespace() && !matches!(c, '(' | ')' | '"' | '\'')).collect();
    let mut all = Vec::new();
    for part in bare.split('+') {
        let (items, times) = match part.split_once('*') {
            Some((items, times)) => (items, times.parse::<usize>().ok()?),
            None => (part, 1),
        };
        let items = items.strip_prefix('[')?.strip_suffix(']')?;
        let items = items.split(',').map(|item| match item {
            "0" => Some(false),
            "1" => Some(true),
            _ => None,
        });
        let items = items.collect::<Option<Vec<bool>>>()?;
        for _ in 0..times {
            if all.len() > most {
                return None;
            }
            all.extend(&items);
        }
    }
    Some(all)
}
