//! A text of the project's own: sentences of a small grammar, the same for the same seed on any machine.
//!
//! It is made to be learnt by a small model in few iterations, and by stages: letters and spaces, then words, then which
//! word may follow which (a verb agrees with its subject in number, an object fits its verb), then that a name in
//! a sentence comes back at its end.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

/// Singular and plural of what acts.
const ACTORS: [(&str, &str); 8] = [
    ("the miller", "the millers"),
    ("a sailor", "two sailors"),
    ("the old smith", "the old smiths"),
    ("a weaver", "many weavers"),
    ("the young baker", "the young bakers"),
    ("our neighbour", "our neighbours"),
    ("the shepherd", "the shepherds"),
    ("a carpenter", "three carpenters"),
];

/// Singular and plural of an action, and what it is done to.
const ACTIONS: [(&str, &str, [&str; 3]); 8] = [
    ("mends", "mend", ["the nets", "an old boat", "the torn sail"]),
    ("sells", "sell", ["warm bread", "the grey wool", "a basket of apples"]),
    ("carries", "carry", ["water", "the heavy stones", "a basket of apples"]),
    ("builds", "build", ["a bridge", "the long wall", "an old boat"]),
    ("counts", "count", ["the sheep", "the silver coins", "the heavy stones"]),
    ("paints", "paint", ["the door", "the long wall", "a wooden sign"]),
    ("gathers", "gather", ["the sheep", "dry wood", "the fallen leaves"]),
    ("washes", "wash", ["the grey wool", "the door", "the torn sail"]),
];

const PLACES: [&str; 6] =
    ["by the river", "near the mill", "behind the church", "on the hill", "in the harbour", "at the market"];

const TIMES: [&str; 5] = ["before dawn", "at noon", "every evening", "in the rain", "when the bell rings"];

/// At least `bytes` bytes of text, to the end of a sentence.
#[must_use]
pub fn generate(seed: u64, bytes: usize) -> Vec<u8> {
    let mut random = ChaCha8Rng::seed_from_u64(seed);
    let mut text = String::with_capacity(bytes + 160);
    while text.len() < bytes {
        sentence(&mut random, &mut text);
        text.push(if random.random_range(0..6) == 0 { '\n' } else { ' ' });
    }
    text.into_bytes()
}

/// Appends a sentence: perhaps a time; actor, action, object; perhaps a place; perhaps a second clause or the speaker.
fn sentence(random: &mut ChaCha8Rng, text: &mut String) {
    let start = text.len();
    if random.random_range(0..3) == 0 {
        text.push_str(one_of::<&str>(random, &TIMES));
        text.push_str(", ");
    }
    let (singular, plural) = *one_of(random, &ACTORS);
    let alone = random.random_range(0..2) == 0;
    let actor = if alone { singular } else { plural };
    text.push_str(actor);
    let clause = |random: &mut ChaCha8Rng, text: &mut String| {
        let (one, many, objects) = one_of(random, &ACTIONS);
        text.push(' ');
        text.push_str(if alone { one } else { many });
        text.push(' ');
        text.push_str(one_of::<&str>(random, objects));
    };
    clause(random, text);
    if random.random_range(0..2) == 0 {
        text.push(' ');
        text.push_str(one_of::<&str>(random, &PLACES));
    }
    match random.random_range(0..4) {
        0 => {
            text.push_str(" and");
            clause(random, text);
        }
        1 => {
            text.push_str(if alone { ", says " } else { ", say " });
            text.push_str(actor);
        }
        _ => {}
    }
    text.push('.');
    text[start..=start].make_ascii_uppercase();
}

fn one_of<'a, T>(random: &mut ChaCha8Rng, choices: &'a [T]) -> &'a T {
    &choices[random.random_range(0..choices.len())]
}

/// Entropy of the bytes of a text each taken alone, in nats: the loss of a model that has learnt frequencies and nothing
/// else. Zero for an empty text.
#[must_use]
pub fn unigram_entropy(text: &[u8]) -> f64 {
    let mut counts = [0u64; 256];
    text.iter().for_each(|byte| counts[usize::from(*byte)] += 1);
    let total = text.len() as f64;
    let terms = counts.iter().filter(|count| **count > 0).map(|count| *count as f64 / total);
    terms.map(|share| -share * libm::log(share)).sum()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use super::*;

    /// Entropy of a byte given the `context` bytes before it, in nats.
    fn conditional_entropy(text: &[u8], context: usize) -> f64 {
        let mut counts: BTreeMap<&[u8], BTreeMap<u8, f64>> = BTreeMap::new();
        for window in text.windows(context + 1) {
            *counts.entry(&window[..context]).or_default().entry(window[context]).or_default() += 1.0;
        }
        let total = (text.len() - context) as f64;
        let of_one = |next: &BTreeMap<u8, f64>| {
            let sum: f64 = next.values().sum();
            next.values().map(|n| -n / total * libm::log(n / sum)).sum::<f64>()
        };
        counts.values().map(of_one).sum()
    }

    #[test]
    fn the_text_can_be_learnt() {
        let text = generate(7, 200_000);
        assert_eq!(text, generate(7, 200_000));
        assert_ne!(text, generate(8, 200_000));
        assert!((200_000..200_300).contains(&text.len()) && text.is_ascii());
        let alone = unigram_entropy(&text);
        assert!((2.5..3.5).contains(&alone), "{alone} nats a byte");
        assert!((conditional_entropy(&text, 0) - alone).abs() < 1e-9);
        let after = [1, 3, 6].map(|context| conditional_entropy(&text, context));
        assert!(
            after[0] < 0.75 * alone && after[1] < 0.4 * alone && after[2] < 0.25 * alone,
            "{alone}, then {after:?}"
        );
        assert!(unigram_entropy(b"").abs() < 1e-12 && unigram_entropy(b"aaaa").abs() < 1e-12);
        assert!((unigram_entropy(b"abab") - std::f64::consts::LN_2).abs() < 1e-12);
    }
}
