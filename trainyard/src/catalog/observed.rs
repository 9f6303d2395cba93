//! Files that say how the devices of a node and the nodes of a cluster are joined, where a catalog entry names one.

use std::path::Path;

use formats::topology::{Domains, bandwidth, matrix, slurm};
use ir::{Link, SimDuration};

use super::Catalog;
use crate::read::{Table, Value, suggest};
use crate::scenario::Sight;

/// What files say of a kind of node.
#[derive(Debug, Default)]
pub(super) struct Observed {
    /// Devices of each domain.
    pub(super) domain_size: Option<u32>,
    /// Network adapters that some device is nearest to.
    pub(super) nics: Option<u32>,
    /// The link inside a domain, measured.
    pub(super) inside: Option<bandwidth::Level>,
    /// The link between domains, measured.
    pub(super) across: Option<bandwidth::Level>,
}

/// The text of a file that a key names, and its name for problems.
fn text(value: &Value<'_>, sight: Option<&Sight<'_>>) -> Option<(String, String)> {
    let path = value.text()?;
    let Some(sight) = sight else {
        value.problem("a file is named, and this catalog has no folder to find it in", None);
        return None;
    };
    sight.read(Path::new(path), value)
}

/// The value of a reader; its problems are noted with their places in the file.
fn noted<T>(result: Result<T, Vec<ir::Problem>>, sight: Option<&Sight<'_>>) -> Option<T> {
    match result {
        Ok(value) => Some(value),
        Err(problems) => {
            let sight = sight.expect("a file was read");
            problems.into_iter().for_each(|problem| sight.report(problem));
            None
        }
    }
}

/// Reads the files that a node's entry names, and holds what they say against its `devices` and each other. `None` if
/// something is wrong with them.
pub(super) fn of_node(table: &Table<'_>, devices: Option<usize>, sight: Option<&Sight<'_>>) -> Option<Observed> {
    let mut found = Observed::default();
    let mut sound = true;
    if let Some(value) = table.get("topology") {
        let read = text(&value, sight).and_then(|(file, text)| noted(matrix::read(&text, &file), sight));
        let size = read.as_ref().and_then(|of| size(&value, &of.domains(), of.devices.len(), devices));
        sound &= size.is_some();
        found.domain_size = size;
        let adapters = read.map_or(0, |of| of.adapters_in_use());
        found.nics = u32::try_from(adapters).ok().filter(|count| *count > 0);
    }
    if let Some(value) = table.get("measured_bandwidth") {
        let read = text(&value, sight).and_then(|(file, text)| noted(bandwidth::read(&text, &file), sight));
        if let Some(of) = &read {
            let domains = of.domains();
            let size = size(&value, &domains, of.bytes_per_second.len(), devices);
            sound &= size.is_some();
            if let (Some(before), Some(size)) = (found.domain_size, size)
                && before != size
            {
                value.problem(format!("says domains of {size} devices, and the topology domains of {before}"), None);
                sound = false;
            }
            found.domain_size = size.or(found.domain_size);
            (found.inside, found.across) = (of.inside(&domains), of.across(&domains));
        }
        sound &= read.is_some();
    }
    sound.then_some(found)
}

/// The size of every domain, of as many devices as the node has.
fn size(value: &Value<'_>, domains: &Domains, count: usize, devices: Option<usize>) -> Option<u32> {
    if let Some(devices) = devices.filter(|devices| *devices != count) {
        value.problem(format!("is of {count} devices, and the node has {devices}"), None);
        return None;
    }
    match domains.uniform() {
        Ok(size) => u32::try_from(size).ok(),
        Err(why) => {
            value.problem(why, None);
            None
        }
    }
}

/// A measured link: rate as measured, so that all of it is reached, and latency as measured, else that of the link which
/// the node names.
pub(super) fn link(
    name: String,
    level: &bandwidth::Level,
    named: &str,
    catalog: &Catalog,
    value: &Value<'_>,
) -> Option<Link> {
    let Some(base) = catalog.link(named) else {
        let hint = suggest(named, catalog.links.iter().map(|link| link.name.as_str()));
        value.problem(format!("there is no link `{named}`"), Some(hint));
        return None;
    };
    let bandwidth = ir::BytesPerSecond::new(level.bytes_per_second)?;
    let latency = level.latency_seconds.and_then(SimDuration::from_seconds).unwrap_or(base.latency);
    Some(Link { name, bandwidth, latency, efficiency: Some(1.0) })
}

/// Slurm's description of a fabric.
pub(super) fn of_fabric(table: &Table<'_>, sight: Option<&Sight<'_>>) -> Option<Option<slurm::Topology>> {
    let Some(value) = table.get("topology") else { return Some(None) };
    if table.has("leaf_nodes") {
        value.problem("a topology and leaf_nodes say the same thing", Some("leave one out".to_owned()));
    }
    let (file, text) = text(&value, sight)?;
    noted(slurm::read(&text, &file), sight).map(Some)
}
