//! The order of passes and exchanges: one microbatch's pattern, repeated once a cycle.
//!
//! Durations are no part of a plan, so passes are taken to last as long as their FLOPs say, on every position as long as on
//! the slowest, and exchanges no time, or little where that costs no microbatch in flight. In a cycle a position carries out each kind of work once, in places that are its own: forward passes follow
//! one another from position to position, as in 1F1B, and a barrier is passed when the place of the slowest position is. So
//! a barrier keeps microbatches in flight for one cycle more (Yeung et al. 2024, section 5), and work in step for half as
//! many cycles again. A program keeps the order and nothing else of this.

use ir::counts::Shape;
use ir::program::Chunk;
use ir::{Recompute, VocabularyDivision as Division};

use super::{Event, Exchange, Work};

/// Nominal durations, all positive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Nominal {
    pub(super) forward: i64,
    pub(super) backward: i64,
    pub(super) scores: i64,
    pub(super) gradients: i64,
}

/// The order of a plan with one chunk of layers on each position.
pub(crate) fn order(shape: Shape<'_>, division: Division, layers: &[Chunk], microbatches: u32) -> Vec<Event> {
    Pattern::new(division, Nominal::of(shape, division, layers), layers.len()).events(microbatches)
}

impl Nominal {
    /// FLOPs of one token.
    fn of(shape: Shape<'_>, division: Division, layers: &[Chunk]) -> Self {
        let model = shape.model;
        let flops = |count: u64| i64::try_from(count).unwrap_or(i64::MAX >> 24).clamp(1, i64::MAX >> 24);
        let attended = 2 * model.query_width() * u64::from(shape.workload.sequence_length);
        let layer = |layer: u32| 2 * model.layer_parameters(model.layer(layer)) + attended;
        let forward = |chunk: &Chunk| {
            (chunk.first_layer..chunk.first_layer + chunk.layers).map(layer).fold(0u64, u64::saturating_add)
        };
        let again = |chunk: &Chunk| if chunk.recompute == Recompute::Full { 3 } else { 2 };
        let backward = |chunk: &Chunk| forward(chunk).saturating_mul(again(chunk));
        let product = 2 * u64::from(model.hidden) * shape.rank_vocabulary();
        let (scores, gradients) = match division {
            Division::OneBarrier => (2 * product, product),
            Division::Ends | Division::TwoBarriers | Division::Interlaced => (product, 2 * product),
        };
        Self {
            forward: flops(layers.iter().map(forward).max().unwrap_or(0)),
            backward: flops(layers.iter().map(backward).max().unwrap_or(0)),
            scores: flops(scores),
            gradients: flops(gradients),
        }
    }
}

/// Where in a cycle a position begins its passes, all in one cycle of their own.
#[derive(Clone, Copy, Debug, Default)]
struct Places {
    forward: i64,
    backward: i64,
    scores: i64,
    gradients: i64,
}

/// When everything of the first microbatch begins; the others follow one cycle after another.
pub(super) struct Pattern {
    pub(super) cycle: i64,
    /// By position, then kind of work.
    starts: Vec<[i64; Work::COUNT]>,
    /// By exchange, where there is one.
    exchanges: [Option<i64>; Exchange::ALL.len()],
}

impl Pattern {
    pub(super) fn new(division: Division, nominal: Nominal, positions: usize) -> Self {
        let n = nominal;
        let in_step = division == Division::Interlaced;
        let cycle = n.forward + n.backward + n.scores + n.gradients;
        let next = |place: i64, ready: i64| ready + (place - ready).rem_euclid(cycle);
        let exchange = n.exchange(division);
        let places = (0..positions).map(|at| {
            if in_step { n.in_step(positions - 1 - at) } else { n.between(division, (at, positions), cycle) }
        });
        let places = places.collect::<Vec<_>>();
        let mut starts = vec![[0; Work::COUNT]; positions];
        let mut ready = 0;
        for (start, place) in starts.iter_mut().zip(&places) {
            start[Work::Forward as usize] = next(place.forward, ready);
            ready = start[Work::Forward as usize] + n.forward;
        }
        let hidden = ready;
        let mut all = |work: Work, place: fn(&Places) -> i64, ready: i64, time: i64| {
            let begin = |(start, places): (&mut [i64; Work::COUNT], &Places)| {
                start[work as usize] = next(place(places), ready);
                start[work as usize] + time
            };
            starts.iter_mut().zip(&places).map(begin).max().unwrap_or(ready)
        };
        let scored = all(Work::Scores, |place| place.scores, hidden + exchange, n.scores);
        let graded = all(Work::Gradients, |place| place.gradients, scored + exchange, n.gradients);
        let one = division == Division::OneBarrier;
        let summed = if one { scored } else { graded };
        ready = summed + exchange;
        for (start, place) in starts.iter_mut().zip(&places).rev() {
            start[Work::Backward as usize] = next(place.backward, ready);
            ready = start[Work::Backward as usize] + n.backward;
        }
        // Of all positions, a cycle before: whatever they were at has ended when it is needed.
        let embedded = starts.first().map_or(0, |first| first[Work::Forward as usize]);
        for start in &mut starts {
            start[Work::Embedding as usize] = embedded - cycle;
            start[Work::EmbeddingGradient as usize] = ready;
        }
        let exchanges = Exchange::ALL.map(|exchange| match exchange {
            Exchange::Embedded => Some(embedded),
            Exchange::Hidden => Some(hidden),
            Exchange::Statistics => (!one).then_some(scored),
            Exchange::HiddenGradient => Some(summed),
            Exchange::EmbeddedGradient => Some(ready),
        });
        Self { cycle, starts, exchanges }
    }

