//! Which devices and links of a cluster are emulated, and how.
//!
//! Ranks are threads or processes of this machine whatever the cluster says. A device with a slowdown other than 1 is emulated by
//! waiting, a path that leaves a domain by the [`super::network`]; inside a domain data move at the speed of this
//! machine's memory.

use std::collections::BTreeMap;

use ir::program::CollectiveKind;
use ir::{Cluster, DeviceId, Path, PhysicalLink, Program, Rank};

use super::network::{Load, Wire};
use super::script::{Exchange, Script, Transaction};

/// How many times the CPU time of its instructions each rank's device takes, by rank.
#[must_use]
pub fn slowdowns(program: &Program, cluster: &Cluster) -> Vec<f64> {
    let kind = |rank| cluster.device_kind(cluster.place(program.device(Rank::new(rank))).device_kind);
    (0..program.world()).map(|rank| kind(rank).slowdown).collect()
}

/// Whether the ranks of a run need more CPU time than `cores` cores have, so that its times count in no figure of
/// accuracy: with emulated devices, if the sum of 1/slowdown over ranks is over cores/1.3 (emulation needs slack to
/// keep its promises); else, if there are more ranks than cores.
#[must_use]
pub fn oversubscribed(program: &Program, cluster: &Cluster, cores: u32) -> bool {
    let slowdowns = slowdowns(program, cluster);
    if slowdowns.iter().any(|slowdown| *slowdown > 1.0) {
        slowdowns.iter().map(|slowdown| slowdown.recip()).sum::<f64>() > f64::from(cores) / 1.3
    } else {
        program.world() > cores
    }
}

/// Whether a run whose ranks are threads emulates links: data go between domains of the cluster. Between processes, none
/// is emulated.
#[must_use]
pub fn emulates_links(program: &Program, cluster: &Cluster) -> bool {
    wires(program, cluster, &Script::new(program)).0.iter().any(Option::is_some)
}

/// What each transaction puts on the emulated network (`None`: nothing, it stays inside a domain), and the capacity of
/// each link in bytes per second.
pub(super) fn wires(program: &Program, cluster: &Cluster, script: &Script) -> (Vec<Option<Wire>>, Vec<f64>) {
    let mut links = BTreeMap::new();
    let mut capacities = Vec::new();
    let mut number = |link: PhysicalLink| {
        *links.entry(link).or_insert_with(|| {
            capacities.push(cluster.capacity(link).get());
            capacities.len() - 1
        })
    };
    let wires =
        script.transactions.iter().map(|transaction| wire(program, cluster, transaction, &mut number)).collect();
    (wires, capacities)
}

/// A message crosses its path's links once. A collective is a ring in group order, whose hops go in lockstep: each of
/// its steps waits for the latency of its slowest hop, and every hop carries the same bytes.
fn wire(
    program: &Program,
    cluster: &Cluster,
    transaction: &Transaction,
    number: &mut impl FnMut(PhysicalLink) -> usize,
) -> Option<Wire> {
    let device = |end: usize| {
        let rank = u32::try_from(transaction.ends[end].rank).expect("ranks are u32");
        program.device(Rank::new(rank))
    };
    let members = transaction.ends.len();
    let (hops, steps, bytes) = match transaction.exchange {
        Exchange::Message(_) => (1, 1, transaction.bytes),
        Exchange::Collective(kind, _) => (members, steps(kind, members), ring_bytes(kind, members, transaction.bytes)),
    };
    let mut loads: BTreeMap<usize, f64> = BTreeMap::new();
    let mut latency = 0;
    for hop in 0..hops {
        let (from, to) = (device(hop), device((hop + 1) % members));
        if let Some(hop_latency) = emulated_latency(cluster, from, to) {
            latency = latency.max(hop_latency);
            for link in cluster.links(from, to) {
                *loads.entry(number(link)).or_default() += 1.0;
            }
        }
    }
    let loads: Vec<Load> = loads.into_iter().map(|(link, weight)| Load { link, weight }).collect();
    (!loads.is_empty()).then_some(Wire { latency: latency * steps, bytes, loads })
}

/// Latency of the way between two devices in nanoseconds, if it is emulated.
fn emulated_latency(cluster: &Cluster, from: DeviceId, to: DeviceId) -> Option<u64> {
    match cluster.path(from, to) {
        Path::Local | Path::Domain => None,
        path @ (Path::Host | Path::Leaf | Path::Rail | Path::Spine) => {
            Some(cluster.link_of_path(from, path).latency.nanoseconds())
        }
    }
}

/// Steps of a ring over `members`: each member sends once in a step.
const fn steps(kind: CollectiveKind, members: usize) -> u64 {
    let once = members as u64 - 1;
    match kind {
        CollectiveKind::AllReduce => 2 * once,
        CollectiveKind::AllGather | CollectiveKind::ReduceScatter | CollectiveKind::AllToAll => once,
    }
}

/// Bytes that each member of a ring sends in all: `2 (n-1)/n` of the buffer for an all-reduce, `(n-1)/n` otherwise.
fn ring_bytes(kind: CollectiveKind, members: usize, bytes: u64) -> u64 {
    (u128::from(bytes) * u128::from(steps(kind, members)))
        .div_ceil(members as u128)
        .try_into()
        .expect("fewer than twice u64 bytes")
}
