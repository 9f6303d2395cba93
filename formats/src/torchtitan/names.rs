//! torchtitan's keys: those that are read, with older spellings behind the present one, and what is known of the rest.

use crate::settings::Names;

/// A key under each of its spellings, the present one first.
pub(super) type Key = &'static [&'static str];

pub(super) const NAME: Key = &["model.name"];
pub(super) const FLAVOUR: Key = &["model.flavor", "model.flavour"];
pub(super) const CONVERTERS: Key = &["model.converters"];
pub(super) const LOCAL_BATCH: Key = &["training.local_batch_size", "training.batch_size"];
pub(super) const GLOBAL_BATCH: Key = &["training.global_batch_size"];
pub(super) const SEQUENCE: Key = &["training.seq_len"];
pub(super) const STEPS: Key = &["training.steps"];
pub(super) const MAX_NORM: Key = &["training.max_norm"];
pub(super) const SEED: Key = &["debug.seed", "training.seed"];
pub(super) const PARAMETERS: Key = &["training.mixed_precision_param"];
pub(super) const REDUCTION: Key = &["training.mixed_precision_reduce"];
pub(super) const CPU_OFFLOAD: Key = &["training.enable_cpu_offload"];
pub(super) const COMPILE: Key = &["compile.enable", "training.compile"];
pub(super) const COMPONENTS: Key = &["compile.components"];
pub(super) const OPTIMIZER: Key = &["optimizer.name"];
pub(super) const LEARNING_RATE: Key = &["optimizer.lr"];
pub(super) const BETA1: Key = &["optimizer.beta1"];
pub(super) const BETA2: Key = &["optimizer.beta2"];
pub(super) const EPSILON: Key = &["optimizer.eps"];
pub(super) const WEIGHT_DECAY: Key = &["optimizer.weight_decay"];
pub(super) const WARMUP: Key = &["lr_scheduler.warmup_steps", "training.warmup_steps"];
pub(super) const REPLICATE: Key =
    &["parallelism.data_parallel_replicate_degree", "training.data_parallel_replicate_degree"];
pub(super) const SHARD: Key = &["parallelism.data_parallel_shard_degree", "training.data_parallel_shard_degree"];
pub(super) const RESHARD: Key = &["parallelism.fsdp_reshard_after_forward"];
pub(super) const TENSOR: Key = &["parallelism.tensor_parallel_degree", "training.tensor_parallel_degree"];
pub(super) const NO_LOSS_PARALLEL: Key = &["parallelism.disable_loss_parallel", "training.disable_loss_parallel"];
pub(super) const ASYNC_TENSOR: Key =
    &["parallelism.enable_async_tensor_parallel", "experimental.enable_async_tensor_parallel"];
pub(super) const CONTEXT: Key = &["parallelism.context_parallel_degree", "experimental.context_parallel_degree"];
pub(super) const ROTATION: Key =
    &["parallelism.context_parallel_rotate_method", "experimental.context_parallel_rotate_method"];
pub(super) const EXPERT: Key = &["parallelism.expert_parallel_degree"];
pub(super) const EXPERT_TENSOR: Key = &["parallelism.expert_tensor_parallel_degree"];
pub(super) const PIPELINE: Key = &["parallelism.pipeline_parallel_degree", "experimental.pipeline_parallel_degree"];
pub(super) const SCHEDULE: Key = &["parallelism.pipeline_parallel_schedule", "experimental.pipeline_parallel_schedule"];
pub(super) const MICROBATCH: Key = &["parallelism.pipeline_parallel_microbatch_size"];
pub(super) const MICROBATCHES: Key =
    &["parallelism.pipeline_parallel_microbatches", "experimental.pipeline_parallel_microbatches"];
pub(super) const SPLIT_POINTS: Key =
    &["parallelism.pipeline_parallel_split_points", "experimental.pipeline_parallel_split_points"];
pub(super) const PARTS: Key =
    &["parallelism.module_fqns_per_model_part", "parallelism.pipeline_parallel_module_fqns_per_model_part"];
pub(super) const PER_STAGE: Key = &["parallelism.pipeline_parallel_layers_per_stage"];
pub(super) const FIRST_LESS: Key = &["parallelism.pipeline_parallel_first_stage_less_layers"];
pub(super) const LAST_LESS: Key = &["parallelism.pipeline_parallel_last_stage_less_layers"];
pub(super) const CHECKPOINTING: Key = &["activation_checkpoint.mode"];
pub(super) const SELECTION: Key = &["activation_checkpoint.selective_ac_option"];
pub(super) const EARLY_STOP: Key = &["activation_checkpoint.early_stop"];
pub(super) const OLD_FLOAT8: Key = &["float8.enable_float8_linear"];
pub(super) const MX_RECIPE: Key = &["quantize.linear.mx.recipe_name", "mx.recipe_name"];

