//! Rows of every kind of fault, every published table, and damaged ones.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use super::*;

const HEADING: &str = "row_id,gpu,gpu_mem_gb,gpus_per_node,nodes,gpus_total,model,params_b,layers,hidden,ffn,heads,\
    kv_heads,mlp_type,task,precision,seq_len,global_batch,micro_batch,grad_accum,tp,pp,vpp,cp,dp,iteration_time_s,\
    tokens_per_s_per_gpu,samples_per_s,tflops_per_gpu,memory_gb,memory_kind,peak_tflops_dense,moe_experts,moe_top_k,\
    moe_ffn,attn_type,hetero_layout,recompute,quality_flags,attn_kernel,zero_stage,pp_schedule";

/// A sound row, with some cells replaced.
fn row(changes: &[(&str, &str)]) -> String {
    let sound = [
        ("row_id", "r-1"),
        ("gpu", "A100-SXM-80GB"),
        ("gpu_mem_gb", "80"),
        ("gpus_per_node", "8"),
        ("nodes", "2"),
        ("gpus_total", "16"),
        ("model", "GPT-1.3B"),
        ("params_b", "1.3"),
        ("layers", "24"),
        ("hidden", "2048"),
        ("ffn", "8192"),
        ("heads", "16"),
        ("kv_heads", "16"),
        ("mlp_type", "gelu"),
        ("task", "pretrain"),
        ("precision", "BF16"),
        ("seq_len", "2048"),
        ("global_batch", "64"),
        ("micro_batch", "2"),
        ("grad_accum", "8"),
        ("tp", "2"),
        ("pp", "2"),
        ("vpp", "1"),
        ("cp", "1"),
        ("dp", "4"),
        ("iteration_time_s", "0.5"),
        ("peak_tflops_dense", "312"),
    ];
    let cell = |column: &str| {
        let find = |list: &[(&str, &str)]| list.iter().find(|(name, _)| *name == column).map(|(_, v)| (*v).to_owned());
        find(changes).or_else(|| find(&sound)).unwrap_or_default()
    };
    let columns = HEADING.split(',').map(str::trim);
    let cells: Vec<String> = columns.map(|column| format!("\"{}\"", cell(column))).collect();
    format!("{HEADING}\n{}\n", cells.join(","))
}

fn one(changes: &[(&str, &str)]) -> Result<MeasuredRun, Refusal> {
    let mut table = read(&row(changes), "t.csv").expect("a table");
    table.rows.pop().expect("a row")
}

fn refused(changes: &[(&str, &str)], reason: Reason, words: &str) {
    let refusal = one(changes).expect_err("a refusal");
    assert_eq!(refusal.reason(), reason, "{changes:?}: {refusal}");
    assert!(refusal.to_string().contains(words), "{changes:?}: {refusal}");
    assert_eq!(refusal.line, 2, "{changes:?}");
}

#[test]
fn a_sound_row_is_read() {
    let run = one(&[]).expect("a sound row");
    assert_eq!((run.layout.tensor, run.layout.pipeline, run.layout.data), (2, 2, 4));
    assert_eq!(run.batch, Batch { global: 64, microbatch: Some(2), microbatches: Some(8) });
    assert_eq!(run.measured.step, Some(MeasuredStep { seconds: 0.5, basis: StepBasis::Printed }));
    assert!(run.resolved.is_empty(), "{:?}", run.resolved);
}

#[test]
fn one_missing_number_is_computed() {
    let check = |changes: &[(&str, &str)], note: &str| {
        let run = one(changes).unwrap_or_else(|refusal| panic!("{changes:?}: {refusal}"));
        let whole = one(&[]).expect("a sound row");
        assert_eq!((&run.batch, &run.hardware, &run.layout), (&whole.batch, &whole.hardware, &whole.layout));
        assert_eq!(run.resolved.len(), 1, "{changes:?}: {:?}", run.resolved);
        assert!(run.resolved[0].contains(note), "{changes:?}: {:?}", run.resolved);
    };
    check(&[("grad_accum", "")], "grad_accum = 8");
    check(&[("micro_batch", "")], "micro_batch = 2");
    check(&[("global_batch", "")], "global_batch = 64");
    check(&[("dp", "")], "dp = 4");
    check(&[("tp", "")], "tp = 2");
    check(&[("nodes", "")], "nodes = 2");
    check(&[("gpus_per_node", "")], "gpus_per_node = 8");
    check(&[("mlp_type", "")], "2 matrices");
}

