//! What checkpoints and failures leave of a run of months: where its time goes, and how that hangs on the interval between
//! checkpoints.

use std::collections::BTreeMap;

use ir::RunPart;
use serde::Serialize;

use crate::activity::Colour;
use crate::document::{Block, Picture, Section};
use crate::draw::palette;
use crate::draw::plot::{Axis, Frame, range};
use crate::draw::scene::{Anchor, Ink, Key, Mark, Scene};
use crate::show;
use crate::sizing::Interval;
use crate::tables::Table;
use crate::unit::Unit;

/// A run of months in figures; whoever simulates it fills it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LongRunSummary {
    /// Useful work over elapsed time: median of the simulated runs and what nine of ten lie between.
    pub goodput: Interval,
    /// The same by the closed form, in the long run.
    pub expected_goodput: f64,
    /// Elapsed time of each run, nanoseconds: what the parts of a run add up to.
    pub duration_ns: u64,
    /// The same, days.
    pub duration_days: f64,
    /// Simulated runs; of each failures are drawn from the scenario's seed and the run's number.
    pub runs: u64,
    /// Nodes in use.
    pub nodes: u64,
    /// Nodes that stand by.
    pub spares: u64,
    /// Devices in use.
    pub devices: u64,
    /// Mean time between failures of the nodes in use, hours; `null` where nothing fails.
    pub mtbf_hours: Option<f64>,
    /// Failures, mean over the runs.
    pub failures: f64,
    /// Those that stopped a run, mean over the runs.
    pub stops: f64,
    /// How checkpoints are taken.
    pub checkpoint: CheckpointSummary,
    /// Where the time goes, part by part.
    pub parts: Vec<LongRunPart>,
    /// What one stop costs on average; `null` where nothing stopped.
    pub stop: Option<StopCost>,
    /// Goodput over the interval between checkpoints, shortest first; empty where nothing fails.
    pub intervals: Vec<IntervalPoint>,
    /// What a reader must know, in sentences.
    pub notes: Vec<String>,
    /// On what it rests: name and value.
    pub assumptions: Vec<(String, String)>,
}

/// Checkpoints of a run.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct CheckpointSummary {
    /// From the start of one to the start of the next, seconds.
    pub interval_s: f64,
    /// Iterations between two.
    pub iterations: u64,
    /// Bytes of one.
    pub bytes: u64,
    /// Training stands still for so long at each, seconds.
    pub blocked_s: f64,
    /// Written beside training for so long until it is durable, seconds.
    pub background_s: f64,
    /// Reading one at a restart, seconds.
    pub read_s: f64,
    /// Time that it takes over the interval, if nothing fails.
    pub overhead: f64,
    /// Bytes written in a day.
    pub bytes_per_day: f64,
    /// The interval with the highest expected goodput, seconds; `null` where nothing fails.
    pub best_interval_s: Option<f64>,
    /// Expected goodput there.
    pub best_goodput: Option<f64>,
    /// Training between checkpoints by Young 1974, seconds.
    pub young_interval_s: Option<f64>,
    /// The same by Daly 2006, seconds.
    pub daly_interval_s: Option<f64>,
}

/// A part of elapsed time.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct LongRunPart {
    /// What the time is spent on.
    pub part: &'static str,
    /// Of the run of median goodput, nanoseconds; all parts add up to the duration.
    pub median_run_ns: u64,
    /// Mean share over the runs.
    pub share: f64,
    /// Share by the closed form.
    pub expected_share: f64,
    /// Devices in use times hours, mean over the runs.
    pub device_hours: f64,
}

/// What one stop costs on average, in hours of the devices in use.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct StopCost {
    /// Of a failure that only the watchdog notices: the wait for it.
    pub hang_detection_device_hours: f64,
    /// Of a failure that ends a process.
    pub crash_detection_device_hours: f64,
    /// Mean over the stops that were simulated, by part: detection, restart, lost work, repair wait.
    pub mean_device_hours: BTreeMap<&'static str, f64>,
}

/// Goodput at an interval between checkpoints.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct IntervalPoint {
    /// From the start of one to the start of the next, seconds.
    pub interval_s: f64,
    /// Iterations between two.
    pub iterations: u64,
    /// By the closed form.
    pub expected_goodput: f64,
    /// Of simulated runs: median and what nine of ten lie between.
    pub goodput: Interval,
}

