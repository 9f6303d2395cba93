//! The last pass of a chunk whose gradients are reduced part by part beside it, on a stream that no pass waits for.

use std::collections::VecDeque;

use cost::{Progress, Slowing};
use ir::Bytes;
use ir::counts::HeldParameters;
use ir::program::{Chunk, Stream};

use super::prepared::{ByBasis, ChunkCost, Prepared, World, index};
use super::shared::Shared;
use crate::lowering::{OverReplicas, Reductions};
use crate::passes::{Bucket, Moves, PassOp, completes, op_ends};

/// What a pass leaves of a part.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Left {
    /// Gradients of so many parameters.
    Bucket(HeldParameters),
    /// A shard of what was scattered as so many bytes.
    Scattered(Bytes),
}

/// A pass that leaves its chunk's gradients in parts.
#[derive(Debug)]
pub(super) struct InParts {
    ops: Vec<PassOp>,
    /// How long each takes alone.
    times: Vec<u64>,
    slowing: Slowing,
    /// How long all take, with nothing reduced beside them.
    total: u64,
    /// In order: which op leaves it, and when that ends.
    parts: Vec<(usize, u64, Left)>,
}

/// One reduction: since when it may run, before the end of the pass, and how long it runs.
pub(super) type Reduced = (u64, u64);

/// A chunk's last pass, and what is reduced beside it.
#[derive(Clone, Debug)]
pub(super) struct LastPass {
    pub(super) chunk: usize,
    /// In order.
    pub(super) reduced: Vec<Reduced>,
}

impl InParts {
    pub(super) fn new(ops: &[PassOp], times: Vec<u64>, slowing: Slowing, buckets: &[Bucket]) -> Self {
        let (ends, total) = op_ends(ops, slowing, |place, _| times[place]);
        let left = |op: &PassOp| match (completes(op, buckets), op) {
            (Some(bucket), _) => Some(Left::Bucket(bucket.held)),
            (None, PassOp::Collective { moves: Moves::Gradients { experts: false, .. }, bytes, .. }) => {
                Some(Left::Scattered(*bytes))
            }
            (None, PassOp::Collective { .. } | PassOp::HostCopy { .. } | PassOp::Compute { .. }) => None,
        };
        let parts = ops.iter().enumerate().filter_map(|(place, op)| Some((place, ends[place], left(op)?)));
        Self { parts: parts.collect(), ops: ops.to_vec(), times, slowing, total }
    }

    pub(super) fn left(&self) -> impl ExactSizeIterator<Item = Left> + '_ {
        self.parts.iter().map(|(_, _, left)| *left)
    }

    /// The length of the pass, and of each of `reductions` (part of which, time alone) since when it may run and how long it
    /// does. Where compute and exchanges slow each other, these slow the pass and it slows them if it is `slowed`.
    pub(super) fn beside(&self, reductions: &[(usize, u64)], slowed: bool) -> (u64, Vec<Reduced>) {
        if slowed && !self.slowing.is_none() {
            return Together::new(self, reductions).run();
        }
        let since = |part: usize| self.total - self.parts[part].1;
        (self.total, reductions.iter().map(|(part, time)| (since(*part), *time)).collect())
    }
}

impl LastPass {
    /// How long its reductions last beyond the pass, if nothing else holds them up.
    pub(super) fn beyond(&self) -> u64 {
        let begin = self.reduced.iter().map(|(before, _)| *before).max().unwrap_or(0);
        let end = self.reduced.iter().fold(0, |free: u64, (before, time)| free.max(begin - before) + time);
        end.saturating_sub(begin)
    }
}

/// The last passes of chunks whose gradients are reduced part by part, and by position how much longer the last pass is than
/// others like it.
pub(super) fn last_passes(
    world: World<'_>,
    (shared, prepared): (&mut Shared, &mut Prepared),
    reductions: &Reductions<'_>,
    chunks: &[Chunk],
    (costs, basis): (&[ChunkCost], &mut ByBasis),
) -> (Vec<LastPass>, Vec<u64>) {
    let (mut found, mut longer) = (Vec::new(), vec![0; prepared.layout.pipeline as usize]);
    for (number, (chunk, cost)) in chunks.iter().zip(costs).enumerate() {
        let of = (number, chunk, cost.held);
        if let Some((last, by)) = last_pass(world, (&mut *shared, &mut *prepared), reductions, of, basis) {
            longer[chunk.stage.index()] = longer[chunk.stage.index()].max(by);
            found.push(last);
        }
    }
    (found, longer)
}

