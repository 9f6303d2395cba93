//! What `explain` returns.

use std::collections::BTreeMap;

use ir::SimDuration;
use reports::Document;
use reports::sizing::Interval;
use reports::waterfall::Cause;
use serde::Serialize;

use super::{Header, PlanSummary, PredictionSummary};

/// Where a step goes, and what could be done about it.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ExplainReport {
    /// What it is.
    #[serde(flatten)]
    pub header: Header,
    /// Who decided: `manual` or a policy.
    pub policy: &'static str,
    /// The plan explained.
    pub plan: PlanSummary,
    /// Its prediction in the closed form.
    pub prediction: PredictionSummary,
    /// The step with its 90 % interval, seconds.
    pub step_s: Interval,
    /// Parts of the step; disjoint, they sum up to it.
    pub parts: Vec<ExplainedPart>,
    /// Whether the plan fits into its devices' memory.
    pub fits: bool,
    /// Stages that do not.
    pub misfits: Vec<Misfit>,
    /// Changes that were tried where it does not fit, in the order of what they cost.
    pub changes: Vec<Remedy>,
    /// Of `changes`, the fastest that fits on the devices that are there, else the fastest that fits.
    pub smallest_change: Option<usize>,
    /// What the step depends on.
    pub sensitivity: Vec<Sensitivity>,
    /// Over months, where the scenario has checkpoints: parts of elapsed time, by the closed form. They sum up to 1.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub elapsed_shares: Option<Vec<(&'static str, f64)>>,
    /// On what the numbers rest: name and value.
    pub basis: Vec<(String, String)>,
    /// What a reader must know before trusting them.
    pub warnings: Vec<String>,
    /// The page.
    #[serde(skip)]
    pub document: Document,
}

/// A part of a step.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct ExplainedPart {
    /// What it is put down to.
    pub cause: Cause,
    /// How much of the step it is, seconds.
    pub time_s: f64,
    /// The same as a share of the step.
    pub share: f64,
    /// The step priced again as if the part cost nothing; `null` where that means nothing.
    pub step_without_s: Option<f64>,
    /// By how much the step would shrink, seconds.
    pub gives_back_s: Option<f64>,
    /// What the step was priced as for that.
    pub priced_as: String,
    /// What would shrink it.
    pub advice: String,
    /// `time_s`, exact.
    #[serde(skip)]
    pub time: SimDuration,
}

/// A stage over its device's memory.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Misfit {
    /// The pipeline position.
    pub stage: u32,
    /// Its peak.
    pub needs_gib: f64,
    /// What the device has.
    pub of_gib: f64,
    /// The largest part at the peak.
    pub largest_part: String,
    /// Every part at the peak.
    pub parts_gib: BTreeMap<String, f64>,
    /// The moment of the peak.
    pub moment: String,
}

impl std::fmt::Display for Misfit {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let largest = self.parts_gib.get(&self.largest_part).copied().unwrap_or(0.0);
        write!(
            f,
            "Stage {} needs {:.1} GiB of {:.1} during the {}; its largest part is {} with {largest:.1} GiB.",
            self.stage, self.needs_gib, self.of_gib, self.moment, self.largest_part
        )
    }
}

/// A change that was tried to make a plan fit.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Remedy {
    /// What was changed.
    pub change: String,
    /// Whether it needs other devices: a change of the plan that fits is named before it.
    pub other_devices: bool,
    /// The plan then.
    pub plan: String,
    /// Whether it fits.
    pub fits: bool,
    /// One step of it, seconds; `null` if it is not legal.
    pub step_s: Option<f64>,
    /// `step_s` against the plan as it is, less 1.
    pub slower: Option<f64>,
    /// The largest share of its memory that a device needs.
    pub memory_share: Option<f64>,
    /// Why it does not fit, or is not legal; may be empty.
    pub reason: String,
}

/// The step with one thing changed.
#[derive(Clone, PartialEq, Debug, Serialize)]
pub struct Sensitivity {
    /// What.
    pub what: String,
    /// The step then, seconds; `null` if that is not legal.
    pub step_s: Option<f64>,
    /// Against the step as it is, less 1.
    pub step_change: Option<f64>,
    /// Tokens per second against those as it is, less 1.
    pub tokens_per_second_change: Option<f64>,
    /// Whether it fits then.
    pub fits: bool,
    /// How it was priced, or why it is not legal; may be empty.
    pub note: String,
}

impl ExplainReport {
    /// The answer in a sentence or two: what would help most, or the smallest change that fits.
    #[must_use]
    pub fn verdict(&self) -> String {
        if !self.fits {
            let stages: Vec<String> = self.misfits.iter().map(|misfit| misfit.stage.to_string()).collect();
            let change = self.smallest_change.and_then(|index| self.changes.get(index));
            return match change {
                Some(remedy) => format!(
                    "It does not fit (stage {}). The fastest of the changes that fit is {}: {:.3} s a step ({}).",
                    stages.join(", "),
                    remedy.change,
                    remedy.step_s.unwrap_or(f64::NAN),
                    remedy.plan
                ),
                None => format!(
                    "It does not fit (stage {}), and none of {} changes tried makes it: more devices, or shorter sequences.",
                    stages.join(", "),
                    self.changes.len()
                ),
            };
        }
        let gains = self.parts.iter().filter(|part| part.cause != Cause::Compute);
        let best = gains.filter_map(|part| Some((part, part.gives_back_s?)));
        let best = best.max_by(|a, b| a.1.total_cmp(&b.1)).filter(|(_, back)| *back > 0.0);
        match best {
            Some((part, back)) => format!(
                "Most is to be gained from {}: {:.1} % of the step if it cost nothing; {}.",
                part.cause.name(),
                back / self.step_s.expected * 100.0,
                part.advice
            ),
            None => "Nothing but compute is left to gain from.".to_owned(),
        }
    }
}
