//! What training takes beyond its kernels: the second half of a calibration.
//!
//! Two small models of other sizes than any of the catalog are trained for a few iterations, once on real cores and
//! once on emulated devices, and held against what the kernels alone predict. The ratio of the totals of each kind of
//! instruction becomes a factor of the calibration.

use std::path::Path;

use cost::{Calibration, Composition};
use ir::program::Pass;
use reports::compare::ClassError;
use reports::compare::statistics::quantile;
use reports::InstructionClass;

use crate::job::Job;
use crate::verbs::compare;
use crate::verbs::doctor::available_cores;
use crate::{Context, Error, scenario};

/// Llama-like and GPT-2-like, between the widths whose matrix products were measured.
const MODELS: [&str; 2] = [
    "hidden = 192\nlayers = 6\nheads = 12\nkv_heads = 6\nhead_dim = 16\nffn = 528\nvocabulary = 256\nnorm = \"rms-norm\"\n\
     positions = { rope = { theta = 10000.0 } }\nmlp = \"swi-glu\"\ntied_head = false\nqkv_bias = false\n\
     projection_bias = false\nmlp_bias = false\n",
    "hidden = 160\nlayers = 6\nheads = 10\nkv_heads = 10\nhead_dim = 16\nffn = 640\nvocabulary = 256\nnorm = \"layer-norm\"\n\
     positions = { learned = { maximum = 256 } }\nmlp = \"gelu\"\ntied_head = true\nqkv_bias = true\n\
     projection_bias = true\nmlp_bias = true\n",
];

/// Measures what `calibration`, of kernels alone, leaves out, and puts it into it.
///
/// # Errors
/// As [`crate::compare`].
pub(super) fn measure(calibration: &mut Calibration, context: &Context<'_>) -> Result<(), Error> {
    let real = if available_cores() >= 2 {
        ("1 x cpu-2", "", "data = 2\nzero = 1\nmicrobatch_size = 4")
    } else {
        ("1 x cpu-1", "", "microbatch_size = 4")
    };
    let emulated = ("1 x cpu-4", "[emulate]\nfactors = 3\n", "pipeline = 2\ntensor = 2\nmicrobatch_size = 4");
    let found = [of(calibration, real, context)?, of(calibration, emulated, context)?];
    [calibration.in_training.real, calibration.in_training.emulated] = found;
    Ok(())
}

fn of(
    calibration: &Calibration,
    (nodes, emulate, plan): (&str, &str, &str),
    context: &Context<'_>,
) -> Result<Composition, Error> {
    let mut classes: Vec<ClassError> = Vec::new();
    for model in MODELS {
        let text = format!(
            "name = \"calibration\"\nseed = 1\n[cluster]\nnodes = \"{nodes}\"\n{emulate}[model]\nname = \"calibration\"\n{model}\
             [training]\nsequence_length = 64\nglobal_batch = 16\niterations = 8\n[plan]\n{plan}\n"
        );
        let loaded = scenario::parse("calibration", &text, Path::new(""))?;
        let job = Job::new(&loaded, Some(calibration))?;
        classes.extend(compare::report(&job, context, Some(calibration))?.comparison.classes);
    }
    let ratio = |wanted: &dyn Fn(InstructionClass) -> bool| {
        let same = classes.iter().filter(|class| class.class.is_some_and(wanted));
        let (predicted, measured) = same.fold((0.0, 0.0), |(predicted, measured), class| {
            let total = class.measured_total_ns as f64;
            (predicted + total * class.ratio, measured + total)
        });
        if predicted > 0.0 && measured > 0.0 { measured / predicted } else { 1.0 }
    };
    let exchanges = classes.iter().filter(|class| {
        matches!(class.class, Some(InstructionClass::Collective(_, ir::Axis::Tensor) | InstructionClass::Send))
    });
    let added = exchanges
        .map(|class| (class.measured_median_ns as f64 - class.predicted_median_ns as f64) * 1e-3)
        .collect();
    Ok(Composition {
        forward: ratio(&|class| class == InstructionClass::Pass(Pass::Forward)),
        backward: ratio(&|class| class == InstructionClass::Pass(Pass::Backward)),
        gradient_norm: ratio(&|class| class == InstructionClass::GradientNorm),
        optimizer: ratio(&|class| class == InstructionClass::Optimizer),
        exchange_us: quantile(added, 0.5).unwrap_or(0.0).max(0.0),
    })
}
