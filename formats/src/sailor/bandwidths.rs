//! Fits of bandwidths between devices.

use ir::Problem;

use super::reader::{At, Reader};

/// GB/s of `x` bytes: `c0 l² + c1 l + c2` with `l = log2(x / 1 MB)`, no more than was measured.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct BandwidthFit {
    /// `[c0, c1, c2]`.
    pub coefficients: [f64; 3],
    /// The most that was measured, in bytes per second.
    pub most: f64,
}

impl BandwidthFit {
    /// Bytes per second of a transfer of so many bytes. Outside what was measured the polynomial leaves the positive
    /// numbers or exceeds the most: it is held between a hundredth of the most and the most.
    #[must_use]
    pub fn at(&self, bytes: f64) -> f64 {
        let [c0, c1, c2] = self.coefficients;
        let l = libm::log2(bytes.max(1.0) / 1e6);
        (((c0 * l + c1) * l + c2) * 1e9).clamp(self.most / 100.0, self.most)
    }
}

/// Who exchanges with whom.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub struct Pair {
    /// Zone, device and number of devices of the sender; of a file without zones the first is empty.
    pub from: (String, String, u32),
    /// The same of the receiver.
    pub to: (String, String, u32),
}

/// Reads fits, of any of three forms: `{device: {count: fit}}` inside nodes; `{zone: {device: {count: {zone: {device:
/// {count: fit}}}}}}` between them; and `{"inter": ..., "intra": ...}` of the first form, of which `inter` is read.
///
/// # Errors
/// Everything that is wrong, each with its key and place.
pub fn bandwidths(text: &str, file: &str) -> Result<Vec<(Pair, BandwidthFit)>, Vec<Problem>> {
    let mut reader = Reader::new(file);
    let Some(root) = reader.tree(text) else { return Err(reader.problems) };
    let mut at = At { path: String::new(), node: &root };
    let keys = reader.object(&at, "tables of fits");
    if let Some((_, inter)) = keys.iter().find(|(key, _)| key == "inter") {
        at = inter.clone();
    }
    let mut found = Vec::new();
    walk(&mut reader, &at, &mut Vec::new(), &mut found);
    if found.is_empty() && reader.problems.is_empty() {
        reader.fault(&at, "has no fit", "{ \"device\": { \"1\": [[c0, c1, c2], most] } }");
    }
    if reader.problems.is_empty() { Ok(found) } else { Err(reader.problems) }
}

/// Keys down to a fit: two (inside nodes) or six (between zones).
fn walk(reader: &mut Reader<'_>, at: &At<'_>, keys: &mut Vec<String>, found: &mut Vec<(Pair, BandwidthFit)>) {
    if keys.len() > 6 {
        reader.fault(at, "is nested deeper than any file of fits", "six keys: zone, device and count of both ends");
        return;
    }
    if !matches!(at.node.value, crate::json::Tree::List(_)) {
        for (key, inner) in reader.object(at, "a table of fits or a fit") {
            keys.push(key);
            walk(reader, &inner, keys, found);
            keys.pop();
        }
        return;
    }
    let Some(fit) = fit(reader, at) else { return };
    let mut end = |keys: &[String], zone: &str| -> Option<(String, String, u32)> {
        let count = reader.key(&keys[1], at, 1, "number of devices")?;
        Some((zone.to_owned(), keys[0].clone(), count))
    };
    let pair = match keys.len() {
        2 => end(keys, "").map(|from| Pair { to: from.clone(), from }),
        6 => end(&keys[1..3], &keys[0]).zip(end(&keys[4..6], &keys[3])).map(|(from, to)| Pair { from, to }),
        depth => {
            let message = format!("stands behind {depth} keys");
            reader.fault(at, message, "two (device, count) or six (zone, device and count of both ends)");
            None
        }
    };
    if let Some(pair) = pair {
        found.push((pair, fit));
    }
}

fn fit(reader: &mut Reader<'_>, at: &At<'_>) -> Option<BandwidthFit> {
    let parts = reader.list(at, "[[c0, c1, c2], most bytes/s]");
    let [polynomial, most] = parts.as_slice() else {
        reader.fault(at, format!("has {} parts", parts.len()), "[[c0, c1, c2], most bytes/s]");
        return None;
    };
    let numbers = reader.list(polynomial, "[c0, c1, c2]");
    if numbers.len() != 3 {
        reader.fault(polynomial, format!("has {} coefficients", numbers.len()), "[c0, c1, c2]");
        return None;
    }
    let each: Vec<Option<f64>> =
        numbers.iter().map(|at| reader.number(at, -1e6, 1e6, "a coefficient in GB/s")).collect();
    let most = reader.number(most, 1.0, 1e15, "the most bytes per second")?;
    Some(BandwidthFit { coefficients: [each[0]?, each[1]?, each[2]?], most })
}
