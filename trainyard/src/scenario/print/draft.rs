//! A scenario of what another tool's file says: what the catalog has is named, the rest is written out. And in what two
//! trainings differ, key by key.

use std::collections::BTreeMap;

use ir::{Model, Plan, Workload};
use toml::{Table, Value};

use super::{keys_table, model_table, table, text, training_table};
use crate::scenario::plan::MANUAL;
use crate::scenario::{PlanKeys, StackChoice};

/// A model, how it is trained and how it is divided.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Training<'a> {
    pub(crate) model: &'a Model,
    pub(crate) workload: &'a Workload,
    pub(crate) plan: &'a Plan,
}

/// A scenario that is about to be written.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Draft<'a> {
    pub(crate) name: &'a str,
    /// Where it comes from, in a sentence.
    pub(crate) description: &'a str,
    /// Nodes by name and count.
    pub(crate) nodes: &'a [String],
    /// Whether the model is that of the catalog.
    pub(crate) is_known: bool,
    /// The class of software, and its release line if that is known.
    pub(crate) stack: (&'a str, Option<&'a str>),
    pub(crate) training: Training<'a>,
}

impl Draft<'_> {
    /// The scenario's text.
    pub(crate) fn written(&self) -> String {
        let Training { model, workload, plan } = self.training;
        let (name, release) = self.stack;
        let stack = StackChoice { name: Some(name.to_owned()), release: release.map(str::to_owned), catalog: None };
        let model = if self.is_known { table([("name", text(&model.name))]) } else { model_table(model) };
        let mut written = table([("policy", text(MANUAL))]);
        written.extend(keys_table(&PlanKeys::of(plan)));
        let nodes = Value::Array(self.nodes.iter().map(text).collect());
        // The reader says what is wrong with a seed that is none.
        let seed = i64::try_from(workload.seed).unwrap_or(-1);
        let root = table([
            ("name", text(self.name)),
            ("description", text(self.description)),
            ("seed", Value::Integer(seed)),
            ("cluster", table([("nodes", nodes)]).into()),
            ("model", model.into()),
            ("training", training_table(workload, &stack).into()),
            ("plan", written.into()),
        ]);
        toml::to_string(&root).unwrap_or_default()
    }
}

/// Keys in which two trainings differ, each with both values; names of models aside.
pub(crate) fn differences(first: Training<'_>, second: Training<'_>) -> Vec<(String, String, String)> {
    let (first, second) = (keys(first), keys(second));
    let all: BTreeMap<&String, ()> = first.keys().chain(second.keys()).map(|key| (key, ())).collect();
    let shown = |of: &BTreeMap<String, String>, key| of.get(key).cloned().unwrap_or_else(|| "nothing".to_owned());
    let differ = all.into_keys().filter(|key| first.get(*key) != second.get(*key));
    differ.map(|key| (key.clone(), shown(&first, key), shown(&second, key))).collect()
}

/// Every key of a training with its value, as scenario files have them.
fn keys(training: Training<'_>) -> BTreeMap<String, String> {
    let Training { model, workload, plan } = training;
    let mut found = BTreeMap::new();
    let named = Model { name: String::new(), ..model.clone() };
    flatten("model", &model_table(&named), &mut found);
    flatten("training", &training_table(workload, &StackChoice::default()), &mut found);
    flatten("plan", &keys_table(&PlanKeys::of(plan)), &mut found);
    found.insert("seed".to_owned(), workload.seed.to_string());
    found
}

fn flatten(path: &str, table: &Table, found: &mut BTreeMap<String, String>) {
    for (key, value) in table {
        let path = format!("{path}.{key}");
        match value {
            Value::Table(inner) => flatten(&path, inner, found),
            other => drop(found.insert(path, other.to_string())),
        }
    }
}
