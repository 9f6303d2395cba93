//! The arithmetic of the CPU executor: pure functions over `f32` slices.
//!
//! What a transformer needs, each pass split into forward, input gradient and weight gradient, so that a schedule may
//! place the three apart (zero-bubble schedules do).  Every function
//!
//! - takes row-major slices and the shapes that their lengths do not already say, and panics when the two disagree
//!   (only a bug upstream can cause that);
//! - runs on the calling thread alone (ranks are threads) and sums in a fixed order, so that two runs on one machine
//!   agree to the bit;
//! - never contracts a multiplication and an addition into one rounding.  Outside [`matmul`], and [`linear`] and
//!   [`attention`] which are built on it, results therefore do not depend on the machine's vector width either.
//!
//! Deliberately absent: tensors, autograd, ranks, collectives.  Kernels of a sharded operation take the shard and say
//! in their documentation which collective joins the parts.
//!
//! Weight gradients always accumulate, since microbatches add up; where an input gradient may do either, the caller
//! chooses by [`Store`].

pub mod activation;
pub mod attention;
pub mod bf16;
pub mod elementwise;
pub mod embedding;
pub mod init;
pub mod linear;
pub mod loss;
pub mod math;
pub mod matmul;
pub mod norm;
pub mod optimizer;
pub mod rope;
pub mod router;
#[cfg(test)]
pub(crate) mod testing;

/// What happens to the old content of an output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Store {
    /// The output is written; what it held is never read, so it may be uninitialised scratch or hold NaN.
    Overwrite,
    /// The result is added to what the output holds.
    Accumulate,
}

impl Store {
    /// Writes or adds `value`.
    #[inline(always)]
    fn put(self, slot: &mut f32, value: f32) {
        match self {
            Store::Overwrite => *slot = value,
            Store::Accumulate => *slot += value,
        }
    }
}

/// Evaluates an expression compiled for the widest vectors that this processor has.
///
/// The programs of all widths do the same operations in the same order, so this changes the speed and not the result.
/// A macro, because the expression and all that it calls must be `#[inline(always)]`: what is not inlined is compiled
/// for the narrowest vectors.
macro_rules! vectorized {
    ($kernel:expr) => {
        $crate::kernels::on_widest_vectors(
            #[inline(always)]
            || $kernel,
        )
    };
}
use vectorized;

/// Works for [`vectorized`], whose closure becomes an `FnOnce` by being passed here; any other kind of closure would be
/// called through a shim that is not inlined.
#[inline(always)]
fn on_widest_vectors<R>(kernel: impl FnOnce() -> R) -> R {
    pulp::Arch::new().dispatch(kernel)
}

/// Partial sums kept side by side by a reduction; fixed, so that the order of a sum is the same for every vector width.
const LANES: usize = 16;

/// Sum of `term` over the elements of `N` slices of one length.
///
/// Element `i` goes to partial sum `i % LANES`; the partial sums are then added pairwise.
#[inline(always)]
fn sum_over<const N: usize>(slices: [&[f32]; N], term: impl Fn([f32; N]) -> f32) -> f32 {
    let length = slices[0].len();
    let slices = slices.map(|slice| &slice[..length]);
    let split = slices.map(<[f32]>::as_chunks::<LANES>);
    let mut lanes = [0.0f32; LANES];
    for chunk in 0..length / LANES {
        let chunks = split.map(|(chunks, _)| &chunks[chunk]);
        for (lane, sum) in lanes.iter_mut().enumerate() {
            *sum += term(chunks.map(|chunk| chunk[lane]));
        }
    }
    for (lane, sum) in lanes.iter_mut().enumerate().take(length % LANES) {
        *sum += term(split.map(|(_, tail)| tail[lane]));
    }
    let mut width = LANES / 2;
    while width > 0 {
        for lane in 0..width {
            lanes[lane] += lanes[lane + width];
        }
        width /= 2;
    }
    lanes[0]
}

/// Largest element, or minus infinity if there is none.  NaN is passed over: it resurfaces in the sum of exponentials.
#[inline(always)]
fn maximum(values: &[f32]) -> f32 {
    let larger = |a: f32, b: f32| if b > a { b } else { a };
    let (chunks, tail) = values.as_chunks::<LANES>();
    let mut lanes = [f32::NEG_INFINITY; LANES];
    for chunk in chunks {
        for (lane, &value) in lanes.iter_mut().zip(chunk) {
            *lane = larger(*lane, value);
        }
    }
    lanes.iter().chain(tail).copied().fold(f32::NEG_INFINITY, larger)
}

/// Replaces `values` by `exp(value - shift)` and returns their sum.
#[inline(always)]
fn exponentiate(values: &mut [f32], shift: f32) -> f32 {
    for value in values.iter_mut() {
        *value = math::exp(*value - shift);
    }
    sum_over([values], |[value]| value)
}

/// Nearest `f32`.  For quantities computed in `f64` only for their accuracy.
#[inline(always)]
#[allow(clippy::cast_possible_truncation)] // rounding is the purpose
pub(crate) fn narrow(value: f64) -> f32 {
    value as f32
}

/// Number of rows of `width` that make up `length` elements.
///
/// # Panics
/// If the rows do not fit, or have no width.
fn rows_of(length: usize, width: usize) -> usize {
    assert!(width > 0, "rows have no elements");
    assert_eq!(length % width, 0, "{length} elements are not rows of {width}");
    length / width
}

#[cfg(test)]
mod tests {
    use super::testing::{Cases, wide};
    use super::*;

    #[test]
    fn vector_width_changes_no_bit() {
        Cases::run(20, |cases| {
            let count = cases.size(0, 200);
            let values = cases.values(count, 50.0);
            let largest = maximum(&values);
            let (mut narrowest, mut widest) = (values.clone(), values);
            let narrow_sum = exponentiate(&mut narrowest, largest);
            let wide_sum = vectorized!(exponentiate(&mut widest, largest));
            assert_eq!((narrow_sum.to_bits(), narrowest), (wide_sum.to_bits(), widest));
        });
    }

    /// The largest error of a sum of `n` terms that are split over the lanes is about `(n / 16 + 4)` roundings.
    #[test]
    fn sums_take_every_element_once() {
        Cases::run(100, |cases| {
            let count = cases.size(0, 100);
            let values = cases.values(count, 1.0);
            let want: f64 = wide(&values).iter().sum();
            assert!((f64::from(sum_over([&values], |[value]| value)) - want).abs() < 1e-5);
            let largest = values.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            assert_eq!(maximum(&values).to_bits(), largest.to_bits());
        });
    }
}
