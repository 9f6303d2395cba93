//! Answers to the inverse questions: how many of which device, how long, how much.

use serde::Serialize;

use crate::csv_tables::into_io;
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::draw::palette;
use crate::draw::plot::{Axis, Frame, range};
use crate::draw::scene::{Anchor, Ink, Key, Mark, Scene, cut};
use crate::show;
use crate::tables::Table;
use crate::unit::Unit;

/// A value and its 90 % interval, in the unit of the field that holds it.
#[derive(Clone, Copy, PartialEq, Debug, Serialize)]
pub struct Interval {
    /// The lower end.
    pub low: f64,
    /// The value itself.
    pub expected: f64,
    /// The upper end.
    pub high: f64,
}

impl Interval {
    /// The interval of a value that depends on this one in proportion, such as cost on time.
    #[must_use]
    pub fn times(self, factor: f64) -> Self {
        Self { low: self.low * factor, expected: self.expected * factor, high: self.high * factor }
    }

    fn text(self, unit: Unit) -> String {
        unit.interval(self.low, self.expected, self.high)
    }
}

/// One way to do it; whoever sizes fills it.
#[derive(Clone, PartialEq, Debug)]
pub struct SizingOption {
    /// The device kind.
    pub device: String,
    /// Nodes.
    pub nodes: u64,
    /// Devices.
    pub devices: u64,
    /// The plan in one line; empty where none fits.
    pub plan: String,
    /// One step, seconds.
    pub step_s: Option<Interval>,
    /// The whole training, days.
    pub days: Option<Interval>,
    /// Devices times hours.
    pub device_hours: Option<Interval>,
    /// Money, US dollars.
    pub dollars: Option<Interval>,
    /// Energy, megawatt-hours.
    pub megawatt_hours: Option<Interval>,
    /// Whether a plan fits into the devices' memory.
    pub fits: bool,
    /// Whether it keeps to what was asked (deadline, budget).
    pub suffices: bool,
    /// Why not, what it rests on, what limits it; may be empty.
    pub notes: String,
}

/// A question and its options.
#[derive(Clone, PartialEq, Debug)]
pub struct Sizing {
    /// The question, such as `70B on 2T tokens in 30 days: how many of which device?`
    pub question: String,
    /// The answer in a sentence or two.
    pub answer: String,
    /// What a reader must know before trusting it.
    pub warnings: Vec<String>,
    /// Options; of one device kind by number of devices.
    pub options: Vec<SizingOption>,
    /// The option that the answer names.
    pub chosen: Option<usize>,
    /// The latest end, days.
    pub deadline_days: Option<f64>,
    /// The most money, US dollars.
    pub budget_dollars: Option<f64>,
    /// Everything that went in, prices and their sources included: name and value, in order.
    pub inputs: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl Sizing {
    /// The options as a table: what they take, and whether they do.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = ["device", ">devices", ">nodes", ">time", ">cost", ">energy", "", "notes"];
        let mut table = Table::new("Options", &columns);
        for (index, option) in self.options.iter().enumerate() {
            table.row(vec![
                option.device.clone(),
                show::count(option.devices),
                show::count(option.nodes),
                with_interval(option.days, Unit::Days),
                with_interval(option.dollars, Unit::Dollars),
                with_interval(option.megawatt_hours, Unit::MegawattHours),
                self.verdict(index).to_owned(),
                option.notes.clone(),
            ]);
        }
        table.note = "In brackets the 90 % interval.".to_owned();
        table
    }

    /// The plan of each option that has one, and what its step takes.
    #[must_use]
    pub fn plan_table(&self) -> Table {
        let mut table = Table::new("Plans", &["device", ">devices", "plan", ">step", ">device-hours"]);
        for option in self.options.iter().filter(|option| !option.plan.is_empty()) {
            table.row(vec![
                option.device.clone(),
                show::count(option.devices),
                option.plan.clone(),
                with_interval(option.step_s, Unit::Seconds),
                with_interval(option.device_hours, Unit::DeviceHours),
            ]);
        }
        table
    }

