//! Devices, nodes and links of a row: what the row says first, the catalog second.

use formats::measured_runs::{Fault, Hardware, Reason};
use ir::{BytesPerSecond, Cluster, DeviceKind, DeviceKindId, Fabric, Link, NodeGroup, NodeKind, NodeKindId};

use crate::catalog::{Catalog, NodeEntry};

/// Devices in equal nodes on one non-blocking network.
#[derive(Clone, PartialEq, Debug)]
pub struct ResolvedHardware {
    /// The kind of device.
    pub device: DeviceKind,
    /// The node of the catalog that fills what the row leaves open.
    pub node: Option<String>,
    /// Devices of a node that are used.
    pub devices_per_node: u32,
    /// Nodes.
    pub nodes: u32,
    /// Devices of a domain.
    pub domain_size: u32,
    /// One direction of a device's link inside a domain.
    pub domain_link: Link,
    /// Between domains of a node.
    pub host_link: Link,
    /// NICs of a node that its used devices share.
    pub nics: u32,
    /// One direction of one NIC.
    pub nic: Link,
}

impl ResolvedHardware {
    /// The cluster of these nodes.
    #[must_use]
    pub fn cluster(&self) -> Cluster {
        let kind = NodeKind {
            name: self.node.clone().unwrap_or_else(|| "as published".to_owned()),
            devices: vec![DeviceKindId::new(0); self.devices_per_node as usize],
            domain_size: self.domain_size,
            domain_link: self.domain_link.clone(),
            host_link: self.host_link.clone(),
            nics: self.nics,
            nic: self.nic.clone(),
        };
        Cluster {
            device_kinds: vec![self.device.clone()],
            node_kinds: vec![kind],
            groups: vec![NodeGroup { kind: NodeKindId::new(0), count: self.nodes }],
            fabric: Fabric::one_switch(),
        }
    }
}

/// Words that name makers and not devices.
const MAKERS: [&str; 9] = ["nvidia", "amd", "intel", "tesla", "geforce", "instinct", "habana", "gpu", "quadro"];
/// Beginnings of words that say how a device is mounted.
const FORMS: [&str; 5] = ["sxm", "pcie", "nvl", "oam", "gcd"];
/// Rates that differ by less are the same.
const SAME_RATE: f64 = 0.02;

/// Tokens of a device's name in lower case.
fn tokens(name: &str) -> Vec<String> {
    let parts = name.split(|c: char| !c.is_ascii_alphanumeric()).map(str::to_lowercase);
    parts.filter(|part| !part.is_empty() && !MAKERS.contains(&part.as_str())).collect()
}

fn gigabytes(token: &str) -> Option<f64> {
    ["gib", "gb", "g"].into_iter().find_map(|unit| token.strip_suffix(unit)).and_then(|number| number.parse().ok())
}

fn form(token: &str) -> Option<&'static str> {
    // The 72 of `NVL72` is a rack, not the mounting of a card.
    let form = FORMS.into_iter().find(|form| token.starts_with(form))?;
    (form != "nvl" || token == "nvl").then_some(form)
}

/// How well a device of the catalog fits the words; `None` if it is another.
fn fit(candidate: &str, words: &[String], memory_gb: Option<f64>) -> Option<i32> {
    let named = tokens(candidate);
    let is_detail = |token: &String| gigabytes(token).is_some() || form(token).is_some() || token.starts_with("hbm");
    let identity: Vec<&String> = named.iter().filter(|token| !is_detail(token)).collect();
    let joined: String = identity.iter().map(|token| token.as_str()).collect();
    // Some write apart what others write together: `Gaudi 2`, `RTX4090`.
    let apart = || words.windows(2).any(|pair| pair.concat() == joined);
    if !identity.iter().all(|token| words.contains(token)) && !words.contains(&joined) && !apart() {
        return None;
    }
    let mut score = 0;
    let capacity = named.iter().find_map(|token| gigabytes(token));
    let wanted = memory_gb.or_else(|| words.iter().find_map(|token| gigabytes(token)));
    if let (Some(capacity), Some(wanted)) = (capacity, wanted) {
        // Vendors and systems count the same memory 4 % apart, and a B200 has 180 or 192 GB by who lists it.
        score += if (capacity / wanted - 1.0).abs() < 0.08 { 4 } else { -8 };
    }
    let mounted = named.iter().find_map(|token| form(token));
    score += match (mounted, words.iter().find_map(|token| form(token))) {
        (Some(a), Some(b)) if a == b => 4,
        (Some(_), Some(_)) => -8,
        // The mounted module is what clusters are built of.
        (Some("sxm"), None) => 1,
        _ => 0,
    };
    let stacks = |list: &[String]| list.iter().find(|token| token.starts_with("hbm")).cloned();
    score += match (stacks(&named), stacks(words)) {
        (Some(a), Some(b)) if a == b => 2,
        (None, None) => 0,
        _ => -2,
    };
    Some(score)
}

