//! The folder of a sweep: what it is, the points so far, and what is made of them at the end.
//!
//! `sweep.toml` says what the sweep is; a folder that holds another one is refused. `sweep.csv` grows by whole lines, so
//! that a sweep that was stopped, by whatever, goes on after the last of them. The rest is made of that file.

use std::fs::{File, OpenOptions};
use std::io::{BufReader, BufWriter};
use std::path::{Path, PathBuf};

use reports::sweep::{CsvSweep, CsvSweepReader, ParquetSweep, SweepPoint, SweepReport, SweepSchema, SweepWriter as _};

use crate::{Error, output};

/// The folder, with the file that grows.
pub(super) struct Store {
    folder: PathBuf,
    schema: SweepSchema,
    csv: Box<CsvSweep<BufWriter<File>>>,
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("folder", &self.folder).finish_non_exhaustive()
    }
}

const DEFINITION: &str = "sweep.toml";
const POINTS: &str = "sweep.csv";

impl Store {
    /// Opens the folder and hands the points that are there to `report`, which knows their number afterwards.
    pub(super) fn open(
        folder: &Path,
        definition: &str,
        schema: SweepSchema,
        report: &mut SweepReport,
    ) -> Result<Self, Error> {
        // Makes the folder and tries whether it can be written.
        drop(output::Output::open(folder)?);
        let said = folder.join(DEFINITION);
        let points = folder.join(POINTS);
        let fail = |error: std::io::Error| Error::files(&points, error);
        let goes_on = match std::fs::read_to_string(&said) {
            Ok(known) if known != definition => {
                let problem = ir::Problem::new(folder.display().to_string(), "holds another sweep");
                return Err(Error::problem(problem.hint("give another --out, or remove the folder")));
            }
            Ok(_) => points.is_file(),
            Err(_) => false,
        };
        let csv = if goes_on {
            let whole = {
                let file = BufReader::new(File::open(&points).map_err(fail)?);
                let mut reader = CsvSweepReader::new(schema.clone(), file).map_err(fail)?;
                for point in reader.by_ref() {
                    report.push(&point.map_err(fail)?);
                }
                reader.whole_bytes()
            };
            let file = OpenOptions::new().append(true).open(&points).map_err(fail)?;
            file.set_len(whole).map_err(fail)?;
            CsvSweep::append(schema.clone(), BufWriter::new(file))
        } else {
            output::write(&said, definition.as_bytes())?;
            CsvSweep::new(schema.clone(), BufWriter::new(File::create(&points).map_err(fail)?)).map_err(fail)?
        };
        Ok(Self { folder: folder.to_owned(), schema, csv: Box::new(csv) })
    }

    /// Writes points so that they survive an end of the process.
    pub(super) fn push(&mut self, points: &[SweepPoint]) -> Result<(), Error> {
        let fail = |error| Error::files(&self.folder.join(POINTS), error);
        points.iter().try_for_each(|point| self.csv.push(point)).map_err(fail)?;
        self.csv.flush().map_err(fail)
    }

    /// Writes what is made of all points: Parquet and the page. Returns every file of the folder.
    pub(super) fn finish(self, report: &SweepReport) -> Result<Vec<PathBuf>, Error> {
        let Self { folder, schema, csv } = self;
        let points = folder.join(POINTS);
        csv.finish().map_err(|error| Error::files(&points, error))?;
        let mut files = vec![folder.join(DEFINITION), points.clone()];
        let parquet = folder.join("sweep.parquet");
        columns(&points, schema, &parquet).map_err(|error| Error::files(&parquet, error))?;
        files.push(parquet);
        let document = report.document();
        let page = folder.join("sweep.html");
        output::write(&page, document.html().as_bytes())?;
        files.push(page);
        let words = folder.join("sweep.md");
        output::write(&words, document.markdown().as_bytes())?;
        files.push(words);
        for (name, picture) in document.pictures() {
            output::write(&folder.join(&name), picture.as_bytes())?;
            files.push(folder.join(name));
        }
        Ok(files)
    }
}

/// The points as Parquet, through a temporary file that takes the name when it is whole.
fn columns(points: &Path, schema: SweepSchema, to: &Path) -> std::io::Result<()> {
    let reader = CsvSweepReader::new(schema.clone(), BufReader::new(File::open(points)?))?;
    let folder = to.parent().unwrap_or(Path::new("."));
    let file = tempfile::NamedTempFile::new_in(folder)?;
    let mut writer = Box::new(ParquetSweep::new(schema, BufWriter::new(file.reopen()?))?);
    for point in reader {
        writer.push(&point?)?;
    }
    writer.finish()?;
    file.persist(to).map_err(|error| error.error)?;
    Ok(())
}
