use ir::{Model, Positions, Problem};

use super::{name, read};

mod goldens;

/// A Llama 3.1 file: its whole structure, and the sizes that differ.
fn llama(hidden: u32, ffn: u32, layers: u32, heads: u32) -> String {
    format!(
        r#"{{
  "architectures": ["LlamaForCausalLM"], "attention_bias": false, "attention_dropout": 0.0, "bos_token_id": 128000,
  "eos_token_id": [128001, 128008, 128009], "hidden_act": "silu", "hidden_size": {hidden}, "initializer_range": 0.02,
  "intermediate_size": {ffn}, "max_position_embeddings": 131072, "mlp_bias": false, "model_type": "llama",
  "num_attention_heads": {heads}, "num_hidden_layers": {layers}, "num_key_value_heads": 8, "pretraining_tp": 1,
  "rms_norm_eps": 1e-05, "rope_scaling": {{"factor": 8.0, "rope_type": "llama3"}}, "rope_theta": 500000.0,
  "tie_word_embeddings": false, "torch_dtype": "bfloat16", "transformers_version": "4.42.3", "use_cache": true,
  "vocab_size": 128256
}}"#
    )
}

const GPT2: &str = r#"{"activation_function": "gelu_new", "architectures": ["GPT2LMHeadModel"], "attn_pdrop": 0.1,
  "bos_token_id": 50256, "embd_pdrop": 0.1, "eos_token_id": 50256, "initializer_range": 0.02,
  "layer_norm_epsilon": 1e-05, "model_type": "gpt2", "n_ctx": 1024, "n_embd": 768, "n_head": 12, "n_layer": 12,
  "n_positions": 1024, "resid_pdrop": 0.1, "summary_activation": null, "summary_first_dropout": 0.1,
  "summary_proj_to_labels": true, "summary_type": "cls_index", "summary_use_proj": true,
  "task_specific_params": {"text-generation": {"do_sample": true, "max_length": 50}}, "vocab_size": 50257}"#;

const QWEN2: &str = r#"{"architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.0, "hidden_act": "silu",
  "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 27648, "max_position_embeddings": 131072,
  "max_window_layers": 70, "model_type": "qwen2", "num_attention_heads": 40, "num_hidden_layers": 64,
  "num_key_value_heads": 8, "rms_norm_eps": 1e-06, "rope_theta": 1000000.0, "sliding_window": 131072,
  "tie_word_embeddings": false, "use_cache": true, "use_sliding_window": false, "vocab_size": 152064}"#;

const MISTRAL: &str = r#"{"architectures": ["MistralForCausalLM"], "hidden_act": "silu", "hidden_size": 4096,
  "intermediate_size": 14336, "max_position_embeddings": 32768, "model_type": "mistral", "num_attention_heads": 32,
  "num_hidden_layers": 32, "num_key_value_heads": 8, "rms_norm_eps": 1e-05, "rope_theta": 1000000.0,
  "sliding_window": null, "tie_word_embeddings": false, "vocab_size": 32768}"#;

fn model(text: &str) -> Model {
    read(text, "some/model/config.json").unwrap_or_else(|problems| panic!("{problems:#?}"))
}

fn problems(text: &str) -> Vec<Problem> {
    read(text, "config.json").err().unwrap_or_default()
}

#[test]
fn parameter_counts_are_the_published_ones() {
    for (text, parameters) in [
        (llama(4096, 14336, 32, 32), 8_030_261_248),
        (llama(8192, 28672, 80, 64), 70_553_706_496),
        (llama(16384, 53248, 126, 128), 405_853_388_800),
        (GPT2.to_owned(), 124_439_808),
        (QWEN2.to_owned(), 32_763_876_352),
        (MISTRAL.to_owned(), 7_248_023_552),
    ] {
        assert_eq!(model(&text).parameters(), parameters, "{text}");
    }
}

/// A file of a family with these keys.
fn file(model_type: &str, keys: &str) -> String {
    format!("{{\"model_type\": \"{model_type}\", {keys}}}")
}

