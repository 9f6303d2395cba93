//! A rank's thread that writes while the rank goes on.

use std::path::{Path, PathBuf};
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread::JoinHandle;

use ir::Rank;

use super::{Shard, Written};
use crate::runtime::Kept;
use crate::state::Part;

/// What is to be written, where, and who wants to know what became of it.
type Errand = (Shard, PathBuf, Box<dyn FnOnce(Written) + Send>);

/// Writes one copy at a time on a thread of its own. Dropping it waits for the one under way.
#[derive(Debug)]
pub(crate) struct Saver {
    errands: Option<Sender<Errand>>,
    back: Receiver<Shard>,
    thread: Option<JoinHandle<()>>,
}

impl Saver {
    /// Starts the thread.
    ///
    /// # Errors
    /// If there is none to be had.
    fn start(name: String) -> std::io::Result<Self> {
        let (errands, asked) = mpsc::channel::<Errand>();
        let (give_back, back) = mpsc::channel();
        give_back.send(Shard::default()).expect("the receiver is here");
        let body = move || {
            for (shard, path, done) in asked {
                let written = shard.write(&path);
                done(written.map_err(|error| format!("cannot write {}: {error}", path.display())));
                if give_back.send(shard).is_err() {
                    return;
                }
            }
        };
        let thread = std::thread::Builder::new().name(name).spawn(body)?;
        Ok(Self { errands: Some(errands), back, thread: Some(thread) })
    }
    /// Copies what a rank writes, as `show` shows it, and lets it be written to its file in a folder. The thread starts with the
    /// first call.
    pub(crate) fn save_with(
        saver: &mut Option<Self>,
        rank: Rank,
        folder: &Path,
        show: impl FnOnce(&mut dyn FnMut(Kept, &Part<'_>)),
        done: impl FnOnce(Written) + Send + 'static,
    ) {
        if saver.is_none() {
            match Self::start(format!("checkpoints of rank {rank}")) {
                Ok(started) => *saver = Some(started),
                Err(error) => return done(Err(format!("has no thread to write with: {error}"))),
            }
        }
        let saver = saver.as_mut().expect("it was started");
        let path = folder.join(format!("rank-{}.safetensors", rank.raw()));
        saver.save(path, |shard| show(&mut |kept, part| shard.put(kept, part)), done);
    }
    /// Copies what `fill` puts into a shard, and lets it be written to a file; `done` is told, on the thread, what became of it.
    /// Waits first until what was written before is done.
    fn save(&mut self, path: PathBuf, fill: impl FnOnce(&mut Shard), done: impl FnOnce(Written) + Send + 'static) {
        let mut shard = self.back.recv().expect("the thread gives back every shard");
        shard.clear();
        fill(&mut shard);
        let errands = self.errands.as_ref().expect("it is there until this is dropped");
        errands.send((shard, path, Box::new(done))).expect("the thread takes errands until this is dropped");
    }
}

impl Drop for Saver {
    fn drop(&mut self) {
        self.errands = None;
        if let Some(thread) = self.thread.take() {
            // A panic there has said so in what it was to write.
            let _ = thread.join();
        }
    }
}
