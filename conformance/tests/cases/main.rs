//! Questions and faults of people who do this job, as public threads tell them, put to the library as a user would: a
//! scenario goes in, a plan, a prediction or a refusal comes out.
//!
//! Each test stands for a kind of case, and so has several inputs of that kind. Figures in comments are those of the
//! threads.

mod a_feasibility;
mod b_memory;
mod c_speed;
mod d_network;
mod e_failures;
mod e_unlike;

use std::path::Path;

use trainyard::results::{MemorySummary, PlanReport, PredictionSummary};
use trainyard::{Context, Error, scenario};

/// A scenario of a cluster (its nodes), a model (its name, or `[model]` in full), and keys of training and plan.
struct Case<'a> {
    nodes: &'a str,
    model: &'a str,
    training: &'a str,
    plan: &'a str,
}

impl Case<'_> {
    fn text(&self) -> String {
        let cluster = if self.nodes.starts_with('[') {
            self.nodes.to_owned()
        } else {
            format!("[cluster]\nnodes = \"{}\"", self.nodes)
        };
        let model = if self.model.contains('=') { self.model.to_owned() } else { format!("name = \"{}\"", self.model) };
        format!("{cluster}\n[model]\n{model}\n[training]\n{}\n[plan]\n{}\n", self.training, self.plan)
    }

    /// The plan that is written or chosen.
    #[track_caller]
    fn planned(&self) -> PlanReport {
        self.plan().unwrap_or_else(|error| panic!("{error}\n{}", self.text()))
    }

    fn plan(&self) -> Result<PlanReport, Error> {
        let loaded = scenario::parse("s.toml", &self.text(), Path::new(""))?;
        trainyard::plan(&loaded, &Context::default())
    }

    /// The words with which it is refused, all of them at once.
    #[track_caller]
    fn refusal(&self) -> String {
        match self.plan() {
            Ok(report) => panic!("{} was planned for\n{}", report.plan.words, self.text()),
            Err(error @ (Error::Input(_) | Error::Infeasible { .. })) => error.to_string(),
            Err(other) => panic!("{other}"),
        }
    }

    /// It is refused, and the words hold each needle.
    #[track_caller]
    fn refused(&self, needles: &[&str]) {
        let words = self.refusal();
        for needle in needles {
            assert!(words.contains(needle), "no {needle:?} in\n{words}");
        }
    }
}

/// A dense model of so many layers and of a width that eight ranks share.
fn dense(layers: u32) -> String {
    format!(
        "name = \"dense\"\nhidden = 1024\nlayers = {layers}\nheads = 16\nffn = 4096\nvocabulary = 32000\nnorm = \"rms-norm\"\n\
         positions = {{ rope = {{ theta = 10000.0 }} }}\nmlp = \"swi-glu\""
    )
}

/// What tensors take of a stage at its peak, in GiB: all but what the runtime and its allocator keep.
fn tensors(memory: &MemorySummary) -> f64 {
    memory.peak_gib - memory.parts_gib.get("reserve").copied().unwrap_or_default()
}

/// That of the stage where it is most.
fn largest(prediction: &PredictionSummary) -> f64 {
    prediction.memory.iter().map(tensors).fold(0.0, f64::max)
}
