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
    /// Gives every staged file its name, and returns the names in the order of staging.
    ///
    /// # Errors
    /// [`Error::Files`] with what prevents it.
    pub fn commit(self) -> Result<Vec<PathBuf>, Error> {
        let mut written = Vec::with_capacity(self.staged.len());
        for (path, file) in self.staged {
            file.persist(&path)
                .map_err(|e| Error::files(&path, format!("cannot give the file its name: {}", e.error)))?;
            written.push(path);
        }
        Ok(written)
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
