//! What planners make small, and what an answer must keep to.
//!
//! Planners rank predictions by [`Aim::score`] and take those that [`Aim::allows`]; both are functions of a [`Prediction`]
//! alone, whose money and energy its evaluator has from the cost model. Tokens of an iteration are the same for all plans, so
//! that the least per iteration is the least per token.

use ir::{Cluster, DeviceId, Expense, Plan, Prediction, Problem, SimDuration, Workload};

use crate::evaluate::Evaluator;

/// What is made small.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Default)]
pub enum Objective {
    /// Time of an iteration.
    #[default]
    Time,
    /// Money per token.
    Money,
    /// Energy per token.
    Energy,
}

impl Objective {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Time, Self::Money, Self::Energy];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Time => "time",
            Self::Money => "money",
            Self::Energy => "energy",
        }
    }
    const fn best(self) -> &'static str {
        match self {
            Self::Time => "fastest",
            Self::Money => "cheapest",
            Self::Energy => "least energy",
        }
    }
    const fn worse(self) -> &'static str {
        match self {
            Self::Time => "slower",
            Self::Money => "dearer",
            Self::Energy => "more energy",
        }
    }
}

/// How good a prediction is: nanoseconds, dollars or joules of an iteration, the least first; infinite where it is not known.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Score(f64);

impl Score {
    /// Worse than all others.
    pub const WORST: Self = Self(f64::INFINITY);
    /// The number.
    #[must_use]
    pub const fn get(self) -> f64 {
        self.0
    }
    pub(crate) fn of(value: Option<f64>) -> Self {
        value.filter(|value| !value.is_nan()).map_or(Self::WORST, Self)
    }
    /// How many times another.
    #[must_use]
    pub fn over(self, other: Self) -> f64 {
        if self == other { 1.0 } else { self.0 / other.0.max(f64::MIN_POSITIVE) }
    }
}

impl Eq for Score {}
impl PartialOrd for Score {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}
impl Ord for Score {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.0.total_cmp(&other.0)
    }
}

/// What a whole training must keep to.
#[derive(Clone, Copy, PartialEq, Debug, Default)]
pub struct Limits {
    /// Iterations of the training, those that failures and checkpoints cost counted as time: iterations over goodput.
    pub iterations: f64,
    /// Money for it, US dollars.
    pub budget_usd: Option<f64>,
    /// Time for it.
    pub deadline: Option<SimDuration>,
}

/// What is asked for.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Aim {
    /// What is made small.
    pub objective: Objective,
    /// What the whole training must keep to.
    pub limits: Limits,
    /// Devices that no plan may use, in order.
    pub avoid: Vec<DeviceId>,
}

/// The fastest plan on all devices.
pub static FASTEST: Aim = Aim {
    objective: Objective::Time,
    limits: Limits { iterations: 0.0, budget_usd: None, deadline: None },
    avoid: Vec::new(),
};

/// The most units that a score is counted as: of more than eighteen thousand dollars or joules by the billion an iteration.
const MOST_UNITS: f64 = 1.8e19;

/// Whether every stage's peak is within what a plan may take of its device's memory.
pub(crate) fn fits(prediction: &Prediction) -> bool {
    prediction.memory.iter().all(|stage| stage.peak <= stage.capacity)
}

impl Aim {
    /// How good a prediction is.
    #[must_use]
    pub fn score(&self, prediction: &Prediction) -> Score {
        match self.objective {
            // Exact: a shorter iteration than 104 days has fewer nanoseconds than a mantissa counts.
            Objective::Time => Score(prediction.iteration.nanoseconds() as f64),
            Objective::Money => Score::of(prediction.expense.usd),
            Objective::Energy => Score::of(prediction.expense.joules),
        }
    }

    /// Whether a prediction fits into memory and keeps to all limits.
    #[must_use]
    pub fn allows(&self, prediction: &Prediction) -> bool {
        fits(prediction) && self.money(prediction).is_none() && self.time(prediction).is_none()
    }

