use std::collections::BTreeMap;

use formats::measured_runs::{self, Reason, Refusal};

use super::*;
use crate::catalog::Catalog;

/// One row; `changes` are `column=value`.
fn table(rows: &[&[(&str, &str)]]) -> measured_runs::MeasuredTable {
    let sound = [
        ("row_id", "r"),
        ("gpu", "A100-SXM-80GB"),
        ("gpu_mem_gb", "80"),
        ("gpus_per_node", "8"),
        ("nodes", "4"),
        ("gpus_total", "32"),
        ("model", "GPT-7B"),
        ("layers", "32"),
        ("hidden", "4096"),
        ("ffn", "16384"),
        ("heads", "32"),
        ("kv_heads", "32"),
        ("mlp_type", "gelu"),
        ("precision", "BF16"),
        ("seq_len", "2048"),
        ("global_batch", "64"),
        ("micro_batch", "1"),
        ("tp", "4"),
        ("pp", "4"),
        ("vpp", "1"),
        ("dp", "2"),
        ("ep", ""),
        ("iteration_time_s", "5"),
        ("framework", "Megatron-LM"),
        ("framework_version", ""),
        ("source_id", "somewhere"),
        ("intra_link", ""),
        ("intra_bw_gbyte_s_per_gpu", ""),
        ("inter_link", ""),
        ("inter_bw_gbit_s_per_gpu", ""),
        ("other_flags", ""),
        ("zero_stage", ""),
        ("recompute", ""),
        ("attn_kernel", ""),
        ("memory_gb", ""),
        ("memory_kind", ""),
        ("pp_schedule", ""),
    ];
    let mut text = sound.map(|(name, _)| name).join(",") + "\n";
    for (index, changes) in rows.iter().enumerate() {
        let cell = |(name, value): (&str, &str)| match changes.iter().find(|(changed, _)| *changed == name) {
            Some((_, changed)) => format!("\"{changed}\""),
            None if name == "row_id" => format!("r{index}"),
            None => format!("\"{value}\""),
        };
        text += &(sound.map(cell).join(",") + "\n");
    }
    measured_runs::read(&text, "t.csv").expect("a table")
}

fn resolve_all(rows: &[&[(&str, &str)]], fitted: UseFitted) -> Vec<Result<ResolvedRun, Refusal>> {
    Recipes::embedded().resolve_table(&table(rows).rows, &Catalog::embedded(), fitted)
}

fn resolve(changes: &[(&str, &str)]) -> Result<ResolvedRun, Refusal> {
    resolve_all(&[changes], UseFitted::Yes).pop().expect("a row")
}

fn resolved(changes: &[(&str, &str)]) -> ResolvedRun {
    resolve(changes).unwrap_or_else(|refusal| panic!("{changes:?}: {refusal}"))
}

#[test]
fn the_embedded_recipes_are_sound() {
    let recipes = Recipes::embedded();
    assert!(recipes.classes().len() >= 10, "{:?}", recipes.classes());
    for (name, entry) in recipes.classes.iter().chain(&recipes.frameworks).chain(&recipes.tables) {
        assert!(entry.source.len() >= 10, "{name} has a source");
    }
}

