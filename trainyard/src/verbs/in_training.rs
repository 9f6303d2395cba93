//! What training takes beyond its kernels: the second half of a calibration.
//!
//! Two small models of other sizes than any of the catalog are trained for a few iterations, once on real cores and
//! once on emulated devices, and held against what the kernels alone predict. The ratio of the totals of each kind of
//! instruction becomes a factor of the calibration; what iterations of tensor ranks still take beyond that, because each
//! waits for the slower one of the moment at every collective, becomes a factor on their passes.

use std::path::Path;

use cost::{Calibration, Composition};
use ir::program::Pass;
use ir::{Axis, Op, Timeline, VerifiedProgram};
use reports::InstructionClass;
use reports::compare::statistics::quantile;

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
             [training]\nsequence_length = 64\nglobal_batch = 16\niterations = 8\n[plan]\n{plan}\n"
        );
        let loaded = scenario::parse("calibration", &text, Path::new(""))?;
        let report = compare::report(&Job::new(&loaded, Some(calibration))?, context, Some(calibration))?;
        runs.push((loaded, report));
    }
    let mut composition = factors(&runs);
    let mut composed = calibration.clone();
    *(if emulated { &mut composed.in_training.emulated } else { &mut composed.in_training.real }) = composition;
    // What iterations of ranks in step still take beyond their instructions, over the passes of a rank.
    let (mut beyond, mut passes) = (0.0, 0.0);
    for (loaded, report) in runs.iter().filter(|(_, report)| report.simulated.program.layout.tensor > 1) {
        let timeline = Job::new(loaded, Some(&composed))?.simulate(&report.simulated.program)?;
        let (begin, end) = reports::metrics::bounds(&timeline);
        beyond += report.measured.iteration_ms * 1e6 - (end - begin) as f64;
        passes += passes_ns(&report.simulated.program, &timeline);
    }
    composition.in_step = if passes > 0.0 { (1.0 + beyond / passes).max(1.0) } else { 1.0 };
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
    let classes = runs.iter().flat_map(|(_, report)| &report.comparison.classes);
    let exchanges = classes.filter(|class| {
        matches!(class.class, Some(InstructionClass::Collective(_, Axis::Tensor) | InstructionClass::Send))
    });
    let added =
        exchanges.map(|class| (class.measured_median_ns as f64 - class.predicted_median_ns as f64) * 1e-3).collect();
    Composition {
        forward: ratio(InstructionClass::Pass(Pass::Forward)),
        backward: ratio(InstructionClass::Pass(Pass::Backward)),
        gradient_norm: ratio(InstructionClass::GradientNorm),
        optimizer: ratio(InstructionClass::Optimizer),
        in_step: 1.0,
        exchange_us: quantile(added, 0.5).unwrap_or(0.0).max(0.0),
    }
}

/// Nanoseconds that the busiest rank spends in passes.
fn passes_ns(program: &VerifiedProgram, timeline: &Timeline) -> f64 {
    let of_lane = |lane: &ir::Lane| {
        let instructions = program.roles[lane.role.index()].instructions();
        let passes = instructions.iter().zip(&lane.spans).filter(|(i, _)| matches!(i.op, Op::Compute { .. }));
        passes.map(|(_, span)| (span.end - span.start).nanoseconds()).sum::<u64>()
    };
    timeline.lanes.iter().map(of_lane).max().unwrap_or(0) as f64
}
