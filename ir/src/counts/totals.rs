//! Totals, with their conventions.

use super::parameters::multiplied_mixer;
use super::{UnitKind, causal_scores, flops, unit_kernels};
use crate::program::{Op, Program, Unit};
use crate::{FeedForward, Flops, Mixer, Model, Recompute};

/// Which parameters the `6N` of a model's FLOPs counts.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CountedParameters {
    /// Those of matrices that tokens are multiplied with, head and router included, of routed experts the active ones:
    /// what the hardware multiplies (Narayanan et al. 2021). Rows of the embedding are looked up, not multiplied; norms,
    /// biases and convolutions do not count.
    Multiplied,
    /// All that a token passes, norms, biases and embedding too; a tied head once (Chowdhery et al. 2022).
    All,
}

/// Which attention scores a model's FLOPs count. With a window, those that it leaves; of latent attention, heads are as
/// wide as their keys and values. Recurrences (state spaces, delta rules) count none in either convention.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum CountedScores {
    /// Every pair of positions: `12 layers query_width sequence` per token; with a window of `w`, `w` in place of the
    /// sequence.
    Whole,
    /// The causal half, to the unit: `6 layers query_width (sequence + 1)` per token (see [`causal_scores`]).
    CausalHalf,
}

/// FLOPs of one token's forward and backward pass, nothing recomputed: `6 N` plus attention. Published tables differ by
/// up to 1.5 between conventions, so both are named. Over a time and a peak it gives the model FLOPs utilisation (MFU);
/// [`hardware_flops_per_token`] the hardware's (HFU).
///
/// The unpadded vocabulary counts, as in published figures. Fractions of a FLOP are rounded down.
#[must_use]
pub fn model_flops_per_token(
    model: &Model,
    sequence: u64,
    parameters: CountedParameters,
    scores: CountedScores,
) -> Flops {
    let counted = match parameters {
        CountedParameters::Multiplied => multiplied_parameters(model),
        CountedParameters::All => model.active_parameters(),
    };
    // Of all tokens of a sequence, so that the division comes last.
    let attention: u128 =
        model.runs().map(|run| u128::from(run.layers) * scores_flops(model, run.mixer, sequence, scores)).sum();
    Flops::new(6 * u128::from(counted) + 3 * attention / u128::from(sequence.max(1)))
}

/// As [`model_flops_per_token`] with multiplied parameters, but of what the hardware does when a share of the layers'
/// forward pass is done again: all of it with full recomputation (`recomputed_layers` of the model's layers).
#[must_use]
pub fn hardware_flops_per_token(model: &Model, sequence: u64, recomputed_layers: u32, scores: CountedScores) -> Flops {
    let base = model_flops_per_token(model, sequence, CountedParameters::Multiplied, scores).get();
    let forward: u128 = model
        .runs()
        .scan(0, |start, run| {
            let first = *start;
            *start += run.layers;
            Some((recomputed_layers.saturating_sub(first).min(run.layers), run))
        })
        .map(|(layers, run)| {
            let matrices = 2 * u128::from(multiplied_layer(model, run.mixer, run.feed_forward)) * u128::from(sequence);
            u128::from(layers) * (matrices + scores_flops(model, run.mixer, sequence, scores))
        })
        .sum();
    Flops::new(base + forward / u128::from(sequence.max(1)))
}

/// FLOPs of the forward attention core of one layer over one sequence.
fn scores_flops(model: &Model, mixer: Mixer, sequence: u64, scores: CountedScores) -> u128 {
    let heads = u128::from(model.heads);
    let (width, window) = match mixer {
        Mixer::Attention => (2 * heads * u128::from(model.head_dim), sequence),
        Mixer::Window => {
            (2 * heads * u128::from(model.head_dim), model.variants.window.map_or(sequence, u64::from).min(sequence))
        }
        Mixer::Latent => {
            let latent = model.variants.latent.expect("a model with latent layers has their sizes");
            let widths = [latent.plain_head_dim, latent.rotary_head_dim, latent.value_head_dim];
            (heads * widths.map(u128::from).iter().sum::<u128>(), sequence)
        }
        Mixer::Mamba | Mixer::GatedDelta => return 0,
    };
    let pairs = match scores {
        CountedScores::Whole => u128::from(sequence) * u128::from(window),
        CountedScores::CausalHalf => causal_scores(sequence, window),
    };
    2 * pairs * width
}

fn multiplied_layer(model: &Model, mixer: Mixer, part: FeedForward) -> u64 {
    let hidden = u64::from(model.hidden);
    let part = match (part, &model.variants.experts) {
        (FeedForward::Experts, Some(experts)) => {
            let width = u64::from(experts.active) * u64::from(experts.ffn) + u64::from(experts.shared_ffn);
            let gate = if experts.shared_gate { hidden } else { 0 };
            (experts.mlp.inputs() + 1) * hidden * width + hidden * u64::from(experts.count) + gate
        }
        (FeedForward::Experts, None) | (FeedForward::Dense, _) => {
            (model.mlp_inputs() + 1) * hidden * u64::from(model.ffn)
        }
    };
    multiplied_mixer(model, mixer) + part
}

fn multiplied_parameters(model: &Model) -> u64 {
    let layers = model
        .runs()
        .map(|run| u64::from(run.layers) * multiplied_layer(model, run.mixer, run.feed_forward))
        .sum::<u64>();
    layers + u64::from(model.vocabulary) * u64::from(model.hidden)
}

/// FLOPs that all ranks of a program carry out in one iteration, recomputation and the padded vocabulary included.
#[must_use]
pub fn program_flops(program: &Program) -> Flops {
    let mut kernels = Vec::new();
    let mut total = Flops::ZERO;
    for role in &program.roles {
        let mut of_role = Flops::ZERO;
        let layout = program.layout.at(role.stage.raw());
        let shape = program.shape_in(&layout);
        for instruction in role.instructions() {
            let Op::Compute { pass, chunk, units, .. } = instruction.op else { continue };
            let chunk = program.chunk(chunk);
            for position in units.start..units.end {
                kernels.clear();
                let unit = chunk.unit(position);
                let recompute = match unit {
                    Unit::Attention(layer) => chunk.recompute_of(layer),
                    _ => Recompute::None,
                };
                unit_kernels(shape, UnitKind::of(&program.model, unit), pass, recompute, &mut kernels);
                of_role += kernels.iter().map(|kernel| flops(*kernel)).sum();
            }
        }
        total += of_role * u128::from(role.ranks.len());
    }
    total
}
