//! Counts to time and memory: one cost function per fact.
//!
//! The closed-form estimator and the simulator compose what is here; neither derives it again.
//! **Deliberately ignorant of** policies, schedules and programs' order: every function is pure in its arguments.
//!
//! A [`CostModel`] prices compute, collectives and messages on one [`ir::Cluster`] from [`Calibration`]s (plain data,
//! TOML), from measured layers ([`Profile`]) or a [`PassTable`]; [`fit`] makes a calibration from an executor's measurements; [`memory`] counts bytes.
//! What a software [`Stack`] adds comes from a catalog of [`Stacks`] with declared fallbacks; how far a price may be off is
//! [`CostModel::spread`], what of it was never measured [`CostModel::assumptions`].
//! Times are whole nanoseconds, at least one, and equal on all machines (`libm`, fixed order of sums).
//!
//! ```
//! # use trainyard_cost as cost;
//! use cost::{Calibration, CostModel, GroupPlace};
//! use ir::program::CollectiveKind;
//! # use ir::{BytesPerSecond, Cluster, DeviceKind, DeviceKindId, Fabric, FlopsPerSecond, Link, NodeGroup, NodeKind, NodeKindId};
//! # use ir::{Bytes, CollectiveAlgorithm, DeviceId, Precision, SimDuration};
//! # let link = |name: &str| Link {
//! #     name: name.to_owned(),
//! #     bandwidth: BytesPerSecond::new(1e10).unwrap(),
//! #     latency: SimDuration::from_nanoseconds(1000),
//! #     efficiency: None,
//! # };
//! # let core = DeviceKind {
//! #     name: "core".to_owned(),
//! #     calibration: "cpu".to_owned(),
//! #     peak: vec![(Precision::Fp32, FlopsPerSecond::new(1e11).unwrap())],
//! #     memory: Bytes::from_gib(8),
//! #     memory_bandwidth: BytesPerSecond::new(1e10).unwrap(),
//! #     multiprocessors: 1,
//! #     slowdown: 1.0,
//! #     tdp_watts: None,
//! #     usd_per_hour: None,
//! #     price_source: None,
//! #     source: "an example".to_owned(),
//! # };
//! # let node = NodeKind {
//! #     name: "host".to_owned(),
//! #     devices: vec![DeviceKindId::new(0); 4],
//! #     domain_size: 4,
//! #     domain_link: link("shared-memory"),
//! #     host_link: link("shared-memory"),
//! #     nics: 1,
//! #     nic: link("eth-10g"),
//! # };
//! # let cluster = Cluster {
//! #     device_kinds: vec![core],
//! #     node_kinds: vec![node],
//! #     groups: vec![NodeGroup { kind: NodeKindId::new(0), count: 1 }],
//! #     fabric: Fabric::one_switch(),
//! # };
//! # let text = include_str!("../../catalog/calibration/cpu.toml");
//! let model = CostModel::new(cluster, vec![Calibration::from_toml(text, "cpu.toml").unwrap()]).unwrap();
//! let group = [0, 1, 2, 3].map(DeviceId::new);
//! let place = GroupPlace::of(model.cluster(), &group);
//! let priced = model.collective(CollectiveKind::AllReduce, Bytes::new(4_000_000), place, CollectiveAlgorithm::Ring);
//! // 2(n-1)/n S/B + 2(n-1) steps: 600 us on a link of 10 GB/s, and six steps of 1 us.
//! assert_eq!(priced.duration, SimDuration::from_nanoseconds(606_000));
//! ```
//!
//! Read next: [`Calibration`] for the equations, `collective`'s table for algorithms, [`CostModel`] for the prices.

mod basis;
mod calibration;
mod calibration_text;
mod collective;
mod compute;
mod curve;
mod fit;
mod long_run;
pub mod memory;
mod model;
mod pass_table;
mod place;
mod prices;
mod profile;
mod shapes;
mod slowing;
mod stack;
mod storage;
mod terms;
#[cfg(test)]
mod tests;

pub use basis::Basis;
pub use calibration::{
    Alignment, Attention, Calibration, CollectiveFit, CollectivePoints, Composition, Dispatch, Host, InTraining,
    Interference, LinkEfficiency, MatrixProduct, Measured, MessageFit, Protocol, SHARED_MEMORY, StreamingPoints,
    StreamingRate,
};
pub use collective::Steps;
pub use compute::too_long;
pub use fit::{ClassError, FitReport, fit};
pub use long_run::{
    Checkpointing, ExpectedShares, Failing, Gained, best_interval_s, best_iterations, daly_interval_s, expected_shares,
    young_interval_s,
};
pub use model::{CostModel, NINETY_PERCENT, Priced, Spread, SpreadCause, deduplicated, exposed};
pub use pass_table::{PassTable, StagePasses};
pub use place::GroupPlace;
pub use prices::Prices;
pub use profile::{Profile, ProfiledLayer, ProfiledPoint};
pub use slowing::{Progress, Slowing};
pub use stack::{
    ClassRow, ColdGroup, ExpertSync, GraphUse, PrecisionClass, SpreadTerms, Stack, StackConstants, StackKey, StackRow,
    Stacks, Widening,
};
pub use storage::{checkpoint_bytes, transfer_time};
pub use terms::{Headroom, Paid, Terms};
