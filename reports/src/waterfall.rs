//! Where a step's time goes, cause by cause, and what each would give back.
//!
//! The parts are disjoint and sum up to the step. What a part *gives back* is another question: without it the rest may
//! move, so it is the step less the step priced anew without that part, which the caller states as
//! [`Part::step_without`]. It can be less than the part (other work takes its place) or more (others waited for it).

use ir::{Problem, SimDuration};
use serde::Serialize;

use crate::activity::{Activity, Colour};
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::draw::palette;
use crate::draw::plot::Axis;
use crate::draw::scene::{Anchor, Ink, Key, Mark, Scene, text_width};
use crate::show;
use crate::tables::Table;
use crate::unit::Unit;

/// What a part of a step is put down to. Order is the order of the picture.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// Forward and backward passes, as they would take alone and evenly divided.
    Compute,
    /// Forward passes done again for the backward pass.
    Recomputation,
    /// Waiting for kernels to be launched by the host.
    Launch,
    /// What the slowest stage or device takes beyond the mean.
    Imbalance,
    /// Waiting for other pipeline stages.
    Bubble,
    /// Exposed collectives of the tensor group.
    TensorCommunication,
    /// Exposed exchange between context ranks.
    ContextCommunication,
    /// Exposed exchange between expert ranks.
    ExpertCommunication,
    /// Exposed messages between stages.
    PipelineCommunication,
    /// Exposed collectives over replicas.
    DataCommunication,
    /// Exposed copies to and from host memory.
    HostCopy,
    /// Waiting for the input pipeline.
    InputStall,
    /// The gradient's norm, clipping and the optimizer step.
    Optimizer,
}

impl Cause {
    /// All of them, in order.
    pub const ALL: [Self; 13] = [
        Self::Compute,
        Self::Recomputation,
        Self::Launch,
        Self::Imbalance,
        Self::Bubble,
        Self::TensorCommunication,
        Self::ContextCommunication,
        Self::ExpertCommunication,
        Self::PipelineCommunication,
        Self::DataCommunication,
        Self::HostCopy,
        Self::InputStall,
        Self::Optimizer,
    ];

    /// Its name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Compute => "compute",
            Self::Recomputation => "recomputation",
            Self::Launch => "kernel launch by the host",
            Self::Imbalance => "imbalance",
            Self::Bubble => "bubble",
            Self::TensorCommunication => "exposed tensor communication",
            Self::ContextCommunication => "exposed context communication",
            Self::ExpertCommunication => "exposed expert communication",
            Self::PipelineCommunication => "exposed pipeline communication",
            Self::DataCommunication => "exposed data communication",
            Self::HostCopy => "copies to the host",
            Self::InputStall => "input stalls",
            Self::Optimizer => "optimizer",
        }
    }

    const fn colour(self) -> Colour {
        match self {
            Self::Compute => Activity::Forward.colour(),
            Self::Recomputation => Activity::Recompute.colour(),
            Self::Launch => palette::LAUNCH,
            Self::Imbalance => palette::IMBALANCE,
            Self::Bubble => Activity::Bubble.colour(),
            Self::TensorCommunication => Activity::TensorCommunication.colour(),
            Self::ContextCommunication => Activity::ContextCommunication.colour(),
            Self::ExpertCommunication => Activity::ExpertCommunication.colour(),
            Self::PipelineCommunication => Activity::PipelineCommunication.colour(),
            Self::DataCommunication => Activity::DataCommunication.colour(),
            Self::HostCopy => Activity::HostCopy.colour(),
            Self::InputStall => Activity::InputStall.colour(),
            Self::Optimizer => Activity::Optimizer.colour(),
        }
    }
}

/// One part of a step.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Part {
    /// What it is put down to; each cause at most once.
    pub cause: Cause,
    /// How much of the step it is.
    pub time: SimDuration,
    /// The step if this part cost nothing, everything else priced anew; `None` where that means nothing.
    pub step_without: Option<SimDuration>,
    /// What would shrink it, in words; may be empty.
    pub advice: String,
}

