//! A plan as the script that starts Megatron-LM with it.

use std::fmt::Write as _;

use ir::{Model, Plan, Problem, Workload};

use super::flags::{Flag, flags};

/// Titles of groups of options, and how the options of each begin; what begins otherwise stands in the last.
const GROUPS: [(&str, &[&str]); 4] = [
    (
        "MODEL_ARGS",
        &[
            "--num-layers",
            "--hidden-size",
            "--num-attention-heads",
            "--group-query",
            "--num-query",
            "--kv-",
            "--ffn-",
            "--vocab-",
            "--normalization",
            "--norm-",
            "--position-",
            "--rotary-",
            "--max-position",
            "--swiglu",
            "--disable-bias",
            "--add-qkv",
            "--untie",
            "--qk-",
            "--v-head",
            "--q-lora",
            "--multi-latent",
            "--window",
            "--num-experts",
            "--moe-",
        ],
    ),
    (
        "PARALLEL_ARGS",
        &[
            "--tensor-model",
            "--pipeline-model",
            "--num-virtual",
            "--num-layers-per",
            "--sequence-parallel",
            "--context-",
            "--cp-",
            "--expert-",
            "--decoder-",
            "--use-distributed-optimizer",
            "--use-megatron-fsdp",
            "--data-parallel",
            "--num-distributed",
            "--overlap-",
            "--tp-comm",
            "--optimizer-cpu",
            "--cpu-offloading",
            "--recompute-",
        ],
    ),
    ("TRAINING_ARGS", &[]),
    ("DATA_ARGS", &["--mock-data", "--tokenizer"]),
];

/// The script that starts training on nodes of `per_node` devices: `torchrun` with arrays of options. Data and tokenizer
/// stand in an array that the person fills; until then the data are made up. [`super::read`] reads it back.
///
/// # Errors
/// Everything that Megatron-LM has no option for, by name; ranks that do not fill nodes.
pub fn script(model: &Model, workload: &Workload, plan: &Plan, per_node: u32) -> Result<String, Vec<Problem>> {
    let nodes = nodes(plan, per_node);
    let flags = match (flags(model, workload, plan), &nodes) {
        (Ok(flags), Ok(_)) => flags,
        (flags, nodes) => {
            let more = nodes.as_ref().err().cloned();
            return Err(flags.err().into_iter().flatten().chain(more).collect());
        }
    };
    let (nodes, processes) = nodes.unwrap_or_default();
    let mut out = String::from("#!/bin/bash\nset -euo pipefail\n");
    let _ = writeln!(out, "# {} ranks, tensor fastest, then context, data and pipeline.\n", plan.world());
    out.push_str("export CUDA_DEVICE_MAX_CONNECTIONS=1\n\nDISTRIBUTED_ARGS=(\n");
    let _ = write!(out, "    --nproc_per_node {processes}\n    --nnodes {nodes}\n");
    if nodes > 1 {
        out.push_str(
            "    --node_rank ${NODE_RANK:-0}\n    --master_addr ${MASTER_ADDR:-localhost}\n    --master_port ${MASTER_PORT:-6000}\n",
        );
    }
    out.push_str(")\n");
    // Until the person names a corpus and its tokenizer.
    let placeholder = [("--mock-data", None), ("--tokenizer-type", Some("NullTokenizer"))];
    let placeholder = placeholder.map(|(name, value)| Flag { name: name.to_owned(), value: value.map(str::to_owned) });
    for (group, _) in GROUPS {
        let _ = write!(out, "\n{group}=(\n");
        for flag in flags.iter().chain(&placeholder).filter(|flag| group_of(&flag.name) == group) {
            let quoted = flag.value.as_ref().filter(|value| value.contains(['(', '[', '*', ' ', '|']));
            let _ = match quoted {
                Some(value) => writeln!(out, "    {} '{value}'", flag.name),
                None => writeln!(out, "    {flag}"),
            };
        }
        out.push_str(")\n");
    }
    out.push_str("\ntorchrun \"${DISTRIBUTED_ARGS[@]}\" pretrain_gpt.py");
    for (group, _) in GROUPS {
        let _ = write!(out, " \\\n    \"${{{group}[@]}}\"");
    }
    out.push('\n');
    Ok(out)
}

fn group_of(name: &str) -> &'static str {
    let found = GROUPS.iter().find(|(_, beginnings)| beginnings.iter().any(|beginning| name.starts_with(beginning)));
    found.map_or("TRAINING_ARGS", |(group, _)| group)
}

/// Nodes, and processes on each.
fn nodes(plan: &Plan, per_node: u32) -> Result<(u64, u64), Problem> {
    let (world, per_node) = (plan.world(), u64::from(per_node.max(1)));
    if world < per_node {
        return Ok((1, world));
    }
    if world.is_multiple_of(per_node) {
        return Ok((world / per_node, per_node));
    }
    let message = format!("{world} ranks do not fill nodes of {per_node} devices");
    let (below, above) = (world / per_node * per_node, world.next_multiple_of(per_node));
    Err(Problem::new("plan", message)
        .hint(format!("{below} or {above} ranks do: torchrun starts equally many on each node")))
}
