//! What a software stack adds to the times of its kernels: plain data, looked up with declared fallbacks.
//!
//! A row is keyed by stack class, device generation, precision class, dense or routed model, CUDA graphs and release line,
//! never finer: a factor for a model or a table would be an answer, not a model. Where no row has the wanted key, the
//! median of those that share most of it stands in, and the interval widens by what the data says (how much those rows
//! differ among each other) and by a declared step. Dense and routed models never share a factor.

use ir::{Precision, Problem};
use serde::{Deserialize, Serialize};

mod cold;
mod resolve;
mod text;

pub use cold::ColdGroup;

/// Precision classes: number formats that share a factor.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize, Deserialize)]
pub enum PrecisionClass {
    /// 32-bit weights: FP32 and TF32.
    #[serde(rename = "fp32")]
    Single,
    /// FP16 and bfloat16.
    #[serde(rename = "16-bit")]
    Half,
    /// 8-bit matrix products, scaled by tensors or blocks.
    #[serde(rename = "fp8")]
    Quarter,
    /// 8-bit matrix products, scaled by rows: slower conversions. Nothing but a stack's key says so.
    #[serde(rename = "fp8-rowwise")]
    QuarterRowwise,
}

impl PrecisionClass {
    /// The class of a format.
    #[must_use]
    pub const fn of(precision: Precision) -> Self {
        match precision {
            Precision::Fp32 | Precision::Tf32 => Self::Single,
            Precision::Fp16 | Precision::Bf16 => Self::Half,
            Precision::Fp8 => Self::Quarter,
        }
    }
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Single => "fp32",
            Self::Half => "16-bit",
            Self::Quarter => "fp8",
            Self::QuarterRowwise => "fp8-rowwise",
        }
    }
}

/// How much of an iteration is launched as CUDA graphs.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum GraphUse {
    /// Nothing: the host launches each kernel.
    #[default]
    None,
    /// Some parts of a layer, such as attention or the router.
    Part,
    /// Whole iterations.
    Full,
}

impl GraphUse {
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Part => "part",
            Self::Full => "full",
        }
    }
}

/// What a stack's constants are keyed by.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct StackKey {
    /// Stack class, such as `megatron` or `pytorch-fsdp`.
    pub class: String,
    /// Device generation ([`crate::Calibration::generation`]).
    pub generation: String,
    /// Precision class.
    pub precision: PrecisionClass,
    /// Whether the model routes tokens to experts.
    pub experts: bool,
    /// CUDA graphs.
    pub graphs: GraphUse,
    /// Release line, such as `25.04`; `None` where it is not known.
    pub release: Option<String>,
}

/// What a stack adds. [`StackConstants::default`] adds nothing.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct StackConstants {
    /// Factor of time on the kernels of passes.
    pub compute_factor: f64,
    /// Factor of time on attention cores, beside the above (1/0.62 of FlashAttention-1 against 2).
    pub attention_factor: f64,
    /// Microseconds of the host for each kernel launch; `None`: the calibration's. Counts as zero under CUDA graphs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub launch_us: Option<f64>,
    /// Share of a launch-bound unit's idle device time in which collectives run that would otherwise be exposed: the
    /// device carries them out while the host enqueues.
    pub hidden_in_launches: f64,
    /// Microseconds by which each pass of a chunk is held up where stages exchange messages.
    pub message_sync_us: f64,
    /// Microseconds by which a layer's experts hold up each forward and each backward pass: the host waits for the counts of
    /// tokens, and the queue of the device runs empty.
    pub expert_sync_us: f64,
    /// Microseconds of each iteration beside its program.
    pub iteration_us: f64,
    /// Nanoseconds of the optimizer for each parameter that a rank steps, beside its kernel.
    pub optimizer_ns_per_parameter: f64,
    /// Share of the calibrated bandwidth between nodes that its exchanges reach.
    pub network_efficiency: f64,
    /// Share by which passes lengthen with each doubling of the nodes: everyone waits for the slowest.
    pub stragglers_per_doubling: f64,
}

impl Default for StackConstants {
    fn default() -> Self {
        Self {
            compute_factor: 1.0,
            attention_factor: 1.0,
            launch_us: None,
            hidden_in_launches: 0.0,
            message_sync_us: 0.0,
            expert_sync_us: 0.0,
            iteration_us: 0.0,
            optimizer_ns_per_parameter: 0.0,
            network_efficiency: 1.0,
            stragglers_per_doubling: 0.0,
        }
    }
}

/// One row of the catalog of stacks.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StackRow {
    /// Stack class.
    pub class: String,
    /// Device generation.
    pub generation: String,
    /// Precision class.
    pub precision: PrecisionClass,
    /// Whether of models that route tokens to experts.
    #[serde(default)]
    pub experts: bool,
    /// CUDA graphs.
    #[serde(default)]
    pub graphs: GraphUse,
    /// Release line.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub release: Option<String>,
    /// What it adds.
    pub constants: StackConstants,
    /// Standard deviation of the logarithm of prediction over measurement that remains on its own rows.
    pub spread: f64,
    /// Measured rows that it rests on, two or more.
    pub rows: u32,
    /// Tables that they come from.
    pub tables: Vec<String>,
    /// How it was fitted.
    pub source: String,
}

impl StackRow {
    /// Its key.
    #[must_use]
    pub fn key(&self) -> StackKey {
        StackKey {
            class: self.class.clone(),
            generation: self.generation.clone(),
            precision: self.precision,
            experts: self.experts,
            graphs: self.graphs,
            release: self.release.clone(),
        }
    }
}