    /// A score in whole units: nanoseconds, femtodollars or nanojoules. Rounded down, so that a floor stays one.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and kept under the most"
    )]
    pub(crate) fn units(&self, score: Score) -> u64 {
        if score == Score::WORST {
            return u64::MAX;
        }
        let rounded = if self.objective == Objective::Time { 1.0 } else { 1.0 - 1e-12 };
        (score.get() * self.fine() * rounded).min(MOST_UNITS) as u64
    }

    /// The score in whole units that what is no better is not under: rounded up.
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and kept under the most"
    )]
    pub(crate) fn units_of(&self, prediction: &Prediction) -> u64 {
        let score = self.score(prediction);
        if score == Score::WORST { u64::MAX } else { (score.get() * self.fine()).ceil().min(MOST_UNITS) as u64 }
    }

    /// What units are as a score.
    pub(crate) fn of_units(&self, units: u64) -> f64 {
        units as f64 / self.fine()
    }

    /// Units of one of a score.
    const fn fine(&self) -> f64 {
        match self.objective {
            Objective::Time => 1.0,
            Objective::Money => 1e15,
            Objective::Energy => 1e9,
        }
    }

    /// How many times the most that a limit leaves a prediction takes; 1 where it keeps to all of them.
    pub(crate) fn excess(&self, prediction: &Prediction) -> f64 {
        let over =
            |value: Option<f64>, limit: Option<f64>| value.zip(limit).map_or(1.0, |(value, limit)| value / limit);
        let deadline = self.limits.deadline.map(SimDuration::seconds);
        over(self.money(prediction), self.limits.budget_usd).max(over(self.time(prediction), deadline))
    }

    /// A score that no iteration of a plan goes under; `None` if nothing is known.
    pub(crate) fn floor(&self, plan: &Plan, evaluator: &mut dyn Evaluator) -> Option<Score> {
        match self.objective {
            Objective::Time => evaluator.floor(plan).map(|floor| Score(floor.nanoseconds() as f64)),
            Objective::Money => evaluator.least(plan).usd.map(Score),
            Objective::Energy => evaluator.least(plan).joules.map(Score),
        }
    }

    /// What each nanosecond adds to the score of a plan on such a device at least.
    pub(crate) fn rate(&self, device: Expense) -> f64 {
        match self.objective {
            Objective::Time => 1.0,
            Objective::Money => device.usd.unwrap_or(0.0) * 1e-9,
            Objective::Energy => device.joules.unwrap_or(0.0) * 1e-9,
        }
    }

    /// Whether a plan may do better with fewer devices than there are: they cost less, or lie better where some are avoided.
    #[must_use]
    pub fn may_leave_idle(&self) -> bool {
        self.objective != Objective::Time || self.limits.budget_usd.is_some() || !self.avoid.is_empty()
    }

    /// Whether there are limits beside memory.
    pub(crate) const fn is_limited(&self) -> bool {
        self.limits.budget_usd.is_some() || self.limits.deadline.is_some()
    }

    /// "fastest", "cheapest", "least energy".
    pub(crate) const fn best(&self) -> &'static str {
        self.objective.best()
    }

    /// "faster", "cheaper", "of less energy".
    pub(crate) const fn better(&self) -> &'static str {
        match self.objective {
            Objective::Time => "faster",
            Objective::Money => "cheaper",
            Objective::Energy => "of less energy",
        }
    }

    /// "that fit", and what else they do.
    pub(crate) const fn who_fit(&self) -> &'static str {
        if self.is_limited() { "that fit and keep to the constraints" } else { "that fit" }
    }

    /// What is made small of a prediction, with its unit, and the time.
    pub(crate) fn figure(&self, prediction: &Prediction, workload: &Workload) -> String {
        let tokens = workload.tokens_per_iteration() as f64;
        let seconds = prediction.iteration.seconds();
        match (self.objective, prediction.expense) {
            (Objective::Money, Expense { usd: Some(usd), .. }) => {
                format!("${:.4} per million tokens, {seconds:.3} s", usd / tokens * 1e6)
            }
            (Objective::Energy, Expense { joules: Some(joules), .. }) => {
                format!("{:.4} J per token, {seconds:.3} s", joules / tokens)
            }
            (Objective::Time | Objective::Money | Objective::Energy, _) => format!("{seconds:.3} s"),
        }
    }

    /// "12.0 % dearer", of a score that is no better than another.
    pub(crate) fn worse(&self, score: Score, than: Score) -> String {
        format!("{:.1} % {}", (score.over(than) - 1.0) * 100.0, self.objective.worse())
    }

    /// Money of the whole training, where it is over the budget.
    fn money(&self, prediction: &Prediction) -> Option<f64> {
        let budget = self.limits.budget_usd?;
        let usd = prediction.expense.usd.map_or(f64::INFINITY, |usd| usd * self.limits.iterations);
        (usd > budget).then_some(usd)
    }

    /// Seconds of the whole training, where they are over the deadline.
    fn time(&self, prediction: &Prediction) -> Option<f64> {
        let deadline = self.limits.deadline?.seconds();
        let seconds = prediction.iteration.seconds() * self.limits.iterations;
        (seconds > deadline).then_some(seconds)
    }

    /// A device of a plan that is to be avoided.
    #[must_use]
    pub fn avoided(&self, plan: &Plan) -> Option<DeviceId> {
        if self.avoid.is_empty() {
            return None;
        }
        let ranks = 0..u32::try_from(plan.world()).unwrap_or(u32::MAX);
        ranks.map(|rank| plan.device(ir::Rank::new(rank))).find(|device| self.avoid.binary_search(device).is_ok())
    }

    /// Which limits a prediction breaks, and by how much.
    #[must_use]
    pub fn broken(&self, prediction: &Prediction) -> Vec<Problem> {
        let mut misses = Misses::default();
        misses.add(self, None, prediction);
        misses.problems(self, "it")
    }
}