const fn colour(part: RunPart) -> Colour {
    match part {
        RunPart::Useful => palette::CURVES[0],
        RunPart::Checkpoint => palette::CURVES[2],
        RunPart::LostWork => palette::CURVES[1],
        RunPart::Detection => palette::LAUNCH,
        RunPart::Restart => palette::CURVES[3],
        RunPart::RepairWait => palette::IMBALANCE,
    }
}

impl LongRunSummary {
    /// The goodput in words: `93.1 % (91.8 % to 94.0 %)`.
    #[must_use]
    pub fn goodput_words(&self) -> String {
        let Interval { low, expected, high } = self.goodput;
        format!("{} ({} to {})", show::percent(expected), show::percent(low), show::percent(high))
    }

    /// The section of a page.
    #[must_use]
    pub fn section(&self) -> Section {
        let days = (self.duration_days * 100.0).round() / 100.0;
        let heading = format!("{days} days with checkpoints and failures");
        let note = format!(
            "Goodput {}: median of {} simulated runs and what nine of ten lie between; by the closed form {}.",
            self.goodput_words(),
            self.runs,
            show::percent(self.expected_goodput)
        );
        let mut section = Section::new(heading, note);
        section.blocks.extend(self.notes.iter().map(|note| Block::Words(note.clone())));
        let keys = self.shown().map(|(part, _)| Key::filled(colour(part), part.name())).collect();
        let bars = Picture::new("goodput-time.svg", "Where the time goes", self.bars(), keys);
        section.blocks.push(Block::Picture(bars));
        section.blocks.push(Block::Table(self.part_table()));
        if let Some((scene, keys)) = self.curve() {
            let picture =
                Picture::new("goodput-interval.svg", "Goodput over the interval between checkpoints", scene, keys);
            section.blocks.push(Block::Picture(picture));
        }
        section.blocks.push(Block::Table(self.checkpoint_table()));
        section
    }

    /// The tables of a terminal summary and of Markdown.
    #[must_use]
    pub fn tables(&self) -> Vec<Table> {
        vec![self.part_table(), self.checkpoint_table()]
    }

    /// Parts that take time, with their mean share.
    fn shown(&self) -> impl Iterator<Item = (RunPart, &LongRunPart)> {
        let named = |part: &RunPart| self.parts.iter().find(|of| of.part == part.name());
        let parts = RunPart::ALL.into_iter().filter_map(move |part| Some((part, named(&part)?)));
        parts.filter(|(_, of)| of.share > 0.0 || of.expected_share > 1e-9)
    }

    fn part_table(&self) -> Table {
        let columns = ["part", ">of the time", ">closed form", ">device-hours", ">one stop"];
        let mut table = Table::new("Where the time goes", &columns);
        for (part, of) in self.shown() {
            let one = self.stop.as_ref().and_then(|stop| stop.mean_device_hours.get(part.name()));
            table.row(vec![
                part.name().to_owned(),
                show::percent(of.share),
                show::percent(of.expected_share),
                Unit::DeviceHours.text(of.device_hours),
                show::or_dash(one.copied(), |hours| Unit::DeviceHours.text(hours)),
            ]);
        }
        table.note = format!(
            "Means of {} runs of {} devices. {}",
            self.runs,
            show::count(self.devices),
            self.stop.as_ref().map_or_else(
                || "Nothing stopped them.".to_owned(),
                |stop| format!(
                    "{:.1} stops each. A hang waits {} for the watchdog, a process that ends {}.",
                    self.stops,
                    Unit::DeviceHours.text(stop.hang_detection_device_hours),
                    Unit::DeviceHours.text(stop.crash_detection_device_hours)
                )
            )
        );
        table
    }

