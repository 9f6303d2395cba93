//! A stack's constants from measured rows: a few numbers, held by what other stacks have.
//!
//! The logarithm of prediction over measurement is what is made small: `sum huber(ln p_i/t_i) + prior`, with the constants
//! themselves as logarithms. The Huber loss (Huber 1964) keeps single odd rows from pulling; the prior is the class's own
//! constants with the spread that stacks of a class show, so that ten rows fit ten rows' worth and a constant that no row
//! is sensitive to stays where it was. Newton steps with numeric derivatives; nothing is drawn at random.

use cost::StackConstants;

/// Residuals over this count linearly: what repeated measurements differ by.
const HUBER: f64 = 0.03;
/// Weight of the prior against one row.
const PRIOR_WEIGHT: f64 = 0.0012;
/// Rows from which on constants beside the factor are fitted.
const FEWEST_FOR_ALL: usize = 8;
/// Rounds over all constants.
const ROUNDS: u32 = 8;

/// A constant that is fitted: where it is, and its prior's spread (standard deviation of its logarithm).
struct Constant {
    read: fn(&StackConstants) -> f64,
    write: fn(&mut StackConstants, f64),
    spread: f64,
    /// Limits of the logarithm's distance from the prior.
    reach: f64,
}

/// Launch time around which stacks lie whose rows tell none, in microseconds.
const LAUNCH_US: f64 = 8.0;
/// Time of an iteration beside its program, likewise.
const ITERATION_US: f64 = 3_000.0;
/// Smallest time that messages are held up by, so that it has a logarithm.
const LEAST_US: f64 = 1_000.0;

/// Degrees of freedom of the prior, which is a Student distribution: of a stack far off all others its rows are believed
/// after a few, where a normal prior would hold them back for ever.
const FREEDOM: f64 = 4.0;

/// Constants beside their spread between stacks: that of networks is 0.38 over the 22 keys of eight rows or more.
const CONSTANTS: [Constant; 5] = [
    Constant { read: |c| c.compute_factor, write: |c, x| c.compute_factor = x, spread: 0.12, reach: 1.5 },
    Constant {
        read: |c| c.launch_us.unwrap_or(LAUNCH_US),
        write: |c, x| c.launch_us = Some(x),
        spread: 1.0,
        reach: 3.5,
    },
    Constant { read: |c| c.iteration_us.max(ITERATION_US), write: |c, x| c.iteration_us = x, spread: 1.2, reach: 5.0 },
    Constant {
        read: |c| c.network_efficiency,
        write: |c, x| c.network_efficiency = x.min(1.6),
        spread: 0.4,
        reach: 1.2,
    },
    Constant {
        read: |c| c.message_sync_us.max(LEAST_US),
        write: |c, x| c.message_sync_us = x,
        spread: 1.5,
        reach: 6.0,
    },
];

/// Constants with what they leave over.
#[derive(Clone, Copy, PartialEq, Debug)]
pub(crate) struct Fitted {
    /// The constants.
    pub(crate) constants: StackConstants,
    /// Standard deviation of the logarithm of prediction over measurement, from the middle two thirds.
    pub(crate) spread: f64,
}

/// Fits constants to rows. `predict` gives the seconds of each row under some constants, `None` where there is no
/// prediction; `measured` the seconds measured.
pub(crate) fn fit(
    prior: &StackConstants,
    measured: &[f64],
    predict: &mut dyn FnMut(&StackConstants) -> Vec<Option<f64>>,
) -> Fitted {
    // Few rows tell a factor and nothing else.
    let free = if measured.len() < FEWEST_FOR_ALL { 1 } else { CONSTANTS.len() };
    let mut search = Search { prior, measured, predict, free };
    // Where no unit waits for its launches, their time has no slope: from a longer one the search finds out.
    let starts: &[f64] = if free == 1 { &[0.0] } else { &[0.0, LONGER_LAUNCHES] };
    let ends = starts.iter().map(|launches| {
        let mut at = [0.0; CONSTANTS.len()];
        at[LAUNCH] = *launches;
        search.descend(at)
    });
    let (at, residuals, _) = ends.min_by(|a, b| a.2.total_cmp(&b.2)).expect("there is a start");
    Fitted { constants: place(prior, &at), spread: spread(&residuals) }
}

/// The place of launches among [`CONSTANTS`], and how far beyond the prior the second search begins: six times.
const LAUNCH: usize = 1;
const LONGER_LAUNCHES: f64 = 1.8;