    fn verdict(&self, index: usize) -> &'static str {
        let option = &self.options[index];
        match (self.chosen == Some(index), option.fits, option.suffices) {
            (true, _, _) => "chosen",
            (false, false, _) => "does not fit",
            (false, true, true) => "suffices",
            (false, true, false) => "does not suffice",
        }
    }

    /// Writes the options as CSV, units in the headings; a value that is missing is an empty cell.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn csv(&self, out: impl std::io::Write) -> std::io::Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        let mut headings = vec!["device".to_owned(), "nodes".to_owned(), "devices".to_owned(), "plan".to_owned()];
        for name in ["step_s", "days", "device_hours", "dollars", "megawatt_hours"] {
            headings.extend([name.to_owned(), format!("{name}_low"), format!("{name}_high")]);
        }
        headings.extend(["fits", "suffices", "chosen", "notes"].map(str::to_owned));
        csv.write_record(&headings).map_err(into_io)?;
        for (index, option) in self.options.iter().enumerate() {
            let (nodes, devices) = (option.nodes.to_string(), option.devices.to_string());
            let mut line = vec![option.device.clone(), nodes, devices, option.plan.clone()];
            for value in [option.step_s, option.days, option.device_hours, option.dollars, option.megawatt_hours] {
                let cells = value.map(|v| [v.expected, v.low, v.high].map(|v| v.to_string()));
                line.extend(cells.unwrap_or_default());
            }
            let chosen = self.chosen == Some(index);
            line.extend([option.fits, option.suffices, chosen].map(|flag| flag.to_string()));
            line.push(option.notes.clone());
            csv.write_record(&line).map_err(into_io)?;
        }
        csv.flush()
    }

    /// The page.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut section = Section::new("Options", "");
        let pictures = [
            ("sizing-time.svg", "Time against devices", self.scene(&Measure::Time)),
            ("sizing-cost.svg", "Cost against devices", self.scene(&Measure::Cost)),
        ];
        for (file, heading, picture) in pictures {
            if let Some((scene, keys)) = picture {
                let note = "Bars are 90 % intervals; both axes are logarithmic; a ring marks the chosen option.";
                section.blocks.push(Block::Picture(Picture::new(file, heading, scene, keys).noted(note)));
            }
        }
        section.blocks.push(Block::Table(self.table()));
        let plans = self.plan_table();
        if !plans.rows.is_empty() {
            section.blocks.push(Block::Table(plans));
        }
        Document {
            title: self.question.clone(),
            description: self.answer.clone(),
            warnings: self.warnings.clone(),
            figures: self.figures(),
            sections: vec![section],
            assumptions: self.inputs.clone(),
            command: self.command.clone(),
        }
    }

    fn figures(&self) -> Vec<Figure> {
        let Some(option) = self.chosen.and_then(|index| self.options.get(index)) else { return Vec::new() };
        let devices = format!("{} \u{d7} {}", show::count(option.devices), option.device);
        let nodes = show::plural(option.nodes, "node", "nodes");
        let mut figures = vec![Figure::new("chosen", devices, nodes)];
        let measures = [
            ("time", option.days, Unit::Days),
            ("cost", option.dollars, Unit::Dollars),
            ("device-hours", option.device_hours, Unit::DeviceHours),
            ("energy", option.megawatt_hours, Unit::MegawattHours),
        ];
        for (name, value, unit) in measures {
            if let Some(value) = value {
                let text = value.text(unit);
                let (value, interval) = text.split_once(" (").unwrap_or((&text, ""));
                figures.push(Figure::new(name, value, interval.trim_end_matches(')')));
            }
        }
        figures
    }

    /// Device kinds, in order of first appearance.
    fn kinds(&self) -> Vec<&str> {
        let mut kinds: Vec<&str> = Vec::new();
        for option in &self.options {
            if !kinds.contains(&option.device.as_str()) {
                kinds.push(&option.device);
            }
        }
        kinds
    }

    fn scene(&self, measure: &Measure) -> Option<(Scene, Vec<Key>)> {
        let point = |option: &SizingOption| {
            let value = measure.of(option)?;
            (option.devices > 0 && value.low > 0.0).then_some((option.devices as f64, value))
        };
        let points: Vec<(f64, Interval)> = self.options.iter().filter_map(point).collect();
        let (first, last) = range(points.iter().map(|(devices, _)| *devices))?;
        let ends = points.iter().flat_map(|(_, value)| [value.low, value.high]).chain(measure.limit(self));
        let (low, high) = range(ends)?;
        if points.len() < 2 {
            return None;
        }
        let mut scene = Scene::new(1200.0, format!("{} against the number of devices", measure.name()));
        let frame = Frame {
            left: 100.0,
            top: 26.0,
            width: 1070.0,
            height: 320.0,
            x: device_axis(&points, first / 1.25, last * 1.25),
            y: Axis::logarithmic(low / 1.15, high * 1.15, |value| measure.unit().tick(value)),
        };
        frame.draw(&mut scene, 11.0);
        frame.name_axes(&mut scene, "devices", measure.name(), 11.0);
        let mut keys = Vec::new();
        let shown = |kind: &&str| self.options.iter().any(|option| option.device == *kind && point(option).is_some());
        let kinds: Vec<&str> = self.kinds().into_iter().filter(shown).collect();
        for (place, kind) in kinds.iter().enumerate() {
            let colour = palette::CURVES[place % palette::CURVES.len()];
            let dashed = place >= palette::CURVES.len();
            keys.push(Key::line(colour, if dashed { format!("{kind} (dashed)") } else { (*kind).to_owned() }));
            // Kinds stand a little beside each other, so that their intervals can be told apart.
            let shift = (place as f64 - (kinds.len() - 1) as f64 / 2.0) * 5.0;
            self.draw_kind(&mut scene, &frame, measure, (kind, colour, dashed, shift));
        }
        if let Some(limit) = measure.limit(self) {
            let ((left, y), right) = (frame.at(frame.x.low(), limit), frame.right());
            scene.marks.push(Mark::Line {
                from: (left, y),
                to: (right, y),
                width: 1.5,
                colour: palette::ALARM,
                dashed: true,
            });
            let words = measure.limit_words(limit);
            scene.text(right - 6.0, y - 5.0, 11.0, Anchor::End, Ink::Plain(palette::ALARM), words);
        }
        scene.height = frame.bottom() + 42.0;
        Some((scene, keys))
    }

    fn draw_kind(
        &self,
        scene: &mut Scene,
        frame: &Frame,
        measure: &Measure,
        (kind, colour, dashed, shift): (&str, crate::activity::Colour, bool, f64),
    ) {
        let of_kind = self.options.iter().enumerate().filter(|(_, option)| option.device == kind);
        let mut line = Vec::new();
        for (index, option) in of_kind {
            let Some(value) = measure.of(option).filter(|value| value.low > 0.0) else { continue };
            let at = |value: f64| {
                let (x, y) = frame.at(option.devices as f64, value);
                (x + shift, y)
            };
            let (low, middle, high) = (at(value.low), at(value.expected), at(value.high));
            line.push(middle);
            scene.line(low, high, 1.5, colour);
            for (x, y) in [low, high] {
                scene.line((x - 3.5, y), (x + 3.5, y), 1.5, colour);
            }
            let title = format!("{} {}: {}", option.devices, cut(kind, 400.0, 11.0), value.text(measure.unit()));
            if self.chosen == Some(index) {
                let points = vec![middle];
                scene.marks.push(Mark::Dots { points, radius: 8.0, fill: palette::TEXT, title: title.clone() });
                let points = vec![middle];
                scene.marks.push(Mark::Dots { points, radius: 6.0, fill: palette::GROUND, title: title.clone() });
            }
            scene.marks.push(Mark::Dots { points: vec![middle], radius: 3.6, fill: colour, title });
        }
        if line.len() < 2 {
            return;
        }
        line.sort_by(|a, b| a.0.total_cmp(&b.0));
        scene.marks.push(Mark::Path { points: line, width: 1.5, colour, dashed });
    }
}

