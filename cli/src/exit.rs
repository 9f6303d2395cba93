//! Exit codes. They are part of the interface: scripts and CI read them.

use trainyard::Error;

/// All is well.
pub(crate) const OK: u8 = 0;
/// `check` found something worse than its baseline.
pub(crate) const WORSE: u8 = 1;
/// The input is wrong, or a file cannot be read or written. Wrong arguments give this too.
pub(crate) const INPUT: u8 = 2;
/// There is no legal plan, or the plan does not fit.
pub(crate) const INFEASIBLE: u8 = 3;
/// A run stopped.
pub(crate) const RUN: u8 = 4;
/// Ctrl-C.
pub(crate) const INTERRUPTED: u8 = 130;

/// What `--help` says about them.
pub(crate) const HELP: &str = "\
Exit codes:
  0    all is well
  1    check found something worse than its baseline
  2    the input is wrong, or a file cannot be read or written
  3    no legal plan, or the plan does not fit
  4    a run stopped: a value that is not a number, a stalled or failed rank
  130  interrupted";

/// The code of an error.
pub(crate) const fn code(error: &Error) -> u8 {
    match error {
        Error::Input(_) | Error::Files { .. } => INPUT,
        Error::Infeasible { .. } => INFEASIBLE,
        Error::Run(_) => RUN,
        Error::Interrupted => INTERRUPTED,
    }
}
