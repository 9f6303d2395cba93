//! Totals, with their conventions.

use super::{flops, unit_kernels};
use crate::program::{Op, Program};
use crate::{Flops, Model};

/// Which parameters the `6N` of a model's FLOPs counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CountedParameters {
    /// Those of matrices that tokens are multiplied with, head included: what the hardware multiplies (Narayanan et al.
    /// 2021). Rows of the embedding are looked up, not multiplied; norms and biases do not count.
    Multiplied,
    /// All of them, norms and biases too; a tied head once (Chowdhery et al. 2022).
    All,
}

/// Which attention scores a model's FLOPs count.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CountedScores {
    /// Every pair of positions: `12 layers query_width sequence` per token.
    Whole,
    /// The causal half, to the unit: `6 layers query_width (sequence + 1)` per token.
    CausalHalf,
}

/// FLOPs of one token's forward and backward pass, nothing recomputed: `6 N` plus attention. Published tables differ by
/// up to 1.5 between conventions, so both are named.
///
/// The unpadded vocabulary counts, as in published figures.
#[must_use]
pub fn model_flops_per_token(
    model: &Model,
    sequence: u64,
    parameters: CountedParameters,
    scores: CountedScores,
) -> Flops {
    let counted = match parameters {
        CountedParameters::Multiplied => {
            let (hidden, query) = (u64::from(model.hidden), model.query_width());
            let attention = hidden * (2 * query + 2 * model.kv_width());
            let mlp = (model.mlp_inputs() + 1) * hidden * u64::from(model.ffn);
            u64::from(model.layers) * (attention + mlp) + u64::from(model.vocabulary) * hidden
        }
        CountedParameters::All => model.parameters(),
    };
    let width = u128::from(model.layers) * u128::from(model.query_width());
    let attention = match scores {
        CountedScores::Whole => 12 * width * u128::from(sequence),
        CountedScores::CausalHalf => 6 * width * (u128::from(sequence) + 1),
    };
    Flops::new(6 * u128::from(counted) + attention)
}

/// FLOPs that all ranks of a program carry out in one iteration, recomputation and the padded vocabulary included.
#[must_use]
pub fn program_flops(program: &Program) -> Flops {
    let shape = program.shape();
    let mut kernels = Vec::new();
    let mut total = Flops::ZERO;
    for role in &program.roles {
        let mut of_role = Flops::ZERO;
        for instruction in role.instructions() {
            let Op::Compute { pass, chunk, units, .. } = instruction.op else { continue };
            let chunk = program.chunk(chunk);
            for position in units.start..units.end {
                kernels.clear();
                unit_kernels(shape, chunk.unit(position), pass, chunk.recompute, &mut kernels);
                of_role += kernels.iter().map(|kernel| flops(*kernel)).sum();
            }
        }
        total += of_role * u128::from(role.ranks.len());
    }
    total
}