#[test]
fn what_arithmetic_cannot_fill_is_a_hole() {
    refused(&[("global_batch", ""), ("grad_accum", "")], Reason::Hole, "global_batch");
    refused(&[("dp", ""), ("tp", "")], Reason::Hole, "tp and dp");
    refused(&[("layers", "")], Reason::Hole, "layers");
    refused(&[("hidden", "")], Reason::Hole, "hidden");
    refused(&[("ffn", "")], Reason::Hole, "ffn");
    refused(&[("precision", "")], Reason::Hole, "precision");
    refused(&[("moe_top_k", "2")], Reason::Hole, "moe_experts");
    refused(&[("iteration_time_s", "")], Reason::NoMeasurement, "neither");
    refused(&[("iteration_time_s", ""), ("tflops_per_gpu", "150")], Reason::NoMeasurement, "formula");
    // A microbatch and its count may both be open: that is for the recipe of the software to say.
    let run = one(&[("micro_batch", ""), ("grad_accum", "")]).expect("a sound row");
    assert_eq!(run.batch, Batch { global: 64, microbatch: None, microbatches: None });
}

#[test]
fn contradictions_are_refused() {
    refused(&[("nodes", "3")], Reason::Contradiction, "nodes * gpus_per_node = 3 * 8 = 24");
    refused(&[("pp", "4")], Reason::Contradiction, "tp * pp * cp * dp = 32");
    refused(&[("grad_accum", "4")], Reason::Contradiction, "2 * 4 * 4 = 32");
    refused(&[("grad_accum", ""), ("micro_batch", "3")], Reason::Contradiction, "no multiple");
    refused(&[("params_b", "13")], Reason::Contradiction, "13 billion are stated");
    refused(&[("memory_gb", "95")], Reason::Contradiction, "device that holds 80 GB");
    // 64 * 2048 tokens in 0.5 s on 16 devices are 16384 tokens/s each; 8192 is half of that.
    refused(&[("tokens_per_s_per_gpu", "8192")], Reason::Contradiction, "differ by more than 2 %");
    // The part of one node that is used is no contradiction.
    let part =
        one(&[("nodes", "1"), ("gpus_per_node", "16"), ("gpus_total", "8"), ("dp", "2"), ("global_batch", "32")]);
    assert_eq!(part.expect("a part of a node").hardware.devices, 8);
}

#[test]
fn figures_of_one_time_agree_within_their_digits() {
    let seconds = |changes: &[(&str, &str)]| {
        let run = one(changes).unwrap_or_else(|refusal| panic!("{changes:?}: {refusal}"));
        let step = run.measured.step.expect("a time");
        (step.seconds, step.basis, run.resolved.len())
    };
    assert_eq!(seconds(&[("tokens_per_s_per_gpu", "16384")]), (0.5, StepBasis::Printed, 0));
    // 1.4 sequences a second are printed as 1, and 0.4 as 0: tables round, and some cut.
    let rounded = [("iteration_time_s", ""), ("tokens_per_s_per_gpu", "179.2"), ("samples_per_s", "1")];
    let (time, basis, notes) = seconds(&rounded);
    assert!((time - 64.0 / 1.4).abs() < 1e-6 && basis == StepBasis::Tokens && notes == 0, "{time}");
    let (time, ..) = seconds(&[("iteration_time_s", ""), ("tokens_per_s_per_gpu", "51.2"), ("samples_per_s", "0")]);
    assert!((time - 64.0 / 0.4).abs() < 1e-6, "{time}");
    refused(&[("iteration_time_s", ""), ("samples_per_s", "0")], Reason::OutOfRange, "no other figure");
    // Two against one.
    let two = [("tokens_per_s_per_gpu", "8192"), ("samples_per_s", "128.0")];
    assert_eq!(seconds(&two), (0.5, StepBasis::Printed, 1));
    // A rate of operations decides: 6 * 1.2e9 * 8192 tokens / 0.5 s are about 119 TFLOP/s.
    let rate = [("tokens_per_s_per_gpu", "8192"), ("tflops_per_gpu", "130")];
    assert_eq!(seconds(&rate), (0.5, StepBasis::Printed, 1));
    let rate = [("tokens_per_s_per_gpu", "8192"), ("tflops_per_gpu", "65")];
    assert_eq!(seconds(&rate), (1.0, StepBasis::Tokens, 1));
}

