//! Files that appear whole or not at all.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use tempfile::NamedTempFile;

use crate::Error;

/// A folder of results. Files are staged beside their final names and appear together at [`Output::commit`];
/// dropping the output instead leaves what was there before.
#[derive(Debug)]
pub struct Output {
    folder: PathBuf,
    staged: Vec<(PathBuf, NamedTempFile)>,
}

impl Output {
    /// A folder to write to, made if it is not there. That it can be written is tried now, before any work.
    ///
    /// # Errors
    /// [`Error::Files`] with what prevents it.
    pub fn open(folder: &Path) -> Result<Self, Error> {
        std::fs::create_dir_all(folder)
            .map_err(|e| Error::files(folder, format!("cannot make the output folder: {e}")))?;
        // The file is gone as soon as it is dropped.
        NamedTempFile::new_in(folder)
            .map_err(|e| Error::files(folder, format!("cannot write to the output folder: {e}")))?;
        Ok(Self { folder: folder.to_owned(), staged: Vec::new() })
    }
    /// The folder.
    #[must_use]
    pub fn folder(&self) -> &Path {
        &self.folder
    }
    /// Stages a file of the folder; parts of `name` before a slash are folders of their own.
    ///
    /// # Errors
    /// [`Error::Files`] with what prevents it.
    pub fn stage(&mut self, name: &str, content: &[u8]) -> Result<(), Error> {
        let path = self.folder.join(name);
        self.staged.push((path.clone(), staged(&path, content)?));
        Ok(())
    }
    /// Gives every staged file its name, and returns the names in the order of staging. If one cannot have its name, those
    /// before it are undone: the folder holds what it held. What ends the process in between may leave some files new and
    /// others as they were, each whole, and hidden `.tmp` files beside them.
    ///
    /// # Errors
    /// [`Error::Files`] with what prevents it.
    pub fn commit(self) -> Result<Vec<PathBuf>, Error> {
        let kept: Vec<Option<Kept>> = self.staged.iter().map(|(path, _)| keep(path)).collect::<Result<_, Error>>()?;
        name(self.staged, kept)
    }
}

/// Gives staged files their names, or undoes it.
fn name(staged: Vec<(PathBuf, NamedTempFile)>, kept: Vec<Option<Kept>>) -> Result<Vec<PathBuf>, Error> {
    let mut written = Vec::with_capacity(staged.len());
    for (path, file) in staged {
        if let Err(error) = file.persist(&path) {
            undo(written, kept);
            return Err(Error::files(&path, format!("cannot give the file its name: {}", error.error)));
        }
        written.push(path);
    }
    Ok(written)
}

/// Another name of a file that is about to be replaced; gone when dropped.
type Kept = tempfile::TempPath;

/// Keeps what is at a path, if anything is.
fn keep(path: &Path) -> Result<Option<Kept>, Error> {
    if std::fs::symlink_metadata(path).is_err() {
        return Ok(None);
    }
    let link = |name: &Path| std::fs::hard_link(path, name).or_else(|_| std::fs::copy(path, name).map(drop));
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let kept = tempfile::Builder::new().prefix(".").suffix(".tmp").make_in(folder, link);
    let kept = kept.map_err(|e| Error::files(path, format!("cannot be replaced by a file: {e}")))?;
    Ok(Some(kept.into_temp_path()))
}

/// Gives what was kept its names back, and takes away what was new. What cannot be undone stays: each file is whole.
fn undo(written: Vec<PathBuf>, kept: Vec<Option<Kept>>) {
    for (path, kept) in written.into_iter().zip(kept).rev() {
        match kept {
            Some(kept) => drop(kept.persist(&path)),
            None => drop(std::fs::remove_file(&path)),
        }
    }
}

fn staged(path: &Path, content: &[u8]) -> Result<NamedTempFile, Error> {
    let folder = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
    let fail = |what: &str, e: std::io::Error| Error::files(path, format!("cannot {what}: {e}"));
    std::fs::create_dir_all(folder).map_err(|e| fail("make its folder", e))?;
    let mut builder = tempfile::Builder::new();
    builder.prefix(".").suffix(".tmp");
    #[cfg(unix)]
    {
        // What the person's umask leaves of this; temporary files are otherwise theirs alone.
        use std::os::unix::fs::PermissionsExt as _;
        builder.permissions(std::fs::Permissions::from_mode(0o666));
    }
    let mut file = builder.tempfile_in(folder).map_err(|e| fail("write beside it", e))?;
    file.write_all(content).and_then(|()| file.flush()).map_err(|e| fail("write it", e))?;
    Ok(file)
}

