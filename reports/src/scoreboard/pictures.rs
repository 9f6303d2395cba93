//! The scoreboard's pictures: predicted against measured, the spread of errors, and what intervals are worth.

use super::{ScoreKind, ScoreRow, ScoreSet, ScoreTable};
use crate::activity::Colour;
use crate::compare::statistics::quantile;
use crate::draw::palette;
use crate::draw::plot::{Axis, Frame, range};
use crate::draw::scene::{Anchor, Ink, Key, Mark, Scene, cut, text_width};
use crate::unit::Unit;

const WIDTH: f64 = 1200.0;
/// Panels of the scatter picture at most; those of most rows.
pub(super) const MOST_PANELS: usize = 24;
/// Errors that a band around equality allows.
const BAND: f64 = 0.10;
/// The share of intervals that should hold what was measured.
const NOMINAL: (f64, f64) = (0.80, 0.97);
/// Where an interval's ends stand among ten equal parts of it on a logarithmic scale, and one part beyond each end.
const PARTS: usize = 10;

pub(super) const fn colour(score: ScoreKind) -> Colour {
    match score {
        ScoreKind::Fitted => palette::CURVES[0],
        ScoreKind::Shape => palette::CURVES[1],
        ScoreKind::Cold => palette::CURVES[2],
    }
}

/// A table's name without its ending.
pub(super) fn short(table: &ScoreTable) -> &str {
    table.file.strip_suffix(".csv").unwrap_or(&table.file)
}

/// The tables with predicted rows that get a panel: those of most rows, in the set's order.
pub(super) fn panels(set: &ScoreSet) -> Vec<&ScoreTable> {
    let mut tables: Vec<(usize, &ScoreTable)> = set.tables.iter().filter(|t| t.predicted > 0).enumerate().collect();
    tables.sort_by_key(|(index, table)| (std::cmp::Reverse(table.predicted), *index));
    tables.truncate(MOST_PANELS);
    tables.sort_by_key(|(index, _)| *index);
    tables.into_iter().map(|(_, table)| table).collect()
}

/// Predicted against measured time, one panel for each table, logarithmic, with a band of 10 % around equality.
pub(super) fn scatter(set: &ScoreSet) -> (Scene, Vec<Key>) {
    let score = set.score.name();
    let mut scene = Scene::new(WIDTH, format!("Predicted against measured time of each row by table, {score}"));
    let tables = panels(set);
    let columns = tables.len().clamp(1, 4);
    let (cell, height) = (WIDTH / 4.0, 292.0);
    for (index, table) in tables.iter().enumerate() {
        let corner = ((index % columns) as f64 * cell, (index / columns) as f64 * height);
        panel(&mut scene, set, table, corner, (cell, height));
    }
    scene.height = tables.len().div_ceil(columns) as f64 * height;
    let keys = vec![
        Key::filled(palette::GOOD, "within 10 % of measured"),
        Key::filled(palette::BAD, "further off"),
        Key::filled(palette::GRID, "band of \u{b1}10 %"),
    ];
    (scene, keys)
}

