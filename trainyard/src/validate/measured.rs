//! The project's own measured rows, part of the program.

/// Files of `catalog/measured/`.
const EMBEDDED: [(&str, &str); 26] = [
    (
        "aleph_alpha_llama_layout_sweep.csv",
        include_str!("../../../catalog/measured/aleph_alpha_llama_layout_sweep.csv"),
    ),
    ("aleph_alpha_memory_fit_oom.csv", include_str!("../../../catalog/measured/aleph_alpha_memory_fit_oom.csv")),
    ("amp_hetero_t4_v100.csv", include_str!("../../../catalog/measured/amp_hetero_t4_v100.csv")),
    ("bigscience_bloom176b_prequel.csv", include_str!("../../../catalog/measured/bigscience_bloom176b_prequel.csv")),
    ("bigscience_v100_gpt2.csv", include_str!("../../../catalog/measured/bigscience_v100_gpt2.csv")),
    ("deepspeed_azure_offload.csv", include_str!("../../../catalog/measured/deepspeed_azure_offload.csv")),
    ("fsdp_frameworks.csv", include_str!("../../../catalog/measured/fsdp_frameworks.csv")),
    ("internevo_7b.csv", include_str!("../../../catalog/measured/internevo_7b.csv")),
    ("korthikanti_seqpar_selective.csv", include_str!("../../../catalog/measured/korthikanti_seqpar_selective.csv")),
    ("lumi_mi250x.csv", include_str!("../../../catalog/measured/lumi_mi250x.csv")),
    ("megatron_core_h100_scaling.csv", include_str!("../../../catalog/measured/megatron_core_h100_scaling.csv")),
    ("megatron_lm_2020_v100_a100.csv", include_str!("../../../catalog/measured/megatron_lm_2020_v100_a100.csv")),
    ("megatron_lm_sc21.csv", include_str!("../../../catalog/measured/megatron_lm_sc21.csv")),
    ("mlperf_training_llm.csv", include_str!("../../../catalog/measured/mlperf_training_llm.csv")),
    ("model_reports.csv", include_str!("../../../catalog/measured/model_reports.csv")),
    ("mosaicml_llm_foundry.csv", include_str!("../../../catalog/measured/mosaicml_llm_foundry.csv")),
    ("nvidia_automodel_modelzoo.csv", include_str!("../../../catalog/measured/nvidia_automodel_modelzoo.csv")),
    ("nvidia_dgxc_benchmarking.csv", include_str!("../../../catalog/measured/nvidia_dgxc_benchmarking.csv")),
    ("nvidia_megatron_bridge.csv", include_str!("../../../catalog/measured/nvidia_megatron_bridge.csv")),
    ("nvidia_nemo_2407_longseq.csv", include_str!("../../../catalog/measured/nvidia_nemo_2407_longseq.csv")),
    ("oneflow_dlperf_v100.csv", include_str!("../../../catalog/measured/oneflow_dlperf_v100.csv")),
    ("pytorch_torchtitan.csv", include_str!("../../../catalog/measured/pytorch_torchtitan.csv")),
    ("simumax_b200_real.csv", include_str!("../../../catalog/measured/simumax_b200_real.csv")),
    ("vocab_parallel_schedules.csv", include_str!("../../../catalog/measured/vocab_parallel_schedules.csv")),
    ("vtrain_a100.csv", include_str!("../../../catalog/measured/vtrain_a100.csv")),
    ("zero_bubble_schedules.csv", include_str!("../../../catalog/measured/zero_bubble_schedules.csv")),
];

/// The project's own tables: file names and texts.
#[must_use]
pub fn measured_tables() -> Vec<(String, String)> {
    EMBEDDED.iter().map(|(file, text)| ((*file).to_owned(), (*text).to_owned())).collect()
}
