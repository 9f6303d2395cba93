//! Charts by plotters: memory over time, losses.

use ir::program::BufferKind;
use ir::{Lane, Program};
use plotters::backend::SVGBackend;
use plotters::chart::{ChartBuilder, ChartContext};
use plotters::coord::Shift;
use plotters::coord::cartesian::Cartesian2d;
use plotters::coord::types::RangedCoordf64;
use plotters::drawing::{DrawingArea, IntoDrawingArea};
use plotters::element::{Circle, PathElement};
use plotters::series::{AreaSeries, LineSeries};
use plotters::style::{Color, IntoFont, RGBColor, ShapeStyle, TextStyle};

use super::scale::{binary_unit, time_unit};
use super::{font, palette};
use crate::activity::Colour;
use crate::metrics::{apply, memory_changes, resident};

const WIDTH: u32 = 1200;
const HEIGHT: u32 = 300;
/// Points of a curve at most: each stands for the highest moment of its stretch of time.
const MOST_POINTS: usize = 600;

type Area<'a> = DrawingArea<SVGBackend<'a>, Shift>;
type Chart<'a, 'b> = ChartContext<'a, SVGBackend<'b>, Cartesian2d<RangedCoordf64, RangedCoordf64>>;

fn rgb(colour: Colour) -> RGBColor {
    let (red, green, blue) = colour.rgb();
    RGBColor(red, green, blue)
}

/// A named curve for a legend.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Curve {
    /// Its name.
    pub(crate) name: String,
    /// Its points, in order of x.
    pub(crate) points: Vec<(f64, f64)>,
}