    fn checkpoint_table(&self) -> Table {
        let mut table = Table::new("Checkpoints", &["", ">"]);
        let of = &self.checkpoint;
        let mut put = |name: &str, value: String| table.row(vec![name.to_owned(), value]);
        put(
            "interval",
            format!("{}, {}", show::seconds(of.interval_s), show::plural(of.iterations, "iteration", "iterations")),
        );
        put("size", show::with_prefix(of.bytes as f64, "B"));
        put("training stands still", show::seconds(of.blocked_s));
        if of.background_s > 0.0 {
            put("written beside training", show::seconds(of.background_s));
        }
        put("read at a restart", show::seconds(of.read_s));
        put("of the time, if nothing fails", format!("{:.2} %", 100.0 * of.overhead));
        put("written in a day", show::with_prefix(of.bytes_per_day, "B"));
        if let Some(hours) = self.mtbf_hours {
            put("mean time between failures", show::seconds(hours * 3600.0));
        }
        let best = of.best_interval_s.zip(of.best_goodput);
        if let Some((seconds, goodput)) = best {
            put("best interval", format!("{}, goodput {}", show::seconds(seconds), show::percent(goodput)));
        }
        for (name, seconds) in [("by Young 1974", of.young_interval_s), ("by Daly 2006", of.daly_interval_s)] {
            if let Some(seconds) = seconds {
                put(name, show::seconds(seconds));
            }
        }
        table
    }

    /// Two bars: all of the time, and what is not useful of it, enlarged.
    fn bars(&self) -> Scene {
        const WIDTH: f64 = 1200.0;
        const LEFT: f64 = 150.0;
        const HEIGHT: f64 = 34.0;
        let mut scene = Scene::new(WIDTH, "Where the elapsed time of a long run goes");
        let sum =
            |from: usize| -> f64 { self.shown().filter(|(part, _)| *part as usize >= from).map(|p| p.1.share).sum() };
        let mut y = 8.0;
        for (name, first) in [("all of the time", 0), ("what is not useful", 1)] {
            let whole = sum(first);
            if whole <= 0.0 {
                continue;
            }
            scene.text(LEFT - 8.0, y + HEIGHT * 0.62, 12.0, Anchor::End, Ink::Plain(palette::TEXT), name);
            let mut x = LEFT;
            for (part, of) in self.shown().filter(|(part, of)| *part as usize >= first && of.share > 0.0) {
                let width = of.share / whole * (WIDTH - LEFT - 90.0);
                let title = format!("{}: {}", part.name(), show::percent(of.share));
                scene.filled_box((x, y), (width, HEIGHT), colour(part), title);
                x += width;
            }
            scene.text(
                x + 8.0,
                y + HEIGHT * 0.62,
                12.0,
                Anchor::Start,
                Ink::Plain(palette::TEXT),
                show::percent(whole),
            );
            y += HEIGHT + 14.0;
        }
        scene.height = y;
        scene
    }

