//! Failures drawn from rates and a seed.

use ir::{SimDuration, SimTime};
use rand::{RngExt as _, SeedableRng as _};
use rand_chacha::ChaCha8Rng;

use super::Failure;

/// How long a node is in repair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RepairTime {
    /// Always so long.
    Fixed(SimDuration),
    /// Log-normal, by its median and mean: most are short and a few take weeks. `sigma^2 = 2 ln(mean / median)`.
    LogNormal {
        /// Half of the repairs are shorter.
        median: SimDuration,
        /// The mean, not below the median.
        mean: SimDuration,
    },
}

impl RepairTime {
    /// The mean.
    #[must_use]
    pub const fn mean(self) -> SimDuration {
        match self {
            Self::Fixed(time) => time,
            Self::LogNormal { mean, .. } => mean,
        }
    }

    fn draw(self, rng: &mut ChaCha8Rng) -> SimDuration {
        match self {
            Self::Fixed(time) => time,
            Self::LogNormal { median, mean } => {
                let sigma = libm::sqrt(2.0 * libm::log((mean.seconds() / median.seconds()).max(1.0)));
                // Box and Muller 1958.
                let radius = libm::sqrt(-2.0 * libm::log(1.0 - rng.random::<f64>()));
                let normal = radius * libm::cos(std::f64::consts::TAU * rng.random::<f64>());
                let seconds = median.seconds() * libm::exp(sigma * normal);
                SimDuration::from_seconds(seconds).unwrap_or(SimDuration::from_nanoseconds(u64::MAX))
            }
        }
    }
}

/// Failures of all nodes in use as a Poisson process over elapsed time.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct FailureProcess {
    /// Failures for each second; not negative.
    pub per_second: f64,
    /// Share of failures that only the watchdog notices.
    pub hang_share: f64,
    /// Share of failures after which the node is in repair, and for how long.
    pub repair: Option<(f64, RepairTime)>,
}

impl FailureProcess {
    /// The failures of one run, in order. Runs of one seed are streams of their own: the same for whatever the run does, so
    /// that two ways to run are compared under the same failures.
    pub fn draw(&self, seed: u64, run: u64) -> impl Iterator<Item = Failure> + use<> {
        let process = *self;
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        rng.set_stream(run);
        let mut now = 0.0;
        std::iter::from_fn(move || {
            // The same draws whatever the shares are, so that a share that changes moves nothing else.
            let [gap, hangs, breaks] = [(); 3].map(|()| rng.random::<f64>());
            now -= libm::log(1.0 - gap) / process.per_second;
            let at = SimTime::ZERO + SimDuration::from_seconds(now)?;
            let repair = process.repair.map(|(share, time)| (share, time.draw(&mut rng)));
            let repair = repair.filter(|(share, _)| breaks < *share).map(|(_, time)| time);
            Some(Failure { at, hangs: hangs < process.hang_share, repair })
        })
    }
}
