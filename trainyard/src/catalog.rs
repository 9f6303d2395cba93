//! What is known by name: devices, links, nodes and models, each with its source.
//!
//! A catalog file and a scenario's own tables are one language: `[devices.NAME]`, `[links.NAME]`, `[nodes.NAME]`,
//! `[fabrics.NAME]`, `[models.NAME]`. The files of the project's catalog are part of the program; a scenario's `catalogs`
//! and its own tables come after them, and the last entry of a name counts. A device or node that says `like = "NAME"`
//! takes from an entry before it what it does not say itself: a price, say, is then all that a user writes.

mod entries;
mod failures;
mod families;
#[cfg(test)]
mod model_tests;
mod observed;
#[cfg(test)]
mod tests;

use cost::Calibration;
use ir::{DeviceKind, Link, Model, Precision, Problem};

pub use self::entries::{FabricEntry, NodeEntry};
pub(crate) use self::entries::{counted, fabric as fabric_entry};
pub use self::failures::{CountedFailures, counted_failures};
pub(crate) use self::families::{families, weights};

use crate::read::{Reader, Table};
use crate::scenario::{Sight, model};

/// The project's own catalog, as files of `catalog/`.
const EMBEDDED: [(&str, &str); 25] = [
    ("catalog/devices/nvidia.toml", include_str!("../../catalog/devices/nvidia.toml")),
    ("catalog/devices/amd.toml", include_str!("../../catalog/devices/amd.toml")),
    ("catalog/devices/other.toml", include_str!("../../catalog/devices/other.toml")),
    ("catalog/devices/cpu.toml", include_str!("../../catalog/devices/cpu.toml")),
    ("catalog/links/links.toml", include_str!("../../catalog/links/links.toml")),
    ("catalog/links/network.toml", include_str!("../../catalog/links/network.toml")),
    ("catalog/nodes/gpu.toml", include_str!("../../catalog/nodes/gpu.toml")),
    ("catalog/nodes/pcie.toml", include_str!("../../catalog/nodes/pcie.toml")),
    ("catalog/nodes/cloud.toml", include_str!("../../catalog/nodes/cloud.toml")),
    ("catalog/nodes/amd.toml", include_str!("../../catalog/nodes/amd.toml")),
    ("catalog/nodes/other.toml", include_str!("../../catalog/nodes/other.toml")),
    ("catalog/nodes/cpu.toml", include_str!("../../catalog/nodes/cpu.toml")),
    ("catalog/fabrics/fabrics.toml", include_str!("../../catalog/fabrics/fabrics.toml")),
    ("catalog/models/gpt.toml", include_str!("../../catalog/models/gpt.toml")),
    ("catalog/models/llama.toml", include_str!("../../catalog/models/llama.toml")),
    ("catalog/models/tiny.toml", include_str!("../../catalog/models/tiny.toml")),
    ("catalog/models/deepseek.toml", include_str!("../../catalog/models/deepseek.toml")),
    ("catalog/models/gemma.toml", include_str!("../../catalog/models/gemma.toml")),
    ("catalog/models/gpt-oss.toml", include_str!("../../catalog/models/gpt-oss.toml")),
    ("catalog/models/gpt-others.toml", include_str!("../../catalog/models/gpt-others.toml")),
    ("catalog/models/llama-others.toml", include_str!("../../catalog/models/llama-others.toml")),
    ("catalog/models/mistral.toml", include_str!("../../catalog/models/mistral.toml")),
    ("catalog/models/olmo.toml", include_str!("../../catalog/models/olmo.toml")),
    ("catalog/models/others.toml", include_str!("../../catalog/models/others.toml")),
    ("catalog/models/qwen.toml", include_str!("../../catalog/models/qwen.toml")),
];