#[test]
fn devices_are_found_by_the_words_of_tables() {
    let check = |words: &str, memory: &str, expect: &str| {
        // FP8 where BF16 would be missing is none of this test's business.
        let row = [("gpu", words), ("gpu_mem_gb", memory), ("precision", "FP16"), ("iteration_time_s", "50")];
        assert_eq!(resolved(&row).hardware.device.name, expect, "{words} {memory}");
    };
    check("A100-SXM-80GB", "80", "a100-sxm4-80gb");
    check("A100-SXM-40GB", "40", "a100-sxm4-40gb");
    check("NVIDIA A100 80GB PCIe", "", "a100-pcie-80gb");
    check("H100", "80", "h100-sxm5-80gb");
    check("H100-SXM-96GB-HBM2e", "96", "h100-sxm5-96gb-hbm2e");
    check("H200-SXM-141GB", "141", "h200-sxm5-141gb");
    check("V100-SXM2-16GB", "16", "v100-sxm2-16gb");
    check("Tesla T4", "", "t4");
    check("T4-16GB", "16", "t4");
    check("B200-SXM-180GB", "180", "b200-sxm-180gb");
    check("GB200-NVL72", "186", "gb200-186gb");
    check("MI250X-GCD", "64", "mi250x-gcd");
    check("MI300X", "192", "mi300x");
    check("MI325X-256GB", "256", "mi325x");
    check("RTX-4090", "24", "rtx-4090");
    check("RTX3090", "24", "rtx-3090");
    check("H800-SXM-80GB", "80", "h800-sxm5-80gb");
    check("A800-SXM-80GB", "80", "a800-sxm4-80gb");
    check("H20-SXM-96GB", "96", "h20-sxm5-96gb");
    check("AMD MI 300X", "", "mi300x");
    check("A100 40G SXM", "", "a100-sxm4-40gb");
    check("GB300-NVL72", "279", "gb300-288gb");
    check("MI355X-288GB", "288", "mi355x");
    check("A10G-24GB", "24", "a10g");
    check("NVIDIA L4", "24", "l4");
    check("P100-SXM2-16GB", "16", "p100-sxm2-16gb");
    let refusal = resolve(&[("gpu", "H1000-SXM")]).expect_err("no such device");
    assert_eq!(refusal.reason(), Reason::UnknownDevice);
    assert!(refusal.to_string().contains("h100-sxm5-80gb"), "{refusal}");
}

#[test]
fn links_have_the_rates_of_the_row() {
    let hardware = |changes: &[(&str, &str)]| resolved(changes).hardware;
    let check = |changes: &[(&str, &str)], nics: u32, gbit: f64, kind: &str| {
        let found = hardware(changes);
        let rate = found.nic.bandwidth.get() * 8e-9;
        assert!((rate / gbit - 1.0).abs() < 0.02, "{changes:?}: {rate} Gb/s");
        assert_eq!((found.nics, found.nic.name.starts_with(kind)), (nics, true), "{changes:?}: {}", found.nic.name);
    };
    let network = |words, rate| [("inter_link", words), ("inter_bw_gbit_s_per_gpu", rate)];
    check(&network("8x HDR200 IB (Selene, stated)", "200"), 8, 200.0, "ib-");
    check(&network("4x100Gb RoCE per node (stated)", "50"), 4, 100.0, "roce-");
    check(&network("Omni-Path 100Gb x4/node", "50"), 4, 100.0, "omni-path");
    check(&network("InfiniBand HDR, 800 Gb/s per node", "100"), 4, 200.0, "ib-");
    check(&network("Ethernet 10 Gb/s per node", "1.25"), 1, 10.0, "eth-");
    check(&[], 8, 200.0, "ib-");
    // Both directions of a link are printed together.
    let cut = hardware(&[("intra_bw_gbyte_s_per_gpu", "400")]);
    assert!((cut.domain_link.bandwidth.get() / 200e9 - 1.0).abs() < 1e-9);
    let whole = hardware(&[("intra_link", "NVLink3"), ("intra_bw_gbyte_s_per_gpu", "600")]);
    assert_eq!(whole.domain_link.name, "nvlink3");
    assert_eq!(hardware(&[("intra_link", "PCIe")]).domain_link.name, "pcie4x16");
    let cluster = whole.cluster();
    assert_eq!(cluster.node_kinds[0].devices.len() * cluster.groups[0].count as usize, 32);
}

#[test]
fn racks_are_one_domain() {
    let rack = |devices: &str, nodes: &str, dp: &str| {
        let row = [
            ("gpu", "GB200-NVL72"),
            ("gpu_mem_gb", "186"),
            ("gpus_per_node", "4"),
            ("nodes", nodes),
            ("gpus_total", devices),
            ("dp", dp),
            ("global_batch", "1024"),
            ("intra_link", "NVLink5-NVL72"),
            ("inter_bw_gbit_s_per_gpu", "400"),
        ];
        let found = resolved(&row).hardware;
        assert!(
            (found.nic.bandwidth.get() * 8e-9 * f64::from(found.nics) / f64::from(found.devices_per_node) - 400.0)
                .abs()
                < 1.0
        );
        (found.domain_size, found.devices_per_node, found.nodes)
    };
    assert_eq!(rack("32", "8", "2"), (32, 32, 1));
    assert_eq!(rack("256", "64", "16"), (64, 64, 4));
}