#[test]
fn numbers_that_are_none_are_refused() {
    refused(&[("iteration_time_s", "500ms")], Reason::NotANumber, "carries `ms`");
    refused(&[("gpu_mem_gb", "80GB")], Reason::NotANumber, "carries `GB`");
    refused(&[("hidden", "two")], Reason::NotANumber, "no number");
    refused(&[("layers", "24.5")], Reason::NotANumber, "whole");
    refused(&[("iteration_time_s", "NaN")], Reason::OutOfRange, "positive finite");
    refused(&[("iteration_time_s", "-1")], Reason::OutOfRange, "positive finite");
    refused(&[("iteration_time_s", "0")], Reason::OutOfRange, "is zero");
    refused(&[("tp", "0")], Reason::OutOfRange, "positive finite");
    refused(&[("seq_len", "1e30")], Reason::OutOfRange, "beyond");
    refused(&[("iteration_time_s", "0.0005")], Reason::Implausible, "more than its dense peak");
    refused(&[("iteration_time_s", "5000")], Reason::Implausible, "milliseconds");
}

#[test]
fn what_is_not_modelled_is_refused_by_name() {
    refused(&[("task", "lora")], Reason::OtherTask, "adapter");
    refused(&[("task", "dpo")], Reason::OtherTask, "dpo");
    refused(&[("task", "vision pretraining")], Reason::OtherTask, "vision");
    assert_eq!(one(&[("task", "SFT (packed)")]).expect("full fine-tuning").task, Task::FullFineTuning);
    assert_eq!(one(&[("vpp", "NA")]).expect("a number that is not there").layout.chunks, None);
    refused(&[("precision", "NVFP4")], Reason::NumberFormat, "NVFP4");
    refused(&[("precision", "FP8 or NVFP4")], Reason::NumberFormat, "leaves open");
    refused(&[("precision", "MXFP4")], Reason::NumberFormat, "MXFP4");
    refused(&[("model", "Qwen2.5-VL-7B")], Reason::OtherModel, "pictures");
    refused(&[("model", "FLUX 12B")], Reason::OtherModel, "diffusion");
    refused(&[("attn_type", "hyena")], Reason::OtherModel, "hyena");
    refused(&[("hetero_layout", "3 x T4 + 1 x V100")], Reason::MixedParts, "unlike");
    refused(&[("gpu", "T4-16GB+V100")], Reason::MixedParts, "several kinds");
    refused(&[("recompute", "sometimes")], Reason::UnknownWord, "sometimes");
    refused(&[("attn_kernel", "magic")], Reason::UnknownWord, "magic");
    refused(&[("quality_flags", "duplicate_of_x")], Reason::Duplicate, "duplicate_of_x");
    // What is outside of the model is named first, whatever else is missing.
    refused(&[("task", "lora"), ("layers", "")], Reason::OtherTask, "layers");
}

#[test]
fn words_are_read_as_they_are_written() {
    let layout = |changes: &[(&str, &str)]| one(changes).unwrap_or_else(|refusal| panic!("{refusal}")).layout;
    let recompute = |text: &str| layout(&[("recompute", text)]).recomputation;
    assert_eq!(recompute("full (every layer)"), Some(Recomputation::Full { layers: None }));
    assert_eq!(recompute("selective (attention core)"), Some(Recomputation::AttentionCore));
    assert_eq!(recompute("selective (per-op SAC)"), Some(Recomputation::PerOperation));
    assert_eq!(recompute("none set in preset (recipe default applies)"), None);
    assert_eq!(recompute("none (7B) / selective (larger) per README"), Some(Recomputation::None));
    assert_eq!(recompute("modules:mla_up_proj"), Some(Recomputation::Modules(vec!["mla_up_proj".into()])));
    let zero = |text: &str| layout(&[("zero_stage", text)]);
    assert_eq!(zero("3 (FSDP, shard 2)").zero, Some(3));
    assert_eq!(zero("3 (FSDP, shard 2)").shard_group, Some(2));
    assert_eq!(zero("1 (shard group all DP)").shard_group, None);
    assert_eq!(zero("ZeRO (stage per ds_config in section)").zero, None);
    let format = |text: &str| one(&[("precision", text)]).expect("a format").format;
    assert_eq!(format("FP16 (AMP)"), NumberFormat::Fp16);
    assert_eq!(format("MXFP8"), NumberFormat::Fp8(Fp8Scaling::Microscaling));
    assert_eq!(format("FP8-CS"), NumberFormat::Fp8(Fp8Scaling::Tensor));
    let kernel = |text: &str| one(&[("attn_kernel", text)]).expect("a kernel").software;
    assert_eq!(kernel("flash_attentionv1.0.8").attention, Some(AttentionKernel::Flash { version: 1 }));
    assert_eq!(kernel("flash_attention2 + RMS kernel").attention, Some(AttentionKernel::Flash { version: 2 }));
    assert_eq!(kernel("flash_attention2 + RMS kernel").fused_norms, Some(true));
    let moe = one(&[
        ("model", "Qwen3-30B-A3B"),
        ("params_b", ""),
        ("moe_experts", "8"),
        ("moe_top_k", "2"),
        ("moe_ffn", "768"),
        ("ffn", ""),
    ]);
    // Without a column for the expert degree it is not known.
    assert_eq!(moe.expect_err("no ep").faults[0].column, "ep");
}

