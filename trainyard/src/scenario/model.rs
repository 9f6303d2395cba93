//! `[model]`: a name of the catalog, a Hugging Face `config.json`, or every size written out.

use std::path::Path;

use ir::{MlpKind, Model, NormKind, Positions};

use super::Sight;
use crate::catalog::Catalog;
use crate::read::{Table, suggest};

const NORMS: [(&str, NormKind); 2] = [("rms-norm", NormKind::RmsNorm), ("layer-norm", NormKind::LayerNorm)];
const MLPS: [(&str, MlpKind); 2] = [("swi-glu", MlpKind::SwiGlu), ("gelu", MlpKind::Gelu)];
/// More layers than any model has; the bound keeps sizes inside 64 bits.
const MOST_LAYERS: u64 = 100_000;
/// Wider than any model; the bound keeps sizes inside 64 bits.
const WIDEST: u64 = 1 << 24;

/// Reads `[model]`.
pub(super) fn read(root: &Table<'_>, catalog: &Catalog, sight: &Sight<'_>) -> Option<Model> {
    let value = root.require("model", "{ name = \"llama-3.1-8b\" }")?;
    if let Some(name) = value.as_text() {
        return by_name(name, catalog, &value);
    }
    let table = value.table()?;
    let name = table.get("name");
    let config = table.get("config");
    let model = match (&name, &config) {
        (_, Some(config)) => {
            let model = from_config(Path::new(config.text()?), config, sight);
            match name.as_ref().and_then(|n| n.text()) {
                Some(name) => model.map(|m| Model { name: name.to_owned(), ..m }),
                None => model,
            }
        }
        (Some(name), None) if table.has("hidden") => written_out(&table, name.text()?.to_owned()),
        (Some(name), None) => by_name(name.text()?, catalog, name),
        (None, None) if table.has("hidden") => written_out(&table, "unnamed".to_owned()),
        (None, None) => {
            table.require("name", "\"llama-3.1-8b\"");
            None
        }
    };
    table.finish();
    model
}

fn by_name(name: &str, catalog: &Catalog, value: &crate::read::Value<'_>) -> Option<Model> {
    let found = catalog.model(name).cloned();
    if found.is_none() {
        let hint = suggest(name, catalog.models.iter().map(|m| m.name.as_str()));
        value.problem(format!("there is no model `{name}` in the catalog"), Some(hint));
    }
    found
}

fn from_config(path: &Path, value: &crate::read::Value<'_>, sight: &Sight<'_>) -> Option<Model> {
    let (file, text) = sight.read(path, value)?;
    formats::hugging_face::read(&text, &file)
        .inspect_err(|problems| problems.iter().for_each(|problem| sight.report(problem.clone())))
        .ok()
}

/// Reads every size of a model from its table; the caller asks for `name` or `source` and finishes the table.
pub(crate) fn written_out(table: &Table<'_>, name: String) -> Option<Model> {
    let size = |key, example: &str| {
        let value = table.require(key, example)?;
        value.integer(1..=WIDEST).and_then(|n| u32::try_from(n).ok())
    };
    let hidden = size("hidden", "4096");
    let layers =
        table.require("layers", "32").and_then(|v| v.integer(1..=MOST_LAYERS)).and_then(|n| u32::try_from(n).ok());
    let heads = size("heads", "32");
    let kv_heads = if table.has("kv_heads") { size("kv_heads", "8") } else { heads };
    let head_dim = match (table.has("head_dim"), hidden, heads) {
        (false, Some(hidden), Some(heads)) if hidden.is_multiple_of(heads) => Some(hidden / heads),
        (false, None, _) | (false, _, None) => None,
        _ => size("head_dim", "128"),
    };
    let ffn = size("ffn", "14336");
    let vocabulary = size("vocabulary", "128256");
    let norm = table.get("norm").map_or(Some(NormKind::RmsNorm), |v| v.choice(&NORMS));
    let norm_epsilon = table.get("norm_epsilon").map_or(Some(1e-5), |v| v.number(1e-30..=1.0));
    let positions =
        table.get("positions").map_or(Some(Positions::Rope { theta: 10_000.0 }), |v| positions(&v.table()?));
    let mlp = table.get("mlp").map_or(Some(MlpKind::SwiGlu), |v| v.choice(&MLPS));
    let flag = |key| table.get(key).map_or(Some(false), |v| v.boolean());
    let (qkv_bias, projection_bias, mlp_bias) = (flag("qkv_bias"), flag("projection_bias"), flag("mlp_bias"));
    let tied_head = flag("tied_head");
    let model = Model {
        name,
        hidden: hidden?,
        layers: layers?,
        heads: heads?,
        kv_heads: kv_heads?,
        head_dim: head_dim?,
        ffn: ffn?,
        vocabulary: vocabulary?,
        norm: norm?,
        norm_epsilon: norm_epsilon?,
        positions: positions?,
        mlp: mlp?,
        qkv_bias: qkv_bias?,
        projection_bias: projection_bias?,
        mlp_bias: mlp_bias?,
        tied_head: tied_head?,
    };
    for problem in model.problems() {
        // The vocabulary speaks of `model`; the table may be one of a catalog.
        let key = problem.subject.strip_prefix("model.").unwrap_or(&problem.subject);
        let subject = table.path_of(key);
        table.reader.report_placed(ir::Problem { subject, ..problem });
    }
    Some(model)
}

fn positions(table: &Table<'_>) -> Option<Positions> {
    let rope = table.table("rope");
    let learned = table.table("learned");
    let result = match (rope, learned) {
        (Some(rope), None) => {
            let theta = rope.get("theta").map_or(Some(10_000.0), |v| v.number(1.0..=1e12));
            rope.finish();
            theta.map(|theta| Positions::Rope { theta })
        }
        (None, Some(learned)) => {
            let maximum = learned.require("maximum", "2048").and_then(|v| v.count());
            learned.finish();
            maximum.map(|maximum| Positions::Learned { maximum })
        }
        _ => {
            let hint = "`{ rope = { theta = 10000.0 } }` or `{ learned = { maximum = 2048 } }`";
            table.report(ir::Problem::new(table.path(), "must be either rope or learned").hint(hint));
            None
        }
    };
    table.finish();
    result
}

/// The words of a model's choices, for the resolved form.
pub(super) fn words(model: &Model) -> (&'static str, &'static str) {
    let norm = NORMS.iter().find(|(_, kind)| *kind == model.norm).map_or("rms-norm", |(word, _)| word);
    let mlp = MLPS.iter().find(|(_, kind)| *kind == model.mlp).map_or("swi-glu", |(word, _)| word);
    (norm, mlp)
}
