//! Progress on standard error, for steps that take more than a second.

use std::cell::RefCell;
use std::time::{Duration, Instant};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use trainyard::Progress;

/// Steps shorter than this show nothing.
const PATIENCE: Duration = Duration::from_secs(1);

/// Shows the step that is under way. Draws nothing where standard error is no terminal.
pub(crate) struct Meter {
    quiet: bool,
    state: RefCell<Option<State>>,
}

struct State {
    step: &'static str,
    since: Instant,
    bar: Option<ProgressBar>,
}

impl Meter {
    pub(crate) const fn new(quiet: bool) -> Self {
        Self { quiet, state: RefCell::new(None) }
    }
    /// Takes note of progress.
    pub(crate) fn show(&self, progress: &Progress) {
        if self.quiet {
            return;
        }
        let mut state = self.state.borrow_mut();
        if state.as_ref().is_none_or(|state| state.step != progress.step) {
            clear(state.take());
            *state = Some(State { step: progress.step, since: Instant::now(), bar: None });
        }
        let Some(state) = state.as_mut() else { return };
        if state.bar.is_none() && state.since.elapsed() >= PATIENCE {
            state.bar = Some(bar(progress));
        }
        if let Some(bar) = &state.bar {
            bar.set_length(progress.total);
            bar.set_position(progress.done);
            bar.set_message(progress.note.clone());
        }
    }
    /// Takes the bar away.
    pub(crate) fn finish(&self) {
        clear(self.state.borrow_mut().take());
    }
}

fn clear(state: Option<State>) {
    if let Some(bar) = state.and_then(|state| state.bar) {
        bar.finish_and_clear();
    }
}

fn bar(progress: &Progress) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(Some(progress.total), ProgressDrawTarget::stderr_with_hz(10));
    let template = if progress.total == 0 {
        "{spinner} {prefix} {elapsed} {wide_msg}"
    } else {
        "{prefix} {bar:24} {pos}/{len} {elapsed} {wide_msg}"
    };
    bar.set_style(ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(progress.step);
    bar
}
