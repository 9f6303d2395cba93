//! Cells of one record, read with every fault noted.

use std::cell::RefCell;

use csv::StringRecord;

use super::columns::Header;
use super::refusal::{Fault, Reason};

/// No count of devices, layers, tokens, … is larger.
const MOST: u64 = 1 << 32;

/// A number as it was printed.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(super) struct Printed {
    /// The number.
    pub(super) value: f64,
    /// One unit of its last printed digit: tables round, and some cut off, so the number is right to within this.
    pub(super) digit: f64,
}

/// One record under its heading.
#[derive(Debug)]
pub(super) struct Cells<'t> {
    header: &'t Header,
    record: &'t StringRecord,
    faults: RefCell<Vec<Fault>>,
    notes: RefCell<Vec<String>>,
}

impl<'t> Cells<'t> {
    pub(super) fn new(header: &'t Header, record: &'t StringRecord) -> Self {
        Self { header, record, faults: RefCell::default(), notes: RefCell::default() }
    }
    pub(super) fn fault(&self, reason: Reason, column: &'static str, message: impl Into<String>) {
        self.faults.borrow_mut().push(Fault::new(reason, column, message));
    }
    /// Notes a number that arithmetic gave, or a reading of words that another reader might doubt.
    pub(super) fn note(&self, note: impl Into<String>) {
        self.notes.borrow_mut().push(note.into());
    }
    pub(super) fn finish(self) -> (Vec<Fault>, Vec<String>) {
        (self.faults.into_inner(), self.notes.into_inner())
    }
    /// Whether the table has the column at all.
    pub(super) fn has(&self, column: &str) -> bool {
        self.header.has(column)
    }
    /// The trimmed text; empty if there is none.
    pub(super) fn text(&self, column: &str) -> &'t str {
        self.header.cell(self.record, column)
    }
    /// The text of a number; words that say that there is none are nothing.
    fn digits(&self, column: &str) -> &'t str {
        const NOTHING: [&str; 8] = ["na", "n/a", "-", "--", "none", "null", "unknown", "?"];
        let text = self.text(column);
        if NOTHING.contains(&text.to_lowercase().as_str()) { "" } else { text }
    }
    /// Whether a number is given, right or wrong.
    pub(super) fn is_given(&self, column: &str) -> bool {
        !self.digits(column).is_empty()
    }
    /// The text, if there is any.
    pub(super) fn words(&self, column: &str) -> Option<String> {
        Some(self.text(column)).filter(|text| !text.is_empty()).map(str::to_owned)
    }
    /// A positive number, if there is one.
    pub(super) fn number(&self, column: &'static str) -> Option<Printed> {
        let text = self.digits(column);
        if text.is_empty() {
            return None;
        }
        let printed = parse(text);
        match printed {
            None => {
                let message = match split_unit(text) {
                    Some(unit) => format!("`{text}` carries `{unit}`; the unit is in the column's name"),
                    None => format!("`{text}` is no number"),
                };
                self.fault(Reason::NotANumber, column, message);
                None
            }
            Some(printed) if printed.value.is_finite() && printed.value > 0.0 => Some(printed),
            Some(_) => {
                self.fault(Reason::OutOfRange, column, format!("`{text}` is not a positive finite number"));
                None
            }
        }
    }
    /// A positive number, or a zero that stands for one too small for its printed digits, if there is one.
    pub(super) fn rounded(&self, column: &'static str) -> Option<Printed> {
        parse(self.text(column)).filter(|printed| printed.value == 0.0).or_else(|| self.number(column))
    }
    /// A number that may be zero, if there is one.
    pub(super) fn number_or_zero(&self, column: &'static str) -> Option<f64> {
        match parse(self.text(column)) {
            Some(printed) if printed.value == 0.0 => Some(0.0),
            _ => self.number(column).map(|printed| printed.value),
        }
    }
    /// A whole number of at least one, if there is one.
    pub(super) fn count(&self, column: &'static str) -> Option<u64> {
        let printed = self.number(column)?;
        let rounded = printed.value.round();
        if (rounded - printed.value).abs() > 1e-9 {
            self.fault(Reason::NotANumber, column, format!("`{}` is no whole number", self.text(column)));
            return None;
        }
        if rounded < 1.0 || rounded > MOST as f64 {
            self.fault(Reason::OutOfRange, column, format!("`{}` is beyond anything built", self.text(column)));
            return None;
        }
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "1..=2^32, checked above")]
        Some(rounded as u64)
    }
    /// A whole number of at least one that fits 32 bits.
    pub(super) fn small(&self, column: &'static str) -> Option<u32> {
        let count = self.count(column)?;
        let small = u32::try_from(count).ok();
        if small.is_none() {
            self.fault(Reason::OutOfRange, column, format!("{count} is beyond anything built"));
        }
        small
    }
    /// `true` or `false`, if there is one.
    pub(super) fn flag(&self, column: &'static str) -> Option<bool> {
        match self.text(column).to_lowercase().as_str() {
            "" => None,
            "true" | "yes" | "1" => Some(true),
            "false" | "no" | "0" => Some(false),
            _ => {
                self.fault(Reason::UnknownWord, column, format!("`{}` is neither true nor false", self.text(column)));
                None
            }
        }
    }
    /// A count without which the row means nothing.
    pub(super) fn required(&self, column: &'static str) -> Option<u32> {
        if !self.is_given(column) {
            self.fault(Reason::Hole, column, "is not given");
            return None;
        }
        self.small(column)
    }
}

/// A decimal number with the precision in which it is printed; `None` if it is none.
fn parse(text: &str) -> Option<Printed> {
    let value: f64 = text.parse().ok()?;
    let (digits, exponent) = match text.find(['e', 'E']) {
        Some(at) => (&text[..at], text[at + 1..].parse::<i32>().unwrap_or(0)),
        None => (text, 0),
    };
    let decimals = digits.split_once('.').map_or(0, |(_, decimals)| decimals.len());
    let place = exponent.saturating_sub(i32::try_from(decimals).unwrap_or(i32::MAX));
    Some(Printed { value, digit: libm::exp10(f64::from(place)) })
}

/// The unit behind a number, as in `80GB` or `1,5`.
fn split_unit(text: &str) -> Option<&str> {
    let end = text.find(|c: char| !(c.is_ascii_digit() || matches!(c, '.' | '-' | '+')))?;
    let (number, rest) = text.split_at(end);
    number.parse::<f64>().ok().map(|_| rest.trim())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_their_printed_precision() {
        let check = |text: &str, value: f64, digit: f64| {
            let printed = parse(text).expect(text);
            assert!((printed.value - value).abs() < 1e-12 * value.abs().max(1.0), "{text}");
            assert!((printed.digit / digit - 1.0).abs() < 1e-12, "{text}: {}", printed.digit);
        };
        check("2", 2.0, 1.0);
        check("1.32", 1.32, 0.01);
        check("1.30", 1.3, 0.01);
        check("1.5e-3", 0.0015, 0.000_1);
        assert!(parse("80GB").is_none() && parse("").is_none() && parse("one").is_none());
        assert_eq!(split_unit("80GB"), Some("GB"));
        assert_eq!(split_unit("1.5 s"), Some("s"));
        assert_eq!(split_unit("GB"), None);
    }
}