/// Writes one file so that it appears whole or not at all.
///
/// # Errors
/// [`Error::Files`] with what prevents it.
pub fn write(path: &Path, content: &[u8]) -> Result<(), Error> {
    let file = staged(path, content)?;
    file.persist(path).map_err(|e| Error::files(path, format!("cannot give the file its name: {}", e.error)))?;
    Ok(())
}

/// Tries whether a file could be written, before the work whose result it shall hold.
///
/// # Errors
/// [`Error::Files`] with what prevents it.
pub fn probe(path: &Path) -> Result<(), Error> {
    if path.is_dir() {
        return Err(Error::files(path, "is a folder, and a file is to be written there"));
    }
    staged(path, b"").map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(folder: &Path) -> Vec<String> {
        let mut names: Vec<String> = std::fs::read_dir(folder)
            .expect("a folder")
            .map(|entry| entry.expect("an entry").file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn files_appear_together_or_not_at_all() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("b"), "old").expect("a file");
        let mut output = Output::open(folder.path()).expect("a folder");
        output.stage("a", b"1").expect("staged");
        output.stage("b", b"2").expect("staged");
        drop(output);
        assert_eq!(files(folder.path()), ["b"]);
        assert_eq!(std::fs::read(folder.path().join("b")).expect("b"), b"old");
        let mut output = Output::open(folder.path()).expect("a folder");
        output.stage("a", b"1").expect("staged");
        output.stage("b", b"2").expect("staged");
        assert_eq!(output.commit().expect("committed").len(), 2);
        assert_eq!(files(folder.path()), ["a", "b"]);
        assert_eq!(std::fs::read(folder.path().join("b")).expect("b"), b"2");
    }

    /// The last name is taken by a folder: all before it are as they were, and nothing hidden stays behind.
    #[test]
    fn a_name_that_cannot_be_given_undoes_the_others() {
        let folder = tempfile::tempdir().expect("a folder");
        std::fs::write(folder.path().join("b"), "old").expect("a file");
        let output = |last: &str| {
            let mut output = Output::open(folder.path()).expect("a folder");
            for name in ["a", "b", "inside/c", last] {
                output.stage(name, b"new").expect("staged");
            }
            output
        };
        for when in ["before", "in between"] {
            let output = output("taken");
            let taken = folder.path().join("taken");
            std::fs::create_dir(&taken).expect("a folder");
            let result = if when == "before" { output.commit() } else { late(output, &taken) };
            let error = result.expect_err("a folder").to_string();
            assert!(error.contains("taken") && error.contains("cannot"), "{error}");
            std::fs::remove_dir(&taken).expect("still a folder, and empty");
            assert_eq!(files(folder.path()), ["b", "inside"], "{when}");
            assert_eq!(files(&folder.path().join("inside")), Vec::<String>::new(), "{when}");
            assert_eq!(std::fs::read(folder.path().join("b")).expect("b"), b"old", "{when}");
        }
        assert_eq!(output("d").commit().expect("committed").len(), 4);
        assert_eq!(files(folder.path()), ["a", "b", "d", "inside"]);
    }

    /// Commits while the folder appears only after what is there was kept.
    fn late(output: Output, taken: &Path) -> Result<Vec<PathBuf>, Error> {
        std::fs::remove_dir(taken).expect("made before");
        let kept: Vec<Option<Kept>> = output.staged.iter().map(|(path, _)| keep(path).expect("kept")).collect();
        std::fs::create_dir(taken).expect("a folder");
        name(output.staged, kept)
    }

    #[test]
    fn a_folder_that_is_a_file_is_an_error_before_work() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("f");
        std::fs::write(&path, "").expect("a file");
        let error = Output::open(&path).expect_err("not a folder").to_string();
        assert!(error.contains("cannot make the output folder"), "{error}");
        let error = Output::open(&path.join("inside")).expect_err("not a folder").to_string();
        assert!(error.contains("cannot make the output folder"), "{error}");
    }
}
