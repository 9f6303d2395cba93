//! Reading quantities: a decimal number, then a unit. The unit is never optional and never guessed.
//!
//! Prefixes are case-sensitive, decimal and binary ones distinct: `80 GB` is 80·10⁹ bytes, `80 GiB` is 80·2³⁰.
//! A small `b` is a bit, a capital `B` a byte. Whole quantities are computed exactly; a fraction of a prefixed unit is
//! rounded to the nearest whole byte, nanosecond or operation. Rates are correctly rounded to `f64`.

use std::str::FromStr;

use super::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, SimDuration};
use crate::Problem;

/// Why a text is not the quantity that was asked for.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuantityError {
    /// What is wrong, as a sentence without a full stop; it quotes the text.
    pub message: String,
    /// What to write instead.
    pub hint: String,
}

impl QuantityError {
    /// As a fault of the key that holds the text.
    #[must_use]
    pub fn problem(self, subject: impl Into<String>) -> Problem {
        Problem::new(subject, self.message).hint(self.hint)
    }
}

impl std::fmt::Display for QuantityError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}; {}", self.message, self.hint)
    }
}
impl std::error::Error for QuantityError {}

/// What a unit measures.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    Time,
    Data,
    DataRate,
    Operations,
    OperationRate,
}

impl Kind {
    const fn noun(self) -> &'static str {
        match self {
            Self::Time => "a duration",
            Self::Data => "an amount of data",
            Self::DataRate => "a data rate",
            Self::Operations => "a number of operations",
            Self::OperationRate => "a rate of operations",
        }
    }
    const fn units(self) -> &'static str {
        match self {
            Self::Time => "ns, us, ms, s, min, h or d, as in \"20 us\"",
            Self::Data => "B with a decimal (kB, MB, GB, TB) or binary (KiB, MiB, GiB, TiB) prefix, as in \"80 GiB\"",
            Self::DataRate => {
                "bits per second (\"400 Gb/s\" or \"400Gbps\") or bytes per second (\"50 GB/s\", \"900 GiB/s\")"
            }
            Self::Operations => "FLOP with a decimal prefix, as in \"5 PFLOP\"",
            Self::OperationRate => "FLOP/s or FLOPS with a decimal prefix, as in \"312 TFLOP/s\"",
        }
    }
    /// The smallest amount of a whole quantity.
    const fn grain(self) -> &'static str {
        match self {
            Self::Time => "one nanosecond",
            Self::Data | Self::DataRate => "one byte",
            Self::Operations | Self::OperationRate => "one operation",
        }
    }
}

/// What one of a unit is: `factor * 10^decimal * 2^binary` of the kind's base (nanosecond, byte, operation).
#[derive(Clone, Copy, Debug)]
struct Unit {
    kind: Kind,
    factor: u32,
    decimal: i32,
    binary: i32,
}

const TIMES: [(&str, u32, i32); 9] = [
    ("ns", 1, 0),
    ("us", 1, 3),
    ("\u{b5}s", 1, 3),
    ("\u{3bc}s", 1, 3),
    ("ms", 1, 6),
    ("s", 1, 9),
    ("min", 60, 9),
    ("h", 3_600, 9),
    ("d", 86_400, 9),
];

/// Power of ten or of two of a prefix.
fn prefix(text: &str) -> Option<(i32, i32)> {
    const LETTERS: &str = "kMGTPE";
    let mut letters = text.chars();
    let Some(letter) = letters.next() else { return Some((0, 0)) };
    match letters.as_str() {
        "" => LETTERS.chars().zip(1..).find(|(l, _)| *l == letter).map(|(_, step)| (3 * step, 0)),
        "i" => LETTERS.to_uppercase().chars().zip(1..).find(|(l, _)| *l == letter).map(|(_, step)| (0, 10 * step)),
        _ => None,
    }
}

fn unit(text: &str) -> Option<Unit> {
    if let Some((_, factor, decimal)) = TIMES.iter().find(|(name, ..)| *name == text) {
        return Some(Unit { kind: Kind::Time, factor: *factor, decimal: *decimal, binary: 0 });
    }
    // Longest ending first. Bits are an eighth of a byte.
    const ENDINGS: [(&str, Kind, i32); 14] = [
        ("FLOPs/s", Kind::OperationRate, 0),
        ("FLOP/s", Kind::OperationRate, 0),
        ("flop/s", Kind::OperationRate, 0),
        ("FLOPS", Kind::OperationRate, 0),
        ("FLOPs", Kind::Operations, 0),
        ("FLOP", Kind::Operations, 0),
        ("flop", Kind::Operations, 0),
        ("bit/s", Kind::DataRate, -3),
        ("b/s", Kind::DataRate, -3),
        ("bps", Kind::DataRate, -3),
        ("B/s", Kind::DataRate, 0),
        ("Bps", Kind::DataRate, 0),
        ("bytes", Kind::Data, 0),
        ("B", Kind::Data, 0),
    ];
    ENDINGS.iter().find_map(|(ending, kind, eighth)| {
        let (decimal, binary) = prefix(text.strip_suffix(ending)?)?;
        Some(Unit { kind: *kind, factor: 1, decimal, binary: binary + eighth })
    })
}