fn panel(scene: &mut Scene, set: &ScoreSet, table: &ScoreTable, corner: (f64, f64), size: (f64, f64)) {
    let (left, top) = corner;
    let rows: Vec<&ScoreRow> = set.rows_of(table).into_iter().filter(|row| row.error().is_some()).collect();
    let times = rows.iter().flat_map(|row| [row.measured_s, row.predicted_s]).flatten().filter(|time| *time > 0.0);
    let Some((low, high)) = range(times) else { return };
    let (low, high) = (low / 1.15, high * 1.15);
    scene.heading(left + 6.0, top + 14.0, 12.5, cut(short(table), size.0 - 24.0, 12.5));
    let median = table.median_ape.map_or_else(String::new, |error| format!(", median {}", Unit::Share.text(error)));
    let note = format!("{}{median}", crate::show::plural(rows.len() as u64, "row", "rows"));
    scene.text(left + 6.0, top + 30.0, 11.0, Anchor::Start, Ink::Plain(palette::MUTED), note);
    let axis = || Axis::logarithmic(low, high, |value| Unit::Seconds.tick(value));
    let (x, y) = (axis(), axis());
    let label = y.ticks.iter().map(|(_, label)| text_width(label, 10.0)).fold(24.0, f64::max);
    let inner = size.0 - 22.0 - label;
    let frame = Frame { left: left + 10.0 + label, top: top + 40.0, width: inner, height: 196.0, x, y };
    let edge = |factor: f64| {
        // The band's edge from the frame's lower left to its upper right, cut where it leaves the frame.
        let (from, to) = (low.max(low / factor), high.min(high / factor));
        (frame.at(from, from * factor), frame.at(to, to * factor))
    };
    let (above, below) = (edge(1.0 + BAND), edge(1.0 - BAND));
    let (first, last) = (frame.at(low, low), frame.at(high, high));
    let points = vec![first, above.0, above.1, last, below.1, below.0];
    scene.marks.push(Mark::Area { points, fill: palette::GRID, opacity: 0.75 });
    frame.draw(scene, 10.0);
    scene.line(first, last, 1.0, palette::MUTED);
    let place = |row: &&ScoreRow| Some(frame.at(row.measured_s?, row.predicted_s?));
    let near = |row: &&&ScoreRow| row.error().is_some_and(|error| error.abs() <= BAND);
    let inside: Vec<(f64, f64)> = rows.iter().filter(near).filter_map(place).collect();
    if !inside.is_empty() {
        let title = format!("{} within 10 %", crate::show::plural(inside.len() as u64, "row", "rows"));
        scene.marks.push(Mark::Dots { points: inside, radius: 2.2, fill: palette::GOOD, title });
    }
    for row in rows.iter().filter(|row| !near(row)) {
        let (Some(point), Some(error)) = (place(row), row.error()) else { continue };
        let time = |value: Option<f64>| crate::show::or_dash(value, |value| Unit::Seconds.text(value));
        let title = format!(
            "{}: measured {}, predicted {}, {}",
            row.row_id,
            time(row.measured_s),
            time(row.predicted_s),
            crate::show::signed_percent(error)
        );
        scene.marks.push(Mark::Dots { points: vec![point], radius: 2.2, fill: palette::BAD, title });
    }
    let ink = Ink::Plain(palette::MUTED);
    let middle = frame.left + frame.width / 2.0;
    scene.text(middle, frame.bottom() + 29.0, 10.0, Anchor::Middle, ink, "measured \u{2192}, predicted \u{2191}");
}

/// Names of the tables of all sets, in order of first appearance.
fn table_names(sets: &[ScoreSet], shown: impl Fn(&ScoreTable) -> bool) -> Vec<&str> {
    let mut names: Vec<&str> = Vec::new();
    for table in sets.iter().flat_map(|set| &set.tables).filter(|table| shown(table)) {
        if !names.contains(&table.file.as_str()) {
            names.push(&table.file);
        }
    }
    names
}

/// Width of the tables' names.
const LABEL: f64 = 340.0;
/// Height of the line of one kind of score.
const LINE: f64 = 13.0;

/// Rows of a picture: one block for each table, one line in it for each kind of score. Calls `line` with the set, the table
/// and the middle of its line; returns the bottom.
fn blocks(
    scene: &mut Scene,
    sets: &[ScoreSet],
    top: f64,
    shown: impl Fn(&ScoreTable) -> bool,
    mut line: impl FnMut(&mut Scene, &ScoreSet, &ScoreTable, f64),
) -> f64 {
    let mut y = top;
    for name in table_names(sets, &shown) {
        let of_name = |set: &ScoreSet| set.tables.iter().position(|table| table.file == name && shown(table));
        let lines: Vec<(&ScoreSet, usize)> = sets.iter().filter_map(|set| Some((set, of_name(set)?))).collect();
        let middle = y + LINE * lines.len() as f64 / 2.0;
        let first = &lines[0].0.tables[lines[0].1];
        let rows = crate::show::count(first.predicted);
        let label = format!("{} ({rows})", cut(short(first), LABEL - 70.0, 12.0));
        scene.text(LABEL - 12.0, middle + 4.0, 12.0, Anchor::End, Ink::Plain(palette::TEXT), label);
        for (set, table) in lines {
            line(scene, set, &set.tables[table], y + LINE / 2.0);
            y += LINE;
        }
        y += 9.0;
    }
    y
}

fn kind_keys(sets: &[ScoreSet]) -> Vec<Key> {
    sets.iter().map(|set| Key::filled(colour(set.score), set.score.name())).collect()
}

