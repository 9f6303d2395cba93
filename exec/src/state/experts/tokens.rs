//! Copies of tokens on their way to experts and back.
//!
//! | on the way | a parcel of `n` copies holds |
//! |---|---|
//! | to experts, forward | how many for each expert of the receiver, `n` weights, `n` inputs |
//! | back, forward | `n` weighted outputs |
//! | to experts, backward | `n` gradients of weighted outputs |
//! | back, backward | `n` gradients of weights, `n` gradients of inputs |
//!
//! Where several ranks share an expert they gather their bundles of parcels, so each works on the copies of all; what goes
//! back is then a sum, for which the bundles are padded to the longest, so that all have a part of one size.

use ir::program::BufferKind;

use crate::kernels::elementwise::accumulate;
use crate::parcels::{begin, number, parts, whole};
use crate::state::work::Work;

/// A run of copies that stands together in a parcel and in the order of experts.
struct CopyRun {
    parcel: usize,
    /// Its first copy among those of the parcel.
    from: usize,
    /// Its first copy in the order of experts.
    to: usize,
    copies: usize,
}

/// The runs of parcels of so many copies for each expert, in the order of experts.
fn runs(counts: &[Vec<usize>]) -> Vec<CopyRun> {
    let experts = counts.first().map_or(0, Vec::len);
    let (mut from, mut to, mut found) = (vec![0; counts.len()], 0, Vec::new());
    for expert in 0..experts {
        for (parcel, counts) in counts.iter().enumerate() {
            let copies = counts[expert];
            found.push(CopyRun { parcel, from: from[parcel], to, copies });
            from[parcel] += copies;
            to += copies;
        }
    }
    found
}

