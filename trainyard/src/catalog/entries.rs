//! Entries of catalog files.

use ir::{DeviceKind, Link, Problem};

use formats::topology::slurm;

use super::{Catalog, PRECISIONS, observed};
use crate::read::{Table, Value, suggest};
use crate::scenario::Sight;

/// Most devices in one node: the largest domains sold hold 72, the largest emulated nodes a few hundred.
const MOST_DEVICES_IN_A_NODE: u64 = 1024;

/// The calibration of a device that names none: every constant of it is assumed.
const UNCALIBRATED: &str = "analytic";

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

/// What joins nodes, by name. See [`ir::Fabric`].
#[derive(Clone, PartialEq, Debug)]
pub struct FabricEntry {
    /// Its name.
    pub name: String,
    /// Nodes under one leaf switch (or in one zone); 0 means one switch for all.
    pub leaf_nodes: u32,
    /// Slurm's description, in place of that number.
    pub topology: Option<slurm::Topology>,
    /// Down-link over up-link bandwidth of a leaf.
    pub oversubscription: f64,
    /// Name of the link that joins leaves, where it is another kind than the NICs.
    pub up_link: Option<String>,
    /// Whether a leaf is a switch for each NIC of a node.
    pub rails: bool,
}

/// The entry that `like` names among those before, by `find`. An outer `None` means a name that does not exist.
fn like<'c, T>(
    table: &Table<'_>,
    find: impl FnOnce(&str) -> Option<&'c T>,
    names: impl FnOnce() -> Vec<&'c str>,
) -> Option<Option<&'c T>> {
    let Some(value) = table.get("like") else { return Some(None) };
    let name = value.text()?;
    let found = find(name);
    if found.is_none() {
        value.problem(format!("there is no entry `{name}` before this one"), Some(suggest(name, names())));
    }
    found.map(Some)
}

/// What a key says, else what the entry before says.
fn say<'d, T>(value: Option<Value<'d>>, before: Option<T>, read: impl FnOnce(&Value<'d>) -> Option<T>) -> Option<T> {
    match value {
        Some(value) => read(&value),
        None => before,
    }
}

/// A key that must be there unless an entry before says it.
fn needed<'d>(table: &Table<'d>, before: bool, key: &'static str, example: &str) -> Option<Value<'d>> {
    if before { table.get(key) } else { table.require(key, example) }
}

fn text(value: &Value<'_>) -> Option<String> {
    value.text().map(str::to_owned)
}

pub(super) fn device(catalog: &Catalog, name: String, value: &Value<'_>) -> Option<DeviceKind> {
    let table = value.table()?;
    let names = || catalog.devices.iter().map(|device| device.name.as_str()).collect();
    let like = like(&table, |wanted| catalog.device(wanted), names)?;
    let before = like.is_some();
    let calibration = say(table.get("calibration"), like.map(|of| of.calibration.clone()), text);
    let peak = say(needed(&table, before, "peak", "{ bf16 = \"312TFLOP/s\" }"), like.map(|of| of.peak.clone()), peaks);
    let memory =
        say(needed(&table, before, "memory", "\"80GiB\""), like.map(|of| of.memory), |v| v.quantity::<ir::Bytes>());
    let memory_bandwidth = needed(&table, before, "memory_bandwidth", "\"2039GB/s\"");
    let memory_bandwidth = say(memory_bandwidth, like.map(|of| of.memory_bandwidth), |v| v.quantity());
    let multiprocessors =
        say(table.get("multiprocessors"), Some(like.map_or(1, |of| of.multiprocessors)), |v| v.count());
    let slowdown = say(table.get("slowdown"), Some(like.map_or(1.0, |of| of.slowdown)), |v| v.number(1.0..=1e6));
    let tdp_watts = say(table.get("tdp"), like.and_then(|of| of.tdp_watts), watts);
    // A price of the user's own does not come from where the catalog's came.
    let owner = if table.has("usd_per_hour") { None } else { like.and_then(|of| of.price_source.clone()) };
    let usd_per_hour = say(table.get("usd_per_hour"), like.and_then(|of| of.usd_per_hour), |v| v.number(0.0..=1e6));
    let price_source = say(table.get("price_source"), owner, text);
    let source = say(table.get("source"), like.map(|of| of.source.clone()), text);
    table.finish();
    Some(DeviceKind {
        name,
        calibration: calibration.unwrap_or_else(|| UNCALIBRATED.to_owned()),
        peak: peak?,
        memory: memory?,
        memory_bandwidth: memory_bandwidth?,
        multiprocessors: multiprocessors?,
        slowdown: slowdown?,
        tdp_watts,
        usd_per_hour,
        price_source,
        source: source.unwrap_or_else(|| "the scenario".to_owned()),
    })
}

fn peaks(value: &Value<'_>) -> Option<Vec<(ir::Precision, ir::FlopsPerSecond)>> {
    let table = value.table()?;
    let found = PRECISIONS.iter().filter_map(|(key, precision)| Some((*precision, table.get(key)?.quantity()?)));
    let found: Vec<_> = found.collect();
    table.finish();
    if found.is_empty() {
        let names: Vec<&str> = PRECISIONS.iter().map(|(name, _)| *name).collect();
        let hint = format!("one or more of {}", names.join(", "));
        table.report(Problem::new(table.path(), "names no number format").hint(hint));
    }
    Some(found)
}

