//! A rank's shards of a chunk's tensors, where they stand in the vectors of the chunk's segments, and the training state
//! that those hold.

use std::ops::Range;

use ir::Model;
use ir::program::{BufferKind, Chunk, Unit};

use super::buffers::{Held, Pool};
use super::dimensions::Dimensions;
use super::formats::Formats;
use super::optimizer_state::OptimizerState;
use super::places::Places;
use super::sharding::{Flat, Parts, Segment, Sharing};
use super::tensors::{Parameter, Split, unit_parameters};
use super::values::{View, ViewMut};
use super::weights::{Part, Weights};

/// Which of a chunk's parameters: what is copied over which ranks differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// All but routed experts: over replicas.
    Common,
    /// Routed experts: over the ranks that hold the same ones.
    Experts,
}

/// A rank's shard of a tensor.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) unit: Unit,
    pub(super) parameter: Parameter,
    /// What of the tensor it is, padding left out.
    slice: Vec<Range<usize>>,
    /// The segment that it stands in.
    pub(super) segment: usize,
    /// Where it stands in its segment, padding at its end.
    pub(super) range: Range<usize>,
    /// Whether this rank answers for it when the gradient's norm is summed over ranks.
    counted: bool,
}

impl Shard {
    fn new(unit: Unit, parameter: Parameter, (segment, start): (usize, usize), dims: &Dimensions) -> Self {
        let mut slice: Vec<_> = parameter.shape.iter().map(|&n| 0..n).collect();
        let mut length: usize = parameter.shape.iter().product();
        let (ranks, index) = match parameter.expert {
            None => (dims.tensor, dims.tensor_index),
            Some(_) => (dims.experts().tensor, dims.experts().tensor_index),
        };
        let part = |whole: usize| {
            let part = whole / ranks;
            assert_eq!(part * ranks, whole, "{} does not divide over tensor ranks", parameter.name);
            index * part..(index + 1) * part
        };
        match parameter.split {
            Split::Whole => {}
            Split::Rows => {
                slice[0] = part(parameter.shape[0]);
                length /= ranks;
            }
            Split::Columns => {
                slice[1] = part(parameter.shape[1]);
                length /= ranks;
            }
            Split::Vocabulary => {
                let shard = dims.vocabulary;
                let first = shard.first.min(parameter.shape[0]);
                slice[0] = first..first + shard.valid;
                length = shard.columns * parameter.shape[1..].iter().product::<usize>();
            }
        }
        let counted = parameter.split != Split::Whole || index == 0;
        Self { unit, parameter, slice, segment, range: start..start + length, counted }
    }
    /// Elements without padding.
    fn real(&self) -> Range<usize> {
        let length: usize = self.slice.iter().map(Range::len).product();
        self.range.start..self.range.start + length
    }
    /// Whether weight decay applies: to matrices.
    fn decayed(&self) -> bool {
        self.parameter.shape.len() > 1
    }
    /// Elements `within` the segment as a part of the tensor.
    fn part<'a>(&'a self, within: Range<usize>, data: View<'a>) -> Part<'a> {
        let (first, data) = (within.start - self.range.start, data.read());
        Part { name: &self.parameter.name, shape: &self.parameter.shape, slice: &self.slice, first, data }
    }
}

/// The training state of a chunk on one rank: of all but routed experts, or of those.
#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) formats: Formats,
    pub(super) sharing: Sharing,
    pub(super) parts: Parts,
    pub(super) segments: Vec<Segment>,
    /// In the training precision. Beyond the segments there is one more piece if `again` says of which.
    pub(super) weights: Flat,
    pub(super) gradients: Flat,
    /// The segment of a shared table that is gathered once more for the head (ZeRO-3).
    pub(super) again: Option<usize>,
    /// Parts that are gathered now, with whether for a forward pass.
    pub(super) here: Vec<(bool, ir::program::UnitRange)>,
    /// This rank's part of all weights (ZeRO-3) and of all gradients (ZeRO-2 and 3), where `weights` and `gradients` come
    /// and go.
    pub(super) own_weights: Option<Held>,
    pub(super) own_gradients: Option<Held>,
    pub(super) optimizer: OptimizerState,
    pub(super) shards: Vec<Shard>,
    pub(super) places: Places,
}

