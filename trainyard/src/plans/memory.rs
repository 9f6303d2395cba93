//! What a plan needs of memory, from the sizes of its layers.
//!
//! ```text
//! 16 parameters + 1.12 kept + runtime
//! ```
//!
//! Parameters of a rank in FP32 with their gradient and two moments are 16 bytes each; what the layers of a stage keep of a
//! microbatch is there once for each microbatch in flight (`min(p - i, m)` in stage `i` of `p`, 1F1B), and an allocator holds
//! [`cost::memory::Figures::UNUSED_THOUSANDTHS`] of it besides. What the runtime takes (kernels, communicators) is one figure
//! of the software and device: the median over runs of other groups, so that no group has a part in its own.

use std::collections::BTreeMap;

use cost::memory::Figures;
use formats::sailor::{LayerSizes, Pipeline, SailorPlan};

use super::faults::Named;

/// Bytes of weight, gradient and two moments in FP32.
const STATE: u64 = 16;

/// Layers by tensor degree.
pub(crate) type Sizes = BTreeMap<u32, Vec<LayerSizes>>;

/// Bytes of the fullest stage without what the runtime takes; `None` where sizes of a degree or layer are not known, or the
/// plan's batch is not.
pub(crate) fn tensors(plan: &SailorPlan, sizes: &Sizes) -> Option<u64> {
    let pipeline: &Pipeline = plan.pipelines.first()?;
    let stages = pipeline.layers.len() as u64;
    let step = u64::from(plan.microbatch) * pipeline.replicas.first()?.len() as u64;
    let microbatches = u64::from(plan.batch?) / step.max(1);
    let of_stage = |(place, layers): (usize, &Vec<u32>)| -> Option<u64> {
        let known = sizes.get(&pipeline.replicas[place].first()?.tensor)?;
        let mut parameters = 0;
        let mut kept = 0;
        for layer in layers {
            let layer = known.get(*layer as usize)?;
            parameters += layer.parameters;
            kept += layer.kept * 4;
        }
        let in_flight = (stages - place as u64).min(microbatches.max(1));
        let passing = kept * u64::from(plan.microbatch) * in_flight;
        Some(parameters * STATE + passing + passing / 1000 * Figures::UNUSED_THOUSANDTHS)
    };
    pipeline.layers.iter().enumerate().map(of_stage).collect::<Option<Vec<u64>>>()?.into_iter().max()
}

/// Runs of one number of stages and microbatch are one group: they differ in replicas alone, which memory hardly sees.
pub(crate) fn group(plan: &SailorPlan) -> (usize, u32) {
    (plan.pipelines.first().map_or(0, |pipeline| pipeline.layers.len()), plan.microbatch)
}

/// What the runtime takes, by the other groups: the median of measured memory beyond tensors. `None` if there is no other.
pub(crate) fn runtime(of: &SailorPlan, rows: &[(&Named, u64)]) -> Option<u64> {
    let mut left: Vec<u64> = rows
        .iter()
        .filter(|(row, _)| group(&row.plan) != group(of))
        .filter_map(|(row, tensors)| Some(row.measured.memory?.saturating_sub(*tensors)))
        .collect();
    left.sort_unstable();
    left.get(left.len() / 2).copied()
}
