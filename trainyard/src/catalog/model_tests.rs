//! The models of the catalog against their published sizes.

use std::collections::BTreeSet;

use super::Catalog;

/// Parameters, all and those that one token passes, to the unit: of public weights where there are any, counted from the
/// files' tensors.
const PARAMETERS: [(&str, u64, u64); 52] = [
    ("gpt2-124m", 124_439_808, 124_439_808),
    ("llama-7b", 6_738_415_616, 6_738_415_616),
    ("llama-13b", 13_015_864_320, 13_015_864_320),
    ("llama-30b", 32_528_943_616, 32_528_943_616),
    ("llama-65b", 65_285_660_672, 65_285_660_672),
    ("llama-2-7b", 6_738_415_616, 6_738_415_616),
    ("llama-2-13b", 13_015_864_320, 13_015_864_320),
    ("llama-2-70b", 68_976_648_192, 68_976_648_192),
    ("llama-3-8b", 8_030_261_248, 8_030_261_248),
    ("llama-3-70b", 70_553_706_496, 70_553_706_496),
    ("llama-3.1-8b", 8_030_261_248, 8_030_261_248),
    ("llama-3.1-70b", 70_553_706_496, 70_553_706_496),
    ("llama-3.1-405b", 405_853_388_800, 405_853_388_800),
    ("llama-3.2-1b", 1_235_814_400, 1_235_814_400),
    ("llama-3.2-3b", 3_212_749_824, 3_212_749_824),
    ("qwen2-72b", 72_706_203_648, 72_706_203_648),
    ("qwen2.5-0.5b", 494_032_768, 494_032_768),
    ("qwen2.5-1.5b", 1_543_714_304, 1_543_714_304),
    ("qwen2.5-3b", 3_085_938_688, 3_085_938_688),
    ("qwen2.5-7b", 7_615_616_512, 7_615_616_512),
    ("qwen2.5-14b", 14_770_033_664, 14_770_033_664),
    ("qwen2.5-32b", 32_763_876_352, 32_763_876_352),
    ("qwen2.5-72b", 72_706_203_648, 72_706_203_648),
    ("qwen3-0.6b", 596_049_920, 596_049_920),
    ("qwen3-8b", 8_190_735_360, 8_190_735_360),
    ("qwen3-14b", 14_768_307_200, 14_768_307_200),
    ("qwen3-32b", 32_762_123_264, 32_762_123_264),
    ("qwen3-30b-a3b", 30_532_122_624, 3_353_032_704),
    ("qwen3-235b-a22b", 235_093_634_560, 22_190_763_520),
    ("mistral-7b", 7_248_023_552, 7_248_023_552),
    ("mistral-large-123b", 122_610_069_504, 122_610_069_504),
    ("mixtral-8x7b", 46_702_792_704, 12_879_925_248),
    ("mixtral-8x22b", 140_620_634_112, 39_152_031_744),
    ("deepseek-v2-lite", 15_706_484_224, 2_661_150_208),
    ("deepseek-v2", 235_741_434_880, 21_375_800_320),
    ("deepseek-v3", 671_026_419_200, 37_552_297_472),
    ("gpt-oss-20b", 20_914_757_184, 4_187_440_704),
    ("gpt-oss-120b", 116_829_156_672, 5_711_982_912),
    ("gemma-2b", 2_506_172_416, 2_506_172_416),
    ("gemma-7b", 8_537_680_896, 8_537_680_896),
    ("gemma-2-2b", 2_614_341_888, 2_614_341_888),
    ("gemma-2-9b", 9_241_705_984, 9_241_705_984),
    ("gemma-2-27b", 27_227_128_320, 27_227_128_320),
    ("gemma-3-1b", 999_885_952, 999_885_952),
    ("phi-2", 2_779_683_840, 2_779_683_840),
    ("phi-4", 14_659_507_200, 14_659_507_200),
    ("olmo-2-7b", 7_298_617_344, 7_298_617_344),
    ("olmo-2-13b", 13_716_198_400, 13_716_198_400),
    ("olmo-3-32b", 32_233_522_176, 32_233_522_176),
    ("olmoe-1b-7b", 6_919_161_856, 1_282_017_280),
    ("gpt-neox-20b", 20_554_567_680, 20_554_567_680),
    ("falcon-7b", 6_921_720_704, 6_921_720_704),
];

#[test]
fn models_have_their_published_parameters_to_the_unit() {
    let catalog = Catalog::embedded();
    let mut wrong = Vec::new();
    for (name, total, active) in PARAMETERS {
        let model = catalog.model(name).unwrap_or_else(|| panic!("no model {name}"));
        let found = (model.parameters(), model.active_parameters());
        if found != (total, active) {
            wrong.push(format!("{name}: {found:?} instead of {:?}", (total, active)));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn models_known_by_a_rounded_size_are_near_it() {
    let catalog = Catalog::embedded();
    // Published in words of billions; Jamba to 0.1 %.
    for (name, billions, within) in [
        ("jamba-v0.1", 51.57, 0.001),
        ("bloom-176b", 176.25, 0.001),
        ("falcon-40b", 41.30, 0.001),
        ("qwen3-next-80b-a3b", 79.67, 0.001),
        ("gpt3-175b", 174.6, 0.005),
        ("gpt-13b", 13.0, 0.02),
        ("gpt3-6.7b", 6.7, 0.02),
        ("gpt3-2.7b", 2.65, 0.02),
        ("gpt3-1.3b", 1.32, 0.02),
        ("gpt3-760m", 0.76, 0.02),
        ("gpt3-350m", 0.356, 0.02),
        ("gpt3-125m", 0.125, 0.02),
        ("gpt-22b", 22.0, 0.02),
        ("mt-nlg-530b", 530.0, 0.005),
        ("gpt-1t", 1008.0, 0.005),
    ] {
        let model = catalog.model(name).unwrap_or_else(|| panic!("no model {name}"));
        let found = model.parameters() as f64 / 1e9;
        assert!((found / billions - 1.0).abs() <= within, "{name}: {found:.3} billion instead of {billions}");
    }
}

#[test]
fn models_are_sound_and_have_names_of_their_own() {
    let catalog = Catalog::embedded();
    let mut names = BTreeSet::new();
    for model in &catalog.models {
        let problems = model.problems();
        assert!(problems.is_empty(), "{}: {problems:?}", model.name);
        assert!(names.insert(model.name.clone()), "{} is there twice", model.name);
        assert!(model.active_parameters() <= model.parameters(), "{}", model.name);
        let plain = model.name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || "-.".contains(c));
        assert!(plain, "{}", model.name);
    }
    assert!(names.len() >= 80, "{} models", names.len());
}
