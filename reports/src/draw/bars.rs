//! Stacked bars: where the time goes, and memory against capacity.

use ir::program::BufferKind;

use super::palette;
use super::scale::{binary_step, binary_unit, decimal_step, ticks, time_unit};
use super::scene::{Anchor, Ink, Mark, Scene, text_width};
use crate::activity::Colour;
use crate::draw::timeline::MOST_ROWS;
use crate::metrics::Metrics;
use crate::show;

const WIDTH: f64 = 1200.0;
const LEFT: f64 = 150.0;
const BAR: f64 = 18.0;
const GAP: f64 = 3.0;
const GROUP_GAP: f64 = 11.0;

/// One part of a bar.
#[derive(Clone, Debug)]
struct Part {
    value: f64,
    colour: Colour,
    /// Shown inside, if it fits.
    label: String,
    title: String,
}

/// One bar.
#[derive(Clone, Debug)]
struct Bar {
    label: String,
    parts: Vec<Part>,
    /// Words after the bar's end.
    end: String,
    /// Whether they call for attention.
    alarm: bool,
    limit: Option<f64>,
}

/// Bars that belong together.
#[derive(Clone, Debug)]
struct Group {
    label: String,
    bars: Vec<Bar>,
}

/// The stages that are shown: all, or an even choice of [`MOST_ROWS`].
fn shown_stages(metrics: &[&Metrics]) -> Vec<usize> {
    let stages = metrics.iter().map(|m| m.stages.len()).min().unwrap_or(0);
    if stages <= MOST_ROWS {
        return (0..stages).collect();
    }
    (0..MOST_ROWS).map(|index| index * (stages - 1) / (MOST_ROWS - 1)).collect()
}

/// Where each stage's time goes, one bar for each clock.
pub(crate) fn time(metrics: &[&Metrics]) -> Scene {
    let mut scene = Scene::new(WIDTH, "Where the time of an iteration goes, by stage");
    let limit = metrics.iter().map(|m| m.iteration_ns).max().unwrap_or(0).max(1) as f64;
    let bar = |m: &Metrics, stage: usize| {
        let stage = &m.stages[stage];
        let share = |ns: u64| ns as f64 / m.iteration_ns.max(1) as f64;
        let part = |(activity, ns): (crate::Activity, u64)| Part {
            value: ns as f64,
            colour: activity.colour(),
            label: show::percent(share(ns)),
            title: format!(
                "stage {} ({}): {} {}, {} of the iteration",
                stage.stage.raw(),
                m.clock.word(),
                activity.name(),
                show::nanoseconds(ns as f64),
                show::percent(share(ns))
            ),
        };
        Bar {
            label: m.clock.word().to_owned(),
            parts: stage.time.iter().filter(|(_, ns)| *ns > 0).map(part).collect(),
            end: String::new(),
            alarm: false,
            limit: None,
        }
    };
    let groups: Vec<Group> = shown_stages(metrics)
        .into_iter()
        .map(|stage| Group {
            label: format!("stage {}", metrics[0].stages[stage].stage.raw()),
            bars: metrics.iter().map(|m| bar(m, stage)).collect(),
        })
        .collect();
    let (unit, name) = time_unit(limit);
    let axis = ticks(limit, decimal_step(limit, 10), unit);
    draw(&mut scene, &groups, limit, 14.0, &axis, &format!("time, {name}"));
    scene
}

/// The peak of each stage's memory by part against what its device has, one bar for each clock.
pub(crate) fn memory(metrics: &[&Metrics]) -> Scene {
    let mut scene = Scene::new(WIDTH, "Peak memory of each stage by part, against capacity");
    let stages = shown_stages(metrics);
    let peaks = || metrics.iter().flat_map(|m| stages.iter().map(|stage| &m.stages[*stage].memory));
    let peak = peaks().map(|m| m.peak_bytes).max().unwrap_or(0).max(1) as f64;
    let capacity = peaks().filter_map(|m| m.capacity_bytes).max().unwrap_or(0) as f64;
    // A capacity far above everything would leave nothing to see; the words after the bar still tell it.
    let limit = if capacity <= 6.0 * peak { peak.max(capacity * 1.02) } else { peak };
    let bar = |m: &Metrics, stage: usize| {
        let (stage, memory) = (&m.stages[stage], &m.stages[stage].memory);
        let bytes = |value: u64| show::bytes(ir::Bytes::new(value));
        let part = |kind: BufferKind| {
            let value = memory.parts.iter().find(|part| part.kind == kind.name())?.bytes;
            let title = format!("stage {} ({}): {} {}", stage.stage.raw(), m.clock.word(), kind.name(), bytes(value));
            Some(Part { value: value as f64, colour: palette::buffer(kind), label: bytes(value), title })
        };
        let over = memory.capacity_bytes.filter(|capacity| memory.peak_bytes > *capacity);
        let end = match (memory.capacity_bytes, over) {
            (_, Some(capacity)) => {
                format!("{}: {} too much", bytes(memory.peak_bytes), bytes(memory.peak_bytes - capacity))
            }
            (Some(capacity), None) => format!("{} of {}", bytes(memory.peak_bytes), bytes(capacity)),
            (None, None) => bytes(memory.peak_bytes),
        };
        Bar {
            label: m.clock.word().to_owned(),
            parts: BufferKind::ALL.into_iter().filter_map(part).collect(),
            end,
            alarm: over.is_some(),
            limit: memory.capacity_bytes.map(|c| c as f64).filter(|c| *c <= limit),
        }
    };
    let groups: Vec<Group> = stages
        .iter()
        .map(|stage| Group {
            label: format!("stage {}", metrics[0].stages[*stage].stage.raw()),
            bars: metrics.iter().map(|m| bar(m, *stage)).collect(),
        })
        .collect();
    let (unit, name) = binary_unit(limit);
    let axis = ticks(limit, binary_step(limit, 8), unit);
    draw(&mut scene, &groups, limit, 210.0, &axis, &format!("memory of one rank at its peak, {name}"));
    scene
}

