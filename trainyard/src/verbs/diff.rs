//! `diff`: two results, or what two scenarios give, and what makes the difference.
//!
//! A result is the JSON that `plan` or `simulate` wrote; `resolved.toml` beside it, where there is one, says what was given.
//! A scenario is simulated first, so that a scenario, what it planned and a result from last week can all be held against
//! each other.

use std::collections::BTreeMap;
use std::path::Path;

use ir::Problem;
use reports::diff::{Change, Diff, DiffCause, Measure};
use reports::unit::Unit;
use serde_json::Value;

use crate::results::{DiffReport, Header, json};
use crate::scenario::read_text;
use crate::{Context, Error, scenario};

/// What one side is.
struct Side {
    name: String,
    /// The result, as JSON.
    result: Value,
    /// Keys of the resolved scenario, where it is known.
    keys: Option<BTreeMap<String, String>>,
}

/// Holds `after` against `before`.
///
/// # Errors
/// [`Error::Input`] if one of them is neither a result nor a scenario; whatever [`crate::simulate`] says of a scenario
/// that cannot be read. One that does not fit is a side without figures.
pub fn diff(before: &Path, after: &Path, context: &Context<'_>) -> Result<DiffReport, Error> {
    let [a, b] = [side(before, context)?, side(after, context)?];
    let page = compare(&a, &b, format!("trainyard diff {} {}", before.display(), after.display()));
    Ok(DiffReport { header: Header::new("diff", ""), same: page.is_empty(), diff: page })
}

fn side(path: &Path, context: &Context<'_>) -> Result<Side, Error> {
    let is_json = path.extension().is_some_and(|extension| extension == "json");
    if !is_json {
        let loaded = scenario::load(path)?;
        let result = match crate::simulate(&loaded, context) {
            Ok(report) => json(&report),
            Err(error @ Error::Infeasible { .. }) => crate::results::error_json("simulate", &error),
            Err(other) => return Err(other),
        };
        let keys = keys(&loaded.scenario.to_toml());
        let result = serde_json::from_str(&result).expect("just written");
        return Ok(Side { name: path.display().to_string(), result, keys: Some(keys) });
    }
    let text = read_text(path).map_err(|what| Error::files(path, format!("cannot read the result: {what}")))?;
    let wrong = |message: String| {
        Error::problem(
            Problem::new(path.display().to_string(), message)
                .hint("give simulate.json or plan.json as `--out` or `--json` wrote it, or a scenario"),
        )
    };
    let result: Value = serde_json::from_str(&text).map_err(|error| wrong(format!("is not JSON: {error}")))?;
    let version = u64::from(crate::results::SCHEMA_VERSION);
    if result.get("schema_version").and_then(Value::as_u64) != Some(version) {
        return Err(wrong(format!("is not a result of version {version}")));
    }
    let verb = result.get("verb").and_then(Value::as_str).unwrap_or_default();
    if !["plan", "simulate"].contains(&verb) {
        return Err(wrong(format!("is a result of `{verb}`, which diff does not know")));
    }
    let beside = path.parent().unwrap_or(Path::new("")).join("resolved.toml");
    let keys = read_text(&beside).ok().map(|text| keys(&text));
    Ok(Side { name: path.display().to_string(), result, keys })
}

/// Every key of a scenario with its value as written; empty if the text is none.
fn keys(text: &str) -> BTreeMap<String, String> {
    fn walk(path: &str, value: &toml::Value, all: &mut BTreeMap<String, String>) {
        match value {
            toml::Value::Table(table) => table.iter().for_each(|(key, value)| {
                let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                walk(&path, value, all);
            }),
            toml::Value::String(text) => drop(all.insert(path.to_owned(), text.clone())),
            other => drop(all.insert(path.to_owned(), other.to_string())),
        }
    }
    let mut all = BTreeMap::new();
    if let Ok(table) = toml::from_str::<toml::Table>(text) {
        walk("", &toml::Value::Table(table), &mut all);
    }
    all
}

