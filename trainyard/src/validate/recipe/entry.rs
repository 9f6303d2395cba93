//! Entries of the catalog of recipes, as they are written.

use std::collections::BTreeMap;

use cost::GraphUse;
use formats::measured_runs::{AttentionKernel, MemoryKind, MemoryUnit};
use ir::{GradientFormat, LogitCopies, Problem, Recompute, SourceSpan};
use serde::Deserialize;

use super::{Family, Recipes};

/// One entry: of a class, a framework, a table or a release line. What it leaves open is left to the next.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Entry {
    /// Words of a framework's name: any of them for a class, all for a framework.
    #[serde(rename = "match")]
    pub(super) words: Vec<String>,
    pub(super) class: Option<String>,
    /// The class that stands for a class on other device generations, by the beginning of their names.
    pub(super) on: BTreeMap<String, String>,
    pub(super) release_prefix: Option<String>,
    pub(super) releases: Vec<Release>,
    /// Words of a row's `quality_flags`, and the release line that a row with them is of.
    pub(super) release_flags: BTreeMap<String, String>,
    pub(super) fitted: Fitted,
    pub(super) source: String,

    pub(super) attention: Option<KernelWord>,
    pub(super) fused_normalisation: Option<bool>,
    pub(super) fused_softmax: Option<bool>,
    pub(super) sharded_loss: Option<bool>,
    pub(super) fused_loss: Option<bool>,
    pub(super) logits: Option<LogitCopies>,
    pub(super) fused_activation: Option<bool>,
    pub(super) expandable_segments: Option<bool>,
    pub(super) gradients: Option<FormatWord>,
    pub(super) reduced_gradients: Option<FormatWord>,
    pub(super) early_stop_recompute: Option<bool>,
    pub(super) scattered_messages: Option<bool>,
    pub(super) deduplicated_dispatch: Option<bool>,
    pub(super) zero: Option<u32>,
    pub(super) sequence_parallel: Option<bool>,
    pub(super) recompute: Option<Recompute>,
    pub(super) overlap_gradients: Option<bool>,
    pub(super) overlap_parameters: Option<bool>,
    pub(super) overlap_tensor: Option<bool>,
    pub(super) overlap_experts: Option<bool>,
    pub(super) prefetch: Option<bool>,
    pub(super) graphs: Option<GraphUse>,
    pub(super) vocabulary_divisor: Option<u32>,
    pub(super) microbatch: Option<u32>,
    pub(super) chunks: Option<u32>,
    pub(super) memory_kind: Option<KindWord>,
    pub(super) memory_unit: Option<UnitWord>,
}

/// What changed with a release.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Release {
    /// The first release line that has it.
    pub(super) from: String,
    /// The device generation that has it; all if absent.
    pub(super) generation: Option<String>,
    pub(super) graphs: Option<GraphUse>,
}

/// Numbers found on a table's own rows.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub(super) struct Fitted {
    /// A device's share of its node's NICs.
    pub(super) nic_gbit_per_s_per_device: Option<f64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum KernelWord {
    #[serde(rename = "flash-2")]
    Flash2,
    #[serde(rename = "flash-1")]
    Flash1,
    #[serde(rename = "fused-softmax")]
    FusedSoftmax,
    #[serde(rename = "plain")]
    Plain,
}

