//! The pictures of an ablation: ratios with their intervals, and the best so far against evaluations.

use super::curves::{Curve, Step};
use super::statistics::{Ratio, Score};
use crate::activity::Colour;
use crate::draw::palette;
use crate::draw::plot::{Axis, Frame, range};
use crate::draw::scene::{Anchor, Ink, Key, Mark, Scene, cut, text_width};
use crate::show;
use crate::unit::Unit;

const WIDTH: f64 = 1200.0;
const ROW: f64 = 21.0;
/// Rows of the picture of ratios at most; where there are more, it shows the means over scenarios alone.
pub(super) const MOST_ROWS: usize = 80;

/// `1.042`, and `12.3` where that is far from 1.
pub(super) fn ratio_text(value: f64) -> String {
    if (0.1..10.0).contains(&value) { format!("{value:.3}") } else { show::number(value) }
}

/// A ratio in words: `0.962 (0.941 to 0.983)`.
pub(super) fn words(ratio: Ratio) -> String {
    let value = ratio_text(ratio.value);
    match ratio.bounds() {
        Some((low, high)) => format!("{value} ({} to {})", ratio_text(low), ratio_text(high)),
        None => value,
    }
}

/// Ticks of an axis of ratios: round steps, or powers where they span more than a factor of three.
fn axis(low: f64, high: f64) -> Axis {
    let tick = |value: f64| {
        let text = format!("{value:.3}");
        text.trim_end_matches('0').trim_end_matches('.').to_owned()
    };
    if high / low > 3.0 {
        let room = (high / low).powf(0.04);
        Axis::logarithmic(low / room, high * room, tick)
    } else {
        let room = ((high - low) * 0.06).max(0.005);
        Axis::linear(low - room, high + room, 8, tick)
    }
}

fn colour(index: usize) -> (Colour, bool) {
    (palette::CURVES[index % palette::CURVES.len()], index >= palette::CURVES.len())
}

/// The ratios of policies in groups, each a heading and a row for each policy, whose colour is that of its place in
/// `policies`.
pub(super) fn ratios(groups: &[(String, Vec<&Score>)], policies: &[&str], baseline: &str) -> Option<Scene> {
    let all = groups.iter().flat_map(|(_, scores)| scores).filter_map(|score| score.ratio);
    let ends = all.flat_map(|ratio| {
        let (low, high) = ratio.bounds().unwrap_or((ratio.value, ratio.value));
        [low, high, ratio.value]
    });
    let (low, high) = range(ends.chain([1.0]))?;
    let mut scene = Scene::new(WIDTH, format!("iteration time over that of {baseline}, by scenario and policy"));
    let rows = groups.iter().map(|(_, scores)| scores.len() + 1).sum::<usize>();
    let frame = Frame {
        left: 190.0,
        top: 26.0,
        width: WIDTH - 190.0 - 215.0,
        height: ROW * rows as f64 + 8.0,
        x: axis(low, high),
        y: Axis::logarithmic_at(1.0, 2.0, Vec::new()),
    };
    frame.draw(&mut scene, 11.0);
    let (one, _) = frame.at(1.0, 1.0);
    let points = vec![(one, frame.top), (one, frame.bottom())];
    scene.marks.push(Mark::Path { points, width: 1.5, colour: palette::MUTED, dashed: true });
    let mut y = frame.top + 4.0;
    for (heading, scores) in groups {
        scene.heading(8.0, y + ROW * 0.68, 12.0, cut(heading, frame.left - 20.0, 12.0));
        y += ROW;
        for score in scores {
            let place = policies.iter().position(|name| *name == score.policy).unwrap_or(0);
            draw_ratio(&mut scene, &frame, score, y + ROW / 2.0, colour(place).0);
            y += ROW;
        }
    }
    let x = format!("iteration time over that of {baseline} (under 1 is faster)");
    frame.name_axes(&mut scene, &x, "", 11.0);
    scene.height = frame.bottom() + 42.0;
    Some(scene)
}

fn draw_ratio(scene: &mut Scene, frame: &Frame, score: &Score, y: f64, colour: Colour) {
    let (left, ink) = (frame.left - 10.0, Ink::Plain(palette::TEXT));
    scene.text(left, y + 4.0, 11.0, Anchor::End, ink, cut(&score.policy, frame.left - 30.0, 11.0));
    let Some(ratio) = score.ratio else {
        let words = format!("{} of {} found a plan", score.found, score.of);
        scene.text(frame.right() + 12.0, y + 4.0, 11.0, Anchor::Start, Ink::Plain(palette::MUTED), words);
        return;
    };
    let place = |value: f64| frame.at(value, 1.0).0;
    if let Some((low, high)) = ratio.bounds() {
        scene.line((place(low), y), (place(high), y), 2.0, colour);
        for end in [low, high] {
            scene.line((place(end), y - 4.0), (place(end), y + 4.0), 2.0, colour);
        }
    }
    let title = format!("{}: {}", score.policy, words(ratio));
    scene.marks.push(Mark::Dots { points: vec![(place(ratio.value), y)], radius: 4.0, fill: colour, title });
    scene.text(frame.right() + 12.0, y + 4.0, 11.0, Anchor::Start, ink, words(ratio));
}