/// The spread of errors by table: a box from the first to the third quartile, the median in it, a line to the 90th
/// percentile, a dot at the largest; the baseline's mean as an upright line.
pub(super) fn spread(sets: &[ScoreSet]) -> (Scene, Vec<Key>) {
    let mut scene = Scene::new(WIDTH, "Spread of errors by table and kind of score");
    let steps = [0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0];
    let largest = sets.iter().flat_map(|set| &set.tables).filter_map(|table| table.max_ape).fold(0.0, f64::max);
    let (low, high) = (0.002, largest.clamp(0.5, 5.0) * 1.1);
    let ticks = steps.into_iter().map(|value| (value, Unit::Share.tick(value))).collect();
    let axis = Axis::logarithmic_at(low, high, ticks);
    let width = WIDTH - LABEL - 30.0;
    let at = |value: f64| LABEL + axis.place(value.max(low)) * width;
    let mut above = Scene::new(WIDTH, "");
    let bottom = blocks(
        &mut above,
        sets,
        8.0,
        |table| table.predicted > 0,
        |scene, set, table, y| {
            spread_line(scene, set, table, y, &at);
        },
    );
    for (value, label) in &axis.ticks {
        scene.line((at(*value), 2.0), (at(*value), bottom), 1.0, palette::GRID);
        scene.text(at(*value), bottom + 15.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label.clone());
    }
    let middle = LABEL + width / 2.0;
    let words = "error of the predicted time, |predicted / measured \u{2212} 1|";
    scene.text(middle, bottom + 33.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), words);
    scene.height = bottom + 42.0;
    scene.marks.append(&mut above.marks);
    let mut keys = kind_keys(sets);
    keys.push(Key::line(palette::TEXT, "mean error of the one-constant baseline"));
    (scene, keys)
}

fn spread_line(scene: &mut Scene, set: &ScoreSet, table: &ScoreTable, y: f64, at: &impl Fn(f64) -> f64) {
    let errors: Vec<f64> = set.rows_of(table).iter().filter_map(|row| row.error()).map(f64::abs).collect();
    let of = |share: f64| quantile(errors.clone(), share).unwrap_or(0.0);
    let (first, median, third, p90, largest) = (of(0.25), of(0.5), of(0.75), of(0.9), of(1.0));
    let fill = colour(set.score);
    let text = |value: f64| Unit::Share.text(value);
    let title = format!(
        "{}, {}: median {}, 90th percentile {}, largest {}",
        short(table),
        set.score.name(),
        text(median),
        text(p90),
        text(largest)
    );
    scene.line((at(third), y), (at(p90), y), 1.5, fill);
    scene.filled_box((at(first), y - 4.0), ((at(third) - at(first)).max(1.5), 8.0), fill, title.clone());
    scene.line((at(p90), y - 3.0), (at(p90), y + 3.0), 1.5, fill);
    scene.marks.push(Mark::Dots { points: vec![(at(largest), y)], radius: 2.2, fill, title });
    scene.line((at(median), y - 4.0), (at(median), y + 4.0), 2.0, palette::GROUND);
    if let Some(baseline) = table.baseline_mean_ape {
        scene.line((at(baseline), y - 6.5), (at(baseline), y + 6.5), 2.0, palette::TEXT);
    }
}

/// What intervals are worth: by table the share that held what was measured, and where in them it lay.
pub(super) fn calibration(sets: &[ScoreSet]) -> (Scene, Vec<Key>) {
    let mut scene = Scene::new(WIDTH, "Coverage of the 90 % intervals by table, and where measured times lie in them");
    let width = WIDTH - LABEL - 385.0;
    let axis = Axis::linear(0.0, 1.0, 5, |value| Unit::Share.tick(value));
    let at = |value: f64| LABEL + axis.place(value) * width;
    let mut above = Scene::new(WIDTH, "");
    let shown = |table: &ScoreTable| table.interval_coverage.is_some();
    let left = blocks(&mut above, sets, 8.0, shown, |scene, set, table, y| {
        let coverage = table.interval_coverage.unwrap_or(0.0);
        let fill = colour(set.score);
        let title = format!("{}, {}: {}", short(table), set.score.name(), Unit::Share.text(coverage));
        scene.line((at(0.0), y), (at(coverage), y), 1.5, fill);
        scene.marks.push(Mark::Dots { points: vec![(at(coverage), y)], radius: 3.4, fill, title });
    });
    let (x, size) = (at(NOMINAL.0), (at(NOMINAL.1) - at(NOMINAL.0), left - 2.0));
    let corners = vec![(x, 2.0), (x + size.0, 2.0), (x + size.0, 2.0 + size.1), (x, 2.0 + size.1)];
    scene.marks.push(Mark::Area { points: corners, fill: palette::GRID, opacity: 0.6 });
    for (value, label) in &axis.ticks {
        scene.line((at(*value), 2.0), (at(*value), left), 1.0, palette::GRID);
        scene.text(at(*value), left + 15.0, 11.0, Anchor::Middle, Ink::Plain(palette::MUTED), label.clone());
    }
    let ink = Ink::Plain(palette::MUTED);
    let words = "rows measured inside their 90 % interval; grey: 80 to 97 %";
    scene.text(LABEL + width / 2.0, left + 33.0, 11.0, Anchor::Middle, ink, words);
    scene.marks.append(&mut above.marks);
    let mut right = 8.0;
    for set in sets.iter().filter(|set| set.rows.iter().any(|row| row.covered().is_some())) {
        right = histogram(&mut scene, set, (WIDTH - 340.0, right));
    }
    scene.height = (left + 42.0).max(right);
    (scene, kind_keys(sets))
}