#[test]
fn layers_have_their_windows_and_kinds() {
    let keys = r#""hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 6, "num_attention_heads": 4,
        "num_key_value_heads": 4, "vocab_size": 256, "sliding_window": 128, "max_position_embeddings": 1024"#;
    let kinds = |family: &str, more: &str| {
        let model = model(&file(family, &format!("{keys}{more}")));
        (0..6).map(|layer| model.layer(layer).mixer.name().chars().next().unwrap()).collect::<String>()
    };
    assert_eq!(kinds("mistral", ""), "wwwwww");
    assert_eq!(kinds("qwen2", ""), "aaaaaa");
    assert_eq!(kinds("qwen2", ", \"use_sliding_window\": true, \"max_window_layers\": 4"), "aaaaww");
    assert_eq!(kinds("gemma2", ""), "wawawa");
    assert_eq!(kinds("gemma3_text", ""), "wwwwwa");
    assert_eq!(kinds("olmo3", ""), "wwwaww");
    let listed = ", \"layer_types\": [\"sliding_attention\", \"full_attention\", \"full_attention\",
        \"sliding_attention\", \"full_attention\", \"full_attention\"]";
    assert_eq!(kinds("olmo3", listed), "waawaa");
    let wrong = file("olmo3", &format!("{keys}{}", listed.replacen("\"full_attention\",", "", 1)));
    assert!(problems(&wrong)[0].to_string().contains("names 5 layers, but num_hidden_layers is 6"));
}

#[test]
fn what_is_left_out_has_the_default_of_its_class() {
    let text = r#"{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,
        "num_attention_heads": 4, "vocab_size": 256}"#;
    let bare = model(text);
    assert_eq!((bare.kv_heads, bare.head_dim, bare.tied_head), (4, 16, false));
    assert_eq!(bare.positions, Positions::Rope { theta: 10_000.0 });
    assert!((bare.norm_epsilon - 1e-6).abs() < 1e-18);
    let nested =
        text.replace("\"vocab_size\"", "\"rope_parameters\": {\"rope_theta\": 5e5}, \"head_dim\": 32, \"vocab_size\"");
    let nested = model(&nested);
    assert_eq!((nested.positions, nested.head_dim), (Positions::Rope { theta: 500_000.0 }, 32));
    let biased = model(&text.replace("\"vocab_size\"", "\"attention_bias\": true, \"mlp_bias\": true, \"vocab_size\""));
    assert!(biased.qkv_bias && biased.projection_bias && biased.mlp_bias);
    let qwen = model(QWEN2);
    assert!(qwen.qkv_bias && !qwen.projection_bias && !qwen.mlp_bias);
    let gpt2 = model(GPT2);
    assert!(gpt2.tied_head && gpt2.ffn == 3072 && gpt2.positions == Positions::Learned { maximum: 1024 });
}

#[test]
fn models_are_named_after_their_file() {
    for (file, expect) in [
        ("Llama-3.1-8B-Instruct.config.json", "Llama-3.1-8B-Instruct"),
        ("models/Llama-3.1-8B/config.json", "Llama-3.1-8B"),
        ("models\\tiny\\config.json", "tiny"),
        ("tiny.json", "tiny"),
        ("config.json", "model"),
        ("", "model"),
    ] {
        assert_eq!(name(file), expect, "{file}");
    }
}

/// One change to a sound file gives just one problem, at the key concerned.
fn check(base: &str, from: &str, to: &str, key: &str, part: &str) {
    let text = base.replacen(from, to, 1);
    assert_ne!(text, base, "{from} is not in the sample");
    let problems = problems(&text);
    assert_eq!(problems.len(), 1, "{to}: {problems:#?}");
    assert!(problems[0].subject == key && problems[0].to_string().contains(part), "{to}: {}", problems[0]);
    if text.contains(&format!("\"{key}\"")) {
        let span = problems[0].span.as_ref().unwrap();
        assert_eq!((&span.file[..], &text[span.range.clone()]), ("config.json", &format!("\"{key}\"")[..]));
    }
}

