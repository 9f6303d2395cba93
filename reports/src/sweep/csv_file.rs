//! A sweep as CSV, out and in.

use std::io::{BufRead, Error, ErrorKind, Read, Result, Write};

use super::{Cell, ColumnKind, DONE, INFEASIBLE, Outcome, SweepPoint, SweepSchema, SweepWriter};
use crate::csv_tables::into_io;

/// Writes points as CSV, one line each; numbers in the shortest form that reads back to the same value.
pub struct CsvSweep<W: Write> {
    schema: SweepSchema,
    csv: csv::Writer<W>,
    record: csv::StringRecord,
}

impl<W: Write> std::fmt::Debug for CsvSweep<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsvSweep").field("schema", &self.schema).finish_non_exhaustive()
    }
}

impl<W: Write> CsvSweep<W> {
    /// A new file: writes the headings.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn new(schema: SweepSchema, out: W) -> Result<Self> {
        let mut writer = Self::append(schema, out);
        writer.csv.write_record(writer.schema.headings()).map_err(into_io)?;
        Ok(writer)
    }

    /// Goes on with a file that has its headings.
    #[must_use]
    pub fn append(schema: SweepSchema, out: W) -> Self {
        let csv = csv::WriterBuilder::new().flexible(false).from_writer(out);
        Self { schema, csv, record: csv::StringRecord::new() }
    }

    /// Hands what was pushed to the underlying writer, so that it survives an end of the process.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn flush(&mut self) -> Result<()> {
        self.csv.flush()
    }
}

fn on_one_line(text: &str) -> std::borrow::Cow<'_, str> {
    if text.contains(['\n', '\r']) { text.replace(['\n', '\r'], " ").into() } else { text.into() }
}

impl<W: Write> SweepWriter for CsvSweep<W> {
    fn push(&mut self, point: &SweepPoint) -> Result<()> {
        self.record.clear();
        self.record.push_field(&point.index.to_string());
        for cell in self.schema.cells(point) {
            match cell {
                Cell::Empty => self.record.push_field(""),
                // The shortest text that reads back to the same value.
                Cell::Number(value) => self.record.push_field(&value.to_string()),
                Cell::Integer(value) => self.record.push_field(&value.to_string()),
                Cell::Text(text) => self.record.push_field(&on_one_line(text)),
                Cell::Flag(flag) => self.record.push_field(if *flag { "true" } else { "false" }),
            }
        }
        let (status, reason) = SweepSchema::status(point);
        self.record.push_field(status);
        self.record.push_field(&on_one_line(reason));
        self.csv.write_record(&self.record).map_err(into_io)
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        self.csv.flush()
    }
}

/// Passes lines on that end, and holds an unfinished last one back.
struct WholeLines<R> {
    from: R,
    line: Vec<u8>,
    given: usize,
    whole: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: BufRead> Read for WholeLines<R> {
    fn read(&mut self, out: &mut [u8]) -> Result<usize> {
        if self.given == self.line.len() {
            self.line.clear();
            self.given = 0;
            self.from.read_until(b'\n', &mut self.line)?;
            if self.line.last() == Some(&b'\n') {
                self.whole.set(self.whole.get() + self.line.len() as u64);
            } else {
                self.line.clear();
            }
        }
        let length = out.len().min(self.line.len() - self.given);
        out[..length].copy_from_slice(&self.line[self.given..self.given + length]);
        self.given += length;
        Ok(length)
    }
}

/// Reads points that [`CsvSweep`] wrote, one at a time; an unfinished last line is left out.
pub struct CsvSweepReader<R: BufRead> {
    schema: SweepSchema,
    csv: csv::Reader<WholeLines<R>>,
    record: csv::StringRecord,
    whole: std::rc::Rc<std::cell::Cell<u64>>,
}

impl<R: BufRead> std::fmt::Debug for CsvSweepReader<R> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("CsvSweepReader").field("schema", &self.schema).finish_non_exhaustive()
    }
}

fn invalid(message: String) -> Error {
    Error::new(ErrorKind::InvalidData, message)
}

impl<R: BufRead> CsvSweepReader<R> {
    /// A reader of a file of a schema.
    ///
    /// # Errors
    /// What the reader answers; invalid data if the headings are of another sweep.
    pub fn new(schema: SweepSchema, from: R) -> Result<Self> {
        let whole = std::rc::Rc::new(std::cell::Cell::new(0));
        let lines = WholeLines { from, line: Vec::new(), given: 0, whole: whole.clone() };
        let mut csv = csv::Reader::from_reader(lines);
        let headings = csv.headers().map_err(into_io)?;
        if headings.iter().ne(schema.headings()) {
            let (found, expected) = (headings.iter().collect::<Vec<_>>(), schema.headings());
            return Err(invalid(format!("columns {} where {} are expected", found.join(","), expected.join(","))));
        }
        Ok(Self { schema, csv, record: csv::StringRecord::new(), whole })
    }

    /// Bytes of the file that are whole lines; once the last point was read, what the file may be cut to.
    #[must_use]
    pub fn whole_bytes(&self) -> u64 {
        self.whole.get()
    }

    fn point(&self) -> std::result::Result<SweepPoint, String> {
        let fields: Vec<&str> = self.record.iter().collect();
        let columns: Vec<_> = self.schema.keys().iter().chain(self.schema.results()).collect();
        let index = fields[0].parse().map_err(|_| format!("{} is no number of a point", fields[0]))?;
        let mut cells = Vec::with_capacity(columns.len());
        for (field, column) in fields[1..].iter().zip(&columns) {
            let cell = read_cell(field, column.kind);
            cells.push(cell.ok_or_else(|| format!("{field} in {}, which holds {:?}", column.name, column.kind))?);
        }
        let results = cells.split_off(self.schema.keys().len());
        let outcome = match fields[columns.len() + 1] {
            DONE => Outcome::Done(results),
            INFEASIBLE => Outcome::Infeasible(fields[columns.len() + 2].to_owned()),
            other => return Err(format!("{other} is no status")),
        };
        Ok(SweepPoint { index, keys: cells, outcome })
    }
}

fn read_cell(field: &str, kind: ColumnKind) -> Option<Cell> {
    if field.is_empty() {
        return Some(Cell::Empty);
    }
    Some(match kind {
        ColumnKind::Number => Cell::Number(field.parse().ok()?),
        ColumnKind::Integer => Cell::Integer(field.parse().ok()?),
        ColumnKind::Text => Cell::Text(field.to_owned()),
        ColumnKind::Flag => Cell::Flag(field.parse().ok()?),
    })
}

impl<R: BufRead> Iterator for CsvSweepReader<R> {
    type Item = Result<SweepPoint>;

    fn next(&mut self) -> Option<Self::Item> {
        match self.csv.read_record(&mut self.record) {
            Ok(false) => None,
            Ok(true) => Some(self.point().map_err(|message| {
                let line = self.record.position().map_or(0, csv::Position::line);
                invalid(format!("line {line}: {message}"))
            })),
            Err(error) => Some(Err(into_io(error))),
        }
    }
}
