//! Units of plain numbers, and how each is shown.

use serde::Serialize;

use crate::show;

/// What a plain number counts. Shown with [`Unit::text`]; the raw value stays in JSON, CSV and Parquet.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    /// Seconds.
    Seconds,
    /// Days of 24 hours.
    Days,
    /// Bytes.
    Bytes,
    /// A share: 0.05 is shown as 5.0 %.
    Share,
    /// US dollars.
    Dollars,
    /// Hours of one device.
    DeviceHours,
    /// Energy in megawatt-hours.
    MegawattHours,
    /// Energy in joules.
    Joules,
    /// Tokens per second.
    TokensPerSecond,
    /// Things that are counted.
    Count,
    /// A number without a unit.
    Plain,
}

impl Unit {
    /// A value in words, with its unit.
    #[must_use]
    pub fn text(self, value: f64) -> String {
        match self {
            Self::Seconds => show::seconds(value),
            Self::Days => format!("{} days", show::number(value)),
            Self::Bytes => bytes(value),
            Self::Share => show::percent(value),
            Self::Dollars => show::dollars(value),
            Self::DeviceHours => show::with_prefix(value, "h"),
            Self::MegawattHours => format!("{} MWh", show::number(value)),
            Self::Joules => format!("{} J", show::number(value)),
            Self::TokensPerSecond => show::with_prefix(value, "tokens/s"),
            Self::Count => with_commas(value),
            Self::Plain if value.fract() == 0.0 => with_commas(value),
            Self::Plain => show::number(value),
        }
    }

    /// A difference in words: its sign stands first, a difference of shares is in points.
    #[must_use]
    pub fn difference(self, value: f64) -> String {
        let text = match self {
            Self::Share => format!("{} points", show::percent(value).trim_end_matches(" %")),
            Self::Seconds
            | Self::Days
            | Self::Bytes
            | Self::Dollars
            | Self::DeviceHours
            | Self::MegawattHours
            | Self::Joules
            | Self::TokensPerSecond
            | Self::Count
            | Self::Plain => self.text(value),
        };
        if value > 0.0 { format!("+{text}") } else { text }
    }

    /// A value with its interval in three digits, the unit once: `27.1 days (23.8 to 31.1)`.
    #[must_use]
    pub fn interval(self, low: f64, expected: f64, high: f64) -> String {
        let (scale, before, behind) = self.scale(expected);
        let digits = |value: f64| three_digits(value / scale);
        format!("{before}{}{behind} ({} to {})", digits(expected), digits(low), digits(high))
    }

