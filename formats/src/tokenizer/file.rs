//! What a `tokenizer.json` says, as far as it is followed.

use std::collections::BTreeMap;

use ir::Problem;
use serde::Deserialize;
use serde_json::Value;

use super::MOST_TOKENS;

/// How GPT-2 cuts a text into words.
const GPT2: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// What cuts a text before bytes are merged.
pub(super) enum Pattern {
    /// GPT-2's words.
    Gpt2,
    /// Nothing.
    Whole,
    /// What matches this, and what lies between.
    Written(String),
}

impl Pattern {
    pub(super) fn regex(&self) -> &str {
        match self {
            Self::Gpt2 => GPT2,
            Self::Whole => "(?s:.+)",
            Self::Written(regex) => regex,
        }
    }
}

/// A token beside those of the model.
#[derive(Deserialize, Clone)]
pub(super) struct Added {
    pub(super) id: u32,
    pub(super) content: String,
    pub(super) special: bool,
    #[serde(default)]
    single_word: bool,
    #[serde(default)]
    lstrip: bool,
    #[serde(default)]
    rstrip: bool,
}

/// Tokens and merges, as bytes.
pub(super) struct Model {
    pub(super) vocabulary: BTreeMap<Vec<u8>, u32>,
    pub(super) merges: Vec<(Vec<u8>, Vec<u8>)>,
    /// Whether a word that is a token is taken whole.
    pub(super) ignore_merges: bool,
}