#[test]
fn keys_that_change_the_computation_are_refused_by_name() {
    let base = llama(64, 128, 2, 8);
    let added = [
        ("\"num_local_experts\": 8", "num_local_experts", "mixture of experts"),
        ("\"kv_lora_rank\": 512", "kv_lora_rank", "latent attention"),
        ("\"sliding_window\": 4096", "sliding_window", "a window"),
        ("\"layer_types\": [\"full_attention\", \"sliding_attention\"]", "layer_types", "differ in their attention"),
        ("\"use_qk_norm\": true", "use_qk_norm", "normalises queries and keys"),
        ("\"partial_rotary_factor\": 0.5", "partial_rotary_factor", "a part of each head"),
        ("\"quantization_config\": {\"fmt\": \"e4m3\"}", "quantization_config", "quantised"),
        ("\"text_config\": {}", "text_config", "several kinds of input"),
        ("\"n_embd\": 3", "n_embd", "does not belong to this family"),
        ("\"hiden_dropout\": 0", "hiden_dropout", "did you mean \"hidden_dropout\"?"),
        ("\"frobnicate\": 1", "frobnicate", "is not known"),
    ];
    for (entry, key, part) in added {
        check(&base, "\"use_cache\": true", entry, key, part);
    }
    for off in [
        "\"num_local_experts\": 0",
        "\"sliding_window\": null",
        "\"use_sliding_window\": false",
        "\"layer_types\": [\"full_attention\", \"full_attention\"]",
        "\"partial_rotary_factor\": 1.0",
    ] {
        assert_eq!(problems(&base.replacen("\"use_cache\": true", off, 1)), [], "{off}");
    }
    check(&base, "\"silu\"", "\"relu\"", "hidden_act", "the activation \"relu\" is not supported");
    check(&base, "LlamaForCausalLM", "LlamaForSequenceClassification", "architectures", "not a language model");
    check(MISTRAL, "\"sliding_window\": null,", "", "sliding_window", "means a window of 4096");
    check(MISTRAL, "\"num_key_value_heads\": 8,", "", "num_key_value_heads", "is missing");
    check(
        &QWEN2.replace("131072", "4096"),
        "\"use_sliding_window\": false",
        "\"use_sliding_window\": true, \"max_position_embeddings2\": 1",
        "max_position_embeddings2",
        "did you mean",
    );
    check(GPT2, "\"gelu_new\"", "\"relu\"", "activation_function", "\"relu\" is not supported");
    check(GPT2, "\"n_ctx\": 1024", "\"scale_attn_weights\": false", "scale_attn_weights", "unscaled");
}

#[test]
fn wrong_values_are_named() {
    let base = llama(64, 128, 2, 8);
    for (from, to, key, part) in [
        ("\"hidden_size\": 64", "\"hidden_size\": \"64\"", "hidden_size", "is \"64\", not a positive whole number"),
        ("\"hidden_size\": 64", "\"hidden_size\": 64.5", "hidden_size", "is 64.5"),
        ("\"hidden_size\": 64", "\"hidden_size\": -64", "hidden_size", "is -64"),
        ("\"hidden_size\": 64", "\"hidden_size\": 1e30", "hidden_size", "is 1e"),
        ("\"hidden_size\": 64,", "", "hidden_size", "is missing"),
        ("\"hidden_size\": 64", "\"hidden_size\": 65", "num_attention_heads", "65 does not divide over 8 heads"),
        ("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 0", "num_hidden_layers", "is 0, not"),
        (
            "\"num_hidden_layers\": 2",
            "\"num_hidden_layers\": 2, \"num_hidden_layers\": 3",
            "num_hidden_layers",
            "twice",
        ),
        ("\"num_key_value_heads\": 8", "\"num_key_value_heads\": 3", "model.kv_heads", "the nearest is 2 or 4"),
        ("500000.0", "\"much\"", "rope_theta", "is \"much\", not a number"),
        ("500000.0", "-1", "model.positions.theta", "-1 is not"),
        ("\"tie_word_embeddings\": false", "\"tie_word_embeddings\": 0", "tie_word_embeddings", "not true or false"),
        ("\"model_type\": \"llama\"", "\"model_type\": 3", "model_type", "is 3, not a text"),
        ("128256", "4000000000", "model.vocabulary", "out of reach"),
    ] {
        let text = base.replacen(from, to, 1);
        let problems = problems(&text);
        let found = problems.iter().any(|p| p.subject == key && p.to_string().contains(part));
        assert!(found, "{to}: {problems:#?}");
    }
    // All at once.
    let text = base.replacen("\"hidden_size\": 64", "\"hidden_size\": true", 1).replacen("\"silu\"", "\"gelu\"", 1);
    assert_eq!(problems(&text.replacen("\"use_cache\"", "\"num_experts\": 4, \"use_cache\"", 1)).len(), 3);
}

#[test]
fn model_types_that_are_not_supported_say_why() {
    let base = llama(64, 128, 2, 8);
    for (found, part) in [
        ("llama4", "reads images"),
        ("bloom", "biases on scores"),
        ("mamba2", "no feed-forward part"),
        ("lama", "did you mean \"llama\"? supported are llama, mistral, qwen2"),
        ("Qwen2", "did you mean \"qwen2\"?"),
        ("zzz", "\"zzz\" is not known (supported are"),
    ] {
        check(&base, "\"model_type\": \"llama\"", &format!("\"model_type\": \"{found}\""), "model_type", part);
    }
}

