//! What a sweep's pictures keep of its points, and the pictures: a heat map over two keys, curves over one.

use crate::draw::palette;
use crate::draw::plot::{Axis, Frame, range};
use crate::draw::scene::{Anchor, Ink, Key, Mark, Scene, cut, text_width};
use crate::sweep::{Cell, SweepColumn};
use crate::unit::Unit;

const WIDTH: f64 = 1200.0;
/// Values of a key that a picture can tell apart; a key of more has none.
pub(super) const MOST_VALUES: usize = 40;
/// Curves of a picture.
pub(super) const MOST_CURVES: usize = 8;

/// Values of a key, in order of first appearance.
#[derive(Clone, Debug, Default)]
struct Values(Vec<Cell>);

impl Values {
    /// A value's place; `None` if there is no more room.
    fn place(&mut self, cell: &Cell, most: usize) -> Option<usize> {
        let found = self.0.iter().position(|known| known == cell);
        found.or_else(|| {
            (self.0.len() < most).then(|| {
                self.0.push(cell.clone());
                self.0.len() - 1
            })
        })
    }

    /// Places in order: by number where all are numbers, else as they came.
    fn order(&self) -> Vec<usize> {
        let mut order: Vec<usize> = (0..self.0.len()).collect();
        let numbers: Option<Vec<f64>> = self.0.iter().map(Cell::number).collect();
        if let Some(numbers) = numbers {
            order.sort_by(|a, b| numbers[*a].total_cmp(&numbers[*b]));
        }
        order
    }
}

/// The best value of a result at each pair of values of two keys.
#[derive(Clone, Debug)]
pub(super) struct Grid {
    pub(super) x: (usize, SweepColumn),
    pub(super) y: (usize, SweepColumn),
    value: SweepColumn,
    lowest: bool,
    xs: Values,
    ys: Values,
    /// By (x, y): points tried, and the best value.
    cells: std::collections::BTreeMap<(usize, usize), (u64, Option<f64>)>,
    pub(super) overflowed: bool,
}

impl Grid {
    pub(super) fn new(x: (usize, SweepColumn), y: (usize, SweepColumn), value: SweepColumn, lowest: bool) -> Self {
        let (xs, ys) = (Values::default(), Values::default());
        Self { x, y, value, lowest, xs, ys, cells: std::collections::BTreeMap::new(), overflowed: false }
    }

    pub(super) fn push(&mut self, keys: &[Cell], value: Option<f64>) {
        let x = self.xs.place(&keys[self.x.0], MOST_VALUES);
        let y = self.ys.place(&keys[self.y.0], MOST_VALUES);
        let (Some(x), Some(y)) = (x, y) else {
            self.overflowed = true;
            return;
        };
        let cell = self.cells.entry((x, y)).or_default();
        cell.0 += 1;
        cell.1 = better(cell.1, value, self.lowest);
    }

    pub(super) fn picture(&self) -> Option<(Scene, Vec<Key>)> {
        let values = range(self.cells.values().filter_map(|cell| cell.1));
        let (low, high) = values.filter(|_| !self.overflowed)?;
        let mut scene = Scene::new(WIDTH, format!("{} over {} and {}", self.value.name, self.x.1.name, self.y.1.name));
        let (xs, ys) = (self.xs.order(), self.ys.order());
        let label = |values: &Values, place: usize, unit: Unit| values.0[place].text(unit);
        let (left, top) = (190.0, 8.0);
        let width = ((WIDTH - left - 20.0) / xs.len() as f64).min(120.0);
        let height = if ys.len() > 20 { 20.0 } else { 28.0 };
        for (row, y) in ys.iter().rev().enumerate() {
            let corner_y = top + height * row as f64;
            let words = cut(&label(&self.ys, *y, self.y.1.unit), left - 20.0, 11.5);
            let baseline = corner_y + height / 2.0 + 4.0;
            scene.text(left - 10.0, baseline, 11.5, Anchor::End, Ink::Plain(palette::TEXT), words);
            for (column, x) in xs.iter().enumerate() {
                let corner = (left + width * column as f64 + 1.0, corner_y + 1.0);
                let cell = self.cells.get(&(*x, *y));
                self.draw_cell(&mut scene, cell, corner, (width - 2.0, height - 2.0), (low, high));
            }
        }
        let bottom = top + height * ys.len() as f64;
        let mut free_from = 0.0;
        for (column, x) in xs.iter().enumerate() {
            let words = cut(&label(&self.xs, *x, self.x.1.unit), width.max(48.0), 11.5);
            let (middle, half) = (left + width * (column as f64 + 0.5), text_width(&words, 11.5) / 2.0);
            if middle - half >= free_from {
                scene.text(middle, bottom + 16.0, 11.5, Anchor::Middle, Ink::Plain(palette::TEXT), words);
                free_from = middle + half + 6.0;
            }
        }
        let middle = left + width * xs.len() as f64 / 2.0;
        let words = format!("{} \u{2192}, {} \u{2191}", self.x.1.name, self.y.1.name);
        scene.text(middle.max(left + 120.0), bottom + 36.0, 11.5, Anchor::Middle, Ink::Plain(palette::MUTED), words);
        scene.height = bottom + 46.0;
        Some((scene, self.keys(low, high)))
    }

