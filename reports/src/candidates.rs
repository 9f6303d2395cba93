//! A planner's candidates: the one chosen, the next best, and why each lost.

use ir::{Bytes, SimDuration};
use serde::Serialize;

use crate::csv_tables::into_io;
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::draw::palette;
use crate::draw::plot::Axis;
use crate::draw::scene::{Anchor, Ink, Key, Scene, cut};
use crate::show;
use crate::tables::Table;
use crate::unit::Unit;

/// One plan that was looked at; whoever planned fills it.
#[derive(Clone, PartialEq, Debug)]
pub struct CandidateRow {
    /// The plan in one line, such as `data 16, tensor 8, pipeline 8, 1f1b`.
    pub plan: String,
    /// The predicted step; `None` if it cannot be.
    pub step: Option<SimDuration>,
    /// The 90 % interval of the step.
    pub interval: Option<(SimDuration, SimDuration)>,
    /// Peak memory of the fullest device.
    pub peak: Option<Bytes>,
    /// What that device has.
    pub capacity: Option<Bytes>,
    /// The bubble rate.
    pub bubble_rate: Option<f64>,
    /// Training throughput.
    pub tokens_per_second: Option<f64>,
    /// Why it was chosen, why it lost, or why it cannot be: sentences.
    pub reasons: Vec<String>,
}

