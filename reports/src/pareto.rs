//! Plans that no other beats in all that is weighed.

use crate::csv_tables::into_io;
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::draw::palette;
use crate::draw::plot::{Axis, Frame, range};
use crate::draw::scene::{Key, Mark, Scene};
use crate::tables::Table;
use crate::unit::Unit;

/// What is weighed.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Weighed {
    /// Its name with what it is of, such as `money per million tokens`.
    pub name: String,
    /// Its key in CSV, with the unit, such as `usd_per_million_tokens`.
    pub key: String,
    /// Its unit.
    pub unit: Unit,
}

impl Weighed {
    /// A value in words; a few cents in digits enough to tell them apart.
    fn text(&self, value: f64) -> String {
        if self.unit == Unit::Dollars && value.abs() < 10.0 { format!("${value:.4}") } else { self.unit.text(value) }
    }
}

/// One plan of the front.
#[derive(Clone, PartialEq, Debug)]
pub struct FrontPoint {
    /// The plan in one line.
    pub plan: String,
    /// Devices that it uses.
    pub devices: u64,
    /// What is weighed of it, in that order.
    pub values: Vec<f64>,
    /// Whether it is the one that was chosen.
    pub chosen: bool,
}

/// A front; whoever searched for it fills it.
#[derive(Clone, PartialEq, Debug)]
pub struct ParetoFront {
    /// The page's title.
    pub title: String,
    /// What was searched; may be empty.
    pub description: String,
    /// What is weighed, two or more.
    pub weighed: Vec<Weighed>,
    /// The plans, by the first of what is weighed.
    pub points: Vec<FrontPoint>,
    /// Devices that there are.
    pub devices: u64,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl ParetoFront {
    /// The plans as a table; what is best of each column is marked.
    #[must_use]
    pub fn table(&self) -> Table {
        let numbers = self.weighed.iter().map(|of| format!(">{}", of.name)).collect::<Vec<_>>();
        let columns = [">", "plan", ">devices"].into_iter().chain(numbers.iter().map(String::as_str)).chain(["notes"]);
        let mut table = Table::new("Plans", &columns.collect::<Vec<_>>());
        for (number, point) in self.points.iter().enumerate() {
            let mut row = vec![(number + 1).to_string(), point.plan.clone(), point.devices.to_string()];
            row.extend(self.weighed.iter().zip(&point.values).map(|(of, value)| of.text(*value)));
            row.push(self.notes(point));
            table.row(row);
        }
        table
    }

    fn notes(&self, point: &FrontPoint) -> String {
        let least = |at: usize| self.points.iter().map(|point| point.values[at]).fold(f64::INFINITY, f64::min);
        let best = (0..self.weighed.len()).filter(|at| point.values[*at] <= least(*at));
        let best = best.map(|at| format!("least {}", self.weighed[at].name));
        best.chain(point.chosen.then(|| "chosen".to_owned())).collect::<Vec<_>>().join(", ")
    }

    /// Writes the plans as CSV: plan, devices, what is weighed by its key, and whether it was chosen.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn csv(&self, out: impl std::io::Write) -> std::io::Result<()> {
        let mut csv = csv::Writer::from_writer(out);
        let keys = self.weighed.iter().map(|of| of.key.as_str());
        csv.write_record(["plan", "devices"].into_iter().chain(keys).chain(["chosen"])).map_err(into_io)?;
        for point in &self.points {
            let mut row = vec![point.plan.clone(), point.devices.to_string()];
            row.extend(point.values.iter().map(f64::to_string));
            row.push(point.chosen.to_string());
            csv.write_record(&row).map_err(into_io)?;
        }
        csv.flush()
    }

