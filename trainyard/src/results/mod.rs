//! What verbs return. Each serialises to JSON with `schema_version` and `verb` first and units in the names of keys.

mod ablate;
mod exchange;
mod explain;
mod place;
mod plan;
mod scoreboard;
mod size;
mod train_policy;

pub use ablate::{AblateResult, AblationScores};
pub use exchange::{ExportReport, ImportReport};
pub use explain::{ExplainReport, ExplainedPart, Misfit, Remedy, Sensitivity};
pub use place::{GroupPlaces, PlaceReport, PlaceStep, PlacedAxis};
pub use plan::{Alternative, BasisSummary, MemorySummary, ParetoPoint, ParetoSummary, PlanSummary, PredictionSummary};
pub use reports::long_run::LongRunSummary;
pub use scoreboard::{CalibrateRowsReport, CheckScoreboardReport, FittedStack, RestErrors};
pub use size::{ModelRow, ModelSection, NetworkPoint, NetworkReport, SizeReport, SizeRow, SizeSection};
pub use train_policy::{CurveRow, RoundRow, ScoreRow, TrainPolicyReport};

use serde::Serialize;
use std::collections::BTreeMap;

/// The version of the shape of every result. It changes when a key changes its meaning or goes away.
pub const SCHEMA_VERSION: u32 = 1;

/// What every result begins with.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Header {
    /// [`SCHEMA_VERSION`].
    pub schema_version: u32,
    /// The verb that gave it.
    pub verb: &'static str,
    /// The scenario's name; empty where there is none.
    pub scenario: String,
}

impl Header {
    pub(crate) fn new(verb: &'static str, scenario: &str) -> Self {
        Self { schema_version: SCHEMA_VERSION, verb, scenario: scenario.to_owned() }
    }
}

/// Pretty JSON of a result, with a line end.
///
/// # Panics
/// Never: results hold no maps with keys that JSON lacks.
#[must_use]
pub fn json(result: &impl Serialize) -> String {
    let mut text = serde_json::to_string_pretty(result).expect("a plain value");
    text.push('\n');
    text
}

/// What `plan` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct PlanReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Who decided: `manual` or a policy.
    pub policy: &'static str,
    /// The plan chosen.
    pub plan: PlanSummary,
    /// What is predicted of it.
    pub prediction: PredictionSummary,
    /// What was made small: `time`, `money` or `energy`.
    pub objective: &'static str,
    /// Rent of what is paid, where every price is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub usd_per_million_tokens: Option<f64>,
    /// Energy of what is paid, where every power limit is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub joules_per_token: Option<f64>,
    /// On what money and energy rest, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub expense_notes: Vec<String>,
    /// The plans that no other beats, where that was asked.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub pareto: Option<ParetoSummary>,
    /// What was taken in place of constants of the software stack that the catalog does not have, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack_notes: Vec<String>,
    /// Why it was chosen.
    pub reasons: Vec<String>,
    /// Software that trains, and what each would refuse of the plan, as far as its rules are known.
    pub runtimes: BTreeMap<&'static str, Vec<String>>,
    /// Other plans that were looked at, best first, with why they lost.
    pub alternatives: Vec<Alternative>,
    /// The chosen plan as a scenario of its own.
    #[serde(skip)]
    pub planned_scenario: String,
}

/// What `simulate` returns.
#[derive(Clone, Debug, Serialize)]
pub struct SimulateReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The plan simulated.
    pub plan: PlanSummary,
    /// Time, memory and on what they rest.
    pub prediction: PredictionSummary,
    /// What was taken in place of constants of the software stack that the catalog does not have, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub stack_notes: Vec<String>,
    /// Tokens of the global batch per second.
    pub tokens_per_second: f64,
    /// The same per device.
    pub tokens_per_second_per_device: f64,
    /// Model operations over the devices' dense peak: 6 per parameter of a matrix product and token, 12 per layer,
    /// token pair and head width (Chowdhery et al. 2022, appendix B); recomputation not counted.
    pub model_flops_utilization: Option<f64>,
    /// The same with the operations of whole layers that are recomputed.
    pub hardware_flops_utilization: Option<f64>,
    /// Where the time goes, in milliseconds of the mean rank; sums to the iteration.
    pub time_ms: BTreeMap<&'static str, f64>,
    /// Devices in the plan.
    pub devices: u64,
    /// Rent of the plan's devices for an hour, where every price is known.
    pub usd_per_hour: Option<f64>,
    /// Distinct roles of the program, and instructions in them.
    pub roles: usize,
    /// Instructions of all roles.
    pub instructions: usize,
    /// What checkpoints and failures leave of a run of months, where the scenario has them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub long_run: Option<LongRunSummary>,
    /// Digest of the program's text.
    pub program_digest: String,
    /// Digest of every span of the timeline.
    pub timeline_digest: String,
    /// For reports.
    #[serde(skip)]
    pub decided: ir::Plan,
    /// For reports.
    #[serde(skip)]
    pub program: std::sync::Arc<ir::VerifiedProgram>,
    /// For reports.
    #[serde(skip)]
    pub timeline: ir::Timeline,
}

