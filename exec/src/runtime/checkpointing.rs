//! When ranks write their state, what became of it, and from what a training goes on.
//!
//! Training stands still while ranks copy what they write ([`crate::checkpoint`]); their threads write the copies beside
//! training. One checkpoint is under way at a time: where the one before it is still being written when the next is due,
//! training waits for it.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use ir::{BackendError, Model, Program, Rank, VerifiedProgram};

use super::CpuBackend;
use super::snapshot::Snapshot;
use crate::checkpoint::{self, Checkpoints, Found, Manifest, SCHEMA_VERSION, ShardFile, Written};
use crate::data::{DataPosition, Dataset};
use crate::device::Device;
use crate::state::{RankState, Weights};

/// What follows when a checkpoint cannot be written.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum OnFailure {
    /// The run ends with the cause: who goes on believes that hours of work are safe that are not.
    #[default]
    Stop,
    /// The run goes on, and the failure is told at its end.
    Continue,
}

/// How a run keeps its state.
#[derive(Clone, Debug)]
pub struct CheckpointOptions {
    /// After how many iterations each time.
    pub every: u64,
    /// How many of the newest stay.
    pub keep: usize,
    /// Whether training goes on while a checkpoint is written.
    pub asynchronous: bool,
    /// What follows when one cannot be written.
    pub on_failure: OnFailure,
}

/// What keeping the state came to.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct CheckpointAccount {
    /// Checkpoints that have their name.
    pub written: u64,
    /// The time that training stood still for all of them.
    pub blocked: Duration,
    /// Of that, the time that it waited for the one before to be written.
    pub waited: Duration,
    /// Bytes of the last one.
    pub bytes: u64,
    /// Those that could not be written, each with its cause.
    pub failures: Vec<String>,
}

/// Checkpoints of a run: given to a [`CpuBackend`], which writes them.
#[derive(Debug)]
pub struct Checkpointing {
    store: Checkpoints,
    options: CheckpointOptions,
    under_way: Option<UnderWay>,
    /// Iterations of those that this run has written, ascending.
    published: Vec<u64>,
    account: CheckpointAccount,
}

/// A checkpoint that is being written.
#[derive(Debug)]
struct UnderWay {
    iterations: u64,
    partial: PathBuf,
    manifest: Manifest,
    written: Vec<Option<Option<ShardFile>>>,
    failure: Option<String>,
}

/// What the ranks of a program begin with.
#[derive(Clone, Debug, Default)]
pub(super) enum Origin {
    /// Weights drawn from the seed, or those of the options.
    #[default]
    Fresh,
    /// A state that was kept in memory.
    Kept(Arc<Snapshot>),
    /// A checkpoint that was looked at.
    Found(Arc<Found>),
}

impl Checkpointing {
    /// Writes checkpoints to a folder.
    ///
    /// # Panics
    /// If `every` is 0.
    #[must_use]
    pub fn new(store: Checkpoints, options: CheckpointOptions) -> Self {
        assert!(options.every > 0, "state is kept after some iterations");
        Self { store, options, under_way: None, published: Vec::new(), account: CheckpointAccount::default() }
    }
    /// What it has come to.
    #[must_use]
    pub const fn account(&self) -> &CheckpointAccount {
        &self.account
    }
    /// The folder.
    #[must_use]
    pub const fn store(&self) -> &Checkpoints {
        &self.store
    }
    pub(super) const fn due(&self, iterations: u64) -> bool {
        iterations.is_multiple_of(self.options.every)
    }
    fn has(&self, iterations: u64) -> bool {
        self.published.last() == Some(&iterations)
            || self.under_way.as_ref().is_some_and(|under_way| under_way.iterations == iterations)
    }

    /// Something went wrong with the state after so many iterations.
    fn failed(&mut self, iterations: u64, why: impl std::fmt::Display) -> Result<(), BackendError> {
        let what = why.to_string();
        match self.options.on_failure {
            OnFailure::Stop => Err(BackendError::Checkpoint { iterations, what }),
            OnFailure::Continue => {
                self.account.failures.push(format!("the state after {iterations} iterations: {what}"));
                Ok(())
            }
        }
    }

