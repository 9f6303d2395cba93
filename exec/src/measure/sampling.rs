//! From calls of a kernel to a median and its spread.

use ir::{MeasuredOp, Measurement, SimDuration};

use super::{MeasureOptions, ROTATION};
use crate::runtime::clock::{nanoseconds, thread_cpu};

/// Least length of a sample, in nanoseconds: a thousand times what reading the clock takes.
const SAMPLE: u64 = 200_000;

/// Most repetitions.
const MOST: u64 = 25;

/// Measures a kernel by the CPU time of this thread. `call(i)` runs it on the `i`-th of `sets` sets of buffers.
pub(super) fn kernel(
    options: &MeasureOptions,
    op: MeasuredOp,
    sets: usize,
    mut call: impl FnMut(usize),
) -> Measurement {
    let mut turn = 0;
    let mut time = |calls: u64| {
        let before = thread_cpu();
        for _ in 0..calls {
            call(turn % sets);
            turn += 1;
        }
        (thread_cpu() - before).max(1)
    };
    // Warm-up: every set of buffers once, and the processor up to speed.
    let warm = time(sets as u64).max(1) / sets as u64;
    let calls = (SAMPLE / warm.max(1)).clamp(1, 1 << 20);
    let sample = time(calls).max(1);
    let repetitions = (nanoseconds(options.per_kernel) / sample).clamp(u64::from(options.repetitions), MOST);
    let times = (0..repetitions).map(|_| time(calls) / calls).collect();
    summary(op, times)
}

/// How many sets of buffers of `bytes` bytes make up the rotation.
pub(super) fn sets(bytes: usize) -> usize {
    (ROTATION / bytes.max(1)).clamp(2, 256)
}

/// Median and spread of times in nanoseconds.
///
/// # Panics
/// If there are none.
pub(super) fn summary(op: MeasuredOp, mut times: Vec<u64>) -> Measurement {
    times.sort_unstable();
    let at = |share: f64| {
        let place = share * (times.len() - 1) as f64;
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a position in the list")]
        let below = place as usize;
        let above = (below + 1).min(times.len() - 1);
        times[below] as f64 + (times[above] as f64 - times[below] as f64) * (place - below as f64)
    };
    let median = at(0.5).max(1.0);
    Measurement {
        op,
        median: SimDuration::from_nanoseconds(rounded(median)),
        dispersion: (at(0.75) - at(0.25)) / 2.0 / median,
        repetitions: u32::try_from(times.len()).expect("few repetitions"),
    }
}

fn rounded(nanoseconds: f64) -> u64 {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a time that was measured")]
    let whole = nanoseconds.round() as u64;
    whole
}

/// Numbers that are neither all equal nor special, the same in every run.
pub(super) fn numbers(count: usize) -> Vec<f32> {
    (0..count).map(|i| ((i * 37 + 11) % 101) as f32 / 101.0 - 0.5).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn median_and_spread_of_known_times() {
        let check = |times: &[u64], median: u64, dispersion: f64| {
            let summary = summary(MeasuredOp::Dispatch, times.to_vec());
            assert_eq!(summary.median.nanoseconds(), median);
            assert!((summary.dispersion - dispersion).abs() < 1e-12, "{}", summary.dispersion);
        };
        check(&[7], 7, 0.0);
        check(&[30, 10, 20, 50, 40], 30, 10.0 / 30.0);
        check(&[10, 20], 15, 2.5 / 15.0);
    }

    #[test]
    fn a_kernel_of_known_time_is_measured_so() {
        let call = |_| {
            let end = thread_cpu() + 50_000;
            while thread_cpu() < end {}
        };
        let measured = kernel(&MeasureOptions::default(), MeasuredOp::Dispatch, 2, call);
        let us = measured.median.nanoseconds() as f64 * 1e-3;
        assert!((50.0..60.0).contains(&us), "{us} us instead of 50");
    }
}
