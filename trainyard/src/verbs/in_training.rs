//! What training takes beyond its kernels: the second half of a calibration.
//!
//! Two small models of other sizes than any of the catalog are trained for a few iterations, once on real cores and
//! once on emulated devices, and held against what the kernels alone predict. The ratio of the totals of each kind of
//! instruction becomes a factor of the calibration; what an iteration still takes beyond that (ranks that wait for the
//! slower one of the moment, and waking) is laid on its exchanges.

use std::path::Path;

use cost::{Calibration, Composition};
use ir::program::Pass;
use ir::{Op, VerifiedProgram};
use reports::InstructionClass;

use crate::job::Job;
use crate::results::CompareReport;
use crate::scenario::{self, Loaded};
use crate::verbs::compare;
use crate::verbs::doctor::available_cores;
use crate::{Context, Error};

/// Llama-like and GPT-2-like, between the widths whose matrix products were measured.
const MODELS: [&str; 2] = [
    "hidden = 192\nlayers = 6\nheads = 12\nkv_heads = 6\nhead_dim = 16\nffn = 528\nvocabulary = 256\nnorm = \"rms-norm\"\n\
     positions = { rope = { theta = 10000.0 } }\nmlp = \"swi-glu\"\ntied_head = false\nqkv_bias = false\n\
     projection_bias = false\nmlp_bias = false\n",
    "hidden = 160\nlayers = 6\nheads = 10\nkv_heads = 10\nhead_dim = 16\nffn = 640\nvocabulary = 256\nnorm = \"layer-norm\"\n\
     positions = { learned = { maximum = 256 } }\nmlp = \"gelu\"\ntied_head = true\nqkv_bias = true\n\
     projection_bias = true\nmlp_bias = true\n",
];

/// Where and how the small models are trained.
struct Setting {
    nodes: &'static str,
    emulate: &'static str,
    plans: &'static [&'static str],
}

/// One real core: nothing to exchange.
const ONE_CORE: Setting = Setting { nodes: "1 x cpu-1", emulate: "", plans: &["microbatch_size = 4"] };
const REAL: Setting = Setting {
    nodes: "1 x cpu-2",
    emulate: "",
    plans: &["data = 2\nzero = 1\nmicrobatch_size = 4", "tensor = 2\nmicrobatch_size = 4"],
};
const EMULATED: Setting = Setting {
    nodes: "1 x cpu-4",
    emulate: "[emulate]\nfactors = 3\n",
    plans: &["pipeline = 2\ntensor = 2\nmicrobatch_size = 4"],
};

/// Measures what `calibration`, of kernels alone, leaves out, and puts it into it.
///
/// # Errors
/// As [`crate::compare`].
pub(super) fn measure(calibration: &mut Calibration, context: &Context<'_>) -> Result<(), Error> {
    let real = if available_cores() >= 2 { REAL } else { ONE_CORE };
    let found = [of(calibration, &real, false, context)?, of(calibration, &EMULATED, true, context)?];
    [calibration.in_training.real, calibration.in_training.emulated] = found;
    Ok(())
}

fn of(
    calibration: &Calibration,
    setting: &Setting,
    emulated: bool,
    context: &Context<'_>,
) -> Result<Composition, Error> {
    let mut runs: Vec<(Loaded, CompareReport)> = Vec::new();
    for (model, plan) in MODELS.into_iter().flat_map(|model| setting.plans.iter().map(move |plan| (model, plan))) {
        let Setting { nodes, emulate, .. } = setting;
        let text = format!(
            "name = \"calibration\"\nseed = 1\n[cluster]\nnodes = \"{nodes}\"\n{emulate}[model]\nname = \"calibration\"\n{model}\
             [training]\nsequence_length = 64\nglobal_batch = 16\niterations = 10\n[plan]\n{plan}\n"
        );
        let loaded = scenario::parse("calibration", &text, Path::new(""))?;
        let report = compare::report(&Job::new(&loaded, Some(calibration))?, context, Some(calibration))?;
        runs.push((loaded, report));
    }
    let mut composition = factors(&runs);
    let mut composed = calibration.clone();
    *(if emulated { &mut composed.in_training.emulated } else { &mut composed.in_training.real }) = composition;
    // What iterations still take beyond their instructions, over the exchanges that the price will be added to.
    let (mut beyond_us, mut exchanged) = (0.0, 0);
    for (loaded, report) in &runs {
        let job = Job::new(loaded, Some(&composed))?;
        let timeline = job.simulate(&report.simulated.program)?;
        let (begin, end) = reports::metrics::bounds(&timeline);
        beyond_us += report.measured.iteration_ms * 1e3 - (end - begin) as f64 * 1e-3;
        exchanged += exchanges(&report.simulated.program);
    }
    composition.exchange_us = (beyond_us / f64::from(exchanged.max(1))).max(0.0);
    Ok(composition)
}

/// Measured over predicted total time of each kind of instruction.
fn factors(runs: &[(Loaded, CompareReport)]) -> Composition {
    let ratio = |wanted: InstructionClass| {
        let classes = runs.iter().flat_map(|(_, report)| &report.comparison.classes);
        let same = classes.filter(|class| class.class == Some(wanted));
        let (predicted, measured) = same.fold((0.0, 0.0), |(predicted, measured), class| {
            let total = class.measured_total_ns as f64;
            (predicted + total * class.ratio, measured + total)
        });
        if predicted > 0.0 && measured > 0.0 { measured / predicted } else { 1.0 }
    };
    Composition {
        forward: ratio(InstructionClass::Pass(Pass::Forward)),
        backward: ratio(InstructionClass::Pass(Pass::Backward)),
        gradient_norm: ratio(InstructionClass::GradientNorm),
        optimizer: ratio(InstructionClass::Optimizer),
        exchange_us: 0.0,
    }
}

/// Most collectives and messages that a rank waits for.
fn exchanges(program: &VerifiedProgram) -> u32 {
    let waited_for = |op: &Op| match op {
        Op::Collective { .. } | Op::Receive { .. } => true,
        Op::Compute { .. } | Op::Send { .. } | Op::GradientNorm | Op::Optimizer => false,
    };
    let count = |role: &ir::Role| role.instructions().iter().filter(|i| waited_for(&i.op)).count();
    u32::try_from(program.roles.iter().map(count).max().unwrap_or(0)).expect("a small program")
}
