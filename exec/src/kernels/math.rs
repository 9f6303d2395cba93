//! Transcendental functions that the compiler can vectorise.
//!
//! Branch-free and free of table look-ups, so that a loop over a slice becomes vector code; built only from IEEE
//! additions, multiplications, divisions and bit shifts, so that every machine gives the same bits.
//! Scalar `libm` calls are several times slower and stay where a handful of values is needed.

use std::f32::consts::LOG2_E;

/// Exponential, within 1.5 ulp (tested against `f64`).
///
/// Results below the smallest normal number are zero (subnormals are slow and mean nothing to a softmax); results too
/// large are infinite; NaN stays NaN.
///
/// Method: `x = n ln 2 + r` with `|r| <= ln 2 / 2` and `ln 2` in two parts (Cody and Waite, 1980), then
/// `e^r = 1 + r + r^2 q(r)` with the `q` of degree 4 that minimises the largest relative error (3.1e-9, by Remez
/// exchange), then a multiplication by `2^n` in two steps, since `2^128` is not a number.
#[inline(always)]
#[must_use]
pub fn exp(x: f32) -> f32 {
    // ln of the smallest normal and of the largest number.
    const LOWEST: f32 = -87.336_54;
    const HIGHEST: f32 = 88.722_84;
    // Adding 1.5 * 2^23 rounds to an integer, which is then in the low bits.
    const ROUND: f32 = 12_582_912.0;
    // Nine significant bits, so that its product with an exponent is exact; and the rest of ln 2.
    const LN_2_HIGH: f32 = 0.693_359_4;
    const LN_2_LOW: f32 = -2.121_944_4e-4;

    let rounded = x * LOG2_E + ROUND;
    let n = rounded - ROUND;
    let r = (x - n * LN_2_HIGH) - n * LN_2_LOW;
    let q = 0.001_381_432;
    let q = q * r + 0.008_368_851;
    let q = q * r + 0.041_668_4;
    let q = q * r + 0.166_665_2;
    let q = q * r + 0.499_999_94;
    let power = 1.0 + (r + r * r * q);

    let exponent = rounded.to_bits().wrapping_sub(ROUND.to_bits()).cast_signed();
    let half = exponent >> 1;
    let two_to = |exponent: i32| f32::from_bits((exponent.wrapping_add(127) << 23).cast_unsigned());
    let result = power * two_to(half) * two_to(exponent.wrapping_sub(half));

    let result = if x < LOWEST { 0.0 } else { result };
    if x > HIGHEST { f32::INFINITY } else { result }
}

/// Logistic function and its complement: `(1 / (1 + e^-x), 1 / (1 + e^x))`, each within 3 ulp where it is normal.
///
/// The complement is not the difference from one, which would cancel; the product of both is the derivative.
#[inline(always)]
#[must_use]
pub fn sigmoid(x: f32) -> (f32, f32) {
    let e = exp(-x.abs());
    let above = 1.0 / (1.0 + e);
    let below = e * above;
    if x < 0.0 { (below, above) } else { (above, below) }
}

