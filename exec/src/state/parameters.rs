//! Which tensors a model has, how they are divided, and where a chunk's shards stand in its flat vectors.

use std::ops::Range;

use ir::program::{Chunk, Unit};
use ir::{Experts, FeedForward, MlpKind, Model, NormKind, Positions, Recompute};

use super::dimensions::{Dimensions, size};
use super::places::Places;
use super::weights::{Part, Weights};
use crate::kernels::init::{Block, RandomTensor};

/// How a tensor is divided over the tensor group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Split {
    /// Every rank holds all of it.
    Whole,
    /// Rows (outputs) are divided.
    Rows,
    /// Columns (inputs) are divided.
    Columns,
    /// Rows are divided after padding the vocabulary.
    Vocabulary,
}

/// Initial values.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Fill {
    Zero,
    One,
    Normal { standard_deviation: f64 },
}

/// Which of a chunk's parameters: what is copied over which ranks differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Of {
    /// All but routed experts: over replicas.
    Common,
    /// Routed experts: over the ranks that hold the same ones.
    Experts,
}

/// A tensor of the model.
#[derive(Debug, Clone)]
pub(super) struct Parameter {
    /// As [`super::weights`] lists them.
    pub(super) name: String,
    /// Its name within its unit.
    pub(super) part: &'static str,
    /// The routed expert that it is of.
    pub(super) expert: Option<usize>,
    /// Sizes of the whole tensor, the vocabulary not padded.
    pub(super) shape: Vec<usize>,
    pub(super) split: Split,
    fill: Fill,
}

impl Parameter {
    /// Initial values of a slice.
    pub(super) fn fill(&self, seed: u64, slice: &[Range<usize>], out: &mut [f32]) {
        match self.fill {
            Fill::Zero => out.fill(0.0),
            Fill::One => out.fill(1.0),
            Fill::Normal { standard_deviation } => {
                let [rows, columns] = slice else { panic!("{}: random values are for matrices", self.name) };
                let block = Block {
                    of_columns: self.shape[1],
                    first_row: rows.start,
                    rows: rows.len(),
                    first_column: columns.start,
                    columns: columns.len(),
                };
                RandomTensor::new(seed, &self.name).fill_normal_block(standard_deviation, block, out);
            }
        }
    }
}

/// Parameters of a unit, in the order of the flat vectors. A tied head names the embedding.
pub(super) fn unit_parameters(model: &Model, unit: Unit) -> Vec<Parameter> {
    let (hidden, ffn) = (size(model.hidden), size(model.ffn));
    let width = |width: u64| usize::try_from(width).expect("a width within memory");
    let (query, key) = (width(model.query_width()), width(model.kv_width()));
    let mut list = List { prefix: String::new(), expert: None, parameters: Vec::new() };
    let normal = Fill::Normal { standard_deviation: 0.02 };
    let last = Fill::Normal { standard_deviation: 0.02 / (2.0 * f64::from(model.layers)).sqrt() };
    let table = vec![size(model.vocabulary), hidden];
    match unit {
        Unit::Embedding => {
            list.add("embedding.weight", table, Split::Vocabulary, normal);
            if let Positions::Learned { maximum } = model.positions {
                list.add("positions.weight", vec![size(maximum), hidden], Split::Whole, normal);
            }
        }
        Unit::AttentionNorm(layer) => list.within(format!("layers.{layer}.attention_norm.")).norm(model),
        Unit::Attention(layer) => {
            list.within(format!("layers.{layer}.attention."));
            list.linear(["q.weight", "q.bias"], [query, hidden], Split::Rows, normal, model.qkv_bias);
            list.linear(["k.weight", "k.bias"], [key, hidden], Split::Rows, normal, model.qkv_bias);
            list.linear(["v.weight", "v.bias"], [key, hidden], Split::Rows, normal, model.qkv_bias);
            let names = ["projection.weight", "projection.bias"];
            list.linear(names, [hidden, query], Split::Columns, last, model.projection_bias);
        }
        Unit::MlpNorm(layer) => {
            list.within(format!("layers.{layer}.mlp_norm.")).norm(model);
            if let Some(experts) = experts_of(model, layer) {
                list.within(format!("layers.{layer}.router."));
                let names = ["router.weight", "router.bias"];
                list.linear_as(names, [size(experts.count), hidden], Split::Whole, normal, experts.router_bias);
            }
        }
        Unit::Mlp(layer) => match experts_of(model, layer) {
            None => {
                list.within(format!("layers.{layer}.mlp."));
                list.feed_forward(model.mlp, [ffn, hidden], last, model.mlp_bias);
            }
            Some(experts) => list.experts(layer, &experts, hidden, last),
        },
        Unit::FinalNorm => list.within("final_norm.".to_owned()).norm(model),
        Unit::Head => {
            list.within(if model.tied_head { "embedding." } else { "head." }.to_owned());
            list.add("weight", table, Split::Vocabulary, normal);
        }
        Unit::Loss => {}
    }
    list.parameters
}