#[test]
fn other_files_are_told_apart() {
    let sound = llama(64, 128, 2, 8);
    for (text, part) in [
        ("", "is empty"),
        (" \n ", "is empty"),
        ("version https://git-lfs.github.com/spec/v1\noid sha256:0\nsize 654\n", "Git LFS pointer"),
        ("<!DOCTYPE html><html></html>", "web page"),
        ("{\"a\": \"\0\"}", "binary"),
        ("[1, 2]", "no object with keys"),
        ("3", "no object with keys"),
        ("{}", "it has no keys"),
        ("hidden_size: 4096", "is not JSON: expected value at line 1, column 1"),
        ("{\"a\": 1,}", "is not JSON: trailing comma"),
        (&sound[..sound.len() / 2], "is truncated"),
        ("{\"version\": \"1.0\", \"added_tokens\": [], \"model\": {\"type\": \"BPE\"}}", "tokenizer.json"),
        ("{\"tokenizer_class\": \"X\"}", "tokenizer_config.json"),
        ("{\"metadata\": {}, \"weight_map\": {}}", "model.safetensors.index.json"),
        ("{\"do_sample\": true, \"temperature\": 0.6}", "generation_config.json"),
        ("{\"zero_optimization\": {\"stage\": 3}}", "DeepSpeed"),
        ("{\"peft_type\": \"LORA\"}", "adapter"),
        ("{\"hidden_size\": 4096}", "model_type: is missing"),
        (
            "{\"name\": \"x\", \"scripts\": {}}",
            "JSON of something else: it has no \"model_type\", and its first keys are \"name\", \"scripts\"",
        ),
    ] {
        let problems = problems(text);
        assert_eq!(problems.len(), 1, "{text}: {problems:#?}");
        assert!(problems[0].to_string().contains(part), "{text}: {}", problems[0]);
        assert!(problems[0].span.as_ref().is_some_and(|span| text.get(span.range.clone()).is_some()), "{text}");
    }
    assert_eq!(read(&format!("\u{feff}{sound}"), "config.json"), read(&sound, "config.json"));
}

/// Files of real users, where this checkout has them.
#[test]
fn files_of_users() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/userfiles/hf");
    for (file, expect) in [
        ("Llama-3.1-8B-Instruct", 8_030_261_248),
        ("Llama-3.1-70B-Instruct", 70_553_706_496),
        ("Qwen2.5-32B-Instruct", 32_763_876_352),
        ("DeepSeek-R1-0528", 671_026_419_200),
        ("Qwen3-30B-A3B", 30_532_122_624),
        ("Qwen3-Next-80B-A3B", 79_674_391_296),
        ("Mixtral-8x7B-v0.1", 46_702_792_704),
        ("Jamba-v0.1.subset", 51_570_323_328),
    ] {
        let path = folder.join(format!("{file}.config.json"));
        let Ok(text) = std::fs::read_to_string(&path) else {
            // Through a raw handle: printing macros are not for libraries.
            use std::io::Write;
            writeln!(std::io::stderr(), "skipped {file}: {} is not there", path.display()).unwrap();
            continue;
        };
        let model =
            read(&text, &format!("{file}.config.json")).unwrap_or_else(|problems| panic!("{file}: {problems:#?}"));
        assert_eq!((model.parameters(), &model.name[..]), (expect, file));
    }
}

/// splitmix64 (Steele, Lea, Flood 2014).
fn next(state: &mut u64) -> usize {
    *state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let mut z = *state;
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    usize::try_from((z ^ (z >> 31)) >> 33).unwrap()
}

#[test]
fn no_text_panics() {
    const PIECES: [&str; 16] = [
        "\"",
        "{",
        "}",
        "[",
        "]",
        ",",
        ":",
        "null",
        "0",
        "-1",
        "1e309",
        "4294967295",
        "99999999999999999999",
        "true",
        "é",
        "\\u0000",
    ];
    let bases = [llama(64, 128, 2, 8), GPT2.to_owned(), QWEN2.to_owned(), MISTRAL.to_owned()];
    let mut state = 5;
    for _ in 0..20_000 {
        let mut text = bases[next(&mut state) % bases.len()].clone();
        for _ in 0..=next(&mut state) % 3 {
            let mut ends = [next(&mut state) % (text.len() + 1), 0];
            ends[1] = (ends[0] + next(&mut state) % 24).min(text.len());
            if ends.iter().all(|end| text.is_char_boundary(*end)) {
                match next(&mut state) % 4 {
                    0 => text.truncate(ends[0]),
                    1 => text.insert_str(ends[0], PIECES[next(&mut state) % PIECES.len()]),
                    _ => text.replace_range(ends[0]..ends[1], PIECES[next(&mut state) % PIECES.len()]),
                }
            }
        }
        if let Err(problems) = read(&text, "config.json") {
            assert!(!problems.is_empty());
            for span in problems.iter().filter_map(|problem| problem.span.as_ref()) {
                assert!(text.get(span.range.clone()).is_some(), "{span:?} in {text}");
            }
        }
    }
}