/// What `run` returns.
#[derive(Clone, Debug, Serialize)]
pub struct RunReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The plan carried out.
    pub plan: PlanSummary,
    /// Where its ranks were, and what joined them.
    pub ranks: String,
    /// What they computed on, where that was not this machine's cores.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub devices: Option<String>,
    /// What they were trained on.
    pub text: String,
    /// What stopped the ranks each time that they were started again.
    pub lost: Vec<String>,
    /// Iterations that were carried out again for that.
    pub repeated_iterations: u64,
    /// Time of the iterations, each once, over all the time since training began.
    pub goodput: f64,
    /// Where all the time since training began went, in milliseconds: `iterations`, `repeating` them, iterations that were
    /// `broken_off` by a lost rank until that was found, `restarting` ranks, `checkpoints` for which training stood still,
    /// and `other`.
    pub time_ms: BTreeMap<&'static str, f64>,
    /// The checkpoint that it went on from.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub resumed_from: Option<String>,
    /// Newer checkpoints that could not be used, with why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub refused_checkpoints: Vec<String>,
    /// The first iteration of it, from 0.
    #[serde(skip_serializing_if = "is_zero")]
    pub first_iteration: u64,
    /// How its state was kept.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub checkpoints: Option<CheckpointSummary>,
    /// Ranks that were slower than their like, in sentences.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub slow_ranks: Vec<String>,
    /// Iterations carried out.
    pub iterations: u32,
    /// Iterations at the start whose times are not used: caches and allocators settle.
    pub warm_up_iterations: u32,
    /// Median of the others.
    pub iteration_ms: f64,
    /// Half the distance between their 25th and 75th percentile, over the median.
    pub iteration_dispersion: f64,
    /// Mean loss of each iteration.
    pub loss: Vec<f64>,
    /// Norm of the gradients of each iteration, before clipping.
    pub gradient_norm: Vec<f64>,
    /// Tokens of the global batch per second, without padding.
    pub tokens_per_second: f64,
    /// More work than cores, or several ranks to a device: times then say nothing about accuracy.
    pub oversubscribed: bool,
    /// Cores that the process may use.
    pub cores: u32,
    /// Digest of the program's text.
    pub program_digest: String,
    /// For reports: the iterations after the warm-up.
    #[serde(skip)]
    pub timelines: Vec<ir::Timeline>,
    /// For reports.
    #[serde(skip)]
    pub decided: ir::Plan,
    /// For reports.
    #[serde(skip)]
    pub program: std::sync::Arc<ir::VerifiedProgram>,
}

/// How a run kept its state.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CheckpointSummary {
    /// The folder.
    pub folder: String,
    /// Checkpoints written.
    pub written: u64,
    /// Bytes of the last.
    pub bytes: u64,
    /// The time that training stood still for all of them.
    pub blocked_ms: f64,
    /// Of that, the time that it waited for the one before to be written.
    pub waited_ms: f64,
    /// Those that could not be written, with why.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub failures: Vec<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
const fn is_zero(number: &u64) -> bool {
    *number == 0
}

/// What `compare` returns: one program in the simulator and on real ranks.
#[derive(Clone, Debug, Serialize)]
pub struct CompareReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The simulation.
    pub simulated: SimulateReport,
    /// The run.
    pub measured: RunReport,
    /// The two, instruction by instruction.
    pub comparison: reports::Comparison,
    /// `simulated / measured - 1` of the iteration.
    pub iteration_error: f64,
    /// The calibration that priced the simulation: the name, and how well it fits its own measurements.
    pub calibration: String,
}

/// What `calibrate` returns.
#[derive(Clone, Debug, Serialize)]
pub struct CalibrateReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Seconds that it took.
    pub elapsed_s: f64,
    /// Measurements taken.
    pub measurements: usize,
    /// Error of each class of operation when a part of the measurements is left out and predicted from the rest.
    pub cross_validation: Vec<ClassFit>,
    /// The calibration, as the file that `[cost] file` reads.
    #[serde(skip)]
    pub calibration_toml: String,
}

/// How well one class of operation is predicted.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ClassFit {
    /// The class.
    pub class: String,
    /// Measurements of it.
    pub points: u32,
    /// Median absolute relative error of the points inside the range of the others; `None` if there are none.
    pub median_error: Option<f64>,
    /// Largest absolute relative error of them.
    pub worst_error: Option<f64>,
    /// Median spread of the repetitions of a measurement: what no model can beat.
    pub dispersion: f64,
}

/// What `quickstart` returns.
#[derive(Clone, Debug, Serialize)]
pub struct QuickstartReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Seconds that it took.
    pub elapsed_s: f64,
    /// What was decided, and why.
    pub plan: PlanReport,
    /// The calibration of this machine.
    pub calibration: CalibrateReport,
    /// Simulation and run.
    pub compare: CompareReport,
    /// Files written.
    pub files: Vec<String>,
}

