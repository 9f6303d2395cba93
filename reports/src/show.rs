//! Numbers as people read them: four significant digits and a unit. Exact values go to JSON and CSV.

use ir::{Bytes, SimDuration, SimTime};

/// A number with four significant digits, no trailing exponent, from 0.001 to 99,999.
#[must_use]
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "not a number".to_owned();
    }
    let magnitude = value.abs();
    let places = match magnitude {
        m if m >= 999.95 => 0,
        m if m >= 99.995 => 1,
        m if m >= 9.9995 => 2,
        m if m >= 0.99995 => 3,
        _ => 4,
    };
    let text = format!("{value:.places$}");
    text.replacen('-', "\u{2212}", 1)
}

fn scaled(value: f64, steps: &[(f64, &str)]) -> String {
    let (scale, unit) = steps
        .iter()
        .find(|(scale, _)| value.abs() >= 0.999_95 * scale)
        .or(steps.last())
        .copied()
        .expect("at least one unit");
    format!("{} {unit}", number(value / scale))
}

/// A duration: `12.35 ms`.
#[must_use]
pub fn duration(duration: SimDuration) -> String {
    nanoseconds(duration.nanoseconds() as f64)
}

/// A moment on a timeline: `12.35 ms`.
#[must_use]
pub fn time(time: SimTime) -> String {
    nanoseconds(time.nanoseconds() as f64)
}

/// A signed number of nanoseconds: `12.35 ms`.
#[must_use]
pub fn nanoseconds(nanoseconds: f64) -> String {
    if nanoseconds.abs() < 1.0 {
        return "0".to_owned();
    }
    scaled(nanoseconds, &[(1e9, "s"), (1e6, "ms"), (1e3, "\u{b5}s"), (1.0, "ns")])
}

/// A length of time in seconds, up to days: `12.35 ms`, `3.500 h`, `21.40 days`.
#[must_use]
pub fn seconds(seconds: f64) -> String {
    const DAY: f64 = 86_400.0;
    match seconds.abs() {
        s if s >= DAY => format!("{} days", number(seconds / DAY)),
        s if s >= 7_200.0 => format!("{} h", number(seconds / 3_600.0)),
        s if s >= 120.0 => format!("{} min", number(seconds / 60.0)),
        _ => nanoseconds(seconds * 1e9),
    }
}

/// An amount of memory: `12.35 GiB`.
#[must_use]
pub fn bytes(bytes: Bytes) -> String {
    if bytes == Bytes::ZERO {
        return "0".to_owned();
    }
    let unit = |shift: u32| (1u64 << shift) as f64;
    scaled(
        bytes.get() as f64,
        &[(unit(40), "TiB"), (unit(30), "GiB"), (unit(20), "MiB"), (unit(10), "KiB"), (1.0, "B")],
    )
}

/// A rate or count with a decimal prefix: `1.234 P` + unit.
#[must_use]
pub fn with_prefix(value: f64, unit: &str) -> String {
    const PREFIXES: [(f64, &str); 7] =
        [(1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"), (1.0, "")];
    let text = scaled(value, &PREFIXES);
    if unit.is_empty() { text.trim_end().to_owned() } else { format!("{text}{unit}") }
}

/// A share: `12.3 %`.
#[must_use]
pub fn percent(share: f64) -> String {
    if !share.is_finite() {
        return "not a number".to_owned();
    }
    format!("{:.1} %", share * 100.0).replacen('-', "\u{2212}", 1)
}

/// A signed difference: `+3.2 %`, `\u{2212}3.2 %`.
#[must_use]
pub fn signed_percent(share: f64) -> String {
    let text = percent(share);
    if share.is_finite() && share >= 0.0 { format!("+{text}") } else { text }
}

/// US dollars: `$0.12`, `$12,345`, `$1.235 M`.
#[must_use]
pub fn dollars(dollars: f64) -> String {
    if !dollars.is_finite() {
        return "not a number".to_owned();
    }
    let sign = if dollars < 0.0 { "\u{2212}" } else { "" };
    let amount = dollars.abs();
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "under a million")]
    match amount {
        a if a < 99.995 => format!("{sign}${a:.2}"),
        a if a < 999_999.5 => format!("{sign}${}", count(a.round() as u64)),
        a if a < 999_950_000.0 => format!("{sign}${} M", number(a / 1e6)),
        a => format!("{sign}${} bn", number(a / 1e9)),
    }
}

/// A value that may be missing; a dash where it is.
#[must_use]
pub fn or_dash(value: Option<f64>, text: impl Fn(f64) -> String) -> String {
    value.map_or_else(|| "\u{2013}".to_owned(), text)
}

/// A whole number with a thin comma every three digits: `150,000`.
#[must_use]
pub fn count(value: u64) -> String {
    let digits = value.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Words that begin with a capital letter.
#[must_use]
pub fn capital(text: &str) -> String {
    let mut characters = text.chars();
    characters.next().map_or_else(String::new, |first| first.to_uppercase().chain(characters).collect())
}

/// "1 rank", "8 ranks".
#[must_use]
pub fn plural(value: u64, one: &str, many: &str) -> String {
    format!("{} {}", count(value), if value == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn four_digits_and_a_unit() {
        let ns = |n: u64| duration(SimDuration::from_nanoseconds(n));
        assert_eq!(ns(0), "0");
        assert_eq!(ns(7), "7.000 ns");
        assert_eq!(ns(12_345), "12.35 \u{b5}s");
        assert_eq!(ns(999_999), "1.000 ms");
        assert_eq!(ns(1_234_567_890), "1.235 s");
        assert_eq!(ns(3_600_000_000_000), "3600 s");
        assert_eq!(bytes(Bytes::from_gib(80)), "80.00 GiB");
        assert_eq!(bytes(Bytes::new(1536)), "1.500 KiB");
        assert_eq!(with_prefix(3.12e14, "FLOP/s"), "312.0 TFLOP/s");
        assert_eq!(with_prefix(12_345.0, ""), "12.35 k");
        assert_eq!(with_prefix(12.0, "tokens/s"), "12.00 tokens/s");
        assert_eq!(seconds(0.012_345), "12.35 ms");
        assert_eq!(seconds(90.0), "90.00 s");
        assert_eq!(seconds(12_600.0), "3.500 h");
        assert_eq!(seconds(1_848_960.0), "21.40 days");
        assert_eq!(dollars(0.125), "$0.12");
        assert_eq!(dollars(12_345.4), "$12,345");
        assert_eq!(dollars(1_234_567.0), "$1.235 M");
        assert_eq!(dollars(-2.5e9), "\u{2212}$2.500 bn");
    }
    #[test]
    fn shares_and_counts() {
        assert_eq!(percent(0.1234), "12.3 %");
        assert_eq!(signed_percent(-0.05), "\u{2212}5.0 %");
        assert_eq!(signed_percent(0.05), "+5.0 %");
        assert_eq!(percent(f64::NAN), "not a number");
        assert_eq!(count(150_000), "150,000");
        assert_eq!(count(999), "999");
        assert_eq!(plural(1, "rank", "ranks"), "1 rank");
        assert_eq!(capital("step time"), "Step time");
    }
}