/// A run of elements of one shard that this rank steps.
#[derive(Debug, Clone)]
pub(super) struct Stepped {
    pub(super) segment: usize,
    /// Within this rank's part of the segment.
    pub(super) range: Range<usize>,
    /// Whether weight decay applies.
    pub(super) decayed: bool,
    /// Whether this rank answers for it in the gradient's norm.
    pub(super) counted: bool,
}

/// What the state of a chunk is made for.
pub(super) struct Made<'a> {
    pub(super) model: &'a Model,
    pub(super) seed: u64,
    pub(super) chunk: &'a Chunk,
    pub(super) dims: &'a Dimensions,
    pub(super) sharing: Sharing,
    pub(super) parts: Parts,
    pub(super) initial: Option<&'a Weights>,
    pub(super) of: Of,
    pub(super) formats: Formats,
}

impl Parameters {
    /// Allocates and initialises a chunk's state, optimizer state from `states`. A tied head beside the embedding has no
    /// weights of its own.
    pub(super) fn new(made: Made<'_>, pool: &mut Pool, host: &mut Pool) -> Self {
        let Made { dims, sharing, .. } = made;
        let (shards, segments) = cut(&made);
        let own: usize = segments.iter().map(|segment| segment.part).sum();
        let formats = made.formats;
        let whole = initial_weights(&made, &shards, &segments);
        let parts = || segments.iter().zip(&whole).map(|(segment, whole)| &whole[segment.part_of(sharing.index)]);
        let states = if dims.offloads_optimizer { &mut *host } else { &mut *pool };
        let optimizer = OptimizerState::new(own, formats, dims.offloads_optimizer, parts(), states);
        let own_weights = sharing.gathers.then(|| {
            let mut own: Vec<f32> = parts().flatten().copied().collect();
            if formats.own_weight == 2 {
                formats.round(&mut own);
            }
            pool.adopt(formats.own_weight, BufferKind::Weights, own)
        });
        let again = (made.of == Of::Common
            && sharing.gathers
            && made.model.tied_head
            && made.chunk.embedding
            && made.chunk.head)
            .then_some(0);
        let mut pieces: Vec<Option<Held>> = Vec::new();
        for mut weights in whole {
            pieces.push((!sharing.gathers).then(|| {
                formats.round(&mut weights);
                pool.adopt(formats.weight, BufferKind::Weights, weights)
            }));
        }
        pieces.extend(again.map(|_| None));
        let gradients = |segment: &Segment| pool.zeros(formats.gradient, BufferKind::Gradients, segment.length);
        let gradients = match sharing.scatters {
            true => segments.iter().map(|_| None).collect(),
            false => segments.iter().map(gradients).map(Some).collect(),
        };
        let own_gradients = sharing.scatters.then(|| pool.zeros(formats.gradient, BufferKind::Gradients, own));
        let places = match made.of {
            Of::Common => Places::new(made.chunk, &shards, again.map(|_| segments.len())),
            Of::Experts => Places::of_experts(made.chunk, &shards, dims.experts()),
        };
        let (weights, gradients) = (Flat::new(pieces), Flat::new(gradients));
        let (parts, here) = (made.parts, Vec::new());
        Self {
            formats,
            sharing,
            parts,
            segments,
            weights,
            gradients,
            again,
            here,
            own_weights,
            own_gradients,
            optimizer,
            shards,
            places,
        }
    }

