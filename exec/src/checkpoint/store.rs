//! The folder of a run's checkpoints.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use ir::Model;

use super::manifest::{Manifest, tensors};
use super::shard::{Opened, measure};
use crate::data::Dataset;
use crate::runtime::{Kept, Snapshot};

const MANIFEST: &str = "checkpoint.json";
const PREFIX: &str = "iteration-";
const PARTIAL: &str = ".partial";
const REMOVED: &str = ".removed";

/// A folder of checkpoints.
#[derive(Clone, Debug)]
pub struct Checkpoints {
    folder: PathBuf,
}

/// A checkpoint that a training can go on from.
#[derive(Clone, PartialEq, Debug)]
pub struct Found {
    /// Its folder.
    pub path: PathBuf,
    /// What it is of.
    pub manifest: Manifest,
}

/// A checkpoint that is not used.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refused {
    /// Its folder.
    pub path: PathBuf,
    /// Why.
    pub why: String,
}

impl std::fmt::Display for Refused {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.path.display(), self.why)
    }
}

/// What was looked for and found.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Search {
    /// The newest that can be used.
    pub found: Option<Found>,
    /// Newer ones that cannot, the newest first.
    pub refused: Vec<Refused>,
}

impl Checkpoints {
    /// A folder, which need not be there yet.
    #[must_use]
    pub fn new(folder: impl Into<PathBuf>) -> Self {
        Self { folder: folder.into() }
    }
    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
    /// Makes the folder if it is not there, sees that it can be written, and removes what earlier runs left half-done.
    ///
    /// # Errors
    /// What prevents it.
    pub fn prepare(&self) -> io::Result<()> {
        fs::create_dir_all(&self.folder)?;
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            let name = entry.file_name();
            let ours = name
                .to_string_lossy()
                .strip_prefix('.')
                .is_some_and(|name| name.starts_with(PREFIX) && (name.ends_with(PARTIAL) || name.ends_with(REMOVED)));
            if ours {
                fs::remove_dir_all(entry.path())?;
            }
        }
        let probe = self.partial(0);
        fs::create_dir(&probe)?;
        fs::remove_dir(&probe)
    }
    /// All that have their name, newest first, with their iterations; none if there is no such folder.
    ///
    /// # Errors
    /// What prevents looking.
    pub fn list(&self) -> io::Result<Vec<(u64, PathBuf)>> {
        let entries = match fs::read_dir(&self.folder) {
            Ok(entries) => entries,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(error),
        };
        let mut all = Vec::new();
        for entry in entries {
            let entry = entry?;
            let iterations = entry.file_name().to_string_lossy().strip_prefix(PREFIX).and_then(|n| n.parse().ok());
            all.extend(iterations.map(|iterations: u64| (iterations, entry.path())));
        }
        all.sort_unstable_by(|a, b| b.cmp(a));
        Ok(all)
    }
    /// The newest one from which a training of `model` over `data` can go on; all bytes of it are read and held against its
    /// checksums.
    ///
    /// # Errors
    /// What prevents looking.
    pub fn newest(&self, model: &Model, data: &Dataset) -> io::Result<Search> {
        let mut search = Search::default();
        for (_, path) in self.list()? {
            match check(&path, model, data) {
                Ok(manifest) => {
                    search.found = Some(Found { path, manifest });
                    break;
                }
                Err(why) => search.refused.push(Refused { path, why }),
            }
        }
        Ok(search)
    }
    /// Where the one after so many iterations is, or would be.
    #[must_use]
    pub fn path(&self, iterations: u64) -> PathBuf {
        self.folder.join(format!("{PREFIX}{iterations:08}"))
    }
    fn partial(&self, iterations: u64) -> PathBuf {
        self.folder.join(format!(".{PREFIX}{iterations:08}{PARTIAL}"))
    }
    /// Begins a checkpoint: gives the hidden folder that its files go to.
    ///
    /// # Errors
    /// What prevents it.
    pub(crate) fn begin(&self, iterations: u64) -> io::Result<PathBuf> {
        let partial = self.partial(iterations);
        self.abandon(&partial)?;
        fs::create_dir_all(&partial)?;
        Ok(partial)
    }
    /// Removes what was begun.
    ///
    /// # Errors
    /// What prevents it.
    pub(crate) fn abandon(&self, partial: &Path) -> io::Result<()> {
        match fs::remove_dir_all(partial) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
    /// Ends a checkpoint whose files are all written: writes what it is of, gives it its name, and removes all but the newest
    /// `keep`.
    ///
    /// # Errors
    /// What prevents it; what was there before is still there.
    pub(crate) fn publish(&self, partial: &Path, manifest: Manifest, keep: usize) -> io::Result<()> {
        for shard in &manifest.shards {
            let seen = fs::metadata(partial.join(&shard.name)).map(|file| file.len());
            if seen.as_ref().ok() != Some(&shard.bytes) {
                let what = format!("{} was written, and is not there: do all ranks see this folder?", shard.name);
                return Err(io::Error::other(what));
            }
        }
        let manifest = manifest.sealed();
        let mut file = File::create(partial.join(MANIFEST))?;
        file.write_all(manifest.text().as_bytes())?;
        file.sync_all()?;
        File::open(partial)?.sync_all()?;
        let path = self.path(manifest.iterations);
        if path.exists() {
            // Of an earlier try from before it, and of the same state unless it is torn.
            self.remove(&path)?;
        }
        fs::rename(partial, &path)?;
        File::open(&self.folder)?.sync_all()?;
        // What is newer is of a try that was given up; it does not count among those that stay.
        let older = self.list()?.into_iter().filter(|(iterations, _)| *iterations <= manifest.iterations);
        older.skip(keep.max(1)).try_for_each(|(_, path)| self.remove(&path))
    }
    /// Takes the name away first, so that nothing half-removed is ever looked at.
    fn remove(&self, path: &Path) -> io::Result<()> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let hidden = self.folder.join(format!(".{name}{REMOVED}"));
        self.abandon(&hidden)?;
        fs::rename(path, &hidden)?;
        fs::remove_dir_all(&hidden)
    }
}