/// The best so far of each policy of a scenario; `None` if there is nothing to see.
pub(super) fn best_so_far(curves: &[Curve], policies: &[&str], baseline: &str) -> Option<(Scene, Vec<Key>)> {
    let steps = || curves.iter().flat_map(|curve| &curve.steps);
    let last = curves.iter().map(|curve| curve.end).max()?.max(2) as f64;
    let (low, high) = range(steps().flat_map(|step| {
        let (low, high) = step.band.unwrap_or((step.mean, step.mean));
        [low, high, 1.0]
    }))?;
    let mut scene = Scene::new(WIDTH, format!("best time so far over that of {baseline}, against evaluations"));
    let labels = curves.iter().map(|curve| text_width(&curve.policy, 10.5)).fold(0.0, f64::max);
    let frame = Frame {
        left: 66.0,
        top: 26.0,
        width: WIDTH - 66.0 - labels.min(160.0) - 24.0,
        height: 300.0,
        x: Axis::logarithmic(1.0, last, |value| Unit::Count.text(value)),
        y: axis(low, high),
    };
    frame.draw(&mut scene, 11.0);
    let line = vec![frame.at(1.0, 1.0), frame.at(last, 1.0)];
    scene.marks.push(Mark::Path { points: line, width: 1.0, colour: palette::MUTED, dashed: true });
    let mut keys = Vec::new();
    for curve in curves {
        let place = policies.iter().position(|name| *name == curve.policy).unwrap_or(0);
        let (colour, dashed) = colour(place);
        draw_curve(&mut scene, &frame, curve, colour, dashed);
        let found = match curve.found {
            (found, all) if found < all => format!(" ({found} of {all} seeds)"),
            (1, 1) => String::new(),
            (_, all) => format!(" ({all} seeds)"),
        };
        keys.push(Key::line(colour, format!("{}{found}", curve.policy)));
    }
    name_ends(&mut scene, &frame, curves);
    let y = format!("best so far over {baseline}'s");
    frame.name_axes(&mut scene, "legal plans timed", &y, 11.0);
    scene.height = frame.bottom() + 42.0;
    Some((scene, keys))
}

/// Corners of a staircase: each value holds until the next step, the last one to the end.
fn staircase(steps: &[Step], end: u64, value: impl Fn(&Step) -> f64) -> Vec<(f64, f64)> {
    let mut corners: Vec<(f64, f64)> = Vec::with_capacity(2 * steps.len() + 1);
    for step in steps {
        let at = step.evaluations.max(1) as f64;
        if let Some((_, before)) = corners.last().copied() {
            corners.push((at, before));
        }
        corners.push((at, value(step)));
    }
    if let Some((_, before)) = corners.last().copied() {
        corners.push((end.max(1) as f64, before));
    }
    corners
}

fn draw_curve(scene: &mut Scene, frame: &Frame, curve: &Curve, colour: Colour, dashed: bool) {
    let on_frame = |corners: Vec<(f64, f64)>| corners.into_iter().map(|(x, y)| frame.at(x, y)).collect::<Vec<_>>();
    if curve.steps.iter().any(|step| step.band.is_some_and(|(low, high)| high > low)) {
        let end = |pick: fn((f64, f64)) -> f64| move |step: &Step| step.band.map_or(step.mean, pick);
        let mut points = on_frame(staircase(&curve.steps, curve.end, end(|band| band.0)));
        let mut upper = on_frame(staircase(&curve.steps, curve.end, end(|band| band.1)));
        upper.reverse();
        points.extend(upper);
        scene.marks.push(Mark::Area { points, fill: colour, opacity: 0.16 });
    }
    let points = on_frame(staircase(&curve.steps, curve.end, |step| step.mean));
    let Some(last) = points.last().copied() else { return };
    scene.marks.push(Mark::Path { points, width: 2.0, colour, dashed });
    let title = format!("{}: {} legal plans timed", curve.policy, show::count(curve.end));
    scene.marks.push(Mark::Dots { points: vec![last], radius: 3.5, fill: colour, title });
}

/// Names beside the ends of curves, moved apart where two would touch.
fn name_ends(scene: &mut Scene, frame: &Frame, curves: &[Curve]) {
    let mut ends: Vec<(f64, f64, &str)> = curves
        .iter()
        .filter_map(|curve| {
            let (x, y) = frame.at(curve.end.max(1) as f64, curve.steps.last()?.mean);
            Some((x, y, curve.policy.as_str()))
        })
        .collect();
    // From the lowest up: a name that has no room goes above the one below it.
    ends.sort_by(|a, b| b.1.total_cmp(&a.1).then(a.0.total_cmp(&b.0)));
    let mut taken: Vec<(f64, f64, f64)> = Vec::new();
    for (x, y, name) in ends {
        let (from, to) = (x + 8.0, x + 8.0 + text_width(name, 10.5));
        let mut at = y - 5.0;
        while let Some((.., below)) =
            taken.iter().find(|(left, right, line)| from < *right && *left < to && (at - line).abs() < 12.5)
        {
            at = below - 12.5;
        }
        taken.push((from, to, at));
        scene.text(from, at, 10.5, Anchor::Start, Ink::Plain(palette::TEXT), cut(name, 160.0, 10.5));
    }
}
