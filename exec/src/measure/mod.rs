//! What this machine takes for what the executor does: the measurements behind a calibration.
//!
//! Kernels are the executor's own, in the groups in which it runs them (queries, keys and values are three products of
//! one input; so are gate and up), counted as [`ir::counts`] counts them. Their times are thread-CPU time, which other
//! load on the machine disturbs little.
//!
//! **Caches**: every call finds its operands in the last-level cache or in memory, not in the first two levels: calls
//! rotate through sets of buffers of [`ROTATION`] bytes in all. In training, too, a kernel's weights were last touched
//! one pass ago.
//!
//! Copies, collectives and dispatch are carried out by the real runtime between threads that do nothing else, so their
//! times are wall time: from the arrival of the last rank to the moment when the last one has its data, waking included.

mod attention;
mod exchanges;
mod products;
mod sampling;
mod streaming;

use std::ops::ControlFlow;
use std::time::Duration;

use ir::Measurement;

/// Bytes of the buffers that repeated calls of one kernel rotate through.
pub const ROTATION: usize = 4 << 20;

/// How much to measure.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct MeasureOptions {
    /// Most time for the repetitions of one kernel of one size; a slow kernel gets its least repetitions all the same.
    pub per_kernel: Duration,
    /// Least repetitions.
    pub repetitions: u32,
    /// Leaves out the largest sizes.
    pub quick: bool,
}

impl Default for MeasureOptions {
    /// Under a minute on two cores of a server.
    fn default() -> Self {
        Self { per_kernel: Duration::from_millis(8), repetitions: 7, quick: false }
    }
}

impl MeasureOptions {
    /// A few seconds: enough to see that all is measured, too little to calibrate by.
    #[must_use]
    pub const fn quick() -> Self {
        Self { per_kernel: Duration::from_millis(1), repetitions: 3, quick: true }
    }
}

/// Measures everything, in a fixed order. `progress` is told what comes next and the share that is done; if it says
/// [`ControlFlow::Break`], there is no result.
pub fn measure(
    options: &MeasureOptions,
    progress: &mut dyn FnMut(&str, f64) -> ControlFlow<()>,
) -> Option<Vec<Measurement>> {
    let mut jobs = Vec::new();
    products::jobs(options, &mut jobs);
    attention::jobs(options, &mut jobs);
    streaming::jobs(options, &mut jobs);
    exchanges::jobs(options, &mut jobs);
    let count = jobs.len() as f64;
    let mut measurements = Vec::with_capacity(jobs.len());
    for (index, job) in jobs.into_iter().enumerate() {
        if progress(job.what, index as f64 / count).is_break() {
            return None;
        }
        measurements.push((job.run)());
    }
    Some(measurements)
}

/// One measurement to make.
struct Job {
    what: &'static str,
    run: Box<dyn FnOnce() -> Measurement>,
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::time::Instant;

    use ir::counts::Streaming;
    use ir::{Bytes, MeasuredOp};

    use super::*;

    #[test]
    fn all_that_a_calibration_needs_is_measured() {
        let begin = Instant::now();
        let mut last = 0.0;
        let measurements = measure(&MeasureOptions::quick(), &mut |_, share| {
            assert!((last..1.0).contains(&share));
            last = share;
            ControlFlow::Continue(())
        })
        .unwrap();
        assert!(begin.elapsed() < Duration::from_secs(60), "quick took {:?}", begin.elapsed());
        let mut classes = BTreeSet::new();
        for Measurement { op, median, dispersion, repetitions } in &measurements {
            assert!(median.nanoseconds() > 0 && *dispersion >= 0.0 && *repetitions >= 3, "{op:?}");
            classes.insert(match op {
                MeasuredOp::MatrixProduct { m, n, k } => {
                    let rate = (2 * m * n * k) as f64 / median.nanoseconds() as f64;
                    assert!((0.05..2000.0).contains(&rate), "{op:?}: {rate} GFLOP/s");
                    "product".to_owned()
                }
                MeasuredOp::ElementWise { kernel, .. } => {
                    assert!(Streaming::from_name(kernel).is_some(), "{kernel}");
                    kernel.clone()
                }
                MeasuredOp::Attention { backward, .. } => format!("attention {backward}"),
                MeasuredOp::Copy { .. } => "copy".to_owned(),
                MeasuredOp::Collective { kind, ranks, .. } => format!("{kind} {ranks}"),
                MeasuredOp::Dispatch => "dispatch".to_owned(),
            });
        }
        // Every streaming kernel of the executor, two attentions, products, copies, dispatch, four collectives over 2, 3 and 4 ranks.
        assert_eq!(classes.len(), streaming::KINDS.len() + 2 + 3 + 12, "{classes:?}");
        let cost = |of: u64| {
            let same = |m: &&Measurement| m.op == MeasuredOp::Copy { bytes: Bytes::new(of) };
            measurements.iter().find(same).unwrap().median.nanoseconds()
        };
        assert!(cost(1 << 20) > cost(4 << 10), "a copy of 1 MiB takes longer than one of 4 KiB");
    }

    #[test]
    fn it_can_be_stopped() {
        let mut calls = 0;
        let stopped = measure(&MeasureOptions::quick(), &mut |_, _| {
            calls += 1;
            if calls == 3 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        assert!(stopped.is_none() && calls == 3);
    }
}
