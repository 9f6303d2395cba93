//! The sizes of one rank's share of the work.

use ir::program::{Program, RankPlace};
use ir::{BranchNorms, Mixer, MlpKind, Model, NormKind, ParallelBranches, Positions, QueryKeyNorm, Rank};

use super::context::Division;
use super::experts::ExpertDimensions;
use super::formats::Formats;
use crate::kernels::activation::Gelu;
use crate::kernels::attention::Attention;
use crate::kernels::loss::VocabularyShard;
use crate::kernels::rope::RotaryTable;

/// Where a rank stands, and the sizes of its shards. Widths are this rank's; `hidden` is whole.
#[derive(Debug)]
pub(super) struct Dimensions {
    /// Pipeline position.
    pub(super) position: u32,
    /// Microbatches of all replicas before this one.
    pub(super) microbatches_before: usize,
    /// How sequences are divided over the context group, and what of them is here.
    pub(super) context: Division,
    pub(super) tensor: usize,
    pub(super) tensor_index: usize,
    /// Whether the residual stream is divided along the sequence; never with one tensor rank.
    pub(super) sequence_parallel: bool,
    /// Whether optimizer state lies in host memory.
    pub(super) offloads_optimizer: bool,
    pub(super) formats: Formats,
    /// Those of this replica in an iteration.
    pub(super) microbatches: usize,
    /// Sequences of a microbatch.
    pub(super) sequences: usize,
    /// Tokens of a microbatch on this rank: of each sequence its part.
    pub(super) tokens: usize,
    /// Tokens of a microbatch in this rank's residual stream.
    pub(super) rows: usize,
    pub(super) hidden: usize,
    pub(super) query_width: usize,
    pub(super) kv_width: usize,
    pub(super) query_heads: usize,
    pub(super) kv_heads: usize,
    pub(super) ffn: usize,
    pub(super) vocabulary: VocabularyShard,
    pub(super) attention: Attention,
    pub(super) rotary: Option<RotaryTable>,
    pub(super) norm: NormKind,
    pub(super) epsilon: f32,
    /// Of a norm without parameters.
    pub(super) ones: Vec<f32>,
    pub(super) zeros: Vec<f32>,
    pub(super) branch_norms: BranchNorms,
    pub(super) branches: ParallelBranches,
    pub(super) query_key_norm: QueryKeyNorm,
    pub(super) head_dim: usize,
    pub(super) mlp: MlpKind,
    pub(super) gelu: Gelu,
    /// By layer of the model, how many positions a query sees.
    windows: Vec<usize>,
    /// Where the model has experts.
    pub(super) experts: Option<ExpertDimensions>,
}

