//! Pipeline timelines: one row per rank (or role), the machines one above the other on one time axis.

use ir::program::Stream;
use ir::{Clock, Lane, Op, Program, StageId, Timeline};

use super::palette;
use super::scale::{decimal_step, ticks, time_unit};
use super::scene::{Anchor, Ink, Mark, Scene, text_width};
use crate::activity::{Activity, Colour};
use crate::metrics::bounds;
use crate::{show, words};

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 118.0;
const RIGHT: f64 = 14.0;
/// Where a block's note begins: past the longest heading.
const AFTER_HEADING: f64 = 84.0;
/// Rows of one machine at most; of more ranks some are shown for all.
pub(crate) const MOST_ROWS: usize = 32;
/// Spans that are each drawn on their own, with a title: those of all machines together.
const MOST_TITLED: usize = 5_000;
/// Boxes of one machine, about, when its spans are too many for that.
const MOST_BOXES: usize = 30_000;
/// Steps in which the heights of a cell's shares are rounded.
const SHARE_STEPS: f64 = 24.0;

/// A machine's iteration and what to call it.
#[derive(Clone, Debug)]
pub(crate) struct Block<'a> {
    /// Such as "Measured".
    pub(crate) heading: String,
    /// What else to say of it.
    pub(crate) note: String,
    /// What it did.
    pub(crate) timeline: &'a Timeline,
}

/// Heights of the tracks of a row: compute on top, one for each other queue that is used below it.
#[derive(Clone, Copy, Debug)]
struct Heights {
    compute: f64,
    other: f64,
    gap: f64,
}

/// Queues of a row below compute: sends of both directions share a track, and so do receives.
const TRACKS: [(&str, &[Stream]); 4] = [
    ("tensor", &[Stream::Tensor]),
    ("receive", &[Stream::ForwardReceive, Stream::BackwardReceive]),
    ("send", &[Stream::ForwardSend, Stream::BackwardSend]),
    ("data", &[Stream::Data]),
];

/// The lanes that are shown: all, or the first of each stage, or an even choice of those.
pub(crate) fn shown_lanes<'a>(program: &Program, timeline: &'a Timeline) -> Vec<&'a Lane> {
    let stage = |lane: &Lane| program.roles[lane.role.index()].stage;
    let mut lanes: Vec<&Lane> = timeline.lanes.iter().collect();
    lanes.sort_by_key(|lane| (stage(lane), lane.rank));
    if lanes.len() > MOST_ROWS {
        lanes.dedup_by_key(|lane| stage(lane));
    }
    if lanes.len() > MOST_ROWS {
        let last = lanes.len() - 1;
        lanes = (0..MOST_ROWS).map(|index| lanes[index * last / (MOST_ROWS - 1)]).collect();
    }
    lanes
}

