use serde_json::{Value, json};

use super::*;

/// The tokenizer of the example `own-text`, which Hugging Face's `tokenizers` 0.23.3 trained.
const TINY: &str = include_str!("../../../examples/own-text/tokenizer.json");

const LLAMA: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";

fn changed(change: impl FnOnce(&mut Value)) -> String {
    let mut value: Value = serde_json::from_str(TINY).unwrap();
    change(&mut value);
    value.to_string()
}

/// Texts and what `tokenizers` gives for them, without special tokens.
const ENCODED: [(&str, &[u32]); 7] = [
    ("Ada was a baker by the river.", &[33, 347, 285, 258, 269, 65, 275, 82, 269, 89, 262, 221, 288, 86, 293, 14]),
    (
        "  two  spaces\n\n\tand tabs   ",
        &[221, 260, 87, 79, 221, 261, 80, 65, 67, 305, 199, 199, 198, 65, 263, 260, 65, 66, 83, 221, 221, 221],
    ),
    ("It's 1234 steps; wouldn't you?", &[321, 360, 221, 17, 18, 19, 20, 364, 27, 345, 337, 355, 31]),
    (
        "Grüße, 東京 🚂!",
        &[39, 82, 128, 121, 128, 254, 69, 12, 221, 163, 252, 110, 161, 119, 106, 221, 173, 254, 249, 225, 1],
    ),
    ("", &[]),
    ("a", &[65]),
    ("          ", &[221; 10]),
];

#[test]
fn texts_become_the_tokens_that_their_own_library_gives() {
    let split = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": LLAMA}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true, "use_regex": false}]});
    for text in [TINY.to_owned(), changed(|value| value["pre_tokenizer"] = split)] {
        let tokenizer = read(&text, "tokenizer.json").unwrap();
        assert_eq!((tokenizer.vocabulary(), tokenizer.added("<|endoftext|>")), (384, Some(0)));
        for (text, expect) in ENCODED {
            assert_eq!(tokenizer.encode(text).unwrap(), expect, "{text:?}");
        }
        // Text, whatever it looks like.
        assert!(!tokenizer.encode("<|endoftext|>").unwrap().contains(&0));
    }
}

#[test]
fn added_words_are_read_in_texts() {
    let text = changed(|value| {
        let word = json!({"id": 384, "content": "Ada", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": true, "special": false});
        value["added_tokens"].as_array_mut().unwrap().push(word);
    });
    let tokenizer = read(&text, "tokenizer.json").unwrap();
    assert_eq!(tokenizer.vocabulary(), 385);
    assert_eq!(tokenizer.encode("Ada and Ada's").unwrap(), [384, 280, 221, 384, 360]);
}

#[test]
fn what_cannot_be_followed_is_named() {
    let check = |text: &str, expect: &[&str]| {
        let problems: Vec<String> = read(text, "tokenizer.json").unwrap_err().iter().map(ToString::to_string).collect();
        assert_eq!(problems.len(), expect.len(), "{problems:#?}");
        assert!(problems.iter().zip(expect).all(|(problem, part)| problem.contains(part)), "{problems:#?}");
    };
    let with = |change: fn(&mut Value), expect: &[&str]| check(&changed(change), expect);
    check(&TINY[..300], &["is not JSON"]);
    check("{}", &["is no tokenizer.json: missing field `model`"]);
    with(|v| v["model"]["type"] = json!("Unigram"), &["a tokenizer of kind Unigram is not read (byte-level BPE is)"]);
    with(|v| v["model"]["novel"] = json!(1), &["unknown field `novel`"]);
    with(
        |v| (v["normalizer"], v["model"]["dropout"]) = (json!({"type": "NFC"}), json!(0.1)),
        &["normalizer: a normalizer (NFC) is not followed", "model.dropout"],
    );
    with(|v| v["pre_tokenizer"] = Value::Null, &["only byte-level tokens are read (ByteLevel is)"]);
    with(|v| v["pre_tokenizer"] = json!({"type": "Whitespace"}), &["does not end with ByteLevel"]);
    with(|v| v["pre_tokenizer"]["add_prefix_space"] = json!(true), &["puts a space before each text"]);
    with(|v| v["model"]["byte_fallback"] = json!(true), &["only byte-level tokens are read"]);
    with(|v| v["model"]["merges"][0] = json!("alone"), &["model.merges[0]: is no pair of tokens"]);
    with(|v| v["model"]["merges"] = json!([["Q", "Q"]]), &["model.merges[0]: makes \"QQ\", which is no token"]);
    with(|v| v["model"]["vocab"]["Ada x"] = json!(9999), &["\"Ada x\" is not written byte by byte"]);
    with(
        |v| drop(v["model"]["vocab"].as_object_mut().unwrap().remove("z")),
        &["1 bytes have no token, the first of them 0x7a"],
    );
    with(|v| v["model"]["vocab"]["z"] = json!(33), &["are both token 33"]);
    with(
        |v| {
            let model = &mut v["model"];
            (model["vocab"]["xyz"], model["ignore_merges"]) = (json!(400), json!(true));
        },
        &["1 tokens are made by no merge, such as \"xyz\""],
    );
    // (b, c) comes before (ab, c): what it leaves of "abc" is a and bc.
    with(
        |v| {
            for (id, token) in ["bc", "ab", "abc"].iter().enumerate() {
                v["model"]["vocab"][*token] = json!(400 + id);
            }
            v["model"]["merges"] = json!([["b", "c"], ["a", "b"], ["ab", "c"]]);
        },
        &["model.merges[2]: joins parts of \"abc\" that are not what the merges before it leave"],
    );
    let bad = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": "(("}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]});
    check(&changed(|v| v["pre_tokenizer"] = bad), &["its pattern is not understood"]);
}

#[test]
fn a_pattern_that_leaves_text_out_is_noticed() {
    let words = json!({"type": "Sequence", "pretokenizers": [
        {"type": "Split", "pattern": {"Regex": r"\p{L}+"}, "behavior": "Isolated", "invert": false},
        {"type": "ByteLevel", "add_prefix_space": false, "use_regex": false}]});
    let tokenizer = read(&changed(|v| v["pre_tokenizer"] = words), "tokenizer.json").unwrap();
    assert!(tokenizer.encode("Ada").is_ok());
    assert_eq!(tokenizer.encode("Ada 1").unwrap_err().message, "its pattern leaves out 2 of 5 bytes");
}