    fn begin(&mut self, program: &Program, iterations: u64, data: DataPosition) -> std::io::Result<PathBuf> {
        let partial = self.store.begin(iterations)?;
        let manifest = Manifest {
            schema_version: SCHEMA_VERSION,
            iterations,
            model: program.model.clone(),
            data,
            plan: serde_json::to_string(&program.layout).map_err(std::io::Error::other)?,
            shards: Vec::new(),
            crc32: String::new(),
        };
        let written = vec![None; program.world() as usize];
        self.under_way = Some(UnderWay { iterations, partial: partial.clone(), manifest, written, failure: None });
        Ok(partial)
    }

    /// Ranks have written; once all have, the checkpoint gets its name.
    fn take(&mut self, all: Vec<(usize, Written)>) -> Result<(), BackendError> {
        let Some(under_way) = &mut self.under_way else { return Ok(()) };
        for (rank, written) in all {
            let written = written.unwrap_or_else(|why| {
                under_way.failure.get_or_insert(format!("rank {rank} {why}"));
                None
            });
            under_way.written[rank] = Some(written);
        }
        if under_way.written.iter().any(Option::is_none) {
            return Ok(());
        }
        let UnderWay { iterations, partial, mut manifest, written, failure } =
            self.under_way.take().expect("it is there");
        manifest.shards = written.into_iter().flatten().flatten().collect();
        let bytes = manifest.shards.iter().map(|shard| shard.bytes).sum();
        let published = match failure {
            Some(why) => Err(why),
            None => self
                .store
                .publish(&partial, manifest, self.options.keep)
                .map_err(|error| format!("cannot give it its name in {}: {error}", self.store.folder().display())),
        };
        match published {
            Ok(()) => {
                self.published.push(iterations);
                self.account.written += 1;
                self.account.bytes = bytes;
                Ok(())
            }
            Err(why) => {
                // What cannot be removed either is removed when the next run begins.
                let _ = self.store.abandon(&partial);
                self.failed(iterations, why)
            }
        }
    }

    /// The ranks that were writing are lost.
    pub(super) fn abandon(&mut self) {
        if let Some(under_way) = self.under_way.take() {
            // What cannot be removed is removed when the next run begins.
            let _ = self.store.abandon(&under_way.partial);
        }
    }

    /// The newest checkpoint of this run that is whole.
    pub(super) fn newest(&mut self, model: &Model, data: &Dataset) -> Option<Found> {
        while let Some(iterations) = self.published.last() {
            let path = self.store.path(*iterations);
            match Found::at(&path, model, data) {
                Ok(found) => return Some(found),
                Err(refused) => {
                    self.account.failures.push(refused.to_string());
                    self.published.pop();
                }
            }
        }
        None
    }
}

impl CpuBackend {
    /// With checkpoints that are written while it trains.
    #[must_use]
    pub fn with_checkpoints(mut self, checkpointing: Checkpointing) -> Self {
        self.checkpointing = Some(checkpointing);
        self
    }
    /// Goes on from a checkpoint: the next program that is loaded must be of its model, under any division. Its first
    /// iteration is number [`Manifest::iterations`], and its samples go on where those of the checkpoint stopped.
    #[must_use]
    pub fn from_checkpoint(mut self, found: Found) -> Self {
        let Manifest { iterations, data, .. } = found.manifest;
        self.origin = Origin::Found(Arc::new(found));
        self.from_position(iterations, data)
    }
    /// What keeping the state has come to, if it is kept.
    #[must_use]
    pub fn checkpoints(&self) -> Option<&Checkpointing> {
        self.checkpointing.as_ref()
    }

    /// Lets all ranks write their state after so many iterations, unless that has been or is being written. It must be the
    /// state that they are in.
    ///
    /// # Errors
    /// [`BackendError::Checkpoint`] if it cannot be kept and that ends the run; what stopped the ranks.
    pub fn checkpoint(&mut self, iterations: u64) -> Result<(), BackendError> {
        let Some(mut checkpointing) = self.checkpointing.take() else { return Ok(()) };
        let result = self.checkpoint_with(&mut checkpointing, iterations);
        self.checkpointing = Some(checkpointing);
        result
    }