/// A number as written: `mantissa * 10^exponent`, and its text.
#[derive(Clone, Copy, Debug)]
struct Number<'a> {
    text: &'a str,
    mantissa: u128,
    exponent: i32,
}

fn error(message: String, hint: impl Into<String>) -> QuantityError {
    QuantityError { message, hint: hint.into() }
}

/// The length of the number at the start of a text: digits, point, exponent.
fn number_length(text: &str) -> usize {
    let bytes = text.as_bytes();
    let digits = |from: usize| bytes[from..].iter().take_while(|b| b.is_ascii_digit()).count();
    let mut end = digits(0);
    if bytes.get(end) == Some(&b'.') {
        end += 1 + digits(end + 1);
    }
    if matches!(bytes.get(end), Some(b'e' | b'E')) {
        let sign = usize::from(matches!(bytes.get(end + 1), Some(b'+' | b'-')));
        let exponent = digits(end + 1 + sign);
        if exponent > 0 {
            end += 1 + sign + exponent;
        }
    }
    end
}

fn number<'a>(text: &'a str, whole: &str, kind: Kind) -> Result<Number<'a>, QuantityError> {
    let too_long =
        || error(format!("\"{}\" has more digits than {} can hold", excerpt(whole), kind.noun()), "write fewer digits");
    let (decimal, exponent) = text.split_once(['e', 'E']).unwrap_or((text, "0"));
    let exponent: i32 = exponent.parse().ok().filter(|e: &i32| e.abs() <= 400).ok_or_else(too_long)?;
    let (integer, fraction) = decimal.split_once('.').unwrap_or((decimal, ""));
    if integer.is_empty() || (fraction.is_empty() && decimal.contains('.')) {
        return Err(error(
            format!("\"{}\" has no digit on one side of its decimal point", excerpt(whole)),
            "write digits on both sides, as in \"0.5\"",
        ));
    }
    let fraction = fraction.trim_end_matches('0');
    let mut mantissa = 0u128;
    for digit in integer.bytes().chain(fraction.bytes()) {
        mantissa =
            mantissa.checked_mul(10).and_then(|m| m.checked_add(u128::from(digit - b'0'))).ok_or_else(too_long)?;
    }
    let places = i32::try_from(fraction.len()).map_err(|_| too_long())?;
    Ok(Number { text, mantissa, exponent: exponent - places })
}

/// At most 40 characters of a text, for messages.
fn excerpt(text: &str) -> String {
    let mut excerpt: String = text.chars().take(40).flat_map(char::escape_default).collect();
    if text.chars().nth(40).is_some() {
        excerpt.push('…');
    }
    excerpt
}

fn split(text: &str, kind: Kind) -> Result<(Number<'_>, Unit), QuantityError> {
    let whole = text.trim();
    let shown = excerpt(whole);
    let expected = || format!("expected {} in {}", kind.noun(), kind.units());
    if whole.is_empty() {
        return Err(error(format!("an empty text is not {}", kind.noun()), expected()));
    }
    if let Some(rest) = whole.strip_prefix('-') {
        let what = if number_length(rest) > 0 { "is negative" } else { "is not a number with a unit" };
        return Err(error(format!("\"{shown}\" {what}"), expected()));
    }
    let lower = whole.to_ascii_lowercase();
    if lower.starts_with("nan") || lower.starts_with("inf") || lower.starts_with("+inf") {
        return Err(error(format!("\"{shown}\" is not a finite number"), expected()));
    }
    let length = number_length(whole);
    if length == 0 {
        return Err(error(format!("\"{shown}\" does not start with a number"), expected()));
    }
    let number = number(&whole[..length], whole, kind)?;
    let name = whole[length..].trim_start();
    if name.is_empty() {
        return Err(error(format!("\"{shown}\" has no unit"), expected()));
    }
    match unit(name) {
        Some(unit) if unit.kind == kind => Ok((number, unit)),
        Some(unit) => {
            Err(error(format!("\"{shown}\" is {}, not {}", unit.kind.noun(), kind.noun()), other_kind(kind, unit.kind)))
        }
        None => Err(error(format!("\"{}\" in \"{shown}\" is not a unit", excerpt(name)), unknown_unit(name, kind))),
    }
}