/// A power: a text in watts or kilowatts.
fn watts(value: &Value<'_>) -> Option<f64> {
    let written = value.text()?;
    let (number, scale) = match (written.strip_suffix("kW"), written.strip_suffix('W')) {
        (Some(number), _) => (number, 1e3),
        (None, Some(number)) => (number, 1.0),
        (None, None) => ("", 1.0),
    };
    let power = number.trim().parse::<f64>().ok().map(|number| number * scale);
    let found = power.filter(|watts| watts.is_finite() && *watts > 0.0);
    if found.is_none() {
        value.problem(format!("`{written}` is not a power"), Some("such as \"700W\" or \"1.2kW\"".to_owned()));
    }
    found
}

pub(super) fn link(name: String, value: &Value<'_>) -> Option<Link> {
    let table = value.table()?;
    let bandwidth = table.require("bandwidth", "\"400Gbps\"").and_then(|v| v.quantity());
    let latency = table.require("latency", "\"2us\"").and_then(|v| v.quantity());
    let efficiency = table.get("efficiency").and_then(|v| v.number(0.001..=1.0));
    table.get("source").and_then(|v| text(&v));
    table.finish();
    Some(Link { name, bandwidth: bandwidth?, latency: latency?, efficiency })
}

pub(crate) fn fabric(name: String, value: &Value<'_>, sight: Option<&Sight<'_>>) -> Option<FabricEntry> {
    let table = value.table()?;
    let topology = observed::of_fabric(&table, sight);
    let leaf_nodes = table.get("leaf_nodes").map_or(Some(0), |v| v.count_from(0));
    let oversubscription = table.get("oversubscription").map_or(Some(1.0), |v| v.number(1.0..=1000.0));
    let up_link = table.get("up_link").and_then(|v| text(&v));
    let rails = table.get("rails").map_or(Some(false), |v| v.boolean());
    table.get("source").and_then(|v| text(&v));
    table.finish();
    Some(FabricEntry {
        name,
        leaf_nodes: leaf_nodes?,
        topology: topology?,
        oversubscription: oversubscription?,
        up_link,
        rails: rails?,
    })
}

/// A kind of node, and the links that were measured in it.
pub(super) fn node(
    catalog: &Catalog,
    name: String,
    value: &Value<'_>,
    sight: Option<&Sight<'_>>,
) -> Option<(NodeEntry, Vec<Link>)> {
    let table = value.table()?;
    let names = || catalog.nodes.iter().map(|node| node.name.as_str()).collect();
    let like = like(&table, |wanted| catalog.node(wanted), names)?;
    let before = like.is_some();
    let devices = needed(&table, before, "devices", "\"8 x h100-sxm5-80gb\"");
    // Other devices are not in the domains of the ones before.
    let domain_before = if devices.is_some() { None } else { like.map(|of| of.domain_size) };
    let devices = say(devices, like.map(|of| of.devices.clone()), device_names);
    let size = devices.as_ref().map_or(1, Vec::len) as u64;
    let observed = observed::of_node(&table, devices.as_ref().map(Vec::len), sight);
    let domain_observed = observed.as_ref().and_then(|of| of.domain_size);
    let domain_size = match (table.get("domain_size"), domain_observed) {
        (None, Some(observed)) => Some(observed),
        (None, None) => domain_before.or_else(|| u32::try_from(size).ok()),
        (Some(value), None) => domain_size(&value, size),
        (Some(value), Some(observed)) => {
            let written = domain_size(&value, size)?;
            if written != observed {
                value.problem(format!("{written}, and the file says {observed}"), Some("leave one out".to_owned()));
            }
            (written == observed).then_some(written)
        }
    };
    let name_of =
        |key, example, before_it: Option<&String>| say(needed(&table, before, key, example), before_it.cloned(), text);
    let domain_link = name_of("domain_link", "\"nvlink4\"", like.map(|of| &of.domain_link));
    let host_link = name_of("host_link", "\"pcie5x16\"", like.map(|of| &of.host_link));
    let adapters = observed.as_ref().and_then(|of| of.nics);
    let nics = say(table.get("nics"), Some(adapters.unwrap_or_else(|| like.map_or(1, |of| of.nics))), |v| v.count());
    let nic = name_of("nic", "\"ib-ndr\"", like.map(|of| &of.nic));
    table.get("source").and_then(|v| text(&v));
    table.finish();
    let (mut domain_link, mut host_link, observed) = (domain_link?, host_link?, observed?);
    let mut links = Vec::new();
    for (what, level, link) in
        [("domain", &observed.inside, &mut domain_link), ("host", &observed.across, &mut host_link)]
    {
        if let Some(level) = level {
            let measured = observed::link(format!("{what} of {name}"), level, link, catalog, value)?;
            link.clone_from(&measured.name);
            links.push(measured);
        }
    }
    let entry = NodeEntry {
        name,
        devices: devices?,
        domain_size: domain_size?,
        domain_link,
        host_link,
        nics: nics?,
        nic: nic?,
    };
    Some((entry, links))
}

fn domain_size(value: &Value<'_>, devices: u64) -> Option<u32> {
    let domain = value.integer(1..=MOST_DEVICES_IN_A_NODE)?;
    if !devices.is_multiple_of(domain) {
        value.problem(format!("{domain} does not divide the node's {devices} devices"), None);
        return None;
    }
    u32::try_from(domain).ok()
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