/// What other authors write for the same things.
#[test]
fn other_spellings_are_read() {
    let row = |changes: &[(&str, &str)]| one(changes).unwrap_or_else(|refusal| panic!("{refusal}"));
    for text in ["off", "No", "no recompute", "without", "disabled"] {
        assert_eq!(row(&[("recompute", text)]).layout.recomputation, Some(Recomputation::None), "{text}");
    }
    for text in ["on", "True", "gradient checkpointing", "activation checkpointing", "uniform"] {
        let full = Some(Recomputation::Full { layers: None });
        assert_eq!(row(&[("recompute", text)]).layout.recomputation, full, "{text}");
    }
    for (text, stage) in [
        ("stage 2", 2),
        ("ZeRO_3", 3),
        ("zero-1", 1),
        ("DeepSpeed ZeRO stage 3", 3),
        ("FULL_SHARD", 3),
        ("SHARD_GRAD_OP", 2),
        ("NO_SHARD", 0),
        ("distributed optimizer", 1),
        ("FSDP2", 3),
        ("off", 0),
    ] {
        assert_eq!(row(&[("zero_stage", text)]).layout.zero, Some(stage), "{text}");
    }
    for text in ["DAPPLE", "PipeDream-Flush", "1F1B", "non-interleaved"] {
        let schedule = row(&[("pp_schedule", text)]).layout.schedule;
        assert_eq!(schedule, Some(ScheduleName::OneForwardOneBackward), "{text}");
    }
    for text in ["grouped-query", "multi-head attention", "Grouped Query Attention (rotary)", "self-attention"] {
        assert_eq!(row(&[("attn_type", text)]).model.attention, AttentionForm::Plain, "{text}");
    }
    assert_eq!(row(&[("mlp_type", "gelu_new")]).model.activation, Activation::Gelu);
    for (text, kernel) in [
        ("FA3", Some(AttentionKernel::Flash { version: 2 })),
        ("FA1", Some(AttentionKernel::Flash { version: 1 })),
        ("FusedAttention", Some(AttentionKernel::Flash { version: 2 })),
        ("naive", Some(AttentionKernel::Plain)),
        // Nobody knows: left to the recipe.
        ("unknown", None),
        ("N/A", None),
    ] {
        assert_eq!(row(&[("attn_kernel", text)]).software.attention, kernel, "{text}");
    }
    assert_eq!(row(&[("task", "LLM training benchmark")]).task, Task::Pretraining);
    // Without positions nobody asks in which order their passes run; with some it must be understood.
    let one_position: &[(&str, &str)] = &[("pp", "1"), ("dp", "8"), ("grad_accum", "4"), ("pp_schedule", "whirl")];
    assert_eq!(row(one_position).layout.schedule, None);
    refused(&[("pp_schedule", "whirl")], Reason::UnknownWord, "whirl");
}

#[test]
fn a_file_that_is_no_table_is_refused_whole() {
    let check = |text: &str, subject: &str, words: &str| {
        let problems = read(text, "t.csv").expect_err("a refusal");
        let found = problems.iter().any(|p| p.subject == subject && p.to_string().contains(words));
        assert!(found, "{text:?}: {problems:?}");
    };
    check("", "row_id", "required");
    check("row_id,gpu,gpus_total,layers,hidden,seq_len,iteration_times\n", "iteration_times", "`iteration_time_s`");
    check("row_id,gpu,gpus_total,layers,hidden,seq_len,zzz\n", "zzz", "no such fact");
    check("row_id,gpu,gpus_total,layers,hidden,seq_len,gpu\n", "gpu", "twice");
    check("row_id,gpu\n", "layers", "required");
    let twice = row(&[]) + row(&[]).lines().nth(1).expect("a row") + "\n" + "\"r-2\",\"A100\"\n";
    let rows = read(&twice, "t.csv").expect("a table").rows;
    assert_eq!(rows[1].as_ref().expect_err("repeated").reason(), Reason::Duplicate);
    assert_eq!(rows[2].as_ref().expect_err("short").reason(), Reason::Malformed);
    assert_eq!(rows[2].as_ref().expect_err("short").line, 4);
}