/// Makes a chart with plotters and gives its colours the page's variables.
fn chart(description: &str, draw: impl FnOnce(&Area<'_>)) -> String {
    font::register();
    let mut svg = String::new();
    {
        let area = SVGBackend::with_string(&mut svg, (WIDTH, HEIGHT)).into_drawing_area();
        draw(&area);
        area.present().expect("a string takes everything");
    }
    let mut colours = vec![palette::TEXT, palette::MUTED, palette::GRID, palette::GROUND, palette::ALARM];
    colours.extend(palette::CURVES);
    colours.extend(BufferKind::ALL.map(palette::buffer));
    for colour in colours {
        svg = svg.replace(&format!("\"#{:06X}\"", colour.light), &format!("\"{}\"", colour.css()));
    }
    let size = format!("width=\"{WIDTH}\" height=\"{HEIGHT}\" ");
    let label = format!("role=\"img\" aria-label=\"{}\" ", super::scene::escape(description));
    svg.replacen(&size, &label, 1)
}

fn axes(chart: &mut Chart<'_, '_>, x: &str, y: &str, label: impl Fn(&f64) -> String) {
    let colour = rgb(palette::MUTED);
    let muted = TextStyle::from((font::FAMILY, 15).into_font()).color(&colour);
    chart
        .configure_mesh()
        .disable_x_mesh()
        .bold_line_style(rgb(palette::GRID))
        .light_line_style(palette_none())
        .axis_style(rgb(palette::GRID))
        .label_style(muted.clone())
        .axis_desc_style(muted)
        .x_desc(x)
        .y_desc(y)
        .x_labels(11)
        .y_labels(6)
        .x_label_formatter(&plain)
        .y_label_formatter(&label)
        .draw()
        .expect("a string takes everything");
}

fn palette_none() -> ShapeStyle {
    ShapeStyle { color: RGBColor(0, 0, 0).mix(0.0), filled: false, stroke_width: 0 }
}

fn plain(value: &f64) -> String {
    let text = format!("{value:.3}");
    let text = text.trim_end_matches('0').trim_end_matches('.');
    if text == "-0" { "0".to_owned() } else { text.to_owned() }
}

/// What a lane holds after each change, by position in `BufferKind::ALL`: `(nanoseconds since begin, bytes of each kind)`.
fn held_over_time(program: &Program, lane: &Lane, begin: u64) -> Vec<(u64, [u64; BufferKind::ALL.len()])> {
    let mut held = resident(program, lane);
    let mut steps = vec![(0, held)];
    for change in memory_changes(program, lane) {
        apply(&mut held, &change);
        let time = change.time_ns.saturating_sub(begin);
        match steps.last_mut() {
            Some(last) if last.0 == time => last.1 = held,
            _ => steps.push((time, held)),
        }
    }
    steps
}

/// Keeps the highest step of each of [`MOST_POINTS`] stretches of time (all of them if they are few).
fn thinned<T: Copy>(steps: Vec<(u64, T)>, length: u64, height: impl Fn(&T) -> u64) -> Vec<(u64, T)> {
    if steps.len() <= MOST_POINTS {
        return steps;
    }
    let stretch = |time: u64| u128::from(time) * MOST_POINTS as u128 / u128::from(length.max(1));
    let mut kept: Vec<(u64, T)> = Vec::with_capacity(MOST_POINTS + 1);
    for step in steps {
        match kept.last_mut() {
            Some(last) if stretch(last.0) == stretch(step.0) => {
                if height(&step.1) > height(&last.1) {
                    *last = (last.0, step.1);
                }
            }
            _ => kept.push(step),
        }
    }
    kept
}

/// A step function's corners.
fn corners(steps: &[(u64, f64)], length: u64) -> Vec<(f64, f64)> {
    let mut points = Vec::with_capacity(2 * steps.len() + 1);
    let mut before = None;
    for (time, value) in steps {
        if let Some(before) = before {
            points.push((*time as f64, before));
        }
        points.push((*time as f64, *value));
        before = Some(*value);
    }
    points.extend(before.map(|value| (length as f64, value)));
    points
}

/// Memory of one lane over the iteration, each part stacked on the one before, from the program's buffers; `counted` are
/// the curves that backends counted themselves: name and `(nanoseconds since begin, bytes)`.
pub(crate) fn memory_over_time(
    program: &Program,
    lane: &Lane,
    bounds: (u64, u64),
    counted: &[(String, Vec<(u64, u64)>)],
    capacity: Option<u64>,
) -> String {
    let length = counted
        .iter()
        .flat_map(|(_, steps)| steps.last().map(|step| step.0))
        .max()
        .unwrap_or(0)
        .max(bounds.1 - bounds.0)
        .max(1);
    let total = |held: &[u64; BufferKind::ALL.len()]| held.iter().sum();
    let steps = thinned(held_over_time(program, lane, bounds.0), length, total);
    let peak = steps.iter().map(|(_, held)| total(held)).chain(counted.iter().flat_map(|(_, s)| s.iter().map(|p| p.1)));
    let peak = peak.max().unwrap_or(0).max(1) as f64;
    let capacity = capacity.map(|c| c as f64).filter(|c| *c <= 3.0 * peak);
    let limit = peak.max(capacity.unwrap_or(0.0)) * 1.06;
    let ((unit, unit_name), (time, time_name)) = (binary_unit(limit), time_unit(length as f64));
    let end = bounds.1 - bounds.0;
    chart("Memory over the iteration by part", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(46)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..length as f64 / time, 0.0..limit / unit)
            .expect("a string takes everything");
        axes(&mut chart, &format!("time since the iteration's first start, {time_name}"), unit_name, plain);
        let scale = |points: Vec<(f64, f64)>| points.into_iter().map(move |(x, y)| (x / time, y / unit));
        // From the top of the stack down, so that each part's area covers what is not its own.
        for index in (0..BufferKind::ALL.len()).rev() {
            let stacked: Vec<(u64, f64)> =
                steps.iter().map(|(t, held)| (*t, held[..=index].iter().sum::<u64>() as f64)).collect();
            if steps.iter().any(|(_, held)| held[index] > 0) {
                let fill = rgb(palette::buffer(BufferKind::ALL[index])).filled();
                let series = AreaSeries::new(scale(corners(&stacked, end)), 0.0, fill);
                chart.draw_series(series).expect("a string takes everything");
            }
        }
        for (index, (_, steps)) in counted.iter().enumerate() {
            let steps = thinned(steps.clone(), length, |bytes| *bytes);
            let steps: Vec<(u64, f64)> = steps.into_iter().map(|(t, bytes)| (t, bytes as f64)).collect();
            let last = steps.last().map_or(0, |step| step.0).max(end);
            let colour = if index == 0 { palette::TEXT } else { palette::CURVES[index % palette::CURVES.len()] };
            let style = ShapeStyle { color: rgb(colour).to_rgba(), filled: false, stroke_width: 1 };
            let line = LineSeries::new(scale(corners(&steps, last)), style);
            chart.draw_series(line).expect("a string takes everything");
        }
        if let Some(capacity) = capacity {
            let style = ShapeStyle { color: rgb(palette::ALARM).to_rgba(), filled: false, stroke_width: 2 };
            let line = PathElement::new(vec![(0.0, capacity / unit), (length as f64 / time, capacity / unit)], style);
            chart.draw_series([line]).expect("a string takes everything");
        }
    })
}

