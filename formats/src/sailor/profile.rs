//! Measured times of layers, by microbatch and tensor degree.

use std::collections::{BTreeMap, BTreeSet};

use ir::Problem;

use super::reader::{At, Reader};

/// Seconds of one layer over one microbatch.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct LayerTimes {
    /// Forward.
    pub forward: f64,
    /// Backward, of inputs and weights.
    pub backward: f64,
    /// The optimizer's step of its parameters; 0 where it was not measured.
    pub update: f64,
}

/// One microbatch size and tensor degree.
#[derive(Clone, PartialEq, Debug)]
pub struct Point {
    /// Sequences of the microbatch.
    pub microbatch: u32,
    /// Ranks that share each matrix. Their exchanges are in the times.
    pub tensor: u32,
    /// Each layer, the embedding first.
    pub layers: Vec<LayerTimes>,
}

/// What a profile says of one kind of device. Every point has as many layers.
#[derive(Clone, PartialEq, Debug)]
pub struct Profile {
    /// By tensor degree, then microbatch.
    pub points: Vec<Point>,
    /// Points that are not there though others of their row and column are, in sentences.
    pub gaps: Vec<String>,
}

impl Profile {
    /// Layers of each point, embedding, final norm and head among them.
    #[must_use]
    pub fn layers(&self) -> usize {
        self.points.first().map_or(0, |point| point.layers.len())
    }
}

/// The longest time of one layer: an hour.
const LONGEST: f64 = 3600.0;

/// Reads a profile.
///
/// # Errors
/// Everything that is wrong, each with its key and place: keys that are no numbers, times that are no times, layers that
/// are missing, and points with another number of layers than most. Microbatches and degrees that are missing are no
/// fault ([`Profile::gaps`]).
pub fn profile(text: &str, file: &str) -> Result<Profile, Vec<Problem>> {
    let mut reader = Reader::new(file);
    let Some(root) = reader.tree(text) else { return Err(reader.problems) };
    let root = At { path: String::new(), node: &root };
    let mut found: BTreeMap<(u32, u32), (Vec<LayerTimes>, At<'_>)> = BTreeMap::new();
    for (key, degrees) in reader.object(&root, "tables by microbatch") {
        let microbatch = reader.key(&key, &degrees, 1, "microbatch");
        for (key, layers) in reader.object(&degrees, "tables by tensor degree") {
            let tensor = reader.key(&key, &layers, 1, "tensor degree");
            let times = point(&mut reader, &layers);
            if let (Some(microbatch), Some(tensor), Some(times)) = (microbatch, tensor, times) {
                found.insert((tensor, microbatch), (times, layers));
            }
        }
    }
    let mut lengths: BTreeMap<usize, usize> = BTreeMap::new();
    for (times, _) in found.values() {
        *lengths.entry(times.len()).or_default() += 1;
    }
    let most = lengths.iter().max_by_key(|(_, count)| **count).map_or(0, |(length, _)| *length);
    for (times, at) in found.values().filter(|(times, _)| times.len() != most) {
        let message = format!("has {} layers, and most others have {most}", times.len());
        reader.fault(at, message, "every microbatch and degree of one model");
    }
    if found.is_empty() && reader.problems.is_empty() {
        reader.fault(&root, "has no point", "{ \"1\": { \"1\": { \"0\": [forward, backward, update] } } }");
    }
    if !reader.problems.is_empty() {
        return Err(reader.problems);
    }
    let point = |((tensor, microbatch), (layers, _))| Point { microbatch, tensor, layers };
    let points: Vec<Point> = found.into_iter().map(point).collect();
    Ok(Profile { gaps: gaps(&points), points })
}

/// The layers of a point, from 0 on without a gap.
fn point(reader: &mut Reader<'_>, layers: &At<'_>) -> Option<Vec<LayerTimes>> {
    let before = reader.problems.len();
    let mut numbered: BTreeMap<u32, LayerTimes> = BTreeMap::new();
    let mut written = BTreeSet::new();
    for (key, times) in reader.object(layers, "tables by layer") {
        let Some(number) = reader.key(&key, &times, 0, "layer") else { continue };
        written.insert(number);
        if let Some(found) = layer(reader, &times) {
            numbered.insert(number, found);
        }
    }
    let last = written.last().copied().unwrap_or(0);
    // A last layer far behind the others is a wrong number, not a thousand missing layers.
    let missing: Vec<u32> = (0..last).filter(|number| !written.contains(number)).take(8).collect();
    if !missing.is_empty() {
        let named: Vec<String> = missing.iter().map(u32::to_string).collect();
        let message = format!("has layer {last}, and not {}", named.join(", "));
        reader.fault(layers, message, "each layer from 0, the embedding, to the head");
    }
    if written.len() < 3 && reader.problems.len() == before {
        let message = format!("has {} layers", written.len());
        reader.fault(layers, message, "the embedding, at least one transformer layer, and the head");
    }
    (reader.problems.len() == before).then(|| numbered.into_values().collect())
}

fn layer(reader: &mut Reader<'_>, at: &At<'_>) -> Option<LayerTimes> {
    let times = reader.list(at, "[forward s, backward s, update s]");
    if times.len() != 3 {
        if !times.is_empty() {
            let message = format!("has {} times", times.len());
            reader.fault(at, message, "three: forward, backward and update, in seconds");
        }
        return None;
    }
    let names = ["a forward time", "a backward time", "the time of an update"];
    let seconds: Vec<Option<f64>> = times
        .iter()
        .zip(names)
        .map(|(at, what)| reader.number(at, 0.0, LONGEST, &format!("{what} in seconds")))
        .collect();
    let times = LayerTimes { forward: seconds[0]?, backward: seconds[1]?, update: seconds[2]? };
    if times.forward == 0.0 {
        reader.fault(at, "takes no time forward", "the seconds that were measured");
        return None;
    }
    Some(times)
}

/// What is missing of the whole table of microbatches and tensor degrees, by degree.
fn gaps(points: &[Point]) -> Vec<String> {
    let mut microbatches: Vec<u32> = points.iter().map(|point| point.microbatch).collect();
    microbatches.sort_unstable();
    microbatches.dedup();
    let mut degrees: Vec<u32> = points.iter().map(|point| point.tensor).collect();
    degrees.dedup();
    let mut sentences = Vec::new();
    for tensor in degrees {
        let has = |microbatch: &u32| points.iter().any(|at| (at.tensor, at.microbatch) == (tensor, *microbatch));
        let missing: Vec<String> = microbatches.iter().filter(|of| !has(of)).map(u32::to_string).collect();
        if !missing.is_empty() {
            sentences
                .push(format!("at tensor degree {tensor} nothing was measured of microbatch {}", missing.join(", ")));
        }
    }
    sentences
}