/// A step divided into its parts; whoever prices plans fills it.
#[derive(Clone, PartialEq, Debug)]
pub struct Waterfall {
    /// What it is of: scenario and plan.
    pub title: String,
    /// A sentence under it; may be empty.
    pub description: String,
    /// The whole step.
    pub step: SimDuration,
    /// The 90 % interval of the step, where there is one.
    pub interval: Option<(SimDuration, SimDuration)>,
    /// Its parts, in any order; they sum up to the step.
    pub parts: Vec<Part>,
    /// What a reader must know before trusting a number.
    pub warnings: Vec<String>,
    /// On what the numbers rest: name and value, in order.
    pub assumptions: Vec<(String, String)>,
    /// The command that makes the page again; may be empty.
    pub command: String,
}

impl Waterfall {
    /// Whether the parts are of different causes and sum up to the step, to a nanosecond for each part.
    ///
    /// # Errors
    /// Every reason why not.
    pub fn check(&self) -> Result<(), Vec<Problem>> {
        let mut problems = Vec::new();
        for cause in Cause::ALL {
            if self.parts.iter().filter(|part| part.cause == cause).count() > 1 {
                problems.push(Problem::new("waterfall", format!("{} stands twice", cause.name())));
            }
        }
        let sum: u128 = self.parts.iter().map(|part| u128::from(part.time.nanoseconds())).sum();
        let step = u128::from(self.step.nanoseconds());
        if sum.abs_diff(step) > self.parts.len() as u128 {
            let message = format!("the parts sum up to {sum} ns, the step takes {step} ns");
            problems.push(Problem::new("waterfall", message));
        }
        if problems.is_empty() { Ok(()) } else { Err(problems) }
    }

    /// The parts that take time, in order of [`Cause::ALL`].
    fn shown(&self) -> Vec<&Part> {
        let mut parts: Vec<&Part> = self.parts.iter().filter(|part| part.time > SimDuration::ZERO).collect();
        parts.sort_by_key(|part| part.cause);
        parts
    }

    fn gives_back(&self, part: &Part) -> Option<f64> {
        Some(self.step.nanoseconds() as f64 - part.step_without?.nanoseconds() as f64)
    }

    /// The parts as a table, and as what a terminal prints.
    #[must_use]
    pub fn table(&self) -> Table {
        let columns = ["part", ">time", ">share", ">gives back", ">of the step", "what would shrink it"];
        let mut table = Table::new("Where the step goes", &columns);
        let step = self.step.nanoseconds().max(1) as f64;
        for part in self.shown() {
            let time = part.time.nanoseconds() as f64;
            let back = self.gives_back(part);
            table.row(vec![
                part.cause.name().to_owned(),
                show::nanoseconds(time),
                show::percent(time / step),
                show::or_dash(back, show::nanoseconds),
                show::or_dash(back, |back| show::percent(back / step)),
                part.advice.clone(),
            ]);
        }
        table.row(vec![
            "step".to_owned(),
            show::nanoseconds(step),
            show::percent(1.0),
            String::new(),
            String::new(),
            String::new(),
        ]);
        table.note = "Gives back: the step less the step priced anew as if the part cost nothing.".to_owned();
        table
    }

