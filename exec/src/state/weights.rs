//! A full set of named weights, outside any plan.
//!
//! Names and shapes (matrices are `[outputs, inputs]`, as PyTorch's `Linear` and the Llama checkpoints of Hugging Face
//! hold them; GPT-2 checkpoints hold theirs transposed):
//!
//! | name | shape | where |
//! |---|---|---|
//! | `embedding.weight` | `[vocabulary, hidden]` | also the head if it is tied |
//! | `positions.weight` | `[maximum, hidden]` | learned positions |
//! | `layers.L.attention_norm.weight`, `.bias` | `[hidden]` | bias with LayerNorm |
//! | `layers.L.attention.q.weight` | `[heads * head_dim, hidden]` | `.bias` with `qkv_bias` |
//! | `layers.L.attention.k.weight`, `v.weight` | `[kv_heads * head_dim, hidden]` | `.bias` with `qkv_bias` |
//! | `layers.L.attention.q_norm.weight`, `k_norm.weight` | `[head_dim]`, or of all heads | norms of queries and keys |
//! | `layers.L.attention.projection.weight` | `[hidden, heads * head_dim]` | `.bias` with `projection_bias` |
//! | `layers.L.mlp_norm.weight`, `.bias` | `[hidden]` | bias with LayerNorm; none where both branches have one norm |
//! | `layers.L.attention_norm.after.weight`, `layers.L.mlp_norm.after.weight` | `[hidden]` | norms before and after branches |
//! | `layers.L.mlp.gate.weight` | `[ffn, hidden]` | SwiGLU, GeGLU; `.bias` with `mlp_bias` |
//! | `layers.L.mlp.up.weight` | `[ffn, hidden]` | `.bias` with `mlp_bias` |
//! | `layers.L.mlp.down.weight` | `[hidden, ffn]` | `.bias` with `mlp_bias` |
//! | `layers.L.router.weight` | `[experts, hidden]` | a layer of experts; `.bias` with `router_bias` |
//! | `layers.L.experts.E.gate.weight`, … | as `mlp`, `[ffn, hidden]` of an expert | `.bias` with the experts' `bias` |
//! | `layers.L.shared.gate.weight`, … | as `mlp`, `[shared_ffn, hidden]` | with shared experts |
//! | `layers.L.shared_gate.weight` | `[1, hidden]` | with `shared_gate` |
//! | `final_norm.weight`, `.bias` | `[hidden]` | bias with LayerNorm |
//! | `head.weight` | `[vocabulary, hidden]` | an untied head |
//! | `head.bias` | `[vocabulary]` | with `head_bias` |
//!
//! Plain norms have neither weight nor bias. Layers count from 0 through the whole model. The vocabulary is not padded here.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::ops::Range;

use ir::{Model, Problem};

use super::tensors::{Parameter, model_parameters};

/// A tensor, row-major.
#[derive(Debug, Clone, PartialEq)]
pub struct Tensor {
    /// Sizes of its dimensions.
    pub shape: Vec<usize>,
    /// Its elements, as many as the product of `shape`.
    pub data: Vec<f32>,
}

/// Consecutive elements of a rectangular slice of a named tensor: what a rank holds of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Part<'a> {
    /// The tensor.
    pub name: &'a str,
    /// Sizes of the whole tensor.
    pub shape: &'a [usize],
    /// The slice, by dimension.
    pub slice: &'a [Range<usize>],
    /// Where in the slice, flattened row-major, `data` begins. Zero unless optimizer state is divided over replicas.
    pub first: usize,
    /// The elements.
    pub data: Cow<'a, [f32]>,
}

/// Named tensors: the weights of a model, or one moment of each.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Weights {
    tensors: BTreeMap<String, Tensor>,
}

impl Weights {
    /// The initial weights of a model: normal with standard deviation 0.02 (the last product of each residual branch
    /// `0.02 / sqrt(2 layers)`, as GPT-2), norms one, biases zero. An element depends on the seed, its tensor's name and
    /// its index alone.
    #[must_use]
    pub fn initial(model: &Model, seed: u64) -> Self {
        let filled = |parameter: Parameter| {
            let whole: Vec<_> = parameter.shape.iter().map(|&n| 0..n).collect();
            let mut data = vec![0.0; parameter.shape.iter().product()];
            parameter.fill(seed, &whole, &mut data);
            (parameter.name, Tensor { shape: parameter.shape, data })
        };
        Self { tensors: model_parameters(model).map(filled).collect() }
    }

