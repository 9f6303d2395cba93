//! Storage: what a checkpoint holds, and how long bytes take.

use ir::{Bytes, BytesPerSecond, GradientFormat, Plan, SimDuration, VocabularyDivision, Workload, ZeroStage};

/// Bytes of a checkpoint of a plan: every parameter and the optimizer's state once, whoever holds copies, with the
/// vocabulary as it is padded (of stages with unlike tensor degrees, by the most).
///
/// | | bytes of a parameter |
/// |---|---|
/// | half precision | 14: the weight, its FP32 master and two moments |
/// | FP32, TF32; ZeRO-3 with FP32 gradients (FSDP) | 12: the FP32 weight and two moments |
///
/// BLOOM-176B in BF16: 2.47 TB, 2.24 TiB (published: 2.3).
#[must_use]
pub fn checkpoint_bytes(model: &ir::Model, workload: &Workload, plan: &Plan) -> Bytes {
    let parts = match plan.sharing.vocabulary {
        VocabularyDivision::Ends => plan.tensors().max().unwrap_or(plan.tensor),
        VocabularyDivision::TwoBarriers | VocabularyDivision::OneBarrier | VocabularyDivision::Interlaced => {
            plan.tensor * plan.pipeline()
        }
    };
    let vocabulary = model.padded_vocabulary(workload.vocabulary_divisor, parts);
    let padded = ir::Model { vocabulary: u32::try_from(vocabulary).unwrap_or(u32::MAX), ..model.clone() };
    let single = plan.zero == ZeroStage::Zero3 && workload.recipe.gradients == GradientFormat::Fp32;
    let each = if workload.precision.is_half() && !single { 14 } else { 12 };
    Bytes::new(padded.parameters().saturating_mul(each))
}

/// Time for bytes at a bandwidth, at least a nanosecond where there are any; `None` past 584 years.
#[must_use]
pub fn transfer_time(bytes: Bytes, bandwidth: BytesPerSecond) -> Option<SimDuration> {
    SimDuration::from_seconds(bytes.get() as f64 / bandwidth.get())
}
