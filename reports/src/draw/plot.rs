//! Axes of a plot, linear or logarithmic, and the frame that they span.

use super::palette;
use super::scale::{binary_unit, decimal_step};
use super::scene::{Anchor, Ink, Mark, Scene, text_width};
use crate::unit::Unit;

/// One axis: a range, how values are placed on it, and its ticks.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Axis {
    low: f64,
    high: f64,
    logarithmic: bool,
    /// Value and label, in order.
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Axis {
    /// From `low` to `high`, with a round step that gives at most `most` ticks.
    pub(crate) fn linear(low: f64, high: f64, most: u32, label: impl Fn(f64) -> String) -> Self {
        let high = if high > low { high } else { low + 1.0 };
        let step = decimal_step(high - low, most);
        let mut ticks = Vec::new();
        let mut index = (low / step - 1e-9).ceil();
        while index * step <= high + step * 1e-9 && ticks.len() < 100 {
            // Adding zero turns a negative zero into zero.
            ticks.push((index * step + 0.0, label(index * step + 0.0)));
            index += 1.0;
        }
        Self { low, high, logarithmic: false, ticks }
    }

    /// From `low` to `high` in a unit, with steps that are round in what the unit is shown as (GiB, hours, days).
    pub(crate) fn of(unit: Unit, low: f64, high: f64, most: u32) -> Self {
        let base = match unit {
            Unit::Bytes => binary_unit(low.abs().max(high.abs())).0,
            Unit::Seconds => [86_400.0, 3_600.0, 60.0].into_iter().find(|s| high >= 2.0 * s).unwrap_or(1.0),
            Unit::Days
            | Unit::Share
            | Unit::Dollars
            | Unit::DeviceHours
            | Unit::MegawattHours
            | Unit::Joules
            | Unit::TokensPerSecond
            | Unit::Count
            | Unit::Plain => 1.0,
        };
        let mut axis = Self::linear(low / base, high / base, most, |value| unit.tick(value * base));
        (axis.low, axis.high) = (axis.low * base, axis.high * base);
        axis.ticks.iter_mut().for_each(|tick| tick.0 *= base);
        axis
    }

    /// Powers of ten, and their multiples where the range is short. Both ends are above zero.
    pub(crate) fn logarithmic(low: f64, high: f64, label: impl Fn(f64) -> String) -> Self {
        let low = if low.is_finite() && low > 0.0 { low } else { 1e-9 };
        let high = if high.is_finite() && high > low { high } else { low * 10.0 };
        let decades = (high / low).log10();
        let multiples: &[f64] = match decades {
            d if d <= 1.0 => &[1.0, 1.5, 2.0, 3.0, 4.0, 5.0, 7.0],
            d if d <= 3.0 => &[1.0, 2.0, 5.0],
            _ => &[1.0],
        };
        let mut ticks = Vec::new();
        let mut power = 10f64.powf(low.log10().floor());
        while power <= high {
            for value in multiples.iter().map(|multiple| multiple * power) {
                if value >= low * 0.999_999 && value <= high * 1.000_001 {
                    ticks.push((value, label(value)));
                }
            }
            power *= 10.0;
        }
        Self { low, high, logarithmic: true, ticks }
    }

    /// Logarithmic, with ticks of the caller's.
    pub(crate) fn logarithmic_at(low: f64, high: f64, ticks: Vec<(f64, String)>) -> Self {
        let ticks = ticks.into_iter().filter(|(value, _)| *value >= low && *value <= high).collect();
        Self { low, high, logarithmic: true, ticks }
    }

    /// Where a value lies: 0 at the low end, 1 at the high one, held between them.
    pub(crate) fn place(&self, value: f64) -> f64 {
        let share = if self.logarithmic {
            (value.max(f64::MIN_POSITIVE) / self.low).ln() / (self.high / self.low).ln()
        } else {
            (value - self.low) / (self.high - self.low)
        };
        share.clamp(0.0, 1.0)
    }

    pub(crate) fn low(&self) -> f64 {
        self.low
    }
    pub(crate) fn high(&self) -> f64 {
        self.high
    }
}

/// A rectangle with two axes.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Frame {
    pub(crate) left: f64,
    pub(crate) top: f64,
    pub(crate) width: f64,
    pub(crate) height: f64,
    pub(crate) x: Axis,
    pub(crate) y: Axis,
}

impl Frame {
    /// The picture's place of a point.
    pub(crate) fn at(&self, x: f64, y: f64) -> (f64, f64) {
        (self.left + self.x.place(x) * self.width, self.top + (1.0 - self.y.place(y)) * self.height)
    }
    pub(crate) fn bottom(&self) -> f64 {
        self.top + self.height
    }
    pub(crate) fn right(&self) -> f64 {
        self.left + self.width
    }