/// The nearest to a limit that plans came, the least first: of all of them, and of those that keep to all else.
#[derive(Clone, PartialEq, Debug, Default)]
struct Nearest {
    any: Vec<(f64, Option<Plan>)>,
    keeping: Vec<(f64, Option<Plan>)>,
    /// Whether some plan kept to it, and to nothing else.
    kept: bool,
}

/// Plans near to a limit that are remembered: what is nearest with equal shares need not be so with unequal ones.
const NEAR: usize = 10;

impl Nearest {
    fn add(&mut self, value: f64, keeps: bool, plan: Option<&Plan>) {
        for list in [Some(&mut self.any), Some(&mut self.keeping).filter(|_| keeps)].into_iter().flatten() {
            insert(list, value, plan);
        }
    }

    fn merge(&mut self, other: &Self) {
        self.kept |= other.kept;
        for (list, others) in [(&mut self.any, &other.any), (&mut self.keeping, &other.keeping)] {
            others.iter().for_each(|(value, plan)| insert(list, *value, plan.as_ref()));
        }
    }
}

fn insert(list: &mut Vec<(f64, Option<Plan>)>, value: f64, plan: Option<&Plan>) {
    let at = list.partition_point(|(known, _)| *known <= value);
    if at < NEAR && !list.iter().any(|(_, known)| known.as_ref() == plan && plan.is_some()) {
        list.insert(at, (value, plan.cloned()));
        list.truncate(NEAR);
    }
}

/// Plans that fit into memory and break a limit.
#[derive(Clone, PartialEq, Debug, Default)]
pub(crate) struct Misses {
    money: Nearest,
    time: Nearest,
}

impl Misses {
    /// Notes a prediction that fits into memory and is not allowed.
    pub(crate) fn note(&mut self, aim: &Aim, plan: &Plan, prediction: &Prediction) {
        self.add(aim, Some(plan), prediction);
    }

    /// Notes what another search noted.
    pub(crate) fn merge(&mut self, other: &Self) {
        self.money.merge(&other.money);
        self.time.merge(&other.time);
    }

    /// The plans that came nearest to each limit.
    pub(crate) fn plans(&self) -> Vec<Plan> {
        let all = [&self.money, &self.time].into_iter().flat_map(|nearest| nearest.keeping.iter().chain(&nearest.any));
        let mut plans = Vec::new();
        for plan in all.filter_map(|(_, plan)| plan.as_ref()) {
            if !plans.contains(plan) {
                plans.push(plan.clone());
            }
        }
        plans
    }

    fn add(&mut self, aim: &Aim, plan: Option<&Plan>, prediction: &Prediction) {
        let (money, time) = (aim.money(prediction), aim.time(prediction));
        self.money.kept |= money.is_none();
        self.time.kept |= time.is_none();
        if let Some(usd) = money {
            self.money.add(usd, time.is_none(), plan);
        }
        if let Some(seconds) = time {
            self.time.add(seconds, money.is_none(), plan);
        }
    }

    /// Each limit that stands in the way, with the nearest value that could be kept. `whose` plans these are: "the cheapest
    /// plan", or "it".
    pub(crate) fn problems(&self, aim: &Aim, whose: &str) -> Vec<Problem> {
        let mut problems = Vec::new();
        if let Some(budget) = aim.limits.budget_usd {
            let who = if whose == "it" { whose.to_owned() } else { format!("the cheapest {whose}") };
            problems.extend(self.money.problem("constraints.budget_usd", budget, &who, dollars, |usd| {
                format!("budget_usd = {:.0}", usd.ceil())
            }));
        }
        if let Some(deadline) = aim.limits.deadline {
            let who = if whose == "it" { whose.to_owned() } else { format!("the fastest {whose}") };
            problems.extend(self.time.problem("constraints.deadline", deadline.seconds(), &who, days, |seconds| {
                format!("deadline = \"{}\"", rounded_up(seconds))
            }));
        }
        problems
    }
}