/// The candidates of one decision, best first.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidates {
    /// The page's title.
    pub title: String,
    /// A sentence under it, such as the policy and its space; may be empty.
    pub description: String,
    /// Plans, best first, those that cannot be last; the first is chosen if it has a step.
    pub rows: Vec<CandidateRow>,
    /// How many plans the space holds, where it is known.
    pub space: Option<u64>,
    /// How many were priced.
    pub priced: u64,
    /// How many were left out because a lower bound of theirs was worse than a plan that was known.
    pub pruned: u64,
    /// How many are against a rule or do not fit.
    pub infeasible: u64,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl Candidates {
    fn best(&self) -> Option<SimDuration> {
        self.rows.first()?.step
    }

    /// How much longer a step is than the best one.
    fn behind(&self, row: &CandidateRow) -> Option<f64> {
        let (best, step) = (self.best()?.nanoseconds() as f64, row.step?.nanoseconds() as f64);
        (best > 0.0).then(|| step / best - 1.0)
    }

    /// The candidates as a table.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = [">", "plan", ">step", ">behind", ">peak memory", ">of capacity", ">bubble", ">tokens/s", "why"];
        let mut table = Table::new("Candidates", &columns);
        for (index, row) in self.rows.iter().enumerate() {
            let filled = |peak: Bytes| Some(peak.get() as f64 / row.capacity?.get().max(1) as f64);
            table.row(vec![
                (index + 1).to_string(),
                row.plan.clone(),
                row.step.map_or_else(|| "cannot be".to_owned(), show::duration),
                show::or_dash(self.behind(row).filter(|_| index > 0), show::signed_percent),
                row.peak.map_or_else(|| "\u{2013}".to_owned(), show::bytes),
                show::or_dash(row.peak.and_then(filled), show::percent),
                show::or_dash(row.bubble_rate, show::percent),
                show::or_dash(row.tokens_per_second, |rate| show::with_prefix(rate, "")),
                row.reasons.join(" "),
            ]);
        }
        table
    }

    /// Writes the candidates as CSV: rank, plan, step_s, low_s, high_s, behind (a share), peak_bytes, capacity_bytes,
    /// bubble_rate, tokens_per_second, reasons; a value that is missing is an empty cell.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn csv(&self, out: impl std::io::Write) -> std::io::Result<()> {
        #[derive(Serialize)]
        struct Line<'a> {
            rank: usize,
            plan: &'a str,
            step_s: Option<f64>,
            low_s: Option<f64>,
            high_s: Option<f64>,
            behind: Option<f64>,
            peak_bytes: Option<u64>,
            capacity_bytes: Option<u64>,
            bubble_rate: Option<f64>,
            tokens_per_second: Option<f64>,
            reasons: String,
        }
        let seconds = |duration: SimDuration| duration.nanoseconds() as f64 / 1e9;
        let mut csv = csv::Writer::from_writer(out);
        for (index, row) in self.rows.iter().enumerate() {
            let line = Line {
                rank: index + 1,
                plan: &row.plan,
                step_s: row.step.map(seconds),
                low_s: row.interval.map(|interval| seconds(interval.0)),
                high_s: row.interval.map(|interval| seconds(interval.1)),
                behind: self.behind(row),
                peak_bytes: row.peak.map(Bytes::get),
                capacity_bytes: row.capacity.map(Bytes::get),
                bubble_rate: row.bubble_rate,
                tokens_per_second: row.tokens_per_second,
                reasons: row.reasons.join(" "),
            };
            csv.serialize(line).map_err(into_io)?;
        }
        csv.flush()
    }

    /// The page.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut figures = Vec::new();
        if let (Some(step), Some(row)) = (self.best(), self.rows.first()) {
            figures.push(Figure::new("chosen", show::duration(step), row.plan.clone()));
        }
        if let Some(space) = self.space {
            figures.push(Figure::new("plans in the space", show::count(space), ""));
        }
        figures.push(Figure::new("priced", show::count(self.priced), ""));
        figures.push(Figure::new("pruned by a bound", show::count(self.pruned), ""));
        figures.push(Figure::new("cannot be", show::count(self.infeasible), ""));
        let mut section =
            Section::new("Candidates", "Best first; behind is how much longer the step is than the best.");
        if self.rows.iter().filter(|row| row.step.is_some()).count() > 1 {
            let keys = vec![Key::filled(palette::GOOD, "chosen"), Key::filled(palette::IMBALANCE, "lost")];
            section.blocks.push(Block::Picture(Picture::new("candidates.svg", "", self.scene(), keys)));
        }
        section.blocks.push(Block::Table(self.table()));
        Document {
            title: self.title.clone(),
            description: self.description.clone(),
            warnings: Vec::new(),
            figures,
            sections: vec![section],
            assumptions: self.assumptions.clone(),
            command: self.command.clone(),
        }
    }

    /// The steps of the best twenty, with their intervals.
    fn scene(&self) -> Scene {
        const WIDTH: f64 = 1200.0;
        const LEFT: f64 = 430.0;
        const RIGHT: f64 = 170.0;
        const ROW: f64 = 24.0;
        let mut scene = Scene::new(WIDTH, "Predicted step of each candidate with its 90 % interval");
        let rows: Vec<(&CandidateRow, f64)> =
            self.rows.iter().filter_map(|row| Some((row, row.step?.nanoseconds() as f64 / 1e9))).take(20).collect();
        let upper = |(row, step): &(&CandidateRow, f64)| {
            row.interval.map_or(*step, |interval| interval.1.nanoseconds() as f64 / 1e9).max(*step)
        };
        let limit = rows.iter().map(upper).fold(0.0, f64::max);
        let axis = Axis::of(Unit::Seconds, 0.0, limit * 1.02, 8);
        let at = |value: f64| LEFT + axis.place(value) * (WIDTH - LEFT - RIGHT);
        let bottom = 6.0 + ROW * rows.len() as f64;
        for (value, label) in &axis.ticks {
            scene.line((at(*value), 2.0), (at(*value), bottom), 1.0, palette::GRID);
            scene.text(at(*value), bottom + 15.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label.clone());
        }
        for (index, (row, step)) in rows.iter().enumerate() {
            let y = 6.0 + ROW * index as f64;
            let plan = cut(&row.plan, LEFT - 16.0, 11.5);
            scene.text(LEFT - 10.0, y + 12.5, 11.5, Anchor::End, Ink::Plain(palette::TEXT), plan);
            let fill = if index == 0 { palette::GOOD } else { palette::IMBALANCE };
            scene.filled_box((at(0.0), y), ((at(*step) - at(0.0)).max(1.0), 17.0), fill, row.plan.clone());
            if let Some((low, high)) = row.interval {
                let place = |time: SimDuration| at(time.nanoseconds() as f64 / 1e9);
                let (low, high, middle) = (place(low), place(high), y + 8.5);
                scene.line((low, middle), (high, middle), 1.5, palette::TEXT);
                for x in [low, high] {
                    scene.line((x, middle - 4.0), (x, middle + 4.0), 1.5, palette::TEXT);
                }
            }
            let behind =
                self.behind(row).filter(|_| index > 0).map(|share| format!(" ({})", show::signed_percent(share)));
            let words = format!("{}{}", Unit::Seconds.text(*step), behind.unwrap_or_default());
            let x = at(upper(&(row, *step))) + 8.0;
            scene.text(x, y + 12.5, 11.0, Anchor::Start, Ink::Plain(palette::TEXT), words);
        }
        scene.height = bottom + 24.0;
        scene
    }
}
