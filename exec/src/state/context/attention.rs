//! Attention over sequences that several ranks share: what happens between the pieces of an instruction and its exchanges.
//!
//! * Keys and values that go **round**: the instruction runs beside their exchange. It projects, attends to this rank's own
//!   keys while those of others are under way, then to theirs, and joins the parts by their sums of exponentials; backward it
//!   does the same and adds up the gradients of all keys, which go back to their ranks before it ends. Between these steps it
//!   is [paused](crate::state::Progress).
//! * Keys and values that are **gathered** before it, or heads **exchanged** for tokens before and after it: what an exchange
//!   carries is projected when the exchange begins, and what depends on its result is computed when that arrives.

use ir::program::BufferKind;
use ir::{ContextMethod, Recompute};

use super::Division;
use crate::kernels::Store;
use crate::kernels::attention::{Attention, Packed};
use crate::state::Progress;
use crate::state::arithmetic::{Core, attention_backward, attention_forward, attention_merge};
use crate::state::buffers::Held;
use crate::state::slot::{AttentionSlot, Stage};
use crate::state::values::View;
use crate::state::work::{Suspect, Work};

/// The attention of queries of one piece to keys of one.
fn between(whole: Attention, division: &Division, query: usize, key: usize) -> Attention {
    Attention { queries: division.length, first_query: query, keys: division.length, first_key: key, ..whole }
}

/// A rank's keys and values in what all ranks gave, each `[tokens, heads, head_dim]`.
fn of_rank(gathered: &Held, ranks: usize, rank: usize) -> (View<'_>, View<'_>) {
    let each = gathered.len() / ranks;
    gathered.view().part(rank * each..(rank + 1) * each).split_at(each / 2)
}

impl<'a> Work<'a> {
    /// Of all tokens this rank's part of the heads.
    fn over_exchanged(&self, layer: usize) -> Packed<'a> {
        let (division, whole) = (&self.dims.context, self.core(layer));
        let length = division.ranks * division.length;
        let (heads, kv) = (whole.query_heads / division.ranks, whole.key_heads / division.ranks);
        let shape = Attention::new(division.sequences, length, heads, kv, whole.head_dim);
        Packed { shape: Attention { window: whole.window, ..shape }, starts: &self.starts.whole }
    }
}

