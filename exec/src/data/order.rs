//! The order of samples: a permutation of its own for each epoch, that needs no table.

/// The sample at a place of an epoch of `samples`.
pub(super) fn sample_at(seed: u64, epoch: u64, place: u64, samples: u64) -> u64 {
    permuted(place, samples, mix(seed ^ mix(epoch)))
}

/// The image of `place` under a permutation of `0..count` that `key` selects.
///
/// A Feistel network of four rounds over the next even power of two, walked until it comes back into range
/// (Black and Rogaway 2002): no table, so that any place costs the same.
fn permuted(place: u64, count: u64, key: u64) -> u64 {
    let bits = (u64::BITS - (count - 1).leading_zeros()).div_ceil(2);
    let mask = (1u64 << bits) - 1;
    let mut value = place;
    loop {
        let (mut left, mut right) = (value >> bits, value & mask);
        for round in 0..4 {
            (left, right) = (right, left ^ (mix(right ^ mix(key.wrapping_add(round))) & mask));
        }
        value = left << bits | right;
        if value < count {
            return value;
        }
    }
}

/// A number that depends on every bit of `x` (the output function of SplitMix64, Steele et al. 2014).
const fn mix(x: u64) -> u64 {
    let x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}