fn with_interval(value: Option<Interval>, unit: Unit) -> String {
    value.map_or_else(|| "\u{2013}".to_owned(), |value| value.text(unit))
}

/// Ticks at the numbers of devices themselves where they are few.
fn device_axis(points: &[(f64, Interval)], low: f64, high: f64) -> Axis {
    let mut values: Vec<f64> = points.iter().map(|(devices, _)| *devices).collect();
    values.sort_by(f64::total_cmp);
    values.dedup();
    if values.len() > 16 {
        return Axis::logarithmic(low, high, |value| Unit::Count.tick(value));
    }
    Axis::logarithmic_at(low, high, values.into_iter().map(|value| (value, Unit::Count.tick(value))).collect())
}

/// What a curve shows.
enum Measure {
    Time,
    Cost,
}

impl Measure {
    fn of(&self, option: &SizingOption) -> Option<Interval> {
        match self {
            Self::Time => option.days,
            Self::Cost => option.dollars,
        }
    }
    const fn name(&self) -> &'static str {
        match self {
            Self::Time => "time, days",
            Self::Cost => "cost, US dollars",
        }
    }
    const fn unit(&self) -> Unit {
        match self {
            Self::Time => Unit::Days,
            Self::Cost => Unit::Dollars,
        }
    }
    const fn limit(&self, sizing: &Sizing) -> Option<f64> {
        match self {
            Self::Time => sizing.deadline_days,
            Self::Cost => sizing.budget_dollars,
        }
    }
    fn limit_words(&self, limit: f64) -> String {
        let what = match self {
            Self::Time => "deadline",
            Self::Cost => "budget",
        };
        format!("{what}: {}", self.unit().text(limit))
    }
}
