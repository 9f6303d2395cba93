//! The report as plain rows: what a terminal prints, Markdown shows and the page repeats.

use ir::{Bytes, Clock};
use serde::Serialize;

use crate::activity::Activity;
use crate::compare::{ClassError, Comparison, Pair};
use crate::metrics::Metrics;
use crate::report::Report;
use crate::{show, words};

/// A table of words. Every row has as many cells as there are columns.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Table {
    /// What it shows.
    pub title: String,
    /// Columns, in order.
    pub columns: Vec<Column>,
    /// Rows, in order.
    pub rows: Vec<Vec<String>>,
    /// What a reader must know of it; may be empty.
    pub note: String,
}

/// A column of a table.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Column {
    /// Its heading.
    pub name: String,
    /// Whether it holds numbers, which stand to the right.
    pub numeric: bool,
}

impl Table {
    /// A table without rows. A heading that begins with `>` is of numbers; the sign is taken off.
    pub(crate) fn new(title: &str, columns: &[&str]) -> Self {
        let column =
            |name: &&str| Column { name: name.trim_start_matches('>').to_owned(), numeric: name.starts_with('>') };
        Self {
            title: title.to_owned(),
            columns: columns.iter().map(column).collect(),
            rows: Vec::new(),
            note: String::new(),
        }
    }
    pub(crate) fn row(&mut self, cells: Vec<String>) {
        assert_eq!(cells.len(), self.columns.len(), "a row of {} that does not fit its columns", self.title);
        self.rows.push(cells);
    }
}

