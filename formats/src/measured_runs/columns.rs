//! The schema: the columns that a table may have.

use csv::StringRecord;
use ir::Problem;

/// Every column of the schema, in its order. A table may leave out all but [`REQUIRED`], and order them as it likes.
///
/// Counts are whole numbers. `*_gb` is gigabytes, `intra_bw_gbyte_s_per_gpu` both directions of one device's link
/// together in GB/s, `inter_bw_gbit_s_per_gpu` one direction of a device's share of its node's NICs in Gb/s,
/// `tokens_per_s_per_gpu` of one device, `samples_per_s` sequences of the whole job, `params_b` 10^9 parameters.
pub const COLUMNS: [&str; 79] = [
    "row_id",
    "source_id",
    "source_title",
    "source_ref",
    "source_commit",
    "place",
    "measured_by",
    "date",
    "gpu",
    "gpu_mem_gb",
    "gpus_per_node",
    "nodes",
    "gpus_total",
    "hetero_layout",
    "intra_link",
    "intra_bw_gbyte_s_per_gpu",
    "inter_link",
    "inter_bw_gbit_s_per_gpu",
    "hw_from",
    "model",
    "params_b",
    "layers",
    "hidden",
    "ffn",
    "heads",
    "kv_heads",
    "head_dim",
    "vocab",
    "mlp_type",
    "attn_type",
    "moe_experts",
    "moe_top_k",
    "moe_ffn",
    "moe_shared_experts",
    "moe_layers",
    "arch_from",
    "task",
    "precision",
    "seq_len",
    "global_batch",
    "micro_batch",
    "grad_accum",
    "tp",
    "pp",
    "vpp",
    "cp",
    "ep",
    "etp",
    "dp",
    "fsdp_shard",
    "sequence_parallel",
    "zero_stage",
    "recompute",
    "offload",
    "pp_schedule",
    "pp_layer_split",
    "attn_kernel",
    "other_flags",
    "framework",
    "framework_version",
    "iteration_time_s",
    "iteration_time_std_s",
    "tokens_per_s_per_gpu",
    "tflops_per_gpu",
    "tflops_formula",
    "mfu_pct",
    "hfu_pct",
    "samples_per_s",
    "bubble_rate",
    "memory_gb",
    "memory_kind",
    "derived_iteration_time_s",
    "derived_tokens_per_s_per_gpu",
    "model_tflops_recomputed_per_gpu",
    "peak_tflops_dense",
    "sanity",
    "completeness",
    "quality_flags",
    "notes",
];

/// Columns without which no row means anything.
pub const REQUIRED: [&str; 6] = ["row_id", "gpu", "gpus_total", "layers", "hidden", "seq_len"];

/// Which cell of a record belongs to which column of the schema.
#[derive(Clone, Debug)]
pub(super) struct Header {
    /// For each column of [`COLUMNS`], its place in a record.
    places: [Option<usize>; COLUMNS.len()],
    /// Cells of a record.
    pub(super) width: usize,
}

impl Header {
    pub(super) fn new(heading: &StringRecord) -> Result<Self, Vec<Problem>> {
        let (mut places, mut problems) = ([None; COLUMNS.len()], Vec::new());
        for (place, name) in heading.iter().enumerate() {
            let name = name.trim();
            match COLUMNS.iter().position(|column| *column == name) {
                Some(column) if places[column].is_some() => {
                    problems.push(Problem::new(name, "stands in the heading twice").hint("rename or drop one"));
                }
                Some(column) => places[column] = Some(place),
                None => problems.push(unknown(name)),
            }
        }
        for column in REQUIRED {
            if !heading.iter().any(|name| name.trim() == column) {
                problems.push(
                    Problem::new(column, "is a required column and missing")
                        .hint(format!("a table has at least the columns {}", REQUIRED.join(", "))),
                );
            }
        }
        if problems.is_empty() { Ok(Self { places, width: heading.len() }) } else { Err(problems) }
    }
    /// The cell of a column, trimmed; empty if the table has no such column or the record ends before it.
    ///
    /// # Panics
    /// If the schema has no such column.
    pub(super) fn cell<'r>(&self, record: &'r StringRecord, column: &str) -> &'r str {
        self.place(column).and_then(|place| record.get(place)).unwrap_or_default().trim()
    }
    /// Whether the table has the column.
    pub(super) fn has(&self, column: &str) -> bool {
        self.place(column).is_some()
    }
    fn place(&self, column: &str) -> Option<usize> {
        let index = COLUMNS.iter().position(|name| *name == column);
        self.places[index.unwrap_or_else(|| panic!("no column `{column}` in the schema"))]
    }
}

fn unknown(name: &str) -> Problem {
    let lower = name.to_lowercase();
    let nearest = COLUMNS
        .iter()
        .map(|column| (strsim::jaro_winkler(&lower, column), *column))
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .filter(|(likeness, _)| *likeness >= 0.75);
    let hint = match nearest {
        Some((_, column)) => format!("did you mean `{column}`?"),
        None => "drop it: the schema has no such fact".to_owned(),
    };
    let subject = if name.is_empty() { "heading" } else { name };
    Problem::new(subject, "is no column of the schema").hint(hint)
}