/// The device of the catalog that the row means.
fn device<'c>(row: &Hardware, catalog: &'c Catalog, assumed: &mut Vec<String>) -> Result<&'c DeviceKind, Fault> {
    let words = tokens(&row.device);
    let mut fits: Vec<(i32, &DeviceKind)> = catalog
        .devices
        .iter()
        .filter_map(|device| Some((fit(&device.name, &words, row.device_memory_gb)?, device)))
        .collect();
    // A later entry of the same fit counts, as everywhere in the catalog.
    fits.sort_by_key(|(score, _)| *score);
    match fits.last() {
        Some((score, device)) if *score > -8 => {
            let mounted = tokens(&device.name).iter().any(|token| form(token).is_some());
            let open = fits.len() > 1 && mounted && !words.iter().any(|token| form(token).is_some());
            if *score < 0 || open {
                assumed.push(format!("device = {}: the nearest to `{}`", device.name, row.device));
            }
            Ok(device)
        }
        _ => {
            let mut near: Vec<(f64, &str)> = catalog
                .devices
                .iter()
                .map(|device| (strsim::jaro_winkler(&row.device.to_lowercase(), &device.name), device.name.as_str()))
                .collect();
            near.sort_by(|a, b| b.0.total_cmp(&a.0));
            let names: Vec<&str> = near.iter().take(3).map(|(_, name)| *name).collect();
            let message = format!("`{}` is not in the catalog; the nearest are {}", row.device, names.join(", "));
            Err(Fault::new(Reason::UnknownDevice, "gpu", message))
        }
    }
}

/// Beginnings of the names of links of the kinds that the words say, the likeliest first.
fn networks(words: &str) -> Vec<&'static str> {
    const KINDS: [(&str, &[&str]); 6] = [
        ("omni-path", &["omni-path", "omnipath"]),
        ("slingshot", &["slingshot"]),
        ("efa", &["efa"]),
        ("ib-", &["infiniband", "ib ", "ib/", "/ib", "hdr", "ndr", "edr", "quantum"]),
        ("roce-", &["roce", "rdma"]),
        ("eth-", &["ethernet", "gbe", "tcp"]),
    ];
    let lower = format!("{} ", words.to_lowercase());
    let named = KINDS.into_iter().filter(|(_, list)| list.iter().any(|word| lower.contains(word)));
    named.map(|(kind, _)| kind).collect()
}

/// Whether a link is of a kind that the words say; any is, where they say none.
fn is_named(link: &str, words: &str) -> bool {
    let kinds = networks(words);
    kinds.is_empty() || kinds.iter().any(|kind| link.starts_with(kind))
}

/// NICs that the words count: `8x HDR200`, `4x100Gb`, `100Gb x4/node`.
fn counted_nics(words: &str) -> Option<u32> {
    let lower = words.to_lowercase();
    let mut tokens = lower.split([' ', ',', ':', ';']);
    tokens.find_map(|token| {
        let digits = |text: &str| text.parse::<u32>().ok().filter(|count| (1..=16).contains(count));
        let (left, right) = token.split_once('x')?;
        match right.split_once('/') {
            Some((count, "node")) if left.is_empty() => digits(count),
            _ => digits(left),
        }
    })
}

