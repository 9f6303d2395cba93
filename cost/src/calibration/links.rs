//! Rows of a calibration that price collectives, messages and copies.

use serde::{Deserialize, Serialize};

/// Share of a link's line rate that collectives and messages reach.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct LinkEfficiency {
    /// Name of the link.
    pub link: String,
    /// Share of the line rate.
    pub efficiency: f64,
    /// Devices of a node that share one such link where it leads through the host (a PCIe switch, a socket); 1 where each
    /// has its own.
    #[serde(default = "one", skip_serializing_if = "is_one")]
    pub devices_share: u32,
    /// Where it comes from.
    pub source: String,
}

const fn one() -> u32 {
    1
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde hands a reference")]
const fn is_one(count: &u32) -> bool {
    *count == 1
}

/// One protocol of a collective library. The cheapest is taken for each size, as the library does.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Protocol {
    /// Its name.
    pub name: String,
    /// Fixed time of a collective.
    pub base_us: f64,
    /// Time of a step inside a domain.
    pub domain_step_us: f64,
    /// Time of a step through the host.
    pub host_step_us: f64,
    /// Time of a step between nodes.
    pub network_step_us: f64,
    /// Share of the bandwidth that carries data.
    pub bandwidth_fraction: f64,
    /// Most that it reaches.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bandwidth_cap_gb_per_s: Option<f64>,
    /// Time of each further peer of an all-to-all, whose messages are under way together: they pay one step, not one each.
    #[serde(default = "one_us")]
    pub peer_us: f64,
    /// Where it comes from.
    pub source: String,
}

const fn one_us() -> f64 {
    1.0
}

/// A fit of measured collectives inside one domain, of `n` members and a buffer of `S` bytes:
/// `t = (overhead_us + overhead_us_per_rank n + root_us_per_sqrt_mib sqrt(S)) share + factor S / bus`, where `factor` is
/// `2(n-1)/n` for an all-reduce and `(n-1)/n` for the others, and `share` is 1 for an all-reduce and 1/2 for the others
/// (which are its two halves); of a fit for one kind alone it is 1.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CollectiveFit {
    /// Name of the link.
    pub link: String,
    /// Fewest members for which it holds; the row with the most that fits is taken.
    pub from_ranks: u32,
    /// Only for all-reduces (such as those that a switch adds up).
    #[serde(default)]
    pub all_reduce_only: bool,
    /// Only for this kind ([`ir::program::CollectiveKind::name`]). All-to-alls need a row of their own: they are no half of
    /// an all-reduce.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Fixed time, whatever the members.
    #[serde(default)]
    pub overhead_us: f64,
    /// Fixed time for each member.
    pub overhead_us_per_rank: f64,
    /// Bus bandwidth of large buffers.
    pub bus_gb_per_s: f64,
    /// Slow start.
    pub root_us_per_sqrt_mib: f64,
    /// Measured rows that it rests on; 0 means assumed.
    pub rows: u32,
    /// Where it comes from.
    pub source: String,
}

/// A fit of measured messages or copies: `t = overhead + S / bandwidth + root sqrt(S)`.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MessageFit {
    /// Name of the link.
    pub link: String,
    /// Fixed time.
    pub overhead_us: f64,
    /// Bandwidth of large messages, as a share of the line rate.
    pub bandwidth_fraction: f64,
    /// Slow start.
    pub root_us_per_sqrt_mib: f64,
    /// Measured rows that it rests on; 0 means assumed.
    pub rows: u32,
    /// Where it comes from.
    pub source: String,
}

/// The host of a node, where it steps the optimizer.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Host {
    /// Bytes of optimizer state, gradients and parameters per second that the host reads and writes while it steps them,
    /// for each device of the node.
    pub optimizer_gb_per_s: f64,
    /// Measured rows that it rests on; 0 means assumed.
    pub rows: u32,
    /// Where it comes from.
    pub source: String,
}
