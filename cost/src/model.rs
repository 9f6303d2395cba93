//! The cost model: one operation on one device to a duration.

use ir::counts::Shape;
use ir::program::{Chunk, CollectiveKind, Pass, UnitRange};
use ir::{Bytes, Cluster, CollectiveAlgorithm, DeviceId, DeviceKindId, Precision, SimDuration};

/// On what a duration rests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Basis {
    /// Measured for just this.
    Measured,
    /// Between measured points, or from a fit of them.
    Interpolated,
    /// From a formula.
    Analytic,
}

/// A duration and its basis. Never zero: at least one nanosecond.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Priced {
    /// How long, when nothing else uses the device or the links.
    pub duration: SimDuration,
    /// On what it rests (the weakest of its parts).
    pub basis: Basis,
}

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
    pub path: ir::Path,
    /// A member (the first), whose node names the links.
    pub first: DeviceId,
}

impl GroupPlace {
    /// Of devices in group order.
    #[must_use]
    pub fn of(cluster: &Cluster, devices: &[DeviceId]) -> Self {
        let _ = (cluster, devices);
        unimplemented!()
    }
}

/// Prices operations on the devices and links of one cluster.
#[derive(Clone, Debug)]
pub struct CostModel {
    cluster: Cluster,
}

impl CostModel {
    /// The cluster.
    #[must_use]
    pub fn cluster(&self) -> &Cluster {
        &self.cluster
    }
    /// One compute instruction: a pass over consecutive units of a chunk. Additive: the price of a range is the sum of
    /// the prices of its units plus one dispatch of the instruction.
    #[must_use]
    pub fn compute(&self, shape: Shape<'_>, chunk: &Chunk, pass: Pass, units: UnitRange, device: DeviceKindId) -> Priced {
        let _ = (shape, chunk, pass, units, device);
        unimplemented!()
    }
    /// One collective alone. `bytes` is the whole buffer (see [`ir::Op::Collective`]).
    #[must_use]
    pub fn collective(&self, kind: CollectiveKind, bytes: Bytes, place: GroupPlace, algorithm: CollectiveAlgorithm) -> Priced {
        let _ = (kind, bytes, place, algorithm);
        unimplemented!()
    }
    /// Bytes that each member puts on its slowest outgoing link during a collective: what the fabric is loaded with.
    #[must_use]
    pub fn wire_bytes(&self, kind: CollectiveKind, bytes: Bytes, place: GroupPlace, algorithm: CollectiveAlgorithm) -> Bytes {
        let _ = (kind, bytes, place, algorithm);
        unimplemented!()
    }
    /// One message alone, latency included.
    #[must_use]
    pub fn message(&self, bytes: Bytes, from: DeviceId, to: DeviceId) -> Priced {
        let _ = (bytes, from, to);
        unimplemented!()
    }
    /// The sum of squares over `parameters` gradients.
    #[must_use]
    pub fn gradient_norm(&self, parameters: u64, device: DeviceKindId) -> Priced {
        let _ = (parameters, device);
        unimplemented!()
    }
    /// The optimizer step of `parameters` parameters.
    #[must_use]
    pub fn optimizer(&self, parameters: u64, precision: Precision, device: DeviceKindId) -> Priced {
        let _ = (parameters, precision, device);
        unimplemented!()
    }
}
