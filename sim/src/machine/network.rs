//! Which transfers share which links, folded.
//!
//! A *flow kind* is one message direction of a role or one collective of a group: at most one of its transfers is
//! under way at a time on a rank. Every rank's flows are laid over the physical links; links that carry the same
//! kinds equally often and have the same capacity form one *class*, which stands for all of them. Roles are equitable
//! (each rank's flow of a kind crosses the same classes), so the rates on the classes are the rates on every link.
//!
//! A kind whose classes could carry all their kinds at full speed at once can never be stretched; its transfers take
//! their duration alone and never reach the solver. That duration may beat the rate of the ports and NICs that it was
//! priced for (measured curves do); it never beats the up-link of a leaf switch.

use ir::{Cluster, DeviceId, Op, Path, PhysicalLink, Program, RoleId};
use rustc_hash::FxHashMap;

use super::graph::{Graph, Meeting};
use super::prices::Prices;
use crate::fabric::flows::Flows;
use crate::fabric::{Hop, LinkId};

/// What a transfer needs of the fabric.
#[derive(Clone, Debug)]
pub(super) struct Route {
    /// Link classes crossed, with the flows of this kind that cross one such link.
    pub(super) hops: Vec<Hop>,
    /// Most bytes per second that one such flow can have on the links that its price knows.
    pub(super) limit: u64,
}

/// See the [module](self).
#[derive(Debug, Default)]
pub(super) struct Network {
    /// The kind of each rendezvous.
    pub(super) kind_of: Vec<u32>,
    /// Of each kind; `None` if it can never be stretched.
    pub(super) routes: Vec<Option<Route>>,
    capacities: Vec<u64>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Kind {
    Message { role: RoleId, peer: ir::program::Peer, direction: ir::program::Direction },
    Collective { composition: u32 },
}

/// How often each kind crosses a link, by kind number ascending.
type Load = Vec<(u32, u32)>;

impl Network {
    pub(super) fn new(program: &Program, graph: &Graph, prices: &Prices, cluster: &Cluster) -> Self {
        let (kinds, kind_of) = kinds(program, graph);
        let mut links = Links::default();
        let mut own: Vec<Vec<usize>> = Vec::new();
        for (number, kind) in kinds.iter().enumerate() {
            own.push(links.lay(program, graph, cluster, u32::try_from(number).expect("few kinds"), *kind));
        }
        let (class_of, classes) = links.classes(cluster);
        // Most that one flow of a kind can have when no other flow is there: its own members may share a link. Up-links
        // of leaf switches are no part of what a price knows, so they bind a lone flow too.
        let limits: Vec<u64> = own
            .iter()
            .map(|crossed| {
                let uses = |link: usize| crossed.iter().filter(|other| **other == link).count() as u64;
                let priced = crossed.iter().filter(|link| !is_uplink(links.links[**link]));
                priced.map(|link| classes[class_of[*link]].1 / uses(*link)).min().unwrap_or(u64::MAX).max(1)
            })
            .collect();
        let mut peak = vec![0u64; kinds.len()];
        for (rendezvous, transfer) in prices.transfers.iter().enumerate() {
            let kind = kind_of[rendezvous] as usize;
            peak[kind] = peak[kind].max(transfer.cap(limits[kind]));
        }
        let contended: Vec<bool> = classes
            .iter()
            .map(|(load, capacity)| {
                let all: u128 = load.iter().map(|(k, n)| u128::from(*n) * u128::from(peak[*k as usize])).sum();
                all > u128::from(*capacity)
            })
            .collect();
        let mut numbering = Flows::new();
        let class_links: Vec<LinkId> = classes.iter().map(|(_, capacity)| numbering.add_link(*capacity)).collect();
        let routes = own
            .iter()
            .zip(limits)
            .zip(0u32..)
            .map(|((crossed, limit), number)| {
                let mut crossed: Vec<usize> = crossed.iter().map(|link| class_of[*link]).collect();
                crossed.sort_unstable();
                crossed.dedup();
                let hops = crossed.iter().map(|class| {
                    let load = &classes[*class].0;
                    let uses = load.iter().find(|(kind, _)| *kind == number).expect("a kind is in its links' loads").1;
                    Hop { link: class_links[*class], uses }
                });
                crossed.iter().any(|class| contended[*class]).then(|| Route { hops: hops.collect(), limit })
            })
            .collect();
        Self { kind_of, routes, capacities: classes.into_iter().map(|(_, capacity)| capacity).collect() }
    }

