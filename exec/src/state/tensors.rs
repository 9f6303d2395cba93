//! Which tensors a model has, how they are divided, and what they begin with.

use std::ops::Range;

use ir::program::{Chunk, Unit};
use ir::{
    BranchNorms, Experts, FeedForward, MlpKind, Model, NormKind, ParallelBranches, Positions, QueryKeyNorm, Recompute,
};

use super::dimensions::size;
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
        Unit::AttentionNorm(layer) => list.norms(model, &format!("layers.{layer}.attention")),
        Unit::Attention(layer) => {
            list.within(format!("layers.{layer}.attention."));
            list.linear(["q.weight", "q.bias"], [query, hidden], Split::Rows, normal, model.qkv_bias);
            list.linear(["k.weight", "k.bias"], [key, hidden], Split::Rows, normal, model.qkv_bias);
            list.linear(["v.weight", "v.bias"], [key, hidden], Split::Rows, normal, model.qkv_bias);
            let names = ["projection.weight", "projection.bias"];
            list.linear(names, [hidden, query], Split::Columns, last, model.projection_bias);
            list.query_key_norm(model);
        }
        Unit::MlpNorm(layer) => {
            if model.variants.parallel_branches != ParallelBranches::OneNorm {
                list.norms(model, &format!("layers.{layer}.mlp"));
            }
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
            if model.variants.head_bias {
                list.within("head.".to_owned()).add(
                    "bias",
                    vec![size(model.vocabulary)],
                    Split::Vocabulary,
                    Fill::Zero,
                );
            }
        }
        Unit::Loss => {}
    }
    list.parameters
}

/// The experts of a layer that has them.
pub(super) fn experts_of(model: &Model, layer: u32) -> Option<Experts> {
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
    units.flat_map(move |unit| {
        let shared = model.tied_head && unit == Unit::Head;
        unit_parameters(model, unit).into_iter().filter(move |parameter| !(shared && parameter.part == "weight"))
    })
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
    /// The norms of a branch: before it, after it, or both.
    fn norms(&mut self, model: &Model, branch: &str) {
        self.within(format!("{branch}_norm.")).norm(model);
        if model.variants.branch_norms == BranchNorms::Both {
            self.within(format!("{branch}_norm.")).norm_named(model, ["after.weight", "after.bias"]);
        }
    }
    fn query_key_norm(&mut self, model: &Model) {
        let width = |width: u64| usize::try_from(width).expect("a width within memory");
        let (sizes, split) = match model.variants.query_key_norm {
            QueryKeyNorm::None => return,
            QueryKeyNorm::Head => ([size(model.head_dim); 2], Split::Whole),
            QueryKeyNorm::Width => ([width(model.query_width()), width(model.kv_width())], Split::Rows),
        };
        self.add("q_norm.weight", vec![sizes[0]], split, Fill::One);
        self.add("k_norm.weight", vec![sizes[1]], split, Fill::One);
    }
    fn norm(&mut self, model: &Model) {
        self.norm_named(model, ["weight", "bias"]);
    }
    fn norm_named(&mut self, model: &Model, names: [&'static str; 2]) {
        if model.variants.plain_norms {
            return;
        }
        let shape = vec![size(model.hidden)];
        self.add(names[0], shape.clone(), Split::Whole, Fill::One);
        match model.norm {
            NormKind::RmsNorm => {}
            NormKind::LayerNorm => self.add(names[1], shape, Split::Whole, Fill::Zero),
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