impl Found {
    /// Looks at one checkpoint.
    ///
    /// # Errors
    /// Why it cannot be used.
    pub fn at(path: &Path, model: &Model, data: &Dataset) -> Result<Self, Refused> {
        match check(path, model, data) {
            Ok(manifest) => Ok(Self { path: path.to_owned(), manifest }),
            Err(why) => Err(Refused { path: path.to_owned(), why }),
        }
    }
    /// Whether a folder is one checkpoint, not a folder of several.
    #[must_use]
    pub fn is_one(path: &Path) -> bool {
        path.join(MANIFEST).is_file()
    }
}

/// Reads all of a checkpoint and gives what it is of, or why it cannot be used.
fn check(path: &Path, model: &Model, data: &Dataset) -> Result<Manifest, String> {
    let text = fs::read_to_string(path.join(MANIFEST)).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => format!("it has no {MANIFEST}"),
        _ => format!("{MANIFEST} cannot be read: {error}"),
    })?;
    let manifest = Manifest::parse(&text)?;
    if let Some(problem) = manifest.problem(model, data) {
        return Err(problem);
    }
    let shapes = tensors(model);
    let mut counts: BTreeMap<(String, Kept), usize> = BTreeMap::new();
    for shard in &manifest.shards {
        let file = path.join(&shard.name);
        let plain = Path::new(&shard.name).file_name().is_some_and(|name| name == shard.name.as_str());
        if !plain {
            return Err(format!("{:?} is not the name of a file", shard.name));
        }
        let (bytes, crc32) = measure(&file).map_err(|error| match error.kind() {
            io::ErrorKind::NotFound => format!("{} is missing", shard.name),
            _ => format!("{} cannot be read: {error}", shard.name),
        })?;
        if bytes != shard.bytes {
            return Err(format!("{} has {bytes} bytes of {}", shard.name, shard.bytes));
        }
        if crc32 != shard.crc32 {
            return Err(format!("{} was changed after it was written: its checksum is another", shard.name));
        }
        let opened = Opened::open(&file).map_err(|why| format!("{} is no shard: {why}", shard.name))?;
        for (place, elements) in opened.places(&shapes).map_err(|why| format!("{}: {why}", shard.name))? {
            *counts.entry((place.tensor.clone(), place.kept)).or_default() += elements;
        }
    }
    for (name, shape) in &shapes {
        for kept in Kept::ALL {
            let there = counts.get(&(name.clone(), kept)).copied().unwrap_or(0);
            let whole: usize = shape.iter().product();
            if there != whole {
                return Err(format!("it has {there} of {whole} elements of {}{name}", kept.prefix()));
            }
        }
    }
    Ok(manifest)
}

/// Reads the tensors that are wanted of the files of a checkpoint that was looked at before.
///
/// # Errors
/// What prevents it.
pub(crate) fn load(
    folder: &Path,
    files: &[&str],
    model: &Model,
    wanted: impl Fn(&str) -> bool,
) -> Result<Snapshot, String> {
    let shapes = tensors(model);
    let mut snapshot = Snapshot::default();
    for file in files {
        let path = folder.join(file);
        let read = Opened::open(&path).and_then(|mut opened| {
            opened.places(&shapes)?;
            opened.read(&wanted, |kept, part| snapshot.put(kept, part))
        });
        read.map_err(|why| format!("{}: {why}", path.display()))?;
    }
    Ok(snapshot)
}
