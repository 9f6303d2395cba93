//! What exists: devices, the nodes that hold them, and the links between.
//!
//! A cluster is as large as its distinct parts: a million equal nodes are one [`NodeGroup`].
//! Devices are numbered group by group, node by node.

use crate::{
    Bytes, BytesPerSecond, DeviceId, DeviceKindId, FlopsPerSecond, NodeId, NodeKindId, Precision, SimDuration,
};

/// One kind of GPU or CPU worker. Rates are the vendor's dense peaks.
#[derive(Clone, PartialEq, Debug)]
pub struct DeviceKind {
    /// Name in the catalog.
    pub name: String,
    /// Calibration that prices its kernels; names a table of the catalog.
    pub calibration: String,
    /// Dense peak by number format; a format that is absent is not supported.
    pub peak: Vec<(Precision, FlopsPerSecond)>,
    /// Memory capacity.
    pub memory: Bytes,
    /// Memory bandwidth.
    pub memory_bandwidth: BytesPerSecond,
    /// Multiprocessors (GPUs) or 1 (one CPU core per worker).
    pub multiprocessors: u32,
    /// Every duration on this device is this times the calibrated one: 1 for a real device, more for an emulated slower one.
    pub slowdown: f64,
    /// Power at full load in watts: the vendor's limit of the board, or of the part where a board holds several devices.
    pub tdp_watts: Option<f64>,
    /// Price of an hour, in US dollars: a default, which whoever pays another price overrides.
    pub usd_per_hour: Option<f64>,
    /// Where the price comes from; `None` where the user gave it, or there is none.
    pub price_source: Option<String>,
    /// Where the other figures come from.
    pub source: String,
}

impl DeviceKind {
    /// Peak rate in a number format.
    #[must_use]
    pub fn peak(&self, precision: Precision) -> Option<FlopsPerSecond> {
        self.peak.iter().find(|(p, _)| *p == precision).map(|(_, rate)| *rate)
    }
}

/// A kind of link: rate of one direction of one device's (or NIC's) connection, and latency of one message.
#[derive(Clone, PartialEq, Debug)]
pub struct Link {
    /// Name in the catalog; keys measured curves.
    pub name: String,
    /// Line rate per direction.
    pub bandwidth: BytesPerSecond,
    /// Latency of one message.
    pub latency: SimDuration,
    /// Share of the line rate that large transfers reach, where it is known; a calibration may say otherwise of its devices.
    pub efficiency: Option<f64>,
}

/// A kind of node: devices in one or more domains, and NICs.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeKind {
    /// Name in the catalog.
    pub name: String,
    /// Kind of each device, in order.
    pub devices: Vec<DeviceKindId>,
    /// Devices per domain (joined by `domain_link`); divides the number of devices.
    pub domain_size: u32,
    /// Link inside a domain.
    pub domain_link: Link,
    /// Link between domains of one node (PCIe and the host), if there are several.
    pub host_link: Link,
    /// NICs of the node; device `i` uses NIC `i * nics / devices`.
    pub nics: u32,
    /// One NIC.
    pub nic: Link,
}

/// `count` equal nodes.
#[derive(Clone, PartialEq, Debug)]
pub struct NodeGroup {
    /// Their kind.
    pub kind: NodeKindId,
    /// How many.
    pub count: u32,
}

/// What joins nodes.
#[derive(Clone, PartialEq, Debug)]
pub struct Fabric {
    /// Nodes under one leaf switch; 0 means one switch for all.
    pub leaf_nodes: u32,
    /// Down-link over up-link bandwidth of a leaf; 1 is non-blocking.
    pub oversubscription: f64,
    /// What joins leaves where it is another kind of link than the NICs, such as a WAN between zones: bandwidth of a whole
    /// leaf, latency of a message. `None`: the NICs of the leaf's nodes over the oversubscription.
    pub up_link: Option<Link>,
    /// Whether a leaf is a switch for each NIC of a node: NIC `r` of every node under it is on rail `r`. From one rail to
    /// another a message goes over the domain to a neighbour on the other rail (NCCL's PXN), or over the spine.
    pub rails: bool,
}

impl Fabric {
    /// One non-blocking switch for all nodes.
    #[must_use]
    pub const fn one_switch() -> Self {
        Self { leaf_nodes: 0, oversubscription: 1.0, up_link: None, rails: false }
    }
}

/// A cluster.
#[derive(Clone, PartialEq, Debug)]
pub struct Cluster {
    /// Kinds of device.
    pub device_kinds: Vec<DeviceKind>,
    /// Kinds of node.
    pub node_kinds: Vec<NodeKind>,
    /// Nodes, in order.
    pub groups: Vec<NodeGroup>,
    /// Between nodes.
    pub fabric: Fabric,
}