    fn checkpoint_with(&mut self, to: &mut Checkpointing, iterations: u64) -> Result<(), BackendError> {
        if to.has(iterations) {
            return Ok(());
        }
        let begun = Instant::now();
        let result = self.written(to, true).and_then(|()| {
            to.account.waited += begun.elapsed();
            let program = Arc::clone(&self.loaded.as_ref().expect("a program is loaded").program);
            let data = self.data_position(iterations).expect("a program is loaded");
            match to.begin(&program, iterations, data) {
                Ok(partial) => self.ask_to_write(partial)?,
                Err(error) => {
                    to.failed(iterations, format!("cannot begin in {}: {error}", to.store.folder().display()))?;
                }
            }
            if to.options.asynchronous { Ok(()) } else { self.written(to, true) }
        });
        to.account.blocked += begun.elapsed();
        result
    }

    /// Waits until what is being written is written.
    ///
    /// # Errors
    /// As [`Self::checkpoint`].
    pub fn finish_checkpoints(&mut self) -> Result<(), BackendError> {
        self.look_after_checkpoints(true)
    }

    /// Sees what ranks have written meanwhile.
    pub(super) fn look_after_checkpoints(&mut self, wait: bool) -> Result<(), BackendError> {
        let Some(mut checkpointing) = self.checkpointing.take() else { return Ok(()) };
        let begun = Instant::now();
        let result = self.written(&mut checkpointing, wait);
        checkpointing.account.blocked += begun.elapsed();
        self.checkpointing = Some(checkpointing);
        result
    }

    fn written(&mut self, to: &mut Checkpointing, wait: bool) -> Result<(), BackendError> {
        while to.under_way.is_some() {
            let all = match (&self.loaded.as_ref().and_then(|loaded| loaded.crew.as_ref()), &mut self.processes) {
                (Some(crew), _) => crew.written(wait),
                (None, Some(processes)) => processes.written(wait),
                (None, None) => Ok(Vec::new()),
            }?;
            let none = all.is_empty();
            to.take(all)?;
            if !wait || none {
                break;
            }
        }
        Ok(())
    }

    fn ask_to_write(&mut self, partial: PathBuf) -> Result<(), BackendError> {
        match (&self.loaded.as_ref().and_then(|loaded| loaded.crew.as_ref()), &mut self.processes) {
            (Some(crew), _) => crew.write(partial),
            (None, Some(processes)) => processes.write(&partial),
            (None, None) => unreachable!("a loaded program has ranks"),
        }
    }
}

/// A rank's state, with what it begins with, on a device if one is given.
///
/// # Errors
/// What prevents reading a checkpoint.
pub(super) fn build(
    program: &Arc<VerifiedProgram>,
    rank: Rank,
    origin: &Origin,
    initial: Option<&Weights>,
    device: Option<Arc<dyn Device>>,
) -> Result<RankState, String> {
    match origin {
        Origin::Fresh => Ok(RankState::on(program, rank, initial, device)),
        Origin::Kept(snapshot) => Ok(from_snapshot(program, rank, snapshot, device)),
        Origin::Found(found) => {
            let files: Vec<&str> = found.manifest.shards.iter().map(|shard| shard.name.as_str()).collect();
            from_checkpoint(program, rank, (&found.path, &files), device)
        }
    }
}

/// A rank's state, read from the files of a checkpoint that was looked at before.
///
/// # Errors
/// What prevents it.
pub(super) fn from_checkpoint(
    program: &Arc<VerifiedProgram>,
    rank: Rank,
    (folder, files): (&std::path::Path, &[&str]),
    device: Option<Arc<dyn Device>>,
) -> Result<RankState, String> {
    let held = RankState::tensors_of(program, rank);
    let snapshot = checkpoint::load(folder, files, &program.model, |name| held.contains(name))?;
    Ok(from_snapshot(program, rank, &snapshot, device))
}

fn from_snapshot(
    program: &Arc<VerifiedProgram>,
    rank: Rank,
    snapshot: &Snapshot,
    device: Option<Arc<dyn Device>>,
) -> RankState {
    let mut state = RankState::on(program, rank, Some(&snapshot.weights), device);
    let [first, second] = &snapshot.moments;
    state.load_moments(first, second);
    state
}
