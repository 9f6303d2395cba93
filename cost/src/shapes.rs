//! Measured times over shapes of three sizes.
//!
//! A kernel's time is a sum of the terms that such a kernel has (fitted, none negative), times an interpolated factor for
//! what the sum does not explain. The factor is 1 where the sum fits, so that shapes far from every point stay sane, and
//! brings every measured point back.

use crate::curve::{Scatter, relative_combination};

/// Terms of a sum.
pub(crate) const TERMS: usize = 5;

/// A kernel's terms, by its sizes.
pub(crate) type Terms = fn([f64; 3]) -> [f64; TERMS];

/// Measured times over shapes.
#[derive(Clone, Debug)]
pub(crate) struct Grid {
    coefficients: [f64; TERMS],
    terms: Terms,
    factor: Scatter<3>,
}

impl Grid {
    /// Through points (sizes, seconds), all positive; `None` without any.
    pub(crate) fn new(points: &[([f64; 3], f64)], terms: Terms) -> Option<Self> {
        if points.is_empty() {
            return None;
        }
        let rows: Vec<([f64; TERMS], f64)> = points.iter().map(|(sizes, seconds)| (terms(*sizes), *seconds)).collect();
        let mut grid = Self { coefficients: relative_combination(&rows), terms, factor: Scatter::new([]) };
        grid.factor = Scatter::new(points.iter().map(|(sizes, seconds)| (*sizes, seconds / grid.sum(*sizes))));
        Some(grid)
    }
    fn sum(&self, sizes: [f64; 3]) -> f64 {
        (self.terms)(sizes).iter().zip(self.coefficients).map(|(term, coefficient)| term * coefficient).sum()
    }
    /// Seconds, and whether this very shape was measured.
    pub(crate) fn at(&self, sizes: [f64; 3]) -> (f64, bool) {
        let (factor, measured) = self.factor.at(sizes);
        (self.sum(sizes) * factor, measured)
    }
}

/// Of `[m,k] x [k,n]`, sizes `m, n, k`: a fixed time, multiplications, and what is packed or stored, the result and each
/// operand.
pub(crate) const fn product_terms([m, n, k]: [f64; 3]) -> [f64; TERMS] {
    [1.0, m * n * k, m * n, m * k, k * n]
}

/// Of a causal attention core, sizes as in [`attention_sizes`]: a fixed time, multiplications, scores (exponentials),
/// operands, and cores.
pub(crate) const fn attention_terms([cores, tokens, width]: [f64; 3]) -> [f64; TERMS] {
    [1.0, cores * tokens * tokens * width, cores * tokens * tokens, cores * tokens * width, cores]
}

/// The sizes by which an attention core is interpolated: cores side by side, tokens, head width.
pub(crate) const fn attention_sizes(sequences: f64, tokens: f64, heads: f64, width: f64) -> [f64; 3] {
    [sequences * heads, tokens, width]
}

/// Points `[sequences, tokens, heads, width, microseconds]` of an attention core, in seconds.
pub(crate) fn attention_points(points: &[[f64; 5]]) -> Vec<([f64; 3], f64)> {
    let point = |&[sequences, tokens, heads, width, us]: &[f64; 5]| {
        (attention_sizes(sequences, tokens, heads, width), us * 1e-6)
    };
    points.iter().map(point).collect()
}

/// Points `[m, n, k, microseconds]` of matrix products, in seconds.
pub(crate) fn product_points(points: &[[f64; 4]]) -> Vec<([f64; 3], f64)> {
    points.iter().map(|&[m, n, k, us]| ([m, n, k], us * 1e-6)).collect()
}