/// Distribution function and density of the standard normal at `x`: `(P(X <= x), exp(-x^2 / 2) / sqrt(2 pi))`.
///
/// The error of the first is at most 2e-7, and relative to the result at most 3e-6 down to `x = -8` (the rounding
/// of `x^2` under an exponential).
///
/// Method: `P(X <= -|x|) = exp(-x^2 / 2) t p(t)` with `t = 1 / (1 + 0.26 |x|)` and the `p` of degree 8 that minimises
/// the largest relative error for `|x| <= 14` (2.5e-8, by Remez exchange; the last digits of its leading coefficient
/// are such that zero gives exactly one half); beyond, the exponential is zero.
#[inline(always)]
#[must_use]
pub fn normal_distribution(x: f32) -> (f32, f32) {
    const ONE_OVER_SQRT_2_PI: f32 = 0.398_942_3;
    let t = 1.0 / (1.0 + 0.26 * x.abs());
    let p = 0.030_504_81;
    let p = p * t + -0.152_828_4;
    let p = p * t + 0.251_490_47;
    let p = p * t + -0.150_948_12;
    let p = p * t + 0.160_947_34;
    let p = p * t + 0.051_027_883;
    let p = p * t + 0.103_030_205;
    let p = p * t + 0.103_016_76;
    let p = p * t + 0.103_759_06;
    let bell = exp(-0.5 * x * x);
    let below = bell * t * p;
    (if x > 0.0 { 1.0 - below } else { below }, bell * ONE_OVER_SQRT_2_PI)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Error in units of the last place of the wanted value.
    fn ulps(got: f32, want: f64) -> f64 {
        let nearest = super::super::narrow(want);
        let spacing = f64::from(f32::from_bits(nearest.to_bits() + 1)) - f64::from(nearest);
        (f64::from(got) - want).abs() / spacing.abs()
    }

    #[test]
    fn exponential_is_within_one_and_a_half_ulp() {
        let (lowest, highest) = (-87.336_5, 88.722_8);
        let steps = 2_000_000;
        let mut worst = (0.0, 0.0);
        for step in 0..=steps {
            let x = super::super::narrow(lowest + (highest - lowest) * f64::from(step) / f64::from(steps));
            let error = ulps(exp(x), f64::from(x).exp());
            if error > worst.0 {
                worst = (error, x);
            }
        }
        assert!(worst.0 <= 1.5, "{} ulp at {}", worst.0, worst.1);
    }

    #[test]
    #[allow(clippy::float_cmp)] // exact by contract
    fn exponential_at_the_edges() {
        assert_eq!(exp(0.0), 1.0);
        assert_eq!(exp(-0.0), 1.0);
        assert_eq!(exp(f32::NEG_INFINITY), 0.0);
        assert_eq!(exp(-87.4), 0.0);
        assert_eq!(exp(f32::MIN), 0.0);
        assert_eq!(exp(f32::INFINITY), f32::INFINITY);
        assert_eq!(exp(88.8), f32::INFINITY);
        assert_eq!(exp(f32::MAX), f32::INFINITY);
        assert!(exp(88.72).is_finite());
        assert!(exp(-87.336).is_normal());
        assert!(exp(f32::NAN).is_nan());
        assert_eq!(exp(1e-20), 1.0);
    }

    #[test]
    fn sigmoid_is_within_three_ulp() {
        for step in -8_000i16..=8_000 {
            let x = f32::from(step) / 100.0;
            let (value, complement) = sigmoid(x);
            let error = ulps(value, 1.0 / (1.0 + (-f64::from(x)).exp()));
            assert!(error <= 3.0, "{error} ulp at {x}");
            let error = ulps(complement, 1.0 / (1.0 + f64::from(x).exp()));
            assert!(error <= 3.0, "complement off by {error} ulp at {x}");
        }
        assert_eq!(sigmoid(f32::INFINITY), (1.0, 0.0));
        assert_eq!(sigmoid(f32::NEG_INFINITY), (0.0, 1.0));
        assert!(sigmoid(f32::NAN).0.is_nan());
    }

    #[test]
    fn normal_distribution_holds_its_bounds() {
        for step in -14_000i16..=14_000 {
            let x = f32::from(step) / 1000.0;
            let (distribution, density) = normal_distribution(x);
            let exact = 0.5 * libm::erfc(-f64::from(x) / std::f64::consts::SQRT_2);
            let error = (f64::from(distribution) - exact).abs();
            assert!(error <= 2e-7, "distribution off by {error:e} at {x}");
            assert!(x < -8.0 || error <= 3e-6 * exact, "distribution off by {error:e} of {exact:e} at {x}");
            let exact = (-0.5 * f64::from(x) * f64::from(x)).exp() / (2.0 * std::f64::consts::PI).sqrt();
            assert!((f64::from(density) - exact).abs() <= 1e-7, "density off at {x}");
        }
        assert_eq!(normal_distribution(f32::INFINITY), (1.0, 0.0));
        assert_eq!(normal_distribution(f32::NEG_INFINITY), (0.0, 0.0));
        assert!(normal_distribution(f32::NAN).0.is_nan());
    }
}
