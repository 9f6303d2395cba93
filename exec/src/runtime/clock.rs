//! The two clocks of a rank: the monotonic clock that all ranks share, and the CPU time of its own thread.

use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};

/// Nanoseconds since a moment that all ranks share.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Epoch(u64);

impl Epoch {
    /// An epoch that begins now.
    pub(crate) fn now() -> Self {
        Self(monotonic())
    }
    /// The epoch that began when [`monotonic`] said `reading`.
    pub(crate) const fn at(reading: u64) -> Self {
        Self(reading)
    }
    /// What [`monotonic`] said when it began.
    pub(crate) const fn reading(self) -> u64 {
        self.0
    }
    /// Nanoseconds since it began; zero before.
    pub(crate) fn elapsed(self) -> u64 {
        monotonic().saturating_sub(self.0)
    }
}

/// The monotonic clock of this machine in nanoseconds: one clock for all of its processes, as long as it is up.
pub(crate) fn monotonic() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    let part = |value: i64| u64::try_from(value).expect("the monotonic clock is never negative");
    part(time.tv_sec) * ir::quantity::NANOSECONDS_PER_SECOND + part(time.tv_nsec)
}

/// A duration as whole nanoseconds.
///
/// # Panics
/// If it is over 584 years.
pub(crate) fn nanoseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).expect("a duration of more than 584 years")
}

/// CPU time that the calling thread has used, in nanoseconds.
pub(crate) fn thread_cpu() -> u64 {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    let part = |value: i64| u64::try_from(value).expect("a thread's CPU time is never negative");
    part(time.tv_sec) * ir::quantity::NANOSECONDS_PER_SECOND + part(time.tv_nsec)
}

/// Asks the kernel to end this thread's timed waits on time.
///
/// A thread's timers may otherwise be late by 50 microseconds (the default of `PR_SET_TIMERSLACK`), which would be an
/// error of that size in every emulated duration. Where the kernel refuses, waits are only less exact.
#[cfg(target_os = "linux")]
pub(crate) fn wait_exactly() {
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZeroU64::new(1));
}

/// Timed waits are as exact as the system makes them.
#[cfg(not(target_os = "linux"))]
pub(crate) const fn wait_exactly() {}
