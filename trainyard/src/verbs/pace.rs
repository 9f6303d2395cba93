//! How training goes, in words for whoever watches: the loss, tokens per second, the share of what the devices reach, and
//! when it ends.

use std::collections::VecDeque;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use ir::Plan;

use crate::facts;
use crate::job::Job;

/// Iterations that the pace is the mean of: enough to be steady, few enough to follow a change.
const RECENT: usize = 8;
const SECONDS_PER_DAY: u64 = 86_400;

/// The pace of the last iterations, everything between them included.
pub(super) struct Pace {
    tokens_per_iteration: f64,
    flops_per_token: f64,
    /// Operations per second that matrix products of all devices reach together; `None` where that is not known.
    reachable: Option<f64>,
    /// When iterations ended, the first entry being where the first of them began.
    ends: VecDeque<Instant>,
}

impl Pace {
    /// Of a plan's training that begins now.
    pub(super) fn new(job: &Job<'_>, plan: &Plan) -> Self {
        let scenario = &job.loaded.scenario;
        Self {
            tokens_per_iteration: scenario.workload.tokens_per_iteration() as f64,
            flops_per_token: facts::rate(scenario, plan).flops_per_token.get() as f64,
            reachable: facts::reachable(job, plan),
            ends: VecDeque::from([Instant::now()]),
        }
    }

    /// An iteration ended now, and so many are left.
    pub(super) fn note(&mut self, loss: Option<f64>, left: u64) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        self.note_at(Instant::now(), now, loss, left)
    }

    /// `now` since the beginning of 1970, UTC.
    fn note_at(&mut self, end: Instant, now: Duration, loss: Option<f64>, left: u64) -> String {
        self.ends.push_back(end);
        if self.ends.len() > RECENT + 1 {
            self.ends.pop_front();
        }
        let mut parts = Vec::new();
        parts.extend(loss.map(|loss| format!("loss {loss:.4}")));
        let iteration = (end - self.ends[0]).as_secs_f64() / (self.ends.len() - 1) as f64;
        if iteration > 0.0 {
            let tokens_per_second = self.tokens_per_iteration / iteration;
            parts.push(format!("{} tokens/s", reports::show::number(tokens_per_second)));
            let share = self.reachable.map(|most| tokens_per_second * self.flops_per_token / most);
            parts.extend(share.map(|share| format!("MFU {}", reports::show::percent(share))));
            let rest = iteration * left as f64;
            if left > 0 && rest < SECONDS_PER_DAY as f64 * 1e4 {
                let rest = Duration::from_secs_f64(rest);
                parts.push(format!("ends {}, in {}", moment(now, now + rest), length(rest)));
            }
        }
        parts.join(" · ")
    }
}

/// A time of day of UTC, with the days from now to it.
fn moment(now: Duration, then: Duration) -> String {
    let days = then.as_secs() / SECONDS_PER_DAY - now.as_secs() / SECONDS_PER_DAY;
    let minutes = then.as_secs() % SECONDS_PER_DAY / 60;
    let day = if days > 0 { format!(" +{days} d") } else { String::new() };
    format!("{:02}:{:02} UTC{day}", minutes / 60, minutes % 60)
}

fn length(rest: Duration) -> String {
    match rest.as_secs() {
        seconds @ 0..=99 => format!("{seconds} s"),
        seconds @ 100..=5_999 => format!("{} min", seconds.div_ceil(60)),
        seconds => format!("{:.1} h", seconds as f64 / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pace(begin: Instant, reachable: Option<f64>) -> Pace {
        Pace { tokens_per_iteration: 1000.0, flops_per_token: 2e6, reachable, ends: VecDeque::from([begin]) }
    }

    #[test]
    fn a_note_says_how_fast_how_well_and_how_long() {
        let begin = Instant::now();
        let mut pace = pace(begin, Some(4e9));
        // 23:58:00 of a day; 1,000 tokens in 2 s are 1e9 operations per second of 4e9.
        let now = Duration::from_secs(SECONDS_PER_DAY * 20_000 + 86_280);
        let first = pace.note_at(begin + Duration::from_secs(2), now, Some(2.5), 90);
        assert_eq!(first, "loss 2.5000 · 500.0 tokens/s · MFU 25.0 % · ends 00:01 UTC +1 d, in 3 min");
        let last = pace.note_at(begin + Duration::from_secs(4), now, Some(2.25), 0);
        assert_eq!(last, "loss 2.2500 · 500.0 tokens/s · MFU 25.0 %");
    }

    #[test]
    fn the_pace_follows_the_last_iterations() {
        let begin = Instant::now();
        let mut pace = pace(begin, None);
        let mut end = begin + Duration::from_secs(100);
        pace.note_at(end, Duration::ZERO, None, 5);
        let mut note = String::new();
        for _ in 0..RECENT {
            end += Duration::from_secs(1);
            note = pace.note_at(end, Duration::ZERO, None, 40);
        }
        assert_eq!(note, "1000 tokens/s · ends 00:00 UTC, in 40 s");
    }

    #[test]
    fn no_clock_is_steady_enough_to_divide_by_nothing() {
        let begin = Instant::now();
        assert_eq!(pace(begin, Some(1.0)).note_at(begin, Duration::ZERO, Some(1.0), 9), "loss 1.0000");
    }
}
