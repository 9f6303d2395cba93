//! DeepSpeed's keys: those that are read, with older spellings behind the present one, and what is known of the rest.

use ir::Model;

use crate::settings::Names;

/// A key under each of its spellings, the present one first.
pub(super) type Key = &'static [&'static str];

pub(super) const BATCH: Key = &["train_batch_size"];
pub(super) const MICROBATCH: Key = &["train_micro_batch_size_per_gpu"];
pub(super) const STEPS: Key = &["gradient_accumulation_steps"];
pub(super) const CLIPPING: Key = &["gradient_clipping"];
pub(super) const FP16: Key = &["fp16.enabled"];
pub(super) const BF16: Key = &["bf16.enabled", "bfloat16.enabled"];
pub(super) const ACCUMULATION: Key = &["data_types.grad_accum_dtype"];
pub(super) const COMMUNICATION: Key = &["communication_data_type"];
pub(super) const FP32_REDUCTION: Key = &["fp32_allreduce"];
pub(super) const OPTIMIZER: Key = &["optimizer.type"];
pub(super) const LEARNING_RATE: Key = &["optimizer.params.lr"];
pub(super) const BETAS: Key = &["optimizer.params.betas"];
pub(super) const EPSILON: Key = &["optimizer.params.eps"];
pub(super) const WEIGHT_DECAY: Key = &["optimizer.params.weight_decay", "weight_decay"];
pub(super) const WARMUP: Key = &["scheduler.params.warmup_num_steps"];
pub(super) const ZERO: Key = &["zero_optimization.stage"];
pub(super) const OVERLAP: Key = &["zero_optimization.overlap_comm"];
pub(super) const REDUCE_SCATTER: Key = &["zero_optimization.reduce_scatter"];
pub(super) const GATHER: Key = &["zero_optimization.allgather_partitions"];
pub(super) const PREFETCH: Key =
    &["zero_optimization.stage3_prefetch_bucket_size", "zero_optimization.prefetch_bucket_size"];
pub(super) const SHARD: Key = &["zero_optimization.mics_shard_size"];
pub(super) const OPTIMIZER_DEVICE: Key = &["zero_optimization.offload_optimizer.device"];
pub(super) const PARAMETER_DEVICE: Key = &["zero_optimization.offload_param.device"];
pub(super) const OLD_OFFLOAD: Key = &["zero_optimization.cpu_offload"];
pub(super) const OLD_PARAMETER_OFFLOAD: Key = &["zero_optimization.cpu_offload_params"];
pub(super) const OFFLOAD_RATIO: Key = &["zero_optimization.offload_optimizer.ratio"];
pub(super) const CHECKPOINTS_ON_CPU: Key = &["activation_checkpointing.cpu_checkpointing"];
pub(super) const PARTITIONED: Key = &["activation_checkpointing.partition_activations", "partition_activations"];
pub(super) const STAGES: Key = &["pipeline.stages", "pipe_parallel_size", "pipe-parallel-size"];
pub(super) const TENSOR: Key =
    &["tensor_parallel.autotp_size", "tensor_parallel.tp_size", "model_parallel_size", "model-parallel-size"];
pub(super) const SEQUENCES: Key = &["sequence_parallel_size"];

/// GPT-NeoX's, which stand beside DeepSpeed's in one file.
pub(super) const LENGTH: Key = &["seq_length", "seq-length"];
pub(super) const ITERATIONS: Key = &["train_iters", "train-iters"];
pub(super) const CHECKPOINTED: Key = &["checkpoint_activations", "checkpoint-activations"];
pub(super) const CHECKPOINT_LAYERS: Key = &["checkpoint_num_layers", "checkpoint-num-layers"];
pub(super) const SOFTMAX: Key =
    &["scaled_upper_triang_masked_softmax_fusion", "scaled-upper-triang-masked-softmax-fusion"];
pub(super) const ACTIVATION: Key = &["bias_gelu_fusion", "bias-gelu-fusion"];
pub(super) const NORMS: Key = &["layernorm_fusion", "rmsnorm_fusion"];
pub(super) const DIVISOR: Key = &["make_vocab_size_divisible_by", "make-vocab-size-divisible-by"];
pub(super) const NEOX_SEED: Key = &["seed"];