    /// The runs that this rank steps, in order.
    pub(super) fn stepped(&self) -> impl Iterator<Item = Stepped> + use<'_> {
        self.shards.iter().filter_map(|shard| {
            let own = self.segments[shard.segment].part_of(self.sharing.index);
            let range = intersection(&shard.range, &own)?;
            let range = range.start - own.start..range.end - own.start;
            let counted = shard.counted && self.sharing.counted;
            Some(Stepped { segment: shard.segment, range, decayed: shard.decayed(), counted })
        })
    }

    /// Where the parts of a segment that this rank steps stand among all that it steps.
    pub(super) fn own_range(&self, segment: usize) -> Range<usize> {
        let segment = &self.segments[segment];
        segment.own..segment.own + segment.part
    }

    /// This rank's part of a segment's weights.
    pub(super) fn own_weights(&self, segment: usize) -> View<'_> {
        match &self.own_weights {
            Some(own) => own.view().part(self.own_range(segment)),
            None => self.weights.piece(segment).part(self.segments[segment].part_of(self.sharing.index)),
        }
    }

    /// This rank's part of a segment's gradients.
    pub(super) fn own_gradients(&self, segment: usize) -> View<'_> {
        match &self.own_gradients {
            Some(own) => own.view().part(self.own_range(segment)),
            None => self.gradients.piece(segment).part(self.segments[segment].part_of(self.sharing.index)),
        }
    }

    /// The same, to write.
    pub(super) fn own_gradients_mut(&mut self, segment: usize) -> ViewMut<'_> {
        let range = self.own_range(segment);
        match &mut self.own_gradients {
            Some(own) => own.view_mut().part(range),
            None => self.gradients.piece_mut(segment).part(self.segments[segment].part_of(self.sharing.index)),
        }
    }

    /// The elements of a shard that this rank steps: within its segment, and among all that it steps.
    fn owned(&self, shard: &Shard) -> Option<(Range<usize>, Range<usize>)> {
        let segment = &self.segments[shard.segment];
        let own = segment.part_of(self.sharing.index);
        let within = intersection(&shard.real(), &own)?;
        let start = segment.own + within.start - own.start;
        let length = within.len();
        Some((within, start..start + length))
    }

    /// What this rank steps of each tensor, in FP32.
    pub(super) fn weight_parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.shards.iter().filter_map(|shard| {
            let (within, stepped) = self.owned(shard)?;
            let data = self.master_weights(shard, &within, &stepped);
            Some(shard.part(within, data))
        })
    }

    /// What this rank writes into a checkpoint of each tensor: where, and among all that it steps. All ranks together write
    /// every element once.
    fn written(&self) -> impl Iterator<Item = (&Shard, Range<usize>, Range<usize>)> {
        let writes = self.sharing.writes;
        let shards = self.shards.iter().filter(move |shard| writes && shard.counted);
        shards.filter_map(|shard| self.owned(shard).map(|(within, stepped)| (shard, within, stepped)))
    }

    /// What this rank writes of the weights, in FP32, and of both moments, tensor by tensor.
    pub(super) fn written_parts(&self) -> impl Iterator<Item = [Part<'_>; 3]> {
        let [first, second] = self.optimizer.moments();
        self.written().map(move |(shard, within, stepped)| {
            let weights = self.master_weights(shard, &within, &stepped);
            let moments = [first.part(stepped.clone()), second.part(stepped)];
            [weights, moments[0], moments[1]].map(|data| shard.part(within.clone(), data))
        })
    }

    /// FP32 weights of a shard that this rank steps.
    fn master_weights(&self, shard: &Shard, within: &Range<usize>, stepped: &Range<usize>) -> View<'_> {
        let part = self.segments[shard.segment].part_of(self.sharing.index);
        match self.optimizer.master() {
            Some(master) => master.part(stepped.clone()),
            None => self.own_weights(shard.segment).part(within.start - part.start..within.end - part.start),
        }
    }

    /// What this rank holds of the gradient of each tensor.
    #[cfg(test)]
    pub(super) fn gradient_parts(&self) -> impl Iterator<Item = Part<'_>> {
        let whole = |shard: &Shard| self.gradients.piece(shard.segment).part(shard.real());
        self.shards.iter().map(move |shard| shard.part(shard.real(), whole(shard)))
    }

    /// What this rank holds of each tensor's first (0) or second (1) moment.
    pub(super) fn moment_parts(&self, which: usize) -> impl Iterator<Item = Part<'_>> {
        self.shards.iter().filter_map(move |shard| {
            let (within, stepped) = self.owned(shard)?;
            Some(shard.part(within, self.optimizer.moments()[which].part(stepped)))
        })
    }

    /// Replaces one moment of what this rank steps.
    pub(super) fn load_moments(&mut self, which: usize, all: &Weights) {
        for index in 0..self.shards.len() {
            let shard = &self.shards[index];
            if let Some((within, stepped)) = self.owned(shard) {
                let first = within.start - shard.range.start;
                let [one, two] = self.optimizer.moments_mut();
                let moments = if which == 0 { one } else { two };
                let read = |out: &mut [f32]| all.read(&shard.parameter.name, &shard.slice, first, out);
                moments.part(stepped).fill_with(read);
            }
        }
    }

    /// The first tensor of a unit (of any, if `None`) with a value that is not finite in `flat`, of what is there.
    pub(super) fn first_not_finite(&self, flat: &Flat, unit: Option<Unit>) -> Option<&Shard> {
        let concerned = |shard: &&Shard| unit.is_none_or(|unit| shard.unit == unit);
        let present = |shard: &&Shard| flat.has(shard.segment);
        let shards = self.shards.iter().filter(concerned).filter(present);
        shards.into_iter().find(|shard| !super::all_finite(&flat.piece(shard.segment).part(shard.range.clone()).read()))
    }

    /// The first tensor with a value that is not finite in this rank's part of its gradient.
    pub(super) fn first_not_finite_gradient(&self) -> Option<&Shard> {
        self.shards.iter().find(|shard| {
            let own = self.segments[shard.segment].part_of(self.sharing.index);
            intersection(&shard.range, &own).is_some_and(|range| {
                let range = range.start - own.start..range.end - own.start;
                !super::all_finite(&self.own_gradients(shard.segment).part(range).read())
            })
        })
    }
}

