//! Quantities are types. A constructor names its unit; there is no `From<u64>`.
//!
//! Text forms need a unit: `"400Gbps"` parses, `"400"` does not. [`Display`](std::fmt::Display) prints a form that parses
//! back to the same value; serde uses that form.

mod parse;
mod show;
#[cfg(test)]
mod tests;

pub use parse::QuantityError;

use std::ops::{Add, AddAssign, Mul, Sub};

/// A moment on a timeline, in nanoseconds since its start.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SimTime(u64);

/// A length of time, in nanoseconds.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct SimDuration(u64);

/// An amount of memory or data.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Bytes(u64);

/// A number of floating point operations (a fused multiply-add is two).
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub struct Flops(u128);

/// A data rate: finite and positive.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct BytesPerSecond(f64);

/// A rate of arithmetic: finite and positive.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
pub struct FlopsPerSecond(f64);

/// Nanoseconds in a second.
pub const NANOSECONDS_PER_SECOND: u64 = 1_000_000_000;

impl SimTime {
    /// The start of a timeline.
    pub const ZERO: Self = Self(0);
    /// Later than anything that happens.
    pub const NEVER: Self = Self(u64::MAX);
    /// From nanoseconds.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }
    /// In nanoseconds.
    #[must_use]
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }
    /// In seconds, for reports.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-9
    }
    /// The time since `earlier`, zero if it is not earlier.
    #[must_use]
    pub const fn saturating_since(self, earlier: Self) -> SimDuration {
        SimDuration(self.0.saturating_sub(earlier.0))
    }
}

impl SimDuration {
    /// No time at all.
    pub const ZERO: Self = Self(0);
    /// From nanoseconds.
    #[must_use]
    pub const fn from_nanoseconds(nanoseconds: u64) -> Self {
        Self(nanoseconds)
    }
    /// From seconds, rounded up to a whole nanosecond; `None` if it is negative, not finite, or over 584 years.
    #[must_use]
    pub fn from_seconds(seconds: f64) -> Option<Self> {
        let nanoseconds = (seconds * 1e9).ceil();
        // 2^64 is exactly representable; everything below it fits.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "checked to be inside u64")]
        (0.0..18_446_744_073_709_551_616.0).contains(&nanoseconds).then_some(Self(nanoseconds as u64))
    }
    /// In nanoseconds.
    #[must_use]
    pub const fn nanoseconds(self) -> u64 {
        self.0
    }
    /// In seconds, for reports.
    #[must_use]
    pub fn seconds(self) -> f64 {
        self.0 as f64 * 1e-9
    }
}

impl Bytes {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// From bytes.
    #[must_use]
    pub const fn new(bytes: u64) -> Self {
        Self(bytes)
    }
    /// From GiB (2^30 bytes).
    #[must_use]
    pub const fn from_gib(gib: u64) -> Self {
        Self(gib << 30)
    }
    /// In bytes.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0
    }
    /// In GiB, for reports.
    #[must_use]
    pub fn gib(self) -> f64 {
        self.0 as f64 / (1u64 << 30) as f64
    }
    /// `self - other`, zero if that is negative.
    #[must_use]
    pub const fn saturating_sub(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
    /// The sum, if it fits.
    #[must_use]
    pub fn checked_add(self, other: Self) -> Option<Self> {
        self.0.checked_add(other.0).map(Self)
    }
}

impl Flops {
    /// None.
    pub const ZERO: Self = Self(0);
    /// From operations.
    #[must_use]
    pub const fn new(operations: u128) -> Self {
        Self(operations)
    }
    /// In operations.
    #[must_use]
    pub const fn get(self) -> u128 {
        self.0
    }
}

macro_rules! rate {
    ($name:ident, $amount:literal) => {
        impl $name {
            #[doc = concat!("From ", $amount, " per second; `None` unless finite and positive.")]
            #[must_use]
            pub fn new(per_second: f64) -> Option<Self> {
                (per_second.is_finite() && per_second > 0.0).then_some(Self(per_second))
            }
            #[doc = concat!("In ", $amount, " per second.")]
            #[must_use]
            pub const fn get(self) -> f64 {
                self.0
            }
            /// Scaled by a finite positive factor; `None` otherwise.
            #[must_use]
            pub fn scaled(self, factor: f64) -> Option<Self> {
                Self::new(self.0 * factor)
            }
        }
    };
}
rate!(BytesPerSecond, "bytes");
rate!(FlopsPerSecond, "operations");

impl Add<SimDuration> for SimTime {
    type Output = Self;
    fn add(self, rhs: SimDuration) -> Self {
        Self(self.0.checked_add(rhs.0).expect("a time past the year 2554 of its timeline"))
    }
}
impl AddAssign<SimDuration> for SimTime {
    fn add_assign(&mut self, rhs: SimDuration) {
        *self = *self + rhs;
    }
}
impl Sub for SimTime {
    type Output = SimDuration;
    fn sub(self, rhs: Self) -> SimDuration {
        SimDuration(self.0.checked_sub(rhs.0).expect("a span that ends before it starts"))
    }
}

macro_rules! amount {
    ($($name:ident: $raw:ty),*) => {$(
        impl Add for $name {
            type Output = Self;
            fn add(self, rhs: Self) -> Self { Self(self.0.checked_add(rhs.0).expect(concat!(stringify!($name), " overflow"))) }
        }
        impl AddAssign for $name { fn add_assign(&mut self, rhs: Self) { *self = *self + rhs; } }
        impl Sub for $name {
            type Output = Self;
            fn sub(self, rhs: Self) -> Self { Self(self.0.checked_sub(rhs.0).expect(concat!("negative ", stringify!($name)))) }
        }
        impl Mul<$raw> for $name {
            type Output = Self;
            fn mul(self, rhs: $raw) -> Self { Self(self.0.checked_mul(rhs).expect(concat!(stringify!($name), " overflow"))) }
        }
        impl std::iter::Sum for $name {
            fn sum<I: Iterator<Item = Self>>(iter: I) -> Self { iter.fold(Self(0), Add::add) }
        }
    )*};
}
amount!(SimDuration: u64, Bytes: u64, Flops: u128);
