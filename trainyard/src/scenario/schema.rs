//! The JSON Schema of scenario files.
//!
//! It is made of what the reader asks when it reads `language.toml`, which has every key once, and the other ways to
//! write some of them: keys, kinds, ranges and words are the reader's own, the descriptions are the comments there.

use std::cell::RefCell;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use serde_json::{Map, Value, json};

use super::{Sight, resolve};
use crate::read::{Asked, Reader, Trace, Wanted};

/// Every key, with a value and what it is.
const LANGUAGE: &str = include_str!("language.toml");

/// Other ways to write some keys. That a file named here is not there does not matter.
const OTHER_WAYS: [&str; 7] = [
    "cluster = \"1 x cpu-2\"\nmodel = \"tiny-gpt\"\n[training]\nsequence_length = 32\nglobal_batch = 8\n[emulate]\nfactors = 2\n\
     [training.optimizer]\nclip_norm = \"none\"\n[plan]\nlayers_per_stage = [1, 1]\nrecompute = \"full\"\nrecompute_layers = 1\nmicrobatches = 1\n\
     shard = 2\nbudget = 9\nweights = \"a.weights\"\nschedule = { cells = \"0F0,0B0\" }\n[cost]\nsource = \"calibration\"\nfile = \"a.toml\"\nstacks = \"a.toml\"\n\
     interference = { compute = 1.2, communication = 1.1 }\n[data]\nfile = \"a.txt\"\n\
     [objective]\npareto = [\"time\", \"money\"]\n[constraints]\nmemory_headroom = 0.1\ntokens = \"2T\"\nbudget_usd = 1e6\n\
     avoid = { kinds = [\"cpu-2\"], nodes = [0], devices = [0] }\n\
     [size]\ntokens = \"2T\"\nfrom = \"2027-01-30\"\nby = \"2027-03-01\"\n",
    "catalogs = [\"a.toml\"]\ncluster = [\"1 x cpu-2\"]\n[model]\nconfig = \"config.json\"\n[plan]\nrecompute_layers = \"all\"\n\
     schedule = { grid = \"a.csv\" }\n[cost]\ncalibration = \"\"\nstack_catalog = \"\"\n",
    "cluster = { nodes = \"1 x cpu-2\" }\n[devices.a]\n[nodes.a]\ndevices = \"a\"\n[model]\nname = \"a\"\nhidden = 63\n\
     heads = 4\npositions = { learned = { maximum = 8 } }\n",
    "[cluster]\nnodes = [\"1 x cpu-2\"]\n[model]\nhidden = 8\npositions = { none = true }\n\
     [models.a]\npositions = { learned = { maximum = 8 } }\n[models.b]\npositions = { none = true }\n\
     [plan]\nschedule = { zero_bubble = \"1p\", forward = 1, backward_input = 1, backward_weight = 1, message = 0, kept = 1000 }\n",
    "cluster = \"1 x cpu-2\"\n[plan]\nschedule = { vee = \"half\", forward = 1, backward_input = 1, backward_weight = 1, message = 0 }\n",
    "[cluster]\nnodes = \"1 x cpu-2\"\nfabric = { topology = \"a.conf\" }\n[nodes.a]\ntopology = \"a.txt\"\nmeasured_bandwidth = \"a.txt\"\n\
     [fabrics.a]\ntopology = \"a.conf\"\n[data]\nfolder = \"a\"\nextensions = [\"txt\"]\ntokenizer = \"a.json\"\ndocuments = \"files\"\nend = \"none\"\npacking = \"documents\"\n[cost]\ncollectives = [{ file = \"a.txt\" }, { kind = \"all-reduce\", ranks = 2, nodes = 1, link = \"shared-memory\", points = [[1.0, 2.0], [2.0, 3.0]] }]\n\
     profiles = [{ device = \"a\", file = \"a.json\", interpolate = true, source = \"b\" }, { profile = \"{}\" }]\n",
    "cluster = \"1 x cpu-2\"\n[checkpoint]\ninterval = \"best\"\nwrite_time = \"1s\"\nread_time = \"1s\"\n\
     [failures]\nlike = \"a\"\nper_node_day = 1.0\nnode_mtbf = \"1s\"\ndevice_mtbf = \"1s\"\nmtbf = \"1s\"\nrepair = \"1d\"\n[size]\ngoodput = 0.9\n",
];

