//! `[model]`: a name of the catalog, a Hugging Face `config.json`, or every size written out.

use std::path::Path;

use ir::{
    BranchNorms, Experts, FeedForward, GatedDelta, LatentAttention, LayerRun, Mamba, Mixer, MlpKind, Model, NormKind,
    ParallelBranches, Positions, QueryKeyNorm, Router, Scoring, Variants,
};

use super::Sight;
use crate::catalog::Catalog;
use crate::read::{Table, Value, suggest};

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
    if found.is_none() && !catalog.is_wrong(name) {
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
    let size = |key, example: &str| width(&table.require(key, example)?);
    let hidden = size("hidden", "4096");
    let layers =
        table.require("layers", "32").and_then(|v| v.integer(1..=MOST_LAYERS)).and_then(|n| u32::try_from(n).ok());
    let heads = size("heads", "32");
    let kv_heads = table.get("kv_heads").map_or(heads, |v| width(&v));
    let head_dim = match (table.get("head_dim"), hidden, heads) {
        (Some(value), _, _) => width(&value),
        (None, Some(hidden), Some(heads)) if hidden.is_multiple_of(heads) => Some(hidden / heads),
        (None, Some(_), Some(_)) => size("head_dim", "128"),
        (None, None, _) | (None, _, None) => None,
    };
    let ffn = size("ffn", "14336");
    let vocabulary = size("vocabulary", "128256");
    let norm = table.get("norm").map_or(Some(NormKind::RmsNorm), |v| v.one_of(NormKind::ALL, NormKind::name));
    let norm_epsilon = table.get("norm_epsilon").map_or(Some(1e-5), |v| v.number(1e-30..=1.0));
    let positions =
        table.get("positions").map_or(Some(Positions::Rope { theta: 10_000.0 }), |v| positions(&v.table()?));
    let mlp = table.get("mlp").map_or(Some(MlpKind::SwiGlu), |v| v.one_of(MlpKind::ALL, MlpKind::name));
    let flag = |key| table.get(key).map_or(Some(false), |v| v.boolean());
    let (qkv_bias, projection_bias, mlp_bias) = (flag("qkv_bias"), flag("projection_bias"), flag("mlp_bias"));
    let tied_head = flag("tied_head");
    let variants = variants(table, mlp);
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
        variants: variants?,
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
    let none = table.get("none").and_then(|value| value.boolean()).unwrap_or(false);
    let result = match (rope, learned) {
        (None, None) if none => Some(Positions::None),
        (Some(rope), None) if !none => {
            let theta = rope.get("theta").map_or(Some(10_000.0), |v| v.number(1.0..=1e12));
            rope.finish();
            theta.map(|theta| Positions::Rope { theta })
        }
        (None, Some(learned)) if !none => {
            let maximum = learned.require("maximum", "2048").and_then(|v| v.count());
            learned.finish();
            maximum.map(|maximum| Positions::Learned { maximum })
        }
        _ => {
            let hint = "`{ rope = { theta = 10000.0 } }`, `{ learned = { maximum = 2048 } }` or `{ none = true }`";
            table.report(ir::Problem::new(table.path(), "must be one of rope, learned and none").hint(hint));
            None
        }
    };
    table.finish();
    result
}

fn width(value: &Value<'_>) -> Option<u32> {
    value.integer(1..=WIDEST).and_then(|n| u32::try_from(n).ok())
}

/// What layers have beyond plain attention and a dense feed-forward part; experts are of the model's kind unless they
/// say their own.
fn variants(table: &Table<'_>, mlp: Option<MlpKind>) -> Option<Variants> {
    let flag = |key| table.get(key).map_or(Some(false), |v| v.boolean());
    // A table that is not there is no fault, a wrong one is.
    let window = table.get("window").map_or(Some(None), |v| width(&v).map(Some));
    let query_key_norm = table
        .get("query_key_norm")
        .map_or(Some(QueryKeyNorm::default()), |v| v.one_of(QueryKeyNorm::ALL, QueryKeyNorm::name));
    let (gated_attention, attention_sinks) = (flag("gated_attention"), flag("attention_sinks"));
    let branch_norms = table
        .get("branch_norms")
        .map_or(Some(BranchNorms::default()), |v| v.one_of(BranchNorms::ALL, BranchNorms::name));
    let parallel_branches = table
        .get("parallel_branches")
        .map_or(Some(ParallelBranches::default()), |v| v.one_of(ParallelBranches::ALL, ParallelBranches::name));
    let (exact_gelu, head_bias, plain_norms) = (flag("exact_gelu"), flag("head_bias"), flag("plain_norms"));
    let latent = table.get("latent").map_or(Some(None), |v| latent(&v.table()?).map(Some));
    let mamba = table.get("mamba").map_or(Some(None), |v| mamba(&v.table()?).map(Some));
    let delta = table.get("delta").map_or(Some(None), |v| delta(&v.table()?).map(Some));
    let experts = table.get("experts").map_or(Some(None), |v| experts(&v.table()?, mlp).map(Some));
    let pattern = table.get("pattern").map_or(Some(Vec::new()), |v| {
        let runs: Vec<Option<LayerRun>> = v.list()?.iter().map(|run| layer_run(&run.table()?)).collect();
        runs.into_iter().collect()
    });
    Some(Variants {
        window: window?,
        query_key_norm: query_key_norm?,
        gated_attention: gated_attention?,
        attention_sinks: attention_sinks?,
        branch_norms: branch_norms?,
        parallel_branches: parallel_branches?,
        exact_gelu: exact_gelu?,
        head_bias: head_bias?,
        plain_norms: plain_norms?,
        latent: latent?,
        mamba: mamba?,
        delta: delta?,
        experts: experts?,
        pattern: pattern?,
    })
}

