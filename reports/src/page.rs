//! The HTML page: one file, nothing fetched, no script.

use askama::Template;
use ir::{Bytes, Clock};

use crate::activity::Activity;
use crate::document::{Block, Section};
use crate::draw::scene::Key;
use crate::draw::{bars, charts, palette};
use crate::metrics::{Metrics, bounds};
use crate::report::Report;
use crate::show;
use crate::tables::{Table, class_table, stage_error_table, worst_table};

/// One figure at the top of the page.
struct Figure {
    name: &'static str,
    /// `(value, whose)`, one for each clock.
    values: Vec<(String, &'static str)>,
    note: String,
    alarm: bool,
}

/// A picture with its legend.
struct Picture {
    svg: String,
    keys: Vec<Key>,
}

/// A chart with a heading of its own.
struct Chart {
    heading: String,
    picture: Picture,
}

#[derive(Template)]
#[template(path = "report.html")]
struct Page<'a> {
    title: &'a str,
    description: &'a str,
    division: String,
    style: String,
    warnings: &'a [String],
    figures: Vec<Figure>,
    timelines_title: String,
    timelines: Picture,
    time: Picture,
    time_table: Table,
    stage_table: Table,
    comparison: Vec<Table>,
    memory: Picture,
    memory_table: Table,
    memory_over_time: Option<Chart>,
    losses: Option<Picture>,
    long_run: Option<Section>,
    provenance: &'a [(String, String)],
    resolved_scenario: &'a str,
    command: &'a str,
}

