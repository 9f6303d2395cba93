//! What an exchange of unequal parts carries: how long each part is, then the parts.
//!
//! A *bundle* is what one rank gives to (or gets from) all members of a group: as many lengths as there are members, each the
//! bits of a whole number in an FP32, then the members' parts one after another. Bundles say themselves where they end, so
//! that several may follow each other.

use std::ops::Range;

/// Writes the lengths of the parts of a bundle to come into an empty buffer.
pub(crate) fn begin(out: &mut Vec<f32>, lengths: impl Iterator<Item = usize>) {
    out.clear();
    out.extend(lengths.map(number));
}

/// A whole number in the bits of an FP32.
///
/// # Panics
/// If it has more than 32 bits.
pub(crate) fn number(value: usize) -> f32 {
    f32::from_bits(u32::try_from(value).expect("a part of fewer than 2^32 elements"))
}

/// The whole number in the bits of an FP32.
pub(crate) fn whole(value: f32) -> usize {
    usize::try_from(value.to_bits()).expect("usize has at least 32 bits")
}

/// Cuts `bundles` that follow each other, of `members` parts each, into all their parts, in order.
///
/// # Panics
/// If the data are longer or shorter than the bundles say.
pub(crate) fn parts(data: &[f32], bundles: usize, members: usize) -> Vec<&[f32]> {
    let (mut rest, mut found) = (data, Vec::with_capacity(bundles * members));
    for _ in 0..bundles {
        let (lengths, after) = rest.split_at(members);
        rest = after;
        for length in lengths {
            let (part, after) = rest.split_at(whole(*length));
            found.push(part);
            rest = after;
        }
    }
    assert!(rest.is_empty(), "{} elements after {bundles} bundles of {members}", rest.len());
    found
}

/// Where the part for member `index` stands in a bundle for so many.
pub(crate) fn part_for(bundle: &[f32], members: usize, index: usize) -> Range<usize> {
    let lengths = &bundle[..members];
    let start = members + lengths[..index].iter().copied().map(whole).sum::<usize>();
    start..start + whole(lengths[index])
}

/// A bundle of parts.
pub(crate) fn join(parts: &[&[f32]], out: &mut Vec<f32>) {
    begin(out, parts.iter().map(|part| part.len()));
    parts.iter().for_each(|part| out.extend_from_slice(part));
}

/// What member `index` gets of the bundles that all members gave: a bundle of its parts.
pub(crate) fn exchange(given: &[&[f32]], index: usize, out: &mut Vec<f32>) {
    let mine: Vec<&[f32]> = given.iter().map(|bundle| &bundle[part_for(bundle, given.len(), index)]).collect();
    join(&mine, out);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everyone_gets_the_parts_that_are_meant_for_it() {
        // Member `i` gives `i + j` numbers `10 i + j` to member `j`.
        let value = |i: u8, j: u8| f32::from(10 * i + j);
        let give = |i: u8| {
            let mut out = vec![9.0];
            begin(&mut out, (0..3).map(|j| usize::from(i) + j));
            (0..3u8).for_each(|j| out.extend(std::iter::repeat_n(value(i, j), usize::from(i + j))));
            out
        };
        let given: Vec<Vec<f32>> = (0..3).map(give).collect();
        let given: Vec<&[f32]> = given.iter().map(Vec::as_slice).collect();
        for j in 0..3u8 {
            let mut got = Vec::new();
            exchange(&given, usize::from(j), &mut got);
            for (i, part) in (0..3u8).zip(parts(&got, 1, 3)) {
                assert_eq!(part, vec![value(i, j); usize::from(i + j)]);
            }
        }
        assert_eq!(parts(&given.concat(), 3, 3).len(), 9);
    }
}