/// The picture. Nothing but axes if there is no block.
pub(crate) fn picture(program: &Program, blocks: &[Block<'_>]) -> Scene {
    let limit =
        blocks.iter().map(|block| bounds(block.timeline)).map(|(begin, end)| end - begin).max().unwrap_or(0).max(1);
    let words: Vec<&str> = blocks.iter().map(|block| block.timeline.clock.word()).collect();
    let mut scene = Scene::new(
        WIDTH,
        format!("Pipeline timelines ({}): what each rank's streams do over one iteration", words.join(" and ")),
    );
    let rows = blocks.iter().map(|block| shown_lanes(program, block.timeline).len()).max().unwrap_or(0);
    let heights = match rows {
        0..=9 => Heights { compute: 22.0, other: 5.0, gap: 10.0 },
        10..=16 => Heights { compute: 16.0, other: 4.0, gap: 8.0 },
        _ => Heights { compute: 12.0, other: 3.0, gap: 6.0 },
    };
    let tracks: Vec<&(&str, &[Stream])> = TRACKS.iter().filter(|(_, streams)| any_on(program, streams)).collect();
    let x = |nanoseconds: u64| LEFT + (WIDTH - LEFT - RIGHT) * nanoseconds as f64 / limit as f64;
    let spans = |block: &Block<'_>| shown_lanes(program, block.timeline).iter().map(|l| l.spans.len()).sum::<usize>();
    let each = blocks.iter().map(spans).sum::<usize>() <= MOST_TITLED;
    let mut grid = Vec::new();
    let mut y = 4.0;
    for block in blocks {
        y += 14.0;
        scene.heading(0.0, y, 13.0, block.heading.clone());
        let mut note = block.note.clone();
        if !each {
            note.push_str("; where spans are too fine to draw, heights are shares of time");
        }
        scene.text(AFTER_HEADING, y, 12.0, Anchor::Start, Ink::Plain(palette::MUTED), note);
        y += 10.0;
        let top = y;
        y = draw_block(&mut scene, program, block, &tracks, (heights, each), y, &x);
        grid.push((top, y));
        y += 12.0;
    }
    draw_axis(&mut scene, limit, y, &grid);
    scene.height = y + 34.0;
    scene
}

fn any_on(program: &Program, streams: &[Stream]) -> bool {
    program.roles.iter().any(|role| role.instructions().iter().any(|i| streams.contains(&i.stream)))
}

fn draw_axis(scene: &mut Scene, limit: u64, y: f64, grid: &[(f64, f64)]) {
    let limit = limit as f64;
    let (unit, name) = time_unit(limit);
    let pixel = |value: f64| LEFT + (WIDTH - LEFT - RIGHT) * value / limit;
    let mut lines = Vec::new();
    for (value, label) in ticks(limit, decimal_step(limit, 10), unit) {
        for (top, bottom) in grid {
            let (from, to) = ((pixel(value), top - 3.0), (pixel(value), bottom + 3.0));
            lines.push(Mark::Line { from, to, width: 1.0, colour: palette::GRID, dashed: false });
        }
        scene.text(pixel(value), y + 10.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label);
    }
    // The grid lies under everything else.
    scene.marks.splice(0..0, lines);
    let middle = LEFT + (WIDTH - LEFT - RIGHT) / 2.0;
    let text = format!("time since the iteration's first start, {name}");
    scene.text(middle, y + 26.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), text);
}

fn draw_block(
    scene: &mut Scene,
    program: &Program,
    block: &Block<'_>,
    tracks: &[&(&str, &[Stream])],
    (heights, each): (Heights, bool),
    mut y: f64,
    x: &impl Fn(u64) -> f64,
) -> f64 {
    let (begin, end) = bounds(block.timeline);
    let lanes = shown_lanes(program, block.timeline);
    let fine = Fineness::of(each, lanes.len() * (1 + tracks.len()));
    let mut last_stage: Option<StageId> = None;
    for lane in lanes {
        let role = &program.roles[lane.role.index()];
        let height = heights.compute + tracks.len() as f64 * (heights.other + 1.0);
        label_row(scene, role.stage, lane, last_stage != Some(role.stage), y, heights);
        last_stage = Some(role.stage);
        let (ground, from, width) = (Activity::Bubble.colour(), x(0), x(end - begin) - x(0));
        if !tracks.is_empty() {
            let (y, height) = (y + heights.compute, height - heights.compute);
            scene.marks.push(Mark::Box { x: from, y, width, height, fill: palette::PAGE, title: None });
        }
        let title = format!("stage {}, rank {}: bubble", role.stage.raw(), lane.rank.raw());
        let (height_of_passes, title) = (heights.compute, Some(title));
        scene.marks.push(Mark::Box { x: from, y, width, height: height_of_passes, fill: ground, title });
        let wait = block.timeline.input_wait.nanoseconds();
        if wait > 0 {
            let (width, fill) = (x(wait) - from, Activity::InputStall.colour());
            let title = format!("stage {}, rank {}: input stall", role.stage.raw(), lane.rank.raw());
            scene.marks.push(Mark::Box { x: from, y, width, height: heights.compute, fill, title: Some(title) });
        }
        let (length, labels) = (end - begin, heights.compute >= 12.0);
        let mut track = Track { program, lane, begin, length, y, height: heights.compute, fine, labels };
        track.draw(scene, &[Stream::Compute], x);
        for (index, (_, streams)) in tracks.iter().enumerate() {
            track.y = y + heights.compute + 1.0 + index as f64 * (heights.other + 1.0);
            track.height = heights.other;
            track.labels = false;
            track.draw(scene, streams, x);
        }
        y += height + heights.gap;
    }
    y - heights.gap
}

