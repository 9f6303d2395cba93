//! Printing quantities so that they parse back to the same value: the unit is chosen to read well, the digits are all
//! there. Reports that want fewer digits round before they print.

use std::fmt::{Display, Formatter, Result};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, SimDuration, SimTime};

const PREFIXES: [&str; 7] = ["", "k", "M", "G", "T", "P", "E"];
const BINARY_PREFIXES: [&str; 7] = ["", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];

/// `digits * 10^exponent` written without an exponent. `digits` has neither leading nor trailing zeros, unless it is "0".
fn decimal(digits: &str, exponent: i32) -> String {
    if exponent >= 0 {
        return format!("{digits}{}", "0".repeat(exponent.unsigned_abs() as usize));
    }
    let places = exponent.unsigned_abs() as usize;
    if digits.len() > places {
        let (integer, fraction) = digits.split_at(digits.len() - places);
        format!("{integer}.{fraction}")
    } else {
        format!("0.{}{digits}", "0".repeat(places - digits.len()))
    }
}

/// `value` in the largest prefixed unit that leaves at least 1 before the point, all digits kept.
fn with_prefix(digits: &str, exponent: i32, prefixes: &[&str], unit: &str) -> String {
    let magnitude = i32::try_from(digits.len()).expect("a number of few digits") - 1 + exponent;
    let last = i32::try_from(prefixes.len()).expect("few prefixes") - 1;
    let step = magnitude.div_euclid(3).clamp(0, last);
    format!("{} {}{unit}", decimal(digits, exponent - 3 * step), prefixes[step.unsigned_abs() as usize])
}

fn digits_of(value: u128) -> (String, i32) {
    let text = value.to_string();
    let digits = text.trim_end_matches('0');
    if digits.is_empty() {
        return ("0".to_owned(), 0);
    }
    let zeros = i32::try_from(text.len() - digits.len()).expect("at most 39 digits");
    (digits.to_owned(), zeros)
}

fn digits_of_rate(value: f64) -> (String, i32) {
    // The shortest digits that parse back to the same bits.
    let text = format!("{value:e}");
    let (mantissa, exponent) = text.split_once('e').expect("the exponent form has an exponent");
    let exponent: i32 = exponent.parse().expect("a float's exponent");
    let places = mantissa.split_once('.').map_or(0, |(_, fraction)| fraction.len());
    let places = i32::try_from(places).expect("at most 17 digits");
    (mantissa.replace('.', ""), exponent - places)
}

fn duration(nanoseconds: u64) -> String {
    const LONG: [(u64, &str); 3] = [(86_400_000_000_000, "d"), (3_600_000_000_000, "h"), (60_000_000_000, "min")];
    for (unit, name) in LONG {
        if nanoseconds >= unit && nanoseconds.is_multiple_of(unit) {
            return format!("{} {name}", nanoseconds / unit);
        }
    }
    let (digits, exponent) = digits_of(u128::from(nanoseconds));
    with_prefix(&digits, exponent, &["n", "u", "m", ""], "s")
}

/// The form with the fewest characters among decimal prefixes, binary prefixes with up to two places, and plain bytes.
fn bytes(bytes: u64) -> String {
    let (digits, exponent) = digits_of(u128::from(bytes));
    let decimal_form = with_prefix(&digits, exponent, &PREFIXES, "B");
    let plain = format!("{bytes} B");
    let binary = (1..BINARY_PREFIXES.len()).rev().find_map(|step| {
        let hundredths = u128::from(bytes) * 100;
        let unit = 1u128 << (10 * step);
        (hundredths >= 100 * unit && hundredths.is_multiple_of(unit)).then(|| {
            let (digits, exponent) = digits_of(hundredths / unit);
            format!("{} {}B", decimal(&digits, exponent - 2), BINARY_PREFIXES[step])
        })
    });
    let length = |text: &str| text.split(' ').next().map_or(0, str::len);
    let shortest = [binary, Some(plain), Some(decimal_form)].into_iter().flatten().min_by_key(|text| length(text));
    shortest.expect("three candidates")
}

fn rate(value: f64, unit: &str) -> String {
    if !(1e-3..1e24).contains(&value) {
        return format!("{value:e} {unit}");
    }
    let (digits, exponent) = digits_of_rate(value);
    with_prefix(&digits, exponent, &PREFIXES, unit)
}

macro_rules! shown {
    ($($name:ident: |$value:ident| $text:expr, $expecting:literal;)*) => {$(
        impl Display for $name {
            fn fmt(&self, f: &mut Formatter<'_>) -> Result {
                let $value = self.0;
                f.pad(&$text)
            }
        }
        impl Serialize for $name {
            fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
                struct Visitor;
                impl serde::de::Visitor<'_> for Visitor {
                    type Value = $name;
                    fn expecting(&self, f: &mut Formatter<'_>) -> Result {
                        f.write_str($expecting)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> std::result::Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Visitor)
            }
        }
    )*};
}
shown! {
    SimDuration: |n| duration(n), "a duration with its unit, such as \"20 us\"";
    Bytes: |n| bytes(n), "an amount of data with its unit, such as \"80 GiB\"";
    Flops: |n| { let (digits, exponent) = digits_of(n); with_prefix(&digits, exponent, &PREFIXES, "FLOP") },
        "a number of operations with its unit, such as \"5 PFLOP\"";
    BytesPerSecond: |v| rate(v, "B/s"), "a data rate with its unit, such as \"400 Gb/s\" or \"50 GB/s\"";
    FlopsPerSecond: |v| rate(v, "FLOP/s"), "a rate of operations with its unit, such as \"312 TFLOP/s\"";
}

impl Display for SimTime {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        f.pad(&duration(self.0))
    }
}
