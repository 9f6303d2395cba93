//! From where a run goes on, and where it keeps its state.

use std::path::Path;

use exec::checkpoint::{Checkpoints, Found, Refused, Search};
use exec::data::Dataset;
use exec::runtime::{CheckpointOptions, Checkpointing, CpuBackend};
use ir::Problem;

use crate::Error;
use crate::results::CheckpointSummary;
use crate::scenario::Loaded;
use crate::verbs::run::text;

/// See the [module](self).
#[derive(Debug, Default)]
pub(crate) struct Keeping {
    found: Option<Found>,
    /// Newer checkpoints that cannot be used.
    refused: Vec<Refused>,
    checkpointing: Option<Checkpointing>,
}

impl Keeping {
    /// What a scenario says; `resume` is a checkpoint, or a folder of them, to go on from in place of the scenario's own.
    ///
    /// # Errors
    /// [`Error::Input`] with why none of the checkpoints that are there can be used, or that nothing is left to do;
    /// [`Error::Files`] with what prevents reading or writing.
    pub(crate) fn of(loaded: &Loaded, resume: Option<&Path>) -> Result<Self, Error> {
        let scenario = &loaded.scenario;
        let folder = scenario.run.checkpoints.as_ref();
        let own = folder.map(|folder| Path::new(&folder.path));
        let Search { found, refused } = match (resume, own) {
            (Some(path), _) => {
                let search = look(loaded, path)?;
                if search.found.is_none() && search.refused.is_empty() {
                    return Err(Error::files(path, "there is no checkpoint to go on from"));
                }
                search
            }
            (None, Some(own)) => look(loaded, own)?,
            (None, None) => Search::default(),
        };
        if let Some(found) = &found {
            nothing_left(loaded, found)?;
        } else if !refused.is_empty() {
            let problem = |refused: &Refused| {
                Problem::new(refused.path.display().to_string(), format!("cannot be used: {}", refused.why))
            };
            let mut problems: Vec<Problem> = refused.iter().map(problem).collect();
            if let Some(last) = problems.last_mut() {
                *last = last.clone().hint("to begin anew, name another folder or move these away");
            }
            return Err(Error::input(problems));
        }
        let checkpointing = folder.map(|folder| -> Result<Checkpointing, Error> {
            let store = Checkpoints::new(&folder.path);
            store
                .prepare()
                .map_err(|e| Error::files(store.folder(), format!("checkpoints cannot be written there: {e}")))?;
            let options = CheckpointOptions {
                every: folder.every.into(),
                keep: usize::try_from(folder.keep).unwrap_or(usize::MAX),
                asynchronous: folder.asynchronous,
                on_failure: folder.on_failure,
            };
            Ok(Checkpointing::new(store, options))
        });
        Ok(Self { found, refused, checkpointing: checkpointing.transpose()? })
    }

    /// The first iteration of the run.
    pub(crate) fn first(&self) -> u64 {
        self.found.as_ref().map_or(0, |found| found.manifest.iterations)
    }

    /// Whether the run keeps its state.
    pub(crate) const fn keeps(&self) -> bool {
        self.checkpointing.is_some()
    }

    /// Lets a backend go on from there and keep its state there. Gives what the report says of it beforehand.
    pub(crate) fn apply(self, backend: CpuBackend) -> (CpuBackend, Resumed) {
        let resumed = Resumed {
            from: self.found.as_ref().map(|found| found.path.display().to_string()),
            refused: self.refused.iter().map(ToString::to_string).collect(),
        };
        let backend = match self.found {
            Some(found) => backend.from_checkpoint(found),
            None => backend,
        };
        match self.checkpointing {
            Some(checkpointing) => (backend.with_checkpoints(checkpointing), resumed),
            None => (backend, resumed),
        }
    }
}

/// Where a run began.
#[derive(Debug)]
pub(crate) struct Resumed {
    pub(crate) from: Option<String>,
    pub(crate) refused: Vec<String>,
}

/// What keeping the state has come to.
pub(crate) fn summary(backend: &CpuBackend) -> Option<CheckpointSummary> {
    let checkpointing = backend.checkpoints()?;
    let account = checkpointing.account();
    Some(CheckpointSummary {
        folder: checkpointing.store().folder().display().to_string(),
        written: account.written,
        bytes: account.bytes,
        blocked_ms: account.blocked.as_secs_f64() * 1e3,
        waited_ms: account.waited.as_secs_f64() * 1e3,
        failures: account.failures.clone(),
    })
}

fn look(loaded: &Loaded, path: &Path) -> Result<Search, Error> {
    let (model, workload) = (&loaded.scenario.model, &loaded.scenario.workload);
    let data = Dataset::new(text(loaded)?, workload.sequence_length, workload.seed)
        .map_err(|problem| loaded.error(vec![problem]))?;
    if Found::is_one(path) {
        return Ok(match Found::at(path, model, &data) {
            Ok(found) => Search { found: Some(found), refused: Vec::new() },
            Err(refused) => Search { found: None, refused: vec![refused] },
        });
    }
    Checkpoints::new(path)
        .newest(model, &data)
        .map_err(|error| Error::files(path, format!("cannot look for checkpoints: {error}")))
}

fn nothing_left(loaded: &Loaded, found: &Found) -> Result<(), Error> {
    let (done, all) = (found.manifest.iterations, u64::from(loaded.scenario.workload.iterations));
    if done < all {
        return Ok(());
    }
    let message = format!("{} has {done} iterations, and the run is to have {all}", found.path.display());
    let hint = format!("raise it above {done} to go on, or name another folder for checkpoints to begin anew");
    Err(loaded.error(vec![Problem::new("training.iterations", message).hint(hint)]))
}