    /// The page.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut figures = vec![Figure::new("plans on the front", self.points.len().to_string(), "")];
        for (at, of) in self.weighed.iter().enumerate() {
            if let Some((low, high)) = range(self.points.iter().map(|point| point.values[at])) {
                figures.push(Figure::new(of.name.clone(), format!("{} to {}", of.text(low), of.text(high)), ""));
            }
        }
        let note = "No other plan is at least as good as one of these in all that is weighed. Left and low is good.";
        let mut section = Section::new("Front", note);
        if !self.points.is_empty() {
            let keys = vec![
                Key::filled(palette::CURVES[0], "on the front"),
                Key::line(palette::CURVES[0], "best of these two alone"),
                Key::filled(palette::CURVES[1], "chosen"),
            ];
            section.blocks.push(Block::Picture(Picture::new("pareto.svg", "", self.scene(), keys)));
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

    /// The picture alone.
    #[must_use]
    pub fn picture(&self) -> Option<Picture> {
        self.document().sections.remove(0).blocks.into_iter().find_map(|block| match block {
            Block::Picture(picture) => Some(picture),
            Block::Table(_) | Block::LongTable(_) | Block::Words(_) => None,
        })
    }

    /// Everything against the first of what is weighed, side by side.
    fn scene(&self) -> Scene {
        const WIDTH: f64 = 1200.0;
        const HEIGHT: f64 = 300.0;
        let names = self.weighed.iter().map(|of| of.name.as_str()).collect::<Vec<_>>();
        let mut scene = Scene::new(WIDTH, format!("Plans that no other beats in {}", names.join(", ")));
        let panels = self.weighed.len().saturating_sub(1).max(1) as f64;
        let wide = WIDTH / panels;
        for at in 1..self.weighed.len() {
            let left = (at - 1) as f64 * wide + 86.0;
            let frame = Frame {
                left,
                top: 26.0,
                width: wide - 86.0 - 34.0,
                height: HEIGHT,
                x: self.axis(0, 5),
                y: self.axis(at, 6),
            };
            frame.draw(&mut scene, 11.0);
            frame.name_axes(&mut scene, &self.weighed[0].name, &self.weighed[at].name, 11.0);
            self.draw(&mut scene, &frame, at);
            scene.height = frame.bottom() + 42.0;
        }
        scene
    }

    /// An axis with a twentieth of room at both ends.
    fn axis(&self, at: usize, ticks: u32) -> Axis {
        let (low, high) = range(self.points.iter().map(|point| point.values[at])).unwrap_or((0.0, 1.0));
        let room = if high > low { (high - low) / 20.0 } else { high.abs().max(1e-9) / 20.0 };
        Axis::of(self.weighed[at].unit, (low - room).max(0.0), high + room, ticks)
    }

    /// All points, with a line through those that are best of these two alone.
    fn draw(&self, scene: &mut Scene, frame: &Frame, at: usize) {
        let mut steps: Vec<(f64, f64)> = Vec::new();
        for point in &self.points {
            let (x, y) = frame.at(point.values[0], point.values[at]);
            // Points are in the order of x; y grows downwards.
            match steps.last().copied() {
                Some((_, lowest)) if y <= lowest => {}
                Some((_, lowest)) => steps.extend([(x, lowest), (x, y)]),
                None => steps.push((x, y)),
            }
        }
        let colour = palette::CURVES[0];
        scene.marks.push(Mark::Path { points: steps, width: 1.5, colour, dashed: false });
        // What was chosen lies on top.
        let (chosen, others): (Vec<_>, Vec<_>) = self.points.iter().partition(|point| point.chosen);
        for point in others.into_iter().chain(chosen) {
            let values = self.weighed.iter().zip(&point.values).map(|(of, value)| of.text(*value));
            let title =
                format!("{} on {} devices: {}", point.plan, point.devices, values.collect::<Vec<_>>().join(", "));
            let (fill, radius) = if point.chosen { (palette::CURVES[1], 5.0) } else { (colour, 3.0) };
            let place = frame.at(point.values[0], point.values[at]);
            scene.marks.push(Mark::Dots { points: vec![place], radius, fill, title });
        }
    }
}
