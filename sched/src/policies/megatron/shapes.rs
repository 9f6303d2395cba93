//! Which degrees the rules look at, and in which order.

use ir::{ContextMethod, Mesh};

use super::super::{Question, context_method, contexts, smallest_domain};
use super::Held;
use crate::legality::divides_over;

/// Degrees of a plan, but for its experts.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Shape {
    pub(super) data: u32,
    pub(super) tensor: u32,
    pub(super) context: u32,
    pub(super) pipeline: u32,
}

impl Shape {
    /// Ranks of a replica.
    pub(super) const fn product(self) -> u64 {
        self.tensor as u64 * self.context as u64 * self.pipeline as u64
    }
    /// Ranks of a pipeline position.
    const fn position(self) -> u64 {
        self.data as u64 * self.tensor as u64 * self.context as u64
    }
}

/// Rule 8: how much the fullest stage may hold more than the mean.
const UNEVEN: f64 = 1.1;
/// What of the devices is used, at least, as long as anything fits so.
const USED: f64 = 0.75;

/// Shapes by growing size of a replica (rules 1 to 4), those of one size together; first those whose stages are nearly equal
/// and that use nearly all devices, then all others.
pub(super) fn shapes(ask: &Question<'_>, held: &Held) -> [Vec<Vec<Shape>>; 2] {
    let (model, devices, batch) = (ask.model, ask.devices(), ask.workload.global_batch);
    let or = |held: Option<u32>, open: Vec<u32>| held.map_or(open, |held| vec![held]);
    let domain = smallest_domain(ask);
    let inside = (1..=domain).filter(|tensor| tensor.is_power_of_two() && divides_over(model, *tensor));
    let tensors = or(held.tensor, inside.collect());
    let contexts = or(held.context, contexts(ask.workload.sequence_length));
    let deepest = model.layers.min(u32::try_from(devices).unwrap_or(u32::MAX));
    let pipelines = or(held.pipeline, (1..=deepest).collect());
    let mut all = Vec::new();
    for tensor in tensors {
        for context in contexts.iter().copied() {
            for pipeline in pipelines.iter().copied() {
                let one = Shape { data: 1, tensor, context, pipeline };
                let lanes = u32::try_from(devices / one.product().max(1)).unwrap_or(u32::MAX).min(batch);
                // As many replicas as the batch divides by, in microbatches of the size that is held.
                let divides =
                    |size: u32| (1..=lanes).rev().find(|data| batch.is_multiple_of(data.saturating_mul(size)));
                let most = held.microbatch_size.and_then(divides).or_else(|| divides(1));
                all.extend(held.data.or(most).map(|data| Shape { data, ..one }));
            }
        }
    }
    all.sort_by_key(|shape| (shape.product(), shape.tensor, shape.context));
    let preferred = |shape: &Shape| {
        let fullest = f64::from(model.layers.div_ceil(shape.pipeline) * shape.pipeline);
        let used = shape.product() as f64 * f64::from(shape.data) / devices as f64;
        fullest <= UNEVEN * f64::from(model.layers) && used >= USED
    };
    let (first, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(preferred);
    [first, rest].map(|shapes| shapes.chunk_by(|a, b| a.product() == b.product()).map(<[_]>::to_vec).collect())
}

/// Where the members of an expert group are.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Place {
    Inside,
    Beyond,
}

/// Expert degrees inside a domain that are tried for a shape, widest first.
const DEGREES: usize = 4;

/// Rule 2: expert degrees inside a domain, the widest first, or those beyond, the narrowest first.
pub(super) fn experts(ask: &Question<'_>, held: &Held, shape: Shape, place: Place) -> Vec<u32> {
    let Some(experts) = ask.model.variants.experts else { return vec![1] };
    if let Some(expert) = held.expert {
        return vec![expert];
    }
    let most = u32::try_from(shape.position()).unwrap_or(u32::MAX).min(experts.count);
    let fits =
        |degree: &u32| experts.count.is_multiple_of(*degree) && shape.position().is_multiple_of(u64::from(*degree));
    let degrees = (1..=most).filter(fits);
    let domain = smallest_domain(ask);
    match place {
        Place::Inside => {
            let mut inside = degrees.filter(|degree| *degree <= domain).collect::<Vec<_>>();
            inside.reverse();
            inside.truncate(DEGREES);
            inside
        }
        Place::Beyond => degrees.filter(|degree| *degree > domain).collect(),
    }
}

/// The mesh of a shape and an expert degree. Experts are whole (rule 2).
pub(super) fn mesh(ask: &Question<'_>, shape: Shape, expert: u32) -> Mesh {
    let method = if shape.context > 1 { context_method(ask.model) } else { ContextMethod::default() };
    Mesh { context: shape.context, context_method: method, expert, expert_tensor: 1 }
}