fn scaled(link: &Link, bytes_per_second: f64) -> Option<Link> {
    if (bytes_per_second / link.bandwidth.get() - 1.0).abs() < SAME_RATE {
        return Some(link.clone());
    }
    Some(Link { bandwidth: BytesPerSecond::new(bytes_per_second)?, ..link.clone() })
}

/// The link of a kind whose rate is nearest.
fn nearest_link<'c>(catalog: &'c Catalog, kind: &str, bytes_per_second: f64) -> Option<&'c Link> {
    let distance = |link: &&Link| libm::log(link.bandwidth.get() / bytes_per_second).abs();
    catalog.links.iter().filter(|link| link.name.starts_with(kind)).min_by(|a, b| distance(a).total_cmp(&distance(b)))
}

/// The node of the catalog that is most like the row's.
fn node<'c>(row: &Hardware, device: &DeviceKind, catalog: &'c Catalog) -> Option<&'c NodeEntry> {
    let words = row.inter_link.as_deref().unwrap_or_default();
    let inside = row.intra_link.as_deref().unwrap_or_default().to_lowercase();
    let score = |node: &NodeEntry| {
        let mut score = if node.devices.len() == row.devices_per_node as usize { 16 } else { 0 };
        let named = !networks(words).is_empty() && is_named(&node.nic, words);
        score += if named { 4 } else { 0 };
        match (row.inter_gbit_per_s, catalog.link(&node.nic)) {
            (Some(rate), Some(nic)) => {
                let share = nic.bandwidth.get() * 8e-9 * f64::from(node.nics) / node.devices.len() as f64;
                score += if (share / rate - 1.0).abs() < 0.1 { 6 } else { 0 };
            }
            // Published clusters are built with a NIC for each device unless they say otherwise.
            (None, Some(_)) => score += i32::from(node.nics as usize >= node.devices.len()),
            (_, None) => {}
        }
        // A cloud's own network is none that another's words or rates could mean.
        let of_a_cloud = ["gcp-", "efa"].iter().any(|kind| node.nic.starts_with(kind));
        score -= if of_a_cloud && !named { 8 } else { 0 };
        let pcie = inside.contains("pcie");
        score + if !inside.is_empty() && node.domain_link.starts_with("pcie") == pcie { 8 } else { 0 }
    };
    let of_device = catalog.nodes.iter().filter(|node| node.devices.iter().all(|name| *name == device.name));
    // Of equal ones the first, which is the vendor's own.
    of_device
        .fold(None, |best: Option<(i32, &NodeEntry)>, node| match best {
            Some((most, _)) if most >= score(node) => best,
            _ => Some((score(node), node)),
        })
        .map(|(_, node)| node)
}

/// Devices of a domain, of a node and nodes. NVLink domains of racks reach over many nodes; jobs that fill several take
/// 64 of their 72 devices, so that degrees stay powers of two.
fn shape(row: &Hardware, node: Option<&NodeEntry>, assumed: &mut Vec<String>) -> (u32, u32, u32) {
    let used = row.devices.min(row.devices_per_node);
    let domain = node.map_or(used, |node| node.domain_size);
    let is_rack =
        domain > row.devices_per_node && row.intra_link.as_deref().is_none_or(|words| !words.contains("PCIe"));
    if !is_rack {
        return (domain.min(used).max(1), used, row.nodes);
    }
    let per_rack = if row.devices <= domain {
        row.devices
    } else if row.devices.is_multiple_of(domain) && !row.devices.is_multiple_of(64) {
        domain
    } else if row.devices.is_multiple_of(64) {
        64.min(domain)
    } else {
        used
    };
    assumed.push(format!("NVLink domains of {per_rack} devices over {} nodes each", per_rack.div_ceil(used)));
    (per_rack, per_rack, row.devices / per_rack)
}

