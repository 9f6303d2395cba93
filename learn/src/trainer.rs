//! The loop: draw jobs, search each with the network as it is, keep what the searches found, and learn from what was kept
//! (Silver et al. 2018, for plans in place of games).
//!
//! Everything follows from the seed: jobs and noise from the seed and a search's number, batches from the seed and a round's
//! number. So a training that was stopped after any round and goes on gives the bits of one that never stopped.

use std::sync::Arc;

use ir::Problem;
use rand::{RngExt, SeedableRng};
use rand_chacha::ChaCha8Rng;
use rayon::prelude::*;
use sched::Guide;
use sched::learned::{Network, Origin, Part, Weights, Widths, features};
use serde::{Deserialize, Serialize};

use crate::adam::Adam;
use crate::families::Families;
use crate::gradient::{Loss, Sample, backward};
use crate::lessons::{Lesson, lesson};
use crate::score::{Ratio, Trial};

/// What a training is to do.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Settings {
    /// The seed of all draws.
    pub seed: u64,
    /// Searches in all.
    pub searches: u64,
    /// Evaluations of each.
    pub evaluations: u64,
}

/// Searches between two lots of learning. They are independent and share the machine's cores.
const SEARCHES_IN_A_ROUND: u64 = 16;
/// Steps of the optimizer after each round.
const STEPS_IN_A_ROUND: u64 = 48;
/// Samples of a step.
const BATCH: usize = 64;
/// Samples that are kept; the oldest go first.
const KEPT: usize = 24_000;
/// The learning rate at the beginning; at the end of the searches it is a tenth of it.
const RATE: f64 = 1.5e-3;
/// Units of the network's layers.
const UNITS: [usize; 3] = [64, 32, 16];

/// One round, for the learning curve.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Round {
    /// Searches until its end.
    pub searches: u64,
    /// Mean divergence of the network's shares from those taught, over the round's steps, in nats.
    pub policy_loss: f64,
    /// Mean loss of values.
    pub value_loss: f64,
    /// Mean logarithm of the best time found over the least work there can be, over the round's searches that found a plan.
    pub over_ideal: f64,
}

/// What the network of a moment finds on jobs that it is not trained on, beside rules alone with as many evaluations.
#[derive(Clone, Copy, PartialEq, Debug, Serialize, Deserialize)]
pub struct Point {
    /// Searches until then.
    pub searches: u64,
    /// Its times over those of rules, over the jobs on which both found a plan.
    pub ratio: Option<Ratio>,
}

/// A training between two rounds: what a checkpoint holds.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
pub struct Trainer {
    settings: Settings,
    nodes: Vec<String>,
    models: Vec<String>,
    parameters: Vec<f64>,
    adam: Adam,
    kept: Vec<Sample>,
    /// Where the next sample goes once all places are taken.
    oldest: u64,
    searches: u64,
    evaluations: u64,
    rounds: Vec<Round>,
    curve: Vec<Point>,
}

/// The widths of all networks that are trained here.
#[must_use]
pub const fn widths() -> Widths {
    Widths { state: features::STATE, choice: features::CHOICE, trunk: UNITS[0], rating: UNITS[1], value: UNITS[2] }
}

/// A generator of its own for each use.
fn generator(seed: u64, purpose: u64, number: u64) -> ChaCha8Rng {
    let mut rng = ChaCha8Rng::seed_from_u64(seed);
    rng.set_stream(number.wrapping_mul(8) + purpose);
    rng
}

/// Initial parameters: uniform, as wide as keeps the size of what passes through rectified layers (He et al. 2015); biases
/// and the last layers at 0, so that an untrained network prefers nothing.
fn initial(seed: u64) -> Vec<f64> {
    let widths = widths();
    let mut rng = generator(seed, 0, 0);
    let mut parameters = vec![0.0; widths.parameters()];
    for part in [Part::Trunk, Part::RatingOfState, Part::RatingOfChoice, Part::Value] {
        let bound = (3.0 / widths.of(part).0 as f64).sqrt();
        parameters[widths.range(part)].iter_mut().for_each(|parameter| *parameter = rng.random_range(-bound..bound));
    }
    parameters
}

