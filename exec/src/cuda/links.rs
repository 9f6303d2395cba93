//! The groups of a program over NCCL.
//!
//! All ranks join one group, and every other is split from it. A split is a call of all ranks, which may make many groups
//! that have no rank in common: [`rounds`] says which are made together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use super::communicator::{Communicator, Reduction, UniqueId};
use super::device::CudaDevice;
use crate::device::{Device, DeviceError, Element, Group, Link, Links, Slice, Stream};

/// How long ranks wait for each other when they join, or for NCCL to accept a call.
const DEADLINE: Duration = Duration::from_secs(60);

/// What joins ranks with a GPU each.
#[derive(Debug)]
pub(super) struct NcclLinks {
    id: UniqueId,
    ranks: usize,
    deadline: Duration,
    cancelled: Arc<AtomicBool>,
}

impl NcclLinks {
    /// For so many ranks, none of which has joined.
    ///
    /// # Errors
    /// When NCCL fails.
    pub(super) fn new(ranks: usize) -> Result<Self, DeviceError> {
        Communicator::unique_id().map(|id| Self::of(id, ranks))
    }

    /// The same with an id that another process made.
    pub(super) fn of(id: UniqueId, ranks: usize) -> Self {
        Self { id, ranks, deadline: DEADLINE, cancelled: Arc::default() }
    }
}

impl Links for NcclLinks {
    fn join(
        &self,
        device: Arc<dyn Device>,
        rank: usize,
        groups: &[Group],
    ) -> Result<Vec<Option<Arc<dyn Link>>>, DeviceError> {
        let device: Arc<CudaDevice> = device.into_any().downcast().expect("NCCL joins GPUs");
        let cancelled = Arc::clone(&self.cancelled);
        let all = Communicator::join_until(&device, self.id, (rank, self.ranks), self.deadline, cancelled)?;
        let mut links: Vec<Option<Arc<dyn Link>>> = groups.iter().map(|_| None).collect();
        for round in rounds(groups, self.ranks) {
            let own = round.iter().find_map(|&number| {
                let place = groups[number].members.iter().position(|&member| member == rank)?;
                Some((number, place))
            });
            let color = own.map(|(number, _)| u32::try_from(number).expect("fewer than 2^32 groups"));
            let (place, size) = own.map_or((0, 1), |(number, place)| (place, groups[number].members.len()));
            let split = all.split(color, place, place, size)?;
            let Some(((number, _), communicator)) = own.zip(split) else { continue };
            let link = NcclLink { device: Arc::clone(&device), communicator };
            link.use_once(&groups[number], self)?;
            links[number] = Some(Arc::new(link));
        }
        Ok(links)
    }

    fn abort(&self, _: &str) {
        self.cancelled.store(true, Ordering::Relaxed);
    }

    fn ticket(&self) -> Vec<u8> {
        self.id.bytes().to_vec()
    }
}

/// Which groups are split at the same time: each one once, none in a round with another that it shares a rank with.
fn rounds(groups: &[Group], ranks: usize) -> Vec<Vec<usize>> {
    let mut rounds: Vec<(Vec<usize>, Vec<bool>)> = Vec::new();
    for (number, group) in groups.iter().enumerate() {
        let free = rounds.iter().position(|(_, taken)| group.members.iter().all(|&member| !taken[member]));
        let round = free.unwrap_or_else(|| {
            rounds.push((Vec::new(), vec![false; ranks]));
            rounds.len() - 1
        });
        rounds[round].0.push(number);
        group.members.iter().for_each(|&member| rounds[round].1[member] = true);
    }
    rounds.into_iter().map(|(numbers, _)| numbers).collect()
}

/// A rank's end of a group.
#[derive(Debug)]
struct NcclLink {
    device: Arc<CudaDevice>,
    communicator: Communicator,
}

