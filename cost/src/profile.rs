//! Measured times of layers: a cost source for passes, by kind of device, tensor degree and microbatch.
//!
//! A profile holds what one layer of a model takes forward, backward and in the optimizer's step, its exchanges over the
//! tensor group included. What is priced of it:
//!
//! * the embedding, a transformer layer (the mean over all of them, so that the layers of the whole model add up to what
//!   was measured) and what follows the last one: final norm, head and loss, one entry of the profile or two;
//! * a layer's mixer and its feed-forward part as halves of it, since collectives of a tensor group stand between them in a
//!   program; those take a nanosecond, as they are in the times;
//! * the input and weight gradients as halves of the backward pass, where a schedule splits it;
//! * the optimizer's step, by parameter: all updates over the parameters of a rank.
//!
//! **What was not measured has no price**: a tensor degree or microbatch that is not there is named
//! ([`crate::CostModel::unprofiled`]), and so are context groups, experts and divided sequences. Between two measured
//! microbatches times are interpolated if the profile says so. Points that contradict others are replaced, and named:
//! see the `order` module.

use std::collections::BTreeMap;

use ir::counts::{Shape, UnitKind};
use ir::program::Pass;
use ir::{Model, Problem, Recompute};

use crate::basis::Basis;
use crate::compute::{UnitPrice, nanoseconds};

mod order;

use order::in_order;

/// Seconds of one layer over one microbatch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct ProfiledLayer {
    /// Forward.
    pub forward: f64,
    /// Backward, of inputs and weights.
    pub backward: f64,
    /// The optimizer's step of its parameters on one rank; 0 where it was not measured.
    pub update: f64,
}

/// What was measured at one tensor degree of one microbatch size.
#[derive(Clone, PartialEq, Debug)]
pub struct ProfiledPoint {
    /// Ranks that share each matrix.
    pub tensor: u32,
    /// Sequences of a microbatch.
    pub microbatch: u32,
    /// The embedding, the layers of the model, and one or two for what follows.
    pub layers: Vec<ProfiledLayer>,
}

/// Measured layers of a model on a kind of device.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// From where, for notes and problems.
    pub source: String,
    /// The kind of device, by name.
    pub device: String,
    /// Whether microbatches between measured ones are interpolated.
    pub interpolate: bool,
    /// What was measured, in any order.
    pub points: Vec<ProfiledPoint>,
}

/// Embedding, transformer layer, end: forward and backward seconds of each.
type Parts = [[f64; 2]; 3];

/// A profile made ready for one model.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Ready {
    pub(crate) source: String,
    interpolate: bool,
    degrees: BTreeMap<u32, Degree>,
}

/// One tensor degree.
#[derive(Clone, PartialEq, Debug, Default)]
struct Degree {
    /// Microbatches in order, with the times of each.
    times: Vec<(u32, Parts)>,
    /// What was replaced, by microbatch, in sentences.
    replaced: Vec<(u32, String)>,
    /// Seconds of the optimizer for each parameter of the model; `None` where no update was measured.
    update: Option<f64>,
}

/// What an unmeasured pass of a unit is taken to need, in nanoseconds: longer than anything that is looked for.
const UNMEASURED: u64 = 1_000_000_000_000;

impl Profile {
    /// Made ready for a model.
    ///
    /// # Errors
    /// Everything that does not fit: numbers of layers that are not the model's, times that are no times, points that are
    /// there twice, models whose layers are not all of one kind.
    pub(crate) fn ready(&self, model: &Model) -> Result<Ready, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut fault = |message: String, hint: &str| {
            problems.push(Problem::new("cost.profiles", format!("{} {message}", self.source)).hint(hint));
        };
        if !model.variants.pattern.is_empty() || model.variants.experts.is_some() {
            fault("does not say which layers are of which kind".to_owned(), "a model whose layers are all alike");
        }
        if self.points.is_empty() {
            fault("has no point".to_owned(), "a microbatch and a tensor degree at least");
        }
        let mut degrees: BTreeMap<u32, BTreeMap<u32, &ProfiledPoint>> = BTreeMap::new();
        for point in &self.points {
            let count = point.layers.len();
            let (tensor, microbatch) = (point.tensor, point.microbatch);
            let inner = model.layers as usize;
            if count != inner + 2 && count != inner + 3 {
                fault(
                    format!(
                        "has {count} layers at microbatch {microbatch} and tensor degree {tensor}, and {} has {inner} \
                         beside the embedding and what follows the last",
                        model.name
                    ),
                    "the profile of this model",
                );
            }
            let sound = |of: &ProfiledLayer| {
                let each = [of.forward, of.backward, of.update];
                of.forward > 0.0 && each.iter().all(|time| (0.0..=3600.0).contains(time))
            };
            if tensor == 0 || microbatch == 0 || !point.layers.iter().all(sound) {
                fault(
                    format!("has no times at microbatch {microbatch} and tensor degree {tensor}"),
                    "seconds of each layer",
                );
            }
            if degrees.entry(tensor).or_default().insert(microbatch, point).is_some() {
                fault(format!("has microbatch {microbatch} of tensor degree {tensor} twice"), "each once");
            }
        }
        if !problems.is_empty() {
            // One wrong file has the same fault at every point.
            problems.dedup_by(|a, b| a.hint == b.hint);
            return Err(problems);
        }
        let parameters = model.parameters() as f64;
        let degrees = degrees.into_iter().map(|(tensor, of)| (tensor, degree(tensor, &of, model.layers, parameters)));
        Ok(Ready { source: self.source.clone(), interpolate: self.interpolate, degrees: degrees.collect() })
    }
}

