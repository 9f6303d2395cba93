//! Where the members of a group are.

use ir::{Cluster, DeviceId, NodeId, Path};

/// Where the members of a group are: what a collective's price depends on.
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
    /// A member (the first), whose node names the links.
    pub first: DeviceId,
    /// Fewest NICs that the members in one node have between them, over the nodes; 0 if one node holds the group.
    pub nics: u32,
    /// Most nodes of the group under one leaf switch; 0 if one node holds the group.
    pub leaf_nodes: u32,
    /// Groups alike that use the same NICs at the same time, this one among them. 1: alone.
    pub nic_groups: u32,
    /// Groups alike whose flows leave the same leaf switch at the same time, this one among them. 1: alone.
    pub leaf_groups: u32,
    /// Groups alike in the same node that exchange at the same time, this one among them. 1: alone.
    pub node_groups: u32,
}

impl GroupPlace {
    /// Of devices in group order, alone.
    ///
    /// # Panics
    /// If there are none, or the cluster lacks one.
    #[must_use]
    pub fn of(cluster: &Cluster, devices: &[DeviceId]) -> Self {
        let first = *devices.first().expect("a group has members");
        // (node, domain, NIC) of each member, in order, so that nodes are runs.
        let mut members: Vec<(NodeId, u32, u32)> = devices
            .iter()
            .map(|device| {
                let place = cluster.place(*device);
                let domain = place.local / cluster.node_kind(place.node_kind).domain_size.max(1);
                (place.node, domain, cluster.nic_of(place))
            })
            .collect();
        members.sort_unstable();
        let (mut nodes, mut per_node, mut nics) = (0, 0, u32::MAX);
        let mut path = if devices.iter().all(|device| *device == first) { Path::Local } else { Path::Domain };
        let leaf = cluster.leaf(members[0].0);
        let (mut leaf_nodes, mut of_leaf, mut last_leaf) = (0, 0, leaf);
        for node in members.chunk_by(|a, b| a.0 == b.0) {
            nodes += 1;
            per_node = per_node.max(u32::try_from(node.len()).expect("a group of more than 2^32"));
            let mut distinct = 1;
            for pair in node.windows(2) {
                distinct += u32::from(pair[0].2 != pair[1].2);
                if pair[0].1 != pair[1].1 {
                    path = path.max(Path::Host);
                }
            }
            nics = nics.min(distinct);
            let here = cluster.leaf(node[0].0);
            of_leaf = if here == last_leaf { of_leaf + 1 } else { 1 };
            last_leaf = here;
            leaf_nodes = leaf_nodes.max(of_leaf);
            if node[0].0 != members[0].0 {
                path = path.max(if here == leaf { Path::Leaf } else { Path::Spine });
            }
        }
        let ranks = u32::try_from(devices.len()).expect("a group of more than 2^32");
        let one_node = nodes == 1;
        Self {
            ranks,
            nodes,
            per_node,
            path,
            first,
            nics: if one_node { 0 } else { nics },
            leaf_nodes: if one_node { 0 } else { leaf_nodes },
            nic_groups: 1,
            leaf_groups: 1,
            node_groups: 1,
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
        let home = cluster.node_kind(cluster.place(alone.first).node_kind);
        let of_node = u32::try_from(home.devices.len()).expect("a node of more devices than u32").max(1);
        let node_groups = (of_node / alone.per_node.max(1)).max(1);
        if alone.nodes <= 1 {
            return Self { node_groups, ..alone };
        }
        // `node_groups` groups with `nics` NICs each share all that the node has.
        let nic_groups = (node_groups * alone.nics).div_ceil(home.nics.max(1)).clamp(1, node_groups);
        // Groups by place in the node, and by nodes under the leaf: each leaves the leaf by itself.
        let under = if cluster.fabric.leaf_nodes == 0 { alone.leaf_nodes } else { cluster.fabric.leaf_nodes };
        let leaf_groups = node_groups * (under / alone.leaf_nodes.max(1)).max(1);
        Self { nic_groups, leaf_groups, node_groups, ..alone }
    }
}