fn other_kind(wanted: Kind, found: Kind) -> String {
    match (wanted, found) {
        (Kind::Operations, Kind::OperationRate) => "FLOPS is per second; an amount is written \"5 PFLOP\"".to_owned(),
        (Kind::OperationRate, Kind::Operations) => "write FLOP/s or FLOPS, as in \"312 TFLOP/s\"".to_owned(),
        (Kind::DataRate, Kind::Data) => "write it per second, as in \"50 GB/s\"".to_owned(),
        _ => format!("expected {}", wanted.units()),
    }
}

fn unknown_unit(name: &str, kind: Kind) -> String {
    if name.starts_with([',', '_', '\'']) {
        return "write the number with digits and a decimal point only".to_owned();
    }
    if name.starts_with('K') && unit(&name.replacen('K', "k", 1)).is_some() {
        let (decimal, binary) = (name.replacen('K', "k", 1), name.replacen('K', "Ki", 1));
        return format!("write \"{decimal}\" for 1000 or \"{binary}\" for 1024");
    }
    const NAMES: [&str; 22] = [
        "ns", "us", "ms", "s", "min", "h", "d", "kB", "MB", "GB", "TB", "KiB", "MiB", "GiB", "TiB", "Mb/s", "Gb/s",
        "MB/s", "GB/s", "GFLOP/s", "TFLOP/s", "PFLOP/s",
    ];
    let same: Vec<String> = NAMES
        .iter()
        .filter(|n| n.eq_ignore_ascii_case(name) && unit(n).is_some_and(|u| u.kind == kind))
        .map(|n| format!("\"{n}\""))
        .collect();
    if same.is_empty() {
        format!("expected {}", kind.units())
    } else {
        format!("capitals matter in units: write {}", same.join(" (bits) or "))
    }
}

/// A whole number of nanoseconds, bytes or operations.
fn whole(text: &str, kind: Kind, limit: u128) -> Result<u128, QuantityError> {
    let (number, unit) = split(text, kind)?;
    let shown = excerpt(text.trim());
    let overflow = || error(format!("\"{shown}\" is too large for {}", kind.noun()), "write a smaller number");
    let too_fine = || {
        error(
            format!("\"{shown}\" is not a whole number of its unit"),
            format!("the smallest amount is {}", kind.grain()),
        )
    };
    if number.mantissa == 0 {
        return Ok(0);
    }
    let ten = |power: i32| 10u128.checked_pow(power.unsigned_abs());
    let exponent = number.exponent + unit.decimal;
    let scaled = number.mantissa.checked_mul(u128::from(unit.factor) << unit.binary).ok_or_else(overflow)?;
    if exponent >= 0 {
        return ten(exponent).and_then(|t| scaled.checked_mul(t)).filter(|v| *v <= limit).ok_or_else(overflow);
    }
    let divisor = ten(exponent).ok_or_else(too_fine)?;
    let (quotient, remainder) = (scaled / divisor, scaled % divisor);
    let is_base = unit.factor == 1 && unit.decimal == 0 && unit.binary == 0;
    let rounded = quotient + u128::from(remainder >= divisor - remainder);
    if remainder != 0 && (is_base || rounded == 0) {
        return Err(too_fine());
    }
    if rounded <= limit { Ok(rounded) } else { Err(overflow()) }
}

/// A positive finite rate, correctly rounded.
fn rate(text: &str, kind: Kind) -> Result<f64, QuantityError> {
    let (number, unit) = split(text, kind)?;
    let shown = excerpt(text.trim());
    if number.mantissa == 0 {
        return Err(error(format!("\"{shown}\" is zero"), format!("{} must be more than zero", kind.noun())));
    }
    let digits = number.text.split(['e', 'E']).next().unwrap_or_default();
    let written: i32 = number.text.split(['e', 'E']).nth(1).and_then(|e| e.parse().ok()).unwrap_or(0);
    let decimal: f64 = format!("{digits}e{}", written + unit.decimal).parse().unwrap_or(f64::INFINITY);
    // A power of two is exact.
    let value = libm::ldexp(decimal, unit.binary);
    if value.is_finite() && value > 0.0 {
        Ok(value)
    } else {
        Err(error(
            format!("\"{shown}\" is out of range for {}", kind.noun()),
            "write a number that a 64-bit float can hold",
        ))
    }
}

impl FromStr for SimDuration {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        whole(text, Kind::Time, u64::MAX.into()).map(|n| Self(u64::try_from(n).expect("limited to u64")))
    }
}
impl FromStr for Bytes {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        whole(text, Kind::Data, u64::MAX.into()).map(|n| Self(u64::try_from(n).expect("limited to u64")))
    }
}
impl FromStr for Flops {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        whole(text, Kind::Operations, u128::MAX).map(Self)
    }
}
impl FromStr for BytesPerSecond {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        rate(text, Kind::DataRate).map(Self)
    }
}
impl FromStr for FlopsPerSecond {
    type Err = QuantityError;
    fn from_str(text: &str) -> Result<Self, QuantityError> {
        rate(text, Kind::OperationRate).map(Self)
    }
}
