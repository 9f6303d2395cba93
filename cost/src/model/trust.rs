//! How far a price may be off, and what of it rests on nothing that was measured.

use ir::counts::{Kernel, UnitKind, product_precision, unit_kernels};
use ir::program::{Pass, Program, Stream};
use ir::{Activity, DeviceKindId, Instruction, Op, Prediction, Recompute};

use super::{CostModel, Source};
use crate::Interference;
use crate::basis::Basis;

/// Standard normal quantile of a two-sided 90 % interval.
pub const NINETY_PERCENT: f64 = 1.645;

/// Why a predicted time may be off.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum SpreadCause {
    /// The stack: what its fit leaves, or what stacks of which nothing is known are off by.
    Stack,
    /// The least known of the devices.
    Device,
    /// Operations that rest on assumed constants.
    Assumed,
    /// Links that reach another share of their bandwidth.
    Exchanges,
    /// Experts that hold up passes for another time.
    ExpertWaits,
    /// A host that launches kernels slowly.
    SlowLaunches,
}

impl SpreadCause {
    /// All of them, in order.
    pub const ALL: [Self; 6] =
        [Self::Stack, Self::Device, Self::Assumed, Self::Exchanges, Self::ExpertWaits, Self::SlowLaunches];
    /// Its name in reports.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Stack => "software stack",
            Self::Device => "device",
            Self::Assumed => "assumed operations",
            Self::Exchanges => "link efficiency",
            Self::ExpertWaits => "waits of experts",
            Self::SlowLaunches => "launches of a slow host",
        }
    }
}

/// How far a predicted time may be off: standard deviations of its logarithm, by cause. Causes are independent, and add up
/// in quadrature. All are as likely to shorten the time as to lengthen it but one: a host slower than the one that
/// was priced.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Spread([f64; SpreadCause::ALL.len()]);

impl Spread {
    /// The standard deviation that one cause gives.
    #[must_use]
    pub const fn of(&self, cause: SpreadCause) -> f64 {
        self.0[cause as usize]
    }
    /// That of the time being shorter than predicted.
    #[must_use]
    pub fn below(&self) -> f64 {
        let slow = self.of(SpreadCause::SlowLaunches);
        (self.above() * self.above() - slow * slow).max(0.0).sqrt()
    }
    /// That of the time being longer than predicted.
    #[must_use]
    pub fn above(&self) -> f64 {
        self.0.iter().map(|each| each * each).sum::<f64>().sqrt()
    }
    /// The 90 % interval of a time in seconds: `t exp(-1.645 below)` to `t exp(1.645 above)`.
    #[must_use]
    pub fn interval(&self, seconds: f64) -> (f64, f64) {
        let factor = |spread: f64| libm::exp(NINETY_PERCENT * spread);
        (seconds / factor(self.below()), seconds * factor(self.above()))
    }
    /// Each cause that there is, largest first (of equals in their order).
    #[must_use]
    pub fn causes(&self) -> Vec<(SpreadCause, f64)> {
        let mut causes: Vec<_> = SpreadCause::ALL.into_iter().map(|cause| (cause, self.of(cause))).collect();
        causes.retain(|(_, spread)| *spread > 0.0);
        causes.sort_by(|a, b| b.1.total_cmp(&a.1));
        causes
    }
}

impl CostModel {
    /// How far the time of a prediction on devices of some kinds may be off, its interval not looked at.
    ///
    /// * stack: what its fit leaves over, or what tables predicted from others are off by ([`crate::ColdGroup`]);
    /// * device: what the least known of the calibrations leaves;
    /// * assumed operations: [`crate::SpreadTerms::assumed`] times the share of the time that rests on them;
    /// * link efficiency: [`crate::SpreadTerms::exchanges`] times the share of the iteration that exposed exchanges take;
    /// * waits of experts: likewise;
    /// * a slow host: `ln((t + x)/t) / 1.645`, where one host in twenty adds `x` or more.
    ///
    /// Given durations leave what the stack does.
    #[must_use]
    pub fn spread(&self, kinds: &[DeviceKindId], prediction: &Prediction) -> Spread {
        let terms = self.stack.terms;
        let Source::Calibrations { .. } = &self.source else {
            return Spread([self.stack.spread, 0.0, 0.0, 0.0, 0.0, 0.0]);
        };
        let of = |kind: &DeviceKindId| self.prepared(*kind).calibration.spread.unwrap_or(terms.undeclared_device);
        let device = kinds.iter().map(of).fold(0.0, f64::max);
        let iteration = prediction.iteration.seconds().max(f64::MIN_POSITIVE);
        let exchanges: f64 =
            EXCHANGES.iter().map(|activity| prediction.breakdown.of(*activity).seconds()).sum::<f64>() / iteration;
        let waits = prediction.at_risk.expert_waits.seconds() / iteration;
        let slower = prediction.at_risk.slow_launches.seconds() / iteration;
        Spread([
            self.stack.spread,
            device,
            terms.assumed * prediction.basis.assumed.clamp(0.0, 1.0),
            terms.exchanges * exchanges.clamp(0.0, 1.0),
            terms.expert_waits * waits.clamp(0.0, 1.0),
            libm::log1p(slower) / NINETY_PERCENT,
        ])
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
            notes.extend(slowing_note(program, kind.name.as_str(), &prepared.calibration.interference));
            if let Some(profile) = self.profile(id) {
                notes.extend(profile.notes(&kind.name, program.shape()));
                notes.extend(halves_note(program, &kind.name));
                continue;
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

/// What is said of a backward pass that was measured whole, where a program carries it out in two.
fn halves_note(program: &Program, kind: &str) -> Option<String> {
    let is_half = |one: &Instruction| matches!(one.op, Op::Compute { pass: Pass::BackwardWeight, .. });
    let split = program.roles.iter().any(|role| role.instructions().iter().any(is_half));
    split.then(|| format!("assumed on {kind}: weight gradients take half of a measured backward pass"))
}

/// What is said of compute and collectives beside each other, where a program has them and nobody measured what they do.
fn slowing_note(program: &Program, kind: &str, interference: &Interference) -> Option<String> {
    let Interference { compute, communication, rows, source } = interference;
    if *rows > 0 || !runs_beside(program) {
        return None;
    }
    let from = if source.is_empty() { String::new() } else { format!(" ({source})") };
    let factors = if compute.max(*communication) > 1.0 {
        format!("compute takes {compute} times as long, communication {communication} times{from}")
    } else {
        format!("neither slows the other{from}")
    };
    Some(format!("assumed on {kind}, not measured: of compute beside communication, {factors}"))
}

/// Whether any collective of a pass runs beside compute: the next compute of its list does not wait for it.
fn runs_beside(program: &Program) -> bool {
    program.roles.iter().any(|role| {
        let list = role.instructions();
        list.iter().enumerate().any(|(place, one)| {
            let collective = matches!(one.op, Op::Collective { .. });
            let next = || list[place + 1..].iter().find(|later| later.stream == Stream::Compute);
            let waits = |later: &Instruction| role.waits(later).iter().any(|wait| wait.index() >= place);
            collective && next().is_some_and(|later| !waits(later))
        })
    })
}

/// What moves over links.
const EXCHANGES: [Activity; 5] =
    [Activity::Tensor, Activity::Context, Activity::Expert, Activity::Pipeline, Activity::Data];
