//! What ranks that share sequences put into their exchanges, and take out of them.
//!
//! | exchange | contribution | result |
//! |---|---|---|
//! | keys and values, `AllGather` | this rank's, `[2, tokens, kv width]` | `[ranks, 2, tokens, kv width]` |
//! | their gradients, `ReduceScatter` | of all ranks' | of this rank's, summed |
//! | heads for tokens, `AllToAll` | to each rank its part of the heads of this rank's tokens | of all tokens this rank's part of the heads |
//! | tokens for heads, `AllToAll` | to each rank its tokens with this rank's heads | of this rank's tokens all heads |
//!
//! Heads travel as queries, keys and values, then outputs; backward as outputs with their gradients, then gradients of
//! queries, keys and values.

use std::borrow::Cow;

use ir::program::{BufferKind, CollectiveKind, Pass, UnitRange};

use super::Division;
use crate::parcels::{begin, parts};
use crate::state::buffers::Held;
use crate::state::offered::Joined;
use crate::state::slot::Stage;
use crate::state::values::View;
use crate::state::work::{Suspect, Work};

/// Appends to `out` the heads of `[tokens, heads, head_dim]` that a rank gets.
fn pack_heads(x: &[f32], heads: usize, division: &Division, rank: usize, out: &mut Vec<f32>) {
    let token = x.len() / division.tokens();
    let part = token / heads * (heads / division.ranks);
    x.chunks_exact(token).for_each(|x| out.extend_from_slice(&x[rank * part..][..part]));
}

/// Appends to `out` the tokens of `[sequences, all tokens, part of the heads, head_dim]` that a rank gets.
fn pack_tokens(x: &[f32], division: &Division, rank: usize, out: &mut Vec<f32>) {
    let piece = x.len() / (division.sequences * division.ranks);
    for sequence in 0..division.sequences {
        out.extend_from_slice(&x[(sequence * division.ranks + rank) * piece..][..piece]);
    }
}

/// Puts the tokens of a rank, `[sequences, length, ...]`, into their places among all tokens.
fn place_tokens(part: &[f32], division: &Division, rank: usize, all: &mut [f32]) {
    let piece = part.len() / division.sequences;
    for (sequence, part) in part.chunks_exact(piece).enumerate() {
        all[(sequence * division.ranks + rank) * piece..][..piece].copy_from_slice(part);
    }
}

/// Puts a rank's part of the heads of each token into its place.
fn place_heads(part: &[f32], division: &Division, rank: usize, all: &mut [f32]) {
    let width = part.len() / division.tokens();
    for (token, part) in part.chunks_exact(width).enumerate() {
        all[(token * division.ranks + rank) * width..][..width].copy_from_slice(part);
    }
}

fn read(held: &Option<Held>) -> Cow<'_, [f32]> {
    held.as_ref().expect("computed").view().read()
}