/// An error as JSON: a header, the word of its kind, and every problem with its place.
#[must_use]
pub fn error_json(verb: &str, error: &crate::Error) -> String {
    let problems = |problems: &[ir::Problem], sources: &crate::source::Sources| {
        let one = |problem: &ir::Problem| {
            let at = sources.location(problem);
            serde_json::json!({
                "subject": problem.subject,
                "message": problem.message,
                "hint": problem.hint,
                "file": problem.span.as_ref().map(|span| span.file.clone()),
                "line": at.map(|at| at.line),
                "column": at.map(|at| at.column),
            })
        };
        problems.iter().map(one).collect::<Vec<_>>()
    };
    let (list, nearest) = match error {
        crate::Error::Input(error) => (problems(&error.problems, &error.sources), Vec::new()),
        crate::Error::Infeasible { infeasible, sources } => {
            (problems(&infeasible.reasons, sources), infeasible.nearest.iter().map(PlanSummary::of).collect())
        }
        crate::Error::Run(_) | crate::Error::Files { .. } | crate::Error::Interrupted => (Vec::new(), Vec::new()),
    };
    json(&serde_json::json!({
        "schema_version": SCHEMA_VERSION,
        "verb": verb,
        "error": error.word(),
        "message": error.to_string(),
        "problems": list,
        "nearest_plans": nearest,
    }))
}

/// What `check` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CheckReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Relative change that is still the same.
    pub tolerance: f64,
    /// Whether nothing got worse.
    pub passed: bool,
    /// One per scenario.
    pub scenarios: Vec<CheckedScenario>,
}

/// One scenario held against its baseline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct CheckedScenario {
    /// The scenario's folder name.
    pub name: String,
    /// What came out.
    pub verdict: Verdict,
    /// Each figure that changed by more than the tolerance, and the iteration always.
    pub figures: Vec<Figure>,
    /// What went wrong, where something did.
    pub message: String,
    /// Seconds that it took.
    pub elapsed_s: f64,
}

/// One figure and its baseline.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Figure {
    /// Its key.
    pub key: String,
    /// As it was.
    pub baseline: f64,
    /// As it is.
    pub now: f64,
}

impl Figure {
    /// In a line: `iteration_ms: 100.000 -> 104.200 (+4.2 %)`.
    #[must_use]
    pub fn words(&self) -> String {
        format!("{}: {:.3} -> {:.3} ({:+.1} %)", self.key, self.baseline, self.now, self.change() * 100.0)
    }
    /// Relative change; positive is more.
    #[must_use]
    pub fn change(&self) -> f64 {
        if self.baseline == 0.0 {
            if self.now == 0.0 { 0.0 } else { f64::INFINITY }
        } else {
            self.now / self.baseline - 1.0
        }
    }
}

/// How a scenario stands against its baseline.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Verdict {
    /// Within the tolerance.
    Same,
    /// Faster or smaller by more than the tolerance: the baseline may be renewed.
    Better,
    /// Slower or larger by more than the tolerance, or another answer.
    Worse,
    /// There was no baseline; written if that was asked for.
    New,
    /// The baseline was written anew.
    Updated,
    /// It could not be computed.
    Failed,
}

/// What `sweep` returns; the points themselves are in its files.
#[derive(Clone, Debug, Serialize)]
pub struct SweepResult {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Points of the sweep.
    pub points: u64,
    /// Points that an earlier call had done.
    pub resumed_at: u64,
    /// Points of this call.
    pub evaluated: u64,
    /// Those of this call that are legal and fit into memory.
    pub fitting: u64,
    /// What predicted them.
    pub evaluator: &'static str,
    /// The page, for a summary.
    #[serde(skip)]
    pub page: reports::Document,
    /// Files of the folder.
    pub files: Vec<String>,
}

/// What `diff` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DiffReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Whether nothing differs.
    pub same: bool,
    /// What does.
    #[serde(flatten)]
    pub diff: reports::diff::Diff,
}

/// What `doctor` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct DoctorReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Findings, in the order of looking.
    pub findings: Vec<Finding>,
}

/// One thing that was looked at.
#[derive(Clone, PartialEq, Eq, Debug, Serialize)]
pub struct Finding {
    /// What.
    pub subject: &'static str,
    /// How it stands.
    pub state: FindingState,
    /// In a sentence.
    pub message: String,
}

/// How a finding stands.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum FindingState {
    /// As it should be.
    Good,
    /// It works, but not as well as it could.
    Warning,
    /// Something will not work.
    Bad,
}

/// What `init` returns.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct InitReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// The file written.
    pub path: String,
    /// Parameters of the model.
    pub parameters: u64,
    /// Devices of the cluster.
    pub devices: u64,
    /// The scenario written.
    #[serde(skip)]
    pub scenario: String,
}
