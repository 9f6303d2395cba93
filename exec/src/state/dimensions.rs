//! The sizes of one rank's share of the work.

use ir::program::Program;
use ir::{MlpKind, NormKind, Positions, Rank, Recompute, ZeroStage};

use super::context::Division;
use super::experts::ExpertDimensions;
use crate::kernels::attention::Attention;
use crate::kernels::loss::VocabularyShard;
use crate::kernels::rope::RotaryTable;

/// Where a rank stands, and the sizes of its shards. Widths are this rank's; `hidden` is whole.
#[derive(Debug)]
pub(super) struct Dimensions {
    /// Pipeline position.
    pub(super) position: u32,
    pub(super) data_index: usize,
    /// How sequences are divided over the context group, and what of them is here.
    pub(super) context: Division,
    /// Data x context ranks, which hold copies of all but experts.
    pub(super) replicas: usize,
    pub(super) replica_index: usize,
    pub(super) tensor: usize,
    pub(super) tensor_index: usize,
    /// Whether the residual stream is divided along the sequence; never with one tensor rank.
    pub(super) sequence_parallel: bool,
    /// Whether the optimizer state is divided over replicas; never with one replica.
    pub(super) sharded_optimizer: bool,
    /// Whether this rank answers for what all replicas hold in the gradient's norm: once in what the norm adds up over.
    pub(super) counted: bool,
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
    pub(super) mlp: MlpKind,
    /// Where the model has experts.
    pub(super) experts: Option<ExpertDimensions>,
    /// One over the tokens of the global batch.
    pub(super) loss_scale: f32,
}

impl Dimensions {
    /// The share of a rank.
    ///
    /// # Panics
    /// If the program divides something that does not divide; lowering never does.
    pub(super) fn new(program: &Program, rank: Rank) -> Self {
        let (model, workload, layout) = (&program.model, &program.workload, &program.layout);
        let tensor = layout.tensor;
        let (replicas, replica) = (layout.replicas(), rank.raw() / tensor % layout.replicas());
        let tensor_index = rank.raw() % tensor;
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
            position: rank.raw() / layout.per_position(),
            data_index: size(replica / layout.mesh.context),
            replicas: size(replicas),
            replica_index: size(replica),
            tensor: degree,
            tensor_index: size(tensor_index),
            sequence_parallel,
            sharded_optimizer: layout.zero == ZeroStage::Zero1 && replicas > 1,
            counted: counted(program, replica),
            microbatches: size(layout.microbatches),
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
            mlp: model.mlp,
            experts: model.variants.experts.is_some().then(|| ExpertDimensions::new(program, rank)),
            loss_scale: narrow(1.0 / workload.tokens_per_iteration() as f64),
        }
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

/// Whether a replica answers for what all of them hold: its own part where they divide it; else the first of those over
/// which the norm adds up, which are those that share a sequence, or all where experts are divided over several.
fn counted(program: &Program, replica: u32) -> bool {
    let layout = &program.layout;
    let apart = program.model.variants.experts.is_some() && layout.experts_span_replicas();
    if layout.zero == ZeroStage::Zero1 && layout.replicas() > 1 {
        true
    } else if apart {
        replica == 0
    } else {
        replica.is_multiple_of(layout.mesh.context)
    }
}

/// Whether a forward pass keeps nothing of a layer but its input.
pub(super) fn discards(recompute: Recompute) -> bool {
    match recompute {
        Recompute::None | Recompute::Selective | Recompute::Operations => false,
        Recompute::Full => true,
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
