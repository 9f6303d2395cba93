//! Which device of the person's is which of the scenario's: by a measured table of rates, by what `nvidia-smi topo -m`
//! says of a node, or by Slurm's topology of the nodes.
//!
//! A scenario numbers devices so that those of a domain, of a node and of a leaf follow one another. The person's
//! numbers need not. Ranks are started in the person's order; a placement is searched in the scenario's.

use std::path::Path;

use formats::nccl_tests;
use formats::topology::{Domains, matrix, rates, slurm};
use ir::{Cluster, DeviceId, Problem};

use crate::Error;
use crate::error::InputError;
use crate::scenario::read_text;
use crate::source::Sources;

/// The person's devices in the scenario's order.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Numbering {
    /// By the scenario's number: the person's.
    pub(super) given: Vec<u32>,
    /// By the scenario's number: what the file calls it; empty where no file was given.
    pub(super) names: Vec<String>,
    /// What the file says, in sentences.
    pub(super) found: Vec<String>,
}

impl Numbering {
    /// The scenario's own numbers.
    pub(super) fn own(cluster: &Cluster) -> Self {
        let devices = u32::try_from(cluster.devices()).unwrap_or(u32::MAX);
        Self { given: (0..devices).collect(), names: Vec::new(), found: Vec::new() }
    }

    /// The scenario's number of each of the person's devices.
    pub(super) fn back(&self) -> Vec<DeviceId> {
        let mut back = vec![DeviceId::new(0); self.given.len()];
        for (own, given) in (0..).zip(&self.given) {
            back[*given as usize] = DeviceId::new(own);
        }
        back
    }

    /// What a file that measures all devices, or describes a node or the fabric, says of a cluster.
    pub(super) fn read(cluster: &Cluster, table: Option<&Path>, topology: Option<&Path>) -> Result<Self, Error> {
        let own = Self::own(cluster);
        match (table, topology) {
            (None, None) => Ok(own),
            (Some(path), _) => read_as(path, rates::read, |found| Self::of_rates(cluster, &found)),
            (None, Some(path)) if has(path, "GPU0") => {
                read_as(path, matrix::read, |found| Self::of_node(cluster, &found))
            }
            (None, Some(path)) if has(path, "nThread") || has(path, "Rank") => {
                read_as(path, nccl_tests::seats, |found| Self::of_seats(cluster, &found))
            }
            (None, Some(path)) => read_as(path, slurm::read, |found| Self::of_fabric(cluster, &found)),
        }
    }

    fn of_rates(cluster: &Cluster, rates: &rates::Rates) -> Result<Self, Problem> {
        let (there, count) = (cluster.devices(), rates.names.len());
        if there != count as u64 {
            let problem = Problem::new("matrix", format!("is of {count} devices, and the cluster has {there}"));
            return Err(problem.hint("measure every device of the cluster, or describe the part that was measured"));
        }
        let order = rates.order();
        let names: Vec<String> = order.iter().map(|device| rates.names[*device].clone()).collect();
        let levels = rates.levels();
        // What the scenario calls a domain must be joined as fast as anything is.
        let fastest = &levels[0].domains;
        let inside = |device: usize| fastest.groups.iter().position(|group| group.contains(&device));
        for (first, size) in domains(cluster).into_iter().filter(|(_, size)| *size > 1) {
            let members = &order[first..first + size];
            if members.iter().any(|member| inside(*member) != inside(members[0])) {
                let joined = fastest.groups.iter().map(Vec::len).max().unwrap_or(1);
                let message = format!(
                    "joins {joined} devices at most at its highest rates, and the scenario has domains of {size}: {} and \
                     {} are apart",
                    names[first],
                    names[first + size - 1]
                );
                let hint =
                    format!("write domain_size = {joined} for these nodes, or look at the links of these devices");
                return Err(Problem::new("matrix", message).hint(hint));
            }
        }
        let mut found: Vec<String> = levels
            .iter()
            .map(|level| format!("{} from {:.1} GB/s on", sizes(&level.domains), level.bytes_per_second * 1e-9))
            .collect();
        found.extend(rates.slow_pairs().into_iter().take(20).map(|(a, b, rate)| {
            format!(
                "{} and {} of one domain reach {:.1} GB/s alone: is their link down?",
                rates.names[a],
                rates.names[b],
                rate * 1e-9
            )
        }));
        let given: Vec<u32> = order.iter().map(|device| u32::try_from(*device).expect("few")).collect();
        if cluster.groups.len() > 1 {
            same_nodes(cluster, &given).map_err(|message| Problem::new("matrix", message))?;
        }
        Ok(Self { given, names, found })
    }