/// How two devices reach each other.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Path {
    /// The same device.
    Local,
    /// In one domain.
    Domain,
    /// In one node, different domains.
    Host,
    /// Different nodes under one leaf switch.
    Leaf,
    /// Different nodes and different rails under one leaf: by way of a neighbour in the domain that is on the other rail.
    Rail,
    /// Different leaf switches.
    Spine,
}

/// Who hands on a message in a fabric of rails.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Relay {
    /// Both ends are on one rail, or there are no rails.
    NotNeeded,
    /// A device of the sender's domain, on the receiver's rail.
    Neighbour(DeviceId),
    /// No such device: the spine joins the rails.
    Nobody,
}

/// A link that flows share. Each has one direction.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum PhysicalLink {
    /// A device's port into its domain.
    DomainOut(DeviceId),
    /// The way back.
    DomainIn(DeviceId),
    /// A device's way to its host.
    HostOut(DeviceId),
    /// The way back.
    HostIn(DeviceId),
    /// A NIC, sending.
    NicOut(NodeId, u32),
    /// A NIC, receiving.
    NicIn(NodeId, u32),
    /// A leaf switch towards the spine.
    LeafUp(u32),
    /// The spine towards a leaf.
    LeafDown(u32),
}

/// A device's place.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Place {
    /// Its node.
    pub node: NodeId,
    /// Its node's kind.
    pub node_kind: NodeKindId,
    /// Its position in the node.
    pub local: u32,
    /// Its kind.
    pub device_kind: DeviceKindId,
}