fn compare(a: &Side, b: &Side, command: String) -> Diff {
    let mut changes = plan_changes(&a.result, &b.result);
    if let (Some(before), Some(after)) = (&a.keys, &b.keys) {
        // The plan is compared as it was decided, not as it was asked for.
        let given = |key: &&String| !key.starts_with("plan.") && !["name", "description"].contains(&key.as_str());
        changes.extend(changed(before, after, given));
    }
    let mut warnings = Vec::new();
    for side in [a, b] {
        if let Some(message) = side.result.get("message").and_then(Value::as_str) {
            warnings.push(format!("{}: {message}", side.name));
        }
    }
    if a.keys.is_none() || b.keys.is_none() {
        warnings.push("Not both results have a resolved.toml beside them: what was given is not compared.".to_owned());
    }
    let verb = |side: &Side| side.result.get("verb").and_then(Value::as_str).unwrap_or_default().to_owned();
    if verb(a) != verb(b) {
        warnings.push(format!("One is of `{}`, the other of `{}`: they are predicted in two ways.", verb(a), verb(b)));
    }
    Diff {
        title: "What is different".to_owned(),
        before: a.name.clone(),
        after: b.name.clone(),
        changes,
        measures: measures(&a.result, &b.result),
        warnings,
        command,
    }
}

/// Keys whose values differ.
fn changed(
    before: &BTreeMap<String, String>,
    after: &BTreeMap<String, String>,
    wanted: impl Fn(&&String) -> bool,
) -> Vec<Change> {
    let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).filter(wanted).collect();
    let value = |side: &BTreeMap<String, String>, key: &String| side.get(key).cloned().unwrap_or_default();
    let change = |key: &String| Change { what: key.clone(), before: value(before, key), after: value(after, key) };
    all.into_iter().map(change).filter(|change| change.before != change.after).collect()
}

/// Fields of the plans that differ, and the policies.
fn plan_changes(a: &Value, b: &Value) -> Vec<Change> {
    let fields = |result: &Value| -> BTreeMap<String, String> {
        let plan = result.get("plan").and_then(Value::as_object).into_iter().flatten();
        let fields = plan.filter(|(key, _)| key.as_str() != "words");
        let mut fields: BTreeMap<String, String> =
            fields.map(|(key, value)| (format!("plan.{key}"), words(value))).collect();
        fields.extend(result.get("policy").map(|policy| ("policy".to_owned(), words(policy))));
        fields
    };
    let (mut before, mut after) = (fields(a), fields(b));
    // `simulate` does not say who decided.
    if before.contains_key("policy") != after.contains_key("policy") {
        before.remove("policy");
        after.remove("policy");
    }
    if before.is_empty() || after.is_empty() {
        return Vec::new();
    }
    changed(&before, &after, |_| true)
}

fn words(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        // One value for all stages, where it is one.
        Value::Array(items) if items.len() > 1 && items.iter().all(|item| *item == items[0]) => {
            format!("{} x {}", items.len(), words(&items[0]))
        }
        other => other.to_string(),
    }
}

/// A part of a result that has a number on both sides, or on one.
fn measures(a: &Value, b: &Value) -> Vec<Measure> {
    let number = |result: &Value, pointer: &str| result.pointer(pointer).and_then(Value::as_f64);
    let simple = |name: &str, unit: Unit, pointer: &str, scale: f64| Measure {
        name: name.to_owned(),
        unit,
        before: number(a, pointer).map(|value| value * scale),
        after: number(b, pointer).map(|value| value * scale),
        causes: Vec::new(),
    };
    let mut iteration = simple("iteration", Unit::Seconds, "/prediction/iteration_ms", 1e-3);
    // The division of a simulated timeline where both have one, else the breakdown that every prediction has.
    let divided = ["/time_ms", "/prediction/breakdown_ms"]
        .into_iter()
        .find(|pointer| [a, b].into_iter().all(|result| result.pointer(pointer).is_some_and(Value::is_object)));
    if let Some(pointer) = divided {
        iteration.causes = causes(a.pointer(pointer), b.pointer(pointer), 1e-3);
    }
    let mut measures = vec![iteration, memory(a, b)];
    measures.extend([
        simple("throughput", Unit::TokensPerSecond, "/tokens_per_second", 1.0),
        simple("throughput per device", Unit::TokensPerSecond, "/tokens_per_second_per_device", 1.0),
        simple("model FLOPs utilization", Unit::Share, "/model_flops_utilization", 1.0),
        simple("bubble rate", Unit::Share, "/prediction/bubble_rate", 1.0),
        simple("devices", Unit::Count, "/devices", 1.0),
        simple("rent of an hour", Unit::Dollars, "/usd_per_hour", 1.0),
    ]);
    measures.retain(|measure| measure.before.is_some() || measure.after.is_some());
    measures
}

