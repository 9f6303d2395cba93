//! Interpolation of measured times: along a size ([`Curve`]) and over shapes ([`Scatter`]).
//!
//! Both work in logarithms, since sizes and times span orders of magnitude, and both give back every measured point.

/// Seconds against a size, piecewise linear in the logarithms of both.
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Curve {
    /// (log2 size, log2 seconds), sizes strictly increasing.
    points: Vec<(f64, f64)>,
}

impl Curve {
    /// Through points (size, seconds). Points of one size count as their geometric mean; those that are not positive and
    /// finite are left out. `None` without any point.
    pub(crate) fn new(points: impl IntoIterator<Item = (f64, f64)>) -> Option<Self> {
        let mut logs: Vec<(f64, f64)> = points
            .into_iter()
            .filter(|(size, seconds)| size.is_finite() && *size > 0.0 && seconds.is_finite() && *seconds > 0.0)
            .map(|(size, seconds)| (libm::log2(size), libm::log2(seconds)))
            .collect();
        logs.sort_by(|a, b| a.0.total_cmp(&b.0).then(a.1.total_cmp(&b.1)));
        let points: Vec<(f64, f64)> = logs
            .chunk_by(|a, b| a.0.total_cmp(&b.0).is_eq())
            .map(|same| (same[0].0, same.iter().map(|p| p.1).sum::<f64>() / same.len() as f64))
            .collect();
        (!points.is_empty()).then_some(Self { points })
    }

    /// Seconds at a size, and whether the size is a measured one.
    ///
    /// Below the smallest point the time stays that of the smallest (what is small is latency); above the largest it
    /// grows in proportion to the size (what is large is bandwidth).
    pub(crate) fn at(&self, size: f64) -> (f64, bool) {
        let x = libm::log2(size.max(f64::MIN_POSITIVE));
        let (first, last) = (self.points[0], self.points[self.points.len() - 1]);
        let after = self.points.partition_point(|point| point.0 < x);
        if let Some(&(at, seconds)) = self.points.get(after)
            && (at - x).abs() < 1e-12
        {
            return (libm::exp2(seconds), true);
        }
        let seconds = if after == 0 {
            first.1
        } else if after == self.points.len() {
            last.1 + (x - last.0)
        } else {
            let (a, b) = (self.points[after - 1], self.points[after]);
            a.1 + (b.1 - a.1) * (x - a.0) / (b.0 - a.0)
        };
        (libm::exp2(seconds), false)
    }
}

/// A factor over shapes of `D` sizes, interpolated between scattered points by inverse distance in the logarithms of the
/// sizes (Shepard 1968, of the nearest points, with the fourth power of the distance).
#[derive(Clone, PartialEq, Debug)]
pub(crate) struct Scatter<const D: usize> {
    /// Sizes and value, in log2.
    points: Vec<([f64; D], f64)>,
}

/// How many points a value rests on.
const NEIGHBOURS: usize = 6;

impl<const D: usize> Scatter<D> {
    /// Through points (sizes, factor), all positive.
    pub(crate) fn new(points: impl IntoIterator<Item = ([f64; D], f64)>) -> Self {
        let points = points.into_iter().map(|(sizes, factor)| (sizes.map(libm::log2), libm::log2(factor))).collect();
        Self { points }
    }

    /// The factor at a shape, and whether the shape is a measured one; 1 where nothing was measured.
    pub(crate) fn at(&self, sizes: [f64; D]) -> (f64, bool) {
        let x = sizes.map(|size| libm::log2(size.max(f64::MIN_POSITIVE)));
        // The nearest points, by insertion: few are kept, so this is linear in the points.
        let mut nearest: [(f64, f64); NEIGHBOURS] = [(f64::INFINITY, 0.0); NEIGHBOURS];
        for (at, value) in &self.points {
            let squared: f64 = (0..D).map(|i| (at[i] - x[i]) * (at[i] - x[i])).sum();
            if squared < 1e-18 {
                return (libm::exp2(*value), true);
            }
            if squared < nearest[NEIGHBOURS - 1].0 {
                let place = nearest.partition_point(|(distance, _)| *distance <= squared);
                nearest[place..].rotate_right(1);
                nearest[place] = (squared, *value);
            }
        }
        let (mut weights, mut total) = (0.0, 0.0);
        for (squared, value) in nearest.iter().filter(|(distance, _)| distance.is_finite()) {
            let weight = 1.0 / (squared * squared);
            weights += weight;
            total += weight * value;
        }
        (if weights > 0.0 { libm::exp2(total / weights) } else { 1.0 }, false)
    }
}

/// The least-squares line `seconds = overhead + amount / rate`, of relative errors, with neither negative: (overhead, rate).
/// `None` without two positive points.
pub(crate) fn relative_line(points: &[(f64, f64)]) -> Option<(f64, f64)> {
    // Minimise sum ((a + c x)/y - 1)^2: linear in a and c with weights 1/y.
    let (mut uu, mut uv, mut vv, mut u1, mut v1) = (0.0, 0.0, 0.0, 0.0, 0.0);
    let usable = points.iter().filter(|(x, y)| *x > 0.0 && *y > 0.0 && x.is_finite() && y.is_finite());
    for (x, y) in usable.clone() {
        let (u, v) = (1.0 / y, x / y);
        (uu, uv, vv, u1, v1) = (uu + u * u, uv + u * v, vv + v * v, u1 + u, v1 + v);
    }
    let determinant = uu * vv - uv * uv;
    let count = usable.clone().count();
    if count == 0 {
        return None;
    }
    let through_origin = (0.0, vv / v1);
    if count == 1 || determinant <= 1e-12 * uu * vv {
        return Some(through_origin);
    }
    let (overhead, slope) = ((u1 * vv - v1 * uv) / determinant, (v1 * uu - u1 * uv) / determinant);
    if overhead < 0.0 {
        Some(through_origin)
    } else if slope <= 0.0 {
        // Constant times: the slope is lost under the overhead; charge it all to the largest point.
        let (largest, seconds) = usable.fold((0.0, 0.0), |a: (f64, f64), b| if b.0 > a.0 { *b } else { a });
        Some((0.0, largest / seconds))
    } else {
        Some((overhead, 1.0 / slope))
    }
}