/// Times of one tensor degree, in order.
fn degree(tensor: u32, points: &BTreeMap<u32, &ProfiledPoint>, layers: u32, parameters: f64) -> Degree {
    let inner = layers as usize;
    let mean = |of: &[ProfiledLayer], time: &dyn Fn(&ProfiledLayer) -> f64| -> f64 {
        of.iter().map(time).sum::<f64>() / of.len() as f64
    };
    let mut times: Vec<(u32, Parts)> = Vec::new();
    let mut updates: Vec<f64> = Vec::new();
    for (microbatch, point) in points {
        let (first, rest) = point.layers.split_at(1);
        let (transformer, end) = rest.split_at(inner);
        let of = |time: &dyn Fn(&ProfiledLayer) -> f64| {
            [mean(first, time), mean(transformer, time), mean(end, time) * end.len() as f64]
        };
        let (forward, backward) = (of(&|layer| layer.forward), of(&|layer| layer.backward));
        times.push((*microbatch, std::array::from_fn(|part| [forward[part], backward[part]])));
        updates.push(point.layers.iter().map(|layer| layer.update).sum());
    }
    // An update does not depend on the microbatch: the middle one of all that were measured.
    updates.retain(|update| *update > 0.0);
    updates.sort_by(f64::total_cmp);
    let update = updates.get(updates.len() / 2).map(|update| update * f64::from(tensor) / parameters);
    let mut replaced = Vec::new();
    let names = ["the embedding", "a layer", "the head"];
    for part in 0..3 {
        for (pass, name) in ["forward", "backward"].into_iter().enumerate() {
            let column: Vec<(u32, f64)> =
                times.iter().map(|(microbatch, parts)| (*microbatch, parts[part][pass])).collect();
            for (place, value) in in_order(&column) {
                let (microbatch, was) = column[place];
                times[place].1[part][pass] = value;
                let sentence = format!(
                    "{name} of {} takes {:.3} ms at microbatch {microbatch} and tensor degree {tensor}, which other \
                     microbatches contradict: {:.3} ms are taken",
                    names[part],
                    was * 1e3,
                    value * 1e3
                );
                replaced.push((microbatch, sentence));
            }
        }
    }
    Degree { times, replaced, update }
}

impl Ready {
    /// Times at a tensor degree and microbatch, and on what they rest; `None` if nothing was measured there.
    fn at(&self, tensor: u32, microbatch: u32) -> Option<(Parts, Basis)> {
        let degree = self.degrees.get(&tensor)?;
        match degree.times.binary_search_by_key(&microbatch, |(at, _)| *at) {
            Ok(place) => {
                let is_own = degree.replaced.iter().all(|(at, _)| *at != microbatch);
                Some((degree.times[place].1, if is_own { Basis::Measured } else { Basis::Interpolated }))
            }
            Err(place) => {
                let (below, above) = (degree.times.get(place.checked_sub(1)?)?, degree.times.get(place)?);
                let share = f64::from(microbatch - below.0) / f64::from(above.0 - below.0);
                let between = |part: usize, pass: usize| {
                    let (low, high) = (below.1[part][pass], above.1[part][pass]);
                    low + (high - low) * share
                };
                let parts = std::array::from_fn(|part| [between(part, 0), between(part, 1)]);
                self.interpolate.then_some((parts, Basis::Interpolated))
            }
        }
    }