/// The last pass of a chunk, of whose parameters a rank holds some, and how much longer it is than others like it; `None` where
/// its gradients are not reduced part by part.
pub(super) fn last_pass(
    world: World<'_>,
    (shared, prepared): (&mut Shared, &mut Prepared),
    reductions: &Reductions<'_>,
    (number, chunk, held): (usize, &Chunk, HeldParameters),
    basis: &mut ByBasis,
) -> Option<(LastPass, u64)> {
    if !reductions.is_by_part(number, held) {
        return None;
    }
    let of = (chunk, reductions.last_weights(number), reductions.bucket_of_passes());
    let (pass, like) = prepared.in_parts(shared, world, of);
    let mut times = Vec::with_capacity(pass.left().len());
    for (part, left) in pass.left().enumerate() {
        let (whole, copies);
        let these = match left {
            Left::Bucket(held) => {
                whole = reductions.of_bucket(held);
                &whole[..]
            }
            Left::Scattered(bytes) => {
                copies = [reductions.of_scattered(bytes)];
                &copies[..]
            }
        };
        for OverReplicas { kind, axis, bytes, .. } in these {
            let priced = prepared.along(shared, world, *axis, chunk.stage.raw(), *kind, *bytes);
            basis[index(priced.basis)] += priced.duration.nanoseconds();
            times.push((part, priced.duration.nanoseconds()));
        }
    }
    let alone = reductions.ends_alone(number);
    let (total, reduced) = pass.beside(&times, alone);
    let longer = if alone { total.saturating_sub(like) } else { 0 };
    Some((LastPass { chunk: number, reduced }, longer))
}

/// An op of the pass that is under way.
#[derive(Clone, Copy, Debug)]
struct Running {
    place: usize,
    stream: Stream,
    progress: Progress,
}

/// Pass and reductions from one end to the next, as a simulation goes.
struct Together<'a> {
    pass: &'a InParts,
    reductions: &'a [(usize, u64)],
    now: u64,
    /// The first op that no link holds yet.
    next: usize,
    /// Of the link under way: what runs, and what waits for its stream.
    running: Vec<Running>,
    waiting: VecDeque<usize>,
    /// When parts were left.
    since: Vec<Option<u64>>,
    reducing: Option<(Progress, u64)>,
    /// Beginning and end of each reduction so far.
    reduced: Vec<(u64, u64)>,
}

impl<'a> Together<'a> {
    fn new(pass: &'a InParts, reductions: &'a [(usize, u64)]) -> Self {
        Self {
            pass,
            reductions,
            now: 0,
            next: 0,
            running: Vec::new(),
            waiting: VecDeque::new(),
            since: vec![None; pass.parts.len()],
            reducing: None,
            reduced: Vec::with_capacity(reductions.len()),
        }
    }

    fn run(mut self) -> (u64, Vec<Reduced>) {
        let mut total = 0;
        loop {
            self.start();
            self.rates();
            let reducing = self.reducing.iter().map(|(progress, _)| progress);
            let Some(next) = self.running.iter().map(|one| &one.progress).chain(reducing).map(Progress::end).min()
            else {
                break;
            };
            self.now = next;
            self.end(&mut total);
        }
        let since = |part: usize| self.since[part].expect("all ops have ended");
        let found = self.reductions.iter().zip(&self.reduced);
        let reduced = found.map(|((part, _), (from, to))| (total - since(*part), to - from)).collect();
        (total, reduced)
    }

    /// Starts what may start now.
    fn start(&mut self) {
        if self.running.is_empty() && self.waiting.is_empty() {
            while let Some(op) = self.pass.ops.get(self.next) {
                self.waiting.push_back(self.next);
                self.next += 1;
                if !op.is_beside() {
                    break;
                }
            }
        }
        for place in std::mem::take(&mut self.waiting) {
            let stream = self.pass.ops[place].stream();
            if self.running.iter().any(|other| other.stream == stream) {
                self.waiting.push_back(place);
            } else {
                let progress = Progress::new(self.now, self.pass.times[place]);
                self.running.push(Running { place, stream, progress });
            }
        }
        if self.reducing.is_none()
            && let Some((part, time)) = self.reductions.get(self.reduced.len())
            && self.since[*part].is_some()
        {
            self.reducing = Some((Progress::new(self.now, *time), self.now));
        }
    }

    fn rates(&mut self) {
        let (slowing, now) = (self.pass.slowing, self.now);
        let is_exchange = |one: &Running| one.stream != Stream::Compute && one.stream != Stream::Host;
        let computes = self.running.iter().any(|one| one.stream == Stream::Compute);
        let exchanges = self.reducing.is_some() || self.running.iter().any(is_exchange);
        for one in &mut self.running {
            if one.stream == Stream::Compute {
                one.progress.go_at(now, slowing.compute(exchanges));
            } else if is_exchange(one) {
                one.progress.go_at(now, slowing.communication(computes));
            }
        }
        if let Some((progress, _)) = &mut self.reducing {
            progress.go_at(now, slowing.communication(computes));
        }
    }

    /// Ends what ends now.
    fn end(&mut self, total: &mut u64) {
        let now = self.now;
        let (parts, since) = (&self.pass.parts, &mut self.since);
        self.running.retain(|one| {
            let ends = one.progress.end() == now;
            if ends {
                *total = now;
                if let Some(part) = parts.iter().position(|(place, ..)| *place == one.place) {
                    since[part] = Some(now);
                }
            }
            !ends
        });
        if let Some((_, from)) = self.reducing.take_if(|(progress, _)| progress.end() == now) {
            self.reduced.push((from, now));
        }
    }
}