/// Families and flavours with the names of the catalog.
pub(super) const FLAVOURS: [(&str, &str, &str); 18] = [
    ("llama3", "8B", "llama-3.1-8b"),
    ("llama3", "70B", "llama-3.1-70b"),
    ("llama3", "405B", "llama-3.1-405b"),
    ("llama2", "7B", "llama-2-7b"),
    ("llama2", "13B", "llama-2-13b"),
    ("llama2", "70B", "llama-2-70b"),
    ("deepseek_v3", "16B", "deepseek-v2-lite"),
    ("deepseek_v3", "236B", "deepseek-v2"),
    ("deepseek_v3", "671B", "deepseek-v3"),
    ("qwen3", "0.6B", "qwen3-0.6b"),
    ("qwen3", "1.7B", "qwen3-1.7b"),
    ("qwen3", "4B", "qwen3-4b"),
    ("qwen3", "8B", "qwen3-8b"),
    ("qwen3", "14B", "qwen3-14b"),
    ("qwen3", "32B", "qwen3-32b"),
    ("qwen3", "30B-A3B", "qwen3-30b-a3b"),
    ("gpt_oss", "20b", "gpt-oss-20b"),
    ("gpt_oss", "120b", "gpt-oss-120b"),
];

/// Keys that nobody reads.
pub(super) const REST: Names = Names {
    neutral: &[
        "job.*",
        "profiling.*",
        "metrics.*",
        "comm.*",
        "checkpoint.*",
        "validation.*",
        "memory_estimation.*",
        "debug.*",
        "model.tokenizer_path",
        "model.hf_assets_path",
        "model.print_after_conversion",
        "model.attn_mask_type",
        "training.dataset",
        "training.dataset_path",
        "training.deterministic",
        "training.gc_freq",
        "training.gc_debug",
        "training.debug_moe_force_load_balance",
        "optimizer.implementation",
        "optimizer.fused",
        "lr_scheduler.decay_ratio",
        "lr_scheduler.decay_type",
        "lr_scheduler.lr_min",
        "lr_scheduler.min_lr_factor",
        "lr_scheduler.total_steps",
        "compile.backend",
        "activation_checkpoint.preserve_rng_state",
        "activation_checkpoint.determinism_check",
        "activation_checkpoint.debug",
        "activation_checkpoint.per_op_sac_force_recompute_mm_shapes_by_fqns",
        "activation_checkpoint.visualize_memory_budget_pareto",
        "activation_checkpoint.memory_budget",
        "float8.enable_fsdp_float8_all_gather",
        "float8.precompute_float8_dynamic_scale_for_fsdp",
        "float8.force_recompute_fp8_weight_in_bwd",
        "float8.recipe_name",
        "float8.filter_fqns",
        "float8.moe_fqns_prototype",
        "float8.scaling_type_input",
        "float8.scaling_type_weight",
        "float8.scaling_type_grad_output",
        "quantize.linear.float8.*",
        "quantize.grouped_mm.*",
        "quantize.linear.mx.filter_fqns",
        "quantize.linear.mx.mxfp8_dim1_cast_kernel_choice",
        "mx.filter_fqns",
        "mx.use_fp8_dim1_cast_triton_kernel",
        "mx.mxfp8_dim1_cast_kernel_choice",
        "fault_tolerance.process_group",
        "fault_tolerance.process_group_timeout_ms",
        "fault_tolerance.replica_id",
        "fault_tolerance.group_size",
        "fault_tolerance.min_replica_size",
        "fault_tolerance.sync_steps",
        "fault_tolerance.should_quantize",
        "fault_tolerance.fragment_sync_delay",
        "fault_tolerance.fragment_update_alpha",
        "experimental.custom_args_module",
        "experimental.custom_import",
    ],
    refused: &[
        ("fault_tolerance.enable", "replicas that come and go are not modelled", "leave it out"),
        ("fault_tolerance.semi_sync_method", "replicas that meet now and then are not modelled", "leave it out"),
        ("experimental.enable_compiled_autograd", "compiled autograd is not modelled", "compile.enable"),
        ("parallelism.enable_compiled_autograd", "compiled autograd is not modelled", "compile.enable"),
        (
            "parallelism.pipeline_parallel_schedule_csv",
            "an order in a file of its own is not read from here",
            "schedule = { grid = \"FILE\" } in [plan] of the scenario takes the same file",
        ),
        (
            "experimental.pipeline_parallel_schedule_csv",
            "an order in a file of its own is not read from here",
            "schedule = { grid = \"FILE\" } in [plan] of the scenario takes the same file",
        ),
        (
            "parallelism.pipeline_parallel_expert_parallel_overlap",
            "exchanges of experts beside passes of another microbatch are not modelled",
            "leave it out",
        ),
        ("optimizer.early_step_in_backward", "steps inside the backward pass are not modelled", "false"),
        (
            "model.use_flex_attn",
            "documents that see themselves alone are not read from here",
            "training.document_length of the scenario",
        ),
        ("float8.emulate", "emulated FP8 is not modelled", "false"),
    ],
};
