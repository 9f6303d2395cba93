//! Points of a profile that contradict others.
//!
//! Time grows with the microbatch: a device that computes less waits no longer. So times in the order of their microbatches
//! rise, but for noise, and the longest rising run of points is believed; what is outside it is not. Profiles measured layer
//! by layer have such points at microbatch 1, where each layer's first launches were timed with it.
//!
//! What takes the place of a point that is not believed:
//!
//! * between two that are, the line between them;
//! * before the first, the middle between the most that it can be (the first, as time grows) and the least: the line through
//!   the first two drawn on, since time is `max(launches, work)` and so convex. With one believed point only, its share of the
//!   microbatch;
//! * behind the last, the middle between the last and its multiple, by the microbatch.
//!
//! Nothing here looks at what is predicted of it.

/// By how much a larger microbatch may be faster: noise of single measurements, and of clocks.
const NOISE: f64 = 0.10;
const CLOCK: f64 = 20e-6;

/// Points that contradict others, by place, with what takes their place. `points` are (microbatch, seconds), microbatches
/// rising.
pub(super) fn in_order(points: &[(u32, f64)]) -> Vec<(usize, f64)> {
    let believed = rising(points);
    let (Some(first), Some(last)) = (believed.first().copied(), believed.last().copied()) else { return Vec::new() };
    let of = |place: usize| (f64::from(points[place].0), points[place].1);
    let mut replaced = Vec::new();
    for place in (0..points.len()).filter(|place| !believed.contains(place)) {
        let x = f64::from(points[place].0);
        let value = if place < first {
            let (x1, y1) = of(first);
            let least = match believed.get(1) {
                Some(second) => {
                    let (x2, y2) = of(*second);
                    y1 - (y2 - y1) / (x2 - x1) * (x1 - x)
                }
                None => y1 * x / x1,
            };
            f64::midpoint(least.clamp(0.0, y1), y1)
        } else if place > last {
            let (x0, y0) = of(last);
            f64::midpoint(y0, y0 * x / x0)
        } else {
            let above = believed.iter().position(|other| *other > place).expect("before the last");
            let ((x0, y0), (x1, y1)) = (of(believed[above - 1]), of(believed[above]));
            y0 + (y1 - y0) * (x - x0) / (x1 - x0)
        };
        replaced.push((place, value));
    }
    replaced
}

/// The longest run of places, in order, whose times rise but for noise; of equally long ones the one of larger microbatches.
fn rising(points: &[(u32, f64)]) -> Vec<usize> {
    // From the end: the longest run that begins at a place, and what comes next in it.
    let mut best: Vec<(usize, Option<usize>)> = vec![(1, None); points.len()];
    for place in (0..points.len()).rev() {
        for next in place + 1..points.len() {
            let rises = points[next].1 >= points[place].1 * (1.0 - NOISE) - CLOCK;
            if rises && best[next].0 + 1 > best[place].0 {
                best[place] = (best[next].0 + 1, Some(next));
            }
        }
    }
    let longest = best.iter().map(|(length, _)| *length).max().unwrap_or(0);
    let mut at = best.iter().rposition(|(length, _)| *length == longest);
    let mut run = Vec::new();
    while let Some(place) = at {
        run.push(place);
        at = best[place].1;
    }
    run
}

#[cfg(test)]
mod tests {
    use super::in_order;

    fn check(points: &[(u32, f64)], expect: &[(usize, f64)]) {
        let found = in_order(points);
        assert_eq!(found.len(), expect.len(), "{points:?}: {found:?}");
        for ((place, value), (wanted, expected)) in found.iter().zip(expect) {
            assert_eq!(place, wanted, "{points:?}: {found:?}");
            assert!((value - expected).abs() < 1e-12, "{points:?}: {found:?}");
        }
    }

    #[test]
    fn points_that_others_contradict_are_replaced() {
        check(&[], &[]);
        check(&[(1, 5.0)], &[]);
        check(&[(1, 1.0), (2, 2.0), (4, 4.0)], &[]);
        // Noise is none, nor are a few microseconds.
        check(&[(1, 1.0), (2, 0.95), (4, 1.0)], &[]);
        check(&[(1, 9e-6), (2, 1e-6), (4, 5e-6)], &[]);
        // From 1.2 (the line on) to 1.6.
        check(&[(1, 2.4), (2, 1.6), (4, 2.4), (8, 4.0)], &[(0, 1.4)]);
        check(&[(1, 1.0), (2, 20.0), (4, 4.0), (8, 8.0)], &[(1, 2.0)]);
        // Where one of two must be wrong, the larger microbatch is believed.
        check(&[(1, 1.0), (2, 0.2), (4, 4.0), (8, 8.0)], &[(0, 0.1)]);
        check(&[(1, 1.0), (2, 2.0), (4, 4.0), (8, 0.5)], &[(3, 6.0)]);
        // Of two that contradict each other the smaller microbatch is the one with launches in it.
        check(&[(1, 3.0), (4, 2.0)], &[(0, 1.25)]);
        // A line that leads below nothing stops there.
        check(&[(1, 9.0), (2, 1.0), (3, 4.0)], &[(0, 0.5)]);
    }

    #[test]
    fn what_takes_a_place_rises_too() {
        let mut state = 7_u64;
        let mut draw = move || {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 40) as f64 / (1 << 24) as f64
        };
        for _ in 0..2000 {
            let mut points: Vec<(u32, f64)> = (0..6).map(|n| (1 << n, draw() + 0.01)).collect();
            for (place, value) in in_order(&points.clone()) {
                points[place].1 = value;
            }
            assert!(points.iter().all(|(_, value)| value.is_finite() && *value >= 0.0), "{points:?}");
            let falls = |pair: &[(u32, f64)]| pair[1].1 < pair[0].1 * 0.8;
            assert!(!points.windows(2).any(falls), "{points:?}");
        }
    }
}
