//! How far a price may be off, and what of it rests on nothing that was measured.

use ir::counts::{Kernel, UnitKind, product_precision, unit_kernels};
use ir::prediction::BasisShare;
use ir::program::{Pass, Program};
use ir::{DeviceKindId, Recompute};

use super::{Basis, CostModel, Source};

/// Standard normal quantile of a two-sided 90 % interval.
pub const NINETY_PERCENT: f64 = 1.645;

impl CostModel {
    /// Standard deviation of the logarithm of a predicted time on devices of some kinds: what the stack leaves, what the
    /// least known of the devices' calibrations leaves, and the assumed share of the time, in quadrature. Given durations
    /// leave what the stack does.
    ///
    /// The 90 % interval of a time `t` is `t exp(+-1.645 spread)` ([`interval`]).
    #[must_use]
    pub fn spread(&self, kinds: &[DeviceKindId], basis: BasisShare) -> f64 {
        let terms = self.stack.terms;
        let device = match &self.source {
            Source::Table(_) => 0.0,
            Source::Calibrations { .. } => kinds
                .iter()
                .map(|kind| self.prepared(*kind).calibration.spread.unwrap_or(terms.undeclared_device))
                .fold(0.0, f64::max),
        };
        let assumed = terms.assumed * basis.assumed.clamp(0.0, 1.0);
        (self.stack.spread * self.stack.spread + device * device + assumed * assumed).sqrt()
    }

    /// What of a program's prices rests on no measurement, in sentences: each fallback of the stack, each device whose
    /// calibration declares no spread, and each kind of kernel that is assumed on a device. Empty if there is nothing.
    #[must_use]
    pub fn assumptions(&self, program: &Program) -> Vec<String> {
        let mut notes = self.stack.notes.clone();
        if let Source::Table(_) = &self.source {
            return notes;
        }
        for id in self.used_kinds(program) {
            let (kind, prepared) = (self.cluster.device_kind(id), self.prepared(id));
            if prepared.calibration.spread.is_none() {
                notes.push(format!("calibration {} of {} declares no spread", prepared.calibration.name, kind.name));
            }
            let mut assumed: Vec<String> = Vec::new();
            let mut kernels = Vec::new();
            for unit in UnitKind::ALL.into_iter().filter(|unit| unit.is_in(&program.model)) {
                let precision = product_precision(&program.workload, unit);
                for pass in [Pass::Forward, Pass::BackwardInput, Pass::BackwardWeight] {
                    kernels.clear();
                    unit_kernels(program.shape(), unit, pass, Recompute::None, &mut kernels);
                    let of_nothing =
                        kernels.iter().filter(|of| prepared.kernel(kind, precision, **of).1 == Basis::Assumed);
                    assumed.extend(of_nothing.map(|kernel| match kernel {
                        Kernel::MatrixProduct { .. } => format!("matrix products in {}", precision.name()),
                        Kernel::GroupedProduct { .. } => format!("grouped products in {}", precision.name()),
                        Kernel::Attention { .. } => format!("attention in {}", precision.outside_layers().name()),
                        Kernel::Streaming { .. } => "kernels bound by memory".to_owned(),
                    }));
                }
            }
            assumed.sort_unstable();
            assumed.dedup();
            if !assumed.is_empty() {
                notes.push(format!("assumed on {}, without a measurement: {}", kind.name, assumed.join(", ")));
            }
        }
        notes
    }
}

/// The 90 % interval of a time in seconds whose logarithm has a standard deviation: (low, high).
#[must_use]
pub fn interval(seconds: f64, spread: f64) -> (f64, f64) {
    let factor = libm::exp(NINETY_PERCENT * spread);
    (seconds / factor, seconds * factor)
}
