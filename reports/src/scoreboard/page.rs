//! The scoreboard's page.

use std::collections::BTreeMap;

use super::pictures::{MOST_PANELS, calibration, panels, scatter, short, spread};
use super::statistics::signed_error;
use super::{Bound, ScoreKind, ScoreSet, ScoreTable, Scoreboard, Target};
use crate::compare::statistics::quantile;
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::show;
use crate::tables::Table;
use crate::unit::Unit;

/// Rows furthest off that the page lists for each kind of score.
const WORST: usize = 20;

fn share(value: Option<f64>) -> String {
    show::or_dash(value, show::percent)
}

impl Scoreboard {
    /// The page: targets and misses first, then each kind of score, peers, pictures, refusals and the worst rows.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut sections = Vec::new();
        if !self.targets.is_empty() {
            sections.push(self.target_section());
        }
        sections.extend(self.missed_section());
        sections.push(self.error_section());
        sections.extend(self.scores.iter().map(score_section));
        sections.extend(self.interval_section());
        sections.extend(self.peer_section());
        sections.extend(self.refusal_section());
        Document {
            title: self.title.clone(),
            description: self.description.clone(),
            warnings: self.warnings.clone(),
            figures: self.figures(),
            sections,
            assumptions: self.assumptions.clone(),
            command: self.command.clone(),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let mut figures = Vec::new();
        if let Some(set) = self.scores.iter().max_by_key(|set| set.rows.len()) {
            let predicted: u64 = set.tables.iter().map(|table| table.predicted).sum();
            let note = format!("of {} measured", show::count(set.rows.len() as u64));
            figures.push(Figure::new("rows with a predicted time", show::count(predicted), note));
        }
        for set in &self.scores {
            let medians: Vec<f64> = set.tables.iter().filter_map(|table| table.median_ape).collect();
            let Some(middle) = quantile(medians.clone(), 0.5) else { continue };
            let note = format!("the middle one of {}", show::plural(medians.len() as u64, "table", "tables"));
            figures.push(Figure::new(format!("median error, {}", set.score.name()), show::percent(middle), note));
        }
        if !self.targets.is_empty() {
            let met = self.targets.iter().filter(|target| target.met()).count();
            let mut figure = Figure::new("targets met", format!("{met} of {}", self.targets.len()), "");
            figure.alarm = met < self.targets.len();
            figures.push(figure);
        }
        figures
    }

    fn target_section(&self) -> Section {
        let mut section = Section::new("Targets", "What was promised, and what was found.");
        let mut table = Table::new("Targets", &["figure", "of", "score", ">asked", ">found", ""]);
        for target in &self.targets {
            table.row(vec![
                target.figure.clone(),
                target.of.clone(),
                target.score.map_or_else(String::new, |score| score.name().to_owned()),
                asked(target),
                show::or_dash(target.found, |found| target.unit.text(found)),
                verdict(target).to_owned(),
            ]);
        }
        section.blocks.push(Block::Table(table));
        section
    }

    fn missed_section(&self) -> Option<Section> {
        let missed: Vec<&Target> = self.targets.iter().filter(|target| !target.met()).collect();
        if missed.is_empty() {
            return None;
        }
        let mut section = Section::new("Missed, with cause and what was tried", "");
        let mut table = Table::new("Missed", &["figure", ">asked", ">found", "cause", "tried"]);
        let or_unknown = |text: &str| if text.is_empty() { "not known".to_owned() } else { text.to_owned() };
        for target in missed {
            let score = target.score.map_or_else(String::new, |score| format!(", {}", score.name()));
            table.row(vec![
                format!("{}, {}{score}", target.figure, target.of),
                asked(target),
                show::or_dash(target.found, |found| target.unit.text(found)),
                or_unknown(&target.cause),
                or_unknown(&target.tried),
            ]);
        }
        section.blocks.push(Block::Table(table));
        Some(section)
    }

    fn error_section(&self) -> Section {
        let mut section = Section::new(
            "Errors by table",
            "Box: first to third quartile of the rows' errors, the light line in it the median; thin line to the 90th \
             percentile, dot at the largest. The number after a table's name is its predicted rows.",
        );
        let (scene, keys) = spread(&self.scores);
        section.blocks.push(Block::Picture(Picture::new("scoreboard-errors.svg", "", scene, keys)));
        section
    }

    fn interval_section(&self) -> Option<Section> {
        let any = self.scores.iter().flat_map(|set| &set.rows).any(|row| row.covered().is_some());
        let note = "A 90 % interval should hold nine measured times of ten: fewer, and it promises too much; all, and it is \
                    too wide to plan with.";
        any.then(|| {
            let mut section = Section::new("What the intervals are worth", note);
            let (scene, keys) = calibration(&self.scores);
            section.blocks.push(Block::Picture(Picture::new("scoreboard-intervals.svg", "", scene, keys)));
            section
        })
    }

