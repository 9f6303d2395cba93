//! What is different between two results or plans, largest cause first.

use serde::Serialize;

use crate::document::{Block, Document, Figure, Picture, Section};
use crate::draw::palette;
use crate::draw::plot::{Axis, range};
use crate::draw::scene::{Anchor, Ink, Key, Scene, cut};
use crate::show;
use crate::tables::Table;
use crate::unit::Unit;

/// One cause of a difference: a part of the whole that has a value before and after.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DiffCause {
    /// What it is, such as `exposed tensor communication`.
    pub cause: String,
    /// Its value before; `None` where it did not exist.
    pub before: Option<f64>,
    /// Its value after; `None` where it no longer exists.
    pub after: Option<f64>,
    /// Why, where it is known; may be empty.
    pub note: String,
}

impl DiffCause {
    /// After less before, what is missing taken as zero.
    #[must_use]
    pub fn delta(&self) -> f64 {
        self.after.unwrap_or(0.0) - self.before.unwrap_or(0.0)
    }
}

/// One quantity of both results, such as step time, with what its difference is put down to.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Measure {
    /// What it is.
    pub name: String,
    /// Its unit.
    pub unit: Unit,
    /// Its value before; `None` where there is none, such as a plan that does not fit.
    pub before: Option<f64>,
    /// Its value after.
    pub after: Option<f64>,
    /// Its parts; may be empty.
    pub causes: Vec<DiffCause>,
}

/// Something that is not a number and is different: a degree, a schedule, a switch, a device.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Change {
    /// What, such as `tensor degree`.
    pub what: String,
    /// Before; empty where it did not exist.
    pub before: String,
    /// After; empty where it no longer exists.
    pub after: String,
}

/// Two results or plans, side by side.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Diff {
    /// The page's title.
    pub title: String,
    /// The name of the first.
    pub before: String,
    /// The name of the second.
    pub after: String,
    /// What was decided or given otherwise.
    pub changes: Vec<Change>,
    /// What came out otherwise.
    pub measures: Vec<Measure>,
    /// What makes the two hard to compare: other seeds, calibrations, versions.
    pub warnings: Vec<String>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl Measure {
    /// After less before, where both exist.
    #[must_use]
    pub fn delta(&self) -> Option<f64> {
        Some(self.after? - self.before?)
    }

    /// The causes that differ, largest difference first.
    #[must_use]
    pub fn sorted(&self) -> Vec<&DiffCause> {
        let mut causes: Vec<&DiffCause> = self.causes.iter().filter(|cause| cause.delta().abs() > 0.0).collect();
        causes.sort_by(|a, b| b.delta().abs().total_cmp(&a.delta().abs()));
        causes
    }

    /// The causes as a table: before, after, difference, its share of all differences (signs aside).
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = ["cause", ">before", ">after", ">difference", ">share of differences", "why"];
        let mut table = Table::new(&self.name, &columns);
        let all: f64 = self.causes.iter().map(|cause| cause.delta().abs()).sum();
        let text = |value: Option<f64>| show::or_dash(value, |value| self.unit.text(value));
        for cause in self.sorted() {
            table.row(vec![
                cause.cause.clone(),
                text(cause.before),
                text(cause.after),
                self.unit.difference(cause.delta()),
                show::percent(cause.delta().abs() / all),
                cause.note.clone(),
            ]);
        }
        table.row(vec![
            "whole".to_owned(),
            text(self.before),
            text(self.after),
            show::or_dash(self.delta(), |delta| self.unit.difference(delta)),
            String::new(),
            String::new(),
        ]);
        let equal = self.causes.len() - self.sorted().len();
        if equal > 0 {
            table.note = format!("{} without a difference.", show::plural(equal as u64, "cause", "causes"));
        }
        table
    }

    fn relative(&self) -> Option<f64> {
        let (before, delta) = (self.before?, self.delta()?);
        (before.abs() > 0.0).then(|| delta / before)
    }
}

