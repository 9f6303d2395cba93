//! Work of a device that slows down while the other kind runs beside it: compute beside exchanges, exchanges beside compute.
//!
//! A calibration says by which factors ([`Interference`](crate::Interference)). From them come whole rates, once: both
//! evaluators and the simulator settle work by these, so that they agree to the nanosecond. Collectives and messages are
//! exchanges: kernels that take multiprocessors and memory bandwidth. Copies to and from host memory are neither: engines
//! of their own carry them.
//!
//! ```
//! use trainyard_cost::{Progress, Slowing};
//!
//! // Ten nanoseconds of compute, of which the first four are beside an exchange that slows it by a quarter.
//! let slowing = Slowing::new(1.25, 1.0);
//! let mut compute = Progress::new(0, 10);
//! compute.go_at(0, slowing.compute(true));
//! compute.go_at(4, slowing.compute(false));
//! assert_eq!(compute.end(), 11); // 4 at 0.8, and 6.8 at full rate
//! ```

/// Rates of both kinds of work beside the other, of the rates that they have alone.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct Slowing {
    compute: u32,
    communication: u32,
}

impl Slowing {
    /// The rate of work that nothing slows, in nanoseconds of work for a million nanoseconds.
    pub const WHOLE: u32 = 1_000_000;
    /// Neither slows the other.
    pub const NONE: Self = Self { compute: Self::WHOLE, communication: Self::WHOLE };

    /// From factors on times: of compute beside communication, and of communication beside compute.
    #[must_use]
    pub fn new(compute: f64, communication: f64) -> Self {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "from 1 to a million")]
        let rate = |factor: f64| (f64::from(Self::WHOLE) / factor).round().clamp(1.0, f64::from(Self::WHOLE)) as u32;
        Self { compute: rate(compute), communication: rate(communication) }
    }
    /// Whether neither slows the other.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }
    /// The rate of compute, beside an exchange or not.
    #[must_use]
    pub const fn compute(self, beside: bool) -> u32 {
        if beside { self.compute } else { Self::WHOLE }
    }
    /// The rate of an exchange, beside compute or not.
    #[must_use]
    pub const fn communication(self, beside: bool) -> u32 {
        if beside { self.communication } else { Self::WHOLE }
    }
}

/// Work under way, at a rate that changes in whole nanoseconds. Nothing is rounded but its end, up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Progress {
    /// Left at `since`, in millionths of nanoseconds.
    left: u128,
    since: u64,
    rate: u32,
}

impl Progress {
    /// Begins `now` what takes `alone` nanoseconds at full rate.
    #[must_use]
    pub fn new(now: u64, alone: u64) -> Self {
        Self { left: u128::from(alone) * u128::from(Slowing::WHOLE), since: now, rate: Slowing::WHOLE }
    }
    /// Its rate.
    #[must_use]
    pub const fn rate(&self) -> u32 {
        self.rate
    }
    /// Goes on at another rate.
    pub fn go_at(&mut self, now: u64, rate: u32) {
        // What ends within a nanosecond has less than a nanosecond's work left in it.
        let done = u128::from(now - self.since) * u128::from(self.rate);
        *self = Self { left: self.left.saturating_sub(done), since: now, rate: rate.max(1) };
    }
    /// When it ends, if its rate stays; saturates.
    #[must_use]
    pub fn end(&self) -> u64 {
        let wait = u64::try_from(self.left.div_ceil(u128::from(self.rate))).unwrap_or(u64::MAX);
        self.since.saturating_add(wait)
    }
}
