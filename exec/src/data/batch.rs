//! Sequences on their way to a rank.

use std::ops::Range;

use serde::{Deserialize, Serialize};

/// Sequences of a microbatch, or of a whole global batch.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct Batch {
    /// Tokens, `[sequences, sequence length]`, row-major.
    pub tokens: Vec<u32>,
    /// The token that follows each in its document, or [`IGNORED`](crate::kernels::loss::IGNORED) where there is none.
    pub targets: Vec<u32>,
    /// Of each token the position in its sequence at which its document begins; empty where each sequence is one document.
    pub starts: Vec<u32>,
    /// Targets of the whole global batch that are not ignored: over these the mean loss is taken.
    pub counted: u64,
}

impl Batch {
    /// Some of its sequences, each of `sequence_length` tokens.
    #[must_use]
    pub fn part(&self, sequences: Range<usize>, sequence_length: usize) -> Self {
        let places = sequences.start * sequence_length..sequences.end * sequence_length;
        let starts = if self.starts.is_empty() { Vec::new() } else { self.starts[places.clone()].to_vec() };
        Self {
            tokens: self.tokens[places.clone()].to_vec(),
            targets: self.targets[places].to_vec(),
            starts,
            counted: self.counted,
        }
    }
}