fn label_row(scene: &mut Scene, stage: StageId, lane: &Lane, first_of_stage: bool, y: f64, heights: Heights) {
    let middle = y + heights.compute / 2.0;
    let size = if heights.compute >= 16.0 { 11.5 } else { 9.5 };
    if first_of_stage {
        scene.text(0.0, middle + 4.0, size, Anchor::Start, Ink::Plain(palette::TEXT), format!("stage {}", stage.raw()));
    }
    let ranks = if lane.multiplicity == 1 {
        format!("rank {}", lane.rank.raw())
    } else {
        format!("{} ranks", show::count(u64::from(lane.multiplicity)))
    };
    scene.text(LEFT - 8.0, middle + 4.0, size - 1.0, Anchor::End, Ink::Plain(palette::MUTED), ranks);
}

/// How finely spans are drawn.
#[derive(Clone, Copy, Debug)]
enum Fineness {
    /// Each on its own with a title.
    Each,
    /// Those closer than so many pixels as one.
    Merged(f64),
}

impl Fineness {
    fn of(each: bool, tracks: usize) -> Self {
        if each {
            return Self::Each;
        }
        // A cell holds shares of two kinds or three.
        let pixels = (WIDTH - LEFT - RIGHT) * 2.5 * tracks as f64;
        Self::Merged((pixels / MOST_BOXES as f64).max(0.5))
    }
}

/// One queue's band of a row.
struct Track<'a> {
    program: &'a Program,
    lane: &'a Lane,
    begin: u64,
    length: u64,
    y: f64,
    height: f64,
    fine: Fineness,
    labels: bool,
}

/// A stretch of a track: from, to (pixels), what.
type Stretch = (f64, f64, Activity);

