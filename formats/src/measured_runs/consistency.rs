//! Figures of a row against each other: parts and whole, memory and device, speed and peak.

use super::cells::Cells;
use super::refusal::{Fault, Reason};
use super::run::{AttentionForm, MeasuredRun, ModelShape};

/// How far the stated number of parameters may lie outside of what the sizes give. Published tables differ by biases,
/// learned positions and whether embeddings count; one table of 2020 is off by 16 %.
const PARAMETERS: f64 = 0.25;
/// Share of the peak below which a step is no training but a wrong unit. The slowest published runs, small models over
/// slow Ethernet, reach ten times as much.
const LEAST_UTILISATION: f64 = 0.0005;
/// A vocabulary larger than any published one, for rows that do not state it.
const LARGEST_VOCABULARY: f64 = 300_000.0;

/// Notes every contradiction of a row that was read.
pub(super) fn check(cells: &Cells<'_>, run: &MeasuredRun) {
    let (least, most) = parameters(&run.model);
    if let Some(billion) = run.model.parameters_billion {
        let stated = billion * 1e9;
        if stated < least * (1.0 - PARAMETERS) || stated > most * (1.0 + PARAMETERS) {
            let message =
                format!("{billion} billion are stated, but the sizes give {:.3} to {:.3}", least / 1e9, most / 1e9);
            cells.fault(Reason::Contradiction, "params_b", message);
        }
    }
    if let (Some(memory), Some(device)) = (run.measured.memory, run.hardware.device_memory_gb) {
        // A device of "80 GB" holds 80 GiB; a GPU's printed 81 GB may be its whole memory in decimal units.
        if memory.value > device * 1.08 {
            let message = format!("{} GB were used of a device that holds {device} GB", memory.value);
            cells.fault(Reason::Contradiction, "memory_gb", message);
        }
    }
    if let Some(fault) = run.hardware.peak_tflops.and_then(|peak| implausible_speed(run, peak)) {
        cells.fault(fault.reason, fault.column, fault.message);
    }
}

/// A fault if the run's step is faster than `peak_tflops` (dense, in its number format) allows, or so slow that the
/// unit of its time must be wrong.
#[must_use]
pub fn implausible_speed(run: &MeasuredRun, peak_tflops: f64) -> Option<Fault> {
    let step = run.measured.step?;
    let work = training_flops_per_token(&run.model) * run.tokens_per_step();
    let rate = work / step.seconds / f64::from(run.hardware.devices) / 1e12;
    let message = if rate > peak_tflops {
        format!("{rate:.1} TFLOP/s a device are more than its dense peak of {peak_tflops}; is the time in other units?")
    } else if rate < LEAST_UTILISATION * peak_tflops {
        format!("{rate:.5} TFLOP/s a device, of a peak of {peak_tflops}; is the time in milliseconds?")
    } else {
        return None;
    };
    Some(Fault::new(Reason::Implausible, step.basis.column(), message))
}

/// Parameters of one layer's mixer, norms and biases not counted.
fn mixer_parameters(model: &ModelShape) -> f64 {
    let (hidden, heads) = (f64::from(model.hidden), f64::from(model.heads));
    let (key_value_heads, head_dim) = (f64::from(model.key_value_heads), f64::from(model.head_dim));
    match model.attention {
        AttentionForm::Latent { query_rank, key_value_rank, plain_head_dim, rotary_head_dim, value_head_dim } => {
            let (plain, rotary) = (f64::from(plain_head_dim), f64::from(rotary_head_dim));
            let (value, latent) = (f64::from(value_head_dim), f64::from(key_value_rank));
            let queries = heads * (plain + rotary);
            let query = query_rank.map_or(hidden * queries, |rank| f64::from(rank) * (hidden + queries));
            query + hidden * (latent + rotary) + latent * heads * (plain + value) + heads * value * hidden
        }
        AttentionForm::Plain
        | AttentionForm::LinearBias
        | AttentionForm::AlternatingWindow { .. }
        | AttentionForm::GatedDelta { .. } => hidden * head_dim * (2.0 * heads + 2.0 * key_value_heads),
    }
}

/// Feed-forward parameters of all layers when `seen` of the routed experts count in a layer.
fn feed_forward_parameters(model: &ModelShape, seen: impl Fn(u32, u32) -> u32) -> f64 {
    let (hidden, matrices) = (f64::from(model.hidden), f64::from(model.activation.matrices()));
    let routed = model.experts.map_or(0, |experts| experts.layers.min(model.layers));
    let dense = f64::from(model.layers - routed) * matrices * hidden * f64::from(model.feed_forward.unwrap_or(0));
    let expert = model.experts.map_or(0.0, |experts| {
        let each = matrices * hidden * f64::from(experts.feed_forward);
        let width = f64::from(seen(experts.count, experts.active)) + f64::from(experts.shared);
        f64::from(routed) * (width * each + hidden * f64::from(experts.count))
    });
    dense + expert
}

/// The least and the most parameters that the sizes can mean: matrices of the layers alone, and those with an embedding
/// and a head of their own and learned positions.
pub(super) fn parameters(model: &ModelShape) -> (f64, f64) {
    let layers = f64::from(model.layers) * mixer_parameters(model) + feed_forward_parameters(model, |count, _| count);
    let hidden = f64::from(model.hidden);
    let vocabulary = model.vocabulary.map_or(LARGEST_VOCABULARY, f64::from);
    (layers, layers * 1.01 + 2.0 * vocabulary * hidden + 4096.0 * hidden)
}

/// Floating-point operations of a token's forward and backward pass in matrix products with weights: 6 for each weight
/// that it meets (embedding not counted, head counted if the vocabulary is stated), attention scores not counted. What
/// a run really did is never less.
#[must_use]
pub fn training_flops_per_token(model: &ModelShape) -> f64 {
    let mixers = match model.attention {
        // A gated delta layer holds at least as many weights, in other shapes; only attention is counted.
        AttentionForm::GatedDelta { delta_layers } => f64::from(model.layers) / (f64::from(delta_layers) + 1.0),
        AttentionForm::Plain
        | AttentionForm::LinearBias
        | AttentionForm::Latent { .. }
        | AttentionForm::AlternatingWindow { .. } => f64::from(model.layers),
    };
    let head = model.vocabulary.map_or(0.0, f64::from) * f64::from(model.hidden);
    6.0 * (mixers * mixer_parameters(model) + feed_forward_parameters(model, |_, active| active) + head)
}