impl Report<'_> {
    /// How the model is divided, in one sentence.
    #[must_use]
    pub fn division(&self) -> String {
        format!("{} on {}", self.input.program.model.name, words::division(self.input.program))
    }

    /// The tables of a terminal summary: whole iteration, where the time goes, stages, and the comparison if there is one.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        let mut tables = vec![self.iteration_table(), self.time_table(), self.stage_table(), self.memory_table()];
        if let Some(comparison) = &self.comparison {
            tables.push(class_table(comparison));
            tables.push(stage_error_table(comparison));
            if !comparison.worst.is_empty() {
                tables.push(worst_table(comparison));
            }
        }
        tables
    }

    fn clocks<'b>(&'b self, first: &'b str) -> Vec<String> {
        std::iter::once(first.to_owned()).chain(self.metrics.iter().map(|m| format!(">{}", m.clock.word()))).collect()
    }

    /// The whole iteration on each clock, and the error where there are two.
    pub(crate) fn iteration_table(&self) -> Table {
        let mut columns = self.clocks("");
        if self.comparison.is_some() {
            columns.push(">error".to_owned());
        }
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new("One iteration", &columns);
        let mut row =
            |name: &str, value: &dyn Fn(&Metrics) -> Option<f64>, text: &dyn Fn(f64) -> String, relative: bool| {
                let values: Vec<Option<f64>> = self.metrics.iter().map(value).collect();
                if values.iter().all(Option::is_none) {
                    return;
                }
                let cell = |value: &Option<f64>| value.map_or_else(|| "\u{2013}".to_owned(), text);
                let mut cells: Vec<String> = std::iter::once(name.to_owned()).chain(values.iter().map(cell)).collect();
                if self.comparison.is_some() {
                    cells.push(match values.as_slice() {
                        [Some(a), Some(b)] if relative && *b > 0.0 => show::signed_percent(a / b - 1.0),
                        [Some(a), Some(b)] if !relative => points(a - b),
                        _ => "\u{2013}".to_owned(),
                    });
                }
                table.row(cells);
            };
        row("time", &|m| Some(m.iteration_ns as f64), &show::nanoseconds, true);
        row("tokens per second", &|m| Some(m.tokens_per_second), &|v| show::with_prefix(v, ""), true);
        row("model arithmetic", &|m| m.model_flops_per_second, &|v| show::with_prefix(v, "FLOP/s"), true);
        row("of peak (MFU)", &|m| m.model_flops_utilization, &show::percent, false);
        row("bubble rate", &|m| m.bubble_rate, &show::percent, false);
        row(
            "peak memory of a rank",
            &|m| m.stages.iter().map(|s| s.memory.peak_bytes as f64).reduce(f64::max),
            &bytes,
            true,
        );
        if let Some(comparison) = &self.comparison
            && comparison.measured_iterations > 1
        {
            // The median of the lengths, not the length of the iteration that is shown.
            table.note = format!(
                "Over {} measured iterations the median is {}: error {}.",
                comparison.measured_iterations,
                show::nanoseconds(comparison.iteration.measured_ns as f64),
                show::signed_percent(comparison.iteration.relative_error)
            );
        }
        table
    }

    /// Where the time goes, mean over all ranks.
    pub(crate) fn time_table(&self) -> Table {
        let mut columns = vec!["activity".to_owned()];
        for metrics in &self.metrics {
            columns.push(format!(">{}", metrics.clock.word()));
            columns.push(">share".to_owned());
        }
        let columns: Vec<&str> = columns.iter().map(String::as_str).collect();
        let mut table = Table::new("Where the time goes", &columns);
        for activity in Activity::ALL {
            if self.metrics.iter().all(|m| m.time.get(activity) == 0) {
                continue;
            }
            let mut cells = vec![activity.name().to_owned()];
            for metrics in &self.metrics {
                let nanoseconds = metrics.time.get(activity) as f64;
                cells.push(show::nanoseconds(nanoseconds));
                cells.push(show::percent(nanoseconds / metrics.iteration_ns.max(1) as f64));
            }
            table.row(cells);
        }
        let hidden = self.metrics.iter().filter_map(|metrics| {
            let sum = |value: fn(&crate::metrics::CommunicationMetrics) -> u64| {
                metrics.communication.iter().map(value).sum::<u64>() as f64
            };
            let (running, exposed) = (sum(|c| c.running_ns), sum(|c| c.exposed_ns));
            (running > 0.0).then(|| format!("{}: {}", metrics.clock.word(), show::percent(1.0 - exposed / running)))
        });
        let hidden: Vec<String> = hidden.collect();
        table.note = "Mean over all ranks; communication counts only where compute waited for it.".to_owned();
        if !hidden.is_empty() {
            table.note.push_str(&format!(" Communication hidden behind other work: {}.", hidden.join(", ")));
        }
        table
    }

    /// Each stage on each clock.
    pub(crate) fn stage_table(&self) -> Table {
        let columns = ["stage", "clock", ">ranks", ">busy", ">exposed communication", ">bubble", ">first to last pass"];
        let mut table = Table::new("Stages", &columns);
        let stages = self.metrics.iter().map(|m| m.stages.len()).max().unwrap_or(0);
        for index in 0..stages {
            for metrics in &self.metrics {
                let Some(stage) = metrics.stages.get(index) else { continue };
                let share = |ns: u64| {
                    let share = ns as f64 / metrics.iteration_ns.max(1) as f64;
                    format!("{} ({})", show::nanoseconds(ns as f64), show::percent(share))
                };
                table.row(vec![
                    stage.stage.raw().to_string(),
                    metrics.clock.word().to_owned(),
                    show::count(u64::from(stage.ranks)),
                    share(stage.busy_ns),
                    share(stage.exposed_communication_ns),
                    share(stage.bubble_ns),
                    show::nanoseconds(stage.span_ns as f64),
                ]);
            }
        }
        table
    }

    /// The peak of each stage, on the first clock.
    pub(crate) fn memory_table(&self) -> Table {
        let columns = ["stage", ">peak", ">capacity", "largest parts", "reached when"];
        let mut table = Table::new("Memory", &columns);
        let Some(metrics) = self.metrics.first() else { return table };
        for stage in &metrics.stages {
            let memory = &stage.memory;
            let text = |bytes: u64| show::bytes(Bytes::new(bytes));
            let parts: Vec<String> =
                memory.parts.iter().take(3).map(|part| format!("{} {}", part.kind, text(part.bytes))).collect();
            table.row(vec![
                stage.stage.raw().to_string(),
                text(memory.peak_bytes),
                memory.capacity_bytes.map_or_else(|| "\u{2013}".to_owned(), text),
                if parts.is_empty() { "\u{2013}".to_owned() } else { parts.join(", ") },
                memory.moment.clone(),
            ]);
        }
        table.note = format!("One rank of each stage, the one that needs most; {} clock.", metrics.clock.word());
        table
    }
}

fn bytes(value: f64) -> String {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "it came from an amount of memory")]
    show::bytes(Bytes::new(value as u64))
}

/// A difference of two shares: `+1.2 points`.
fn points(difference: f64) -> String {
    format!("{} points", show::signed_percent(difference).trim_end_matches(" %"))
}

fn words_of(clock: Clock, other: Clock) -> (&'static str, &'static str) {
    if clock == other { ("first", "second") } else { (clock.word(), other.word()) }
}

/// The error of each class of instruction.
pub(crate) fn class_table(comparison: &Comparison) -> Table {
    let (predicted, measured) = words_of(comparison.predicted_clock, comparison.measured_clock);
    let (predicted, measured) = (format!(">{predicted} median"), format!(">{measured} median"));
    let columns =
        ["instruction", ">count", &predicted, &measured, ">ratio", ">median error", ">90th percentile", ">bias"];
    let mut table = Table::new("Prediction against measurement, by class of instruction", &columns);
    let mut row = |error: &ClassError| {
        table.row(vec![
            error.class.map_or_else(|| "all".to_owned(), |class| class.to_string()),
            show::count(error.count),
            show::nanoseconds(error.predicted_median_ns as f64),
            show::nanoseconds(error.measured_median_ns as f64),
            format!("{:.3}", error.ratio),
            show::percent(error.median_relative_error),
            show::percent(error.p90_relative_error),
            show::signed_percent(error.bias),
        ]);
    };
    comparison.classes.iter().for_each(&mut row);
    row(&comparison.all);
    table.note =
        "Joined on rank and instruction; each instruction's median over the measured iterations. Ratio is of total \
                  times; bias is the median signed error, positive where the prediction is slow."
            .to_owned();
    table
}

