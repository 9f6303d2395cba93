//! `train-policy`: a network for the policy `learned`, trained in simulation and scored on what it has not seen.

mod page;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

use ir::Problem;
use learn::{Drawn, Families, Pair, Ratio, Searched, Settings, Trainer, Trial, searched};
use rayon::prelude::*;
use sched::Guide;
use sched::learned::Weights;

use crate::catalog::families;
use crate::results::{CurveRow, Header, RoundRow, ScoreRow, TrainPolicyReport};
use crate::{Context, Error, output};

/// What `train-policy` is asked.
#[derive(Clone, Debug)]
pub struct TrainPolicyRequest<'a> {
    /// The file of weights.
    pub weights: &'a Path,
    /// The seed of all draws.
    pub seed: u64,
    /// Searches to learn from.
    pub searches: u64,
    /// Evaluations of each.
    pub evaluations: u64,
    /// Whether a training that was stopped goes on.
    pub resume: bool,
    /// Whether the weights that are there are scored, and nothing is trained.
    pub score_only: bool,
    /// Jobs that the weights are scored on.
    pub jobs: u64,
}

/// Evaluations with which policies are held against each other.
const BUDGETS: [u64; 3] = [30, 100, 300];
/// Seeds of searches for each job.
const SEEDS: u64 = 1;
/// The learning curve: jobs, evaluations of each, and how often.
const CURVE: (u64, u64, u64) = (16, 50, 4);
/// Seeds of the jobs of curve and score, of which no search of a training draws.
const CURVE_SEED: u64 = 1001;
const SCORE_SEED: u64 = 2002;

/// Trains a network on jobs drawn from the taught families of the catalog, writes its weights, and scores them beside `mcts`
/// on jobs drawn from the families that are held out. A training that is stopped leaves the weights as they are then, and a
/// checkpoint beside them from which it goes on to the same bits.
///
/// # Errors
/// [`Error::Input`] if the checkpoint or the weights are damaged or of another training; [`Error::Files`];
/// [`Error::Interrupted`].
pub fn train_policy(request: &TrainPolicyRequest<'_>, context: &Context<'_>) -> Result<TrainPolicyReport, Error> {
    let (taught, held_out) = families();
    let (weights, trainer, resumed_at) = if request.score_only {
        (read(request.weights)?, None, 0)
    } else {
        output::probe(request.weights)?;
        let trainer = begin(request, &taught)?;
        let begun = trainer.searches();
        let trainer = train(trainer, request, (&taught, &held_out), context)?;
        (trainer.weights(), Some(trainer), begun)
    };
    let scores = score(&Arc::new(weights.clone()), (&held_out, request.jobs), context)?;
    let (rounds, curve) = trainer.as_ref().map_or((Vec::new(), Vec::new()), told);
    let mut report = TrainPolicyReport {
        header: Header::new("train-policy", ""),
        weights: request.weights.display().to_string(),
        seed: weights.origin.seed,
        searches: weights.origin.searches,
        evaluations: weights.origin.evaluations,
        resumed_at,
        parameters: weights.network().parameters().len(),
        taught_nodes: weights.origin.nodes.clone(),
        taught_models: weights.origin.models.clone(),
        rounds,
        curve,
        scores,
        page: page::empty(),
    };
    report.page = page::page(&report, &held_out, request);
    Ok(report)
}

/// The file of a checkpoint beside its weights.
fn checkpoint_of(weights: &Path) -> PathBuf {
    let mut name = weights.as_os_str().to_owned();
    name.push(".checkpoint");
    PathBuf::from(name)
}

fn read(path: &Path) -> Result<Weights, Error> {
    let text = std::fs::read_to_string(path).map_err(|error| Error::files(path, format!("cannot be read: {error}")))?;
    let file = path.display().to_string();
    Weights::parse(&text, &file).map_err(|problems| {
        let mut sources = crate::source::Sources::default();
        sources.add(file, text);
        Error::Input(crate::InputError { problems, sources })
    })
}

/// A training from its beginning, or from its checkpoint.
fn begin(request: &TrainPolicyRequest<'_>, taught: &Families) -> Result<Trainer, Error> {
    let settings = Settings { seed: request.seed, searches: request.searches, evaluations: request.evaluations };
    if !request.resume {
        return Ok(Trainer::new(settings, taught));
    }
    let path = checkpoint_of(request.weights);
    let bytes = std::fs::read(&path).map_err(|error| Error::files(&path, format!("cannot be read: {error}")))?;
    let trainer = Trainer::resumed(&bytes).map_err(|mut problem| {
        problem.subject = path.display().to_string();
        Error::problem(problem)
    })?;
    let begun = trainer.settings();
    let mut problems = Vec::new();
    for (key, was, is) in [("seed", begun.seed, request.seed), ("evaluations", begun.evaluations, request.evaluations)]
    {
        if was != is {
            let message = format!("the training of {} has {key} {was}, and {is} is asked for", path.display());
            problems.push(
                Problem::new(format!("--{key}"), message)
                    .hint(format!("--{key} {was}, or start anew without --resume")),
            );
        }
    }
    if problems.is_empty() { Ok(trainer.until(request.searches)) } else { Err(Error::input(problems)) }
}

