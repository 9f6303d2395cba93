//! Matrix products at the sizes of small transformers, in the three forms of a linear layer.

use std::collections::BTreeSet;

use ir::{MeasuredOp, Measurement};

use super::sampling::{kernel, numbers, sets};
use super::{Job, MeasureOptions};
use crate::kernels::Store;
use crate::kernels::linear::{Linear, linear_backward_input, linear_backward_weight, linear_forward};

/// Linear layers that share one input: widths of their outputs.
#[derive(Clone, PartialEq, Eq, Debug)]
struct Layer {
    inputs: usize,
    outputs: Vec<usize>,
}

impl Layer {
    fn width(&self) -> usize {
        self.outputs.iter().sum()
    }
}

/// Which pass.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Form {
    Forward,
    InputGradient,
    WeightGradient,
}

/// The layers of a transformer of width `hidden` on one of `tensor` ranks: with grouped queries and a gate (as Llama),
/// or without (as GPT-2).
fn layers(hidden: usize, tensor: usize, gated: bool) -> Vec<Layer> {
    let query = hidden / tensor;
    let key = if gated { query / 2 } else { query };
    let ffn = if gated { hidden * 11 / 4 } else { 4 * hidden } / tensor;
    let layer = |inputs, outputs: &[usize]| Layer { inputs, outputs: outputs.to_vec() };
    vec![
        layer(hidden, &[query, key, key]),
        layer(query, &[hidden]),
        if gated { layer(hidden, &[ffn, ffn]) } else { layer(hidden, &[ffn]) },
        layer(ffn, &[hidden]),
        layer(hidden, &[256 / tensor]),
    ]
}

/// Adds a job for every distinct product.
pub(super) fn jobs(options: &MeasureOptions, jobs: &mut Vec<Job>) {
    let (hiddens, tokens): (&[usize], &[usize]) =
        if options.quick { (&[64], &[64, 256]) } else { (&[64, 128, 256], &[64, 128, 256, 512]) };
    let mut seen = BTreeSet::new();
    for (hidden, tensor, gated) in combinations(hiddens, &[1, 2, 4]) {
        for layer in layers(hidden, tensor, gated) {
            for &tokens in tokens {
                for form in [Form::Forward, Form::InputGradient, Form::WeightGradient] {
                    let sizes = sizes(&layer, tokens, form);
                    if seen.insert(sizes) {
                        let (options, layer) = (*options, layer.clone());
                        let run = Box::new(move || measure(&options, &layer, tokens, form));
                        jobs.push(Job { what: "matrix products", run });
                    }
                }
            }
        }
    }
}

fn combinations(hiddens: &[usize], tensors: &[usize]) -> Vec<(usize, usize, bool)> {
    let of = |hidden: usize| tensors.iter().flat_map(move |t| [(hidden, *t, true), (hidden, *t, false)]);
    hiddens.iter().flat_map(|hidden| of(*hidden)).collect()
}

/// Rows, columns and contracted size, as [`ir::counts::unit_kernels`] counts the form.
fn sizes(layer: &Layer, tokens: usize, form: Form) -> [u64; 3] {
    let sizes = match form {
        Form::Forward => [tokens, layer.width(), layer.inputs],
        Form::InputGradient => [tokens, layer.inputs, layer.width()],
        Form::WeightGradient => [layer.inputs, layer.width(), tokens],
    };
    sizes.map(|size| size as u64)
}

fn measure(options: &MeasureOptions, layer: &Layer, tokens: usize, form: Form) -> Measurement {
    let [m, n, k] = sizes(layer, tokens, form);
    let op = MeasuredOp::MatrixProduct { m, n, k };
    let sets = sets(4 * (tokens * layer.inputs + layer.width() * (layer.inputs + tokens)));
    let buffers = |size: usize| -> Vec<Vec<f32>> { vec![numbers(size); sets] };
    let mut x = buffers(tokens * layer.inputs);
    let mut w: Vec<_> = layer.outputs.iter().map(|outputs| buffers(outputs * layer.inputs)).collect();
    let mut y: Vec<_> = layer.outputs.iter().map(|outputs| buffers(outputs * tokens)).collect();
    let shape = |outputs| Linear { tokens, inputs: layer.inputs, outputs };
    kernel(options, op, sets, |set| {
        for (part, &outputs) in layer.outputs.iter().enumerate() {
            let (shape, x, w, y) = (shape(outputs), &mut x[set], &mut w[part][set], &mut y[part][set]);
            match form {
                Form::Forward => linear_forward(shape, x, w, None, y),
                Form::InputGradient => {
                    let store = if part == 0 { Store::Overwrite } else { Store::Accumulate };
                    linear_backward_input(shape, y, w, store, x);
                }
                Form::WeightGradient => linear_backward_weight(shape, x, y, w),
            }
        }
    })
}
