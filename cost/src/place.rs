//! Where the members of a group are.

use ir::cluster::Place;
use ir::{Cluster, DeviceId, NodeId, Path, PhysicalLink};

/// Where the members of a group are: what a collective's price depends on. The order of members does not matter.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct GroupPlace {
    /// Members.
    pub ranks: u32,
    /// Nodes that hold them.
    pub nodes: u32,
    /// Most members in one node.
    pub per_node: u32,
    /// The widest path between two members.
    pub path: Path,
    /// A member, whose node names the links: one in a node with the slowest adapters.
    pub first: DeviceId,
    /// Fewest NICs that the members in one node have between them, over the nodes; 0 if one node holds the group.
    pub nics: u32,
    /// The first of the cluster's leaf switches whose up-link is as narrow as the narrowest of the group's; 0 if one node
    /// holds the group.
    pub(crate) narrowest_leaf: u32,
    /// Most nodes of the group under one leaf switch; 0 if one node holds the group.
    pub leaf_nodes: u32,
    /// Groups alike that use the same NICs at the same time, this one among them. 1: alone.
    pub nic_groups: u32,
    /// Groups alike whose flows leave the same leaf switch at the same time, this one among them. 1: alone.
    pub leaf_groups: u32,
    /// Groups alike in the same node that exchange at the same time, this one among them. 1: alone.
    pub node_groups: u32,
    /// Where members' nodes or devices are of several kinds: what is theirs in nodes of each, slowest adapters first. Of
    /// more than these many kinds, the slowest.
    pub(crate) unlike: [Option<Home>; 3],
}

/// Members whose nodes and devices are of one kind, among others.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) struct Home {
    /// One of them.
    device: DeviceId,
    /// As in [`GroupPlace`], of these nodes alone.
    per_node: u32,
    nics: u32,
    nic_groups: u32,
    leaf_groups: u32,
    node_groups: u32,
}

/// A member: its node, its domain there, its NIC there and what it is.
type Member = (NodeId, u32, u32, DeviceId);

impl GroupPlace {
    /// Of devices in group order, alone.
    ///
    /// # Panics
    /// If there are none, or the cluster lacks one.
    #[must_use]
    pub fn of(cluster: &Cluster, devices: &[DeviceId]) -> Self {
        let first = *devices.iter().min().expect("a group has members");
        let mut members: Vec<Member> = devices
            .iter()
            .map(|device| {
                let place = cluster.place(*device);
                let domain = place.local / cluster.node_kind(place.node_kind).domain_size.max(1);
                (place.node, domain, cluster.nic_of(place), *device)
            })
            .collect();
        // In order, so that nodes are runs.
        members.sort_unstable();
        let (mut nodes, mut per_node, mut nics) = (0, 0, u32::MAX);
        let mut path = if devices.iter().all(|device| *device == first) { Path::Local } else { Path::Domain };
        let leaf = cluster.leaf(members[0].0);
        let (mut leaf_nodes, mut of_leaf, mut last_leaf) = (0, 0, leaf);
        for node in members.chunk_by(|a, b| a.0 == b.0) {
            nodes += 1;
            per_node = per_node.max(count(node));
            nics = nics.min(distinct_nics(node));
            if node.windows(2).any(|pair| pair[0].1 != pair[1].1) {
                path = path.max(Path::Host);
            }
            let here = cluster.leaf(node[0].0);
            of_leaf = if here == last_leaf { of_leaf + 1 } else { 1 };
            last_leaf = here;
            leaf_nodes = leaf_nodes.max(of_leaf);
            if node[0].0 != members[0].0 {
                path = path.max(if here == leaf { Path::Leaf } else { Path::Spine });
            }
        }
        let unlike = homes(cluster, &members);
        let one_node = nodes == 1;
        Self {
            ranks: count(devices),
            nodes,
            per_node,
            path,
            first: unlike[0].map_or(first, |home| home.device),
            nics: if one_node { 0 } else { nics },
            narrowest_leaf: if one_node { 0 } else { narrowest_leaf(cluster, &members) },
            leaf_nodes: if one_node { 0 } else { leaf_nodes },
            nic_groups: 1,
            leaf_groups: 1,
            node_groups: 1,
            unlike,
        }
    }

    /// Of devices in group order, while every other device of their nodes does the same in a group alike: as gradients are
    /// reduced over all data-parallel groups at once. A NIC, a leaf's up-link and a shared host link are then divided by the
    /// groups that use them. For closed forms; a simulated fabric divides links by itself and wants [`GroupPlace::of`].
    ///
    /// # Panics
    /// As [`GroupPlace::of`].
    #[must_use]
    pub fn with_siblings(cluster: &Cluster, devices: &[DeviceId]) -> Self {
        let alone = Self::of(cluster, devices);
        let unlike = alone.unlike.map(|home| {
            let home = home?;
            let place = alone.among_its_like(home).beside_siblings(cluster);
            let Self { nic_groups, leaf_groups, node_groups, .. } = place;
            Some(Home { nic_groups, leaf_groups, node_groups, ..home })
        });
        Self { unlike, ..alone.beside_siblings(cluster) }
    }