    fn of_node(cluster: &Cluster, matrix: &matrix::Matrix) -> Result<Self, Problem> {
        let domains = matrix.domains();
        let order: Vec<u32> =
            domains.groups.iter().flatten().map(|device| u32::try_from(*device).expect("few")).collect();
        let size = domains.groups.first().map_or(0, Vec::len);
        if domains.groups.iter().any(|group| group.len() != size) {
            let message = format!("has domains of unlike size, {}, and a kind of node has one", sizes(&domains));
            return Err(Problem::new("topology", message));
        }
        let mut given = Vec::new();
        let mut names = Vec::new();
        for group in &cluster.groups {
            let kind = cluster.node_kind(group.kind);
            if kind.devices.len() != order.len() || kind.domain_size as usize != size {
                let message = format!(
                    "is of {} devices in domains of {size}, and {} has {} in domains of {}",
                    order.len(),
                    kind.name,
                    kind.devices.len(),
                    kind.domain_size
                );
                let hint = format!("write topology = \"...\" or domain_size = {size} in [nodes.{}]", kind.name);
                return Err(Problem::new("topology", message).hint(hint));
            }
            for _ in 0..group.count {
                let first = u32::try_from(given.len()).expect("few");
                let node = first as usize / order.len();
                given.extend(order.iter().map(|device| first + device));
                names.extend(order.iter().map(|device| format!("node {node} GPU{device}")));
            }
        }
        Ok(Self { given, names, found: vec![format!("each node: {}", sizes(&domains))] })
    }

    /// Ranks of a run, which the person numbers devices by: those of a host are a node, in the order of its devices.
    fn of_seats(cluster: &Cluster, seats: &[nccl_tests::Seat]) -> Result<Self, Problem> {
        if seats.len() as u64 != cluster.devices() {
            let message = format!("lists {} ranks, and the cluster has {} devices", seats.len(), cluster.devices());
            return Err(Problem::new("topology", message));
        }
        let mut hosts: Vec<&str> = seats.iter().map(|seat| seat.host.as_str()).collect();
        hosts.sort_by_key(|host| natural(host));
        hosts.dedup();
        let starts = starts(cluster);
        let nodes = hosts.len();
        if nodes as u64 != cluster.nodes() {
            let message = format!("lists {nodes} hosts, and the cluster has {} nodes", cluster.nodes());
            return Err(Problem::new("topology", message));
        }
        let mut order: Vec<u32> = Vec::with_capacity(seats.len());
        for (node, host) in hosts.iter().enumerate() {
            let mut own: Vec<(u32, u32)> = (0..)
                .zip(seats)
                .filter(|(_, seat)| seat.host == *host)
                .map(|(rank, seat)| (seat.device, rank))
                .collect();
            own.sort_unstable();
            let wanted = starts[node + 1] - starts[node];
            if own.len() != wanted as usize {
                let message = format!("has {} ranks on {host}, and node {node} has {wanted} devices", own.len());
                return Err(Problem::new("topology", message).hint("list the nodes in the order of their hosts' names"));
            }
            order.extend(own.into_iter().map(|(_, rank)| rank));
        }
        let names = order.iter().map(|rank| &seats[*rank as usize]);
        let names = names.map(|seat| format!("{}:{}", seat.host, seat.device)).collect();
        if cluster.groups.len() > 1 {
            same_nodes(cluster, &order).map_err(|message| Problem::new("topology", message))?;
        }
        Ok(Self { given: order, names, found: vec![format!("{nodes} hosts")] })
    }

    fn of_fabric(cluster: &Cluster, topology: &slurm::Topology) -> Result<Self, Problem> {
        let nodes = cluster.nodes();
        let size = topology.leaf_size(nodes).map_err(|why| Problem::new("topology", why))?;
        if cluster.fabric.leaf_nodes != size && topology.leaves.len() > 1 && u64::from(size) < nodes {
            let message =
                format!("has {size} nodes under a leaf, and the scenario's fabric {}", cluster.fabric.leaf_nodes);
            let hint = format!("write fabric = {{ leaf_nodes = {size} }} in [cluster], or the topology there");
            return Err(Problem::new("topology", message).hint(hint));
        }
        // Leaf by leaf; Slurm starts ranks in the order of the nodes' names.
        let by_leaf: Vec<&String> =
            topology.leaves.iter().flat_map(|leaf| &leaf.nodes).take(usize::try_from(nodes).expect("few")).collect();
        let mut by_name = by_leaf.clone();
        by_name.sort_by_key(|name| natural(name));
        let starts = starts(cluster);
        let (mut given, mut names) = (Vec::new(), Vec::new());
        for (own, name) in by_leaf.iter().enumerate() {
            let theirs = by_name.iter().position(|other| other == name).expect("the same names");
            let (count, other) = (starts[own + 1] - starts[own], starts[theirs + 1] - starts[theirs]);
            if count != other || (own != theirs && cluster.groups.len() > 1) {
                let message = format!(
                    "numbers {name} as node {own} by leaf and as node {theirs} by name, and nodes are of unlike kinds"
                );
                return Err(Problem::new("topology", message)
                    .hint("name the nodes of a kind one after the other, leaf by leaf"));
            }
            given.extend((0..count).map(|local| starts[theirs] + local));
            names.extend((0..count).map(|local| format!("{name}:{local}")));
        }
        let found = vec![format!("{} leaves of {size} nodes", nodes.div_ceil(u64::from(size.max(1))))];
        Ok(Self { given, names, found })
    }
}