/// Goes on round by round; what was learned is kept whatever ends it.
fn train(
    mut trainer: Trainer,
    request: &TrainPolicyRequest<'_>,
    (taught, held_out): (&Families, &Families),
    context: &Context<'_>,
) -> Result<Trainer, Error> {
    let interrupt = Arc::clone(&context.interrupt);
    let stop = move || interrupt.load(Ordering::Relaxed);
    let total = request.searches;
    context.step("train-policy", trainer.searches(), total, "what rules find on other jobs")?;
    let (jobs, budget, points) = CURVE;
    let trial = Trial::new(learn::jobs(held_out, CURVE_SEED, jobs), budget, &stop).ok_or(Error::Interrupted)?;
    let between = total.div_ceil(points).max(1);
    loop {
        let due = trainer.curve().last().is_none_or(|last| {
            trainer.searches() / between > last.searches / between
                || (trainer.is_done() && last.searches < trainer.searches())
        });
        let judged = !due || trainer.judge(&trial, &stop).is_some();
        let went_on = judged && (trainer.is_done() || trainer.round(taught, &stop).is_some());
        let note = trainer.rounds().last().map_or_else(String::new, |round| {
            format!("loss {:.3}, times {:.3} of rules'", round.policy_loss, last_ratio(&trainer))
        });
        let told = context.step("train-policy", trainer.searches(), total, note);
        let stopped = !went_on || told.is_err();
        let done = trainer.is_done() && trainer.curve().last().is_some_and(|last| last.searches == trainer.searches());
        // After each round: whatever ends the program, no more than one is lost.
        output::write(&checkpoint_of(request.weights), &trainer.checkpoint())?;
        output::write(request.weights, trainer.weights().text().as_bytes())?;
        if stopped {
            return Err(Error::Interrupted);
        }
        if done {
            return Ok(trainer);
        }
    }
}

fn last_ratio(trainer: &Trainer) -> f64 {
    trainer.curve().last().and_then(|point| point.ratio).map_or(1.0, |ratio| ratio.mean)
}

/// Learning curve and losses as rows.
fn told(trainer: &Trainer) -> (Vec<RoundRow>, Vec<CurveRow>) {
    let round = |round: &learn::Round| RoundRow {
        searches: round.searches,
        policy_loss: round.policy_loss,
        value_loss: round.value_loss,
        log2_over_floor: round.over_ideal,
    };
    let point = |point: &learn::Point| CurveRow {
        searches: point.searches,
        evaluations: CURVE.1,
        jobs: CURVE.0,
        time_ratio: point.ratio.map(|ratio| ratio.mean),
        low: point.ratio.map(|ratio| ratio.low),
        high: point.ratio.map(|ratio| ratio.high),
    };
    (trainer.rounds().iter().map(round).collect(), trainer.curve().iter().map(point).collect())
}

/// Both policies on jobs that are held out, with every budget.
fn score(
    weights: &Arc<Weights>,
    (held_out, count): (&Families, u64),
    context: &Context<'_>,
) -> Result<Vec<ScoreRow>, Error> {
    let jobs = learn::jobs(held_out, SCORE_SEED, count);
    let guides = [Guide::Learned(Arc::clone(weights)), Guide::Rules];
    let mut found: Vec<Vec<[Pair; 2]>> = Vec::with_capacity(jobs.len());
    for some in jobs.chunks(rayon::current_num_threads().max(1)) {
        context.step("score", found.len() as u64, count, "")?;
        found.extend(some.par_iter().map(|job| both(job, &guides)).collect::<Vec<_>>());
    }
    let rows = BUDGETS.iter().enumerate().map(|(number, budget)| {
        let of = |which: usize| -> Vec<Vec<Pair>> {
            let of_budget =
                |job: &Vec<[Pair; 2]>| job.iter().skip(number).step_by(BUDGETS.len()).map(|pair| pair[which]).collect();
            found.iter().map(of_budget).collect()
        };
        row(*budget, (count, SEEDS), Ratio::of(&of(0)), Ratio::of(&of(1)))
    });
    Ok(rows.collect())
}

/// Estimated and simulated times of a job's searches: one pair of pairs for each budget, seed by seed.
fn both(job: &Drawn, guides: &[Guide; 2]) -> Vec<[Pair; 2]> {
    let search = |seed: u64| {
        let [scored, against] = guides.each_ref().map(|guide| searched(job, guide, (seed, &BUDGETS), true));
        let pair = |(scored, against): (&Option<Searched>, &Option<Searched>)| {
            let of = |get: fn(&Searched) -> Option<f64>| Pair {
                scored: scored.as_ref().and_then(get),
                against: against.as_ref().and_then(get),
            };
            [of(|found| Some(found.estimated)), of(|found| found.simulated)]
        };
        scored.iter().zip(&against).map(pair).collect::<Vec<_>>()
    };
    (0..SEEDS).flat_map(search).collect()
}

fn row(evaluations: u64, (jobs, seeds): (u64, u64), estimated: Option<Ratio>, simulated: Option<Ratio>) -> ScoreRow {
    let of = |ratio: Option<Ratio>, get: fn(&Ratio) -> f64| ratio.as_ref().map(get);
    let count = |get: fn(&Ratio) -> u32| estimated.as_ref().map_or(0, get);
    ScoreRow {
        evaluations,
        jobs,
        seeds,
        time_ratio: of(estimated, |ratio| ratio.mean),
        low: of(estimated, |ratio| ratio.low),
        high: of(estimated, |ratio| ratio.high),
        simulated_ratio: of(simulated, |ratio| ratio.mean),
        simulated_low: of(simulated, |ratio| ratio.low),
        simulated_high: of(simulated, |ratio| ratio.high),
        both: count(|ratio| ratio.both),
        faster: count(|ratio| ratio.faster),
        slower: count(|ratio| ratio.slower),
        only_learned: count(|ratio| ratio.only_scored),
        only_mcts: count(|ratio| ratio.only_against),
        verdict: estimated.map_or("no plan found", |ratio| ratio.verdict()),
    }
}
