//! Which ranks may share a role: colour refinement over ranks and the links that their traffic crosses.
//!
//! Two ranks are alike if nothing that happens to one can differ from what happens to the other. Colours start as what is
//! known of a rank alone (its position, its device's kind, where its groups lie) and of a link (its kind and capacity).
//! Then, until the number of colours stands still, each rank's colour takes in the colours of its groups' members in
//! order and of its messages' other ends, with the links that these groups and messages cross, and each link's colour all
//! that crosses it: links carry the same colour only if they are loaded alike. The result is the coarsest equitable
//! partition of this graph (Paige and Tarjan 1987; McKay 1981).
//!
//! A collective keeps each member's way out and way in busy: inside a node its port, between nodes its NIC, and the leaf
//! switches between neighbours in group order. A message crosses the links between its ends. Leaf switches that carry
//! all their NICs at full rate (no oversubscription) hold nobody up, whatever their load, so they tell nobody apart.
//!
//! Colours are 64-bit digests: two unlike ranks meet in one colour with probability below 2^-30 even over 2^17 colours,
//! and verification of the program proves the symmetry again.

use ir::cluster::Place;
use ir::program::{Digest, Layout, RankPlace};
use ir::{Cluster, DeviceId, PhysicalLink, Plan, Rank, Relay};
use rustc_hash::FxHashMap;

use crate::across::Across;
use crate::axes::{AxisGroups, Family};

/// The class of each rank, numbered in order of first appearance by rank.
///
/// `edges` are the pairs of positions between which activations go; of each position it is said whether the ranks of
/// its
/// tensor groups have unlike partners on others.
pub(super) fn classes(
    plan: &Plan,
    layout: &Layout,
    cluster: &Cluster,
    (edges, unlike): (&[(u32, u32)], &[bool]),
    groups: &[AxisGroups],
) -> Vec<u32> {
    let graph = Graph::new(plan, layout, cluster, edges, groups);
    let mut colours = graph.first_colours(layout, unlike, cluster);
    let mut links = graph.link_colours.clone();
    let mut count = distinct(&colours) + distinct(&links);
    loop {
        let (next, next_links) = graph.refine(&colours, &links);
        let refined = distinct(&next) + distinct(&next_links);
        if refined == count {
            return number(&colours);
        }
        (colours, links, count) = (next, next_links, refined);
    }
}

/// Whether a leaf switch can be a bottleneck.
fn leaves_matter(cluster: &Cluster) -> bool {
    cluster.fabric.oversubscription > 1.0
}

fn mix(words: &[u64]) -> u64 {
    let mut digest = Digest::new();
    for word in words {
        digest.number(*word);
    }
    digest.finish()
}

fn distinct(colours: &[u64]) -> usize {
    let mut sorted = colours.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    sorted.len()
}

fn number(colours: &[u64]) -> Vec<u32> {
    let mut seen: FxHashMap<u64, u32> = FxHashMap::default();
    let mut class = |colour| {
        let next = u32::try_from(seen.len()).expect("more classes than ranks");
        *seen.entry(colour).or_insert(next)
    };
    colours.iter().map(|colour| class(*colour)).collect()
}

/// A message from one rank to another.
struct Flow {
    class: u64,
    from: u32,
    to: u32,
    links: (u32, u32),
}

/// One instance of a group.
struct Instance {
    axis: u64,
    family: Family,
    first: u32,
    links: (u32, u32),
}

struct Graph {
    world: usize,
    /// Of each rank's device.
    places: Vec<Place>,
    flows: Vec<Flow>,
    instances: Vec<Instance>,
    /// Links of all flows and instances, one after the other.
    crossed: Vec<u32>,
    link_ids: FxHashMap<PhysicalLink, u32>,
    link_colours: Vec<u64>,
}

const FORWARD: u64 = 0;
const BACKWARD: u64 = 1;
/// Tells the colours of groups from those of messages.
const GROUP: u64 = 2;