    fn beside_siblings(self, cluster: &Cluster) -> Self {
        let home = cluster.node_kind(cluster.place(self.first).node_kind);
        let of_node = u32::try_from(home.devices.len()).expect("a node of more devices than u32").max(1);
        let node_groups = (of_node / self.per_node.max(1)).max(1);
        if self.nodes <= 1 {
            return Self { node_groups, ..self };
        }
        // `node_groups` groups with `nics` NICs each share all that the node has.
        let nic_groups = (node_groups * self.nics).div_ceil(home.nics.max(1)).clamp(1, node_groups);
        // Groups by place in the node, and by nodes under the leaf: each leaves the leaf by itself.
        let under = if cluster.fabric.leaf_nodes == 0 { self.leaf_nodes } else { cluster.fabric.leaf_nodes };
        let leaf_groups = node_groups * (under / self.leaf_nodes.max(1)).max(1);
        Self { nic_groups, leaf_groups, node_groups, ..self }
    }

    /// The same place if all nodes and devices were of one kind, for each kind that there is.
    pub(crate) fn of_each_kind(self) -> impl Iterator<Item = Self> {
        let one = self.unlike[0].is_none().then_some(self);
        one.into_iter().chain(self.unlike.into_iter().flatten().map(move |home| self.among_its_like(home)))
    }

    const fn among_its_like(self, home: Home) -> Self {
        let Home { device, per_node, nics, nic_groups, leaf_groups, node_groups } = home;
        Self { first: device, per_node, nics, nic_groups, leaf_groups, node_groups, unlike: [None; 3], ..self }
    }

    /// Whether its members' nodes or devices are of several kinds.
    pub(crate) const fn is_mixed(self) -> bool {
        self.unlike[0].is_some()
    }

    /// Whether two places differ at most in which devices stand for their kinds, as `kind` tells kinds apart.
    #[must_use]
    pub fn is_like<K: PartialEq>(self, other: Self, kind: impl Fn(DeviceId) -> K) -> bool {
        let devices = |place: Self| [Some(place.first)].into_iter().chain(place.unlike.map(|home| Some(home?.device)));
        let nowhere = |place: Self| place.with_devices(|_| DeviceId::new(0));
        nowhere(self) == nowhere(other)
            && devices(self).flatten().zip(devices(other).flatten()).all(|(a, b)| a == b || kind(a) == kind(b))
    }

    /// The same with each device that stands for its kind replaced by another one of that kind.
    #[must_use]
    pub fn with_devices(self, mut of_its_kind: impl FnMut(DeviceId) -> DeviceId) -> Self {
        let first = of_its_kind(self.first);
        let unlike = self.unlike.map(|home| home.map(|home| Home { device: of_its_kind(home.device), ..home }));
        Self { first, unlike, ..self }
    }
}

fn count<T>(items: &[T]) -> u32 {
    u32::try_from(items.len()).expect("a group of more than 2^32")
}

/// NICs of members of a node, which are in order.
fn distinct_nics(node: &[Member]) -> u32 {
    node.windows(2).fold(1, |distinct, pair| distinct + u32::from(pair[0].2 != pair[1].2))
}

/// What a leaf switch reaches towards the spine, in bytes per second, if as many nodes were under it as under the others: as
/// many groups alike leave a leaf as it has nodes.
pub(crate) fn up_link(cluster: &Cluster, leaf: u32) -> f64 {
    let under = u64::from(cluster.fabric.leaf_nodes);
    let nodes = cluster.nodes().saturating_sub(u64::from(leaf) * under).clamp(1, under.max(1));
    cluster.capacity(PhysicalLink::LeafUp(leaf)).get() * (under.max(1) as f64 / nodes as f64)
}

/// Of leaf switches, the first whose [up-link](up_link) is as narrow as the narrowest of those of members, which are in order.
fn narrowest_leaf(cluster: &Cluster, members: &[Member]) -> u32 {
    if cluster.fabric.leaf_nodes == 0 {
        return 0;
    }
    let leaves = members.chunk_by(|a, b| cluster.leaf(a.0) == cluster.leaf(b.0)).map(|leaf| cluster.leaf(leaf[0].0));
    let widths = leaves.map(|leaf| (leaf, up_link(cluster, leaf)));
    let (narrowest, width) = widths.min_by(|a, b| a.1.total_cmp(&b.1)).expect("a group has members");
    (0..narrowest).find(|leaf| up_link(cluster, *leaf).total_cmp(&width).is_eq()).unwrap_or(narrowest)
}

/// What is whose where members are of several kinds; nothing where they are of one.
fn homes(cluster: &Cluster, members: &[Member]) -> [Option<Home>; 3] {
    if cluster.groups.len() < 2 && cluster.device_kinds.len() < 2 {
        return [None; 3];
    }
    let kind = |place: Place| (place.node_kind, place.device_kind);
    let mut found: Vec<((ir::NodeKindId, ir::DeviceKindId), Home)> = Vec::new();
    for node in members.chunk_by(|a, b| a.0 == b.0) {
        let (per_node, nics) = (count(node), distinct_nics(node));
        for (.., device) in node {
            let of = kind(cluster.place(*device));
            match found.iter_mut().find(|(known, _)| *known == of) {
                Some((_, home)) => {
                    home.per_node = home.per_node.max(per_node);
                    home.nics = home.nics.min(nics);
                }
                None => {
                    let alone = Home { device: *device, per_node, nics, nic_groups: 1, leaf_groups: 1, node_groups: 1 };
                    found.push((of, alone));
                }
            }
        }
    }
    if found.len() < 2 {
        return [None; 3];
    }
    let speed = |home: &Home| {
        let node = cluster.node_kind(cluster.place(home.device).node_kind);
        let together = f64::from(home.nics) * node.nic.bandwidth.get();
        (together.to_bits(), node.domain_link.bandwidth.get().to_bits())
    };
    found.sort_by_key(|(kind, home)| (speed(home), *kind));
    let mut found = found.into_iter().map(|(_, home)| home);
    std::array::from_fn(|_| found.next())
}
