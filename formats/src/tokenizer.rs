//! Byte-pair tokenizers, as Hugging Face writes them into `tokenizer.json`.
//!
//! What is read is byte-level byte-pair encoding: GPT-2, Llama 3, Qwen and their kin, and whatever `tokenizers` trains with a
//! `ByteLevel` pre-tokenizer. A normalizer, another kind of model, or a pattern of several steps is refused by name, because a
//! text tokenised almost right trains another model. Encoding is `tiktoken`'s, which merges by the rank of the result; that it
//! gives what merging pair by pair gives is checked of every token when the file is read.

mod file;

use std::collections::{BTreeMap, HashSet};

use ir::Problem;
use rustc_hash::FxHashMap;
use tiktoken_rs::{CoreBPE, byte_pair_split};

use file::{Added, Model, Pattern};

/// Ids from here on are out of reach.
const MOST_TOKENS: u32 = 1 << 24;

/// A byte-pair tokenizer.
#[derive(Clone)]
pub struct Tokenizer {
    encoder: CoreBPE,
    /// By rank, the id and the bytes of a token.
    tokens: Vec<(u32, usize)>,
    /// Added tokens that are read in texts.
    read: Vec<String>,
    /// Every added token.
    added: BTreeMap<String, u32>,
    vocabulary: u32,
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Tokenizer").field("vocabulary", &self.vocabulary).finish_non_exhaustive()
    }
}

/// Reads a `tokenizer.json`.
///
/// # Errors
/// Every reason why it is none that can be followed.
pub fn read(text: &str, file: &str) -> Result<Tokenizer, Vec<Problem>> {
    let refuse = |problems: Vec<Problem>| {
        let whole = ir::SourceSpan { file: file.to_owned(), range: 0..0 };
        problems.into_iter().map(|problem| problem.at(whole.clone())).collect()
    };
    let found = file::read(text).map_err(refuse)?;
    build(&found.model, &found.added, &found.pattern).map_err(refuse)
}

fn build(model: &Model, added: &[Added], pattern: &Pattern) -> Result<Tokenizer, Vec<Problem>> {
    let (ranks, mut tokens) = ranked(model)?;
    let ids = tokens.iter().map(|(id, _)| *id).chain(added.iter().map(|added| added.id));
    let vocabulary = ids.max().map_or(0, |largest| largest + 1);
    let (mut of_text, mut read) = (FxHashMap::default(), Vec::new());
    for added in added.iter().filter(|added| !added.special) {
        of_text.insert(added.content.clone(), rank(tokens.len()));
        tokens.push((added.id, added.content.len()));
        read.push(added.content.clone());
    }
    if of_text.is_empty() {
        // Texts hold no zero byte, so that this is never met; an empty pattern would be met everywhere.
        of_text.insert("\0".to_owned(), u32::MAX);
    }
    let encoder = CoreBPE::new(ranks, of_text, pattern.regex())
        .map_err(|error| vec![Problem::new("pre_tokenizer", format!("its pattern is not understood: {error}"))])?;
    let added = added.iter().map(|added| (added.content.clone(), added.id)).collect();
    Ok(Tokenizer { encoder, tokens, read, added, vocabulary })
}

fn rank(place: usize) -> u32 {
    u32::try_from(place).expect("fewer tokens than 2^24")
}

/// The rank of every token that bytes or merges make, by its bytes; and id and length of each, by rank.
type Ranked = (FxHashMap<Vec<u8>, u32>, Vec<(u32, usize)>);

/// Bytes come first, then what merges make, in their order.
fn ranked(model: &Model) -> Result<Ranked, Vec<Problem>> {
    let (mut ranks, mut tokens) = (FxHashMap::default(), Vec::new());
    let mut problems = Vec::new();
    let mut missing = Vec::new();
    for byte in 0..=u8::MAX {
        match model.vocabulary.get(&vec![byte]) {
            Some(id) => {
                ranks.insert(vec![byte], rank(tokens.len()));
                tokens.push((*id, 1));
            }
            None => missing.push(byte),
        }
    }
    if let Some(first) = missing.first() {
        let message = format!("{} bytes have no token, the first of them {first:#04x}", missing.len());
        return Err(vec![Problem::new("model.vocab", message).hint("train it with all 256 bytes in its alphabet")]);
    }
    let mut refuse = |merge: usize, message: String| {
        if problems.len() < 8 {
            problems.push(Problem::new(format!("model.merges[{merge}]"), message));
        }
    };
    for (place, (left, right)) in model.merges.iter().enumerate() {
        let whole = [left.as_slice(), right].concat();
        let shown = String::from_utf8_lossy(&whole).into_owned();
        let Some(id) = model.vocabulary.get(&whole) else {
            refuse(place, format!("makes {shown:?}, which is no token"));
            continue;
        };
        if ranks.contains_key(&whole) {
            // A second way to a token is never taken: its bytes are merged the first way before.
            continue;
        }
        let parts = byte_pair_split(&whole, &ranks);
        if parts != [left.as_slice(), right.as_slice()] {
            let message = format!("joins parts of {shown:?} that are not what the merges before it leave");
            refuse(place, message);
            continue;
        }
        ranks.insert(whole, rank(tokens.len()));
        tokens.push((*id, left.len() + right.len()));
    }
    let unmade: Vec<&Vec<u8>> = model.vocabulary.keys().filter(|bytes| !ranks.contains_key(*bytes)).collect();
    if let (true, Some(first)) = (model.ignore_merges && problems.is_empty(), unmade.first()) {
        let message =
            format!("{} tokens are made by no merge, such as {:?}", unmade.len(), String::from_utf8_lossy(first));
        problems.push(Problem::new("model.ignore_merges", message).hint("only tokens that merges make are followed"));
    }
    if problems.is_empty() { Ok((ranks, tokens)) } else { Err(problems) }
}

impl Tokenizer {
    /// How many tokens it knows: its largest id and one.
    #[must_use]
    pub const fn vocabulary(&self) -> u32 {
        self.vocabulary
    }
    /// The id of an added token, such as `<|endoftext|>`.
    #[must_use]
    pub fn added(&self, content: &str) -> Option<u32> {
        self.added.get(content).copied()
    }
    /// Every added token, in the order of their texts.
    pub fn all_added(&self) -> impl Iterator<Item = &str> {
        self.added.keys().map(String::as_str)
    }
    /// The tokens of a text. Special tokens that stand in it are text as any other.
    ///
    /// # Errors
    /// If the pattern cannot be followed over this text, or leaves a part of it out.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>, Problem> {
        let read: HashSet<&str> = self.read.iter().map(String::as_str).collect();
        let (ranks, _) =
            self.encoder.encode(text, &read).map_err(|error| Problem::new("tokenizer", error.to_string()))?;
        let (mut ids, mut bytes) = (Vec::with_capacity(ranks.len()), 0);
        for rank in ranks {
            let (id, length) = self.tokens[rank as usize];
            ids.push(id);
            bytes += length;
        }
        if bytes != text.len() {
            let message = format!("its pattern leaves out {} of {} bytes", text.len() - bytes, text.len());
            return Err(Problem::new("tokenizer", message));
        }
        Ok(ids)
    }
}

#[cfg(test)]
mod tests;