impl Track<'_> {
    fn draw(&self, scene: &mut Scene, streams: &[Stream], x: &impl Fn(u64) -> f64) {
        match self.fine {
            Fineness::Each => self.draw_each(scene, streams, x),
            Fineness::Merged(resolution) => self.draw_merged(scene, streams, x, resolution),
        }
    }

    fn on<'b>(&'b self, streams: &'b [Stream]) -> impl Iterator<Item = (usize, &'b Op)> + 'b {
        let instructions = self.program.roles[self.lane.role.index()].instructions();
        instructions.iter().enumerate().filter(|(_, i)| streams.contains(&i.stream)).map(|(index, i)| (index, &i.op))
    }

    fn draw_each(&self, scene: &mut Scene, streams: &[Stream], x: &impl Fn(u64) -> f64) {
        let mut labels = Vec::new();
        let mut boxes: Vec<(Activity, Mark)> = Vec::new();
        for (index, op) in self.on(streams) {
            let span = self.lane.spans[index];
            let (from, to) = (x(span.start.nanoseconds() - self.begin), x(span.end.nanoseconds() - self.begin));
            let activity = Activity::of(self.program, op);
            let colour = activity.colour();
            // A hair of ground between neighbours shows where one ends.
            let width = (to - from - ((to - from) * 0.2).min(0.8)).max(0.4);
            let title = format!(
                "{}\n{} (from {} to {})",
                words::op(self.program, op),
                show::duration(span.end - span.start),
                show::nanoseconds((span.start.nanoseconds() - self.begin) as f64),
                show::nanoseconds((span.end.nanoseconds() - self.begin) as f64),
            );
            let mark = Mark::Box { x: from, y: self.y, width, height: self.height, fill: colour, title: Some(title) };
            boxes.push((activity, mark));
            labels.extend(self.label(op, from, width, colour));
        }
        // One group for each colour.
        boxes.sort_by_key(|(activity, _)| *activity);
        scene.marks.extend(boxes.into_iter().map(|(_, mark)| mark));
        scene.marks.extend(labels);
    }

    /// The microbatch of a pass, where it fits.
    fn label(&self, op: &Op, x: f64, width: f64, colour: Colour) -> Option<Mark> {
        let Op::Compute { microbatch, .. } = op else { return None };
        let size = (self.height * 0.5).clamp(8.0, 11.0);
        let text = microbatch.raw().to_string();
        (self.labels && text_width(&text, size) + 3.0 <= width).then(|| Mark::Text {
            x: x + width / 2.0,
            y: self.y + self.height / 2.0 + 0.36 * size,
            size,
            bold: false,
            anchor: Anchor::Middle,
            ink: Ink::On(colour),
            text,
        })
    }

    fn draw_merged(&self, scene: &mut Scene, streams: &[Stream], x: &impl Fn(u64) -> f64, resolution: f64) {
        let mut stretches: Vec<Stretch> = self
            .on(streams)
            .map(|(index, op)| {
                let span = self.lane.spans[index];
                let (from, to) = (x(span.start.nanoseconds() - self.begin), x(span.end.nanoseconds() - self.begin));
                (from, to, Activity::of(self.program, op))
            })
            .filter(|(from, to, _)| from < to)
            .collect();
        stretches.sort_by(|a, b| a.0.total_cmp(&b.0));
        // Cells divide the iteration evenly, so that none reaches past its ends.
        let width = x(self.length) - x(0);
        let cells = cells(&stretches, x(0), width / (width / resolution).ceil().max(1.0));
        let role = &self.program.roles[self.lane.role.index()];
        for activity in Activity::ALL {
            let mut boxes = Vec::new();
            for cell in &cells {
                let share = cell.shares[activity.index()];
                if share > 0.0 {
                    let below: f64 = cell.shares[..activity.index()].iter().sum();
                    // The first kind at the bottom, the next on top of it.
                    let y = self.y + self.height * (1.0 - below - share);
                    boxes.push((cell.from, y, cell.to - cell.from, self.height * share));
                }
            }
            if !boxes.is_empty() {
                let title = format!("stage {}, rank {}: {}", role.stage.raw(), self.lane.rank.raw(), activity.name());
                scene.marks.push(Mark::Boxes { fill: activity.colour(), boxes, title });
            }
        }
    }
}

/// A part of a track: from, to (pixels), and which share of that time each activity takes.
#[derive(Clone, PartialEq, Debug)]
struct Cell {
    from: f64,
    to: f64,
    shares: [f64; Activity::COUNT],
}