impl From<KernelWord> for AttentionKernel {
    fn from(word: KernelWord) -> Self {
        match word {
            KernelWord::Flash2 => Self::Flash { version: 2 },
            KernelWord::Flash1 => Self::Flash { version: 1 },
            KernelWord::FusedSoftmax => Self::FusedSoftmax,
            KernelWord::Plain => Self::Plain,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum FormatWord {
    Fp32,
    Half,
    /// FP32 under BF16 and FP8, half under FP16.
    ByFormat,
}

impl FormatWord {
    pub(super) const fn under(self, precision: ir::Precision) -> GradientFormat {
        match (self, precision) {
            (Self::Fp32, _) | (_, ir::Precision::Fp32 | ir::Precision::Tf32) => GradientFormat::Fp32,
            (Self::Half, _) | (Self::ByFormat, ir::Precision::Fp16) => GradientFormat::Half,
            (Self::ByFormat, ir::Precision::Bf16 | ir::Precision::Fp8) => GradientFormat::Fp32,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum KindWord {
    Allocated,
    Reserved,
    Driver,
}

impl From<KindWord> for MemoryKind {
    fn from(word: KindWord) -> Self {
        match word {
            KindWord::Allocated => Self::Allocated,
            KindWord::Reserved => Self::Reserved,
            KindWord::Driver => Self::Driver,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
pub(super) enum UnitWord {
    #[serde(rename = "GB")]
    Gigabyte,
    #[serde(rename = "GiB")]
    Gibibyte,
}

impl From<UnitWord> for MemoryUnit {
    fn from(word: UnitWord) -> Self {
        match word {
            UnitWord::Gigabyte => Self::Gigabyte,
            UnitWord::Gibibyte => Self::Gibibyte,
        }
    }
}

impl Entry {
    /// Names of the switches that it leaves open.
    fn open(&self) -> Vec<&'static str> {
        let is_open = [
            ("attention", self.attention.is_none()),
            ("fused_normalisation", self.fused_normalisation.is_none()),
            ("fused_softmax", self.fused_softmax.is_none()),
            ("sharded_loss", self.sharded_loss.is_none()),
            ("fused_loss", self.fused_loss.is_none()),
            ("logits", self.logits.is_none()),
            ("fused_activation", self.fused_activation.is_none()),
            ("expandable_segments", self.expandable_segments.is_none()),
            ("gradients", self.gradients.is_none()),
            ("reduced_gradients", self.reduced_gradients.is_none()),
            ("early_stop_recompute", self.early_stop_recompute.is_none()),
            ("scattered_messages", self.scattered_messages.is_none()),
            ("deduplicated_dispatch", self.deduplicated_dispatch.is_none()),
            ("zero", self.zero.is_none()),
            ("sequence_parallel", self.sequence_parallel.is_none()),
            ("recompute", self.recompute.is_none()),
            ("overlap_gradients", self.overlap_gradients.is_none()),
            ("overlap_parameters", self.overlap_parameters.is_none()),
            ("overlap_tensor", self.overlap_tensor.is_none()),
            ("overlap_experts", self.overlap_experts.is_none()),
            ("prefetch", self.prefetch.is_none()),
            ("graphs", self.graphs.is_none()),
            ("vocabulary_divisor", self.vocabulary_divisor.is_none()),
            ("microbatch", self.microbatch.is_none()),
            ("chunks", self.chunks.is_none()),
            ("memory_kind", self.memory_kind.is_none()),
            ("memory_unit", self.memory_unit.is_none()),
        ];
        is_open.into_iter().filter(|(_, open)| *open).map(|(name, _)| name).collect()
    }
    fn values_problem(&self) -> Option<&'static str> {
        let zeros = [self.vocabulary_divisor, self.microbatch, self.chunks];
        let rate = self.fitted.nic_gbit_per_s_per_device;
        match () {
            () if self.source.is_empty() => Some("has no source"),
            () if self.zero.is_some_and(|stage| stage > 3) => Some("has a ZeRO stage above 3"),
            () if zeros.contains(&Some(0)) => Some("has a count of zero"),
            () if rate.is_some_and(|rate| !(rate.is_finite() && rate > 0.0)) => Some("has a rate that is none"),
            () => None,
        }
    }
}

/// Reads the four tables of a file of recipes, in their order.
pub(super) fn read(text: &str, file: &str) -> Result<Recipes, Vec<Problem>> {
    let span = |range| SourceSpan { file: file.to_owned(), range };
    let root: toml::Table = toml::from_str(text).map_err(|error| {
        let place = error.span().unwrap_or(0..text.len());
        vec![Problem::new("recipes", error.message().to_owned()).at(span(place))]
    })?;
    let mut problems = Vec::new();
    for key in root.keys().filter(|key| !["classes", "frameworks", "tables", "families"].contains(&key.as_str())) {
        let hint = crate::read::suggest(key, ["classes", "frameworks", "tables", "families"]);
        problems.push(Problem::new(key.clone(), "unknown key").hint(hint));
    }
    let recipes = Recipes {
        classes: entries(&root, "classes", &mut problems),
        frameworks: entries(&root, "frameworks", &mut problems),
        tables: entries(&root, "tables", &mut problems),
        families: entries(&root, "families", &mut problems)
            .into_iter()
            .map(|(name, family): (String, Family)| Family { name, ..family })
            .collect(),
    };
    check(&recipes, &mut problems);
    if problems.is_empty() {
        Ok(recipes)
    } else {
        Err(problems.into_iter().map(|p| p.at(span(0..text.len()))).collect())
    }
}

fn entries<T: serde::de::DeserializeOwned>(
    root: &toml::Table,
    key: &str,
    problems: &mut Vec<Problem>,
) -> Vec<(String, T)> {
    let Some(table) = root.get(key).and_then(toml::Value::as_table) else {
        problems.push(Problem::new(key, "is no table, or missing"));
        return Vec::new();
    };
    let mut read = Vec::new();
    for (name, value) in table {
        match value.clone().try_into::<T>() {
            Ok(entry) => read.push((name.clone(), entry)),
            Err(error) => problems.push(Problem::new(format!("{key}.{name}"), error.message().to_owned())),
        }
    }
    read
}

fn check(recipes: &Recipes, problems: &mut Vec<Problem>) {
    let Recipes { classes, frameworks, tables, families } = recipes;
    for (kind, list) in [("classes", classes), ("frameworks", frameworks), ("tables", tables)] {
        for (name, entry) in list {
            if let Some(message) = entry.values_problem() {
                problems.push(Problem::new(format!("{kind}.{name}"), message));
            }
            let class = entry.class.iter().chain(entry.on.values());
            for class in class.filter(|class| !classes.iter().any(|(name, _)| name == *class)) {
                let hint = crate::read::suggest(class, classes.iter().map(|(name, _)| name.as_str()));
                problems.push(Problem::new(format!("{kind}.{name}"), format!("no class `{class}`")).hint(hint));
            }
        }
    }
    for (name, entry) in classes {
        let open = entry.open();
        if !open.is_empty() {
            let message = format!("leaves open {}", open.join(", "));
            problems.push(Problem::new(format!("classes.{name}"), message).hint("a class decides every switch"));
        }
    }
    for (name, entry) in frameworks {
        if entry.class.is_none() || entry.words.is_empty() {
            problems.push(Problem::new(format!("frameworks.{name}"), "needs `match` and `class`"));
        }
    }
    if !classes.iter().any(|(name, _)| name == "generic") {
        problems.push(Problem::new("classes.generic", "is missing").hint("it stands in for frameworks of no class"));
    }
    for gated in [true, false] {
        if !families.iter().any(|family| family.gated == Some(gated)) {
            let message = format!("no family stands in for models with gated = {gated}");
            problems.push(Problem::new("families", message));
        }
    }
}