/// The experts of a layer that has them.
fn experts_of(model: &Model, layer: u32) -> Option<Experts> {
    model.variants.experts.filter(|_| model.layer(layer).feed_forward == FeedForward::Experts)
}

/// Parameters of a whole model, each once.
pub(super) fn model_parameters(model: &Model) -> impl Iterator<Item = Parameter> {
    let chunk = Chunk {
        stage: ir::StageId::new(0),
        first_layer: 0,
        layers: model.layers,
        embedding: true,
        head: true,
        recompute: Recompute::None,
        recomputed_layers: 0,
    };
    let units = (0..chunk.units()).map(move |position| chunk.unit(position));
    let distinct = units.filter(|unit| !(model.tied_head && *unit == Unit::Head));
    distinct.flat_map(|unit| unit_parameters(model, unit))
}

struct List {
    prefix: String,
    expert: Option<usize>,
    parameters: Vec<Parameter>,
}

impl List {
    fn within(&mut self, prefix: String) -> &mut Self {
        self.prefix = prefix;
        self
    }
    fn add(&mut self, part: &'static str, shape: Vec<usize>, split: Split, fill: Fill) {
        self.add_as(part, part, shape, split, fill);
    }
    /// A tensor that has another name in its unit than in the model.
    fn add_as(&mut self, part: &'static str, name: &str, shape: Vec<usize>, split: Split, fill: Fill) {
        let (name, expert) = (format!("{}{name}", self.prefix), self.expert);
        self.parameters.push(Parameter { name, part, expert, shape, split, fill });
    }
    /// The matrices of a feed-forward part of sizes `[ffn, hidden]`.
    fn feed_forward(&mut self, kind: MlpKind, [ffn, hidden]: [usize; 2], last: Fill, bias: bool) {
        let normal = Fill::Normal { standard_deviation: 0.02 };
        match kind {
            MlpKind::SwiGlu | MlpKind::GeGlu => {
                self.linear(["gate.weight", "gate.bias"], [ffn, hidden], Split::Rows, normal, bias);
            }
            MlpKind::Gelu => {}
        }
        self.linear(["up.weight", "up.bias"], [ffn, hidden], Split::Rows, normal, bias);
        self.linear(["down.weight", "down.bias"], [hidden, ffn], Split::Columns, last, bias);
    }
    /// The shared part and its gate, then expert by expert.
    fn experts(&mut self, layer: u32, experts: &Experts, hidden: usize, last: Fill) {
        if experts.shared_ffn > 0 {
            self.within(format!("layers.{layer}.shared."));
            self.feed_forward(experts.mlp, [size(experts.shared_ffn), hidden], last, false);
            if experts.shared_gate {
                let normal = Fill::Normal { standard_deviation: 0.02 };
                self.within(format!("layers.{layer}.shared_gate."));
                self.add_as("shared_gate.weight", "weight", vec![1, hidden], Split::Whole, normal);
            }
        }
        for expert in 0..size(experts.count) {
            self.within(format!("layers.{layer}.experts.{expert}.")).expert = Some(expert);
            self.feed_forward(experts.mlp, [size(experts.ffn), hidden], last, experts.bias);
        }
        self.expert = None;
    }
    fn norm(&mut self, model: &Model) {
        let shape = vec![size(model.hidden)];
        self.add("weight", shape.clone(), Split::Whole, Fill::One);
        match model.norm {
            NormKind::RmsNorm => {}
            NormKind::LayerNorm => self.add("bias", shape, Split::Whole, Fill::Zero),
        }
    }
    /// As [`linear`](Self::linear), of a matrix that goes by another name in its unit.
    fn linear_as(&mut self, parts: [&'static str; 2], shape: [usize; 2], split: Split, fill: Fill, bias: bool) {
        self.add_as(parts[0], "weight", shape.to_vec(), split, fill);
        if bias {
            self.add_as(parts[1], "bias", vec![shape[0]], split, Fill::Zero);
        }
    }
    /// A matrix and perhaps its bias, of which there is a part for each row of the matrix.
    fn linear(&mut self, names: [&'static str; 2], shape: [usize; 2], split: Split, fill: Fill, bias: bool) {
        self.add(names[0], shape.to_vec(), split, fill);
        if bias {
            let split = if split == Split::Rows { Split::Rows } else { Split::Whole };
            self.add(names[1], vec![shape[0]], split, Fill::Zero);
        }
    }
}

/// A rank's shard of a tensor.
#[derive(Debug)]
pub(super) struct Shard {
    pub(super) unit: Unit,
    pub(super) parameter: Parameter,
    /// What of the tensor it is, padding left out.
    slice: Vec<Range<usize>>,
    /// Where it stands in the flat vectors, padding at its end.
    pub(super) range: Range<usize>,
    /// Whether this rank answers for it when the gradient's norm is summed over ranks.
    counted: bool,
}

impl Shard {
    fn new(unit: Unit, parameter: Parameter, start: usize, dims: &Dimensions) -> Self {
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
                length = shard.columns * dims.hidden;
            }
        }
        let first = parameter.split != Split::Whole || index == 0;
        let counted = first && if parameter.expert.is_some() { dims.experts().counted } else { dims.counted };
        Self { unit, parameter, slice, range: start..start + length, counted }
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
}

/// The training state of a chunk on one rank, as flat vectors of one layout.
#[derive(Debug)]
pub(super) struct Parameters {
    pub(super) weights: Vec<f32>,
    pub(super) gradients: Vec<f32>,
    /// First and second moments of the elements `own`.
    moments: [Vec<f32>; 2],
    /// The elements that this rank steps: all, or its part of `1 / replicas` under ZeRO-1.
    own: Range<usize>,
    pub(super) shards: Vec<Shard>,
    pub(super) places: Places,
}

/// A run of elements of one shard that this rank steps.
#[derive(Debug, Clone)]
pub(super) struct Stepped {
    /// Within the flat weights and gradients.
    pub(super) range: Range<usize>,
    /// Within the moments.
    pub(super) moments: Range<usize>,
    /// Whether weight decay applies.
    pub(super) decayed: bool,
    /// Whether this rank answers for it in the gradient's norm.
    pub(super) counted: bool,
}

impl Parameters {
    /// Allocates and initialises a chunk's state. With `shared_head` the head has no weights of its own here.
    pub(super) fn new(
        model: &Model,
        seed: u64,
        chunk: &Chunk,
        dims: &Dimensions,
        shared_head: bool,
        initial: Option<&Weights>,
        of: Of,
    ) -> Self {
        let mut shards: Vec<Shard> = Vec::new();
        let mut length = 0;
        let units = (0..chunk.units()).map(|position| chunk.unit(position));
        for unit in units.filter(|unit| !(shared_head && *unit == Unit::Head)) {
            for parameter in unit_parameters(model, unit).into_iter().filter(|parameter| is_here(parameter, of, dims)) {
                let mut shard = Shard::new(unit, parameter, length, dims);
                // The copy of a tied table is counted where the embedding is.
                shard.counted &= !(model.tied_head && unit == Unit::Head);
                length = shard.range.end;
                shards.push(shard);
            }
        }
        let (ranks, index) = match of {
            Of::Common if dims.sharded_optimizer => (dims.replicas, dims.replica_index),
            Of::Experts if dims.experts().sharded_optimizer => (dims.experts().copies, dims.experts().copy),
            Of::Common | Of::Experts => (1, 0),
        };
        let part = length.div_ceil(ranks);
        length = part * ranks;
        let own = index * part..(index + 1) * part;
        let mut weights = vec![0.0; length];
        for shard in &shards {
            let out = &mut weights[shard.real()];
            match initial {
                Some(initial) => initial.read(&shard.parameter.name, &shard.slice, 0, out),
                None => shard.parameter.fill(seed, &shard.slice, out),
            }
        }
        let places = match of {
            Of::Common => Places::new(chunk, &shards),
            Of::Experts => Places::of_experts(chunk, &shards, dims.experts()),
        };
        let moments = [vec![0.0; own.len()], vec![0.0; own.len()]];
        Self { weights, gradients: vec![0.0; length], moments, own, shards, places }
    }