fn latent(table: &Table<'_>) -> Option<LatentAttention> {
    let size = |key, example: &str| width(&table.require(key, example)?);
    let query_rank = table.get("query_rank").map_or(Some(None), |v| width(&v).map(Some));
    let (kv_rank, plain_head_dim) = (size("kv_rank", "512"), size("plain_head_dim", "128"));
    let (rotary_head_dim, value_head_dim) = (size("rotary_head_dim", "64"), size("value_head_dim", "128"));
    table.finish();
    Some(LatentAttention {
        query_rank: query_rank?,
        kv_rank: kv_rank?,
        plain_head_dim: plain_head_dim?,
        rotary_head_dim: rotary_head_dim?,
        value_head_dim: value_head_dim?,
    })
}

fn mamba(table: &Table<'_>) -> Option<Mamba> {
    let size = |key, example: &str| width(&table.require(key, example)?);
    let (inner, state) = (size("inner", "8192"), size("state", "16"));
    let (convolution, step_rank) = (size("convolution", "4"), size("step_rank", "256"));
    let normalised = table.get("normalised").map_or(Some(false), |v| v.boolean());
    table.finish();
    Some(Mamba {
        inner: inner?,
        state: state?,
        convolution: convolution?,
        step_rank: step_rank?,
        normalised: normalised?,
    })
}

fn delta(table: &Table<'_>) -> Option<GatedDelta> {
    let size = |key, example: &str| width(&table.require(key, example)?);
    let (key_heads, key_head_dim) = (size("key_heads", "16"), size("key_head_dim", "128"));
    let (value_heads, value_head_dim) = (size("value_heads", "32"), size("value_head_dim", "128"));
    let convolution = size("convolution", "4");
    table.finish();
    Some(GatedDelta {
        key_heads: key_heads?,
        key_head_dim: key_head_dim?,
        value_heads: value_heads?,
        value_head_dim: value_head_dim?,
        convolution: convolution?,
    })
}

fn experts(table: &Table<'_>, mlp: Option<MlpKind>) -> Option<Experts> {
    let size = |key, example: &str| width(&table.require(key, example)?);
    let flag = |key| table.get(key).map_or(Some(false), |v| v.boolean());
    let (count, active, ffn) = (size("count", "64"), size("active", "8"), size("ffn", "1408"));
    let shared_ffn =
        table.get("shared_ffn").map_or(Some(0), |v| v.integer(0..=WIDEST).and_then(|n| u32::try_from(n).ok()));
    let shared_gate = flag("shared_gate");
    let mlp = table.get("mlp").map_or(mlp, |v| v.one_of(MlpKind::ALL, MlpKind::name));
    let (bias, router_bias) = (flag("bias"), flag("router_bias"));
    let router = Router::default();
    let scoring = table.get("scoring").map_or(Some(router.scoring), |v| v.one_of(Scoring::ALL, Scoring::name));
    let normalised = table.get("normalised").map_or(Some(router.normalised), |v| v.boolean());
    table.finish();
    Some(Experts {
        count: count?,
        active: active?,
        ffn: ffn?,
        shared_ffn: shared_ffn?,
        shared_gate: shared_gate?,
        mlp: mlp?,
        bias: bias?,
        router_bias: router_bias?,
        router: Router { scoring: scoring?, normalised: normalised? },
    })
}

fn layer_run(table: &Table<'_>) -> Option<LayerRun> {
    let layers = table.require("layers", "1").and_then(|v| v.integer(1..=MOST_LAYERS));
    let mixer = table.get("mixer").map_or(Some(Mixer::default()), |v| v.one_of(Mixer::ALL, Mixer::name));
    let feed_forward = table
        .get("feed_forward")
        .map_or(Some(FeedForward::default()), |v| v.one_of(FeedForward::ALL, FeedForward::name));
    table.finish();
    Some(LayerRun { layers: u32::try_from(layers?).ok()?, mixer: mixer?, feed_forward: feed_forward? })
}