    /// Goodput over the interval: the closed form as a line, simulated medians with what nine of ten lie between.
    fn curve(&self) -> Option<(Scene, Vec<Key>)> {
        let (first, last) = range(self.intervals.iter().map(|point| point.interval_s))?;
        if self.intervals.len() < 2 || first <= 0.0 {
            return None;
        }
        let values = self.intervals.iter().flat_map(|p| [p.goodput.low, p.goodput.high, p.expected_goodput]);
        let (low, high) = range(values)?;
        let margin = (0.05 * (high - low)).max(1e-4);
        let mut scene = Scene::new(1200.0, "Goodput over the interval between checkpoints");
        let frame = Frame {
            left: 80.0,
            top: 26.0,
            width: 1090.0,
            height: 300.0,
            x: Axis::logarithmic(first / 1.2, last * 1.2, |seconds| Unit::Seconds.tick(seconds)),
            y: Axis::of(Unit::Share, (low - margin).max(0.0), (high + margin).min(1.0), 6),
        };
        frame.draw(&mut scene, 11.0);
        frame.name_axes(&mut scene, "from one checkpoint to the next", "goodput", 11.0);
        let (line, dots) = (palette::CURVES[0], palette::CURVES[1]);
        let points: Vec<(f64, f64)> =
            self.intervals.iter().map(|point| frame.at(point.interval_s, point.expected_goodput)).collect();
        scene.marks.push(Mark::Path { points, width: 2.0, colour: line, dashed: false });
        for point in &self.intervals {
            let at = |value: f64| frame.at(point.interval_s, value);
            scene.line(at(point.goodput.low), at(point.goodput.high), 1.5, dots);
            let title = format!("{}: {}", show::seconds(point.interval_s), show::percent(point.goodput.expected));
            scene.marks.push(Mark::Dots { points: vec![at(point.goodput.expected)], radius: 3.6, fill: dots, title });
        }
        let here = self.checkpoint.interval_s;
        if (first..=last).contains(&here) {
            let (x, _) = frame.at(here, high);
            let (from, to) = ((x, frame.top), (x, frame.bottom()));
            scene.marks.push(Mark::Line { from, to, width: 1.5, colour: palette::MUTED, dashed: true });
            scene.text(x + 5.0, frame.bottom() - 6.0, 11.0, Anchor::Start, Ink::Plain(palette::MUTED), "as it is");
        }
        scene.height = frame.bottom() + 42.0;
        let keys = vec![
            Key::line(line, "closed form"),
            Key::filled(dots, "simulated: median, and what nine of ten runs lie between"),
        ];
        Some((scene, keys))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(fails: bool) -> LongRunSummary {
        let interval = |expected: f64| Interval { low: expected - 0.01, expected, high: expected + 0.01 };
        let part = |(part, share): (RunPart, f64)| LongRunPart {
            part: part.name(),
            median_run_ns: 1,
            share,
            expected_share: share,
            device_hours: 1000.0 * share,
        };
        let shares = if fails { [0.9, 0.02, 0.03, 0.02, 0.03, 0.0] } else { [0.99, 0.01, 0.0, 0.0, 0.0, 0.0] };
        let point = |interval_s: f64| IntervalPoint {
            interval_s,
            iterations: 10,
            expected_goodput: 0.9 - interval_s / 1e5,
            goodput: interval(0.9 - interval_s / 1e5),
        };
        LongRunSummary {
            goodput: interval(0.9),
            expected_goodput: 0.9,
            duration_ns: 54 * 86_400_000_000_000,
            duration_days: 54.0,
            runs: 100,
            nodes: 32,
            spares: 0,
            devices: 256,
            mtbf_hours: fails.then_some(3.1),
            failures: if fails { 419.0 } else { 0.0 },
            stops: if fails { 400.0 } else { 0.0 },
            checkpoint: CheckpointSummary {
                interval_s: 900.0,
                iterations: 10,
                bytes: 2_300_000_000_000,
                blocked_s: 40.0,
                background_s: 0.0,
                read_s: 40.0,
                overhead: 0.0037,
                bytes_per_day: 18.4e12,
                best_interval_s: fails.then_some(800.0),
                best_goodput: fails.then_some(0.91),
                young_interval_s: fails.then_some(930.0),
                daly_interval_s: fails.then_some(900.0),
            },
            parts: RunPart::ALL.into_iter().zip(shares).map(part).collect(),
            stop: fails.then(|| StopCost {
                hang_detection_device_hours: 128.0,
                crash_detection_device_hours: 2.0,
                mean_device_hours: BTreeMap::from([("lost work", 12.0), ("restart", 20.0)]),
            }),
            intervals: if fails { [300.0, 900.0, 2700.0].map(point).to_vec() } else { Vec::new() },
            notes: vec!["A note.".to_owned()],
            assumptions: Vec::new(),
        }
    }

    fn texts(summary: &LongRunSummary) -> (String, Vec<String>) {
        let section = summary.section();
        let mut pictures = Vec::new();
        for block in &section.blocks {
            if let Block::Picture(picture) = block {
                let svg = picture.svg();
                roxmltree::Document::parse(&svg).unwrap_or_else(|error| panic!("{error}\n{svg}"));
                assert!(!svg.contains("NaN"), "{svg}");
                pictures.push(svg);
            }
        }
        let tables = summary.tables().iter().map(crate::tables::markdown_table).collect::<String>();
        (format!("{} {} {tables}", section.heading, section.note), pictures)
    }

    #[test]
    fn a_section_says_where_the_time_goes_and_how_often_to_save() {
        let (words, pictures) = texts(&summary(true));
        for needle in ["54 days", "90.0 % (89.0 % to 91.0 %)", "lost work", "128", "best interval", "2.3", "Young 1974"]
        {
            assert!(words.contains(needle), "no {needle:?} in {words}");
        }
        assert!(!words.contains("repair wait"), "what takes no time is not shown: {words}");
        assert_eq!(pictures.len(), 2);
        let (words, pictures) = texts(&summary(false));
        assert!(words.contains("Nothing stopped them") && !words.contains("best interval"), "{words}");
        assert_eq!(pictures.len(), 1);
    }
}
