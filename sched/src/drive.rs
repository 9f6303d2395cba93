//! The drive loop: one program after another over any backend, with a controller that decides between iterations.
//!
//! The same loop drives the simulator and the executor. It holds no clock and reads nothing: times are the backend's.

use std::ops::Range;
use std::sync::Arc;

use ir::{Backend, BackendError, Decision, Event, IterationOutcome, SimTime, VerifiedProgram};

/// Decides at iteration boundaries.
pub trait Controller {
    /// What to do after an event.
    fn decide(&mut self, event: &Event) -> Decision;
}

/// Goes on with the same program to the end.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct StaticController;

impl Controller for StaticController {
    fn decide(&mut self, _event: &Event) -> Decision {
        Decision::Continue
    }
}

/// What a drive came to.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Drive {
    /// Iterations carried out.
    pub iterations: u64,
    /// The sum of their lengths on the backend's clock.
    pub elapsed: SimTime,
    /// Whether the controller ended the run.
    pub stopped: bool,
}

/// Loads `program` and carries out `iterations` iterations, or fewer if the controller stops the run.
///
/// `observe` sees each outcome before the controller decides; it returns `false` to end the run as if the person had
/// asked for it.
///
/// # Errors
/// [`BackendError::Unsupported`] before anything starts, [`BackendError::Interrupted`] if `observe` says so, or what
/// stopped the backend.
pub fn drive(
    backend: &mut dyn Backend,
    program: Arc<VerifiedProgram>,
    iterations: u64,
    controller: &mut dyn Controller,
    observe: &mut dyn FnMut(u64, &IterationOutcome) -> bool,
) -> Result<Drive, BackendError> {
    drive_on(backend, program, 0..iterations, controller, observe)
}

/// As [`drive`], with these iterations: a backend that goes on from the state of an earlier run begins where that ended.
///
/// # Errors
/// As [`drive`].
pub fn drive_on(
    backend: &mut dyn Backend,
    program: Arc<VerifiedProgram>,
    iterations: Range<u64>,
    controller: &mut dyn Controller,
    observe: &mut dyn FnMut(u64, &IterationOutcome) -> bool,
) -> Result<Drive, BackendError> {
    load(backend, program)?;
    let mut done = Drive { iterations: 0, elapsed: SimTime::ZERO, stopped: false };
    for iteration in iterations {
        let outcome = backend.iterate(iteration)?;
        done.iterations += 1;
        done.elapsed += outcome.timeline.end().saturating_since(SimTime::ZERO);
        if !observe(iteration, &outcome) {
            return Err(BackendError::Interrupted);
        }
        let event = Event::IterationEnded { iteration, at: done.elapsed, loss: outcome.loss };
        match controller.decide(&event) {
            Decision::Continue => {}
            Decision::Stop => {
                done.stopped = true;
                break;
            }
            Decision::Replace(next) => load(backend, next)?,
        }
    }
    Ok(done)
}

fn load(backend: &mut dyn Backend, program: Arc<VerifiedProgram>) -> Result<(), BackendError> {
    let reasons = backend.unsupported(&program);
    if reasons.is_empty() { backend.load(program) } else { Err(BackendError::Unsupported(reasons)) }
}

#[cfg(test)]
mod tests {
    use ir::{Clock, Plan, Problem, Schedule};

    use super::*;
    use crate::testing::{Interpreter, analytic, dgx, plan, small_model, workload};

    fn program(p: u32) -> Arc<VerifiedProgram> {
        let (model, work) = (small_model(p), workload(32, 4));
        let plan: Plan = plan(&model, &work, [1, 1, p, 1], Schedule::OneForwardOneBackward);
        Arc::new(VerifiedProgram::new(crate::lower(&plan, &model, &work, &dgx(1)).unwrap()).unwrap())
    }

    struct ReplaceThenStop(Vec<u64>);

    impl Controller for ReplaceThenStop {
        fn decide(&mut self, event: &Event) -> Decision {
            let Event::IterationEnded { iteration, at, .. } = event;
            self.0.push(at.nanoseconds());
            match iteration {
                1 => Decision::Replace(program(4)),
                3 => Decision::Stop,
                _ => Decision::Continue,
            }
        }
    }

    #[test]
    fn decisions_take_effect_between_iterations() {
        let cost = analytic(dgx(1));
        let mut backend = Interpreter::new(&cost);
        let mut lanes = Vec::new();
        let mut controller = ReplaceThenStop(Vec::new());
        let done = drive(&mut backend, program(2), 10, &mut controller, &mut |_, outcome| {
            assert_eq!(outcome.timeline.clock, Clock::Simulated);
            lanes.push(outcome.timeline.lanes.len());
            true
        });
        let done = done.unwrap();
        assert_eq!((done.iterations, done.stopped, lanes), (4, true, vec![2, 2, 4, 4]));
        assert!(controller.0.is_sorted() && controller.0[0] * 2 == controller.0[1]);
        assert_eq!(controller.0[3], done.elapsed.nanoseconds());
    }

    #[test]
    fn observers_interrupt_and_backends_refuse_before_they_start() {
        let cost = analytic(dgx(1));
        let mut backend = Interpreter::new(&cost);
        let stopped = drive(&mut backend, program(2), 10, &mut StaticController, &mut |iteration, _| iteration < 2);
        assert_eq!(stopped, Err(BackendError::Interrupted));
        assert_eq!(backend.iterations, 3);
        backend.refuse = vec![Problem::new("backend", "not today")];
        let refused = drive(&mut backend, program(2), 10, &mut StaticController, &mut |_, _| true);
        assert!(matches!(refused, Err(BackendError::Unsupported(reasons)) if reasons.len() == 1));
        assert_eq!(backend.iterations, 3);
        backend.refuse.clear();
        let all = drive(&mut backend, program(2), 10, &mut StaticController, &mut |_, _| true).unwrap();
        assert_eq!((all.iterations, all.stopped), (10, false));
    }
}