/// Calibrations of the catalog: one for each generation of devices.
const CALIBRATIONS: [(&str, &str); 19] = [
    ("catalog/calibration/a100.toml", include_str!("../../catalog/calibration/a100.toml")),
    ("catalog/calibration/ada.toml", include_str!("../../catalog/calibration/ada.toml")),
    ("catalog/calibration/ampere-ga102.toml", include_str!("../../catalog/calibration/ampere-ga102.toml")),
    ("catalog/calibration/analytic.toml", include_str!("../../catalog/calibration/analytic.toml")),
    ("catalog/calibration/b200.toml", include_str!("../../catalog/calibration/b200.toml")),
    ("catalog/calibration/blackwell-gb202.toml", include_str!("../../catalog/calibration/blackwell-gb202.toml")),
    ("catalog/calibration/cdna2.toml", include_str!("../../catalog/calibration/cdna2.toml")),
    ("catalog/calibration/cdna3.toml", include_str!("../../catalog/calibration/cdna3.toml")),
    ("catalog/calibration/cdna4.toml", include_str!("../../catalog/calibration/cdna4.toml")),
    ("catalog/calibration/cpu.toml", include_str!("../../catalog/calibration/cpu.toml")),
    ("catalog/calibration/gaudi2.toml", include_str!("../../catalog/calibration/gaudi2.toml")),
    ("catalog/calibration/gaudi3.toml", include_str!("../../catalog/calibration/gaudi3.toml")),
    ("catalog/calibration/gb200.toml", include_str!("../../catalog/calibration/gb200.toml")),
    ("catalog/calibration/h100.toml", include_str!("../../catalog/calibration/h100.toml")),
    ("catalog/calibration/h200.toml", include_str!("../../catalog/calibration/h200.toml")),
    ("catalog/calibration/k80.toml", include_str!("../../catalog/calibration/k80.toml")),
    ("catalog/calibration/p100.toml", include_str!("../../catalog/calibration/p100.toml")),
    ("catalog/calibration/t4.toml", include_str!("../../catalog/calibration/t4.toml")),
    ("catalog/calibration/v100.toml", include_str!("../../catalog/calibration/v100.toml")),
];

/// The calibrations of the catalog.
///
/// # Panics
/// If one of the embedded files is wrong, which a test excludes.
#[must_use]
pub fn calibrations() -> Vec<Calibration> {
    static ALL: std::sync::OnceLock<Vec<Calibration>> = std::sync::OnceLock::new();
    let read = |(file, text): (&str, &str)| {
        Calibration::from_toml(text, file).unwrap_or_else(|problems| panic!("{file} is wrong: {problems:?}"))
    };
    ALL.get_or_init(|| CALIBRATIONS.into_iter().map(read).collect()).clone()
}

/// The catalog of software stacks, as a file.
pub(crate) const STACKS: (&str, &str) =
    ("catalog/calibration/stacks.toml", include_str!("../../catalog/calibration/stacks.toml"));

/// The project's own catalog of software stacks.
///
/// # Panics
/// If the embedded file is wrong, which a test excludes.
#[must_use]
pub fn stacks() -> &'static cost::Stacks {
    static READ: std::sync::OnceLock<cost::Stacks> = std::sync::OnceLock::new();
    READ.get_or_init(|| {
        let (file, text) = STACKS;
        cost::Stacks::from_toml(text, file).unwrap_or_else(|problems| panic!("{file} is wrong: {problems:?}"))
    })
}

/// Everything known by name, in the order of the files.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Catalog {
    /// Kinds of device.
    pub devices: Vec<DeviceKind>,
    /// Kinds of link.
    pub links: Vec<Link>,
    /// Kinds of node.
    pub nodes: Vec<NodeEntry>,
    /// What joins nodes.
    pub fabrics: Vec<FabricEntry>,
    /// Models.
    pub models: Vec<Model>,
    /// Entries that are written and could not be read: what uses one of them is not to be told that there is none.
    wrong: Vec<String>,
}