    /// How a value is scaled, and the words before and behind it.
    fn scale(self, value: f64) -> (f64, &'static str, &'static str) {
        const SECONDS: [(f64, &str); 6] =
            [(86_400.0, " days"), (7_200.0, " h"), (120.0, " min"), (1.0, " s"), (1e-3, " ms"), (1e-6, " \u{b5}s")];
        const PREFIXES: [(f64, &str); 4] = [(1e9, " G"), (1e6, " M"), (1e3, " k"), (1.0, " ")];
        const HOURS: [(f64, &str); 3] = [(1e6, " Mh"), (1e3, " kh"), (1.0, " h")];
        const RATES: [(f64, &str); 4] =
            [(1e9, " Gtokens/s"), (1e6, " Mtokens/s"), (1e3, " ktokens/s"), (1.0, " tokens/s")];
        let pick = |steps: &[(f64, &'static str)]| {
            let found = steps.iter().find(|(least, _)| value.abs() >= *least).or(steps.last());
            found.copied().unwrap_or((1.0, ""))
        };
        match self {
            Self::Seconds => match pick(&SECONDS) {
                // Shown in hours from two hours on, in minutes from two minutes on.
                (_, " h") => (3_600.0, "", " h"),
                (_, " min") => (60.0, "", " min"),
                (scale, unit) => (scale, "", unit),
            },
            Self::Days => (1.0, "", " days"),
            Self::Bytes => {
                let (unit, name) = crate::draw::scale::binary_unit(value.abs());
                (unit, "", [" TiB", " GiB", " MiB", " KiB"].into_iter().find(|n| n.ends_with(name)).unwrap_or(" B"))
            }
            Self::Share => (0.01, "", " %"),
            Self::Dollars => match pick(&PREFIXES) {
                (scale, " ") => (scale, "$", ""),
                (scale, " G") => (scale, "$", " bn"),
                (scale, prefix) => (scale, "$", prefix),
            },
            Self::DeviceHours => {
                let (scale, unit) = pick(&HOURS);
                (scale, "", unit)
            }
            Self::MegawattHours => (1.0, "", " MWh"),
            Self::Joules => (1.0, "", " J"),
            Self::TokensPerSecond => {
                let (scale, unit) = pick(&RATES);
                (scale, "", unit)
            }
            Self::Count | Self::Plain => (1.0, "", ""),
        }
    }

    /// A label of an axis tick: fewer digits than [`Self::text`].
    #[must_use]
    pub fn tick(self, value: f64) -> String {
        let text = match self {
            Self::Count => return with_commas(value),
            Self::Share => return format!("{} %", trimmed(value * 100.0)),
            Self::Dollars if value.abs() >= 1e6 => return format!("${} M", trimmed(value / 1e6)),
            Self::Dollars => return format!("${}", trimmed(value)),
            other => other.text(value),
        };
        // "12.00 s" is "12 s" on an axis.
        match text.split_once(' ') {
            Some((number, unit)) => format!("{} {unit}", without_zeros(number)),
            None => without_zeros(&text).to_owned(),
        }
    }
}

/// A number with three significant digits from 0.01 on.
fn three_digits(value: f64) -> String {
    let text = match value.abs() {
        v if !v.is_finite() => return "not a number".to_owned(),
        v if v >= 999.5 => return with_commas(value),
        v if v >= 99.95 => format!("{value:.0}"),
        v if v >= 9.995 => format!("{value:.1}"),
        v if v >= 0.9995 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    };
    text.replacen('-', "\u{2212}", 1)
}

fn without_zeros(number: &str) -> &str {
    if number.contains('.') { number.trim_end_matches('0').trim_end_matches('.') } else { number }
}

fn trimmed(value: f64) -> String {
    if value.abs() >= 1000.0 {
        return with_commas(value);
    }
    without_zeros(&format!("{value:.3}")).replacen('-', "\u{2212}", 1)
}

fn with_commas(value: f64) -> String {
    if !value.is_finite() {
        return "not a number".to_owned();
    }
    let sign = if value <= -0.5 { "\u{2212}" } else { "" };
    if value.abs() >= 1e15 || (value.fract().abs() > 1e-9 && value.abs() < 1000.0) {
        return show::number(value);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "below 10^15 and made positive")]
    let whole = value.abs().round() as u64;
    format!("{sign}{}", show::count(whole))
}

fn bytes(value: f64) -> String {
    let sign = if value <= -0.5 { "\u{2212}" } else { "" };
    if !value.is_finite() {
        return "not a number".to_owned();
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "amounts of memory, made positive")]
    let whole = value.abs().round() as u64;
    format!("{sign}{}", show::bytes(ir::Bytes::new(whole)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_has_its_unit() {
        assert_eq!(Unit::Seconds.text(1.5), "1.500 s");
        assert_eq!(Unit::Share.text(0.0731), "7.3 %");
        assert_eq!(Unit::Bytes.text(-1_610_612_736.0), "\u{2212}1.500 GiB");
        assert_eq!(Unit::Count.text(16_384.0), "16,384");
        assert_eq!(Unit::Count.text(-2.0), "\u{2212}2");
        assert_eq!(Unit::Seconds.difference(0.25), "+250.0 ms");
        assert_eq!(Unit::Share.difference(-0.02), "\u{2212}2.0 points");
        assert_eq!(Unit::Seconds.tick(0.5), "500 ms");
        assert_eq!(Unit::Dollars.tick(2_500_000.0), "$2.5 M");
        assert_eq!(Unit::Share.tick(0.005), "0.5 %");
        assert_eq!(Unit::Plain.text(f64::NAN), "not a number");
        assert_eq!(Unit::Days.interval(23.83, 27.08, 31.14), "27.1 days (23.8 to 31.1)");
        assert_eq!(Unit::Dollars.interval(907_748.0, 1_031_532.0, 1_186_262.0), "$1.03 M (0.908 to 1.19)");
        assert_eq!(Unit::Seconds.interval(6_900.0, 9_000.0, 10_000.0), "2.50 h (1.92 to 2.78)");
        assert_eq!(Unit::Bytes.interval(1e10, 2e10, 3e10), "18.6 GiB (9.31 to 27.9)");
    }
}