/// The peak of the fullest stage, by part.
fn memory(a: &Value, b: &Value) -> Measure {
    const GIB: f64 = (1u64 << 30) as f64;
    let fullest = |result: &Value| -> Option<Value> {
        let stages = result.pointer("/prediction/memory")?.as_array()?;
        let peak = |stage: &&Value| stage["peak_gib"].as_f64().unwrap_or(0.0);
        stages.iter().max_by(|a, b| peak(a).total_cmp(&peak(b))).cloned()
    };
    let (before, after) = (fullest(a), fullest(b));
    let peak = |stage: &Option<Value>| stage.as_ref()?["peak_gib"].as_f64().map(|gib| gib * GIB);
    let parts = |stage: &Option<Value>| stage.as_ref().map(|stage| stage["parts_gib"].clone());
    Measure {
        name: "peak memory of the fullest stage".to_owned(),
        unit: Unit::Bytes,
        before: peak(&before),
        after: peak(&after),
        causes: causes(parts(&before).as_ref(), parts(&after).as_ref(), GIB),
    }
}

/// One cause for each key of two objects of numbers.
fn causes(a: Option<&Value>, b: Option<&Value>, scale: f64) -> Vec<DiffCause> {
    let object = |side: Option<&Value>| side.and_then(Value::as_object).cloned().unwrap_or_default();
    let (before, after) = (object(a), object(b));
    let all: std::collections::BTreeSet<&String> = before.keys().chain(after.keys()).collect();
    let number = |side: &serde_json::Map<String, Value>, key: &String| {
        side.get(key).and_then(Value::as_f64).map(|value| value * scale)
    };
    all.into_iter()
        .map(|key| DiffCause {
            cause: key.clone(),
            before: number(&before, key),
            after: number(&after, key),
            note: String::new(),
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn causes_come_largest_first_and_add_up() {
        let result = |bubble: f64, compute: f64, weights: f64| {
            json!({
                "verb": "simulate",
                "plan": {"words": "x", "tensor": bubble, "recompute": ["full", "full"]},
                "prediction": {
                    "iteration_ms": bubble + compute,
                    "memory": [
                        {"peak_gib": 1.0, "parts_gib": {"weights": 1.0}},
                        {"peak_gib": weights, "parts_gib": {"weights": weights}},
                    ],
                },
                "time_ms": {"bubble": bubble, "compute": compute},
            })
        };
        let side = |result| Side { name: "x".to_owned(), result, keys: Some(BTreeMap::new()) };
        let diff = compare(&side(result(10.0, 100.0, 2.0)), &side(result(40.0, 90.0, 3.0)), String::new());
        let iteration = &diff.measures[0];
        let named: Vec<&str> = iteration.sorted().iter().map(|cause| cause.cause.as_str()).collect();
        assert_eq!(named, ["bubble", "compute"]);
        let sum: f64 = iteration.causes.iter().map(DiffCause::delta).sum();
        assert!((sum - iteration.delta().expect("both")).abs() < 1e-12 && (sum - 0.02).abs() < 1e-12);
        assert_eq!(diff.measures[1].delta(), Some(f64::from(1 << 30)));
        assert_eq!(diff.changes.len(), 1, "{:?}", diff.changes);
        assert_eq!(diff.changes[0].what, "plan.tensor");
        let same = compare(&side(result(1.0, 2.0, 3.0)), &side(result(1.0, 2.0, 3.0)), String::new());
        assert!(same.is_empty(), "{same:?}");
    }
}