impl Report<'_> {
    /// The report as one HTML page that needs nothing else: no script, no network, no font.
    ///
    /// # Panics
    /// Only if the page's template is at odds with itself, which its tests exclude.
    #[must_use]
    pub fn html(&self) -> String {
        let metrics: Vec<&Metrics> = self.metrics.iter().collect();
        let comparison = self.comparison.iter().flat_map(|c| [class_table(c), stage_error_table(c), worst_table(c)]);
        let page = Page {
            title: &self.input.title,
            description: &self.input.description,
            division: self.division(),
            style: palette::style_sheet() + include_str!("../templates/report.css"),
            warnings: &self.warnings,
            figures: self.figures(),
            timelines_title: self.timelines_title(),
            timelines: Picture { svg: self.timeline_scene().svg(), keys: self.activity_keys() },
            time: Picture { svg: bars::time(&metrics).svg(), keys: self.time_keys() },
            time_table: self.time_table(),
            stage_table: self.stage_table(),
            comparison: comparison.filter(|table| !table.rows.is_empty()).collect(),
            memory: Picture { svg: bars::memory(&metrics).svg(), keys: self.memory_keys() },
            memory_table: self.memory_table(),
            memory_over_time: self.memory_over_time(),
            losses: self.loss_picture(),
            long_run: self.input.long_run.as_ref().map(crate::long_run::LongRunSummary::section),
            provenance: &self.input.provenance,
            resolved_scenario: &self.input.resolved_scenario,
            command: &self.input.command,
        };
        page.render().expect("a page of strings has a text form")
    }

    fn timelines_title(&self) -> String {
        match self.machines.as_slice() {
            [one] if one.clock == Clock::Simulated => "Pipeline timeline, simulated".to_owned(),
            [one] if one.clock == Clock::Measured => "Pipeline timeline, measured".to_owned(),
            _ => "Pipeline timelines, simulated and measured".to_owned(),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let figure = |name: &'static str, value: &dyn Fn(&Metrics) -> Option<String>| {
            let values = self.metrics.iter().filter_map(|m| Some((value(m)?, m.clock.word()))).collect();
            Figure { name, values, note: String::new(), alarm: false }
        };
        let mut time = figure("iteration", &|m| Some(show::nanoseconds(m.iteration_ns as f64)));
        if let Some(comparison) = &self.comparison {
            // A number and its unit stay on one line.
            let error = show::signed_percent(comparison.iteration.relative_error).replace(' ', "\u{a0}");
            time.note = format!("prediction off by {error}");
            if comparison.measured_iterations > 1 {
                time.note.push_str(&format!(", median of {}", comparison.measured_iterations));
            }
        }
        let most = |m: &Metrics| m.stages.iter().max_by_key(|s| s.memory.peak_bytes).map(|s| s.memory.clone());
        let mut memory = figure("peak memory", &|m| Some(show::bytes(Bytes::new(most(m)?.peak_bytes))));
        let fullest = self.metrics.first().and_then(most);
        if let Some((peak, capacity)) = fullest.and_then(|m| Some((m.peak_bytes, m.capacity_bytes?))) {
            memory.note = format!("capacity {}", show::bytes(Bytes::new(capacity)));
            memory.alarm = peak > capacity;
        }
        let mut error = figure("instruction error", &|_| None);
        if let Some(comparison) = &self.comparison {
            error.values.push((show::percent(comparison.all.median_relative_error), "median"));
            error.values.push((show::percent(comparison.all.p90_relative_error), "90th percentile"));
        }
        let figures = [
            time,
            figure("bubble rate", &|m| m.bubble_rate.map(show::percent)),
            figure("tokens per second", &|m| Some(show::with_prefix(m.tokens_per_second, ""))),
            figure("of peak (MFU)", &|m| m.model_flops_utilization.map(show::percent)),
            memory,
            error,
        ];
        figures.into_iter().filter(|figure| !figure.values.is_empty()).collect()
    }

    fn activity_keys(&self) -> Vec<Key> {
        let key = |activity: Activity| Key::filled(activity.colour(), activity.name());
        self.activities().into_iter().map(key).collect()
    }

    fn time_keys(&self) -> Vec<Key> {
        let used =
            |activity: &Activity| self.metrics.iter().any(|m| m.stages.iter().any(|s| s.time.get(*activity) > 0));
        let name = |activity: Activity| {
            if activity.is_communication() {
                format!("exposed {}", activity.name())
            } else {
                activity.name().to_owned()
            }
        };
        Activity::ALL.into_iter().filter(used).map(|activity| Key::filled(activity.colour(), name(activity))).collect()
    }

    fn memory_keys(&self) -> Vec<Key> {
        let metrics: Vec<&Metrics> = self.metrics.iter().collect();
        let kinds = bars::kinds_present(&metrics).into_iter();
        let mut keys: Vec<Key> = kinds.map(|kind| Key::filled(palette::buffer(kind), kind.name())).collect();
        if self.metrics.iter().flat_map(|m| &m.stages).any(|stage| stage.memory.capacity_bytes.is_some()) {
            keys.push(Key::line(palette::ALARM, "capacity"));
        }
        keys
    }

    /// The curve of the rank that is nearest to its capacity, or needs most where that is not known.
    fn memory_over_time(&self) -> Option<Chart> {
        let (machine, metrics) = self.machines.iter().zip(&self.metrics).next()?;
        let fullness = |stage: &&crate::metrics::StageMetrics| {
            let memory = &stage.memory;
            let share = memory.capacity_bytes.map_or(0.0, |c| memory.peak_bytes as f64 / c.max(1) as f64);
            (share, memory.peak_bytes)
        };
        let worst = metrics.stages.iter().max_by(|a, b| {
            let (a, b) = (fullness(a), fullness(b));
            // Of equals the first stage.
            a.0.total_cmp(&b.0).then(a.1.cmp(&b.1)).then(std::cmp::Ordering::Greater)
        })?;
        let lane = machine.median.lanes.iter().find(|lane| lane.rank == worst.memory.rank)?;
        let mut keys = self.memory_keys();
        keys.retain(|key| !key.is_line());
        let mut counted = Vec::new();
        for machine in &self.machines {
            let begin = bounds(machine.median).0;
            let same = machine.median.lanes.iter().find(|l| l.rank == lane.rank && !l.memory.is_empty());
            let Some(same) = same else { continue };
            let relative =
                |(time, bytes): &(ir::SimTime, Bytes)| (time.nanoseconds().saturating_sub(begin), bytes.get());
            let name = format!("total, {}", machine.clock.word());
            let colour = if counted.is_empty() { palette::TEXT } else { palette::CURVES[counted.len()] };
            keys.push(Key::line(colour, name.clone()));
            counted.push((name, same.memory.iter().map(relative).collect()));
        }
        if worst.memory.capacity_bytes.is_some_and(|capacity| capacity <= 3 * worst.memory.peak_bytes) {
            keys.push(Key::line(palette::ALARM, "capacity"));
        }
        let svg = charts::memory_over_time(
            self.input.program,
            lane,
            bounds(machine.median),
            &counted,
            worst.memory.capacity_bytes,
        );
        let heading = format!(
            "Over time: stage {}, rank {}, {}",
            worst.stage.raw(),
            worst.memory.rank.raw(),
            machine.clock.word()
        );
        Some(Chart { heading, picture: Picture { svg, keys } })
    }

    fn loss_picture(&self) -> Option<Picture> {
        let curve = |losses: &crate::LossCurve| charts::Curve {
            name: losses.name.clone(),
            points: losses.loss_nats_per_token.iter().enumerate().map(|(i, loss)| (i as f64, *loss)).collect(),
        };
        let curves: Vec<charts::Curve> = self.input.losses.iter().map(curve).collect();
        let svg = charts::losses(&curves)?;
        let key = |(index, curve): (usize, &charts::Curve)| {
            Key::line(palette::CURVES[index % palette::CURVES.len()], curve.name.clone())
        };
        Some(Picture { svg, keys: curves.iter().enumerate().map(key).collect() })
    }
}
