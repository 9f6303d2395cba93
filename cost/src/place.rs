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
}

impl GroupPlace {
    /// Of devices in group order.
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
            if node[0].0 != members[0].0 {
                path = path.max(if cluster.leaf(node[0].0) == leaf { Path::Leaf } else { Path::Spine });
            }
        }
        let ranks = u32::try_from(devices.len()).expect("a group of more than 2^32");
        Self { ranks, nodes, per_node, path, first, nics: if nodes == 1 { 0 } else { nics } }
    }
}