impl Work<'_> {
    /// Computes what an exchange carries, where the program has it begin before the attention that computes it.
    pub(in crate::state) fn prepare_context(&mut self, layer: usize) {
        let waits = self.slot.attention[layer].stage == Stage::Start;
        match self.shared_sequences() {
            Some(ir::ContextMethod::AllGather) if waits && self.upwards() => self.attention_project(layer),
            Some(ir::ContextMethod::AllToAll) if waits && self.upwards() => self.attention_project(layer),
            Some(ir::ContextMethod::AllToAll) if waits => {
                self.attention_output_gradient(layer);
                self.slot.attention[layer].stage = Stage::Projected;
            }
            _ => {}
        }
    }

    pub(in crate::state) fn pack_context(&mut self, layer: usize, kind: CollectiveKind, out: &mut Joined) {
        let slot = &mut self.slot.attention[layer];
        out.clear();
        match kind {
            CollectiveKind::AllGather => {
                out.append(slot.k.as_ref().expect("projected").view());
                out.append(slot.v.as_ref().expect("projected").view());
            }
            CollectiveKind::ReduceScatter => {
                out.append(slot.d_gathered.as_ref().expect("gradients of all keys").view());
                out.round(self.dims.formats.is_half());
                self.pool.release(&mut slot.d_gathered);
            }
            CollectiveKind::AllToAll => self.pack_all_to_all(layer, out.numbers()),
            CollectiveKind::AllReduce => panic!("keys and values are not summed over all"),
        }
    }

    fn pack_all_to_all(&mut self, layer: usize, out: &mut Vec<f32>) {
        let (division, upwards) = (&self.dims.context, self.upwards());
        let [query, key] = [self.dims.query_heads, self.dims.kv_heads];
        let slot = &mut self.slot.attention[layer];
        let exchanged = slot.stage != Stage::Projected;
        let tensors = match (upwards, exchanged) {
            (true, false) => vec![(&slot.q, query), (&slot.k, key), (&slot.v, key)],
            (true, true) => vec![(&slot.out, query)],
            (false, false) => vec![(&slot.out, query), (&slot.d_out, query)],
            (false, true) => vec![(&slot.dq, query), (&slot.dk, key), (&slot.dv, key)],
        };
        let tensors: Vec<_> = tensors.into_iter().map(|(held, heads)| (read(held), heads)).collect();
        let each: usize = tensors.iter().map(|(x, _)| x.len() / division.ranks).sum();
        begin(out, (0..division.ranks).map(|_| each));
        for rank in 0..division.ranks {
            for (x, heads) in &tensors {
                if exchanged { pack_tokens(x, division, rank, out) } else { pack_heads(x, *heads, division, rank, out) }
            }
        }
    }

    /// Takes the result of an exchange, and computes what the program has nobody else compute.
    pub(in crate::state) fn take_context(
        &mut self,
        layer: usize,
        kind: CollectiveKind,
        result: View<'_>,
    ) -> Result<(), Suspect> {
        match kind {
            CollectiveKind::AllGather => {
                let gathered = self.pool.copy(BufferKind::Communication, result);
                self.slot.attention[layer].gathered = Some(gathered);
            }
            CollectiveKind::ReduceScatter => {
                let kind = self.gradient_kind();
                let (dk, dv) = result.split_at(result.len() / 2);
                let (dk, dv) = (self.pool.copy(kind, dk), self.pool.copy(kind, dv));
                let slot = &mut self.slot.attention[layer];
                (slot.dk, slot.dv) = (Some(dk), Some(dv));
                if self.shared_sequences() == Some(ir::ContextMethod::AllGather) {
                    self.end_attention_backward(layer);
                }
            }
            CollectiveKind::AllToAll => return self.take_all_to_all(layer, &result.read()),
            CollectiveKind::AllReduce => panic!("keys and values are not summed over all"),
        }
        Ok(())
    }

    fn take_all_to_all(&mut self, layer: usize, result: &[f32]) -> Result<(), Suspect> {
        let (upwards, kind) = (self.upwards(), self.gradient_kind());
        let exchanged = self.slot.attention[layer].stage != Stage::Projected;
        let query = self.dims.tokens * self.dims.query_width;
        let key = self.dims.tokens * self.dims.kv_width;
        match (upwards, exchanged) {
            (true, false) => {
                let [q, k, v] = self.exchanged(result, [query, key, key], BufferKind::Activations, false);
                let slot = &mut self.slot.attention[layer];
                for (held, new) in [(&mut slot.q, q), (&mut slot.k, k), (&mut slot.v, v)] {
                    self.pool.release(held);
                    *held = Some(new);
                }
                slot.stage = Stage::Own;
            }
            (true, true) => {
                let [out] = self.exchanged(result, [query], BufferKind::Activations, true);
                let slot = &mut self.slot.attention[layer];
                self.pool.release(&mut slot.out);
                slot.out = Some(out);
                let outcome = self.attention_finish(layer);
                // The pass over the attention has ended by now, but for this.
                let unit = UnitRange { start: self.position, end: self.position + 1 };
                self.parameters.leave(self.pass, unit, self.pool);
                return outcome;
            }
            (false, false) => {
                let [out, d_out] = self.exchanged(result, [query; 2], BufferKind::Workspace, false);
                let slot = &mut self.slot.attention[layer];
                self.pool.release(&mut slot.d_out);
                (slot.exchanged_out, slot.d_out) = (Some(out), Some(d_out));
                slot.stage = Stage::Own;
            }
            (false, true) => {
                let [dq, dk, dv] = self.exchanged(result, [query, key, key], kind, true);
                let slot = &mut self.slot.attention[layer];
                for (held, new) in [(&mut slot.dq, dq), (&mut slot.dk, dk), (&mut slot.dv, dv)] {
                    self.pool.release(held);
                    *held = Some(new);
                }
                self.end_attention_backward(layer);
            }
        }
        Ok(())
    }

    /// Tensors of so many elements, put together from what all ranks gave: heads of this rank's tokens (`back`), or tokens of
    /// this rank's heads.
    fn exchanged<const N: usize>(
        &mut self,
        result: &[f32],
        sizes: [usize; N],
        kind: BufferKind,
        back: bool,
    ) -> [Held; N] {
        let division = &self.dims.context;
        let mut tensors = sizes.map(|size| self.pool.take(kind, size));
        let all = parts(result, 1, division.ranks);
        let mut start = 0;
        for tensor in &mut tensors {
            let mine = start..start + tensor.len() / division.ranks;
            start = mine.end;
            tensor.view_mut().fill_with(|tensor| {
                for (rank, part) in all.iter().enumerate() {
                    let part = &part[mine.clone()];
                    if back {
                        place_heads(part, division, rank, tensor);
                    } else {
                        place_tokens(part, division, rank, tensor);
                    }
                }
            });
        }
        tensors
    }

    /// The gradients of queries, keys and values are here: of the input, and in a whole backward pass of the weights.
    fn end_attention_backward(&mut self, layer: usize) {
        self.attention_input_gradient(layer);
        if self.pass == Pass::Backward {
            self.attention_backward_weight(layer);
        }
    }
}