/// Where a measured time lies in its interval on a logarithmic scale: 0 for below it, 1 to [`PARTS`], one more for above.
fn part(row: &ScoreRow) -> Option<usize> {
    let (measured, low, high) = (row.measured_s?, row.low_s?, row.high_s?);
    row.covered()?;
    if measured < low {
        return Some(0);
    }
    if measured > high {
        return Some(PARTS + 1);
    }
    let share = if high > low && low > 0.0 { (measured / low).ln() / (high / low).ln() } else { 0.5 };
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the number of parts")]
    let inside = (share * PARTS as f64) as usize;
    Some(1 + inside.min(PARTS - 1))
}

/// Draws where measured times lie in their intervals; returns the bottom.
fn histogram(scene: &mut Scene, set: &ScoreSet, corner: (f64, f64)) -> f64 {
    let mut counts = [0u32; PARTS + 2];
    let parts: Vec<usize> = set.rows.iter().filter_map(part).collect();
    parts.iter().for_each(|part| counts[*part] += 1);
    let (left, top, height) = (corner.0, corner.1 + 30.0, 72.0);
    // What lies outside gets a column of its own, wide enough for its words.
    let (outer, inner) = (46.0, 24.0);
    let width = 2.0 * outer + inner * PARTS as f64;
    let most = f64::from(counts.iter().copied().max().unwrap_or(1).max(1));
    let words = format!("{}: where in its interval it was measured", set.score.name());
    scene.text(left, corner.1 + 8.0, 11.5, Anchor::Start, Ink::Plain(palette::TEXT), words);
    let (bottom, ink) = (top + height, Ink::Plain(palette::MUTED));
    let mut x = left;
    for (index, count) in counts.into_iter().enumerate() {
        let outside = index == 0 || index == PARTS + 1;
        let wide = if outside { outer } else { inner };
        let share = f64::from(count) / parts.len().max(1) as f64;
        let tall = height * f64::from(count) / most;
        let fill = if outside { palette::MUTED } else { colour(set.score) };
        let rows = crate::show::plural(u64::from(count), "row", "rows");
        let title = format!("{rows}, {}", Unit::Share.text(share));
        scene.filled_box((x + 1.0, bottom - tall), (wide - 2.0, tall), fill, title);
        if outside {
            let middle = x + wide / 2.0;
            scene.text(middle, bottom - tall - 4.0, 10.0, Anchor::Middle, ink, Unit::Share.text(share));
            let words = if index == 0 { "faster" } else { "slower" };
            scene.text(middle, bottom + 14.0, 10.0, Anchor::Middle, ink, words);
        }
        x += wide;
    }
    scene.line((left, bottom), (left + width, bottom), 1.0, palette::MUTED);
    for (x, anchor, words) in
        [(left + outer, Anchor::Start, "low end"), (left + width - outer, Anchor::End, "high end")]
    {
        scene.line((x, top - 14.0), (x, bottom + 6.0), 1.0, palette::MUTED);
        scene.text(x, bottom + 14.0, 10.0, anchor, ink, words);
    }
    bottom + 34.0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_measured_time_has_its_part_of_the_interval() {
        let row = |measured: f64| ScoreRow {
            measured_s: Some(measured),
            predicted_s: Some(2.0),
            low_s: Some(1.0),
            high_s: Some(4.0),
            ..ScoreRow::default()
        };
        assert_eq!(part(&row(0.99)), Some(0));
        assert_eq!(part(&row(1.0)), Some(1));
        assert_eq!(part(&row(2.000_001)), Some(6));
        assert_eq!(part(&row(4.0)), Some(PARTS));
        assert_eq!(part(&row(4.01)), Some(PARTS + 1));
        assert_eq!(part(&ScoreRow::default()), None);
    }
}