/// The published tables beside the checkout, if they are there.
fn published() -> Option<Vec<(String, String)>> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/published");
    let entries = std::fs::read_dir(folder).ok()?;
    let mut paths: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    paths.sort();
    let csv = paths.into_iter().filter(|path| path.extension().is_some_and(|extension| extension == "csv"));
    let text = |path: PathBuf| {
        let name = path.file_name().expect("a file").to_string_lossy().into_owned();
        (name, std::fs::read_to_string(path).expect("a readable table"))
    };
    Some(csv.map(text).collect())
}

/// Rows, those with a step time, with a memory figure, out of memory, and refused by reason.
fn census(table: &MeasuredTable) -> String {
    let read: Vec<&MeasuredRun> = table.rows.iter().flatten().collect();
    let count = |wanted: &dyn Fn(&MeasuredRun) -> bool| read.iter().filter(|run| wanted(run)).count();
    let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
    for refusal in table.rows.iter().filter_map(|row| row.as_ref().err()) {
        *reasons.entry(refusal.reason().name()).or_default() += 1;
    }
    let mut line = format!(
        "{}: {} rows, {} timed, {} with memory, {} out of memory",
        table.file,
        table.rows.len(),
        count(&|run| run.measured.step.is_some()),
        count(&|run| run.measured.memory.is_some()),
        count(&|run| run.measured.out_of_memory),
    );
    for (reason, rows) in reasons {
        line += &format!(", {rows} {reason}");
    }
    line
}

const CENSUS: &str = include_str!("tests/published.txt");

#[test]
fn every_published_row_is_read_or_refused_by_name() {
    let Some(tables) = published() else {
        crate::testing::skipped(std::path::Path::new("../shared/data/published"));
        return;
    };
    let mut found = String::new();
    for (name, text) in &tables {
        let table = read(text, name).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        assert_eq!(table.rows.len(), text.lines().count() - 1, "{name}: one row a line");
        found += &(census(&table) + "\n");
        let compacted = compact(text, name).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        let again = read(&compacted, name).unwrap_or_else(|problems| panic!("{name}: {problems:?}"));
        let kept: Vec<MeasuredRun> = table.rows.into_iter().flatten().collect();
        assert_eq!(again.rows.len(), kept.len(), "{name}");
        for (run, kept) in again.rows.into_iter().zip(kept) {
            let run = run.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
            assert_eq!(MeasuredRun { line: kept.line, ..run }, kept, "{name}: {}", kept.row_id);
        }
    }
    assert_eq!(found, CENSUS, "\n{found}");
}

/// A deterministic stream of numbers (splitmix64).
struct Numbers(u64);

impl Numbers {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        usize::try_from((z ^ (z >> 31)) % (end as u64)).expect("below end")
    }
}

#[test]
fn damaged_tables_never_panic() {
    const CELLS: [&str; 16] = [
        "",
        "0",
        "-1",
        "1",
        "NaN",
        "inf",
        "1e400",
        "1e-400",
        "4294967297",
        "\"",
        "\u{e9}\u{0}",
        "[0, 5]",
        "[",
        "MLA(",
        "a/b;c",
        "99999999999999999999",
    ];
    let mut numbers = Numbers(7);
    let base: Vec<String> = published().map_or_else(
        || vec![row(&[])],
        |tables| {
            tables.into_iter().map(|(_, text)| text.lines().take(6).map(|l| l.to_owned() + "\n").collect()).collect()
        },
    );
    for round in 0..4000 {
        let mut text = base[round % base.len()].clone();
        for _ in 0..1 + numbers.below(3) {
            let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
            let first = usize::from(numbers.below(8) != 0).min(lines.len() - 1);
            let line = first + numbers.below(lines.len() - first);
            let mut cells: Vec<&str> = lines[line].split(',').collect();
            let cell = numbers.below(cells.len());
            match numbers.below(4) {
                0 => drop(cells.remove(cell)),
                1 => cells.insert(cell, CELLS[numbers.below(CELLS.len())]),
                _ => cells[cell] = CELLS[numbers.below(CELLS.len())],
            }
            lines[line] = cells.join(",");
            text = lines.join("\n") + "\n";
        }
        if let Ok(table) = read(&text, "damaged.csv") {
            for row in &table.rows {
                match row {
                    Ok(run) => {
                        assert!(run.measured.step.is_none_or(|step| step.seconds > 0.0 && step.seconds.is_finite()))
                    }
                    Err(refusal) => assert!(!refusal.faults.is_empty() && !refusal.to_string().is_empty()),
                }
            }
            compact(&text, "damaged.csv").expect("what reads compacts");
        }
    }
}
