//! What an executor measured about one kind of operation.

use crate::{Bytes, SimDuration};

/// What was measured.
#[derive(Clone, PartialEq, Debug)]
pub enum MeasuredOp {
    /// `[m,k] x [k,n]`, FP32 on the CPU.
    MatrixProduct {
        /// Rows of the result.
        m: u64,
        /// Columns of the result.
        n: u64,
        /// The contracted size.
        k: u64,
    },
    /// A streaming kernel that moves this much memory.
    ElementWise {
        /// Bytes read and written.
        bytes: Bytes,
        /// Which kernel.
        kernel: String,
    },
    /// The attention core.
    Attention {
        /// Sequences.
        sequences: u64,
        /// Tokens of each.
        sequence_length: u64,
        /// Query heads.
        heads: u64,
        /// Width of a head.
        head_dim: u64,
        /// Whether it was the backward pass.
        backward: bool,
    },
    /// A copy from one rank to another.
    Copy {
        /// Bytes moved.
        bytes: Bytes,
    },
    /// A collective over `ranks` members.
    Collective {
        /// Its name, as [`crate::program::CollectiveKind::name`].
        kind: String,
        /// Members.
        ranks: u32,
        /// Bytes of the whole buffer.
        bytes: Bytes,
    },
    /// Dispatch of an instruction that does nothing.
    Dispatch,
}

/// One measurement: median and spread over repetitions.
#[derive(Clone, PartialEq, Debug)]
pub struct Measurement {
    /// What.
    pub op: MeasuredOp,
    /// Median.
    pub median: SimDuration,
    /// Half the distance between the 25th and 75th percentile, over the median.
    pub dispersion: f64,
    /// Repetitions.
    pub repetitions: u32,
}