impl Work<'_> {
    /// How sequences are shared, if they are.
    pub(in crate::state) fn shared_sequences(&self) -> Option<ContextMethod> {
        (self.dims.context.ranks > 1).then_some(self.dims.context.method)
    }

    /// The core of a layer's forward pass and the projection after it, as far as it goes now.
    pub(in crate::state) fn context_forward(
        &mut self,
        layer: usize,
        method: ContextMethod,
    ) -> Result<Progress, Suspect> {
        let stage = &mut self.slot.attention[layer].stage;
        match (method, *stage) {
            (ContextMethod::Ring, Stage::Start) => {
                self.attention_project(layer);
                return Ok(Progress::Paused);
            }
            (ContextMethod::Ring, Stage::Projected) => {
                *stage = Stage::Own;
                self.begin_core(layer);
                self.attend_own(layer);
                return Ok(Progress::Paused);
            }
            (ContextMethod::Ring, _) => {
                self.attend_others(layer);
                self.attention_finish(layer)?;
            }
            (ContextMethod::AllGather, _) => {
                self.begin_core(layer);
                self.attend_own(layer);
                self.attend_others(layer);
                self.attention_finish(layer)?;
            }
            (ContextMethod::AllToAll, _) => {
                *stage = Stage::Own;
                self.begin_core(layer);
                self.attend_heads(layer);
            }
        }
        Ok(Progress::Ended)
    }

    /// Output and sums of a core that has not seen any key.
    fn begin_core(&mut self, layer: usize) {
        let slot = &mut self.slot.attention[layer];
        let length = slot.q.as_ref().expect("projected").len();
        // A device joins parts in FP32; in host memory everything is.
        let joins = self.pool.is_on_device() && self.dims.context.method != ContextMethod::AllToAll;
        let mut out = match joins {
            true => self.pool.take_single(BufferKind::Activations, length),
            false => self.pool.take(BufferKind::Activations, length),
        };
        let mut lse = self.pool.take_single(BufferKind::Activations, length / self.dims.attention.head_dim);
        out.view_mut().clear();
        lse.view_mut().fill_with(|lse| lse.fill(f32::NEG_INFINITY));
        (slot.out, slot.lse) = (Some(out), Some(lse));
    }

    fn attend_own(&mut self, layer: usize) {
        let slot = &mut self.slot.attention[layer];
        let (k, v) = (slot.k.take().expect("projected"), slot.v.take().expect("projected"));
        self.attend(layer, (k.view(), v.view()), self.dims.context.index);
        let slot = &mut self.slot.attention[layer];
        (slot.k, slot.v) = (Some(k), Some(v));
    }

    /// Attends to the keys of the other ranks, from the next one round.
    fn attend_others(&mut self, layer: usize) {
        let gathered = self.slot.attention[layer].gathered.take().expect("keys and values of all ranks");
        let division = &self.dims.context;
        for step in 1..division.ranks {
            let rank = (division.index + division.ranks - step) % division.ranks;
            self.attend(layer, of_rank(&gathered, division.ranks, rank), rank);
        }
        self.pool.give(gathered);
    }

    /// Adds the attention to a rank's keys to output and sums.
    fn attend(&mut self, layer: usize, (k, v): (View<'_>, View<'_>), rank: usize) {
        let (whole, division, starts) = (self.core(layer), &self.dims.context, self.starts);
        let AttentionSlot { q, out, lse, .. } = &mut self.slot.attention[layer];
        let q = q.as_ref().expect("projected").view();
        let (out, lse) = (out.as_mut().expect("begun").view_mut(), lse.as_mut().expect("begun").view_mut());
        let mut part = self.pool.take(BufferKind::Workspace, q.len() / division.pieces.len());
        let mut part_lse = self.pool.take_single(BufferKind::Workspace, lse.len() / division.pieces.len());
        let queries = division.views(q).zip(division.views_mut(out)).zip(division.views_mut(lse));
        for (piece, (((query, q), (_, mut out)), (_, mut lse))) in queries.enumerate() {
            let starts = starts.of_piece(piece, division.piece());
            for (key, (k, v)) in pieces_of(division, rank, k, v).filter(|(key, _)| *key <= query) {
                let shape = between(whole, division, query, key);
                let over = Packed { shape, starts };
                attention_forward(over, Core { q, k, v }, &mut part, &mut part_lse, self.attention);
                attention_merge(out.again(), lse.again(), part.view(), part_lse.view());
            }
        }
        self.pool.give(part);
        self.pool.give(part_lse);
    }

    /// The core over all tokens of this rank's part of the heads.
    fn attend_heads(&mut self, layer: usize) {
        let over = self.over_exchanged(layer);
        let AttentionSlot { q, k, v, out, lse, .. } = &mut self.slot.attention[layer];
        let [q, k, v] = [q, k, v].map(|held| held.as_ref().expect("exchanged").view());
        let (out, lse) = (out.as_mut().expect("begun"), lse.as_mut().expect("begun"));
        attention_forward(over, Core { q, k, v }, &mut *out, lse, self.attention);
        self.dims.formats.round(out);
    }

    /// The core of a layer's backward pass, as far as it goes now.
    pub(in crate::state) fn context_backward(&mut self, layer: usize, method: ContextMethod) -> Progress {
        match (method, self.slot.attention[layer].stage) {
            (ContextMethod::Ring, Stage::Start) => {
                self.slot.attention[layer].stage = Stage::Own;
                self.attention_output_gradient(layer);
                self.begin_gradients(layer);
                if self.slot.attention[layer].lse.is_some() {
                    self.gradients_own(layer);
                }
                return Progress::Paused;
            }
            (ContextMethod::Ring, Stage::Own) => {
                self.gradients_rest(layer);
                return Progress::Paused;
            }
            (ContextMethod::Ring, _) => self.attention_input_gradient(layer),
            (ContextMethod::AllGather, _) => {
                self.attention_output_gradient(layer);
                self.begin_gradients(layer);
                if self.slot.attention[layer].lse.is_some() {
                    self.gradients_own(layer);
                }
                self.gradients_rest(layer);
            }
            (ContextMethod::AllToAll, _) => self.gradients_of_heads(layer),
        }
        Progress::Ended
    }

    fn begin_gradients(&mut self, layer: usize) {
        let (kind, ranks) = (self.gradient_kind(), self.dims.context.ranks);
        let slot = &mut self.slot.attention[layer];
        let mut dq = self.pool.take(kind, slot.q.as_ref().expect("kept by forward").len());
        let each = 2 * slot.k.as_ref().expect("kept by forward").len();
        let mut all = self.pool.take(BufferKind::Workspace, ranks * each);
        dq.view_mut().clear();
        all.view_mut().clear();
        (slot.dq, slot.d_gathered) = (Some(dq), Some(all));
    }

    fn gradients_own(&mut self, layer: usize) {
        let slot = &mut self.slot.attention[layer];
        let (k, v) = (slot.k.take().expect("kept by forward"), slot.v.take().expect("kept by forward"));
        self.gradients(layer, (k.view(), v.view()), self.dims.context.index);
        let slot = &mut self.slot.attention[layer];
        (slot.k, slot.v) = (Some(k), Some(v));
    }

    /// The keys of all ranks are here: what is left of the core's gradients. Selective recomputation did not keep the sums of
    /// exponentials, so that the core runs again first.
    fn gradients_rest(&mut self, layer: usize) {
        let division = &self.dims.context;
        let gathered = self.slot.attention[layer].gathered.take().expect("keys and values of all ranks");
        let again = self.slot.attention[layer].lse.is_none();
        if again {
            let old = self.slot.attention[layer].out.take().expect("kept by forward");
            self.pool.give(old);
            self.begin_core(layer);
            for step in 0..division.ranks {
                let rank = (division.index + division.ranks - step) % division.ranks;
                self.attend(layer, of_rank(&gathered, division.ranks, rank), rank);
            }
            let out = self.slot.attention[layer].out.take().expect("begun");
            self.slot.attention[layer].out = Some(self.rounded(out));
            self.gradients_own(layer);
        }
        for step in 1..division.ranks {
            let rank = (division.index + division.ranks - step) % division.ranks;
            self.gradients(layer, of_rank(&gathered, division.ranks, rank), rank);
        }
        self.pool.give(gathered);
        let slot = &mut self.slot.attention[layer];
        for held in [&mut slot.q, &mut slot.k, &mut slot.v, &mut slot.lse, &mut slot.d_out] {
            self.pool.release(held);
        }
        slot.stage = Stage::Gradients;
    }

    /// Adds the gradients through the keys of a rank.
    fn gradients(&mut self, layer: usize, (k, v): (View<'_>, View<'_>), rank: usize) {
        let (whole, division, starts) = (self.core(layer), &self.dims.context, self.starts);
        let AttentionSlot { q, out, lse, d_out, dq, d_gathered, .. } = &mut self.slot.attention[layer];
        let [q, out, lse, d_out] = [q, out, lse, d_out].map(|held| held.as_ref().expect("kept for the core").view());
        let dq = dq.as_mut().expect("begun").view_mut();
        let all = d_gathered.as_mut().expect("begun").view_mut();
        let each = all.len() / division.ranks;
        let (mut dk, mut dv) = all.part(rank * each..(rank + 1) * each).split_at(each / 2);
        let queries = division.views(q).zip(division.views(out)).zip(division.views(lse)).zip(division.views(d_out));
        let queries = queries.zip(division.views_mut(dq)).enumerate();
        for (piece, (((((query, q), (_, out)), (_, lse)), (_, d_out)), (_, mut dq))) in queries {
            let starts = starts.of_piece(piece, division.piece());
            let gradients = division.views_mut(dk.again()).zip(division.views_mut(dv.again()));
            let keys = pieces_of(division, rank, k, v).zip(gradients);
            for ((key, (k, v)), ((_, dk), (_, dv))) in keys.filter(|((key, _), _)| *key <= query) {
                let over = Packed { shape: between(whole, division, query, key), starts };
                let added = (Store::Accumulate, [dq.again(), dk, dv]);
                attention_backward(over, Core { q, k, v }, (out, lse), d_out, added, self.attention);
            }
        }
    }

    fn gradients_of_heads(&mut self, layer: usize) {
        let (over, kind) = (self.over_exchanged(layer), self.gradient_kind());
        if self.slot.attention[layer].lse.is_none() {
            debug_assert_eq!(self.recompute, Recompute::Selective);
            let kept = self.slot.attention[layer].out.take();
            let exchanged = self.slot.attention[layer].exchanged_out.take().expect("exchanged");
            self.pool.give(exchanged);
            self.begin_core(layer);
            self.attend_heads(layer);
            let slot = &mut self.slot.attention[layer];
            slot.exchanged_out = std::mem::replace(&mut slot.out, kept);
        }
        let slot = &mut self.slot.attention[layer];
        let take = [&mut slot.q, &mut slot.k, &mut slot.v, &mut slot.exchanged_out, &mut slot.lse, &mut slot.d_out];
        let [q, k, v, out, lse, d_out]: [Held; 6] = take.map(|held| held.take().expect("kept for the core"));
        let mut dq = self.pool.take(kind, q.len());
        let [mut dk, mut dv] = [(); 2].map(|()| self.pool.take(kind, k.len()));
        let core = Core { q: q.view(), k: k.view(), v: v.view() };
        let written = (Store::Overwrite, [&mut dq, &mut dk, &mut dv].map(Held::view_mut));
        attention_backward(over, core, (out.view(), lse.view()), &d_out, written, self.attention);
        for held in [q, k, v, out, lse, d_out] {
            self.pool.give(held);
        }
        (slot.dq, slot.dk, slot.dv) = (Some(dq), Some(dk), Some(dv));
        slot.stage = Stage::Gradients;
    }
}

/// The pieces of a rank's keys and values, each with the position at which it begins.
fn pieces_of<'a>(
    division: &Division,
    rank: usize,
    k: View<'a>,
    v: View<'a>,
) -> impl Iterator<Item = (usize, (View<'a>, View<'a>))> {
    let pieces = division.pieces_of(rank);
    let length = k.len() / pieces.len();
    let piece = move |(index, first)| {
        let within = index * length..(index + 1) * length;
        (first, (k.part(within.clone()), v.part(within)))
    };
    pieces.into_iter().enumerate().map(piece)
}