impl Trainer {
    /// Before the first round.
    #[must_use]
    pub fn new(settings: Settings, families: &Families) -> Self {
        let parameters = initial(settings.seed);
        Self {
            adam: Adam::new(parameters.len()),
            parameters,
            settings,
            nodes: families.node_names(),
            models: families.model_names(),
            kept: Vec::new(),
            oldest: 0,
            searches: 0,
            evaluations: 0,
            rounds: Vec::new(),
            curve: Vec::new(),
        }
    }
    /// What it is to do.
    #[must_use]
    pub const fn settings(&self) -> &Settings {
        &self.settings
    }
    /// The same with another number of searches in all: to go on beyond what was asked first.
    #[must_use]
    pub fn until(mut self, searches: u64) -> Self {
        self.settings.searches = searches;
        self
    }
    /// Searches so far.
    #[must_use]
    pub const fn searches(&self) -> u64 {
        self.searches
    }
    /// Whether all searches are done.
    #[must_use]
    pub const fn is_done(&self) -> bool {
        self.searches >= self.settings.searches
    }
    /// The rounds so far.
    #[must_use]
    pub fn rounds(&self) -> &[Round] {
        &self.rounds
    }
    /// The network as it is.
    #[must_use]
    pub fn network(&self) -> Network {
        Network::new(widths(), self.parameters.clone())
    }
    /// What was learned so far.
    #[must_use]
    pub fn weights(&self) -> Weights {
        let origin = Origin {
            seed: self.settings.seed,
            searches: self.searches,
            evaluations: self.evaluations,
            nodes: self.nodes.clone(),
            models: self.models.clone(),
        };
        Weights::new(self.network(), origin)
    }

    /// What was found on other jobs so far.
    #[must_use]
    pub fn curve(&self) -> &[Point] {
        &self.curve
    }
    /// Adds what the network as it is finds on other jobs. `None`, and nothing is added, if `stop` says so.
    pub fn judge(&mut self, trial: &Trial, stop: &(dyn Fn() -> bool + Sync)) -> Option<Point> {
        let guide = Guide::Learned(Arc::new(self.weights()));
        let ratio = Ratio::of(&trial.pairs(&guide, stop)?);
        let point = Point { searches: self.searches, ratio };
        self.curve.push(point);
        Some(point)
    }

    /// Draws, searches and learns once. `None`, and nothing has changed, if `stop` says so before all searches have ended.
    pub fn round(&mut self, families: &Families, stop: &(dyn Fn() -> bool + Sync)) -> Option<Round> {
        let weights = Arc::new(self.weights());
        let left = self.settings.searches.saturating_sub(self.searches);
        let numbers = self.searches..self.searches + left.min(SEARCHES_IN_A_ROUND);
        let (seed, evaluations) = (self.settings.seed, self.settings.evaluations);
        let search = |number: u64| {
            if stop() {
                return None;
            }
            let mut rng = generator(seed, 1, number);
            let drawn = families.draw(&mut rng);
            Some(lesson(&drawn, &weights, evaluations, &mut rng))
        };
        let lessons: Vec<Option<Lesson>> = numbers.clone().into_par_iter().map(search).collect();
        let lessons: Vec<Lesson> = lessons.into_iter().collect::<Option<_>>()?;
        self.searches = numbers.end;
        let (mut over, mut found) = (0.0, 0u32);
        for lesson in lessons {
            self.evaluations += lesson.evaluations;
            if let Some(over_ideal) = lesson.over_ideal {
                over += over_ideal;
                found += 1;
            }
            lesson.samples.into_iter().for_each(|sample| self.keep(sample));
        }
        let loss = self.learn();
        let over_ideal = over / f64::from(found.max(1));
        let round = Round { searches: self.searches, policy_loss: loss.policy, value_loss: loss.value, over_ideal };
        self.rounds.push(round);
        Some(round)
    }