/// The JSON Schema (draft 2020-12) of scenario files. What a file says in numbers and names is checked when it is read;
/// the schema knows keys, kinds, ranges and words.
#[must_use]
pub fn schema() -> Value {
    let mut language = Language::default();
    let models = models();
    for text in [LANGUAGE, &models].into_iter().chain(OTHER_WAYS) {
        language.add(&trace(text));
    }
    for text in [LANGUAGE, &models] {
        language.describe(text);
    }
    let mut schema = language.table("");
    let head = json!({
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "Trainyard scenario",
        "description": "What exists, what is trained, who decides.",
    });
    let Value::Object(mut all) = head else { unreachable!("written as an object") };
    all.append(&mut schema);
    Value::Object(all)
}

/// The tables of `[model]` as an entry of `[models]`, whose name is not a key of it.
fn models() -> String {
    let headers = |line: &str| line.starts_with('[');
    let mut inside = false;
    let mut text = "[models] # Models, by name.\n".to_owned();
    for line in LANGUAGE.lines().filter(|line| !line.starts_with("name = ")) {
        inside = if headers(line) { line.starts_with("[model]") || line.starts_with("[model.") } else { inside };
        if inside {
            text.push_str(&if headers(line) { line.replacen("[model", "[models.a", 1) } else { line.to_owned() });
            text.push('\n');
            if line.starts_with("[model]") {
                text.push_str("source = \"x\" # Where the figures come from.\n");
            }
        }
    }
    text
}

/// What is asked of a text.
fn trace(text: &str) -> Trace {
    let sight = Sight { base: Path::new(""), sources: RefCell::default(), problems: RefCell::default() };
    let (reader, trace) = Reader::tracing("language.toml");
    let _ = reader.read(text, |root| resolve(root, &sight));
    trace.take()
}

/// Everything asked, by path with names of the user's own as `*` and items of lists as `[]`.
#[derive(Debug, Default)]
struct Language {
    open: BTreeSet<String>,
    tables: BTreeMap<String, Asked>,
    values: BTreeMap<String, Vec<Wanted>>,
    descriptions: BTreeMap<String, String>,
}

impl Language {
    fn add(&mut self, trace: &Trace) {
        self.open.extend(trace.open.iter().cloned());
        for (path, asked) in &trace.tables {
            let path = self.pattern(path);
            match self.tables.get_mut(&path) {
                None => drop(self.tables.insert(path, asked.clone())),
                Some(known) => {
                    known.keys.extend(&asked.keys);
                    known.required.retain(|key| asked.required.contains(key));
                }
            }
        }
        for (path, wanted) in &trace.values {
            let all = self.values.entry(self.pattern(path)).or_default();
            all.extend(wanted.iter().filter(|one| !all.contains(one)).cloned().collect::<Vec<_>>());
        }
    }

    /// `devices.h100.peak` is `devices.*.peak`, `pattern[3].layers` is `pattern[].layers`.
    fn pattern(&self, path: &str) -> String {
        let mut pattern = String::new();
        for segment in path.split('.').filter(|segment| !segment.is_empty()) {
            let name = segment.split('[').next().unwrap_or(segment);
            let name = if self.open.contains(&pattern) { "*" } else { name };
            pattern = join(&pattern, name) + &"[]".repeat(segment.matches('[').count());
        }
        pattern
    }

