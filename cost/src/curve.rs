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

/// The combination of features, no coefficient negative, that fits measured values with the least squared *relative*
/// errors: minimises the sum of `(c . f / y - 1)^2`. Coordinate descent on the normal equations, whose order is fixed.
pub(crate) fn relative_combination<const F: usize>(rows: &[([f64; F], f64)]) -> [f64; F] {
    let mut gram = [[0.0; F]; F];
    let mut target = [0.0; F];
    for (features, value) in rows {
        let scaled = features.map(|feature| feature / value);
        for i in 0..F {
            target[i] += scaled[i];
            for j in 0..F {
                gram[i][j] += scaled[i] * scaled[j];
            }
        }
    }
    let mut coefficients = [0.0; F];
    for _ in 0..SWEEPS {
        let mut change: f64 = 0.0;
        for i in (0..F).filter(|i| gram[*i][*i] > 0.0) {
            let gradient: f64 = target[i] - (0..F).map(|j| gram[i][j] * coefficients[j]).sum::<f64>();
            let next = (coefficients[i] + gradient / gram[i][i]).max(0.0);
            change = change.max((next - coefficients[i]).abs() * gram[i][i].sqrt());
            coefficients[i] = next;
        }
        if change < 1e-12 {
            break;
        }
    }
    coefficients
}

/// Enough for features that are nearly parallel; more would polish what the interpolated factor absorbs anyway.
const SWEEPS: usize = 5000;
