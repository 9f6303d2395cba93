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
/// Rows of one machine at most; of more ranks some are shown for all.
pub(crate) const MOST_ROWS: usize = 32;
/// Spans that are each drawn on their own, with a title.
const MOST_TITLED: usize = 5_000;
/// Boxes of one machine when its spans are too many for that.
const MOST_BOXES: usize = 16_000;

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
    let limit = blocks.iter().map(|block| bounds(block.timeline)).map(|(begin, end)| end - begin).max().unwrap_or(0).max(1);
    let words: Vec<&str> = blocks.iter().map(|block| block.timeline.clock.word()).collect();
    let mut scene = Scene::new(
        WIDTH,
        format!("Pipeline timelines ({}): what each rank's streams do over one iteration", words.join(" and ")),
    );
    let rows = blocks.iter().map(|block| shown_lanes(program, block.timeline).len()).max().unwrap_or(0);
    let heights = match rows {
        0..=9 => Heights { compute: 22.0, other: 6.0, gap: 8.0 },
        10..=16 => Heights { compute: 16.0, other: 4.0, gap: 6.0 },
        _ => Heights { compute: 12.0, other: 3.0, gap: 5.0 },
    };
    let tracks: Vec<&(&str, &[Stream])> = TRACKS.iter().filter(|(_, streams)| any_on(program, streams)).collect();
    let x = |nanoseconds: u64| LEFT + (WIDTH - LEFT - RIGHT) * nanoseconds as f64 / limit as f64;
    let mut grid = Vec::new();
    let mut y = 4.0;
    for block in blocks {
        y += 14.0;
        scene.heading(0.0, y, 13.0, block.heading.clone());
        let after = text_width(&block.heading, 13.0) + 14.0;
        scene.text(after, y, 12.0, Anchor::Start, Ink::Plain(palette::MUTED), block.note.clone());
        y += 10.0;
        let top = y;
        y = draw_block(&mut scene, program, block, &tracks, heights, y, &x);
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
    heights: Heights,
    mut y: f64,
    x: &impl Fn(u64) -> f64,
) -> f64 {
    let (begin, end) = bounds(block.timeline);
    let lanes = shown_lanes(program, block.timeline);
    let spans: usize = lanes.iter().map(|lane| lane.spans.len()).sum();
    let fine = Fineness::of(spans, lanes.len() * (1 + tracks.len()));
    let mut last_stage: Option<StageId> = None;
    for lane in lanes {
        let role = &program.roles[lane.role.index()];
        let height = heights.compute + tracks.len() as f64 * (heights.other + 1.0);
        label_row(scene, role.stage, lane, last_stage != Some(role.stage), y, heights);
        last_stage = Some(role.stage);
        let ground = Activity::Bubble.colour();
        let title = format!("stage {}, rank {}: bubble", role.stage.raw(), lane.rank.raw());
        scene.marks.push(Mark::Box {
            x: x(0),
            y,
            width: x(end - begin) - x(0),
            height: heights.compute,
            fill: ground,
            title: Some(title),
        });
        let mut track = Track { program, lane, begin, y, height: heights.compute, fine, labels: heights.compute >= 12.0 };
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
    fn of(spans: usize, tracks: usize) -> Self {
        if spans <= MOST_TITLED {
            return Self::Each;
        }
        // A track of w pixels holds at most w / resolution boxes, or twice that where short and long alternate.
        let pixels = (WIDTH - LEFT - RIGHT) * 2.0 * tracks as f64;
        Self::Merged((pixels / MOST_BOXES as f64).max(0.5))
    }
}

/// One queue's band of a row.
struct Track<'a> {
    program: &'a Program,
    lane: &'a Lane,
    begin: u64,
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
        let merged = merge(&stretches, resolution);
        let role = &self.program.roles[self.lane.role.index()];
        for activity in Activity::ALL {
            let boxes: Vec<(f64, f64)> =
                merged.iter().filter(|s| s.2 == activity).map(|(from, to, _)| (*from, to - from)).collect();
            if !boxes.is_empty() {
                let title = format!("stage {}, rank {}: {}", role.stage.raw(), self.lane.rank.raw(), activity.name());
                scene.marks.push(Mark::Row { y: self.y, height: self.height, fill: activity.colour(), boxes, title });
            }
        }
    }
}

/// Joins neighbours closer than the resolution into one stretch of the kind that takes most of it, and neighbours of one
/// kind that touch. Stretches come in order of their start.
fn merge(stretches: &[Stretch], resolution: f64) -> Vec<Stretch> {
    let mut out: Vec<Stretch> = Vec::new();
    let mut open: Option<(f64, f64, [f64; Activity::COUNT])> = None;
    let close = |out: &mut Vec<Stretch>, (from, to, shares): (f64, f64, [f64; Activity::COUNT])| {
        let most = (0..Activity::COUNT).fold(0, |best, i| if shares[i] > shares[best] { i } else { best });
        let activity = Activity::ALL[most];
        match out.last_mut() {
            Some(last) if last.2 == activity && from - last.1 < resolution * 0.5 => last.1 = to.max(last.1),
            _ => out.push((from, to, activity)),
        }
    };
    for (from, to, activity) in stretches {
        if let Some(cell) = open.take() {
            // A long stretch stands on its own; so does what comes after a gap that shows.
            let long = to - from >= resolution;
            if long || from - cell.1 >= resolution || cell.1 - cell.0 >= resolution {
                close(&mut out, cell);
            } else {
                open = Some(cell);
            }
        }
        let cell = open.get_or_insert((*from, *to, [0.0; Activity::COUNT]));
        cell.1 = cell.1.max(*to);
        cell.2[activity.index()] += to - from;
    }
    if let Some(cell) = open {
        close(&mut out, cell);
    }
    out
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
    fn merging_bounds_the_boxes_and_keeps_the_time() {
        let kinds = [Activity::Forward, Activity::Backward];
        let stretches: Vec<Stretch> = (0..100_000u32)
            .map(|i| (f64::from(i) * 0.01, f64::from(i) * 0.01 + 0.008, kinds[i as usize % 2]))
            .collect();
        let merged = merge(&stretches, 1.0);
        assert!(merged.len() <= 1_000, "{} boxes for 1,000 pixels", merged.len());
        assert!((merged[0].0 - stretches[0].0).abs() < 1e-9);
        assert!((merged.last().unwrap().1 - stretches.last().unwrap().1).abs() < 1e-9);
        assert!(merged.windows(2).all(|pair| pair[0].1 <= pair[1].0 + 1e-9));
    }

    #[test]
    fn long_spans_keep_their_edges() {
        let stretches = [
            (0.0, 10.0, Activity::Forward),
            (10.0, 10.2, Activity::Recompute),
            (10.2, 30.0, Activity::Backward),
            (40.0, 50.0, Activity::Backward),
        ];
        assert_eq!(merge(&stretches, 1.0), stretches);
    }
}