pub(super) struct Found {
    pub(super) model: Model,
    pub(super) added: Vec<Added>,
    pub(super) pattern: Pattern,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    #[serde(rename = "version")]
    _version: Option<Value>,
    truncation: Option<Value>,
    padding: Option<Value>,
    #[serde(default)]
    added_tokens: Vec<Added>,
    normalizer: Option<Value>,
    pre_tokenizer: Option<Value>,
    /// What it adds around a text is not added to documents.
    #[serde(rename = "post_processor")]
    _post_processor: Option<Value>,
    #[serde(rename = "decoder")]
    _decoder: Option<Value>,
    model: Bpe,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Bpe {
    #[serde(rename = "type")]
    kind: Option<String>,
    dropout: Option<f64>,
    /// Every byte is known.
    #[serde(rename = "unk_token")]
    _unk_token: Option<Value>,
    continuing_subword_prefix: Option<String>,
    end_of_word_suffix: Option<String>,
    #[serde(rename = "fuse_unk")]
    _fuse_unk: Option<bool>,
    #[serde(default)]
    byte_fallback: bool,
    #[serde(default)]
    ignore_merges: bool,
    vocab: BTreeMap<String, u32>,
    merges: Vec<Merge>,
}

#[derive(Deserialize)]
#[serde(untagged)]
enum Merge {
    Text(String),
    Pair(String, String),
}

#[derive(Deserialize)]
#[serde(tag = "type")]
enum Step {
    ByteLevel {
        #[serde(default)]
        add_prefix_space: bool,
        #[serde(default = "yes")]
        use_regex: bool,
    },
    Split {
        pattern: SplitPattern,
        behavior: String,
        #[serde(default)]
        invert: bool,
    },
    Sequence {
        pretokenizers: Vec<Step>,
    },
    #[serde(other)]
    Other,
}

#[derive(Deserialize)]
enum SplitPattern {
    Regex(String),
    String(String),
}

const fn yes() -> bool {
    true
}

/// Reads the text.
pub(super) fn read(text: &str) -> Result<Found, Vec<Problem>> {
    // The kind first: another kind has other keys.
    let value: Value = serde_json::from_str(text).map_err(|error| {
        vec![Problem::new("tokenizer", format!("is not JSON: {error}")).hint("give a tokenizer.json of Hugging Face")]
    })?;
    let kind = value.pointer("/model/type").and_then(Value::as_str);
    if let Some(kind) = kind.filter(|kind| *kind != "BPE") {
        let message = format!("a tokenizer of kind {kind} is not read");
        return Err(vec![Problem::new("model.type", message).hint("byte-level BPE is")]);
    }
    let file: File = serde_json::from_value(value).map_err(|error| {
        vec![Problem::new("tokenizer", format!("is no tokenizer.json: {error}")).hint("give a whole one")]
    })?;
    let mut problems = Vec::new();
    let mut refuse = |asked: bool, key: &str, message: String| {
        if asked {
            problems.push(Problem::new(key, message));
        }
    };
    let named = |value: &Option<Value>| {
        let name = value.as_ref().and_then(|value| value.get("type")).and_then(Value::as_str);
        name.unwrap_or("of some kind").to_owned()
    };
    refuse(
        file.normalizer.is_some(),
        "normalizer",
        format!("a normalizer ({}) is not followed", named(&file.normalizer)),
    );
    refuse(file.truncation.is_some(), "truncation", "documents are not cut short".to_owned());
    refuse(file.padding.is_some(), "padding", "documents are not padded".to_owned());
    let Bpe { kind, dropout, continuing_subword_prefix, end_of_word_suffix, byte_fallback, ignore_merges, .. } =
        &file.model;
    refuse(kind.is_none(), "model.type", "is missing, so that its kind is not known".to_owned());
    refuse(
        dropout.is_some_and(|dropout| dropout > 0.0),
        "model.dropout",
        "merges are not left out at random".to_owned(),
    );
    let affix = |affix: &Option<String>| affix.as_ref().is_some_and(|affix| !affix.is_empty());
    let marked = "marks of words' parts are not followed".to_owned();
    refuse(affix(continuing_subword_prefix), "model.continuing_subword_prefix", marked.clone());
    refuse(affix(end_of_word_suffix), "model.end_of_word_suffix", marked);
    refuse(*byte_fallback, "model.byte_fallback", "only byte-level tokens are read".to_owned());
    for added in file.added_tokens.iter().filter(|added| added.id >= MOST_TOKENS) {
        refuse(true, "added_tokens", format!("{:?} is token {}, which is out of reach", added.content, added.id));
    }
    for added in file.added_tokens.iter().filter(|added| !added.special) {
        let asks = added.single_word || added.lstrip || added.rstrip;
        refuse(asks, "added_tokens", format!("{:?} takes notice of what stands around it", added.content));
        refuse(added.content.is_empty(), "added_tokens", format!("token {} has no text", added.id));
    }
    let ignore_merges = *ignore_merges;
    let pattern = pattern(file.pre_tokenizer).map_err(|problem| problems.push(problem));
    let added: BTreeMap<&str, u32> = file.added_tokens.iter().map(|added| (added.content.as_str(), added.id)).collect();
    let model = model(file.model, &added, ignore_merges).map_err(|mut found| problems.append(&mut found));
    match (pattern, model) {
        (Ok(pattern), Ok(model)) if problems.is_empty() => Ok(Found { model, added: file.added_tokens, pattern }),
        _ => Err(problems),
    }
}

fn pattern(asked: Option<Value>) -> Result<Pattern, Problem> {
    let refuse = |message: &str| Problem::new("pre_tokenizer", message.to_owned());
    let asked = asked.ok_or_else(|| refuse("is missing: only byte-level tokens are read").hint("ByteLevel is"))?;
    let step: Step =
        serde_json::from_value(asked).map_err(|error| refuse("is not understood").hint(error.to_string()))?;
    let steps = match step {
        Step::Sequence { pretokenizers } => pretokenizers,
        step @ (Step::ByteLevel { .. } | Step::Split { .. } | Step::Other) => vec![step],
    };
    let (last, before) = steps.split_last().ok_or_else(|| refuse("has no steps: only byte-level tokens are read"))?;
    let Step::ByteLevel { add_prefix_space, use_regex } = last else {
        return Err(refuse("does not end with ByteLevel: only byte-level tokens are read"));
    };
    if *add_prefix_space {
        return Err(refuse("puts a space before each text, which is not done"));
    }
    match (before, use_regex) {
        ([], true) => Ok(Pattern::Gpt2),
        ([], false) => Ok(Pattern::Whole),
        ([Step::Split { pattern, behavior, invert: false }], false) if behavior == "Isolated" => match pattern {
            SplitPattern::Regex(regex) => Ok(Pattern::Written(regex.clone())),
            SplitPattern::String(text) => {
                Err(refuse(&format!("splits at {text:?}, which is not followed; a regex is")))
            }
        },
        _ => Err(refuse("cuts a text in several steps, or not at what it matches; one isolating Split is followed")),
    }
}

/// The byte that a character stands for: GPT-2 writes bytes that print as themselves, the others from U+0100 on.
fn bytes_of_characters() -> BTreeMap<char, u8> {
    let prints = |byte: &u8| matches!(byte, b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff);
    let (shown, hidden): (Vec<u8>, Vec<u8>) = (0..=u8::MAX).partition(prints);
    let itself = shown.into_iter().map(|byte| (char::from(byte), byte));
    let moved = ('\u{100}'..).zip(hidden);
    itself.chain(moved).collect()
}

fn model(bpe: Bpe, added: &BTreeMap<&str, u32>, ignore_merges: bool) -> Result<Model, Vec<Problem>> {
    let characters = bytes_of_characters();
    let bytes =
        |text: &str| text.chars().map(|character| characters.get(&character).copied()).collect::<Option<Vec<u8>>>();
    let (mut vocabulary, mut problems) = (BTreeMap::new(), Vec::new());
    let mut ids: BTreeMap<u32, &str> = BTreeMap::new();
    for (text, id) in &bpe.vocab {
        if let Some(other) = ids.insert(*id, text) {
            problems.push(Problem::new("model.vocab", format!("{text:?} and {other:?} are both token {id}")));
        }
        if *id >= MOST_TOKENS {
            problems.push(Problem::new("model.vocab", format!("{text:?} is token {id}, which is out of reach")));
        }
        if added.get(text.as_str()) == Some(id) {
            continue;
        }
        match bytes(text) {
            Some(bytes) if !bytes.is_empty() => {
                vocabulary.insert(bytes, *id);
            }
            _ => problems.push(Problem::new("model.vocab", format!("{text:?} is not written byte by byte"))),
        }
        if problems.len() >= 8 {
            break;
        }
    }
    let mut merges = Vec::with_capacity(bpe.merges.len());
    for (place, merge) in bpe.merges.iter().enumerate() {
        let pair = match merge {
            Merge::Pair(left, right) => Some((left.as_str(), right.as_str())),
            Merge::Text(text) => text.split_once(' '),
        };
        match pair.and_then(|(left, right)| bytes(left).zip(bytes(right))) {
            Some((left, right)) if !left.is_empty() && !right.is_empty() => merges.push((left, right)),
            _ if problems.len() >= 8 => break,
            _ => problems.push(Problem::new(format!("model.merges[{place}]"), "is no pair of tokens")),
        }
    }
    if problems.is_empty() { Ok(Model { vocabulary, merges, ignore_merges }) } else { Err(problems) }
}