impl Work<'_> {
    /// Puts choices in the order in which their copies leave, and counts them by rank.
    pub(super) fn order_copies(&mut self, layer: usize) {
        let experts = self.dims.experts();
        let slot = &mut self.slot.experts[layer];
        let mut at = vec![0usize; experts.count + 1];
        for &expert in &slot.chosen {
            at[expert as usize + 1] += 1;
        }
        slot.sent = at[1..].chunks(experts.local).map(|counts| counts.iter().sum()).collect();
        for expert in 0..experts.count {
            at[expert + 1] += at[expert];
        }
        slot.order.clear();
        slot.order.resize(slot.chosen.len(), 0);
        for (choice, &expert) in (0u32..).zip(&slot.chosen) {
            slot.order[at[expert as usize]] = choice;
            at[expert as usize] += 1;
        }
    }

    /// The bundle of copies that leave for experts: normed inputs with their weights.
    pub(super) fn pack_inputs(&mut self, layer: usize, out: &mut Vec<f32>) {
        self.order_copies(layer);
        let (dims, experts) = (self.dims, self.dims.experts());
        let slot = &self.slot.experts[layer];
        let y = self.slot.sublayers[2 * layer + 1].output.as_deref().expect("the norm's output");
        let weights = slot.weights.as_deref().expect("weights of experts");
        let each = 1 + dims.hidden;
        begin(out, slot.sent.iter().map(|copies| experts.local + copies * each));
        let mut left = &slot.order[..];
        for (rank, &copies) in slot.sent.iter().enumerate() {
            let (mine, after) = left.split_at(copies);
            left = after;
            let mut counts = vec![0; experts.local];
            for &choice in mine {
                counts[slot.chosen[choice as usize] as usize - rank * experts.local] += 1;
            }
            out.extend(counts.into_iter().map(number));
            out.extend(mine.iter().map(|&choice| weights[choice as usize]));
            for &choice in mine {
                out.extend_from_slice(&y[choice as usize / experts.active * dims.hidden..][..dims.hidden]);
            }
        }
    }

    /// The bundle of gradients that leave for experts: of each copy's weighted output, which is that of the token's.
    pub(super) fn pack_gradients(&mut self, layer: usize, out: &mut Vec<f32>) {
        let (hidden, active) = (self.dims.hidden, self.dims.experts().active);
        let slot = &self.slot.experts[layer];
        let gradient = self.slot.residual_gradient.as_deref().expect("the residual gradient arrived");
        begin(out, slot.sent.iter().map(|copies| copies * hidden));
        for &choice in &slot.order {
            out.extend_from_slice(&gradient[choice as usize / active * hidden..][..hidden]);
        }
    }

    /// The parcels of what arrived.
    fn parcels<'b>(&self, arrived: &'b [f32]) -> Vec<&'b [f32]> {
        let experts = self.dims.experts();
        parts(arrived, experts.tensor, experts.ranks)
    }

    /// Inputs and weights in the order of experts, from the parcels that arrived.
    pub(super) fn sort_inputs(&mut self, layer: usize) {
        let (hidden, local) = (self.dims.hidden, self.dims.experts().local);
        let arrived = self.slot.experts[layer].arrived.take().expect("copies for experts");
        let parcels = self.parcels(&arrived);
        let slot = &mut self.slot.experts[layer];
        slot.counts = parcels.iter().map(|parcel| parcel[..local].iter().copied().map(whole).collect()).collect();
        let received = slot.received();
        let mut input = self.pool.take_varying(BufferKind::Activations, received * hidden);
        let mut weights = self.pool.take_varying(BufferKind::Activations, received);
        for CopyRun { parcel, from, to, copies } in runs(&slot.counts) {
            let all: usize = slot.counts[parcel].iter().sum();
            let (of_weights, of_inputs) = parcels[parcel][local..].split_at(all);
            weights[to..][..copies].copy_from_slice(&of_weights[from..][..copies]);
            input[to * hidden..][..copies * hidden].copy_from_slice(&of_inputs[from * hidden..][..copies * hidden]);
        }
        (slot.input, slot.input_weights) = (Some(input), Some(weights));
        self.pool.give(arrived);
    }

    /// Gradients of outputs in the order of experts, from the parcels that arrived.
    pub(super) fn sort_gradients(&mut self, layer: usize) {
        let (hidden, kind) = (self.dims.hidden, self.gradient_kind());
        let arrived = self.slot.experts[layer].arrived.take().expect("gradients for experts");
        let parcels = self.parcels(&arrived);
        let slot = &mut self.slot.experts[layer];
        let mut gradient = self.pool.take_varying(kind, slot.received() * hidden);
        for CopyRun { parcel, from, to, copies } in runs(&slot.counts) {
            let rows = &parcels[parcel][from * hidden..][..copies * hidden];
            gradient[to * hidden..][..copies * hidden].copy_from_slice(rows);
        }
        slot.d_output = Some(gradient);
        self.pool.give(arrived);
    }

    /// Puts `rows` (with a number of each copy before them, or none) into the order in which they came, as what leaves.
    pub(super) fn unsort(&mut self, layer: usize, numbers: Option<&[f32]>, rows: &[f32]) {
        let hidden = self.dims.hidden;
        let each = hidden + usize::from(numbers.is_some());
        let slot = &mut self.slot.experts[layer];
        let totals: Vec<usize> = slot.counts.iter().map(|counts| counts.iter().sum()).collect();
        let starts: Vec<usize> = totals
            .iter()
            .scan(0, |start, total| {
                *start += total * each;
                Some(*start - total * each)
            })
            .collect();
        let mut leaving = self.pool.take_varying(BufferKind::Workspace, slot.received() * each);
        for CopyRun { parcel, from, to, copies } in runs(&slot.counts) {
            let parcel_out = &mut leaving[starts[parcel]..][..totals[parcel] * each];
            let rows_out = match numbers {
                None => parcel_out,
                Some(numbers) => {
                    let (numbers_out, rows_out) = parcel_out.split_at_mut(totals[parcel]);
                    numbers_out[from..][..copies].copy_from_slice(&numbers[to..][..copies]);
                    rows_out
                }
            };
            rows_out[from * hidden..][..copies * hidden].copy_from_slice(&rows[to * hidden..][..copies * hidden]);
        }
        slot.leaving = Some(leaving);
    }

    /// Elements of each parcel that goes back, `each` for a copy.
    fn parcel_lengths(&self, layer: usize, each: usize) -> Vec<usize> {
        self.slot.experts[layer].counts.iter().map(|counts| each * counts.iter().sum::<usize>()).collect()
    }

    /// What the ranks that share experts add up: each one's bundle, padded to the longest.
    pub(super) fn pack_partial(&mut self, layer: usize, each: usize, out: &mut Vec<f32>) {
        let lengths = self.parcel_lengths(layer, each);
        let bundles: Vec<usize> =
            lengths.chunks(self.dims.experts().ranks).map(|parcels| parcels.iter().sum()).collect();
        let longest = bundles.iter().copied().max().unwrap_or(0);
        let leaving = self.slot.experts[layer].leaving.as_deref().expect("what experts gave");
        out.clear();
        let mut rest = leaving;
        for length in bundles {
            let (bundle, after) = rest.split_at(length);
            rest = after;
            out.extend_from_slice(bundle);
            out.resize(out.len() + longest - length, 0.0);
        }
    }

    /// Takes this rank's bundle out of the sum.
    pub(super) fn take_partial(&mut self, layer: usize, each: usize, result: &[f32]) {
        let (ranks, index) = (self.dims.experts().ranks, self.dims.experts().tensor_index);
        let length: usize = self.parcel_lengths(layer, each)[index * ranks..][..ranks].iter().sum();
        let mine = self.pool.copy_varying(BufferKind::Communication, &result[..length]);
        let slot = &mut self.slot.experts[layer];
        self.pool.release(&mut slot.leaving);
        slot.leaving = Some(mine);
    }

    /// The bundle of what goes back to where copies came from.
    pub(super) fn pack_leaving(&mut self, layer: usize, each: usize, out: &mut Vec<f32>) {
        let (ranks, index) = (self.dims.experts().ranks, self.dims.experts().tensor_index);
        let lengths = self.parcel_lengths(layer, each);
        begin(out, lengths[index * ranks..][..ranks].iter().copied());
        let slot = &mut self.slot.experts[layer];
        out.extend_from_slice(slot.leaving.as_deref().expect("what experts gave"));
        self.pool.release(&mut slot.leaving);
    }

    /// Adds up what came back of each token's copies, in the order of its choices: `[rows, hidden]`. With numbers, those are
    /// put by choice.
    pub(super) fn sum_copies(&mut self, layer: usize, came: &[&[f32]], mut numbers: Option<&mut [f32]>) {
        let (dims, active, hidden) = (self.dims, self.dims.experts().active, self.dims.hidden);
        let slot = &mut self.slot.experts[layer];
        // Where the copy of a choice stands among those that came back.
        let mut place: Vec<&[f32]> = vec![&[]; slot.chosen.len()];
        let mut order = slot.order.iter();
        for (parcel, &copies) in came.iter().zip(&slot.sent) {
            let (of_numbers, rows) = parcel.split_at(if numbers.is_some() { copies } else { 0 });
            for (copy, row) in rows.chunks_exact(hidden).enumerate() {
                let choice = *order.next().expect("as many copies come back as left") as usize;
                place[choice] = row;
                if let Some(numbers) = numbers.as_deref_mut() {
                    numbers[choice] = of_numbers[copy];
                }
            }
        }
        assert!(order.next().is_none(), "a copy did not come back");
        let mut sums = self.pool.take(BufferKind::Activations, dims.residual());
        for (sum, copies) in sums.chunks_exact_mut(hidden).zip(place.chunks_exact(active)) {
            sum.copy_from_slice(copies[0]);
            copies[1..].iter().for_each(|copy| accumulate(sum, copy));
        }
        slot.routed = Some(sums);
    }
}
