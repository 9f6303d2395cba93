//! `calibrate`: this machine's CPU, measured for the simulator.

use std::ops::ControlFlow;
use std::time::Instant;

use exec::measure::MeasureOptions;

use crate::results::{CalibrateReport, ClassFit, Header};
use crate::verbs::in_training;
use crate::{Context, Error};

/// The calibration that CPU workers of the catalog name.
const NAME: &str = "cpu";

/// Measures matrix products, streaming kernels, attention, copies, collectives and dispatch on this machine, fits a
/// calibration, and trains two small models for what their iterations take beyond their kernels; in under a minute.
///
/// # Errors
/// [`Error::Interrupted`]; [`Error::Run`] if the small models cannot be trained.
pub fn calibrate(context: &Context<'_>) -> Result<CalibrateReport, Error> {
    let begun = Instant::now();
    let measurements = measure(context)?;
    let (mut calibration, fit) = cost::fit(&measurements, NAME)
        .map_err(|problems| Error::Input(crate::InputError { problems, sources: crate::source::Sources::default() }))?;
    in_training::measure(&mut calibration, context)?;
    let classes = fit.classes.into_iter().map(|class| ClassFit {
        class: class.class,
        points: class.points,
        median_error: class.median_error,
        worst_error: class.worst_error,
        dispersion: class.dispersion,
    });
    Ok(CalibrateReport {
        header: Header::new("calibrate", ""),
        elapsed_s: begun.elapsed().as_secs_f64(),
        measurements: measurements.len(),
        cross_validation: classes.collect(),
        calibration_toml: calibration.to_toml(),
    })
}

fn measure(context: &Context<'_>) -> Result<Vec<ir::Measurement>, Error> {
    let mut progress = |what: &str, share: f64| {
        // Shares are of 1; the meter counts in thousandths.
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of 1000")]
        let done = (share.clamp(0.0, 1.0) * 1000.0) as u64;
        match context.step("calibrate", done, 1000, what) {
            Ok(()) => ControlFlow::Continue(()),
            Err(_) => ControlFlow::Break(()),
        }
    };
    exec::measure::measure(&MeasureOptions::default(), &mut progress).ok_or(Error::Interrupted)
}