/// Steps from the prior, as logarithms.
type Steps = [f64; CONSTANTS.len()];

/// The prior's constants, moved.
fn place(prior: &StackConstants, at: &Steps) -> StackConstants {
    let mut constants = *prior;
    for (constant, step) in CONSTANTS.iter().zip(at).filter(|(_, step)| **step != 0.0) {
        (constant.write)(&mut constants, (constant.read)(prior) * libm::exp(*step));
    }
    constants
}

struct Search<'a> {
    prior: &'a StackConstants,
    measured: &'a [f64],
    predict: &'a mut dyn FnMut(&StackConstants) -> Vec<Option<f64>>,
    free: usize,
}

impl Search<'_> {
    fn residuals(&mut self, at: &Steps) -> Vec<f64> {
        let predicted = (self.predict)(&place(self.prior, at));
        let pairs = predicted.into_iter().zip(self.measured);
        pairs.map(|(predicted, measured)| predicted.map_or(0.0, |p| libm::log(p / measured))).collect()
    }

    /// From a start downhill: where it ends, the residuals there, and their loss.
    fn descend(&mut self, mut at: Steps) -> (Steps, Vec<f64>, f64) {
        let mut base = self.residuals(&at);
        let mut loss = total(&base, &at);
        for _ in 0..ROUNDS {
            let mut slopes = vec![vec![0.0; base.len()]; CONSTANTS.len()];
            for (which, slope) in slopes.iter_mut().enumerate().take(self.free) {
                let mut moved = at;
                moved[which] += STEP;
                *slope = self.residuals(&moved).iter().zip(&base).map(|(a, b)| (a - b) / STEP).collect();
            }
            let step = newton(&slopes, &base, &at);
            let Some((moved, there, new)) = self.line(&at, &step, loss) else { break };
            let gain = loss - new;
            (at, base, loss) = (moved, there, new);
            if gain <= 1e-6 * loss {
                break;
            }
        }
        (at, base, loss)
    }

    /// The first of shorter and shorter steps that is better than `loss`.
    fn line(&mut self, at: &Steps, step: &[f64], loss: f64) -> Option<(Steps, Vec<f64>, f64)> {
        let mut shrink = 1.0;
        while shrink >= 0.01 {
            let mut moved = *at;
            for (which, constant) in CONSTANTS.iter().enumerate() {
                moved[which] = (at[which] + shrink * step[which]).clamp(-constant.reach, constant.reach);
            }
            let there = self.residuals(&moved);
            let new = total(&there, &moved);
            if new < loss {
                return Some((moved, there, new));
            }
            shrink /= 3.0;
        }
        None
    }
}

/// Distance of numeric derivatives, in logarithms.
const STEP: f64 = 0.02;

fn total(residuals: &[f64], at: &Steps) -> f64 {
    let huber = |r: &f64| {
        let size = r.abs();
        if size <= HUBER { r * r / 2.0 } else { HUBER * (size - HUBER / 2.0) }
    };
    let prior = CONSTANTS.iter().zip(at).map(|(constant, x)| FREEDOM * libm::log1p(far(constant, *x)));
    residuals.iter().map(huber).sum::<f64>() + PRIOR_WEIGHT * prior.sum::<f64>() / 2.0
}

/// How far a constant is from its prior, squared, over the degrees of freedom.
fn far(constant: &Constant, x: f64) -> f64 {
    (x / constant.spread) * (x / constant.spread) / FREEDOM
}

/// The step of iteratively reweighted least squares.
fn newton(slopes: &[Vec<f64>], residuals: &[f64], at: &Steps) -> Vec<f64> {
    let n = CONSTANTS.len();
    let weights: Vec<f64> = residuals.iter().map(|r| if r.abs() <= HUBER { 1.0 } else { HUBER / r.abs() }).collect();
    let product = |a: &[f64], b: &[f64]| a.iter().zip(b).zip(&weights).map(|((a, b), w)| a * b * w).sum::<f64>();
    let mut matrix: Vec<Vec<f64>> = (0..n)
        .map(|row| {
            let mut line: Vec<f64> = (0..n).map(|column| product(&slopes[row], &slopes[column])).collect();
            let constant = &CONSTANTS[row];
            let prior = PRIOR_WEIGHT / (constant.spread * constant.spread * (1.0 + far(constant, at[row])));
            line[row] += prior;
            line.push(-product(&slopes[row], residuals) - prior * at[row]);
            line
        })
        .collect();
    solve(&mut matrix)
}

