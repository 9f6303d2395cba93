//! The page over a sweep, gathered while its points pass by.

use std::collections::BTreeMap;

use ir::Problem;

use super::pictures::{Curves, Grid, MOST_CURVES, MOST_VALUES};
use super::{Outcome, SweepColumn, SweepPoint, SweepSchema};
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::show;
use crate::tables::Table;

/// Points that the page lists.
const BEST: usize = 20;
/// Reasons that are counted apart; points of further ones are counted together.
const MOST_REASONS: usize = 200;

/// Which points are good.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Objective {
    /// A result column.
    pub result: String,
    /// Whether less of it is better.
    pub lowest: bool,
}

/// A heat map over two keys: each cell shows the best value of the objective among its points.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct HeatMapChoice {
    /// The key from left to right.
    pub x: String,
    /// The key from bottom to top.
    pub y: String,
}

/// Curves of a result over a key of numbers above zero, both axes logarithmic, beside the ideal line: in proportion to
/// the key if more is better, inversely if less is.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ScalingChoice {
    /// The key from left to right, such as the number of devices.
    pub x: String,
    /// The result from bottom to top.
    pub result: String,
    /// Whether less of it is better: the best point at each place is shown.
    pub lowest: bool,
    /// A key each of whose values has a curve of its own.
    pub series: Option<String>,
}

/// What a page shows of a sweep. Memory depends on the keys' values that pictures show, not on the number of points.
#[derive(Clone, Debug)]
pub struct SweepReport {
    /// The page's title.
    pub title: String,
    /// A sentence or two under it; may be empty.
    pub description: String,
    /// What a reader must know before trusting a number.
    pub warnings: Vec<String>,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
    schema: SweepSchema,
    objective: (usize, bool),
    points: u64,
    done: u64,
    reasons: BTreeMap<String, u64>,
    further_reasons: u64,
    best: Vec<(f64, SweepPoint)>,
    grids: Vec<Grid>,
    curves: Vec<(usize, Curves)>,
}

