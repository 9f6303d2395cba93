//! The project's own tables of measured rows, made from published ones.
//!
//! `catalog/measured/` holds every row that can be read, with only the columns that are used and its source. A table
//! becomes a file of the same name; figures are carried over as they are written.

use std::path::{Path, PathBuf};

use formats::measured_runs;

use crate::Error;
use crate::error::InputError;
use crate::source::Sources;

/// A table that was made.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ImportedTable {
    /// Where it was written.
    pub path: PathBuf,
    /// Rows that it holds.
    pub rows: usize,
    /// Rows of the published table that were refused: their names and why.
    pub refused: Vec<(String, String)>,
}

/// Makes `to/NAME.csv` of every `from/NAME.csv`, in the order of their names. A table of which no row can be used makes no
/// file. Files are written only if every table can be read.
///
/// # Errors
/// A folder or file that cannot be read or written; every fault of tables that are none.
pub fn import(from: &Path, to: &Path) -> Result<Vec<ImportedTable>, Error> {
    let entries =
        std::fs::read_dir(from).map_err(|error| Error::files(from, format!("reading the folder: {error}")))?;
    let mut paths = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| Error::files(from, format!("reading the folder: {error}")))?.path();
        if path.extension().is_some_and(|extension| extension == "csv") {
            paths.push(path);
        }
    }
    paths.sort();
    let (mut made, mut problems, mut sources) = (Vec::new(), Vec::new(), Sources::default());
    for path in paths {
        let text = std::fs::read_to_string(&path).map_err(|error| Error::files(&path, format!("reading: {error}")))?;
        let name = path.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
        match one(&text, &name) {
            Ok((table, rows, refused)) => {
                made.push((table, ImportedTable { path: to.join(&name), rows, refused }));
            }
            Err(found) => {
                problems.extend(found);
                sources.add(name, text);
            }
        }
    }
    if !problems.is_empty() {
        return Err(Error::Input(InputError { problems, sources }));
    }
    std::fs::create_dir_all(to).map_err(|error| Error::files(to, format!("making the folder: {error}")))?;
    for (text, table) in made.iter().filter(|(_, table)| table.rows > 0) {
        whole_file(&table.path, text).map_err(|error| Error::files(&table.path, format!("writing: {error}")))?;
    }
    Ok(made.into_iter().map(|(_, table)| table).collect())
}

/// Writes a file that appears whole or not at all.
fn whole_file(path: &Path, text: &str) -> std::io::Result<()> {
    let part = path.with_extension("csv.part");
    std::fs::write(&part, text)?;
    std::fs::rename(&part, path)
}

/// A compacted table, how many rows it holds, and which were refused.
type Compacted = (String, usize, Vec<(String, String)>);

fn one(text: &str, name: &str) -> Result<Compacted, Vec<ir::Problem>> {
    let compacted = measured_runs::compact(text, name)?;
    let rows = measured_runs::read(text, name)?.rows;
    let refused = rows.iter().filter_map(|row| row.as_ref().err());
    let refused: Vec<_> = refused.map(|refusal| (refusal.row_id.clone(), refusal.to_string())).collect();
    Ok((compacted, rows.len() - refused.len(), refused))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tables of the catalog are what the published ones make, where those are here.
    #[test]
    fn the_catalog_holds_what_the_published_tables_make() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
        let (published, catalog) = (root.join("../shared/data/published"), root.join("catalog/measured"));
        if !published.is_dir() {
            crate::testing::skipped("../shared/data/published");
            return;
        }
        let update = std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1");
        let scratch = tempfile::tempdir().expect("a folder for the test");
        let to = if update { catalog.clone() } else { scratch.path().to_path_buf() };
        let tables = import(&published, &to).expect("published tables are tables");
        assert!(tables.iter().map(|table| table.rows).sum::<usize>() > 2000);
        for table in tables.iter().filter(|table| table.rows > 0) {
            let kept = catalog.join(table.path.file_name().expect("a file"));
            let (made, kept) = (std::fs::read(&table.path), std::fs::read(kept));
            assert!(made.ok() == kept.ok(), "{}: make it again with UPDATE_GOLDENS=1", table.path.display());
        }
    }

    #[test]
    fn the_catalog_is_small_and_every_row_has_its_source() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../catalog/measured");
        let (mut bytes, mut rows) = (0, 0);
        for entry in std::fs::read_dir(folder).expect("catalog/measured") {
            let path = entry.expect("an entry").path();
            if path.extension().is_none_or(|extension| extension != "csv") {
                continue;
            }
            let text = std::fs::read_to_string(&path).expect("a readable table");
            bytes += text.len();
            let name = path.display().to_string();
            for row in measured_runs::read(&text, &name).expect("a table").rows {
                let run = row.unwrap_or_else(|refusal| panic!("{name}: {refusal}"));
                assert!(!run.source.title.is_empty() && !run.source.reference.is_empty(), "{name}: {}", run.row_id);
                rows += 1;
            }
        }
        assert!(bytes < 1_000_000, "{bytes} bytes");
        assert!(rows > 2000, "{rows} rows");
    }

    #[test]
    fn a_folder_that_is_none_is_named() {
        let error = import(Path::new("no/such/folder"), Path::new("nowhere")).expect_err("no folder");
        assert!(error.to_string().contains("no/such/folder"), "{error}");
    }
}