/// Divides a track's stretches, in order of their start, into cells: one for each stretch that is longer than two
/// resolutions, and one for each resolution (counted from `origin`) of what is finer, where the shares of time are kept.
/// Neighbours of equal shares become one.
fn cells(stretches: &[Stretch], origin: f64, resolution: f64) -> Vec<Cell> {
    let mut out: Vec<Cell> = Vec::new();
    let mut open: Option<(i64, [f64; Activity::COUNT])> = None;
    let close = |out: &mut Vec<Cell>, (index, sums): (i64, [f64; Activity::COUNT])| {
        // What is there at all shows at least as one step.
        let round =
            |sum: f64| if sum > 0.0 { (sum / resolution * SHARE_STEPS).round().max(1.0) / SHARE_STEPS } else { 0.0 };
        let shares = sums.map(round);
        let total = shares.iter().sum::<f64>().max(1.0);
        let edge = |index: i64| origin + index as f64 * resolution;
        push_cell(out, Cell { from: edge(index), to: edge(index + 1), shares: shares.map(|share| share / total) });
    };
    for (from, to, activity) in stretches {
        if to - from > 2.0 * resolution {
            if let Some(fine) = open.take() {
                close(&mut out, fine);
            }
            let mut shares = [0.0; Activity::COUNT];
            shares[activity.index()] = 1.0;
            // The cell of what came before may reach into this stretch.
            if let Some(last) = out.last_mut() {
                last.to = last.to.min(*from);
            }
            push_cell(&mut out, Cell { from: *from, to: *to, shares });
            continue;
        }
        let mut cursor = *from;
        while cursor < *to {
            #[expect(clippy::cast_possible_truncation, reason = "a picture has a few thousand pixels")]
            let index = ((cursor - origin) / resolution).floor() as i64;
            // Past the edge at least, also where rounding puts the edge at the cursor itself.
            let edge = (origin + (index + 1) as f64 * resolution).max(cursor + resolution * 1e-6);
            if open.as_ref().is_some_and(|(at, _)| *at != index)
                && let Some(fine) = open.take()
            {
                close(&mut out, fine);
            }
            open.get_or_insert((index, [0.0; Activity::COUNT])).1[activity.index()] += to.min(edge) - cursor;
            cursor = edge;
        }
    }
    if let Some(fine) = open {
        close(&mut out, fine);
    }
    out
}

/// Adds a cell, or lengthens the last one if that is the same and touches. Nothing is drawn over the cell before.
fn push_cell(out: &mut Vec<Cell>, mut cell: Cell) {
    if let Some(last) = out.last_mut() {
        cell.from = cell.from.max(last.to);
        let same = last.shares.iter().zip(cell.shares).all(|(a, b)| (a - b).abs() < 1e-9);
        // Two long stretches stay apart, so that their border can be seen.
        let fine = cell.shares.iter().all(|share| *share < 1.0) || last.to - last.from < 0.5;
        if same && fine && cell.from - last.to < 1e-6 {
            last.to = cell.to;
            return;
        }
    }
    if cell.from < cell.to && cell.shares.iter().any(|share| *share > 0.0) {
        out.push(cell);
    }
}

/// A clock's word with a capital, for headings.
pub(crate) const fn heading(clock: Clock) -> &'static str {
    match clock {
        Clock::Simulated => "Simulated",
        Clock::Measured => "Measured",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_few_and_keep_the_time() {
        let kinds = [Activity::Forward, Activity::Backward, Activity::Backward];
        let stretches: Vec<Stretch> = (0..100_000u32)
            .map(|i| (f64::from(i) * 0.01, f64::from(i) * 0.01 + 0.008, kinds[i as usize % 3]))
            .collect();
        let cells = cells(&stretches, 0.0, 2.0);
        assert!(cells.len() <= 500, "{} cells for 1,000 pixels", cells.len());
        assert!(cells.windows(2).all(|pair| pair[0].to <= pair[1].from + 1e-9));
        for activity in [Activity::Forward, Activity::Backward] {
            let drawn: f64 = cells.iter().map(|c| (c.to - c.from) * c.shares[activity.index()]).sum();
            let spent: f64 = stretches.iter().filter(|s| s.2 == activity).map(|(from, to, _)| to - from).sum();
            // A share is off by half a step at most.
            assert!((drawn / spent - 1.0).abs() < 0.08, "{activity:?}: {drawn} of {spent}");
        }
    }

    #[test]
    fn long_spans_keep_their_edges() {
        let stretches = [
            (0.0, 10.0, Activity::Forward),
            (10.0, 10.2, Activity::Recompute),
            (10.2, 30.0, Activity::Backward),
            (30.0, 40.0, Activity::Backward),
            (45.0, 50.0, Activity::Backward),
        ];
        let cells = cells(&stretches, 0.0, 1.0);
        let edges: Vec<(f64, f64)> = cells.iter().map(|cell| (cell.from, cell.to)).collect();
        assert_eq!(edges, [(0.0, 10.0), (10.0, 10.2), (10.2, 30.0), (30.0, 40.0), (45.0, 50.0)]);
    }
}
