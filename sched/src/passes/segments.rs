//! The chain of a pass in links: a chain op by itself, or a compute with what runs beside it.

use ir::program::Stream;

use super::PassOp;

/// One link of the chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Segment {
    /// From its first beginning to its last end, when all its ops take their time alone.
    pub time: u64,
    /// Of that, the compute, or the chain op.
    pub own: u64,
    /// Which op that is, by place in the list.
    pub op: usize,
    /// The stream that the segment waits for after its compute, and the last op on it; `None` where compute is the longest.
    pub longest: Option<(Stream, usize)>,
}

/// The links of the chain of `ops`, each of which takes `time` of its place alone.
pub fn segments<'a>(
    ops: impl IntoIterator<Item = PassOp> + 'a,
    mut time: impl FnMut(usize, PassOp) -> u64 + 'a,
) -> impl Iterator<Item = Segment> + 'a {
    let mut beside = [(0u64, 0usize); Stream::ALL.len()];
    let mut any = false;
    ops.into_iter().enumerate().filter_map(move |(place, op)| {
        let own = time(place, op);
        if op.is_beside() {
            let (sum, last) = &mut beside[op.stream() as usize];
            *sum += own;
            *last = place;
            any = true;
            return None;
        }
        let mut segment = Segment { time: own, own, op: place, longest: None };
        if std::mem::take(&mut any) {
            for (stream, (sum, last)) in Stream::ALL.into_iter().zip(std::mem::take(&mut beside)) {
                if sum > segment.time {
                    (segment.time, segment.longest) = (sum, Some((stream, last)));
                }
            }
        }
        Some(segment)
    })
}