impl Cluster {
    /// Devices in all.
    #[must_use]
    pub fn devices(&self) -> u64 {
        self.groups.iter().map(|g| u64::from(g.count) * self.node_kind(g.kind).devices.len() as u64).sum()
    }
    /// Nodes in all.
    #[must_use]
    pub fn nodes(&self) -> u64 {
        self.groups.iter().map(|g| u64::from(g.count)).sum()
    }
    /// A kind of node.
    #[must_use]
    pub fn node_kind(&self, id: NodeKindId) -> &NodeKind {
        &self.node_kinds[id.index()]
    }
    /// A kind of device.
    #[must_use]
    pub fn device_kind(&self, id: DeviceKindId) -> &DeviceKind {
        &self.device_kinds[id.index()]
    }
    /// Where a device is.
    ///
    /// # Panics
    /// If the cluster has no such device.
    #[must_use]
    pub fn place(&self, device: DeviceId) -> Place {
        let (mut first_device, mut first_node) = (0u64, 0u64);
        for group in &self.groups {
            let kind = self.node_kind(group.kind);
            let per_node = kind.devices.len() as u64;
            let offset = u64::from(device.raw()) - first_device;
            if offset < per_node * u64::from(group.count) {
                let local = offset % per_node;
                let node = u32::try_from(first_node + offset / per_node).expect("more nodes than u32");
                return Place {
                    node: NodeId::new(node),
                    node_kind: group.kind,
                    local: u32::try_from(local).expect("a node of more devices than u32"),
                    device_kind: kind.devices[usize::try_from(local).expect("checked above")],
                };
            }
            first_device += per_node * u64::from(group.count);
            first_node += u64::from(group.count);
        }
        panic!("no device {device} in a cluster of {}", self.devices())
    }
    /// How two devices reach each other.
    #[must_use]
    pub fn path(&self, from: DeviceId, to: DeviceId) -> Path {
        if from == to {
            return Path::Local;
        }
        let (a, b) = (self.place(from), self.place(to));
        if a.node == b.node {
            let size = self.node_kind(a.node_kind).domain_size.max(1);
            return if a.local / size == b.local / size { Path::Domain } else { Path::Host };
        }
        match (self.leaf(a.node) == self.leaf(b.node), self.relay(from, (a, b))) {
            (false, _) | (true, Relay::Nobody) => Path::Spine,
            (true, Relay::NotNeeded) => Path::Leaf,
            (true, Relay::Neighbour(_)) => Path::Rail,
        }
    }
    /// Who hands on what goes from one place to another under the same leaf: only in a fabric of rails, to another rail.
    #[must_use]
    pub fn relay(&self, from: DeviceId, (a, b): (Place, Place)) -> Relay {
        let (own, wanted) = (self.nic_of(a), self.nic_of(b));
        if !self.fabric.rails || own == wanted {
            return Relay::NotNeeded;
        }
        let kind = self.node_kind(a.node_kind);
        let size = kind.domain_size.max(1);
        let first = a.local / size * size;
        let devices = u32::try_from(kind.devices.len()).expect("a node of more devices than u32");
        let on_rail = |local: &u32| self.nic_of(Place { local: *local, ..a }) == wanted;
        match (first..(first + size).min(devices)).find(on_rail) {
            Some(local) => Relay::Neighbour(DeviceId::new(from.raw() - a.local + local)),
            None => Relay::Nobody,
        }
    }
    /// The leaf switch of a node.
    #[must_use]
    pub const fn leaf(&self, node: NodeId) -> u32 {
        match node.raw().checked_div(self.fabric.leaf_nodes) {
            Some(leaf) => leaf,
            None => 0,
        }
    }
    /// The NIC that a device uses.
    #[must_use]
    pub fn nic_of(&self, place: Place) -> u32 {
        let kind = self.node_kind(place.node_kind);
        let devices = u32::try_from(kind.devices.len()).expect("a node of more devices than u32");
        (u64::from(place.local) * u64::from(kind.nics) / u64::from(devices.max(1)))
            .try_into()
            .expect("fewer NICs than u32")
    }
    /// The links that a message from one device to another crosses, in order.
    #[must_use]
    pub fn links(&self, from: DeviceId, to: DeviceId) -> Vec<PhysicalLink> {
        use PhysicalLink::{DomainIn, DomainOut, HostIn, HostOut, LeafDown, LeafUp, NicIn, NicOut};
        match self.path(from, to) {
            Path::Local => Vec::new(),
            Path::Domain => vec![DomainOut(from), DomainIn(to)],
            Path::Host => vec![HostOut(from), HostIn(to)],
            path @ (Path::Leaf | Path::Spine) => {
                let (a, b) = (self.place(from), self.place(to));
                let (out, into) = (NicOut(a.node, self.nic_of(a)), NicIn(b.node, self.nic_of(b)));
                if path == Path::Leaf {
                    vec![out, into]
                } else {
                    vec![out, LeafUp(self.leaf(a.node)), LeafDown(self.leaf(b.node)), into]
                }
            }
            Path::Rail => {
                let (a, b) = (self.place(from), self.place(to));
                let (Relay::Neighbour(neighbour), rail) = (self.relay(from, (a, b)), self.nic_of(b)) else {
                    panic!("no neighbour of {from} is on the rail of {to}")
                };
                vec![DomainOut(from), DomainIn(neighbour), NicOut(a.node, rail), NicIn(b.node, rail)]
            }
        }
    }
    /// The slowest-link description of a path that leaves `from`: what prices a message.
    #[must_use]
    pub fn link_of_path(&self, from: DeviceId, path: Path) -> &Link {
        let kind = self.node_kind(self.place(from).node_kind);
        match path {
            Path::Local | Path::Domain => &kind.domain_link,
            Path::Host => &kind.host_link,
            Path::Leaf | Path::Rail => &kind.nic,
            Path::Spine => self.fabric.up_link.as_ref().unwrap_or(&kind.nic),
        }
    }
    /// Capacity of a link. A leaf's up-link is the fabric's, else its nodes' NICs divided by the oversubscription.
    #[must_use]
    pub fn capacity(&self, link: PhysicalLink) -> BytesPerSecond {
        match link {
            PhysicalLink::DomainOut(d) | PhysicalLink::DomainIn(d) => {
                self.node_kind(self.place(d).node_kind).domain_link.bandwidth
            }
            PhysicalLink::HostOut(d) | PhysicalLink::HostIn(d) => {
                self.node_kind(self.place(d).node_kind).host_link.bandwidth
            }
            PhysicalLink::NicOut(n, _) | PhysicalLink::NicIn(n, _) => {
                self.node_kind(self.kind_of_node(n)).nic.bandwidth
            }
            PhysicalLink::LeafUp(leaf) | PhysicalLink::LeafDown(leaf) => self.leaf_capacity(leaf),
        }
    }
    /// The kind of a node.
    ///
    /// # Panics
    /// If the cluster has no such node.
    #[must_use]
    pub fn kind_of_node(&self, node: NodeId) -> NodeKindId {
        let mut first = 0u64;
        for group in &self.groups {
            if u64::from(node.raw()) < first + u64::from(group.count) {
                return group.kind;
            }
            first += u64::from(group.count);
        }
        panic!("no node {node} in a cluster of {}", self.nodes())
    }
    fn leaf_capacity(&self, leaf: u32) -> BytesPerSecond {
        if let Some(link) = &self.fabric.up_link {
            return link.bandwidth;
        }
        let per_leaf = u64::from(self.fabric.leaf_nodes);
        let (first, end) = if per_leaf == 0 {
            (0, self.nodes())
        } else {
            let first = u64::from(leaf) * per_leaf;
            (first, (first + per_leaf).min(self.nodes()))
        };
        let mut total = 0.0;
        let mut start = 0u64;
        for group in &self.groups {
            let stop = start + u64::from(group.count);
            let nodes = end.min(stop).saturating_sub(first.max(start));
            let kind = self.node_kind(group.kind);
            total += nodes as f64 * f64::from(kind.nics) * kind.nic.bandwidth.get();
            start = stop;
        }
        BytesPerSecond::new(total / self.fabric.oversubscription).expect("a leaf switch with no NIC under it")
    }
}