impl NcclLink {
    /// The first use of a group lets NCCL connect its ranks, which waits for all of them; done here, where all come in one
    /// order, it keeps no rank waiting later.
    fn use_once(&self, group: &Group, links: &NcclLinks) -> Result<(), DeviceError> {
        let (stream, size) = (Stream::COMMUNICATION, self.communicator.size());
        let memory = self.device.allocate(stream, Element::F32, 2 * size)?;
        let outcome = self.device.zero(stream, memory).and_then(|()| {
            if group.exchanges {
                let parts = |half: usize| (0..size).map(|at| memory.part(half * size + at, 1)).collect::<Vec<_>>();
                return self.all_to_all(stream, &parts(0), &parts(1));
            }
            self.all_reduce(stream, memory.part(0, 1))
        });
        let released = self.device.release(stream, memory);
        outcome.and(released).and_then(|()| self.wait(stream, links))
    }

    /// Waits for a stream, unless it is cancelled or takes too long: what waits for a rank that has ended never ends by itself.
    fn wait(&self, stream: Stream, links: &NcclLinks) -> Result<(), DeviceError> {
        let (event, started) = (self.device.record(stream)?, Instant::now());
        while !self.device.passed(event)? {
            self.communicator.poll()?;
            if links.cancelled.load(Ordering::Relaxed) || started.elapsed() > links.deadline {
                let size = self.communicator.size();
                let error = DeviceError::new(format!("joining a group of {size} GPUs"), "not all ranks have come");
                self.communicator.abort(&error.cause);
                return Err(error.hint("a rank has ended, or cannot be reached"));
            }
            std::thread::sleep(Duration::from_micros(50));
        }
        self.device.forget(event)
    }
}

impl Link for NcclLink {
    fn all_reduce(&self, stream: Stream, values: Slice) -> Result<(), DeviceError> {
        self.communicator.all_reduce(&self.device, stream, Reduction::Sum, values)
    }

    fn reduce_scatter(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError> {
        self.communicator.reduce_scatter(&self.device, stream, Reduction::Sum, from, to)
    }

    fn all_gather(&self, stream: Stream, from: Slice, to: Slice) -> Result<(), DeviceError> {
        self.communicator.all_gather(&self.device, stream, from, to)
    }

    fn all_to_all(&self, stream: Stream, from: &[Slice], to: &[Slice]) -> Result<(), DeviceError> {
        self.communicator.all_to_all(&self.device, stream, from, to)
    }

    fn send(&self, stream: Stream, from: Slice, to: usize) -> Result<(), DeviceError> {
        self.communicator.send(&self.device, stream, from, to)
    }

    fn receive(&self, stream: Stream, from: usize, to: Slice) -> Result<(), DeviceError> {
        self.communicator.receive(&self.device, stream, from, to)
    }

    fn poll(&self) -> Result<(), DeviceError> {
        self.communicator.poll()
    }

    fn abort(&self, why: &str) {
        self.communicator.abort(why);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Any groups: each in one round, no rank twice in one; and as few rounds as the rank with most groups is in, for the
    /// groups of a grid.
    #[test]
    fn groups_that_share_a_rank_are_split_one_after_the_other() {
        crate::kernels::testing::Cases::run(50, |cases| {
            let ranks = cases.size(2, 12);
            let groups: Vec<Group> = (0..cases.size(1, 20))
                .map(|_| {
                    let members = (0..ranks).filter(|_| cases.size(0, 2) == 0).collect();
                    Group { members, exchanges: false }
                })
                .collect();
            let rounds = rounds(&groups, ranks);
            let mut all: Vec<usize> = rounds.iter().flatten().copied().collect();
            all.sort_unstable();
            assert_eq!(all, (0..groups.len()).collect::<Vec<_>>());
            for round in &rounds {
                let mut members: Vec<usize> = round.iter().flat_map(|&n| groups[n].members.clone()).collect();
                let count = members.len();
                members.sort_unstable();
                members.dedup();
                assert_eq!(members.len(), count, "{round:?} of {groups:?}");
            }
        });
        let line =
            |first: usize, step: usize| Group { members: (0..4).map(|i| first + i * step).collect(), exchanges: false };
        let grid: Vec<Group> = (0..4).map(|row| line(4 * row, 1)).chain((0..4).map(|column| line(column, 4))).collect();
        assert_eq!(rounds(&grid, 16), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
    }
}