    /// The page.
    #[must_use]
    pub fn document(&self) -> Document {
        let mut section = Section::new(
            "Where the step goes",
            "Each bar starts where the one above ends. The upright stroke in a bar marks how much the step would shrink if \
             that part cost nothing.",
        );
        section.blocks.push(Block::Picture(Picture::new("waterfall.svg", "", self.scene(), self.keys())));
        section.blocks.push(Block::Table(self.table()));
        let interval = self.interval.map_or_else(String::new, |(low, high)| {
            format!("90 % interval {} to {}", show::duration(low), show::duration(high))
        });
        let mut figures = vec![Figure::new("step", show::duration(self.step), interval)];
        let step = self.step.nanoseconds().max(1) as f64;
        let best = self.parts.iter().filter(|part| part.cause != Cause::Compute);
        let best = best.filter_map(|part| Some((self.gives_back(part)?, part)));
        if let Some((back, part)) = best.max_by(|a, b| a.0.total_cmp(&b.0)).filter(|(back, _)| *back > 0.0) {
            let name = format!("most to gain: {}", part.cause.name());
            figures.push(Figure::new(name, show::percent(back / step), show::nanoseconds(back)));
        }
        Document {
            title: self.title.clone(),
            description: self.description.clone(),
            warnings: self.warnings.clone(),
            figures,
            sections: vec![section],
            assumptions: self.assumptions.clone(),
            command: self.command.clone(),
        }
    }

    fn keys(&self) -> Vec<Key> {
        let gives_back = self.parts.iter().any(|part| part.step_without.is_some());
        gives_back.then(|| Key::line(palette::TEXT, "what the part gives back")).into_iter().collect()
    }

    fn scene(&self) -> Scene {
        const WIDTH: f64 = 1200.0;
        const LEFT: f64 = 250.0;
        const RIGHT: f64 = 170.0;
        const ROW: f64 = 30.0;
        let mut scene = Scene::new(WIDTH, "Where the time of a step goes, part by part");
        let step = self.step.nanoseconds().max(1) as f64;
        let axis = Axis::of(Unit::Seconds, 0.0, step / 1e9, 8);
        let at = |ns: f64| LEFT + axis.place(ns / 1e9) * (WIDTH - LEFT - RIGHT);
        let parts = self.shown();
        let bottom = 6.0 + ROW * (parts.len() + 1) as f64;
        for (value, label) in &axis.ticks {
            let x = at(value * 1e9);
            scene.line((x, 2.0), (x, bottom), 1.0, palette::GRID);
            scene.text(x, bottom + 15.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label.clone());
        }
        let (mut sum, mut y) = (0.0, 6.0);
        for part in parts {
            let time = part.time.nanoseconds() as f64;
            let (from, to) = (at(sum), at(sum + time));
            let name = part.cause.name();
            scene.text(LEFT - 12.0, y + 15.0, 12.5, Anchor::End, Ink::Plain(palette::TEXT), name);
            let words = format!("{} ({})", show::nanoseconds(time), show::percent(time / step));
            let title = format!("{name}: {words}");
            scene.filled_box((from, y), ((to - from).max(1.0), 20.0), part.cause.colour(), title);
            let back = self.gives_back(part).map(|back| at(sum + back.clamp(0.0, step - sum)));
            if let Some(mark) = back {
                scene.line((mark, y - 3.0), (mark, y + 23.0), 2.0, palette::TEXT);
            }
            // Words stand behind the bar and its stroke, or before them where they would leave the picture.
            let end = back.map_or(to, |mark| mark.max(to)) + 8.0;
            let fits = end + text_width(&words, 11.5) <= WIDTH;
            let (x, anchor) = if fits { (end, Anchor::Start) } else { (from - 8.0, Anchor::End) };
            scene.text(x, y + 14.5, 11.5, anchor, Ink::Plain(palette::TEXT), words);
            scene.marks.push(Mark::Line {
                from: (to, y + 20.0),
                to: (to, y + ROW),
                width: 1.0,
                colour: palette::MUTED,
                dashed: true,
            });
            sum += time;
            y += ROW;
        }
        scene.text(LEFT - 12.0, y + 15.0, 12.5, Anchor::End, Ink::Plain(palette::TEXT), "step");
        scene.filled_box((at(0.0), y), (at(step) - at(0.0), 20.0), palette::MUTED, "step");
        let whole = show::duration(self.step);
        scene.text(at(step) + 8.0, y + 14.5, 11.5, Anchor::Start, Ink::Plain(palette::TEXT), whole);
        scene.height = bottom + 24.0;
        scene
    }
}
