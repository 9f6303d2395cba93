//! Embedding, head and loss.

use super::{Half, List};
use crate::Positions;
use crate::counts::{Streaming, bytes_of};

impl List<'_, '_> {
    /// Reads the rows that this rank holds, writes `[T, hidden]`; positions are added in the same kernel.
    pub(super) fn embedding(&mut self) {
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        let rows = tokens.div_ceil(self.shape.vocabulary_parts());
        self.stream(Streaming::Embedding, self.pass_over(tokens, hidden, 1) + self.pass_over(rows, hidden, 1), 1);
    }

    /// Reads `[T, hidden]`; reads and writes the FP32 gradient rows that this rank holds. Positions: one more row each.
    pub(super) fn embedding_backward(&mut self, half: Half) {
        if half == Half::Input {
            return;
        }
        let (tokens, hidden) = (self.shape.tokens(), self.hidden());
        let rows = tokens.div_ceil(self.shape.vocabulary_parts());
        let positions = match self.shape.model.positions {
            Positions::Rope { .. } | Positions::None => 0,
            Positions::Learned { .. } => tokens,
        };
        let bytes = self.pass_over(tokens, hidden, 1) + bytes_of([rows + positions, hidden, 8]).get();
        self.stream(Streaming::EmbeddingBackward, bytes, if positions == 0 { 1 } else { 2 });
    }

    /// Logits, and their statistics where each rank makes those of its own part.
    pub(super) fn head(&mut self) {
        let (tokens, vocabulary) = (self.shape.tokens(), self.shape.rank_vocabulary());
        self.product(tokens, vocabulary, self.hidden());
        if self.shape.model.variants.head_bias {
            self.stream(Streaming::Add, self.pass_over(tokens, vocabulary, 2), 1);
        }
        if self.shape.workload.recipe.sharded_loss {
            self.statistics();
        }
    }
    pub(super) fn head_backward(&mut self, half: Half) {
        let (tokens, vocabulary, hidden) = (self.shape.tokens(), self.shape.rank_vocabulary(), self.hidden());
        match half {
            Half::Input => self.product(tokens, hidden, vocabulary),
            Half::Weight => {
                self.product(hidden, vocabulary, tokens);
                self.bias_gradient(self.shape.model.variants.head_bias, tokens, vocabulary);
            }
        }
    }

    /// Three FP32 statistics per token, from each tensor rank where the loss is sharded.
    pub(super) fn loss(&mut self) {
        let sharded = self.shape.workload.recipe.sharded_loss;
        if !sharded {
            self.statistics();
        }
        let ranks = if sharded { self.shape.vocabulary_parts() } else { 1 };
        self.stream(Streaming::Add, bytes_of([self.shape.tokens(), 12, ranks]).get(), 1);
    }
    pub(super) fn loss_backward(&mut self, half: Half) {
        if half == Half::Input {
            let (bytes, launches) = self.per_logit();
            let bytes = bytes_of([self.shape.tokens(), self.shape.loss_vocabulary(), bytes]).get();
            self.stream(Streaming::CrossEntropyBackward, bytes, launches);
        }
    }

    fn statistics(&mut self) {
        let (bytes, launches) = self.per_logit();
        let bytes = bytes_of([self.shape.tokens(), self.shape.loss_vocabulary(), bytes]).get();
        self.stream(Streaming::CrossEntropy, bytes, launches);
    }

    /// Bytes per logit and launches of the statistics, and of the gradient too.
    ///
    /// FP32: read for the maximum and the sum; gradient in place. Half precision: read, write an FP32 copy, read it;
    /// gradient read and written in FP32, then written in half (the fused cross-entropy of Megatron-LM: about 21 in all).
    /// Elementary: to FP32, shifted copy, logarithm of the softmax; gradient of it and back to half: about 40 in all.
    fn per_logit(&self) -> (u64, u32) {
        match (self.shape.workload.recipe.fused_loss, self.shape.workload.precision.is_half()) {
            (true, false) => (8, 1),
            (true, true) => (10, 1),
            (false, false) => (16, 4),
            (false, true) => (20, 5),
        }
    }
}
