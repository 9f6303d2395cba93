//! `[size]`, and the models that only it names.

use ir::Model;
use toml::{Table, Value};

use super::{model_table, number, table, text};
use crate::scenario::{SizeChoice, SizeQuestion};

/// The table; kinds of node and models are written as names, goodput where it is a choice.
pub(super) fn size_table(size: &SizeChoice, chooses_goodput: bool) -> Table {
    let names = |names: Vec<&str>| Value::Array(names.into_iter().map(text).collect());
    let mut entries = table([
        ("ask", names(size.ask.iter().copied().map(SizeQuestion::name).collect())),
        ("nodes", names(size.kinds.iter().map(|kind| kind.node_kinds[0].name.as_str()).collect())),
        ("most_nodes", number(size.most_nodes)),
        ("goodput", Value::Float(size.goodput)),
        ("power_share", Value::Float(size.power_share)),
        ("site_factor", Value::Float(size.site_factor)),
    ]);
    if !chooses_goodput {
        entries.remove("goodput");
    }
    for (key, value) in [("tokens", size.tokens), ("budget_usd", size.budget_usd)] {
        entries.extend(value.map(|value| (key.to_owned(), Value::Float(value))));
    }
    entries.extend(size.within.map(|within| ("within".to_owned(), text(within))));
    if !size.models.is_empty() {
        entries.insert("models".to_owned(), names(size.models.iter().map(|model| model.name.as_str()).collect()));
    }
    entries
}

/// `[models]`: each by its name.
pub(super) fn models_table(models: &[Model]) -> Table {
    let entry = |model: &Model| {
        let mut entry = model_table(model);
        entry.remove("name");
        (model.name.clone(), Value::Table(entry))
    };
    models.iter().map(entry).collect()
}