    fn step(value: f64, (low, high): (f64, f64)) -> usize {
        // Equal ratios look equal where the values span more than a factor of three.
        let logarithmic = low > 0.0 && high / low > 3.0;
        let share = match (high > low, logarithmic) {
            (false, _) => 0.0,
            (true, true) => (value / low).ln() / (high / low).ln(),
            (true, false) => (value - low) / (high - low),
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 0 and the last step")]
        let step = (share * palette::HEAT.len() as f64) as usize;
        step.min(palette::HEAT.len() - 1)
    }

    fn draw_cell(
        &self,
        scene: &mut Scene,
        cell: Option<&(u64, Option<f64>)>,
        corner: (f64, f64),
        size: (f64, f64),
        limits: (f64, f64),
    ) {
        let Some((points, value)) = cell else { return };
        let tried = crate::show::plural(*points, "point", "points");
        let (fill, words, title) = match value {
            None => (palette::ABSENT, "none".to_owned(), format!("{tried}, none feasible")),
            Some(value) => {
                let text = self.value.unit.text(*value);
                (palette::HEAT[Self::step(*value, limits)], text.clone(), format!("{text}, best of {tried}"))
            }
        };
        scene.filled_box(corner, size, fill, title);
        let text_size = if text_width(&words, 11.0) + 4.0 <= size.0 { 11.0 } else { 9.0 };
        if text_width(&words, text_size) + 2.0 <= size.0 {
            let (x, y) = (corner.0 + size.0 / 2.0, corner.1 + size.1 / 2.0 + text_size * 0.36);
            scene.text(x, y, text_size, Anchor::Middle, Ink::On(fill), words);
        }
    }

    fn keys(&self, low: f64, high: f64) -> Vec<Key> {
        let text = |value: f64| self.value.unit.text(value);
        let (best, worst) = if self.lowest { ("best", "worst") } else { ("worst", "best") };
        let last = palette::HEAT.len() - 1;
        let mut keys = vec![
            Key::filled(palette::HEAT[0], format!("{} {} ({best})", self.value.name, text(low))),
            Key::filled(palette::HEAT[last], format!("{} ({worst})", text(high))),
        ];
        if self.cells.values().any(|cell| cell.1.is_none()) {
            keys.push(Key::filled(palette::ABSENT, "nothing feasible"));
        }
        keys
    }
}

fn better(known: Option<f64>, value: Option<f64>, lowest: bool) -> Option<f64> {
    match (known, value.filter(|value| value.is_finite())) {
        (Some(known), Some(value)) => Some(if lowest { known.min(value) } else { known.max(value) }),
        (known, value) => known.or(value),
    }
}

/// The best value of a result at each value of a key, one curve for each value of another.
#[derive(Clone, Debug)]
pub(super) struct Curves {
    pub(super) x: (usize, SweepColumn),
    value: SweepColumn,
    series: Option<(usize, SweepColumn)>,
    lowest: bool,
    names: Values,
    xs: Values,
    best: std::collections::BTreeMap<(usize, usize), f64>,
    pub(super) overflowed: bool,
}

impl Curves {
    pub(super) fn new(
        x: (usize, SweepColumn),
        value: SweepColumn,
        series: Option<(usize, SweepColumn)>,
        lowest: bool,
    ) -> Self {
        let (names, xs) = (Values::default(), Values::default());
        Self { x, value, series, lowest, names, xs, best: std::collections::BTreeMap::new(), overflowed: false }
    }

    pub(super) fn push(&mut self, keys: &[Cell], value: Option<f64>) {
        let Some(value) = value.filter(|value| value.is_finite() && *value > 0.0) else { return };
        if !keys[self.x.0].number().is_some_and(|x| x > 0.0) {
            return;
        }
        let name = self.series.as_ref().map_or(Cell::Empty, |(index, _)| keys[*index].clone());
        let curve = self.names.place(&name, MOST_CURVES);
        let x = self.xs.place(&keys[self.x.0], 1000);
        let (Some(curve), Some(x)) = (curve, x) else {
            self.overflowed = true;
            return;
        };
        let known = self.best.get(&(curve, x)).copied();
        if let Some(best) = better(known, Some(value), self.lowest) {
            self.best.insert((curve, x), best);
        }
    }

    fn points(&self, curve: usize) -> Vec<(f64, f64)> {
        let order = self.xs.order();
        let point = |x: &usize| Some((self.xs.0[*x].number()?, *self.best.get(&(curve, *x))?));
        order.iter().filter_map(point).collect()
    }