    /// Microbatches whose forward pass a position begins before it has begun the first one's backward pass.
    #[cfg(test)]
    pub(super) fn in_flight(&self, position: usize) -> i64 {
        let [forward, backward] = [Work::Forward, Work::Backward].map(|work| self.starts[position][work as usize]);
        (backward - forward + self.cycle - 1) / self.cycle
    }

    /// All passes and exchanges, by when they begin. What an exchange needs has ended by then, and what needs it has not
    /// begun.
    pub(super) fn events(&self, microbatches: u32) -> Vec<Event> {
        let mut events = Vec::with_capacity(microbatches as usize * (self.starts.len() * Work::COUNT + 5));
        for microbatch in 0..microbatches {
            let shift = self.cycle * i64::from(microbatch);
            for (position, starts) in (0u32..).zip(&self.starts) {
                for work in Work::ALL {
                    events.push((starts[work as usize] + shift, 1, Event::Pass { position, work, microbatch }));
                }
            }
            for (exchange, start) in Exchange::ALL.into_iter().zip(self.exchanges) {
                events.extend(start.map(|start| (start + shift, 0, Event::Exchange { exchange, microbatch })));
            }
        }
        events.sort_unstable();
        events.into_iter().map(|(_, _, event)| event).collect()
    }
}

impl Nominal {
    /// Two barriers have no room for exchanges in two cycles, and passes in step wait for them in any case.
    const fn exchange(self, division: Division) -> i64 {
        match division {
            Division::OneBarrier => self.forward / 16,
            Division::Ends | Division::TwoBarriers | Division::Interlaced => 0,
        }
    }

    /// The places of a position whose passes of the vocabulary lie between those of layers: of all orders in which a pass
    /// of layers and its backward pass can be parted, the one that is done soonest with what all wait for.
    fn between(self, division: Division, (at, positions): (usize, usize), cycle: i64) -> Places {
        let index = |at: usize| i64::try_from(at).expect("fewer positions than i64");
        let forward = index(at) * self.forward;
        let (f, b, s, t) = (self.forward, self.backward, self.scores, self.gradients);
        // Begins after the forward pass's begin.
        let orders = [
            [f, f + b, f + b + s],
            [f, f + b + t, f + b],
            [f + s + t, f, f + s],
            [f + s + t, f + t, f],
            [f + s, f, f + s + b],
            [f + t, f + t + b, f],
        ];
        let hidden = index(positions) * f + self.exchange(division);
        let next = |place: i64, ready: i64| ready + (place - ready).rem_euclid(cycle);
        let done = |[_, scores, gradients]: [i64; 3]| {
            let scored = next(forward + scores, hidden) + s;
            if division == Division::OneBarrier {
                return scored;
            }
            // All others have scored one cycle after the hidden states came, but for those that no order suits.
            next(forward + gradients, scored.max(hidden + cycle)) + t
        };
        let [backward, scores, gradients] = orders.into_iter().min_by_key(|order| done(*order)).expect("six orders");
        Places { forward, backward: forward + backward, scores: forward + scores, gradients: forward + gradients }
    }

    /// The places of a position, counted from the last, where all work on the vocabulary at once: what is left of a cycle
    /// fits a forward and a backward pass, whose order changes from position to position.
    const fn in_step(self, from_last: usize) -> Places {
        let free = self.scores + self.gradients;
        let (forward, backward) =
            if from_last.is_multiple_of(2) { (free, free + self.forward) } else { (free + self.backward, free) };
        Places { forward, backward, scores: 0, gradients: self.scores }
    }
}
