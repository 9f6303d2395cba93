//! The attention core.

use ir::{MeasuredOp, Measurement};

use super::sampling::{kernel, numbers, sets};
use super::{Job, MeasureOptions};
use crate::kernels::Store;
use crate::kernels::attention::{
    Attention, AttentionGradients, AttentionSaved, AttentionWorkspace, attention_backward, attention_forward,
};

/// Adds a job for every size and pass.
pub(super) fn jobs(options: &MeasureOptions, jobs: &mut Vec<Job>) {
    let (sequences, lengths): (&[usize], &[usize]) =
        if options.quick { (&[1, 2], &[64]) } else { (&[1, 2, 4], &[32, 64, 128, 256]) };
    for &sequences in sequences {
        for &length in lengths {
            for heads in [1, 2, 4, 8] {
                for dim in [16, 32] {
                    for backward in [false, true] {
                        let shape = Attention::new(sequences, length, heads, heads.div_ceil(2), dim);
                        let options = *options;
                        let run = Box::new(move || measure(&options, shape, backward));
                        jobs.push(Job { what: "attention", run });
                    }
                }
            }
        }
    }
}

/// Every tensor of one call.
struct Tensors {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    out: Vec<f32>,
    lse: Vec<f32>,
    gradients: [Vec<f32>; 3],
}

fn measure(options: &MeasureOptions, shape: Attention, backward: bool) -> Measurement {
    let Attention { sequences, keys: length, query_heads, key_heads, head_dim, .. } = shape;
    let (queries, keys) = (sequences * length * query_heads * head_dim, sequences * length * key_heads * head_dim);
    let op = MeasuredOp::Attention {
        sequences: sequences as u64,
        sequence_length: length as u64,
        heads: query_heads as u64,
        head_dim: head_dim as u64,
        backward,
    };
    let mut workspace = AttentionWorkspace::default();
    let sets = sets(4 * if backward { 4 * queries + 4 * keys } else { 2 * queries + 2 * keys });
    let mut all: Vec<Tensors> = (0..sets)
        .map(|_| Tensors {
            q: numbers(queries),
            k: numbers(keys),
            v: numbers(keys),
            out: numbers(queries),
            lse: vec![0.0; sequences * length * query_heads],
            gradients: [vec![0.0; queries], vec![0.0; keys], vec![0.0; keys]],
        })
        .collect();
    for Tensors { q, k, v, out, lse, .. } in &mut all {
        attention_forward(shape, q, k, v, out, lse, &mut workspace);
    }
    kernel(options, op, sets, |set| {
        let Tensors { q, k, v, out, lse, gradients: [dq, dk, dv] } = &mut all[set];
        if backward {
            let saved = AttentionSaved { q, k, v, out, lse };
            let mut gradients = AttentionGradients { dq, dk, dv };
            // The gradient of the output has the output's shape and about its size.
            attention_backward(shape, saved, out, Store::Overwrite, &mut gradients, &mut workspace);
        } else {
            attention_forward(shape, q, k, v, out, lse, &mut workspace);
        }
    })
}
