//! Parameters of published models, all and active, to the unit. Sizes are those of their public files.

use super::{file, model};

/// A model's family, the keys of its file, its parameters and those that one token passes.
struct Golden {
    name: &'static str,
    family: &'static str,
    keys: &'static str,
    total: u64,
    active: u64,
}

const GOLDENS: [Golden; 18] = [
    Golden {
        name: "Qwen3-8B",
        family: "qwen3",
        keys: r#""hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 36, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 151936"#,
        total: 8_190_735_360,
        active: 8_190_735_360,
    },
    Golden {
        name: "Qwen3-30B-A3B",
        family: "qwen3_moe",
        keys: r#""hidden_size": 2048, "intermediate_size": 6144, "num_hidden_layers": 48, "num_attention_heads": 32,
            "num_key_value_heads": 4, "vocab_size": 151936,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 768"#,
        total: 30_532_122_624,
        active: 3_353_032_704,
    },
    Golden {
        name: "Qwen3-235B-A22B",
        family: "qwen3_moe",
        keys: r#""hidden_size": 4096, "intermediate_size": 12288, "num_hidden_layers": 94, "num_attention_heads": 64,
            "num_key_value_heads": 4, "vocab_size": 151936,
            "num_experts": 128, "num_experts_per_tok": 8, "moe_intermediate_size": 1536"#,
        total: 235_093_634_560,
        active: 22_190_763_520,
    },
    Golden {
        name: "Qwen1.5-72B",
        family: "qwen2",
        keys: r#""hidden_size": 8192, "intermediate_size": 24576, "num_hidden_layers": 80, "num_attention_heads": 64,
            "num_key_value_heads": 64, "vocab_size": 152064"#,
        total: 72_287_920_128,
        active: 72_287_920_128,
    },
    Golden {
        name: "Mixtral-8x7B",
        family: "mixtral",
        keys: r#""hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 8, "vocab_size": 32000,
            "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null"#,
        total: 46_702_792_704,
        active: 12_879_925_248,
    },
    Golden {
        name: "Mixtral-8x22B",
        family: "mixtral",
        keys: r#""hidden_size": 6144, "intermediate_size": 16384, "num_hidden_layers": 56, "num_attention_heads": 48,
            "num_key_value_heads": 8, "vocab_size": 32000,
            "num_local_experts": 8, "num_experts_per_tok": 2, "sliding_window": null"#,
        total: 140_620_634_112,
        active: 39_152_031_744,
    },
    Golden {
        name: "DeepSeek-V3",
        family: "deepseek_v3",
        keys: r#""hidden_size": 7168, "intermediate_size": 18432, "num_hidden_layers": 61, "num_attention_heads": 128,
            "num_key_value_heads": 128, "vocab_size": 129280,
            "q_lora_rank": 1536, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "moe_intermediate_size": 2048, "first_k_dense_replace": 3"#,
        total: 671_026_419_200,
        active: 37_552_297_472,
    },
    Golden {
        name: "phi-4",
        family: "phi3",
        keys: r#""hidden_size": 5120, "intermediate_size": 17920, "num_hidden_layers": 40, "num_attention_heads": 40,
            "num_key_value_heads": 10, "vocab_size": 100352"#,
        total: 14_659_507_200,
        active: 14_659_507_200,
    },
    Golden {
        name: "Olmo-3.1-32B",
        family: "olmo3",
        keys: r#""hidden_size": 5120, "intermediate_size": 27648, "num_hidden_layers": 64, "num_attention_heads": 40,
            "num_key_value_heads": 8, "vocab_size": 100278,
            "max_position_embeddings": 65536"#,
        total: 32_233_522_176,
        active: 32_233_522_176,
    },
    Golden {
        name: "OLMo-7B",
        family: "olmo",
        keys: r#""hidden_size": 4096, "intermediate_size": 11008, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "vocab_size": 50304,
            "tie_word_embeddings": false"#,
        total: 6_888_095_744,
        active: 6_888_095_744,
    },
    Golden {
        name: "gemma-2b",
        family: "gemma",
        keys: r#""hidden_size": 2048, "intermediate_size": 16384, "num_hidden_layers": 18, "num_attention_heads": 8,
            "num_key_value_heads": 1, "vocab_size": 256000"#,
        total: 2_506_172_416,
        active: 2_506_172_416,
    },
    Golden {
        name: "gemma-2-9b",
        family: "gemma2",
        keys: r#""hidden_size": 3584, "intermediate_size": 14336, "num_hidden_layers": 42, "num_attention_heads": 16,
            "num_key_value_heads": 8, "vocab_size": 256000,
            "max_position_embeddings": 8192"#,
        total: 9_241_705_984,
        active: 9_241_705_984,
    },
    Golden {
        name: "gemma-3-1b",
        family: "gemma3_text",
        keys: r#""hidden_size": 1152, "intermediate_size": 6912, "num_hidden_layers": 26, "num_attention_heads": 4,
            "num_key_value_heads": 1, "vocab_size": 262144,
            "sliding_window": 512, "max_position_embeddings": 32768"#,
        total: 999_885_952,
        active: 999_885_952,
    },
    Golden {
        name: "gpt-neox-20b",
        family: "gpt_neox",
        keys: r#""hidden_size": 6144, "intermediate_size": 24576, "num_hidden_layers": 44, "num_attention_heads": 64,
            "hidden_act": "gelu_fast", "rotary_pct": 0.25, "vocab_size": 50432"#,
        total: 20_554_567_680,
        active: 20_554_567_680,
    },
    Golden {
        name: "phi-2",
        family: "phi",
        keys: r#""hidden_size": 2560, "intermediate_size": 10240, "num_hidden_layers": 32, "num_attention_heads": 32,
            "num_key_value_heads": 32, "vocab_size": 51200,
            "partial_rotary_factor": 0.4"#,
        total: 2_779_683_840,
        active: 2_779_683_840,
    },
    Golden {
        name: "falcon-7b",
        family: "falcon",
        keys: r#""hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "vocab_size": 65024"#,
        total: 6_921_720_704,
        active: 6_921_720_704,
    },
    Golden {
        name: "gpt-oss-20b",
        family: "gpt_oss",
        keys: r#""hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
            "num_key_value_heads": 8, "vocab_size": 201088,
            "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128, "head_dim": 64, "max_position_embeddings": 131072"#,
        total: 20_914_757_184,
        active: 4_187_440_704,
    },
    Golden {
        name: "OLMoE-1B-7B",
        family: "olmoe",
        keys: r#""hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
            "num_key_value_heads": 16, "vocab_size": 50304,
            "num_experts": 64, "num_experts_per_tok": 8"#,
        total: 6_919_161_856,
        active: 1_282_017_280,
    },
];

#[test]
fn every_family_counts_to_the_unit() {
    for Golden { name, family, keys, total, active } in GOLDENS {
        let model = model(&file(family, keys));
        assert_eq!((model.parameters(), model.active_parameters()), (total, active), "{name}");
    }
}
