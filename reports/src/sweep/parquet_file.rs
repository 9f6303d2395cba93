//! A sweep as Parquet: one row group for every [`GROUP`] points, columns compressed by Snappy.
//!
//! Only the format's column writers are used, not Arrow: a sweep is flat, and its rows come one at a time.

use std::io::{Error, Result, Write};
use std::sync::Arc;

use parquet::basic::{Compression, LogicalType, Repetition, Type as Physical};
use parquet::data_type::{BoolType, ByteArray, ByteArrayType, DataType, DoubleType, Int64Type};
use parquet::errors::ParquetError;
use parquet::file::properties::WriterProperties;
use parquet::file::writer::{SerializedFileWriter, SerializedRowGroupWriter};
use parquet::schema::types::Type;

use super::{Cell, ColumnKind, OWN, SweepPoint, SweepSchema, SweepWriter};

/// Points of a row group: what is held in memory.
const GROUP: usize = 16_384;

/// The values of one column in the group that is being gathered: definition levels, and the values that are there.
#[derive(Debug)]
enum Column {
    Number(Vec<i16>, Vec<f64>),
    Integer(Vec<i16>, Vec<i64>),
    Text(Vec<i16>, Vec<ByteArray>),
    Flag(Vec<i16>, Vec<bool>),
}

impl Column {
    fn new(kind: ColumnKind) -> Self {
        match kind {
            ColumnKind::Number => Self::Number(Vec::new(), Vec::new()),
            ColumnKind::Integer => Self::Integer(Vec::new(), Vec::new()),
            ColumnKind::Text => Self::Text(Vec::new(), Vec::new()),
            ColumnKind::Flag => Self::Flag(Vec::new(), Vec::new()),
        }
    }

    fn push(&mut self, cell: &Cell) {
        let present = i16::from(*cell != Cell::Empty);
        match (self, cell) {
            (
                Self::Number(levels, _) | Self::Integer(levels, _) | Self::Text(levels, _) | Self::Flag(levels, _),
                Cell::Empty,
            ) => levels.push(present),
            (Self::Number(levels, values), Cell::Number(value)) => {
                levels.push(present);
                values.push(*value);
            }
            (Self::Number(levels, values), Cell::Integer(value)) => {
                levels.push(present);
                values.push(*value as f64);
            }
            (Self::Integer(levels, values), Cell::Integer(value)) => {
                levels.push(present);
                values.push(*value);
            }
            (Self::Text(levels, values), Cell::Text(text)) => {
                levels.push(present);
                values.push(ByteArray::from(text.as_str()));
            }
            (Self::Flag(levels, values), Cell::Flag(flag)) => {
                levels.push(present);
                values.push(*flag);
            }
            (column, cell) => unreachable!("the schema let {cell:?} into {column:?}"),
        }
    }

    fn write<W: Write + Send>(&mut self, group: &mut SerializedRowGroupWriter<'_, W>) -> Result<()> {
        match self {
            Self::Number(levels, values) => write_column::<DoubleType, W>(group, levels, values),
            Self::Integer(levels, values) => write_column::<Int64Type, W>(group, levels, values),
            Self::Text(levels, values) => write_column::<ByteArrayType, W>(group, levels, values),
            Self::Flag(levels, values) => write_column::<BoolType, W>(group, levels, values),
        }
    }
}

fn into_io(error: ParquetError) -> Error {
    match error {
        ParquetError::External(inner) => match inner.downcast::<Error>() {
            Ok(error) => *error,
            Err(other) => Error::other(other),
        },
        other => Error::other(other),
    }
}

fn write_column<T: DataType, W: Write + Send>(
    group: &mut SerializedRowGroupWriter<'_, W>,
    levels: &mut Vec<i16>,
    values: &mut Vec<T::T>,
) -> Result<()> {
    let mut column = group.next_column().map_err(into_io)?.expect("as many columns as the schema has");
    column.typed::<T>().write_batch(values, Some(levels), None).map_err(into_io)?;
    column.close().map_err(into_io)?;
    levels.clear();
    values.clear();
    Ok(())
}

/// Writes points as Parquet; the footer is written by `finish`, without which the file cannot be read.
pub struct ParquetSweep<W: Write + Send> {
    schema: SweepSchema,
    columns: Vec<Column>,
    gathered: usize,
    file: SerializedFileWriter<W>,
}

impl<W: Write + Send> std::fmt::Debug for ParquetSweep<W> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ParquetSweep").field("schema", &self.schema).finish_non_exhaustive()
    }
}

fn field(name: &str, kind: ColumnKind) -> Arc<Type> {
    let (physical, logical) = match kind {
        ColumnKind::Number => (Physical::DOUBLE, None),
        ColumnKind::Integer => (Physical::INT64, None),
        ColumnKind::Text => (Physical::BYTE_ARRAY, Some(LogicalType::String)),
        ColumnKind::Flag => (Physical::BOOLEAN, None),
    };
    let field = Type::primitive_type_builder(name, physical).with_repetition(Repetition::OPTIONAL);
    Arc::new(field.with_logical_type(logical).build().expect("a type and its logical type that agree"))
}

impl<W: Write + Send> ParquetSweep<W> {
    /// A new file.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn new(schema: SweepSchema, out: W) -> Result<Self> {
        let between = schema.keys().iter().chain(schema.results()).map(|column| (column.name.as_str(), column.kind));
        let own = [(OWN[1], ColumnKind::Text), (OWN[2], ColumnKind::Text)];
        let all: Vec<(&str, ColumnKind)> =
            std::iter::once((OWN[0], ColumnKind::Integer)).chain(between).chain(own).collect();
        let fields = all.iter().map(|(name, kind)| field(name, *kind)).collect();
        let root = Type::group_type_builder("sweep").with_fields(fields).build().map_err(into_io)?;
        let properties = WriterProperties::builder().set_compression(Compression::SNAPPY).build();
        let columns = all.iter().map(|(_, kind)| Column::new(*kind)).collect();
        let file = SerializedFileWriter::new(out, Arc::new(root), Arc::new(properties)).map_err(into_io)?;
        Ok(Self { schema, columns, gathered: 0, file })
    }

    fn write_group(&mut self) -> Result<()> {
        let mut group = self.file.next_row_group().map_err(into_io)?;
        for column in &mut self.columns {
            column.write(&mut group)?;
        }
        group.close().map_err(into_io)?;
        self.gathered = 0;
        Ok(())
    }
}

impl<W: Write + Send> SweepWriter for ParquetSweep<W> {
    fn push(&mut self, point: &SweepPoint) -> Result<()> {
        let index = i64::try_from(point.index).map_err(Error::other)?;
        let (status, reason) = SweepSchema::status(point);
        let reason = if reason.is_empty() { Cell::Empty } else { Cell::Text(reason.to_owned()) };
        let (number, status) = (Cell::Integer(index), Cell::Text(status.to_owned()));
        let mut cells = vec![&number];
        cells.extend(self.schema.cells(point));
        cells.extend([&status, &reason]);
        for (column, cell) in self.columns.iter_mut().zip(cells) {
            column.push(cell);
        }
        self.gathered += 1;
        if self.gathered == GROUP { self.write_group() } else { Ok(()) }
    }

    fn finish(mut self: Box<Self>) -> Result<()> {
        if self.gathered > 0 {
            self.write_group()?;
        }
        self.file.close().map_err(into_io)?;
        Ok(())
    }
}