/// The kinds of buffer that appear, in order.
pub(crate) fn kinds_present(metrics: &[&Metrics]) -> Vec<BufferKind> {
    let parts = || metrics.iter().flat_map(|m| &m.stages).flat_map(|stage| &stage.memory.parts);
    let present = |index: usize| parts().any(|part| part.kind == BufferKind::ALL[index].name());
    BufferKind::ALL.into_iter().filter(|kind| present(kind.index())).collect()
}

fn draw(scene: &mut Scene, groups: &[Group], limit: f64, right: f64, axis: &[(f64, String)], unit: &str) {
    let x = |value: f64| LEFT + (WIDTH - LEFT - right) * value / limit;
    let single = groups.iter().all(|group| group.bars.len() == 1);
    let (top, mut y) = (4.0, 6.0);
    let mut marks = Vec::new();
    std::mem::swap(&mut marks, &mut scene.marks);
    for group in groups {
        let height = group.bars.len() as f64 * (BAR + GAP) - GAP;
        scene.text(0.0, y + height / 2.0 + 4.0, 12.0, Anchor::Start, Ink::Plain(palette::TEXT), group.label.clone());
        for bar in &group.bars {
            if !single {
                let ink = Ink::Plain(palette::MUTED);
                scene.text(LEFT - 8.0, y + BAR / 2.0 + 4.0, 11.0, Anchor::End, ink, bar.label.clone());
            }
            draw_bar(scene, bar, y, &x);
            y += BAR + GAP;
        }
        y += GROUP_GAP - GAP;
    }
    let bottom = y - GROUP_GAP + 4.0;
    for (value, label) in axis {
        let (from, to) = ((x(*value), top), (x(*value), bottom));
        marks.push(Mark::Line { from, to, width: 1.0, colour: palette::GRID, dashed: false });
        scene.text(x(*value), bottom + 14.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label.clone());
    }
    let middle = LEFT + (WIDTH - LEFT - right) / 2.0;
    scene.text(middle, bottom + 31.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), unit);
    scene.height = bottom + 40.0;
    // The grid lies under the bars.
    marks.append(&mut scene.marks);
    scene.marks = marks;
}

fn draw_bar(scene: &mut Scene, bar: &Bar, y: f64, x: &impl Fn(f64) -> f64) {
    let mut sum = 0.0;
    let mut labels = Vec::new();
    for part in &bar.parts {
        let (from, to) = (x(sum), x(sum + part.value));
        sum += part.value;
        let width = (to - from - ((to - from) * 0.2).min(0.8)).max(0.2);
        scene.marks.push(Mark::Box {
            x: from,
            y,
            width,
            height: BAR,
            fill: part.colour,
            title: Some(part.title.clone()),
        });
        if text_width(&part.label, 10.5) + 8.0 <= width {
            labels.push(Mark::Text {
                x: (from + to) / 2.0,
                y: y + BAR / 2.0 + 3.8,
                size: 10.5,
                bold: false,
                anchor: Anchor::Middle,
                ink: Ink::On(part.colour),
                text: part.label.clone(),
            });
        }
    }
    scene.marks.extend(labels);
    if let Some(limit) = bar.limit {
        scene.line((x(limit), y - 2.0), (x(limit), y + BAR + 2.0), 2.0, palette::ALARM);
    }
    if !bar.end.is_empty() {
        let end = x(sum.max(bar.limit.unwrap_or(0.0))) + 7.0;
        let ink = Ink::Plain(if bar.alarm { palette::ALARM } else { palette::TEXT });
        scene.text(end, y + BAR / 2.0 + 4.0, 11.0, Anchor::Start, ink, bar.end.clone());
    }
}
