//! What a row leaves open, from the catalog of recipes.

mod entry;
mod hardware;
mod resolve;
#[cfg(test)]
mod tests;

use cost::{GraphUse, StackKey};
use formats::measured_runs::{MeasuredRun, MemoryKind, MemoryUnit, Offload, Recomputation};
use ir::{NormKind, Precision, Problem, ZeroStage};
use serde::Deserialize;

pub use hardware::ResolvedHardware;

use entry::Entry;

/// The project's own recipes.
const EMBEDDED: (&str, &str) = ("catalog/recipes/recipes.toml", include_str!("../../../catalog/recipes/recipes.toml"));

/// The catalog of recipes: facts about software, published tables and model families, each with its source.
#[derive(Clone, PartialEq, Debug)]
pub struct Recipes {
    classes: Vec<(String, Entry)>,
    frameworks: Vec<(String, Entry)>,
    tables: Vec<(String, Entry)>,
    families: Vec<Family>,
}

/// Whether numbers count that were found on a table's own rows.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum UseFitted {
    /// They do: the fitted score.
    Yes,
    /// They do not: the table is predicted from others.
    No,
}

/// What models of one name have in common.
#[derive(Clone, PartialEq, Eq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// Its name in the catalog.
    #[serde(skip)]
    pub name: String,
    /// How names of its models begin, in lower case, letters and digits only. Empty: models of no known family.
    #[serde(rename = "match")]
    pub words: Vec<String>,
    /// For models of no known family: whether their feed-forward part is gated.
    pub gated: Option<bool>,
    /// Vocabulary before padding.
    pub vocabulary: u32,
    /// Kind of its norms.
    pub norm: NormKind,
    /// Whether its matrices have biases.
    pub biases: bool,
    /// Whether the head shares the embedding's weights.
    pub tied_head: bool,
    /// How positions are told.
    pub positions: PositionKind,
    /// Where this stands.
    pub source: String,
}

/// How a model tells positions.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum PositionKind {
    /// Rotations of queries and keys.
    Rope,
    /// A learned embedding.
    Learned,
    /// Neither: biases of scores, or nothing.
    None,
}

/// Every switch of a run, with a value.
#[derive(Clone, PartialEq, Debug)]
pub struct Switches {
    /// Number format of matrix products.
    pub precision: Precision,
    /// Whether scores of attention stay on chip.
    pub attention: ir::AttentionKernel,
    /// FlashAttention's major version where `attention` is fused.
    pub flash_version: u8,
    /// Switches that time and memory share.
    pub recipe: ir::Recipe,
    /// Sharding of training state.
    pub zero: ZeroStage,
    /// Replicas over which state is sharded; `None`: all.
    pub shard_group: Option<u32>,
    /// Whether norms and residuals are divided over the tensor group. False without tensor parallelism.
    pub sequence_parallel: bool,
    /// What is recomputed.
    pub recomputation: Recomputation,
    /// What is moved to the host.
    pub offload: Offload,
    /// Gradients are reduced beside the last backward passes.
    pub overlap_gradients: bool,
    /// Parameters are gathered beside the next iteration's forward passes.
    pub overlap_parameters: bool,
    /// Tensor-parallel collectives run beside the products around them.
    pub overlap_tensor: bool,
    /// Dispatch and combination of experts run beside other work.
    pub overlap_experts: bool,
    /// The next layer's parameters are gathered beside a layer's pass.
    pub prefetch: bool,
    /// Which part of an iteration is launched as graphs.
    pub graphs: GraphUse,
    /// The vocabulary is padded to a multiple of this times the tensor degree.
    pub vocabulary_divisor: u32,
}

/// What a memory figure counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MemoryFigure {
    /// Which memory.
    pub kind: MemoryKind,
    /// Unit of the printed value.
    pub unit: MemoryUnit,
}

/// A measured run with nothing left open.
#[derive(Clone, PartialEq, Debug)]
pub struct ResolvedRun {
    /// The row.
    pub row: MeasuredRun,
    /// Devices, nodes and links.
    pub hardware: ResolvedHardware,
    /// What models of its name have in common.
    pub family: Family,
    /// Vocabulary before padding.
    pub vocabulary: u32,
    /// Whether the head shares the embedding's weights.
    pub tied_head: bool,
    /// Sequences of a microbatch.
    pub microbatch: u32,
    /// Microbatches of a replica in an iteration.
    pub microbatches: u32,
    /// Chunks of a pipeline position.
    pub chunks: u32,
    /// Switches.
    pub switches: Switches,
    /// What a printed memory figure counts, or would.
    pub memory: MemoryFigure,
    /// What its software's constants are keyed by.
    pub stack: StackKey,
    /// What the row leaves open and was taken from the catalog, in words.
    pub assumed: Vec<String>,
}

impl ResolvedRun {
    /// The measured peak memory in bytes.
    #[must_use]
    pub fn measured_bytes(&self) -> Option<f64> {
        self.row.measured.memory.map(|memory| memory.value * self.memory.unit.bytes())
    }
}

impl Recipes {
    /// The project's own.
    ///
    /// # Panics
    /// If the embedded file is wrong, which a test excludes.
    #[must_use]
    pub fn embedded() -> &'static Self {
        static RECIPES: std::sync::OnceLock<Recipes> = std::sync::OnceLock::new();
        RECIPES.get_or_init(|| {
            let (file, text) = EMBEDDED;
            Self::from_toml(text, file).unwrap_or_else(|problems| panic!("{file} is wrong: {problems:?}"))
        })
    }
    /// Reads recipes from the text of a file.
    ///
    /// # Errors
    /// Every fault: what is no TOML, an unknown key, a class that leaves a switch open, a framework of no class, an entry
    /// without a source.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        entry::read(text, file)
    }
    /// Names of the stack classes, in order.
    #[must_use]
    pub fn classes(&self) -> Vec<&str> {
        self.classes.iter().map(|(name, _)| name.as_str()).collect()
    }
}