impl Graph {
    fn new(plan: &Plan, layout: &Layout, cluster: &Cluster, edges: &[(u32, u32)], groups: &[AxisGroups]) -> Self {
        let world = layout.world();
        let mut graph = Self {
            world: world as usize,
            places: (0..world).map(|rank| cluster.place(plan.device(Rank::new(rank)))).collect(),
            flows: Vec::new(),
            instances: Vec::new(),
            crossed: Vec::new(),
            link_ids: FxHashMap::default(),
            link_colours: Vec::new(),
        };
        for (class, from, to) in edges.iter().flat_map(|&(a, b)| [(FORWARD, a, b), (BACKWARD, b, a)]) {
            for (from, to) in pairs(layout, from, to) {
                let start = graph.crossings();
                let end = |rank: u32| (plan.device(Rank::new(rank)), graph.places[rank as usize]);
                let (a, b) = (end(from), end(to));
                links_between(cluster, a, b, |link| graph.cross(cluster, link));
                graph.flows.push(Flow { class, from, to, links: (start, graph.crossings()) });
            }
        }
        for AxisGroups { axis, family, firsts } in groups {
            for first in firsts {
                let start = graph.crossings();
                graph.collective(plan, cluster, *family, *first);
                graph.crossed[start as usize..].sort_unstable();
                let (axis, first, links) = (*axis as u64, *first, (start, graph.crossings()));
                graph.instances.push(Instance { axis, family: *family, first, links });
            }
        }
        graph
    }

    fn crossings(&self) -> u32 {
        u32::try_from(self.crossed.len()).expect("more crossings than u32")
    }

    fn cross(&mut self, cluster: &Cluster, link: PhysicalLink) {
        if matches!(link, PhysicalLink::LeafUp(_) | PhysicalLink::LeafDown(_)) && !leaves_matter(cluster) {
            return;
        }
        let next = u32::try_from(self.link_ids.len()).expect("more links than u32");
        let id = *self.link_ids.entry(link).or_insert_with(|| {
            self.link_colours.push(link_colour(cluster, link));
            next
        });
        self.crossed.push(id);
    }

    /// The links that a collective keeps busy.
    fn collective(&mut self, plan: &Plan, cluster: &Cluster, family: Family, first: u32) {
        use PhysicalLink::{DomainIn, DomainOut, HostIn, HostOut, LeafDown, LeafUp, NicIn, NicOut};
        let domain = |place: Place| place.local / cluster.node_kind(place.node_kind).domain_size.max(1);
        let head = self.places[first as usize];
        let (mut one_node, mut one_domain) = (true, true);
        for member in family.members(first) {
            let place = self.places[member as usize];
            one_node &= place.node == head.node;
            one_domain &= domain(place) == domain(head);
        }
        let ring = family.members(first).zip(family.members(first).skip(1).chain([first]));
        for (member, next) in ring {
            let (device, place) = (plan.device(Rank::new(member)), self.places[member as usize]);
            let links = match (one_node, one_domain) {
                (true, true) => [DomainOut(device), DomainIn(device)],
                (true, false) => [HostOut(device), HostIn(device)],
                (false, _) => {
                    let nic = cluster.nic_of(place);
                    let (here, there) = (cluster.leaf(place.node), cluster.leaf(self.places[next as usize].node));
                    if here != there {
                        self.cross(cluster, LeafUp(here));
                        self.cross(cluster, LeafDown(there));
                    }
                    [NicOut(place.node, nic), NicIn(place.node, nic)]
                }
            };
            for link in links {
                self.cross(cluster, link);
            }
        }
    }

    /// What is known of each rank alone: position, device kind, microbatches, and where each of its groups lies; where
    /// its
    /// position's ranks have unlike partners, its index in its tensor group too.
    fn first_colours(&self, layout: &Layout, unlike: &[bool], cluster: &Cluster) -> Vec<u64> {
        let mut colours = (0u32..)
            .zip(&self.places)
            .map(|(rank, place)| {
                let RankPlace { position, replica, tensor_index } = layout.place_of(Rank::new(rank));
                let share = layout.share(replica / layout.mesh.context);
                let known = [position, place.device_kind.raw(), share].map(u64::from);
                if unlike[position as usize] { mix(&[mix(&known), tensor_index.into()]) } else { mix(&known) }
            })
            .collect::<Vec<_>>();
        for instance in &self.instances {
            let signature = self.signature(instance.family, instance.first, cluster);
            for member in instance.family.members(instance.first) {
                let colour = &mut colours[member as usize];
                *colour = mix(&[*colour, instance.axis, signature]);
            }
        }
        colours
    }

