//! What the kernel tests share: seeded values, comparison against an `f64` twin, numerical gradients.

use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Whether long tests are to be whole, as `.ci/run` has them, and not a part that takes seconds.
pub(crate) fn long_tests() -> bool {
    std::env::var_os("TRAINYARD_LONG_TESTS").is_some()
}

/// Seeded source of shapes and values.  Its seed is printed if the test that holds it panics.
#[derive(Clone)]
pub(crate) struct Cases {
    seed: u64,
    generator: ChaCha8Rng,
}

impl Cases {
    /// Runs `test` for the seeds `0..count`.
    pub(crate) fn run(count: u64, mut test: impl FnMut(&mut Cases)) {
        for seed in 0..count {
            test(&mut Cases { seed, generator: ChaCha8Rng::seed_from_u64(seed) });
        }
    }

    /// Uniform in `low..=high`.
    pub(crate) fn size(&mut self, low: usize, high: usize) -> usize {
        let span = u32::try_from(high - low + 1).unwrap();
        low + usize::try_from(self.generator.next_u32() % span).unwrap()
    }

    /// `count` values uniform in `-scale..scale`.
    pub(crate) fn values(&mut self, count: usize, scale: f32) -> Vec<f32> {
        let unit = 1.0 / f64::from(1u32 << 31);
        (0..count).map(|_| super::narrow(f64::from(self.generator.next_u32()) * unit - 1.0) * scale).collect()
    }
}

impl Drop for Cases {
    #[allow(clippy::print_stderr)] // how a failed test says which seed to look at
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.seed);
        }
    }
}

/// The same values in double precision.
pub(crate) fn wide(values: &[f32]) -> Vec<f64> {
    values.iter().map(|&value| f64::from(value)).collect()
}

/// Asserts that the largest error is at most `tolerance` times the largest wanted magnitude (or 1e-3, if that is more).
#[track_caller]
pub(crate) fn assert_close(what: &str, got: &[f32], want: &[f64], tolerance: f64) {
    assert_eq!(got.len(), want.len(), "{what}: lengths differ");
    let scale = want.iter().fold(1e-3f64, |scale, value| scale.max(value.abs()));
    for (index, (&got, &want)) in got.iter().zip(want).enumerate() {
        let error = (f64::from(got) - want).abs();
        // Written so that NaN fails.
        assert!(
            error <= tolerance * scale,
            "{what}[{index}]: got {got}, want {want}, error {error:e}, scale {scale:e}"
        );
    }
}

/// Gradient of `function` at `point` by central differences with step 1e-5: exact to about 1e-9 for smooth functions
/// of unit scale.
pub(crate) fn numerical_gradient(point: &[f64], function: impl Fn(&[f64]) -> f64) -> Vec<f64> {
    let step = 1e-5;
    let mut moved = point.to_vec();
    (0..point.len())
        .map(|index| {
            moved[index] = point[index] + step;
            let above = function(&moved);
            moved[index] = point[index] - step;
            let below = function(&moved);
            moved[index] = point[index];
            (above - below) / (2.0 * step)
        })
        .collect()
}

/// Inner product: the scalar loss whose gradient with respect to `values` is `weights`.
pub(crate) fn inner(weights: &[f32], values: &[f64]) -> f64 {
    assert_eq!(weights.len(), values.len());
    weights.iter().zip(values).map(|(&weight, value)| f64::from(weight) * value).sum()
}

/// Dense product of `[rows, inner]` and `[inner, columns]`.
pub(crate) fn product(a: &[f64], b: &[f64], rows: usize, inner: usize, columns: usize) -> Vec<f64> {
    let at = |row: usize, column: usize| (0..inner).map(|k| a[row * inner + k] * b[k * columns + column]).sum();
    (0..rows).flat_map(|row| (0..columns).map(move |column| (row, column))).map(|(r, c)| at(r, c)).collect()
}

/// Transpose of a dense `[rows, columns]`.
pub(crate) fn transpose(a: &[f64], rows: usize, columns: usize) -> Vec<f64> {
    (0..columns).flat_map(|column| (0..rows).map(move |row| a[row * columns + column])).collect()
}
