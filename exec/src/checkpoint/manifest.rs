//! What a checkpoint is of.

use std::collections::BTreeMap;

use ir::Model;
use serde::{Deserialize, Serialize};

use crate::data::{DataPosition, Dataset};
use crate::state::weights::shapes;

/// The version of the form of checkpoints that this program reads and writes.
pub const SCHEMA_VERSION: u32 = 1;

/// A file of a checkpoint.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ShardFile {
    /// Its name in the checkpoint's folder.
    pub name: String,
    /// Its length.
    pub bytes: u64,
    /// CRC-32 (IEEE) of all of it, in hexadecimal digits.
    pub crc32: String,
}

/// What a checkpoint is of, and which files it has.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// Iterations that are in it: the number of the next, and the steps of the optimizer.
    pub iterations: u64,
    /// The model, which with its tensors' shapes is what must agree.
    pub model: Model,
    /// Where in the data it is.
    pub data: DataPosition,
    /// The division that it was written under, for people: any other goes on from it.
    pub plan: String,
    /// The files, by rank.
    pub shards: Vec<ShardFile>,
    /// CRC-32 of the rest of this, as compact JSON with this entry empty.
    pub crc32: String,
}

impl Manifest {
    /// The same with its checksum.
    #[must_use]
    pub(super) fn sealed(mut self) -> Self {
        self.crc32 = self.checksum();
        self
    }
    /// The text of its file.
    pub(super) fn text(&self) -> String {
        serde_json::to_string_pretty(self).expect("a plain value")
    }
    /// Reads the text of a file.
    ///
    /// # Errors
    /// Why it is not the manifest of a checkpoint that this program reads.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let torn = |error: serde_json::Error| format!("checkpoint.json is torn or changed: {error}");
        let value: serde_json::Value = serde_json::from_str(text).map_err(torn)?;
        match value["schema_version"].as_u64() {
            Some(version) if version != u64::from(SCHEMA_VERSION) => {
                return Err(format!(
                    "it has version {version} of the form of checkpoints, and this program reads {SCHEMA_VERSION}"
                ));
            }
            _ => {}
        }
        let manifest: Self = serde_json::from_value(value).map_err(torn)?;
        if manifest.crc32 == manifest.checksum() {
            Ok(manifest)
        } else {
            Err("checkpoint.json was changed after it was written: its checksum is another".to_owned())
        }
    }
    /// Why a training of `model` over `data` cannot go on from it, if it cannot.
    pub(super) fn problem(&self, model: &Model, data: &Dataset) -> Option<String> {
        if let Some(differences) = differences(&self.model, model) {
            return Some(format!("it is of another model: {differences}"));
        }
        let problems = self.data.problems_with(data);
        let words = problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
        (!problems.is_empty()).then(|| format!("its samples come in another order: {words}"))
    }
    fn checksum(&self) -> String {
        let bare = Self { crc32: String::new(), ..self.clone() };
        hexadecimal(crc32fast::hash(serde_json::to_string(&bare).expect("a plain value").as_bytes()))
    }
}

/// A checksum as it is written.
pub(super) fn hexadecimal(crc32: u32) -> String {
    format!("{crc32:08x}")
}

/// In what two models differ beside their names, if they do.
fn differences(there: &Model, here: &Model) -> Option<String> {
    if (Model { name: String::new(), ..there.clone() }) == (Model { name: String::new(), ..here.clone() }) {
        return None;
    }
    let fields = |model: &Model| -> BTreeMap<String, serde_json::Value> {
        match serde_json::to_value(model).expect("a plain value") {
            serde_json::Value::Object(fields) => fields.into_iter().collect(),
            _ => unreachable!("a model has fields"),
        }
    };
    let (there, here) = (fields(there), fields(here));
    let keys: std::collections::BTreeSet<_> = there.keys().chain(here.keys()).collect();
    let absent = serde_json::Value::Null;
    let differs = keys.into_iter().filter(|key| *key != "name").filter_map(|key| {
        let (a, b) = (there.get(key).unwrap_or(&absent), here.get(key).unwrap_or(&absent));
        (a != b).then(|| format!("{key} is {a} there and {b} here"))
    });
    Some(differs.collect::<Vec<_>>().join(", "))
}

/// Sizes of the tensors of a model, by name.
pub(super) fn tensors(model: &Model) -> BTreeMap<String, Vec<usize>> {
    shapes(model).collect()
}