/// What widens an interval beside the stack: standard deviations of logarithms, and one time.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct SpreadTerms {
    /// Of a device whose calibration declares none.
    pub undeclared_device: f64,
    /// Of a job whose time rests on assumed constants alone; in proportion to their share.
    pub assumed: f64,
    /// Of the share of its bandwidth that a link reaches; in proportion to exposed exchanges.
    pub exchanges: f64,
    /// Of the time for which experts hold up a pass; in proportion to it.
    pub expert_waits: f64,
    /// Microseconds of the host for each kernel launch that one host in twenty exceeds; 0: nothing is said of such hosts.
    pub slow_launch_us: f64,
}

impl SpreadTerms {
    /// What is left where a stack's constants were fitted to its own rows: nothing that hangs on the installation.
    #[must_use]
    pub const fn of_fitted(self) -> Self {
        Self { exchanges: 0.0, expert_waits: 0.0, slow_launch_us: 0.0, ..self }
    }
}

/// What each step away from the wanted key adds to the spread, in quadrature.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Widening {
    /// Another release line, or an unknown one.
    pub release: f64,
    /// With graphs for without, or the reverse.
    pub graphs: f64,
    /// Dense for routed models, or the reverse.
    pub experts: f64,
    /// Another precision class.
    pub precision: f64,
    /// Another device generation.
    pub generation: f64,
    /// Another stack class.
    pub class: f64,
    /// No row at all.
    pub unknown: f64,
}

/// The catalog of stacks.
#[derive(Clone, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Stacks {
    /// What widens an interval beside the stack.
    #[serde(default)]
    pub spread: SpreadTerms,
    /// What fallbacks add.
    #[serde(default)]
    pub widening: Widening,
    /// How long experts hold up each pass of a layer, by what is launched as graphs: [`StackConstants::expert_sync_us`].
    #[serde(default)]
    pub expert_sync: ExpertSync,
    /// What classes are declared to do.
    #[serde(default)]
    pub class: Vec<ClassRow>,
    /// How far predictions from other tables are off, by table and device generation.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cold: Vec<ColdGroup>,
    /// Rows, no two of one key.
    #[serde(default)]
    pub stack: Vec<StackRow>,
}

/// Microseconds by which a layer of experts holds up each pass.
#[derive(Clone, Copy, PartialEq, Debug, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct ExpertSync {
    /// Where the host launches each kernel.
    pub none_us: f64,
    /// With graphs of parts of a layer.
    pub part_us: f64,
    /// With graphs of whole iterations.
    pub full_us: f64,
}

impl ExpertSync {
    /// That of a use of graphs.
    #[must_use]
    pub const fn of(self, graphs: GraphUse) -> f64 {
        match graphs {
            GraphUse::None => self.none_us,
            GraphUse::Part => self.part_us,
            GraphUse::Full => self.full_us,
        }
    }
}

/// What a class of software is declared to do, whatever device it runs on. Fits start from it.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ClassRow {
    /// Stack class.
    pub class: String,
    /// What it adds.
    pub constants: StackConstants,
    /// Where that comes from.
    pub source: String,
}

/// A stack as resolved for one job: what [`crate::CostModel::with_stack`] takes.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Stack {
    /// What it adds.
    pub constants: StackConstants,
    /// Standard deviation of the logarithm of its times.
    pub spread: f64,
    /// What widens an interval beside the stack.
    pub terms: SpreadTerms,
    /// Measured rows that it rests on.
    pub rows: u32,
    /// Tables that they come from, by name.
    pub tables: Vec<String>,
    /// Every fallback that was taken, in sentences; empty where the catalog has just the wanted key.
    pub notes: Vec<String>,
}

impl Stacks {
    /// Reads a catalog's text; `file` names it in problems.
    ///
    /// # Errors
    /// Every fault of form or of value: unknown keys, wrong types, numbers out of range, two rows of one key, rows that rest
    /// on fewer than two measurements.
    pub fn from_toml(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        text::parse(text, file)
    }
    /// Its text.
    ///
    /// # Panics
    /// Never: every catalog has a text.
    #[must_use]
    pub fn to_toml(&self) -> String {
        toml::to_string(self).expect("a catalog of stacks is tables, arrays, numbers and texts")
    }
    /// The stack classes, by name.
    #[must_use]
    pub fn classes(&self) -> Vec<&str> {
        let mut classes: Vec<&str> = self.stack.iter().map(|row| row.class.as_str()).collect();
        classes.sort_unstable();
        classes.dedup();
        classes
    }
    /// The standard deviation of the logarithm of a time on a generation whose stack is not known; `None` in a catalog that
    /// does not know what tables were off by. See [`ColdGroup`].
    #[must_use]
    pub fn unknown_spread_on(&self, generation: &str) -> Option<f64> {
        cold::spread(&self.cold, generation)
    }
    /// Without every row that rests on a table, in part or in whole, and without what the table showed: what is known before
    /// the table is.
    #[must_use]
    pub fn without_table(&self, table: &str) -> Self {
        let rests = |row: &&StackRow| !row.tables.iter().any(|of| of == table);
        let cold = self.cold.iter().filter(|group| group.table != table).cloned().collect();
        Self { cold, stack: self.stack.iter().filter(rests).cloned().collect(), ..self.clone() }
    }
}