    /// Grid lines, tick labels outside the frame, and its edges. Labels that would touch are left out.
    pub(crate) fn draw(&self, scene: &mut Scene, size: f64) {
        let ink = Ink::Plain(palette::MUTED);
        let mut free_from = f64::NEG_INFINITY;
        for (value, label) in &self.x.ticks {
            let x = self.left + self.x.place(*value) * self.width;
            scene.line((x, self.top), (x, self.bottom()), 1.0, palette::GRID);
            let half = text_width(label, size) / 2.0;
            if x - half >= free_from {
                scene.text(x, self.bottom() + size + 4.0, size, Anchor::Middle, ink, label.clone());
                free_from = x + half + 4.0;
            }
        }
        let mut free_below = f64::INFINITY;
        for (value, label) in &self.y.ticks {
            let y = self.top + (1.0 - self.y.place(*value)) * self.height;
            scene.line((self.left, y), (self.right(), y), 1.0, palette::GRID);
            if y + size * 0.4 <= free_below {
                scene.text(self.left - 6.0, y + size * 0.36, size, Anchor::End, ink, label.clone());
                free_below = y - size * 0.8;
            }
        }
        let corners = [
            (self.left, self.top),
            (self.right(), self.top),
            (self.right(), self.bottom()),
            (self.left, self.bottom()),
            (self.left, self.top),
        ];
        scene.marks.push(Mark::Path { points: corners.into(), width: 1.0, colour: palette::MUTED, dashed: false });
    }

    /// What the axes show: below the x axis, and above the frame's top left for y.
    pub(crate) fn name_axes(&self, scene: &mut Scene, x: &str, y: &str, size: f64) {
        let ink = Ink::Plain(palette::MUTED);
        let middle = self.left + self.width / 2.0;
        scene.text(middle, self.bottom() + 2.0 * size + 10.0, size, Anchor::Middle, ink, x);
        scene.text(self.left - 6.0, self.top - 8.0, size, Anchor::Start, ink, y);
    }
}

/// The lowest and highest of values that are finite, `None` if there is none.
pub(crate) fn range(values: impl IntoIterator<Item = f64>) -> Option<(f64, f64)> {
    let mut found = None;
    for value in values.into_iter().filter(|value| value.is_finite()) {
        let (low, high) = found.unwrap_or((value, value));
        found = Some((value.min(low), value.max(high)));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ticks_are_round_and_inside() {
        let labels = |axis: Axis| axis.ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        assert_eq!(
            labels(Axis::linear(0.0, 1.0, 5, |v| format!("{v:.1}"))),
            ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]
        );
        assert_eq!(labels(Axis::linear(-10.0, 25.0, 5, |v| format!("{v}"))), ["-10", "0", "10", "20"]);
        assert_eq!(labels(Axis::logarithmic(0.8, 60.0, |v| format!("{v}"))), ["1", "2", "5", "10", "20", "50"]);
        assert_eq!(labels(Axis::logarithmic(1.0, 1e6, |v| format!("{v}"))).len(), 7);
    }

    #[test]
    fn steps_are_round_in_the_unit_that_is_shown() {
        let labels = |axis: Axis| axis.ticks.into_iter().map(|(_, label)| label).collect::<Vec<_>>();
        let gib = 1_073_741_824.0;
        assert_eq!(
            labels(Axis::of(Unit::Bytes, 0.0, 12.0 * gib, 6)),
            ["0", "2 GiB", "4 GiB", "6 GiB", "8 GiB", "10 GiB", "12 GiB"]
        );
        assert_eq!(labels(Axis::of(Unit::Seconds, 0.0, 400.0, 4)), ["0", "2 min", "4 min", "6 min"]);
    }

    #[test]
    fn places_are_shares_of_the_axis() {
        let axis = Axis::logarithmic(1.0, 100.0, |v| format!("{v}"));
        assert!((axis.place(10.0) - 0.5).abs() < 1e-12);
        assert!((axis.place(1e9) - 1.0).abs() < 1e-12);
        assert!(axis.place(-1.0) < 1e-12);
        let axis = Axis::linear(0.0, 4.0, 4, |v| format!("{v}"));
        assert!((axis.place(1.0) - 0.25).abs() < 1e-12);
        assert_eq!(range([f64::NAN, 2.0, 1.0]), Some((1.0, 2.0)));
        assert_eq!(range([f64::INFINITY]), None);
    }
}