/// Losses by iteration, one line for each curve; values that are not finite leave a gap. `None` if there is no value.
pub(crate) fn losses(curves: &[Curve]) -> Option<String> {
    let finite = || curves.iter().flat_map(|c| &c.points).filter(|(_, loss)| loss.is_finite());
    let last = finite().map(|(x, _)| *x).fold(f64::NEG_INFINITY, f64::max);
    let low = finite().map(|(_, y)| *y).fold(f64::INFINITY, f64::min);
    let high = finite().map(|(_, y)| *y).fold(f64::NEG_INFINITY, f64::max);
    if !(last.is_finite() && low.is_finite() && high.is_finite()) {
        return None;
    }
    let room = ((high - low) * 0.08).max(high.abs() * 1e-3).max(1e-9);
    Some(chart("Loss by iteration", |area| {
        let mut chart = ChartBuilder::on(area)
            .margin(8)
            .x_label_area_size(46)
            .y_label_area_size(70)
            .build_cartesian_2d(0.0..last.max(1.0), low - room..high + room)
            .expect("a string takes everything");
        axes(&mut chart, "iteration", "loss, nats per token", plain);
        for (index, curve) in curves.iter().enumerate() {
            let colour = rgb(palette::CURVES[index % palette::CURVES.len()]);
            let style = ShapeStyle { color: colour.to_rgba(), filled: false, stroke_width: 2 };
            for stretch in curve.points.split(|(_, loss)| !loss.is_finite()).filter(|stretch| !stretch.is_empty()) {
                let line = LineSeries::new(stretch.iter().copied(), style);
                chart.draw_series(line).expect("a string takes everything");
            }
            if curve.points.len() <= 60 {
                let dots = curve.points.iter().filter(|(_, loss)| loss.is_finite());
                let dots = dots.map(|point| Circle::new(*point, 2, colour.filled()));
                chart.draw_series(dots).expect("a string takes everything");
            }
        }
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn losses_that_are_not_numbers_leave_a_gap() {
        let curve = |points: Vec<f64>| Curve {
            name: "loss".to_owned(),
            points: points
                .into_iter()
                .enumerate()
                .map(|(i, loss)| (f64::from(u32::try_from(i).unwrap()), loss))
                .collect(),
        };
        let svg = losses(&[curve(vec![5.0, 4.0, f64::NAN, 3.0, 2.9])]).unwrap();
        assert_eq!(svg.matches("<circle").count(), 4);
        assert_eq!(svg.matches("var(--curve-0").count(), 4 + 2);
        assert!(!svg.contains("NaN"));
        assert_eq!(losses(&[curve(vec![f64::NAN])]), None);
        assert_eq!(losses(&[]), None);
        assert!(losses(&[curve(vec![2.5])]).is_some());
    }

    #[test]
    fn thinning_keeps_the_peak() {
        let steps: Vec<(u64, u64)> = (0..100_000).map(|i| (i, if i == 77_777 { 1_000_000 } else { i % 100 })).collect();
        let kept = thinned(steps, 100_000, |value| *value);
        assert!(kept.len() <= MOST_POINTS + 1);
        assert_eq!(kept.iter().map(|step| step.1).max(), Some(1_000_000));
        assert!(kept.windows(2).all(|pair| pair[0].0 < pair[1].0));
    }
}
