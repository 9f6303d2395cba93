//! bfloat16, emulated: values with 8 bits of mantissa that lie in `f32`.
//!
//! A product of two such values is exact in FP32, so a kernel that reads rounded inputs, computes in `f32` and has its
//! output rounded is a kernel of half precision with FP32 accumulation.

use super::vectorized;

/// The nearest bfloat16, ties to even; NaN stays NaN.
#[inline(always)]
#[must_use]
pub fn nearest(value: f32) -> f32 {
    let bits = value.to_bits();
    let rounded = bits.wrapping_add(0x7fff + (bits >> 16 & 1)) & 0xffff_0000;
    // Rounding would carry a NaN's mantissa into its sign.
    if value.is_nan() { value } else { f32::from_bits(rounded) }
}

/// Replaces each value by the nearest bfloat16.
pub fn round(values: &mut [f32]) {
    vectorized!({
        for value in values.iter_mut() {
            *value = nearest(*value);
        }
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounding_is_that_of_a_half_precision_library() {
        for bits in (0..u32::MAX).step_by(65_521).chain([0x7f7f_ffff, 0x7f80_0000, 0xff80_0000, 0x8000_0000, 1]) {
            let value = f32::from_bits(bits);
            let expect = half::bf16::from_f32(value).to_f32();
            let same = nearest(value).to_bits() == expect.to_bits() || value.is_nan() && nearest(value).is_nan();
            assert!(same, "{value:e} is {:e}, not {expect:e}", nearest(value));
        }
    }

    #[test]
    #[expect(clippy::float_cmp, reason = "rounding is exact")]
    fn rounding_takes_the_nearest_and_ties_to_even() {
        let ulp = 2f32.powi(-7);
        for (value, expect) in [
            (0.0, 0.0),
            (1.0, 1.0),
            (1.0 + 0.49 * ulp, 1.0),
            (1.0 + 0.5 * ulp, 1.0),
            (1.0 + 0.51 * ulp, 1.0 + ulp),
            (1.0 + 1.5 * ulp, 1.0 + 2.0 * ulp),
            (-1.0 - 1.5 * ulp, -1.0 - 2.0 * ulp),
            (f32::MAX, f32::INFINITY),
            (f32::NEG_INFINITY, f32::NEG_INFINITY),
        ] {
            assert_eq!(nearest(value), expect, "{value}");
            assert_eq!(nearest(nearest(value)), nearest(value), "{value}");
        }
        assert!(nearest(f32::NAN).is_nan() && nearest(f32::from_bits(0x7fff_ffff)).is_nan());
        let mut values: Vec<f32> = (0..1000u16).map(|i| (f32::from(i) - 500.0) * 0.371).collect();
        let wanted: Vec<f32> = values.iter().map(|value| nearest(*value)).collect();
        round(&mut values);
        assert_eq!(values, wanted);
        let far = |x: f32| (x - nearest(x)).abs() > x.abs() * 2f32.powi(-8);
        assert!(!wanted.iter().any(|x| far(*x)));
    }
}