/// The hardware of a row. `fitted_nic` is a rate per device that was found on the table's own rows, in Gb/s.
pub(super) fn resolve(
    row: &Hardware,
    catalog: &Catalog,
    fitted_nic: Option<f64>,
    assumed: &mut Vec<String>,
) -> Result<ResolvedHardware, Fault> {
    let device = device(row, catalog, assumed)?;
    let node = node(row, device, catalog);
    let (domain_size, devices_per_node, nodes) = shape(row, node, assumed);
    let link = |name: &str, fallback: &str| {
        let found = catalog.link(name).or_else(|| catalog.link(fallback)).or_else(|| catalog.links.first());
        found.ok_or_else(|| Fault::new(Reason::UnknownDevice, "gpu", "the catalog has no links"))
    };
    if node.is_none() {
        assumed.push(format!("links: the catalog has no node of {}", device.name));
    }
    let host_link = link(node.map_or("", |node| &node.host_link), "pcie4x16")?.clone();
    let mut domain_link = link(node.map_or("", |node| &node.domain_link), "pcie4x16")?.clone();
    let by_pcie = row.intra_link.as_deref().is_some_and(|words| words.to_lowercase().contains("pcie"));
    if by_pcie && !domain_link.name.starts_with("pcie") {
        domain_link = host_link.clone();
    }
    // Tables give both directions together.
    if let Some(link) = row.intra_gbyte_per_s.and_then(|both| scaled(&domain_link, both / 2.0 * 1e9)) {
        domain_link = link;
    }
    let base = link(node.map_or("", |node| &node.nic), "roce-100g")?.clone();
    let (nics, nic) = nics(row, catalog, node, &base, fitted_nic, devices_per_node, assumed);
    Ok(ResolvedHardware {
        device: device.clone(),
        node: node.map(|node| node.name.clone()),
        devices_per_node,
        nodes,
        domain_size,
        domain_link,
        host_link,
        nics,
        nic,
    })
}

/// NICs of the used devices of a node, and one of them.
fn nics(
    row: &Hardware,
    catalog: &Catalog,
    node: Option<&NodeEntry>,
    base: &Link,
    fitted: Option<f64>,
    devices_per_node: u32,
    assumed: &mut Vec<String>,
) -> (u32, Link) {
    let words = row.inter_link.as_deref().unwrap_or_default();
    // A node of the catalog may hold more devices than the row's, as a whole rack does.
    let whole = node.map_or(row.devices_per_node, |node| u32::try_from(node.devices.len()).unwrap_or(u32::MAX)).max(1);
    let catalog_nics = node.map_or(1, |node| node.nics).max(1);
    let Some(rate) = row.inter_gbit_per_s.or(fitted) else {
        if row.nodes > 1 && nics_matter(row, devices_per_node) {
            assumed.push(format!("network = {catalog_nics} x {} for {whole} devices", base.name));
        }
        return ((catalog_nics * devices_per_node).div_ceil(whole).max(1), base.clone());
    };
    if row.inter_gbit_per_s.is_none() {
        assumed.push(format!("network = {rate} Gb/s a device, found on this table's rows"));
    }
    let total = rate * f64::from(devices_per_node) * 1e9 / 8.0;
    let kinds = networks(words);
    let of_kind = |rate: f64| match kinds.first() {
        Some(kind) if !is_named(&base.name, words) => nearest_link(catalog, kind, rate).unwrap_or(base),
        _ => base,
    };
    let stated = counted_nics(words).map(|nics| (nics * devices_per_node).div_ceil(row.devices_per_node));
    let count = stated.unwrap_or_else(|| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "clamped to a node's devices")]
        let ports = (total / of_kind(total).bandwidth.get()).round().clamp(1.0, f64::from(devices_per_node)) as u32;
        ports
    });
    let each = total / f64::from(count.max(1));
    // A port much slower or faster than the catalog's is another generation of its kind.
    let port = of_kind(each);
    let kind = port.name.split_inclusive('-').next().unwrap_or_default();
    let port = if (0.7..1.4).contains(&(each / port.bandwidth.get())) {
        port
    } else {
        nearest_link(catalog, kind, each).unwrap_or(port)
    };
    (count.max(1), scaled(port, each).unwrap_or_else(|| port.clone()))
}

/// Whether the job leaves an NVLink domain.
const fn nics_matter(row: &Hardware, devices_per_node: u32) -> bool {
    row.devices > devices_per_node
}