    /// Flows over this network, none under way.
    pub(super) fn flows(&self) -> Flows {
        let mut flows = Flows::new();
        for capacity in &self.capacities {
            flows.add_link(*capacity);
        }
        flows
    }
}

const fn is_uplink(link: PhysicalLink) -> bool {
    match link {
        PhysicalLink::LeafUp(_) | PhysicalLink::LeafDown(_) => true,
        PhysicalLink::DomainOut(_)
        | PhysicalLink::DomainIn(_)
        | PhysicalLink::HostOut(_)
        | PhysicalLink::HostIn(_)
        | PhysicalLink::NicOut(..)
        | PhysicalLink::NicIn(..) => false,
    }
}

fn kinds(program: &Program, graph: &Graph) -> (Vec<Kind>, Vec<u32>) {
    let mut numbers: FxHashMap<Kind, u32> = FxHashMap::default();
    let mut kinds = Vec::new();
    let kind_of = graph
        .meetings
        .iter()
        .map(|meeting| {
            let kind = match *meeting {
                Meeting::Collective { composition, .. } => Kind::Collective { composition },
                Meeting::Message { sender } => {
                    let role = graph.role(sender);
                    let instruction = program.roles[role].instructions()[(sender - graph.offsets[role]) as usize];
                    let Op::Send { peer, message, .. } = instruction.op else {
                        panic!("message of node {sender} has no send")
                    };
                    Kind::Message { role: RoleId::at(role), peer, direction: message.direction }
                }
            };
            *numbers.entry(kind).or_insert_with(|| {
                kinds.push(kind);
                u32::try_from(kinds.len() - 1).expect("few kinds")
            })
        })
        .collect();
    (kinds, kind_of)
}

/// Physical links in use, in order of first use.
#[derive(Default)]
struct Links {
    numbers: FxHashMap<PhysicalLink, usize>,
    links: Vec<PhysicalLink>,
    loads: Vec<Load>,
}

impl Links {
    fn cross(&mut self, link: PhysicalLink, kind: u32) -> usize {
        let number = *self.numbers.entry(link).or_insert_with(|| {
            self.links.push(link);
            self.loads.push(Vec::new());
            self.links.len() - 1
        });
        match self.loads[number].last_mut() {
            Some((last, count)) if *last == kind => *count += 1,
            _ => self.loads[number].push((kind, 1)),
        }
        number
    }

    /// Lays every flow of a kind over the links; returns the links of the representative's flow.
    fn lay(&mut self, program: &Program, graph: &Graph, cluster: &Cluster, number: u32, kind: Kind) -> Vec<usize> {
        let mut own: Option<Vec<usize>> = None;
        match kind {
            Kind::Message { role, peer, .. } => {
                for from in program.roles[role.index()].ranks.iter() {
                    let to = u32::try_from(i64::from(from.raw()) + peer.shift).expect("verified peer");
                    let links = cluster.links(program.device(from), program.device(ir::Rank::new(to)));
                    let crossed: Vec<usize> = links.into_iter().map(|link| self.cross(link, number)).collect();
                    own.get_or_insert(crossed);
                }
            }
            Kind::Collective { composition } => {
                let (group, roles) = &graph.compositions[composition as usize];
                let family = &program.groups[group.index()];
                for shift in family.shifts.iter() {
                    let members = family.members.moved(i64::from(shift.raw()));
                    let present =
                        |rank: ir::Rank| roles.binary_search(&RoleId::new(graph.role_of[rank.index()])).is_ok();
                    if !members.iter().all(present) {
                        continue;
                    }
                    let devices: Vec<DeviceId> = members.iter().map(|rank| program.device(rank)).collect();
                    let links = collective_links(cluster, &devices);
                    let crossed: Vec<usize> = links.into_iter().map(|link| self.cross(link, number)).collect();
                    own.get_or_insert(crossed);
                }
            }
        }
        own.unwrap_or_default()
    }

    /// The class of each link, and each class's load and capacity.
    fn classes(&self, cluster: &Cluster) -> (Vec<usize>, Vec<(Load, u64)>) {
        let mut numbers: FxHashMap<(&Load, u64), usize> = FxHashMap::default();
        let mut classes = Vec::new();
        let class_of = self
            .links
            .iter()
            .zip(&self.loads)
            .map(|(link, load)| {
                let capacity = whole(cluster.capacity(*link));
                *numbers.entry((load, capacity)).or_insert_with(|| {
                    classes.push((load.clone(), capacity));
                    classes.len() - 1
                })
            })
            .collect();
        (class_of, classes)
    }
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a positive rate; saturates at u64::MAX")]
fn whole(rate: ir::BytesPerSecond) -> u64 {
    (rate.get() as u64).max(1)
}

/// The links that a collective over devices (in group order) keeps busy: each member's way out and way in. Inside a
/// node that is its domain (or host) port; a group that spans nodes is bound by its members' NICs, and by the leaf
/// switches where it crosses them.
fn collective_links(cluster: &Cluster, devices: &[DeviceId]) -> Vec<PhysicalLink> {
    let widest = devices.iter().map(|device| cluster.path(devices[0], *device)).max().unwrap_or(Path::Local);
    let mut links = Vec::with_capacity(devices.len() * 2);
    for (index, device) in devices.iter().enumerate() {
        match widest {
            Path::Local => {}
            Path::Domain => links.extend([PhysicalLink::DomainOut(*device), PhysicalLink::DomainIn(*device)]),
            Path::Host => links.extend([PhysicalLink::HostOut(*device), PhysicalLink::HostIn(*device)]),
            Path::Leaf | Path::Rail | Path::Spine => {
                let place = cluster.place(*device);
                let nic = cluster.nic_of(place);
                links.extend([PhysicalLink::NicOut(place.node, nic), PhysicalLink::NicIn(place.node, nic)]);
                let next = cluster.place(devices[(index + 1) % devices.len()]);
                if cluster.leaf(place.node) != cluster.leaf(next.node) {
                    links.push(PhysicalLink::LeafUp(cluster.leaf(place.node)));
                    links.push(PhysicalLink::LeafDown(cluster.leaf(next.node)));
                }
            }
        }
    }
    links
}