/// The same size of a model.
pub(super) type OfModel = fn(&Model) -> u32;
/// Sizes of the model that GPT-NeoX's files hold: each is held against the model given.
pub(super) const SIZES: [(Key, OfModel); 7] = [
    (&["num_layers", "num-layers"], |model| model.layers),
    (&["hidden_size", "hidden-size"], |model| model.hidden),
    (&["num_attention_heads", "num-attention-heads"], |model| model.heads),
    (&["num_kv_heads", "num-kv-heads"], |model| model.kv_heads),
    (&["intermediate_size", "intermediate-size"], |model| model.ffn),
    (&["padded_vocab_size"], |model| model.vocabulary),
    (&["vocab_size"], |model| model.vocabulary),
];

/// Optimizers that are priced as AdamW.
pub(super) const OPTIMIZERS: [(&str, ()); 6] =
    [("AdamW", ()), ("Adam", ()), ("FusedAdam", ()), ("DeepSpeedCPUAdam", ()), ("CPUAdam", ()), ("CPU_Adam", ())];

/// Keys that nobody reads.
pub(super) const REST: Names = Names {
    neutral: &[
        "steps_per_print",
        "wall_clock_breakdown",
        "dump_state",
        "memory_breakdown",
        "flops_profiler.*",
        "tensorboard.*",
        "wandb.*",
        "comet.*",
        "csv_monitor.*",
        "comms_logger.*",
        "comms_config.*",
        "checkpoint.*",
        "monitor_config.*",
        "aio.*",
        "dataloader_drop_last",
        "disable_allgather",
        "load_universal_checkpoint",
        "use_node_local_storage",
        "use_data_before_expert_parallel_",
        "prescale_gradients",
        "gradient_predivide_factor",
        "seq_parallel_communication_data_type",
        "zero_allow_untested_optimizer",
        "zero_force_ds_cpu_optimizer",
        "fp16.auto_cast",
        "fp16.loss_scale",
        "fp16.initial_scale_power",
        "fp16.loss_scale_window",
        "fp16.hysteresis",
        "fp16.consecutive_hysteresis",
        "fp16.min_loss_scale",
        "fp16.fp16",
        "fp16.type",
        "bf16.immediate_grad_update",
        "bf16.check_grad_overflow",
        "optimizer.params.torch_adam",
        "optimizer.params.adam_w_mode",
        "optimizer.params.bias_correction",
        "optimizer.params.amsgrad",
        "optimizer.legacy_fusion",
        "scheduler.type",
        "scheduler.params.warmup_min_lr",
        "scheduler.params.warmup_max_lr",
        "scheduler.params.warmup_type",
        "scheduler.params.warmup_min_ratio",
        "scheduler.params.cos_min_ratio",
        "scheduler.params.total_num_steps",
        "scheduler.params.last_batch_iteration",
        "zero_optimization.contiguous_gradients",
        "zero_optimization.allgather_bucket_size",
        "zero_optimization.reduce_bucket_size",
        "zero_optimization.sub_group_size",
        "zero_optimization.round_robin_gradients",
        "zero_optimization.elastic_checkpoint",
        "zero_optimization.load_from_fp32_weights",
        "zero_optimization.ignore_unused_parameters",
        "zero_optimization.legacy_stage1",
        "zero_optimization.stage3_max_live_parameters",
        "zero_optimization.stage3_max_reuse_distance",
        "zero_optimization.stage3_param_persistence_threshold",
        "zero_optimization.stage3_model_persistence_threshold",
        "zero_optimization.stage3_gather_16bit_weights_on_model_save",
        "zero_optimization.stage3_gather_fp16_weights_on_model_save",
        "zero_optimization.gather_16bit_weights_on_model_save",
        "zero_optimization.max_live_parameters",
        "zero_optimization.max_reuse_distance",
        "zero_optimization.param_persistence_threshold",
        "zero_optimization.model_persistence_threshold",
        "zero_optimization.cpu_offload_use_pin_memory",
        "zero_optimization.memory_efficient_linear",
        "zero_optimization.log_trace_cache_warnings",
        "zero_optimization.override_module_apply",
        "zero_optimization.pipeline_loading_checkpoint",
        "zero_optimization.mics_hierarchical_params_gather",
        "zero_optimization.offload_optimizer.pin_memory",
        "zero_optimization.offload_optimizer.buffer_count",
        "zero_optimization.offload_optimizer.buffer_size",
        "zero_optimization.offload_optimizer.fast_init",
        "zero_optimization.offload_optimizer.nvme_path",
        "zero_optimization.offload_optimizer.pipeline",
        "zero_optimization.offload_optimizer.pipeline_read",
        "zero_optimization.offload_optimizer.pipeline_write",
        "zero_optimization.offload_param.pin_memory",
        "zero_optimization.offload_param.buffer_count",
        "zero_optimization.offload_param.buffer_size",
        "zero_optimization.offload_param.max_in_cpu",
        "zero_optimization.offload_param.nvme_path",
        "activation_checkpointing.contiguous_memory_optimization",
        "activation_checkpointing.number_checkpoints",
        "activation_checkpointing.synchronize_checkpoint_boundary",
        "activation_checkpointing.profile",
        "pipeline.partition",
        "pipeline.partition_method",
        "pipeline.seed_layers",
        "pipeline.pipe_partitioned",
        "pipeline.grad_partitioned",
        "pipeline.use_reentrant",
        "tensor_parallel.dtype",
        "tensor_parallel.tp_grain_size",
        "hybrid_engine.*",
        "data_efficiency.seed",
        "elasticity.*",
        "compression_training.*",
        "curriculum_learning.*",
        "data_efficiency.*",
        "autotuning.*",
        "sparse_attention.*",
        "amp.*",
        // GPT-NeoX: data, logs, checkpoints, initial weights, rates of learning.
        "vocab_file",
        "vocab-file",
        "merge_file",
        "save",
        "load",
        "data_path",
        "data-path",
        "data_impl",
        "train_data_paths",
        "valid_data_paths",
        "test_data_paths",
        "split",
        "tokenizer_type",
        "tensorboard-dir",
        "tensorboard_dir",
        "log_dir",
        "log_interval",
        "use_wandb",
        "wandb_group",
        "wandb_team",
        "wandb_project",
        "max_position_embeddings",
        "max-position-embeddings",
        "norm",
        "pos_emb",
        "pos-emb",
        "rotary_pct",
        "rotary_emb_base",
        "no_weight_tying",
        "no-weight-tying",
        "gpt_j_residual",
        "gpt_j_tied",
        "output_layer_parallelism",
        "output-layer-parallelism",
        "rope_fusion",
        "bias_dropout_fusion",
        "init_method",
        "init_method_std",
        "output_layer_init_method",
        "min_lr",
        "lr_decay_iters",
        "lr_decay_style",
        "warmup",
        "synchronize_each_layer",
        "hidden_dropout",
        "attention_dropout",
        "distributed_backend",
        "checkpoint_factor",
        "checkpoint_scale",
        "save_interval",
        "eval_interval",
        "eval_iters",
        "keep_last_n_checkpoints",
        "launcher",
        "deepspeed_slurm",
        "num_workers",
        "optimizer_type",
    ],
    refused: &[
        ("elasticity.enabled", "batches that follow the devices are not modelled", "write the batch out"),
        ("compression_training.enabled", "compression is not modelled", "leave it out"),
        ("curriculum_learning.enabled", "sequences that grow are not modelled", "leave it out"),
        ("data_efficiency.enabled", "dropped tokens and sequences that grow are not modelled", "leave it out"),
        ("sparse_attention.mode", "sparse attention is not modelled", "leave it out"),
        ("amp.enabled", "apex's mixed precision is not modelled", "fp16 or bf16"),
        ("compile.deepcompile", "DeepCompile is not modelled", "leave it out"),
        ("sparse_gradients", "sparse gradients are not modelled", "false"),
        ("zero_optimization.zero_hpz_partition_size", "second copies of parameters in a node are not modelled", "1"),
        ("zero_optimization.zero_quantized_weights", "quantised gathers are not modelled", "false"),
        ("zero_optimization.zero_quantized_gradients", "quantised gradients are not modelled", "false"),
        ("zero_optimization.zero_quantized_nontrainable_weights", "quantised gathers are not modelled", "false"),
        ("zero_optimization.offload_optimizer.super_offload", "SuperOffload is not modelled", "false"),
        ("zero_optimization.zenflow", "ZenFlow is not modelled", "leave it out"),
        (
            "pipeline.activation_checkpoint_interval",
            "checkpoints at every n-th layer are not read from here",
            "recompute and recompute_layers in [plan] of the scenario",
        ),
        ("tensor_parallel.enabled", "is said by autotp_size", "tensor_parallel.autotp_size"),
        ("attention_config", "other kernels of attention are not read from here", "training.attention of the scenario"),
        ("use_flash_attn", "is not read from here", "training.attention of the scenario"),
        ("moe_num_experts", "experts are read from the model alone", "leave it out"),
        ("num_experts", "experts are read from the model alone", "leave it out"),
    ],
};