    pub(super) fn picture(&self) -> Option<(Scene, Vec<Key>)> {
        let curves: Vec<Vec<(f64, f64)>> = (0..self.names.0.len()).map(|curve| self.points(curve)).collect();
        let all = || curves.iter().flatten();
        let (first, last) = range(all().map(|point| point.0)).filter(|(first, last)| last > first)?;
        let (low, high) = range(all().map(|point| point.1))?;
        let mut scene = Scene::new(WIDTH, format!("{} over {}", self.value.name, self.x.1.name));
        let room = (high / low).powf(0.05).max(1.05);
        let frame = Frame {
            left: 110.0,
            top: 26.0,
            width: WIDTH - 260.0,
            height: 330.0,
            x: self.x_axis((first, last)),
            y: Axis::logarithmic(low / room, high * room, |value| self.value.unit.tick(value)),
        };
        frame.draw(&mut scene, 11.0);
        frame.name_axes(&mut scene, &self.x.1.name, &self.value.name, 11.0);
        let mut keys = Vec::new();
        for (index, points) in curves.iter().enumerate() {
            let colour = palette::CURVES[index % palette::CURVES.len()];
            self.draw_curve(&mut scene, &frame, points, (colour, index >= palette::CURVES.len()));
            if let Some((_, series)) = &self.series {
                keys.push(Key::line(colour, format!("{} {}", series.name, self.names.0[index].text(series.unit))));
            }
        }
        self.name_ends(&mut scene, &frame, &curves);
        keys.push(Key::line(palette::MUTED, "ideal: in proportion, from each curve's first point"));
        scene.height = frame.bottom() + 42.0;
        Some((scene, keys))
    }

    /// Ticks at the values themselves where they are few.
    fn x_axis(&self, (first, last): (f64, f64)) -> Axis {
        let room = (last / first).powf(0.03);
        let (low, high) = (first / room, last * room);
        let values: Vec<f64> = self.xs.order().iter().filter_map(|x| self.xs.0[*x].number()).collect();
        if values.len() > 16 {
            return Axis::logarithmic(low, high, |value| self.x.1.unit.tick(value));
        }
        let ticks = values.into_iter().map(|value| (value, self.x.1.unit.tick(value))).collect();
        Axis::logarithmic_at(low, high, ticks)
    }

    fn draw_curve(
        &self,
        scene: &mut Scene,
        frame: &Frame,
        points: &[(f64, f64)],
        (colour, dashed): (crate::activity::Colour, bool),
    ) {
        let [first, .., last] = points else {
            let points: Vec<(f64, f64)> = points.iter().map(|point| frame.at(point.0, point.1)).collect();
            let title = self.value.name.clone();
            scene.marks.push(Mark::Dots { points, radius: 3.0, fill: colour, title });
            return;
        };
        // Twice the devices: half the time, or twice the rate. Cut where it would leave the frame.
        let power = if self.lowest { -1.0 } else { 1.0 };
        let ideal = |x: f64| first.1 * (x / first.0).powf(power);
        let edge = if self.lowest { frame.y.low() } else { frame.y.high() };
        let leaves = first.0 * (edge / first.1).powf(power);
        let end = last.0.min(leaves);
        let line = vec![frame.at(first.0, first.1), frame.at(end, ideal(end))];
        scene.marks.push(Mark::Path { points: line, width: 1.5, colour: palette::MUTED, dashed: true });
        let places: Vec<(f64, f64)> = points.iter().map(|point| frame.at(point.0, point.1)).collect();
        scene.marks.push(Mark::Path { points: places.clone(), width: 2.0, colour, dashed });
        for (point, place) in points.iter().zip(places) {
            let of_ideal = if self.lowest { ideal(point.0) / point.1 } else { point.1 / ideal(point.0) };
            let title = format!(
                "{}: {}, {} of ideal",
                self.x.1.unit.text(point.0),
                self.value.unit.text(point.1),
                Unit::Share.text(of_ideal)
            );
            scene.marks.push(Mark::Dots { points: vec![place], radius: 3.0, fill: colour, title });
        }
    }

    /// The share of ideal at each curve's end, beside it, moved apart where two would touch.
    fn name_ends(&self, scene: &mut Scene, frame: &Frame, curves: &[Vec<(f64, f64)>]) {
        let mut ends: Vec<(f64, f64, String)> = Vec::new();
        for (index, points) in curves.iter().enumerate() {
            let [first, .., last] = points.as_slice() else { continue };
            let (gain, ideal) = (last.1 / first.1, last.0 / first.0);
            let share = if self.lowest { 1.0 / (gain * ideal) } else { gain / ideal };
            let name = self.series.as_ref().map_or_else(String::new, |(_, series)| {
                format!("{}, ", cut(&self.names.0[index].text(series.unit), 60.0, 10.5))
            });
            let (x, y) = frame.at(last.0, last.1);
            ends.push((x, y, format!("{name}{} of ideal", Unit::Share.text(share))));
        }
        ends.sort_by(|a, b| a.1.total_cmp(&b.1));
        let mut free_from = f64::NEG_INFINITY;
        for (x, y, words) in ends {
            let y = (y + 4.0).max(free_from);
            let x = x.max(frame.right() - 28.0) + 34.0;
            scene.text(x, y, 10.5, Anchor::Start, Ink::Plain(palette::TEXT), words);
            free_from = y + 13.0;
        }
    }
}
