//! Axes: round steps for time and memory.

/// A step of 1, 2 or 5 times a power of ten that gives at most `most` steps up to `limit`.
pub(crate) fn decimal_step(limit: f64, most: u32) -> f64 {
    let rough = limit / f64::from(most.max(1));
    if !(rough.is_finite() && rough > 0.0) {
        return 1.0;
    }
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|m| m * power).find(|step| *step >= rough * 0.999_999).unwrap_or(10.0 * power)
}

/// A step of a power of two, or 1, 2 or 5 times a power of ten of the largest binary unit under `limit` bytes.
pub(crate) fn binary_step(limit: f64, most: u32) -> f64 {
    let unit = binary_unit(limit).0;
    unit * decimal_step(limit / unit, most)
}

/// The largest binary unit that is no larger than `bytes`, and its name.
pub(crate) fn binary_unit(bytes: f64) -> (f64, &'static str) {
    const UNITS: [(f64, &str); 4] =
        [(1_099_511_627_776.0, "TiB"), (1_073_741_824.0, "GiB"), (1_048_576.0, "MiB"), (1024.0, "KiB")];
    UNITS.into_iter().find(|(unit, _)| bytes >= *unit).unwrap_or((1.0, "B"))
}

/// The largest unit of time that is no larger than `nanoseconds`, and its name.
pub(crate) fn time_unit(nanoseconds: f64) -> (f64, &'static str) {
    const UNITS: [(f64, &str); 3] = [(1e9, "s"), (1e6, "ms"), (1e3, "\u{b5}s")];
    UNITS.into_iter().find(|(unit, _)| nanoseconds >= *unit).unwrap_or((1.0, "ns"))
}

/// Multiples of `step` from 0 to `limit`, as `(value, label in units of unit)`.
pub(crate) fn ticks(limit: f64, step: f64, unit: f64) -> Vec<(f64, String)> {
    let mut ticks = Vec::new();
    let mut index = 0u32;
    while f64::from(index) * step <= limit * (1.0 + 1e-9) && index < 1000 {
        let value = f64::from(index) * step;
        let text = format!("{:.3}", value / unit);
        ticks.push((value, text.trim_end_matches('0').trim_end_matches('.').to_owned()));
        index += 1;
    }
    ticks
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_round() {
        let close = |a: f64, b: f64| assert!((a / b - 1.0).abs() < 1e-9, "{a} is not {b}");
        close(decimal_step(100.0, 10), 10.0);
        close(decimal_step(101.0, 10), 20.0);
        close(decimal_step(0.034, 10), 0.005);
        close(decimal_step(0.0, 10), 1.0);
        close(binary_step(80.0 * 1_073_741_824.0, 8), 10.0 * 1_073_741_824.0);
        let labels: Vec<String> = ticks(1.0, 0.25, 1.0).into_iter().map(|t| t.1).collect();
        assert_eq!(labels, ["0", "0.25", "0.5", "0.75", "1"]);
        assert_eq!(time_unit(1_500_000.0), (1e6, "ms"));
    }
}