/// A name with its numbers as numbers, so that n2 is before n10: words and the number behind them, in turn.
fn natural(name: &str) -> Vec<(String, u64)> {
    let mut parts = Vec::new();
    let mut rest = name;
    while !rest.is_empty() {
        let words = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        let digits = rest[words..].find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len() - words);
        let number = if digits == 0 { 0 } else { rest[words..words + digits].parse().unwrap_or(u64::MAX) };
        parts.push((rest[..words].to_owned(), number));
        rest = &rest[words + digits..];
    }
    parts
}

/// The first device of each node, and the number of all.
fn starts(cluster: &Cluster) -> Vec<u32> {
    let mut starts = vec![0];
    for group in &cluster.groups {
        let count = u32::try_from(cluster.node_kind(group.kind).devices.len()).unwrap_or(u32::MAX);
        for _ in 0..group.count {
            starts.push(starts[starts.len() - 1] + count);
        }
    }
    starts
}

/// First device and size of every domain.
pub(super) fn domains(cluster: &Cluster) -> Vec<(usize, usize)> {
    let starts = starts(cluster);
    let kinds = cluster.groups.iter().flat_map(|group| std::iter::repeat_n(group.kind, group.count as usize));
    let mut found = Vec::new();
    for (node, kind) in kinds.enumerate() {
        let (first, end) = (starts[node] as usize, starts[node + 1] as usize);
        let size = (cluster.node_kind(kind).domain_size.max(1) as usize).min(end - first);
        found.extend((first..end).step_by(size.max(1)).map(|at| (at, size.min(end - at))));
    }
    found
}

/// With unlike kinds of node, each node has the devices that it had.
fn same_nodes(cluster: &Cluster, given: &[u32]) -> Result<(), String> {
    let starts = starts(cluster);
    for (node, ends) in starts.windows(2).enumerate() {
        let own = ends[0]..ends[1];
        let stays = given[ends[0] as usize..ends[1] as usize].iter().all(|device| own.contains(device));
        if !stays {
            return Err(format!(
                "numbers devices of node {node} otherwise than the scenario, whose nodes are of unlike kinds: list the \
                 devices node by node, in the scenario's order"
            ));
        }
    }
    Ok(())
}

/// `4 domains of 2`, or `domains of 2, 2 and 3`.
fn sizes(domains: &Domains) -> String {
    let sizes: Vec<usize> = domains.groups.iter().map(Vec::len).collect();
    match sizes.as_slice() {
        [one] => format!("one domain of {one}"),
        [first, ..] if sizes.iter().all(|size| size == first) => format!("{} domains of {first}", sizes.len()),
        _ => format!("domains of {}", sizes.iter().map(usize::to_string).collect::<Vec<_>>().join(", ")),
    }
}

/// Whether a file has a word.
fn has(path: &Path, word: &str) -> bool {
    read_text(path).is_ok_and(|text| text.split_whitespace().any(|found| found == word))
}

/// What a file says of a cluster; every fault with its line.
fn read_as<T>(
    path: &Path,
    read: impl Fn(&str, &str) -> Result<T, Vec<Problem>>,
    of: impl Fn(T) -> Result<Numbering, Problem>,
) -> Result<Numbering, Error> {
    let name = path.display().to_string();
    let text = read_text(path).map_err(|what| Error::files(path, format!("cannot be read: {what}")))?;
    let mut sources = Sources::default();
    sources.add(name.clone(), text.clone());
    let found = read(&text, &name).map_err(|problems| Error::Input(InputError { problems, sources }))?;
    of(found).map_err(|problem| {
        let (subject, message) = (name, format!("{} {}", problem.subject, problem.message));
        let told = Problem::new(subject, message);
        Error::problem(if let Some(hint) = problem.hint { told.hint(hint) } else { told })
    })
}