impl Catalog {
    /// The project's own catalog.
    ///
    /// # Panics
    /// If one of the embedded files is wrong, which a test excludes.
    #[must_use]
    pub fn embedded() -> Self {
        static CATALOG: std::sync::OnceLock<Catalog> = std::sync::OnceLock::new();
        let read = || {
            let mut catalog = Self::default();
            for (file, text) in EMBEDDED {
                let problems = catalog.add_file(file, text);
                assert!(problems.is_empty(), "the embedded catalog is wrong: {problems:?}");
            }
            catalog
        };
        CATALOG.get_or_init(read).clone()
    }
    /// Adds the entries of a file and returns every problem found in it. Entries of such a file name no others.
    pub fn add_file(&mut self, file: &str, text: &str) -> Vec<Problem> {
        self.add_text(file, text, None)
    }
    /// The same; files that its entries name are looked for where the scenario's are.
    pub(crate) fn add_text(&mut self, file: &str, text: &str, sight: Option<&Sight<'_>>) -> Vec<Problem> {
        let ((), problems, _) = Reader::new(file).read(text, |root| self.add_tables(root, sight));
        problems
    }
    /// Adds the entries of the five tables of a file.
    pub(crate) fn add_tables(&mut self, root: &Table<'_>, sight: Option<&Sight<'_>>) {
        let entries = |key| root.table(key).map(|table| table.entries()).unwrap_or_default();
        let (devices, links, nodes) = (entries("devices"), entries("links"), entries("nodes"));
        let (fabrics, models) = (entries("fabrics"), entries("models"));
        for (name, value) in devices {
            let device = entries::device(self, name.clone(), &value);
            self.note(name, device, |catalog| &mut catalog.devices);
        }
        for (name, value) in links {
            let link = entries::link(name.clone(), &value);
            self.note(name, link, |catalog| &mut catalog.links);
        }
        for (name, value) in nodes {
            let (node, measured) = entries::node(self, name.clone(), &value, sight).unzip();
            self.note(name, node, |catalog| &mut catalog.nodes);
            self.links.extend(measured.into_iter().flatten());
        }
        for (name, value) in fabrics {
            let fabric = entries::fabric(name.clone(), &value, sight);
            self.note(name, fabric, |catalog| &mut catalog.fabrics);
        }
        for (name, value) in models {
            let model = value.table().and_then(|table| {
                let model = model::written_out(&table, name.clone());
                table.get("source").and_then(|v| v.text());
                table.finish();
                model
            });
            self.note(name, model, |catalog| &mut catalog.models);
        }
    }
    /// Adds an entry to its list, or its name to those that could not be read.
    fn note<T>(&mut self, name: String, entry: Option<T>, list: impl FnOnce(&mut Self) -> &mut Vec<T>) {
        match entry {
            Some(entry) => list(self).push(entry),
            None => self.wrong.push(name),
        }
    }
    /// Whether an entry of this name is written and could not be read, which was said where it is written.
    pub(crate) fn is_wrong(&self, name: &str) -> bool {
        self.wrong.iter().any(|wrong| wrong == name)
    }
    /// A device by name.
    #[must_use]
    pub fn device(&self, name: &str) -> Option<&DeviceKind> {
        self.devices.iter().rfind(|device| device.name == name)
    }
    /// A link by name.
    #[must_use]
    pub fn link(&self, name: &str) -> Option<&Link> {
        self.links.iter().rfind(|link| link.name == name)
    }
    /// A node by name.
    #[must_use]
    pub fn node(&self, name: &str) -> Option<&NodeEntry> {
        self.nodes.iter().rfind(|node| node.name == name)
    }
    /// A fabric by name.
    #[must_use]
    pub fn fabric(&self, name: &str) -> Option<&FabricEntry> {
        self.fabrics.iter().rfind(|fabric| fabric.name == name)
    }
    /// A model by name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&Model> {
        self.models.iter().rfind(|model| model.name == name)
    }
}

/// The names of number formats.
pub(crate) const PRECISIONS: [(&str, Precision); 5] = [
    ("fp32", Precision::Fp32),
    ("tf32", Precision::Tf32),
    ("fp16", Precision::Fp16),
    ("bf16", Precision::Bf16),
    ("fp8", Precision::Fp8),
];