    /// Takes the comments behind the tables and keys of a text, those that are comments themselves included.
    fn describe(&mut self, text: &str) {
        let mut table = String::new();
        for line in text.lines().filter(|line| !line.starts_with(' ')) {
            let line = line.strip_prefix("# ").unwrap_or(line);
            let (written, comment) = line.split_once(" # ").map_or((line, None), |(left, right)| (left, Some(right)));
            let path = if let Some(name) = written.trim().strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
                name.clone_into(&mut table);
                table.clone()
            } else if let Some((key, _)) = written.split_once(" = ") {
                join(&table, key)
            } else {
                continue;
            };
            let path = self.pattern(&path);
            if let Some(comment) = comment {
                self.descriptions.entry(path).or_insert_with(|| comment.to_owned());
            }
        }
    }

    /// The schema of the value at a path.
    fn value(&self, path: &str) -> Map<String, Value> {
        let wanted = self.values.get(path).map(Vec::as_slice).unwrap_or_default();
        let mut schema = match wanted {
            [one] => self.kind(path, one),
            several => object(json!({ "anyOf": several.iter().map(|one| self.kind(path, one)).collect::<Vec<_>>() })),
        };
        if let Some(description) = self.descriptions.get(path) {
            schema.insert("description".to_owned(), description.as_str().into());
        }
        schema
    }

    fn kind(&self, path: &str, wanted: &Wanted) -> Map<String, Value> {
        match wanted {
            Wanted::Text => object(json!({ "type": "string" })),
            Wanted::Boolean => object(json!({ "type": "boolean" })),
            Wanted::Integer(least, most) => object(json!({ "type": "integer", "minimum": least, "maximum": most })),
            Wanted::Number(least, most) => object(json!({ "type": "number", "minimum": least, "maximum": most })),
            Wanted::Quantity(example) => object(json!({ "type": "string", "examples": [example] })),
            Wanted::Words(words) => object(json!({ "enum": words })),
            Wanted::List => object(json!({ "type": "array", "items": self.value(&format!("{path}[]")) })),
            Wanted::Table => self.table(path),
        }
    }

    /// The schema of the table at a path.
    fn table(&self, path: &str) -> Map<String, Value> {
        if self.open.contains(path) {
            return object(json!({ "type": "object", "additionalProperties": self.value(&join(path, "*")) }));
        }
        let asked = self.tables.get(path).cloned().unwrap_or_default();
        let mut properties = Map::new();
        for key in asked.keys {
            properties.entry(key).or_insert_with(|| self.value(&join(path, key)).into());
        }
        let mut schema = object(json!({ "type": "object", "properties": properties, "additionalProperties": false }));
        if !asked.required.is_empty() {
            schema.insert("required".to_owned(), json!(asked.required));
        }
        schema
    }
}

fn join(path: &str, key: &str) -> String {
    if path.is_empty() { key.to_owned() } else { format!("{path}.{key}") }
}