    /// Keeps a sample, in place of the oldest if there is no room.
    pub fn keep(&mut self, sample: Sample) {
        if self.kept.len() < KEPT {
            self.kept.push(sample);
        } else {
            let at = usize::try_from(self.oldest % KEPT as u64).expect("below the number of places");
            self.kept[at] = sample;
            self.oldest += 1;
        }
    }

    /// The steps of a round; the mean loss over them.
    pub fn learn(&mut self) -> Loss {
        let mut loss = Loss::default();
        if self.kept.is_empty() {
            return loss;
        }
        let mut rng = generator(self.settings.seed, 2, self.rounds.len() as u64);
        let done = self.searches as f64 / self.settings.searches.max(1) as f64;
        let rate = RATE * (0.1 + 0.9 * 0.5 * (1.0 + libm::cos(std::f64::consts::PI * done.min(1.0))));
        let mut network = self.network();
        let scale = 1.0 / BATCH as f64;
        for _ in 0..STEPS_IN_A_ROUND {
            let mut gradient = vec![0.0; self.parameters.len()];
            for _ in 0..BATCH {
                let sample = &self.kept[rng.random_range(0..self.kept.len())];
                let of_sample = backward(&network, sample, scale, &mut gradient);
                loss.policy += of_sample.policy;
                loss.value += of_sample.value;
            }
            self.adam.step(network.parameters_mut(), &gradient, rate);
        }
        self.parameters = network.parameters().to_vec();
        let count = (STEPS_IN_A_ROUND * BATCH as u64) as f64;
        Loss { policy: loss.policy / count, value: loss.value / count }
    }

    /// As the bytes of a checkpoint: all of its state, to the bit.
    ///
    /// # Panics
    /// If the state cannot be written, which nothing in it prevents.
    #[must_use]
    pub fn checkpoint(&self) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(features::VERSION.to_le_bytes());
        bytes.extend(postcard::to_allocvec(self).expect("numbers and names"));
        let checksum = crc32fast::hash(&bytes);
        bytes.extend(checksum.to_le_bytes());
        bytes
    }

    /// Reads a checkpoint.
    ///
    /// # Errors
    /// What is wrong with it and what to do: no checkpoint, of another version, or damaged.
    pub fn resumed(bytes: &[u8]) -> Result<Self, Problem> {
        let fail = |message: &str, hint: &str| Err(Problem::new("checkpoint", message).hint(hint));
        let again = "start anew without --resume, or with a checkpoint that is whole";
        let Some(rest) = bytes.strip_prefix(MAGIC) else {
            return fail(
                "is no checkpoint of a training of policies",
                "name the file that `train-policy` wrote beside its weights",
            );
        };
        let Some((body, checksum)) = bytes.split_last_chunk::<4>() else { return fail("is cut off", again) };
        if crc32fast::hash(body) != u32::from_le_bytes(*checksum) {
            return fail("is damaged: its checksum does not hold", again);
        }
        let Some((version, rest)) = rest.split_first_chunk::<4>() else { return fail("is cut off", again) };
        if u32::from_le_bytes(*version) != features::VERSION {
            return fail("is of another version of the features than this program's", "start anew without --resume");
        }
        let read = postcard::from_bytes::<Self>(&rest[..rest.len() - checksum.len()]);
        match read {
            Ok(trainer) if trainer.is_sound() => Ok(trainer),
            Ok(_) | Err(_) => fail("holds no training that this program can go on with", again),
        }
    }

    /// Whether all sizes are those of this program.
    fn is_sound(&self) -> bool {
        let widths = widths();
        let right = |sample: &Sample| {
            sample.state.len() == widths.state
                && sample.choices.iter().all(|choice| choice.len() == widths.choice)
                && sample.rules.len() == sample.choices.len()
                && (sample.shares.is_empty() || sample.shares.len() == sample.choices.len())
        };
        self.parameters.len() == widths.parameters()
            && self.adam.parameters() == widths.parameters()
            && self.kept.len() <= KEPT
            && self.parameters.iter().all(|parameter| parameter.is_finite())
            && self.kept.iter().all(right)
    }
}

/// The first bytes of a checkpoint.
const MAGIC: &[u8] = b"trainyard training 1\n";
