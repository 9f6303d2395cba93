//! Files of Sailor (Strati et al., SOSP 2025): profiles of layers, what layers hold, fits of bandwidths, and plans with
//! what was measured of them. Sailor plans training on unlike devices and in several zones.
//!
//! | file | content |
//! |---|---|
//! | profile | `{microbatch: {tensor degree: {layer: [forward s, backward s, update s]}}}` |
//! | layers | `{model: {tensor degree: {layer: {params_floats, act_mem_floats, act_output_floats, ...}}}}`, of one sequence |
//! | bandwidths | `[[c0, c1, c2], most bytes/s]`: GB/s of `x` bytes are `c0 l² + c1 l + c2` with `l = log2(x / 1 MB)` |
//! | plan | layers and devices of each stage, `mbs`, `gbs`, and where it was run `real` s, `red_grads` s, `max_mem` bytes |
//!
//! Layer 0 is the embedding; after the transformer's layers come the final norm and the head, as one layer or two.
//!
//! ```
//! use trainyard_formats::sailor;
//! let text = r#"{"1": {"1": {"0": [0.001, 0.0, 0.002], "1": [0.01, 0.02, 0.002], "2": [0.003, 0.004, 0.002]}}}"#;
//! let profile = sailor::profile(text, "profile.json").expect("a sound file");
//! assert_eq!(profile.layers(), 3);
//! ```

mod bandwidths;
mod layers;
mod plan;
mod profile;
mod reader;
#[cfg(test)]
mod tests;
mod write;

pub use bandwidths::{BandwidthFit, Pair, bandwidths};
pub use layers::{LayerSizes, Layers, layers};
pub use plan::{Measured, Nodes, Pipeline, Replica, SailorPlan, plan};
pub use profile::{LayerTimes, Point, Profile, profile};
pub use write::{device, of_plan, zones};