fn object(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        other => unreachable!("{other} is written as an object"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::scenario::parse;

    /// Where a value is not what a schema says. Knows the words that [`schema`] uses.
    fn faults(path: &str, value: &Value, schema: &Value, found: &mut Vec<String>) {
        if let Some(several) = schema["anyOf"].as_array() {
            let fits = |one: &Value| {
                let mut found = Vec::new();
                faults(path, value, one, &mut found);
                found.is_empty()
            };
            if !several.iter().any(fits) {
                found.push(format!("{path}: {value} is none of {several:?}"));
            }
            return;
        }
        if let Some(words) = schema["enum"].as_array() {
            if !words.contains(value) {
                found.push(format!("{path}: {value} is none of {words:?}"));
            }
            return;
        }
        let kind = schema["type"].as_str().unwrap_or_else(|| panic!("{path}: {schema} has no type"));
        let right = match kind {
            "string" => value.is_string(),
            "boolean" => value.is_boolean(),
            "integer" => value.is_i64() || value.is_u64(),
            "number" => value.is_number(),
            "array" => value.is_array(),
            "object" => value.is_object(),
            other => panic!("{path}: an unknown type {other}"),
        };
        if !right {
            found.push(format!("{path}: {value} is no {kind}"));
            return;
        }
        let outside = |value: f64| {
            schema["minimum"].as_f64().is_some_and(|least| value < least)
                || schema["maximum"].as_f64().is_some_and(|most| value > most)
        };
        if value.as_f64().is_some_and(outside) {
            found.push(format!("{path}: {value} is out of range"));
        }
        for (index, item) in value.as_array().into_iter().flatten().enumerate() {
            faults(&format!("{path}[{index}]"), item, &schema["items"], found);
        }
        for (key, item) in value.as_object().into_iter().flatten() {
            match (schema["properties"].get(key), &schema["additionalProperties"]) {
                (Some(schema), _) => faults(&join(path, key), item, schema, found),
                (None, Value::Bool(false)) => found.push(format!("{}: unknown key", join(path, key))),
                (None, schema) => faults(&join(path, key), item, schema, found),
            }
        }
        for key in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
            if value.get(key).is_none() {
                found.push(format!("{}: is missing", join(path, key)));
            }
        }
    }

    fn check(text: &str, expect: &[&str]) {
        let value: toml::Value = toml::from_str(text).expect("TOML");
        let value = serde_json::to_value(value).expect("a JSON form");
        let mut found = Vec::new();
        faults("", &value, &schema(), &mut found);
        assert_eq!(found.len(), expect.len(), "{found:#?}\n{text}");
        assert!(found.iter().zip(expect).all(|(found, part)| found.contains(part)), "{found:#?}, not {expect:?}");
    }

    #[test]
    fn the_language_reads_without_a_problem() {
        let loaded = parse("language.toml", LANGUAGE, Path::new("")).unwrap_or_else(|e| panic!("{e}"));
        check(LANGUAGE, &[]);
        check(&loaded.scenario.to_toml(), &[]);
    }

    /// A key that the reader asks for and `language.toml` does not have would be a hole in the schema.
    #[test]
    fn every_key_has_a_kind_and_a_description() {
        fn holes(path: &str, schema: &Value, described: bool, found: &mut Vec<String>) {
            if schema["anyOf"].as_array().is_some_and(Vec::is_empty) {
                found.push(format!("{path}: no kind"));
            }
            for one in schema["anyOf"].as_array().into_iter().flatten() {
                holes(path, one, described, found);
            }
            if schema.get("items").is_some() {
                holes(&format!("{path}[]"), &schema["items"], false, found);
            }
            if schema["additionalProperties"].is_object() {
                holes(&join(path, "*"), &schema["additionalProperties"], true, found);
            }
            for (key, inner) in schema["properties"].as_object().into_iter().flatten() {
                let path = join(path, key);
                if described && inner.get("description").is_none() {
                    found.push(format!("{path}: no description"));
                }
                let table = LANGUAGE.lines().any(|line| line.starts_with(&format!("[{path}]")));
                holes(&path, inner, table, found);
            }
        }
        let mut found = Vec::new();
        holes("", &schema(), false, &mut found);
        assert!(found.is_empty(), "{found:#?}");
    }

    #[test]
    fn every_scenario_follows_the_schema() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).expect("scenarios") {
            let path = entry.expect("an entry").path().join("scenario.toml");
            if let Ok(text) = std::fs::read_to_string(&path) {
                check(&text, &[]);
                count += 1;
            }
        }
        assert!(count >= 8, "{count} scenarios");
    }

    #[test]
    fn wrong_files_do_not() {
        const GOOD: &str = "cluster = \"1 x dgx-a100\"\nmodel = \"gpt2-124m\"\n[training]\nsequence_length = 1024\nglobal_batch = 64\n";
        check(GOOD, &[]);
        check(&format!("{GOOD}[plan]\ntensr = 2"), &["plan.tensr: unknown key"]);
        check(&format!("{GOOD}[plan]\nzero = 4"), &["plan.zero: 4 is out of range"]);
        check(&format!("{GOOD}[plan]\ntensor = \"2\""), &["plan.tensor: \"2\" is no integer"]);
        check(&format!("{GOOD}[plan]\nschedule = \"1f1c\""), &["plan.schedule"]);
        check(&format!("{GOOD}[links.mine]\nbandwidth = \"1Gbps\""), &["links.mine.latency: is missing"]);
        check(&format!("{GOOD}precision = \"bf17\""), &["training.precision"]);
        check(&GOOD.replace("global_batch = 64", ""), &["training.global_batch: is missing"]);
        check(&GOOD.replace("cluster", "clusters"), &["clusters: unknown key", "cluster: is missing"]);
    }
}