/// Gaussian elimination with pivots; the matrix is positive definite.
fn solve(matrix: &mut [Vec<f64>]) -> Vec<f64> {
    let n = matrix.len();
    for column in 0..n {
        let pivot = (column..n).max_by(|a, b| matrix[*a][column].abs().total_cmp(&matrix[*b][column].abs()));
        matrix.swap(column, pivot.expect("a row is left"));
        let lead = matrix[column].clone();
        if lead[column].abs() < f64::MIN_POSITIVE {
            continue;
        }
        for row in matrix.iter_mut().skip(column + 1) {
            let factor = row[column] / lead[column];
            row.iter_mut().zip(&lead).for_each(|(entry, lead)| *entry -= factor * lead);
        }
    }
    let mut solution = vec![0.0; n];
    for row in (0..n).rev() {
        let known: f64 = (row + 1..n).map(|column| matrix[row][column] * solution[column]).sum();
        let diagonal = matrix[row][row];
        solution[row] = if diagonal.abs() < f64::MIN_POSITIVE { 0.0 } else { (matrix[row][n] - known) / diagonal };
    }
    solution
}

/// Half the distance between the 16th and the 84th percentile.
fn spread(residuals: &[f64]) -> f64 {
    let mut sorted = residuals.to_vec();
    sorted.sort_by(f64::total_cmp);
    let at = |share: f64| {
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a share of a length")]
        let index = libm::round(share * (sorted.len().saturating_sub(1)) as f64) as usize;
        sorted.get(index).copied().unwrap_or(0.0)
    };
    (at(0.84) - at(0.16)) / 2.0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A test bed whose time is a known function of the constants.
    fn bed(row: usize, constants: &StackConstants) -> f64 {
        let (work, launches) = (0.01 * (1 + row % 7) as f64, 200.0 * (1 + row % 3) as f64);
        let launched = launches * constants.launch_us.unwrap_or(LAUNCH_US) * 1e-6;
        (work * constants.compute_factor).max(launched)
            + constants.iteration_us * 1e-6
            + 0.002 / constants.network_efficiency
    }

    #[test]
    fn known_constants_are_found_again() {
        let truth = StackConstants {
            compute_factor: 1.3,
            launch_us: Some(70.0),
            iteration_us: 9_000.0,
            ..StackConstants::default()
        };
        let measured: Vec<f64> = (0..40).map(|row| bed(row, &truth)).collect();
        let found = fit(&StackConstants::default(), &measured, &mut |constants| {
            (0..40).map(|row| Some(bed(row, constants))).collect()
        });
        assert!((found.constants.compute_factor / 1.3 - 1.0).abs() < 0.02, "{found:?}");
        assert!((found.constants.launch_us.unwrap() / 70.0 - 1.0).abs() < 0.05, "{found:?}");
        assert!(found.spread < 0.01, "{found:?}");
    }

    /// Three rows of software three times slower than any other are believed; one is not.
    #[test]
    fn a_stack_far_from_all_others_is_believed_after_a_few_rows() {
        let found = |rows: usize| {
            let time = |row: usize, constants: &StackConstants| constants.compute_factor * (1 + row) as f64;
            let truth = StackConstants { compute_factor: 3.3, ..StackConstants::default() };
            let measured: Vec<f64> = (0..rows).map(|row| time(row, &truth)).collect();
            let rows = 0..rows;
            fit(&StackConstants::default(), &measured, &mut |constants| {
                rows.clone().map(|row| Some(time(row, constants))).collect()
            })
            .constants
            .compute_factor
        };
        assert!((found(3) / 3.3 - 1.0).abs() < 0.05, "{}", found(3));
        assert!(found(1) < found(3));
    }

    #[test]
    fn odd_rows_do_not_pull_and_what_no_row_tells_stays() {
        let truth = StackConstants { compute_factor: 1.2, ..StackConstants::default() };
        let time = |row: usize, constants: &StackConstants| constants.compute_factor * (1 + row) as f64;
        let mut measured: Vec<f64> = (0..10).map(|row| time(row, &truth)).collect();
        measured[3] *= 2.0;
        let found = fit(&StackConstants::default(), &measured, &mut |constants| {
            (0..10).map(|row| Some(time(row, constants))).collect()
        });
        assert!((found.constants.compute_factor / 1.2 - 1.0).abs() < 0.02, "{found:?}");
        assert_eq!(found.constants.launch_us, None);
        assert!((found.constants.network_efficiency - 1.0).abs() < 1e-12);
    }
}