fn pair_cells(pair: &Pair) -> [String; 3] {
    [
        show::nanoseconds(pair.predicted_ns as f64),
        show::nanoseconds(pair.measured_ns as f64),
        show::signed_percent(pair.relative_error),
    ]
}

/// The error of each stage.
pub(crate) fn stage_error_table(comparison: &Comparison) -> Table {
    let columns = [
        "stage",
        ">busy, predicted",
        ">busy, measured",
        ">error",
        ">first to last, predicted",
        ">first to last, measured",
        ">error",
        ">exposed communication, predicted",
        ">exposed communication, measured",
        ">error",
        ">peak memory, predicted",
        ">peak memory, measured",
        ">error",
    ];
    let mut table = Table::new("Prediction against measurement, by stage", &columns);
    for stage in &comparison.stages {
        let mut cells = vec![stage.stage.raw().to_string()];
        cells.extend(pair_cells(&stage.busy));
        cells.extend(pair_cells(&stage.span));
        cells.extend(pair_cells(&stage.exposed_communication));
        let memory = stage.memory;
        cells.extend([memory.predicted_bytes, memory.measured_bytes].map(|bytes| show::bytes(Bytes::new(bytes))));
        cells.push(show::signed_percent(memory.relative_error));
        table.row(cells);
    }
    table
}

/// The instructions that are furthest off.
pub(crate) fn worst_table(comparison: &Comparison) -> Table {
    let columns = ["rank", "instruction", "what", ">predicted", ">measured", ">error"];
    let mut table = Table::new("Instructions furthest off in time", &columns);
    for error in &comparison.worst {
        let mut cells = vec![error.rank.raw().to_string(), error.instruction.raw().to_string(), error.what.clone()];
        cells.extend(pair_cells(&error.duration));
        table.row(cells);
    }
    table
}

/// A table as GitHub-flavoured Markdown.
#[must_use]
pub fn markdown_table(table: &Table) -> String {
    let cell = |text: &str| text.replace('|', "\\|").replace('\n', " ");
    let line = |cells: Vec<String>| format!("| {} |\n", cells.join(" | "));
    let mut out = line(table.columns.iter().map(|column| cell(&column.name)).collect());
    out.push_str(&line(table.columns.iter().map(|c| if c.numeric { "---:" } else { "---" }.to_owned()).collect()));
    for row in &table.rows {
        out.push_str(&line(row.iter().map(|text| cell(text)).collect()));
    }
    if !table.note.is_empty() {
        out.push_str(&format!("\n{}\n", table.note));
    }
    out
}

impl Report<'_> {
    /// The report as Markdown: warnings, tables, what was assumed.
    #[must_use]
    pub fn markdown(&self) -> String {
        let mut out = format!("# {}\n\n", self.input.title);
        if !self.input.description.is_empty() {
            out.push_str(&format!("{}\n\n", self.input.description));
        }
        out.push_str(&format!("{}.\n", self.division()));
        for warning in &self.warnings {
            out.push_str(&format!("\n> **Warning:** {}\n", warning.replace('\n', " ")));
        }
        for table in self.tables() {
            out.push_str(&format!("\n## {}\n\n{}", table.title, markdown_table(&table)));
        }
        for table in self.input.long_run.iter().flat_map(|run| run.tables()) {
            out.push_str(&format!("\n## Over a long run: {}\n\n{}", table.title, markdown_table(&table)));
        }
        if !self.input.provenance.is_empty() {
            let mut table = Table::new("What was assumed", &["", ""]);
            self.input.provenance.iter().for_each(|(name, value)| table.row(vec![name.clone(), value.clone()]));
            out.push_str(&format!("\n## {}\n\n{}", table.title, markdown_table(&table)));
        }
        if !self.input.resolved_scenario.is_empty() {
            // A fence longer than any in the text.
            let longest = self.input.resolved_scenario.split(|c| c != '`').map(str::len).max().unwrap_or(0);
            let fence = "`".repeat(longest.max(2) + 1);
            let text = self.input.resolved_scenario.trim_end();
            out.push_str(&format!("\n## Scenario, defaults resolved\n\n{fence}toml\n{text}\n{fence}\n"));
        }
        if !self.input.command.is_empty() {
            out.push_str(&format!("\nMade with `{}`.\n", self.input.command));
        }
        out
    }
}