impl SweepReport {
    /// A report of no points yet.
    ///
    /// # Errors
    /// If the objective or a picture names a column that the sweep does not have.
    pub fn new(
        schema: SweepSchema,
        objective: &Objective,
        heat_maps: &[HeatMapChoice],
        scalings: &[ScalingChoice],
    ) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut position = |columns: &[SweepColumn], name: &str, what: &str| {
            let found = SweepSchema::position(columns, name, what);
            found.map_err(|problem| problems.push(problem)).ok().map(|index| (index, columns[index].clone()))
        };
        let best = position(schema.results(), &objective.result, "result");
        let mut grids = Vec::new();
        for choice in heat_maps {
            let (x, y) = (position(schema.keys(), &choice.x, "key"), position(schema.keys(), &choice.y, "key"));
            if let (Some(x), Some(y), Some((_, value))) = (x, y, &best) {
                grids.push(Grid::new(x, y, value.clone(), objective.lowest));
            }
        }
        let mut curves = Vec::new();
        for choice in scalings {
            let x = position(schema.keys(), &choice.x, "key");
            let series = choice.series.as_ref().map(|series| position(schema.keys(), series, "key"));
            let value = position(schema.results(), &choice.result, "result");
            if let (Some(x), Some((index, value))) = (x, value) {
                curves.push((index, Curves::new(x, value, series.flatten(), choice.lowest)));
            }
        }
        let Some((result, _)) = best.filter(|_| problems.is_empty()) else { return Err(problems) };
        Ok(Self {
            title: String::new(),
            description: String::new(),
            warnings: Vec::new(),
            assumptions: Vec::new(),
            command: String::new(),
            schema,
            objective: (result, objective.lowest),
            points: 0,
            done: 0,
            reasons: BTreeMap::new(),
            further_reasons: 0,
            best: Vec::new(),
            grids,
            curves,
        })
    }

    /// Takes a point in.
    pub fn push(&mut self, point: &SweepPoint) {
        self.points += 1;
        match &point.outcome {
            Outcome::Done(_) => self.done += 1,
            Outcome::Infeasible(reason) => self.count_reason(reason),
        }
        let number = |index: usize| point.result(index).and_then(super::Cell::number);
        let value = number(self.objective.0);
        self.grids.iter_mut().for_each(|grid| grid.push(&point.keys, value));
        self.curves.iter_mut().for_each(|(index, curves)| curves.push(&point.keys, number(*index)));
        if let Some(value) = value.filter(|value| value.is_finite()) {
            self.keep_best(value, point);
        }
    }

    fn count_reason(&mut self, reason: &str) {
        if let Some(count) = self.reasons.get_mut(reason) {
            *count += 1;
        } else if self.reasons.len() < MOST_REASONS {
            self.reasons.insert(reason.to_owned(), 1);
        } else {
            self.further_reasons += 1;
        }
    }

    /// Keeps the best points in order: by value, then by number.
    fn keep_best(&mut self, value: f64, point: &SweepPoint) {
        let rank = if self.objective.1 { value } else { -value };
        let place = self
            .best
            .partition_point(|(known, other)| known.total_cmp(&rank).then(other.index.cmp(&point.index)).is_lt());
        if place < BEST {
            self.best.insert(place, (rank, point.clone()));
            self.best.truncate(BEST);
        }
    }

    /// Points so far.
    #[must_use]
    pub fn points(&self) -> u64 {
        self.points
    }

    fn best_table(&self) -> Table {
        let heading = |column: &SweepColumn| {
            let text = column.kind == super::ColumnKind::Text;
            format!("{}{}", if text { "" } else { ">" }, column.name)
        };
        let columns: Vec<String> = std::iter::once(">point".to_owned())
            .chain(self.schema.keys().iter().chain(self.schema.results()).map(heading))
            .collect();
        let mut table = Table::new("Best points", &columns.iter().map(String::as_str).collect::<Vec<_>>());
        for (_, point) in &self.best {
            let cells = self.schema.cells(point).into_iter();
            let columns = self.schema.keys().iter().chain(self.schema.results());
            let words = cells.zip(columns).map(|(cell, column)| cell.text(column.unit));
            table.row(std::iter::once(show::count(point.index)).chain(words).collect());
        }
        table
    }

    fn reason_table(&self) -> Table {
        let mut table = Table::new("Points that cannot be", &["reason", ">points"]);
        let mut reasons: Vec<(&String, &u64)> = self.reasons.iter().collect();
        reasons.sort_by_key(|(_, count)| std::cmp::Reverse(**count));
        for (reason, count) in reasons {
            table.row(vec![reason.clone(), show::count(*count)]);
        }
        if self.further_reasons > 0 {
            table.row(vec!["further reasons".to_owned(), show::count(self.further_reasons)]);
        }
        table
    }

    fn pictures(&self) -> Vec<Block> {
        let objective = &self.schema.results()[self.objective.0].name;
        let mut blocks = Vec::new();
        for (index, grid) in self.grids.iter().enumerate() {
            let heading = format!("{objective} over {} and {}", grid.x.1.name, grid.y.1.name);
            if let Some((scene, keys)) = grid.picture() {
                let note = "Each cell is the best of all points at its two values.";
                let picture = Picture::new(format!("heat-map-{}.svg", index + 1), heading, scene, keys);
                blocks.push(Block::Picture(picture.noted(note)));
            } else if grid.overflowed {
                blocks
                    .push(Block::Words(format!("{heading}: a key has more than {MOST_VALUES} values, so no picture.")));
            }
        }
        for (index, (column, curves)) in self.curves.iter().enumerate() {
            let heading = format!("{} over {}", self.schema.results()[*column].name, curves.x.1.name);
            if let Some((scene, keys)) = curves.picture() {
                let mut picture = Picture::new(format!("scaling-{}.svg", index + 1), heading, scene, keys);
                if curves.overflowed {
                    picture = picture.noted(format!("The first {MOST_CURVES} curves; there are more."));
                }
                blocks.push(Block::Picture(picture));
            }
        }
        blocks
    }

    /// The page.
    #[must_use]
    pub fn document(&self) -> Document {
        let objective = &self.schema.results()[self.objective.0];
        let mut figures = vec![
            Figure::new("points", show::count(self.points), ""),
            Figure::new("feasible", show::count(self.done), ""),
        ];
        if let Some((_, point)) = self.best.first() {
            let best = point.result(self.objective.0).map_or_else(String::new, |cell| cell.text(objective.unit));
            figures.push(Figure::new(format!("best {}", objective.name), best, format!("point {}", point.index)));
        }
        let mut sections = Vec::new();
        let pictures = self.pictures();
        if !pictures.is_empty() {
            let mut section = Section::new("Pictures", "");
            section.blocks = pictures;
            sections.push(section);
        }
        let (best, reasons) = (self.best_table(), self.reason_table());
        let order = if self.objective.1 { "lowest" } else { "highest" };
        for (table, note) in [(best, format!("By {order} {}.", objective.name)), (reasons, String::new())] {
            if !table.rows.is_empty() {
                let mut section = Section::new(table.title.clone(), note);
                section.blocks.push(Block::Table(table));
                sections.push(section);
            }
        }
        Document {
            title: self.title.clone(),
            description: self.description.clone(),
            warnings: self.warnings.clone(),
            figures,
            sections,
            assumptions: self.assumptions.clone(),
            command: self.command.clone(),
        }
    }
}