    /// Peers' published predictions beside ours on the same rows.
    fn peer_section(&self) -> Option<Section> {
        if self.peers.is_empty() && self.peer_words.is_empty() {
            return None;
        }
        let mut section = self.peer_table();
        section.blocks.extend(self.peer_words.iter().cloned().map(Block::Words));
        Some(section)
    }

    fn peer_table(&self) -> Section {
        let note = "Median and mean error over exactly the rows for which the peer published a prediction.";
        let mut section = Section::new("Beside other simulators, on the same rows", note);
        let mut columns = vec!["simulator".to_owned(), "table".to_owned(), ">rows".to_owned(), ">theirs".to_owned()];
        columns.extend(self.scores.iter().map(|set| format!(">ours, {}", set.score.name())));
        columns.push("published in".to_owned());
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new("Peers", &columns);
        for ((peer, file, source), lines) in self.peer_rows() {
            let theirs: Vec<f64> = lines.iter().map(|line| line.0).collect();
            let mut cells = vec![peer.to_owned(), file.to_owned(), show::count(lines.len() as u64), pair(&theirs)];
            for index in 0..self.scores.len() {
                let ours: Vec<f64> = lines.iter().filter_map(|line| line.1[index]).collect();
                let few = if ours.len() < lines.len() { format!(" ({} rows)", ours.len()) } else { String::new() };
                cells.push(format!("{}{few}", pair(&ours)));
            }
            cells.push(source.to_owned());
            table.row(cells);
        }
        if !table.rows.is_empty() {
            section.blocks.push(Block::Table(table));
        }
        section
    }

    /// By peer, table and source: their error on each row, and ours of each kind.
    #[expect(clippy::type_complexity, reason = "a table's rows, made and read in this file")]
    fn peer_rows(&self) -> BTreeMap<(&str, &str, &str), Vec<(f64, Vec<Option<f64>>)>> {
        let by_id: Vec<BTreeMap<&str, usize>> = self
            .scores
            .iter()
            .map(|set| set.rows.iter().enumerate().map(|(index, row)| (row.row_id.as_str(), index)).collect())
            .collect();
        let mut groups: BTreeMap<(&str, &str, &str), Vec<(f64, Vec<Option<f64>>)>> = BTreeMap::new();
        for peer in &self.peers {
            let row = |index: usize| by_id[index].get(peer.row_id.as_str()).map(|row| &self.scores[index].rows[*row]);
            let Some(known) = (0..self.scores.len()).find_map(row) else { continue };
            let Some(error) = signed_error(Some(peer.predicted_s), known.measured_s) else { continue };
            let ours = (0..self.scores.len()).map(|index| row(index)?.ape).collect();
            let key = (peer.peer.as_str(), known.file.as_str(), peer.source.as_str());
            groups.entry(key).or_default().push((error.abs(), ours));
        }
        groups
    }

    fn refusal_section(&self) -> Option<Section> {
        let set = self.scores.iter().find(|set| set.tables.iter().any(|table| table.refused > 0))?;
        let note = "Rows outside the model, refused by name rather than guessed.";
        let mut section = Section::new("Refused", note);
        let mut table = Table::new("Refused", &["reason", ">rows", "tables"]);
        let mut reasons: BTreeMap<&str, (u64, Vec<&str>)> = BTreeMap::new();
        for of_table in &set.tables {
            for refusal in &of_table.refusals {
                let entry = reasons.entry(&refusal.reason).or_default();
                entry.0 += refusal.rows;
                entry.1.push(short(of_table));
            }
        }
        let mut reasons: Vec<(&str, (u64, Vec<&str>))> = reasons.into_iter().collect();
        reasons.sort_by_key(|(_, (rows, _))| std::cmp::Reverse(*rows));
        for (reason, (rows, files)) in reasons {
            table.row(vec![reason.to_owned(), show::count(rows), files.join(", ")]);
        }
        section.blocks.push(Block::Table(table));
        Some(section)
    }
}

fn pair(errors: &[f64]) -> String {
    let median = quantile(errors.to_vec(), 0.5);
    let mean = (!errors.is_empty()).then(|| errors.iter().sum::<f64>() / errors.len() as f64);
    match median {
        None => "\u{2013}".to_owned(),
        Some(_) => format!("{} / {}", share(median), share(mean)),
    }
}

fn asked(target: &Target) -> String {
    let text = |value: f64| target.unit.text(value);
    match target.bound {
        Bound::AtMost(most) => format!("\u{2264} {}", text(most)),
        Bound::AtLeast(least) => format!("\u{2265} {}", text(least)),
        Bound::Between(low, high) => format!("{} to {}", text(low), text(high)),
    }
}

fn verdict(target: &Target) -> &'static str {
    match (target.found, target.met()) {
        (_, true) => "met",
        (Some(_), false) => "missed",
        (None, false) => "not measured",
    }
}

