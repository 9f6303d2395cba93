//! What is known by name: devices, links, nodes and models, each with its source.
//!
//! A catalog file and a scenario's own tables are one language: `[devices.NAME]`, `[links.NAME]`, `[nodes.NAME]`,
//! `[models.NAME]`. The files of the project's catalog are part of the program; a scenario's `catalogs` and its own
//! tables come after them, and the last entry of a name counts.

use ir::{DeviceKind, Link, Model, Precision, Problem};

use crate::read::{Reader, Table, Value};
use crate::scenario::model;

/// The project's own catalog, as files of `catalog/`.
const EMBEDDED: [(&str, &str); 8] = [
    ("catalog/devices/nvidia.toml", include_str!("../../catalog/devices/nvidia.toml")),
    ("catalog/devices/cpu.toml", include_str!("../../catalog/devices/cpu.toml")),
    ("catalog/links/links.toml", include_str!("../../catalog/links/links.toml")),
    ("catalog/nodes/gpu.toml", include_str!("../../catalog/nodes/gpu.toml")),
    ("catalog/nodes/cpu.toml", include_str!("../../catalog/nodes/cpu.toml")),
    ("catalog/models/gpt.toml", include_str!("../../catalog/models/gpt.toml")),
    ("catalog/models/llama.toml", include_str!("../../catalog/models/llama.toml")),
    ("catalog/models/tiny.toml", include_str!("../../catalog/models/tiny.toml")),
];

/// Most devices in one node: the largest domains sold hold 72, the largest emulated nodes a few hundred.
const MOST_DEVICES_IN_A_NODE: u64 = 1024;

/// A kind of node whose parts are names.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeEntry {
    /// Its name.
    pub name: String,
    /// Names of its devices, in order.
    pub devices: Vec<String>,
    /// Devices per domain.
    pub domain_size: u32,
    /// Name of the link inside a domain.
    pub domain_link: String,
    /// Name of the link between domains of the node.
    pub host_link: String,
    /// NICs.
    pub nics: u32,
    /// Name of the link of one NIC.
    pub nic: String,
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
    /// Models.
    pub models: Vec<Model>,
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
    /// Adds the entries of a file and returns every problem found in it.
    pub fn add_file(&mut self, file: &str, text: &str) -> Vec<Problem> {
        let ((), problems, _) = Reader::new(file).read(text, |root| self.add_tables(root));
        problems
    }
    /// Adds the entries of the four tables of a file.
    pub(crate) fn add_tables(&mut self, root: &Table<'_>) {
        let entries = |key| root.table(key).map(|table| table.entries()).unwrap_or_default();
        let (devices, links, nodes, models) =
            (entries("devices"), entries("links"), entries("nodes"), entries("models"));
        self.devices.extend(devices.into_iter().filter_map(|(name, value)| device(name, &value)));
        self.links.extend(links.into_iter().filter_map(|(name, value)| link(name, &value)));
        self.nodes.extend(nodes.into_iter().filter_map(|(name, value)| node(name, &value)));
        self.models.extend(models.into_iter().filter_map(|(name, value)| {
            let table = value.table()?;
            let model = model::written_out(&table, name);
            table.get("source");
            table.finish();
            model
        }));
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
    /// A model by name.
    #[must_use]
    pub fn model(&self, name: &str) -> Option<&Model> {
        self.models.iter().rfind(|model| model.name == name)
    }
}

/// The names of number formats.
pub(crate) const PRECISIONS: [(&str, Precision); 3] =
    [("fp32", Precision::Fp32), ("fp16", Precision::Fp16), ("bf16", Precision::Bf16)];

fn device(name: String, value: &Value<'_>) -> Option<DeviceKind> {
    let table = value.table()?;
    let calibration =
        table.get("calibration").and_then(|v| v.text()).map_or_else(|| "analytic".to_owned(), str::to_owned);
    let peak = table.require("peak", "{ bf16 = \"312TFLOP/s\" }").and_then(|v| v.table()).map(|peaks| {
        let found = PRECISIONS.iter().filter_map(|(key, precision)| Some((*precision, peaks.get(key)?.quantity()?)));
        let found: Vec<_> = found.collect();
        peaks.finish();
        if found.is_empty() {
            peaks.report(Problem::new(peaks.path(), "names no number format").hint("one or more of fp32, fp16, bf16"));
        }
        found
    });
    let memory = table.require("memory", "\"80GiB\"").and_then(|v| v.quantity::<ir::Bytes>());
    let memory_bandwidth = table.require("memory_bandwidth", "\"2039GB/s\"").and_then(|v| v.quantity());
    let multiprocessors = table.get("multiprocessors").map_or(Some(1), |v| v.count());
    let slowdown = table.get("slowdown").map_or(Some(1.0), |v| v.number(1.0..=1e6));
    let usd_per_hour = table.get("usd_per_hour").and_then(|v| v.number(0.0..=1e6));
    let source = table.get("source").and_then(|v| v.text()).unwrap_or("the scenario").to_owned();
    table.finish();
    Some(DeviceKind {
        name,
        calibration,
        peak: peak?,
        memory: memory?,
        memory_bandwidth: memory_bandwidth?,
        multiprocessors: multiprocessors?,
        slowdown: slowdown?,
        usd_per_hour,
        source,
    })
}