    /// Whether there are none.
    pub(super) fn is_empty(&self) -> bool {
        self.shards.is_empty()
    }

    /// The elements that this rank steps, in the flat weights.
    pub(super) fn own(&self) -> Range<usize> {
        self.own.clone()
    }

    /// Elements of weights (or gradients), and of moments.
    pub(super) fn lengths(&self) -> (usize, usize) {
        (self.weights.len(), 2 * self.own.len())
    }

    /// The runs that this rank steps, in order.
    pub(super) fn stepped(&self) -> impl Iterator<Item = Stepped> + use<'_> {
        self.shards.iter().filter_map(|shard| {
            let range = intersection(&shard.range, &self.own)?;
            let moments = range.start - self.own.start..range.end - self.own.start;
            Some(Stepped { range, moments, decayed: shard.decayed(), counted: shard.counted })
        })
    }

    /// Weights, gradients and both moments, to step.
    pub(super) fn step_views(&mut self) -> (&mut [f32], &mut [f32], &mut [Vec<f32>; 2]) {
        (&mut self.weights, &mut self.gradients, &mut self.moments)
    }

    /// What this rank holds of each tensor.
    pub(super) fn weight_parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.shards.iter().map(|shard| Part {
            name: &shard.parameter.name,
            shape: &shard.parameter.shape,
            slice: &shard.slice,
            first: 0,
            data: &self.weights[shard.real()],
        })
    }

    /// The gradient of what this rank holds of each tensor.
    #[cfg(test)]
    pub(super) fn gradient_parts(&self) -> impl Iterator<Item = Part<'_>> {
        self.weight_parts().zip(&self.shards).map(|(part, shard)| Part { data: &self.gradients[shard.real()], ..part })
    }

    /// What this rank holds of each tensor's first (0) or second (1) moment.
    pub(super) fn moment_parts(&self, which: usize) -> impl Iterator<Item = Part<'_>> {
        self.shards.iter().filter_map(move |shard| {
            let range = intersection(&shard.real(), &self.own)?;
            Some(Part {
                name: &shard.parameter.name,
                shape: &shard.parameter.shape,
                slice: &shard.slice,
                first: range.start - shard.range.start,
                data: &self.moments[which][range.start - self.own.start..range.end - self.own.start],
            })
        })
    }

    /// Replaces one moment of what this rank steps.
    pub(super) fn load_moments(&mut self, which: usize, all: &Weights) {
        for shard in &self.shards {
            if let Some(range) = intersection(&shard.real(), &self.own) {
                let first = range.start - shard.range.start;
                let out = &mut self.moments[which][range.start - self.own.start..range.end - self.own.start];
                all.read(&shard.parameter.name, &shard.slice, first, out);
            }
        }
    }

    /// The name of the first tensor of a unit (of any, if `None`) with a value that is not finite in `flat`.
    pub(super) fn first_not_finite(&self, flat: &[f32], unit: Option<Unit>) -> Option<&Shard> {
        let concerned = |shard: &&Shard| unit.is_none_or(|unit| shard.unit == unit);
        self.shards.iter().filter(concerned).find(|shard| !super::all_finite(&flat[shard.range.clone()]))
    }
}

/// Whether a rank holds (its part of) a tensor among those parameters.
fn is_here(parameter: &Parameter, of: Of, dims: &Dimensions) -> bool {
    match (parameter.expert, of) {
        (None, Of::Common) => true,
        (Some(expert), Of::Experts) => {
            let experts = dims.experts();
            (experts.first..experts.first + experts.local).contains(&expert)
        }
        (None, Of::Experts) | (Some(_), Of::Common) => false,
    }
}

fn intersection(a: &Range<usize>, b: &Range<usize>) -> Option<Range<usize>> {
    let range = a.start.max(b.start)..a.end.min(b.end);
    (!range.is_empty()).then_some(range)
}