    /// What prices a collective of this group: members, domains and NICs per node, widest path, first node's kind.
    fn signature(&self, family: Family, first: u32, cluster: &Cluster) -> u64 {
        let mut digest = Digest::new();
        let place = self.places[first as usize];
        digest.number(u64::from(place.node_kind.raw()));
        let mut nodes = family
            .members(first)
            .map(|member| {
                let place = self.places[member as usize];
                let size = cluster.node_kind(place.node_kind).domain_size.max(1);
                (place.node, place.local / size, cluster.nic_of(place))
            })
            .collect::<Vec<_>>();
        nodes.sort_unstable();
        let spine =
            leaves_matter(cluster) && nodes.iter().any(|(node, ..)| cluster.leaf(*node) != cluster.leaf(nodes[0].0));
        digest.number(u64::from(spine));
        let mut sizes = nodes
            .chunk_by(|a, b| a.0 == b.0)
            .map(|node| {
                let nics = node.chunk_by(|a, b| a.2 == b.2).count();
                [node.len(), node.chunk_by(|a, b| a.1 == b.1).count(), nics]
            })
            .collect::<Vec<_>>();
        sizes.sort_unstable();
        for size in sizes.into_iter().flatten() {
            digest.number(size as u64);
        }
        digest.finish()
    }

    /// One round: new colours of ranks and links.
    fn refine(&self, colours: &[u64], links: &[u64]) -> (Vec<u64>, Vec<u64>) {
        let mut ranks = vec![0u64; self.world];
        let mut loads = vec![0u64; links.len()];
        for instance in &self.instances {
            let crossed = &self.crossed[instance.links.0 as usize..instance.links.1 as usize];
            let mut digest = Digest::new();
            digest.number(instance.axis);
            for member in instance.family.members(instance.first) {
                digest.number(colours[member as usize]);
            }
            // Members that share a link slow each other down: how often it is crossed counts.
            let uses = crossed.chunk_by(|a, b| a == b);
            let colours = uses.map(|same| mix(&[links[same[0] as usize], same.len() as u64]));
            digest.number(colours.fold(0u64, u64::wrapping_add));
            let colour = mix(&[digest.finish(), GROUP]);
            for member in instance.family.members(instance.first) {
                ranks[member as usize] = ranks[member as usize].wrapping_add(colour);
            }
            for link in crossed {
                loads[*link as usize] = loads[*link as usize].wrapping_add(colour);
            }
        }
        for flow in &self.flows {
            let crossed = &self.crossed[flow.links.0 as usize..flow.links.1 as usize];
            let mut digest = Digest::new();
            digest.number(flow.class);
            digest.number(colours[flow.from as usize]);
            digest.number(colours[flow.to as usize]);
            for link in crossed {
                digest.number(links[*link as usize]);
            }
            let colour = digest.finish();
            let take = |sum: &mut u64, role: u64| *sum = sum.wrapping_add(mix(&[colour, role]));
            take(&mut ranks[flow.from as usize], 1);
            take(&mut ranks[flow.to as usize], 2);
            for (place, link) in (3u64..).zip(crossed) {
                take(&mut loads[*link as usize], place);
            }
        }
        let join = |old: &[u64], new: Vec<u64>| old.iter().zip(new).map(|(o, n)| mix(&[*o, n])).collect::<Vec<_>>();
        (join(colours, ranks), join(links, loads))
    }
}

