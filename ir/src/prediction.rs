//! What an evaluator says of a plan.

use crate::{Breakdown, Bytes, DeviceId, Plan, Problem, SimDuration, StageId};

/// Peak memory of one pipeline position, by part.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct StageMemory {
    /// The position.
    pub stage: StageId,
    /// A device that holds it (the one with the least memory).
    pub device: DeviceId,
    /// What a plan may take of that device: its memory, less what is to be left free.
    pub capacity: Bytes,
    /// Peak of the sum.
    pub peak: Bytes,
    /// Each part at the moment of the peak: name and bytes, largest first.
    pub parts: Vec<(&'static str, Bytes)>,
    /// The moment of the peak, in words: the instruction that reaches it.
    pub moment: String,
}

/// Time and memory of one iteration of a plan, and on what the figures rest.
#[derive(Clone, PartialEq, Debug)]
pub struct Prediction {
    /// One iteration, start of the first instruction to the end of the last.
    pub iteration: SimDuration,
    /// Where nine of ten measured iterations should lie; `None` where the cost model does not know how far it is off.
    pub interval: Option<(SimDuration, SimDuration)>,
    /// Where the iteration's time goes; adds up to it.
    pub breakdown: Breakdown,
    /// The pipeline's bubble rate: 1 - work / longest stage span, optimizer excluded; `None` where not computed.
    pub bubble_rate: Option<f64>,
    /// Per pipeline position.
    pub memory: Vec<StageMemory>,
    /// Share of the busy time that rests on measured, interpolated, analytic and assumed durations.
    pub basis: BasisShare,
    /// What of it hangs on constants that differ from one installation to the next.
    pub at_risk: AtRisk,
    /// Money and energy.
    pub expense: Expense,
}

/// Money and energy of an iteration; `None` where a device that is paid has no price, or no power limit.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Expense {
    /// Rent, US dollars.
    pub usd: Option<f64>,
    /// Energy, joules.
    pub joules: Option<f64>,
}

/// What of an iteration hangs on constants that no device's data sheet tells: they belong to hosts and to software, and
/// differ from one installation to the next. Exposed exchanges, which hang on links, are in the breakdown.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct AtRisk {
    /// How much longer the passes would take if the host launched kernels as slowly as the cost model deems possible.
    pub slow_launches: SimDuration,
    /// Of the passes, time in which the host waits for the counts of tokens of experts.
    pub expert_waits: SimDuration,
}

/// On what durations rest, as shares of their sum.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct BasisShare {
    /// Measured for just this.
    pub measured: f64,
    /// Between measured points, or from a fit of them.
    pub interpolated: f64,
    /// From a formula over known constants.
    pub analytic: f64,
    /// From constants that nothing was measured for.
    pub assumed: f64,
}

/// "No", with all reasons and the nearest legal choices.
#[derive(Clone, PartialEq, Debug)]
pub struct Infeasible {
    /// Every reason.
    pub reasons: Vec<Problem>,
    /// Legal plans nearby, nearest first; may be empty.
    pub nearest: Vec<Plan>,
}

/// What an evaluator answers.
pub type Evaluation = Result<Prediction, Infeasible>;

/// A plan with its prediction and why it stands where it does.
#[derive(Clone, PartialEq, Debug)]
pub struct Candidate {
    /// The plan.
    pub plan: Plan,
    /// Its evaluation.
    pub evaluation: Evaluation,
    /// Why it was chosen, or why it lost, in sentences.
    pub reasons: Vec<String>,
}
