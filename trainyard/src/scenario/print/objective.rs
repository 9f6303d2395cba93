//! `[objective]` and `[constraints]`, written out.

use cost::Headroom;
use toml::{Table, Value};

use super::{number, table, text};
use crate::scenario::{AvoidChoice, ConstraintChoice, ObjectiveChoice};

/// The whole section; a front only where one is asked for.
pub(super) fn objective_table(choice: &ObjectiveChoice) -> Table {
    let terms = &choice.terms;
    let mut all = table([
        ("minimise", text(choice.minimise.name())),
        ("paid", text(terms.paid.name())),
        ("busy_power", Value::Float(terms.busy_power)),
        ("waiting_power", Value::Float(terms.waiting_power)),
        ("site_factor", Value::Float(terms.site_factor)),
    ]);
    if !choice.pareto.is_empty() {
        let measures = choice.pareto.iter().map(|measure| text(measure.name())).collect();
        all.insert("pareto".to_owned(), Value::Array(measures));
    }
    all
}

/// The section; `None` where nothing is constrained.
pub(super) fn constraints_table(choice: &ConstraintChoice) -> Option<Table> {
    if *choice == ConstraintChoice::default() {
        return None;
    }
    let headroom = match choice.memory_headroom {
        Headroom::Bytes(bytes) => text(bytes),
        Headroom::Share(share) => Value::Float(share),
    };
    let mut all = table([("memory_headroom", headroom), ("goodput", Value::Float(choice.goodput))]);
    for (key, value) in [("tokens", choice.tokens), ("budget_usd", choice.budget_usd)] {
        all.extend(value.map(|value| (key.to_owned(), Value::Float(value))));
    }
    all.extend(choice.deadline.map(|deadline| ("deadline".to_owned(), text(deadline))));
    let AvoidChoice { kinds, nodes, devices } = &choice.avoid;
    if choice.avoid != AvoidChoice::default() {
        let numbers = |list: &[u32]| Value::Array(list.iter().map(|one| number(*one)).collect());
        let kinds = Value::Array(kinds.iter().map(text).collect());
        let avoid = table([("kinds", kinds), ("nodes", numbers(nodes)), ("devices", numbers(devices))]);
        all.insert("avoid".to_owned(), avoid.into());
    }
    Some(all)
}