/// One kind of score: its tables, its scatter picture, its worst rows.
fn score_section(set: &ScoreSet) -> Section {
    let mut section = Section::new(show::capital(set.score.name()), set.score.meaning());
    section.blocks.push(Block::Table(error_table(set)));
    if set.tables.iter().any(|table| table.memory_rows > 0 || table.oom_rows > 0) {
        section.blocks.push(Block::Table(memory_table(set)));
    }
    let shown = panels(set).len();
    if shown > 0 {
        let (scene, keys) = scatter(set);
        let file = format!("scoreboard-{}.svg", set.score.name());
        let mut picture = Picture::new(file, "Predicted against measured", scene, keys);
        let all = set.tables.iter().filter(|table| table.predicted > 0).count();
        if shown == MOST_PANELS && all > shown {
            picture = picture.noted(format!("The {shown} tables of most rows, of {all}."));
        }
        section.blocks.push(Block::Picture(picture));
    }
    let worst = worst_table(set);
    if !worst.rows.is_empty() {
        section.blocks.push(Block::LongTable(worst));
    }
    section
}

fn error_table(set: &ScoreSet) -> Table {
    let columns = [
        "table",
        ">rows",
        ">predicted",
        ">refused",
        ">median",
        ">mean",
        ">p90",
        ">max",
        ">bias",
        ">tau",
        ">regret",
        ">in interval",
        ">baseline mean",
    ];
    let mut table = Table::new(&format!("Step time, {}", set.score.name()), &columns);
    for of in &set.tables {
        table.row(vec![
            short(of).to_owned(),
            show::count(of.rows),
            show::count(of.predicted),
            show::count(of.refused),
            share(of.median_ape),
            share(of.mean_ape),
            share(of.p90_ape),
            share(of.max_ape),
            show::or_dash(of.bias, show::signed_percent),
            show::or_dash(of.kendall_tau, |tau| format!("{tau:.2}").replacen('-', "\u{2212}", 1)),
            share(of.regret),
            share(of.interval_coverage),
            share(of.baseline_mean_ape),
        ]);
    }
    let pooled: Vec<&str> = set.tables.iter().flat_map(|table| &table.pooled).map(String::as_str).collect();
    table.note =
        "Bias is the median signed error, above zero where predictions are slow. Tau and regret are means over \
                  sweeps; a dash stands where there is nothing to count."
            .to_owned();
    if !pooled.is_empty() {
        table.note.push_str(&format!(" Pooled: {}.", pooled.join(", ")));
    }
    table
}

fn memory_table(set: &ScoreSet) -> Table {
    let columns = ["table", ">rows", ">median error", ">mean error", ">fit known", ">fit told right"];
    let mut table = Table::new(&format!("Peak memory, {}", set.score.name()), &columns);
    for of in set.tables.iter().filter(|table| table.memory_rows > 0 || table.oom_rows > 0) {
        table.row(vec![
            short(of).to_owned(),
            show::count(of.memory_rows),
            share(of.memory_median_ape),
            share(of.memory_mean_ape),
            show::count(of.oom_rows),
            share(of.oom_accuracy),
        ]);
    }
    let kinds = |of: &ScoreTable| {
        let mut kinds: Vec<String> = set.rows_of(of).iter().filter_map(|row| row.memory_kind.clone()).collect();
        kinds.sort_unstable();
        kinds.dedup();
        (!kinds.is_empty()).then(|| format!("{}: {}", short(of), kinds.join(", ")))
    };
    let kinds: Vec<String> = set.tables.iter().filter(|of| of.memory_rows > 0).filter_map(kinds).collect();
    if !kinds.is_empty() {
        table.note = format!("Kind of memory. {}.", kinds.join("; "));
    }
    table
}

fn worst_table(set: &ScoreSet) -> Table {
    let title = format!("Rows furthest off, {}", set.score.name());
    let mut table = Table::new(&title, &["row", "table", ">measured", ">predicted", ">90 % interval", ">error"]);
    let mut rows: Vec<_> = set.rows.iter().filter_map(|row| Some((row.error()?, row))).collect();
    rows.sort_by(|a, b| b.0.abs().total_cmp(&a.0.abs()).then_with(|| a.1.row_id.cmp(&b.1.row_id)));
    let time = |value: Option<f64>| show::or_dash(value, |value| Unit::Seconds.text(value));
    for (error, row) in rows.into_iter().take(WORST) {
        table.row(vec![
            row.row_id.clone(),
            row.file.clone(),
            time(row.measured_s),
            time(row.predicted_s),
            format!("{} to {}", time(row.low_s), time(row.high_s)),
            show::signed_percent(error),
        ]);
    }
    table
}

impl ScoreKind {
    /// The kind of a name, as in `fitted`.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}