fn link(name: String, value: &Value<'_>) -> Option<Link> {
    let table = value.table()?;
    let bandwidth = table.require("bandwidth", "\"400Gbps\"").and_then(|v| v.quantity());
    let latency = table.require("latency", "\"2us\"").and_then(|v| v.quantity());
    table.get("source");
    table.finish();
    Some(Link { name, bandwidth: bandwidth?, latency: latency? })
}

fn node(name: String, value: &Value<'_>) -> Option<NodeEntry> {
    let table = value.table()?;
    let devices = table.require("devices", "\"8 x h100-sxm5-80gb\"").and_then(|v| device_names(&v));
    let size = devices.as_ref().map_or(1, Vec::len) as u64;
    let domain_size = match table.get("domain_size") {
        None => u32::try_from(size).ok(),
        Some(value) => value.integer(1..=size).and_then(|domain| {
            if !size.is_multiple_of(domain) {
                value.problem(format!("{domain} does not divide the node's {size} devices"), None);
                return None;
            }
            u32::try_from(domain).ok()
        }),
    };
    let text = |key, example| table.require(key, example).and_then(|v| v.text()).map(str::to_owned);
    let domain_link = text("domain_link", "\"nvlink4\"");
    let host_link = text("host_link", "\"pcie5x16\"");
    let nics = table.get("nics").map_or(Some(1), |v| v.count());
    let nic = text("nic", "\"ib-ndr\"");
    table.get("source");
    table.finish();
    Some(NodeEntry {
        name,
        devices: devices?,
        domain_size: domain_size?,
        domain_link: domain_link?,
        host_link: host_link?,
        nics: nics?,
        nic: nic?,
    })
}

/// `"8 x name"`, `"name"`, or a list of those.
fn device_names(value: &Value<'_>) -> Option<Vec<String>> {
    let parts = if value.is_list() { value.list()? } else { vec![value.clone()] };
    let mut names = Vec::new();
    for part in parts {
        let (count, name) = counted(&part)?;
        if u64::from(count) + names.len() as u64 > MOST_DEVICES_IN_A_NODE {
            part.problem(format!("a node holds at most {MOST_DEVICES_IN_A_NODE} devices"), None);
            return None;
        }
        names.extend(std::iter::repeat_n(name.to_owned(), count as usize));
    }
    if names.is_empty() {
        value.problem("a node needs a device", None);
        return None;
    }
    Some(names)
}

/// `"32 x dgx-h100"` or `"dgx-h100"`.
pub(crate) fn counted<'d>(value: &Value<'d>) -> Option<(u32, &'d str)> {
    let text = value.text()?;
    let Some((count, name)) = text.split_once(" x ") else { return Some((1, text.trim())) };
    let digits = count.trim();
    let number = digits.parse::<u32>().ok().filter(|n| *n >= 1);
    if number.is_none() {
        let message = format!("`{digits}` is not a count between 1 and {}", u32::MAX);
        value.problem(message, Some(format!("such as \"32 x {}\"", name.trim())));
    }
    Some((number?, name.trim()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_embedded_catalog_is_sound() {
        let catalog = Catalog::embedded();
        for node in &catalog.nodes {
            for device in &node.devices {
                assert!(catalog.device(device).is_some(), "{}: no device {device}", node.name);
            }
            for link in [&node.domain_link, &node.host_link, &node.nic] {
                assert!(catalog.link(link).is_some(), "{}: no link {link}", node.name);
            }
        }
        for (file, text) in EMBEDDED {
            let tables = text.lines().filter(|line| line.starts_with('[')).count();
            let sources = text.lines().filter(|line| line.starts_with("source = ")).count();
            assert_eq!(tables, sources, "{file}: each row has its source");
        }
    }

    #[test]
    fn models_have_their_published_sizes() {
        let check = |name: &str, expect: u64| {
            let catalog = Catalog::embedded();
            assert_eq!(catalog.model(name).expect(name).parameters(), expect, "{name}");
        };
        check("llama-3.1-8b", 8_030_261_248);
        check("llama-3.1-70b", 70_553_706_496);
        check("llama-3.1-405b", 405_853_388_800);
        check("gpt2-124m", 124_439_808);
        // Published as 175.0 B: 96 layers of 12 * 12288^2 + 13 * 12288, embeddings of 50257 and 2048 rows, the last norm.
        check("gpt3-175b", 96 * (12 * 12288 * 12288 + 13 * 12288) + (50257 + 2048) * 12288 + 2 * 12288);
        check("gpt-13b", 40 * (12 * 5120 * 5120 + 13 * 5120) + (50257 + 2048) * 5120 + 2 * 5120);
    }
}