/// The ranks between which messages go from one position to another.
fn pairs(layout: &Layout, from: u32, to: u32) -> impl Iterator<Item = (u32, u32)> {
    let across = Across::new(layout, from, to);
    let rank = move |position, replica, tensor_index| layout.rank(RankPlace { position, replica, tensor_index }).raw();
    let of_replica = move |replica: u32| {
        let of_sender = move |sender: u32| {
            let ends = move |receiver: u32| (rank(from, replica, sender), rank(to, replica, receiver));
            across.receivers(sender).map(ends)
        };
        (0..layout.tensor_at(from)).flat_map(of_sender)
    };
    (0..layout.replicas()).flat_map(of_replica)
}

/// [`Cluster::links`] with the places known.
fn links_between(
    cluster: &Cluster,
    (from, a): (DeviceId, Place),
    (to, b): (DeviceId, Place),
    mut cross: impl FnMut(PhysicalLink),
) {
    use PhysicalLink::{DomainIn, DomainOut, HostIn, HostOut, LeafDown, LeafUp, NicIn, NicOut};
    if from == to {
    } else if a.node == b.node {
        let size = cluster.node_kind(a.node_kind).domain_size.max(1);
        if a.local / size == b.local / size {
            cross(DomainOut(from));
            cross(DomainIn(to));
        } else {
            cross(HostOut(from));
            cross(HostIn(to));
        }
    } else {
        let (up, down) = (cluster.leaf(a.node), cluster.leaf(b.node));
        let relay = if up == down { cluster.relay(from, (a, b)) } else { Relay::Nobody };
        if let Relay::Neighbour(neighbour) = relay {
            cross(DomainOut(from));
            cross(DomainIn(neighbour));
            cross(NicOut(a.node, cluster.nic_of(b)));
        } else {
            cross(NicOut(a.node, cluster.nic_of(a)));
        }
        if relay == Relay::Nobody {
            cross(LeafUp(up));
            cross(LeafDown(down));
        }
        cross(NicIn(b.node, cluster.nic_of(b)));
    }
}

fn link_colour(cluster: &Cluster, link: PhysicalLink) -> u64 {
    use PhysicalLink::{DomainIn, DomainOut, HostIn, HostOut, LeafDown, LeafUp, NicIn, NicOut};
    let device = |device: DeviceId| u64::from(cluster.place(device).node_kind.raw());
    let (kind, owner) = match link {
        DomainOut(d) => (0, device(d)),
        DomainIn(d) => (1, device(d)),
        HostOut(d) => (2, device(d)),
        HostIn(d) => (3, device(d)),
        NicOut(n, _) => (4, u64::from(cluster.kind_of_node(n).raw())),
        NicIn(n, _) => (5, u64::from(cluster.kind_of_node(n).raw())),
        LeafUp(_) => (6, 0),
        LeafDown(_) => (7, 0),
    };
    mix(&[kind, owner, cluster.capacity(link).get().to_bits()])
}

#[cfg(test)]
mod tests {
    use ir::Path;

    use super::*;

    #[test]
    fn links_are_those_of_the_cluster() {
        let plain = crate::testing::two_leaves_of_unlike_nodes();
        let mut rails = plain.clone();
        rails.fabric.rails = true;
        let mut whole = crate::testing::dgx(3);
        whole.fabric = ir::Fabric { leaf_nodes: 2, rails: true, ..ir::Fabric::one_switch() };
        [plain, rails, whole].iter().for_each(links_are_those_of);
    }

    fn links_are_those_of(cluster: &Cluster) {
        let devices = u32::try_from(cluster.devices()).unwrap();
        for (a, b) in (0..devices).flat_map(|a| (0..devices).map(move |b| (a, b))) {
            let (a, b) = (DeviceId::new(a), DeviceId::new(b));
            let mut links = Vec::new();
            links_between(cluster, (a, cluster.place(a)), (b, cluster.place(b)), |link| links.push(link));
            assert_eq!(links, cluster.links(a, b), "{a} to {b}, {:?}", cluster.path(a, b));
            assert_eq!(links.is_empty(), cluster.path(a, b) == Path::Local);
        }
    }
}