    /// A tensor.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<&Tensor> {
        self.tensors.get(name)
    }

    /// Adds or replaces a tensor, and returns the one that it replaced.
    ///
    /// # Panics
    /// If `data` has not the size of `shape`.
    pub fn insert(&mut self, name: impl Into<String>, shape: Vec<usize>, data: Vec<f32>) -> Option<Tensor> {
        let name = name.into();
        assert_eq!(data.len(), shape.iter().product::<usize>(), "{name}: data has not the size of its shape");
        self.tensors.insert(name, Tensor { shape, data })
    }

    /// All tensors, in the order of their names.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Tensor)> {
        self.tensors.iter().map(|(name, tensor)| (name.as_str(), tensor))
    }

    /// How many tensors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.tensors.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.tensors.is_empty()
    }

    /// Everything that keeps these from being the weights of `model`: tensors missing, of another shape, unknown.
    #[must_use]
    pub fn problems(&self, model: &Model) -> Vec<Problem> {
        let wanted: BTreeMap<String, Vec<usize>> = shapes(model).collect();
        let mut problems = Vec::new();
        for (name, shape) in &wanted {
            match self.tensors.get(name) {
                None => problems.push(Problem::new(name.as_str(), format!("missing; {} has it", model.name))),
                Some(tensor) if tensor.shape != *shape => {
                    let message = format!("has shape {:?}, but {} needs {shape:?}", tensor.shape, model.name);
                    problems.push(Problem::new(name.as_str(), message));
                }
                Some(_) => {}
            }
        }
        let unknown = self.tensors.keys().filter(|name| !wanted.contains_key(*name));
        problems.extend(unknown.map(|name| Problem::new(name.as_str(), format!("{} has no such tensor", model.name))));
        problems
    }

    /// Writes a rank's part into its place; a tensor seen for the first time begins as zeros.
    ///
    /// # Panics
    /// If the part does not fit its own shape, or an earlier part had another shape.
    pub fn put(&mut self, part: &Part<'_>) {
        let tensor = self
            .tensors
            .entry(part.name.to_owned())
            .or_insert_with(|| Tensor { shape: part.shape.to_vec(), data: vec![0.0; part.shape.iter().product()] });
        assert_eq!(tensor.shape, part.shape, "parts of {} disagree about its shape", part.name);
        let mut done = 0;
        for row in rows_of_slice(part.shape, part.slice, part.first, part.data.len()) {
            let length = row.len();
            tensor.data[row].copy_from_slice(&part.data[done..][..length]);
            done += length;
        }
        assert_eq!(done, part.data.len(), "a part of {} is larger than its slice", part.name);
    }

    /// Copies a slice of a tensor, flattened row-major, from its element `first` on, into all of `out`.
    ///
    /// # Panics
    /// If there is no such tensor, or the slice does not fit it.
    pub(super) fn read(&self, name: &str, slice: &[Range<usize>], first: usize, out: &mut [f32]) {
        let tensor = self.tensors.get(name).unwrap_or_else(|| panic!("no tensor {name} among the weights"));
        let mut done = 0;
        for row in rows_of_slice(&tensor.shape, slice, first, out.len()) {
            let length = row.len();
            out[done..][..length].copy_from_slice(&tensor.data[row]);
            done += length;
        }
        assert_eq!(done, out.len(), "a slice of {name} is smaller than its destination");
    }
}

/// Names and shapes of a model's tensors.
pub(crate) fn shapes(model: &Model) -> impl Iterator<Item = (String, Vec<usize>)> {
    model_parameters(model).map(|parameter| (parameter.name, parameter.shape))
}

/// Ranges of the flattened tensor that make up the elements `first..first + count` of a slice of it, in order.
fn rows_of_slice(
    shape: &[usize],
    slice: &[Range<usize>],
    first: usize,
    count: usize,
) -> impl Iterator<Item = Range<usize>> {
    assert_eq!(shape.len(), slice.len(), "a slice has a range for each dimension");
    let (of_columns, rows, columns) = match (shape, slice) {
        ([of], [columns]) => (*of, 0..1, columns.clone()),
        ([_, of], [rows, columns]) => (*of, rows.clone(), columns.clone()),
        _ => panic!("weights are vectors or matrices, not of shape {shape:?}"),
    };
    let width = columns.len();
    let end = first + count;
    rows.enumerate().filter_map(move |(index, row)| {
        let begin = (index * width).max(first);
        let stop = ((index + 1) * width).min(end);
        let at = row * of_columns + columns.start;
        (begin < stop).then(|| at + begin - index * width..at + stop - index * width)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_problems_are_named() {
        let model = Model {
            name: "tiny".to_owned(),
            hidden: 4,
            layers: 1,
            heads: 2,
            kv_heads: 1,
            head_dim: 2,
            ffn: 6,
            vocabulary: 5,
            norm: ir::NormKind::RmsNorm,
            norm_epsilon: 1e-5,
            positions: ir::Positions::Rope { theta: 1e4 },
            mlp: ir::MlpKind::SwiGlu,
            qkv_bias: false,
            projection_bias: false,
            mlp_bias: false,
            tied_head: false,
            variants: ir::Variants::default(),
        };
        let mut weights = Weights::initial(&model, 1);
        let elements: usize = weights.iter().map(|(_, tensor)| tensor.data.len()).sum();
        assert_eq!(elements as u64, model.parameters());
        assert_eq!(weights.problems(&model), []);
        let name = "layers.0.attention.k.weight";
        assert_eq!(weights.get(name).unwrap().shape, [2, 4]);
        weights.insert(name, vec![4, 2], vec![0.0; 8]);
        weights.insert("layers.1.mlp.up.weight", vec![1], vec![0.0]);
        weights.tensors.remove("head.weight");
        let problems: Vec<String> = weights.problems(&model).iter().map(ToString::to_string).collect();
        let wanted = [
            "head.weight: missing; tiny has it",
            "layers.0.attention.k.weight: has shape [4, 2], but tiny needs [2, 4]",
            "layers.1.mlp.up.weight: tiny has no such tensor",
        ];
        assert_eq!(problems, wanted);
    }

    #[test]
    fn parts_put_together_are_the_whole() {
        let whole: Vec<f32> = (0..24u8).map(f32::from).collect();
        let mut source = Weights::default();
        source.insert("w", vec![4, 6], whole.clone());
        let mut target = Weights::default();
        for columns in [0..2, 2..6] {
            let slice = [1..4, columns];
            let length = 3 * slice[1].len();
            for piece in [0..length / 2, length / 2..length] {
                let mut data = vec![f32::NAN; piece.len()];
                source.read("w", &slice, piece.start, &mut data);
                target.put(&Part {
                    name: "w",
                    shape: &[4, 6],
                    slice: &slice,
                    first: piece.start,
                    data: Cow::Borrowed(&data),
                });
            }
        }
        let mut wanted = whole;
        wanted[..6].fill(0.0);
        assert_eq!(target.get("w").unwrap().data, wanted);
    }
}