impl Dimensions {
    /// The share of a rank.
    ///
    /// # Panics
    /// If the program divides something that does not divide; lowering never does.
    pub(super) fn new(program: &Program, rank: Rank) -> Self {
        let (model, workload) = (&program.model, &program.workload);
        let RankPlace { position, replica, tensor_index } = program.layout.place_of(rank);
        let layout = &*program.layout.at(position);
        let data_index = replica / layout.mesh.context;
        let tensor = layout.tensor;
        let shared = |what: &str, whole: u32| {
            assert_eq!(whole % tensor, 0, "{rank}: {whole} {what} over {tensor} tensor ranks");
            size(whole / tensor)
        };
        let sequence_parallel = layout.sequence_parallel && tensor > 1;
        let (sequences, sequence_length) = (size(layout.microbatch_size), size(workload.sequence_length));
        let context = Division::new(layout.mesh, replica % layout.mesh.context, sequences, sequence_length);
        let tokens = context.tokens();
        let degree = size(tensor);
        assert!(
            !sequence_parallel || tokens.is_multiple_of(degree),
            "{rank}: {tokens} tokens over {degree} tensor ranks"
        );
        let (query_heads, kv_heads) = (shared("heads", model.heads), shared("key and value heads", model.kv_heads));
        let head_dim = size(model.head_dim);
        let padded = model.padded_vocabulary(workload.vocabulary_divisor, tensor) / u64::from(tensor);
        let columns = usize::try_from(padded).expect("a vocabulary within memory");
        let first = size(tensor_index) * columns;
        let valid = size(model.vocabulary).saturating_sub(first).min(columns);
        Self {
            position,
            microbatches_before: usize::try_from(layout.microbatches_before(data_index))
                .expect("a batch within memory"),
            tensor: degree,
            tensor_index: size(tensor_index),
            sequence_parallel,
            offloads_optimizer: layout.sharing.offload_optimizer,
            formats: Formats::of(program, layout.shard()),
            microbatches: size(layout.share(data_index)),
            sequences,
            tokens,
            rows: if sequence_parallel { tokens / degree } else { tokens },
            hidden: size(model.hidden),
            query_width: query_heads * head_dim,
            kv_width: kv_heads * head_dim,
            query_heads,
            kv_heads,
            ffn: shared("feed-forward columns", model.ffn),
            vocabulary: VocabularyShard { first, valid, columns },
            attention: Attention::new(sequences, sequence_length, query_heads, kv_heads, head_dim),
            context,
            rotary: match model.positions {
                Positions::Rope { theta } => Some(RotaryTable::new(sequence_length, head_dim, theta)),
                Positions::Learned { maximum } => {
                    assert!(size(maximum) >= sequence_length, "{rank}: only {maximum} learned positions");
                    None
                }
                Positions::None => None,
            },
            norm: model.norm,
            epsilon: narrow(model.norm_epsilon),
            ones: vec![1.0; size(model.hidden)],
            zeros: vec![0.0; size(model.hidden)],
            branch_norms: model.variants.branch_norms,
            branches: model.variants.parallel_branches,
            query_key_norm: model.variants.query_key_norm,
            head_dim,
            mlp: model.mlp,
            gelu: if model.variants.exact_gelu { Gelu::Exact } else { Gelu::Tanh },
            windows: (0..model.layers).map(|layer| window(model, layer)).collect(),
            experts: model.variants.experts.is_some().then(|| ExpertDimensions::new(program, rank)),
        }
    }

    /// The attention of a layer, numbered through the model.
    pub(super) fn attention_of(&self, layer: u32) -> Attention {
        Attention { window: self.windows[size(layer)], ..self.attention }
    }

    /// Whether both branches of a layer read its input.
    pub(super) fn side_by_side(&self) -> bool {
        self.branches != ParallelBranches::No
    }

    /// The sizes of experts.
    ///
    /// # Panics
    /// If the model has none.
    pub(super) fn experts(&self) -> &ExpertDimensions {
        self.experts.as_ref().expect("a layer of experts has their sizes")
    }

    /// Where the token at a row of this rank's residual stream stands: its sequence among those of
    /// the microbatch, and its position in it.
    pub(super) fn standing(&self, row: usize) -> (usize, usize) {
        let first = if self.sequence_parallel { self.tensor_index * self.rows } else { 0 };
        self.context.standing(first + row)
    }

    /// Elements of this rank's residual stream.
    pub(super) fn residual(&self) -> usize {
        self.rows * self.hidden
    }

    /// Elements of a whole activation.
    pub(super) fn activation(&self) -> usize {
        self.tokens * self.hidden
    }

    /// Whether what a rank computes of a tensor-parallel product is already the whole sum.
    pub(super) fn alone(&self) -> bool {
        self.tensor == 1
    }
}

/// How many positions a query of a layer sees.
fn window(model: &Model, layer: u32) -> usize {
    match model.layer(layer).mixer {
        Mixer::Window => model.variants.window.map_or(usize::MAX, size),
        Mixer::Attention | Mixer::Latent | Mixer::Mamba | Mixer::GatedDelta => usize::MAX,
    }
}

/// A size of the vocabulary crate as an index.
pub(super) fn size(value: u32) -> usize {
    usize::try_from(value).expect("usize has at least 32 bits")
}

/// The nearest `f32`.
#[expect(clippy::cast_possible_truncation, reason = "rounding is the purpose")]
pub(super) fn narrow(value: f64) -> f32 {
    value as f32
}