#[test]
fn switches_come_from_the_row_then_the_framework_then_its_class() {
    let check = |changes: &[(&str, &str)], class: &str, expect: &dyn Fn(&ResolvedRun) -> bool| {
        let run = resolved(changes);
        assert_eq!(run.stack.class, class, "{changes:?}");
        assert!(expect(&run), "{changes:?}: {:?}", run.switches);
    };
    let fused = |run: &ResolvedRun| run.switches.attention == ir::AttentionKernel::Fused;
    check(&[], "megatron", &|run| !fused(run) && run.switches.recipe.fused_softmax);
    check(&[("attn_kernel", "flash_attention2")], "megatron", &|run| fused(run) && run.switches.flash_version == 2);
    check(&[("recompute", "none")], "megatron", &|run| run.switches.recomputation == Recomputation::None);
    check(&[], "megatron", &|run| run.switches.recomputation == Recomputation::Full { layers: None });
    let h100 = [("gpu", "H100-SXM-80GB"), ("framework", "Megatron-LM")];
    check(&h100, "nvidia-te", &|run| fused(run) && run.switches.zero == ZeroStage::Zero1);
    let gaudi = [("gpu", "Gaudi2-96GB"), ("gpu_mem_gb", "96"), ("framework", "Megatron-DeepSpeed")];
    check(&gaudi, "habana", &|run| run.stack.generation == "gaudi2");
    let mi300x = [("gpu", "MI300X"), ("gpu_mem_gb", "192"), ("framework", "Megatron-LM")];
    check(&mi300x, "amd-megatron", &|run| run.switches.zero == ZeroStage::Zero1);
    check(&[("framework", "NeMo 24.07")], "nvidia-te", &|run| {
        run.stack.release.as_deref().is_some_and(|line| line.ends_with("24.07"))
    });
    check(&[("framework", "torchtitan")], "pytorch-fsdp", &|run| {
        run.switches.recomputation == Recomputation::PerOperation && run.switches.zero == ZeroStage::Zero3
    });
    check(&[("framework", "OpenRLHF on DeepSpeed")], "deepspeed", &|run| {
        run.assumed.iter().any(|note| note.starts_with("stack class"))
    });
    check(&[("framework", "My Own Trainer")], "generic", &|run| {
        run.assumed.iter().any(|note| note.contains("is not known"))
    });
    check(&[("framework", "")], "generic", &|run| run.assumed.iter().any(|note| note.contains("no framework")));
    let no_overlap = [("framework", "NeMo"), ("other_flags", "no comm overlap")];
    check(&no_overlap, "nvidia-te", &|run| !run.switches.overlap_tensor && !run.switches.overlap_gradients);
    let graphs = [("framework", "NeMo"), ("other_flags", "cuda_graph_impl=full_iteration")];
    check(&graphs, "nvidia-te", &|run| run.stack.graphs == GraphUse::Full && run.switches.recipe.cuda_graphs);
    // Half the bytes under FP16, where Megatron-LM does not force FP32 gradients.
    check(&[("precision", "FP16")], "megatron", &|run| run.switches.recipe.gradients == ir::GradientFormat::Half);
    check(&[("precision", "BF16")], "megatron", &|run| run.switches.recipe.gradients == ir::GradientFormat::Fp32);
}

#[test]
fn numbers_that_a_row_leaves_open_come_from_its_equals() {
    let open: &[(&str, &str)] = &[("micro_batch", "")];
    let closed: &[(&str, &str)] = &[("micro_batch", "4")];
    let rows = resolve_all(&[open, closed], UseFitted::Yes);
    let first = rows[0].as_ref().expect("sound");
    assert_eq!((first.microbatch, first.microbatches), (4, 8));
    assert!(first.assumed.iter().any(|note| note == "microbatch = 4, by row r1"), "{:?}", first.assumed);
    // Equals that disagree say nothing; the class does.
    let other: &[(&str, &str)] = &[("micro_batch", "8")];
    let rows = resolve_all(&[open, closed, other], UseFitted::Yes);
    assert_eq!(rows[0].as_ref().expect("sound").microbatch, 1);
    assert_eq!(resolved(&[("model", "Llama2-7B"), ("mlp_type", "swiglu"), ("ffn", "11008")]).vocabulary, 32000);
    assert_eq!(resolved(&[("model", "Llama-3.1-8B")]).vocabulary, 128_256);
    assert_eq!(resolved(&[]).vocabulary, 50_257);
    assert_eq!(resolved(&[("model", "Zephyrus-9B")]).family.name, "plain");
}