impl Diff {
    /// Whether nothing differs.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let same = |measure: &Measure| {
            measure.before.is_some() == measure.after.is_some()
                && measure.delta().is_none_or(|delta| delta.abs() <= 0.0)
                && measure.sorted().is_empty()
        };
        self.changes.is_empty() && self.measures.iter().all(same)
    }

    /// Everything as JSON, in the order given.
    ///
    /// # Panics
    /// Never: plain data has a JSON form.
    #[must_use]
    pub fn json(&self) -> String {
        serde_json::to_string_pretty(self).expect("plain data has a JSON form")
    }

    fn change_table(&self) -> Table {
        let mut table = Table::new("What was changed", &["what", "before", "after"]);
        let or_none = |text: &str| if text.is_empty() { "\u{2013}".to_owned() } else { text.to_owned() };
        for change in &self.changes {
            table.row(vec![change.what.clone(), or_none(&change.before), or_none(&change.after)]);
        }
        table
    }

    fn summary_table(&self) -> Table {
        let mut table = Table::new("What came of it", &["", ">before", ">after", ">difference", ">relative"]);
        for measure in &self.measures {
            let text = |value: Option<f64>| show::or_dash(value, |value| measure.unit.text(value));
            table.row(vec![
                measure.name.clone(),
                text(measure.before),
                text(measure.after),
                show::or_dash(measure.delta(), |delta| measure.unit.difference(delta)),
                show::or_dash(measure.relative(), show::signed_percent),
            ]);
        }
        table
    }

    /// The page: what was changed, what came of it, and the causes of each measure.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut sections = Vec::new();
        if self.is_empty() {
            let mut section = Section::new("No difference", "");
            section.blocks.push(Block::Words("The two are equal in everything that was compared.".to_owned()));
            sections.push(section);
        }
        if !self.changes.is_empty() {
            let mut section = Section::new("What was changed", "");
            section.blocks.push(Block::Table(self.change_table()));
            sections.push(section);
        }
        if !self.measures.is_empty() {
            let mut section = Section::new("What came of it", "");
            section.blocks.push(Block::Table(self.summary_table()));
            sections.push(section);
        }
        for (index, measure) in self.measures.iter().enumerate().filter(|(_, m)| !m.sorted().is_empty()) {
            let mut section = Section::new(format!("{}, by cause", show::capital(&measure.name)), "");
            let keys = vec![Key::filled(palette::GOOD, "less than before"), Key::filled(palette::BAD, "more")];
            let picture = Picture::new(format!("diff-{}.svg", index + 1), "", scene(measure), keys);
            section.blocks.push(Block::Picture(picture));
            section.blocks.push(Block::Table(measure.table()));
            sections.push(section);
        }
        let figures = self.measures.iter().filter_map(|measure| {
            let value = measure.unit.difference(measure.delta()?);
            Some(Figure::new(measure.name.clone(), value, show::or_dash(measure.relative(), show::signed_percent)))
        });
        Document {
            title: self.title.clone(),
            description: format!("Before: {}. After: {}.", self.before, self.after),
            warnings: self.warnings.clone(),
            figures: figures.collect(),
            sections,
            assumptions: Vec::new(),
            command: self.command.clone(),
        }
    }
}

/// Bars to both sides of zero, largest first, at most 24.
fn scene(measure: &Measure) -> Scene {
    const WIDTH: f64 = 1200.0;
    const LEFT: f64 = 300.0;
    const ROOM: f64 = 110.0;
    const ROW: f64 = 24.0;
    let mut scene = Scene::new(WIDTH, format!("Differences of {} by cause", measure.name));
    let mut causes = measure.sorted();
    causes.truncate(24);
    let (low, high) = range(causes.iter().map(|cause| cause.delta())).unwrap_or((0.0, 1.0));
    let (low, high) = (low.min(0.0), high.max(0.0));
    let axis = Axis::of(measure.unit, low, high, 8);
    let at = |value: f64| LEFT + ROOM + axis.place(value) * (WIDTH - LEFT - 2.0 * ROOM);
    let bottom = 6.0 + ROW * causes.len() as f64;
    for (value, label) in &axis.ticks {
        scene.line((at(*value), 2.0), (at(*value), bottom), 1.0, palette::GRID);
        scene.text(at(*value), bottom + 15.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label.clone());
    }
    for (index, cause) in causes.iter().enumerate() {
        let (y, delta) = (6.0 + ROW * index as f64, cause.delta());
        let (from, to) = (at(delta.min(0.0)), at(delta.max(0.0)));
        let fill = if delta < 0.0 { palette::GOOD } else { palette::BAD };
        let words = measure.unit.difference(delta);
        let name = cut(&cause.cause, LEFT - 20.0, 12.0);
        scene.text(LEFT - 10.0, y + 13.0, 12.0, Anchor::End, Ink::Plain(palette::TEXT), name);
        scene.filled_box((from, y), ((to - from).max(1.0), 17.0), fill, format!("{}: {words}", cause.cause));
        let (x, anchor) = if delta < 0.0 { (from - 6.0, Anchor::End) } else { (to + 6.0, Anchor::Start) };
        scene.text(x, y + 12.5, 11.0, anchor, Ink::Plain(palette::TEXT), words);
    }
    scene.line((at(0.0), 2.0), (at(0.0), bottom), 1.5, palette::TEXT);
    scene.height = bottom + 24.0;
    scene
}
