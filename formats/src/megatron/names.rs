//! Options that are known: read elsewhere, without effect on what is trained or priced, or refused.

/// Options that change what is trained or how long it takes in a way that is not modelled: name, why, what helps.
pub(super) const REFUSED: [(&str, &str, &str); 21] = [
    ("squared-relu", "squared ReLU is not modelled", "a model with GELU or SwiGLU"),
    ("quick-geglu", "this activation is not modelled", "a model with GELU or SwiGLU"),
    ("rampup-batch-size", "a batch that grows is not modelled", "leave it out: global-batch-size is what it comes to"),
    ("encoder-num-layers", "encoders are not modelled", "a decoder-only model"),
    ("decoder-num-layers", "encoders are not modelled", "a decoder-only model, with num-layers"),
    ("hybrid-override-pattern", "this pattern of layers is not read", "describe the model by its sizes in [model]"),
    ("is-hybrid-model", "hybrid models are not read from arguments", "describe the model by its sizes in [model]"),
    ("spec", "layers of a module of one's own are not read", "describe the model by its sizes in [model]"),
    (
        "account-for-embedding-in-pipeline-split",
        "the embedding as a layer of a stage is not modelled",
        "decoder-first-pipeline-num-layers",
    ),
    (
        "account-for-loss-in-pipeline-split",
        "the loss as a layer of a stage is not modelled",
        "decoder-last-pipeline-num-layers",
    ),
    (
        "distribute-saved-activations",
        "activations divided over tensor ranks are not modelled",
        "sequence-parallel divides them",
    ),
    ("moe-layer-recompute", "recomputation of experts alone is not modelled", "recompute-granularity full"),
    ("moe-expert-capacity-factor", "experts that drop tokens are not modelled", "leave it out: no token is dropped"),
    ("moe-shared-expert-overlap", "shared experts beside the exchange are not modelled", "leave it out"),
    (
        "hierarchical-context-parallel-sizes",
        "two methods of one context group are not modelled",
        "cp-comm-type p2p or a2a",
    ),
    ("lora-rank", "adapters are not modelled", "training of all parameters"),
    ("attention-sink", "is not read from arguments", "describe the model by its sizes in [model]"),
    ("softmax-type", "other softmaxes are not read from arguments", "describe the model by its sizes in [model]"),
    ("window-attn-skip-freq", "layers of unlike windows are not read", "describe the model by its sizes in [model]"),
    ("first-last-layers-bf16", "layers of unlike precision are not modelled", "one precision for all layers"),
    ("fp4-format", "FP4 is not modelled", "bf16, or fp8-format"),
];

/// Beginnings of options that concern files, logs, evaluation, the order of data, rates of learning and diagnosis.
const NEUTRAL_BEGINNINGS: [&str; 46] = [
    "adlr",
    "async-",
    "attention-dropout",
    "auto-",
    "bert-",
    "biencoder",
    "check-",
    "ckpt-",
    "config-",
    "data-",
    "dataloader",
    "dataset",
    "deterministic",
    "dist-ckpt",
    "distributed-timeout",
    "enable-gloo",
    "eval-",
    "exit-",
    "finetune",
    "hidden-dropout",
    "init-method",
    "iteration",
    "load",
    "local-rank",
    "log-",
    "logging",
    "lr-",
    "manual-gc",
    "master-",
    "merge-file",
    "mock-",
    "no-load",
    "no-save",
    "node-rank",
    "non-persistent",
    "num-workers",
    "nsys",
    "one-logger",
    "profile",
    "rank",
    "rdzv",
    "reset-",
    "save",
    "tensorboard",
    "tokenizer",
    "wandb",
];
/// Other options of that kind.
const NEUTRAL: [&str; 45] = [
    "lr",
    "min-lr",
    "split",
    "train-data-path",
    "valid-data-path",
    "test-data-path",
    "vocab-file",
    "timing-log-level",
    "timing-log-option",
    "distributed-backend",
    "override-opt-param-scheduler",
    "use-checkpoint-args",
    "use-checkpoint-opt-param-scheduler",
    "use-mcore-models",
    "use-legacy-models",
    "use-cpu-initialization",
    "init-model-with-meta-device",
    "apply-layernorm-1p",
    "apply-query-key-layer-scaling",
    "attention-softmax-in-fp32",
    "no-create-attention-mask-in-dataloader",
    "create-attention-mask-in-dataloader",
    "eod-mask-loss",
    "reset-position-ids",
    "empty-unused-memory-level",
    "loss-scale",
    "initial-loss-scale",
    "min-loss-scale",
    "loss-scale-window",
    "hysteresis",
    "calculate-per-token-loss",
    "delay-wgrad-compute",
    "ddp-average-in-collective",
    "ddp-num-buckets",
    "moe-router-dtype",
    "moe-permute-fusion",
    "moe-z-loss-coeff",
    "moe-router-enable-expert-bias",
    "moe-router-bias-update-rate",
    "moe-per-layer-logging",
    "weight-decay-incr-style",
    "start-weight-decay",
    "end-weight-decay",
    "module",
    "m",
];

/// Options whose value shapes the model or its division, where an unknown one must not be passed over.
const SHAPING: [&str; 10] =
    ["moe", "expert", "latent", "lora", "mla", "hybrid", "mamba", "mtp", "parallel-size", "pipeline"];

/// Beginnings of options that say something only beside another one.
const DEPENDENT: [(&str, &str); 12] = [
    ("moe-", "num-experts"),
    ("q-lora-", "multi-latent-attention"),
    ("kv-lora-", "multi-latent-attention"),
    ("qk-head-dim", "multi-latent-attention"),
    ("qk-pos-emb-", "multi-latent-attention"),
    ("v-head-dim", "multi-latent-attention"),
    ("mla-", "multi-latent-attention"),
    ("mtp-", "mtp-num-layers"),
    ("mamba-", "is-hybrid-model"),
    ("hybrid-", "is-hybrid-model"),
    ("fp8-", "fp8-format"),
    ("fp4-", "fp4-format"),
];

/// The option without which this one says nothing, if there is such a one.
pub(super) fn depends_on(name: &str) -> Option<&'static str> {
    DEPENDENT.iter().find(|(beginning, on)| name.starts_with(beginning) && name != *on).map(|(_, on)| *on)
}

/// Whether an option changes neither what is trained nor how long it takes.
pub(super) fn changes_nothing(name: &str) -> bool {
    NEUTRAL.contains(&name) || NEUTRAL_BEGINNINGS.iter().any(|beginning| name.starts_with(beginning))
}

/// Whether an option looks like one that shapes the model or its division.
pub(super) fn looks_like_model(name: &str) -> bool {
    SHAPING.iter().any(|part| name.contains(part))
}

/// Names of options that nobody reads, which a misspelt one may have been meant to be.
pub(super) fn unread() -> impl Iterator<Item = &'static str> {
    NEUTRAL.into_iter().chain(REFUSED.iter().map(|(name, ..)| *name))
}