#[test]
fn numbers_found_on_a_table_do_not_predict_it_from_others() {
    let row: &[(&str, &str)] = &[("source_id", "aleph-layouts")];
    let rate = |fitted| {
        let run = resolve_all(&[row], fitted).pop().expect("a row").expect("sound");
        run.hardware.nic.bandwidth.get() * f64::from(run.hardware.nics) * 8e-9
    };
    assert!((rate(UseFitted::Yes) - 200.0).abs() < 1.0);
    assert!((rate(UseFitted::No) - 1600.0).abs() < 1.0);
}

#[test]
fn impossible_runs_are_refused() {
    let check = |changes: &[(&str, &str)], reason: Reason| {
        let refusal = resolve(changes).expect_err("a refusal");
        assert_eq!(refusal.reason(), reason, "{changes:?}: {refusal}");
    };
    check(&[("iteration_time_s", "0.05")], Reason::Implausible);
    check(&[("precision", "FP8")], Reason::NumberFormat);
    check(&[("gpu", "Cerebras WSE-2")], Reason::UnknownDevice);
}

#[test]
fn wrong_recipes_are_named() {
    let whole = EMBEDDED.1;
    let check = |from: &str, to: &str, words: &str| {
        assert!(whole.contains(from), "{from}");
        let problems = Recipes::from_toml(&whole.replacen(from, to, 1), "r.toml").expect_err("a refusal");
        assert!(problems.iter().any(|problem| problem.to_string().contains(words)), "{problems:?}");
    };
    check("sharded_loss = true\n", "sharded_los = true\n", "sharded_los");
    check("sharded_loss = true\n", "", "leaves open sharded_loss");
    check("class = \"nvidia-te\"", "class = \"nvidia\"", "no class `nvidia`");
    check("cdna3 = \"amd-megatron\"", "cdna3 = \"amd\"", "no class `amd`");
    check("[classes.generic]", "[classes.general]", "generic");
    check("vocabulary_divisor = 128", "vocabulary_divisor = 0", "count of zero");
    check("zero = 1", "zero = 4", "above 3");
    check("[frameworks.amp]", "[frameworks.amp", "");
    check("[families.gated]", "[famlies.gated]", "unknown key");
}

/// Rows resolved, and refused by reason.
#[test]
fn every_published_row_resolves_or_is_refused_by_name() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/published");
    let Ok(entries) = std::fs::read_dir(folder) else {
        crate::testing::skipped("../shared/data/published");
        return;
    };
    let mut paths: Vec<_> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let mut count: BTreeMap<String, usize> = BTreeMap::new();
    let catalog = Catalog::embedded();
    for path in paths {
        let file = path.file_name().expect("a file").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a readable table");
        let rows = measured_runs::read(&text, &file).expect("a table").rows;
        for row in Recipes::embedded().resolve_table(&rows, &catalog, UseFitted::No) {
            let word = match &row {
                Ok(run) => {
                    assert_eq!(
                        run.hardware.devices_per_node * run.hardware.nodes,
                        run.row.hardware.devices,
                        "{}",
                        run.row.row_id
                    );
                    let sequences =
                        u64::from(run.microbatch) * u64::from(run.microbatches) * u64::from(run.row.layout.data);
                    assert_eq!(sequences, run.row.batch.global, "{}", run.row.row_id);
                    assert!(run.stack.class != "generic", "{}: {:?}", run.row.row_id, run.assumed);
                    "resolved".to_owned()
                }
                Err(refusal) => refusal.reason().name().to_owned(),
            };
            *count.entry(word).or_default() += 1;
        }
    }
    let expect = [("contradiction", 12), ("hole", 10), ("no-measurement", 6), ("number-format", 3), ("resolved", 2129)];
    assert_eq!(count, expect.into_iter().map(|(word, rows)| (word.to_owned(), rows)).collect());
}