/// A chunk's initial weights, segment by segment, not rounded.
fn initial_weights(made: &Made<'_>, shards: &[Shard], segments: &[Segment]) -> Vec<Vec<f32>> {
    let mut whole = Vec::new();
    for (index, segment) in segments.iter().enumerate() {
        let mut weights = vec![0.0; segment.length];
        for shard in shards.iter().filter(|shard| shard.segment == index) {
            let out = &mut weights[shard.real()];
            match made.initial {
                Some(initial) => initial.read(&shard.parameter.name, &shard.slice, 0, out),
                None => shard.parameter.fill(made.seed, &shard.slice, out),
            }
        }
        whole.push(weights);
    }
    whole
}

/// The shards of a chunk, and the segments that they stand in.
fn cut(made: &Made<'_>) -> (Vec<Shard>, Vec<Segment>) {
    let (model, chunk, sharing) = (made.model, made.chunk, made.sharing);
    let mut shards: Vec<Shard> = Vec::new();
    let mut segments: Vec<Segment> = Vec::new();
    // Whether the next parameter begins a segment whatever it is.
    let mut fresh = true;
    for position in 0..chunk.units() {
        let unit = chunk.unit(position);
        fresh |= made.parts.begins(position);
        for parameter in unit_parameters(model, unit).into_iter().filter(|parameter| is_here(parameter, made)) {
            let copy = model.tied_head && unit == Unit::Head && parameter.part == "weight";
            if copy && chunk.embedding {
                continue;
            }
            let tied = model.tied_head && sharing.ranks > 1 && (copy || parameter.part == "embedding.weight");
            if fresh || tied {
                let units = ir::program::UnitRange { start: position, end: position };
                segments.push(Segment { units, length: 0, part: 0, own: 0 });
            }
            fresh = tied;
            let last = segments.len() - 1;
            let segment = &mut segments[last];
            segment.units.end = position + 1;
            let mut shard = Shard::new(unit, parameter, (last, segment.length), made.dims);
            // The copy of a tied table is counted where the embedding is.
            shard.counted &= !copy;
            segment.length = shard.range.end;
            shards.push(shard);
        }
    }
    let mut own = 0;
    for segment in &mut segments {
        segment.length = segment.length.next_multiple_of(sharing.ranks);
        segment.part = segment.length / sharing.ranks;
        segment.own = own;
        own += segment.part;
    }
    (shards, segments)
}

/// Whether a rank holds (its part of) a tensor among those parameters.
fn is_here(parameter: &Parameter, made: &Made<'_>) -> bool {
    match (parameter.expert, made.of) {
        (None, Of::Common) => true,
        (Some(expert), Of::Experts) => {
            let experts = made.dims.experts();
            (experts.first..experts.first + experts.local).contains(&expert)
        }
        (None, Of::Experts) | (Some(_), Of::Common) => false,
    }
}

fn intersection(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let range = a.start.max(b.start)..a.end.min(b.end);
    (!range.is_empty()).then_some(range)
}