    /// A unit's pass on a device that is so many times slower than the one that was measured.
    pub(crate) fn unit(
        &self,
        shape: Shape<'_>,
        unit: UnitKind,
        (pass, recompute): (Pass, Recompute),
        slowdown: f64,
    ) -> UnitPrice {
        let price = |nanoseconds, basis| UnitPrice { nanoseconds, idle: 0, held_up: 0, slower: 0, basis };
        // Norms and the loss are in the times of what they belong to.
        let (part, is_second) = match unit {
            UnitKind::Embedding => (0, None),
            UnitKind::Head => (2, None),
            UnitKind::Dense | UnitKind::Experts => (1, Some(true)),
            UnitKind::Attention | UnitKind::Window | UnitKind::Latent | UnitKind::Mamba | UnitKind::GatedDelta => {
                (1, Some(false))
            }
            UnitKind::AttentionNorm
            | UnitKind::MlpNorm
            | UnitKind::RouterNorm
            | UnitKind::FinalNorm
            | UnitKind::Loss => return price(0, Basis::Measured),
        };
        let Some((parts, basis)) = self.at(shape.layout.tensor, shape.layout.microbatch_size) else {
            return price(UNMEASURED, Basis::Assumed);
        };
        let of = |pass: usize| -> u64 {
            let whole = nanoseconds(parts[part][pass] * slowdown);
            match is_second {
                None => whole,
                Some(false) => whole / 2,
                Some(true) => whole - whole / 2,
            }
        };
        let (forward, backward) = (of(0), of(1));
        let again = match recompute {
            Recompute::None | Recompute::Full => 0,
            Recompute::Selective if unit.mixer().is_none() => 0,
            // At most the pass that is computed again.
            Recompute::Selective | Recompute::Operations => forward,
        };
        match pass {
            Pass::Forward | Pass::Recompute => price(forward, basis),
            Pass::Backward => price(backward + again, basis),
            Pass::BackwardInput => price(backward / 2 + again, basis),
            Pass::BackwardWeight => price(backward - backward / 2, basis),
        }
    }

    /// Seconds of the optimizer's step of so many parameters of a rank, if it was measured.
    pub(crate) fn update(&self, tensor: u32, parameters: u64) -> Option<f64> {
        Some(self.degrees.get(&tensor)?.update? * parameters as f64)
    }

    /// Why passes of a division have no price on a device.
    pub(crate) fn unmeasured(&self, device: &str, shape: Shape<'_>) -> Vec<Problem> {
        let (layout, mut problems) = (shape.layout, Vec::new());
        let mut refuse = |subject: &str, message: String, hint: String| {
            let message = format!("{message} was measured on {device} ({})", self.source);
            problems.push(Problem::new(subject, message).hint(hint));
        };
        let listed = |all: &mut dyn Iterator<Item = u32>| all.map(|of| of.to_string()).collect::<Vec<_>>().join(", ");
        let (tensor, microbatch) = (layout.tensor, layout.microbatch_size);
        match self.degrees.get(&tensor) {
            None => {
                let there = listed(&mut self.degrees.keys().copied());
                refuse("plan.tensor", format!("no tensor degree {tensor}"), format!("one of {there}"));
            }
            Some(degree) if self.at(tensor, microbatch).is_none() => {
                let there = listed(&mut degree.times.iter().map(|(at, _)| *at));
                let message = format!("no microbatch {microbatch} at tensor degree {tensor}");
                refuse("plan.microbatch_size", message, format!("one of {there}"));
            }
            Some(_) => {}
        }
        let groups = layout.mesh.context > 1 || layout.mesh.expert > 1;
        if groups {
            refuse("plan.mesh", "no context or expert group".to_owned(), "degrees of 1".to_owned());
        }
        if layout.sequence_parallel {
            let subject = "plan.sequence_parallel";
            refuse(subject, "no layer with divided sequences".to_owned(), "false".to_owned());
        }
        problems
    }

    /// What of a division's prices is not what was measured, in sentences.
    pub(crate) fn notes(&self, device: &str, shape: Shape<'_>) -> Vec<String> {
        let (tensor, microbatch) = (shape.layout.tensor, shape.layout.microbatch_size);
        let Some(degree) = self.degrees.get(&tensor) else { return Vec::new() };
        let mut notes: Vec<String> = degree
            .replaced
            .iter()
            .filter(|(at, _)| *at == microbatch)
            .map(|(_, sentence)| format!("{}: {sentence}", self.source))
            .collect();
        if degree.times.iter().all(|(at, _)| *at != microbatch) {
            let source = &self.source;
            notes.push(format!("passes on {device} lie between measured microbatches of {source}: interpolated"));
        }
        if degree.update.is_none() {
            notes.push(format!("{} has no update times: the optimizer on {device} is calculated", self.source));
        }
        notes
    }

    /// Every point that was replaced, in sentences.
    pub(crate) fn replaced(&self) -> Vec<String> {
        self.degrees.values().flat_map(|degree| degree.replaced.iter().map(|(_, sentence)| sentence.clone())).collect()
    }
}