impl Nearest {
    fn problem(
        &self,
        subject: &str,
        limit: f64,
        who: &str,
        show: impl Fn(f64) -> String,
        write: impl Fn(f64) -> String,
    ) -> Option<Problem> {
        let more = |value: f64| match value / limit {
            times if times < 2.0 => format!("{:.1} % more", (times - 1.0) * 100.0),
            times => format!("{times:.1} times as much"),
        };
        let (value, keeps) = match (self.keeping.first(), self.any.first().filter(|_| !self.kept)) {
            (Some((value, Some(plan))), _) => {
                (*value, format!(" that keeps to all else, {},", crate::policies::words(plan)))
            }
            (Some((value, None)), _) | (None, Some((value, _))) => (*value, String::new()),
            (None, None) => return None,
        };
        let message = format!("{} is not enough: {who}{keeps} takes {}, {}", show(limit), show(value), more(value));
        Some(Problem::new(subject, message).hint(write(value)))
    }
}

fn dollars(usd: f64) -> String {
    if usd >= 1000.0 { format!("${usd:.0}") } else { format!("${usd:.2}") }
}

fn days(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 86_400.0 => format!("{:.2} days", s / 86_400.0),
        s if s >= 7200.0 => format!("{:.2} h", s / 3600.0),
        s => format!("{s:.1} s"),
    }
}

/// A duration that is no less, as scenarios write it.
fn rounded_up(seconds: f64) -> String {
    match seconds {
        s if s >= 2.0 * 86_400.0 => format!("{}d", (s / 864.0).ceil() / 100.0),
        s if s >= 7200.0 => format!("{}h", (s / 36.0).ceil() / 100.0),
        s => format!("{:.0}s", s.ceil()),
    }
}

/// Devices that plans are laid on, in the order of ranks.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Pool {
    /// `None`: all devices of the cluster as they come.
    devices: Option<Vec<DeviceId>>,
    count: u64,
}

impl Pool {
    pub(crate) fn of(devices: Vec<DeviceId>) -> Self {
        Self { count: devices.len() as u64, devices: Some(devices) }
    }

    /// How many there are.
    pub(crate) const fn count(&self) -> u64 {
        self.count
    }

    /// Where the ranks of a plan are, empty where ranks and devices have the same numbers.
    pub(crate) fn placement(&self, ranks: u64) -> Vec<DeviceId> {
        let Some(devices) = &self.devices else { return Vec::new() };
        let ranks = usize::try_from(ranks).unwrap_or(usize::MAX).min(devices.len());
        let placed = &devices[..ranks];
        let plain = (0..).zip(placed).all(|(rank, device)| device.raw() == rank);
        if plain { Vec::new() } else { placed.to_vec() }
    }
}

/// Devices of each node that may be used, whole nodes first: device, node kind, and how many of its node there are.
pub(crate) fn usable(cluster: &Cluster, avoid: &[DeviceId]) -> Vec<(DeviceId, ir::NodeKindId, usize)> {
    let (mut whole, mut parts, mut next) = (Vec::new(), Vec::new(), 0u32);
    for group in &cluster.groups {
        let size =
            u32::try_from(cluster.node_kind(group.kind).devices.len()).expect("a node of fewer devices than u32");
        for _ in 0..group.count {
            let left = (next..next + size).map(DeviceId::new).filter(|device| avoid.binary_search(device).is_err());
            let left = left.collect::<Vec<_>>();
            let to = if left.len() == size as usize { &mut whole } else { &mut parts };
            to.extend(left.iter().map(|device| (*device, group.kind, left.len())));
            next += size;
        }
    }
    whole.append(&mut parts);
    whole
}

/// What plans may be laid on: all devices that may be used, and where fewer may do, those of each kind of node alone.
pub(crate) fn pools(cluster: &Cluster, aim: &Aim) -> Vec<Pool> {
    let several = cluster.groups.windows(2).any(|pair| pair[0].kind != pair[1].kind);
    let apart = several && aim.may_leave_idle();
    if aim.avoid.is_empty() && !apart {
        return vec![Pool { devices: None, count: cluster.devices() }];
    }
    let usable = usable(cluster, &aim.avoid);
    let mut pools = vec![Pool::of(usable.iter().map(|(device, ..)| *device).collect())];
    let mut kinds = usable.iter().map(|(_, kind, _)| *kind).collect::<Vec<_>>();
    kinds.sort_unstable();
    kinds.dedup();
    if apart && kinds.len() > 1 {
        for kind in kinds {
            pools.push(Pool::of(usable.iter().filter(|(_, of, _)| *of == kind).map(|(device, ..)| *device).collect()));
        }
    }
    pools
}
