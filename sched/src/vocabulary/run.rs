//! When everything ends, in a given order: what a simulation of the program gives, to the nanosecond.

use ir::VocabularyDivision;

use super::{Event, Exchange, Work, awaited, fed};

/// How long everything takes, in nanoseconds.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Times {
    /// By position, then kind of work.
    pub(crate) passes: Vec<[u64; Work::COUNT]>,
    pub(crate) exchanges: [u64; Exchange::ALL.len()],
    /// From a position to the next, and from the next back to it.
    pub(crate) forward_message: Vec<u64>,
    pub(crate) backward_message: Vec<u64>,
}

/// When everything ended.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Ran {
    /// By position: start of its first pass, and end of its last; that of its layers, and of its slice.
    pub(crate) first_start: Vec<u64>,
    pub(crate) row: Vec<u64>,
    pub(crate) layers: Vec<u64>,
    pub(crate) slice: Vec<u64>,
    pub(crate) last_message: u64,
}

/// Runs events in their order: a position its passes, one after the other; all positions their exchanges, on one stream;
/// each pair of neighbours its messages, a stream for each direction.
pub(crate) fn run(events: &[Event], division: VocabularyDivision, microbatches: u32, times: &Times) -> Ran {
    let (p, m) = (times.passes.len(), microbatches as usize);
    let mut ran =
        Ran { first_start: vec![u64::MAX; p], row: vec![0; p], layers: vec![0; p], slice: vec![0; p], last_message: 0 };
    // What passes have for exchanges, by when; ends of exchanges; arrivals of messages.
    let mut ready = vec![[0u64; Exchange::ALL.len()]; m];
    let mut exchanged = vec![[0u64; Exchange::ALL.len()]; m];
    let mut arrived = vec![[0u64; 2]; p * m];
    let mut streams = vec![[0u64; 2]; p];
    let (mut stream, mut floor) = (0u64, vec![0u64; p]);
    for event in events {
        match *event {
            Event::Exchange { exchange, microbatch } => {
                let (kind, of) = (exchange as usize, microbatch as usize);
                stream = stream.max(ready[of][kind]) + times.exchanges[kind];
                exchanged[of][kind] = stream;
                if division == VocabularyDivision::Interlaced && exchange == Exchange::HiddenGradient {
                    floor.fill(stream);
                }
            }
            Event::Pass { position, work, microbatch } => {
                let (at, of) = (position as usize, microbatch as usize);
                let ends = (at == 0, at + 1 == p);
                let message = match work {
                    Work::Forward => arrived[at * m + of][0],
                    Work::Backward => arrived[at * m + of][1],
                    Work::Embedding | Work::Scores | Work::Gradients | Work::EmbeddingGradient => 0,
                };
                let exchange = awaited(division, work, ends).map_or(0, |exchange| exchanged[of][exchange as usize]);
                let start = ran.row[at].max(message).max(exchange).max(floor[at]);
                let end = start + times.passes[at][work as usize];
                ran.first_start[at] = ran.first_start[at].min(start);
                ran.row[at] = end;
                if let Some(exchange) = fed(division, work, ends) {
                    let ready = &mut ready[of][exchange as usize];
                    *ready = end.max(*ready);
                }
                let (to, direction, time) = match work {
                    Work::Forward if !ends.1 => (at + 1, 0, times.forward_message[at]),
                    Work::Backward if !ends.0 => (at - 1, 1, times.backward_message[at - 1]),
                    Work::Forward | Work::Backward => {
                        ran.layers[at] = end;
                        continue;
                    }
                    Work::Embedding | Work::Scores | Work::Gradients | Work::EmbeddingGradient => {
                        ran.slice[at] = end;
                        continue;
                    }
                };
                ran.layers[at] = end;
                let sent = &mut streams[at][direction];
                *sent = end.max(*sent) + time;
                arrived[to * m + of][direction] = *sent;
                ran.last_message = ran.last_message.max(*sent);
            }
        }
    }
    ran
}
