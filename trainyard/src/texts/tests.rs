use std::path::Path;

use exec::data::{Dataset, Packing, Text};
use ir::Problem;

use super::{cut, read};
use crate::scenario::{Documents, TextFiles};

/// A file of these bytes, or a folder of such files.
fn write(folder: &Path, files: &[(&str, &[u8])]) {
    for (name, bytes) in files {
        let path = folder.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, bytes).unwrap();
    }
}

fn folder(path: &Path) -> TextFiles {
    TextFiles {
        path: path.display().to_string(),
        extensions: Some(vec!["txt".to_owned(), "jsonl".to_owned()]),
        tokenizer: None,
        documents: Documents::Files,
        end: None,
        packing: Packing::Concatenate,
    }
}

/// All tokens of a text, by way of one sample.
fn tokens(text: Text) -> Vec<u32> {
    let length = u32::try_from(text.tokens() - 1).unwrap();
    let batch = Dataset::new(text, length, 0).unwrap().batch(0, 1);
    batch.tokens.iter().chain(batch.targets.last()).copied().collect()
}

fn check(files: &[(&str, &[u8])], change: impl FnOnce(&mut TextFiles), expect: &[&str]) {
    let temporary = tempfile::tempdir().unwrap();
    write(temporary.path(), files);
    let mut asked = folder(temporary.path());
    change(&mut asked);
    let problems: Vec<String> = read(&asked).unwrap_err().iter().map(Problem::to_string).collect();
    assert_eq!(problems.len(), expect.len(), "{problems:#?}");
    assert!(problems.iter().zip(expect).all(|(problem, part)| problem.contains(part)), "{problems:#?}");
}

#[test]
fn a_folder_is_read_in_the_order_of_its_paths() {
    let temporary = tempfile::tempdir().unwrap();
    let files: [(&str, &[u8]); 6] = [
        ("b.txt", b"bb"),
        ("a/z.txt", b"az"),
        ("a.txt", "\u{feff}a".as_bytes()),
        ("c.bin", b"\0"),
        (".d.txt", b"d"),
        ("e.txt", b""),
    ];
    write(temporary.path(), &files);
    let mut asked = folder(temporary.path());
    let bytes = |text: &str| text.bytes().map(u32::from).collect::<Vec<_>>();
    assert_eq!(tokens(read(&asked).unwrap()), bytes("azabb"));
    asked.end = Some("end".to_owned());
    let text = read(&asked).unwrap();
    assert_eq!((text.documents(), text.vocabulary()), (3, 257));
    assert_eq!(tokens(text), [&bytes("az")[..], &[256, 97, 256, 98, 98, 256]].concat());
    asked.extensions = None;
    asked.path = temporary.path().join("b.txt").display().to_string();
    asked.end = None;
    assert_eq!(tokens(read(&asked).unwrap()), bytes("bb"));
}

#[test]
fn documents_are_what_was_asked_for() {
    let check = |documents, text: &str, expect: &[&str]| assert_eq!(cut(documents, text).unwrap(), expect, "{text:?}");
    check(Documents::Files, "a\n\nb", &["a\n\nb"]);
    check(Documents::Files, " \n", &[]);
    check(Documents::Paragraphs, "\n\na\nb\n \t\nc\n\n\nd", &["a\nb\n", "c\n", "d"]);
    check(Documents::EndOfText, "a<|endoftext|>\n<|endoftext|>b\n<|endoftext|>", &["a", "b\n"]);
    check(Documents::JsonLines, "{\"text\": \"a\\nb\", \"id\": 1}\n\n{\"text\": \"c\"}", &["a\nb", "c"]);
    let wrong = |text: &str| cut(Documents::JsonLines, text).unwrap_err();
    assert_eq!(wrong("{\"text\": \"a\"}\n{\"words\": 1}"), ":2: has no key `text`");
    assert_eq!(wrong("{\"text\": 1}"), ":1: its `text` is no text");
    assert_eq!(wrong("{\"text\": \"\\u0000\"}"), ":1: its text holds a zero byte");
    assert!(wrong("nothing").starts_with(":1: is not JSON"));
}

#[test]
fn every_bad_file_is_named_at_once() {
    check(
        &[("a.txt", b"good"), ("b.txt", b"ab\0c"), ("c/d.txt", b"gr\xfc\xdfe")],
        |_| {},
        &["b.txt: is binary, not text: byte 2 is zero", "d.txt: is not text: byte 2 (0xfc) is not UTF-8"],
    );
    check(&[("a.bin", b"x"), ("b", b"y")], |_| {}, &["ends in .txt, .jsonl; 2 others are there (name the endings"]);
    check(&[("a.txt", b""), ("b.txt", b" \n")], |_| {}, &["every file in it is empty (there is nothing to train on)"]);
    check(
        &[("a.txt", b"")],
        |asked| {
            (asked.extensions, asked.path) = (None, format!("{}/a.txt", asked.path));
        },
        &["data.file: "],
    );
    let many: Vec<(String, Vec<u8>)> = (0..12).map(|i| (format!("{i}.txt"), vec![0])).collect();
    let many: Vec<(&str, &[u8])> = many.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    let mut expect = vec!["is binary"; 8];
    expect.push("4 more files have such faults");
    check(&many, |_| {}, &expect);
    check(
        &[("a.jsonl", b"{\"text\": \"a\"}\n{}"), ("b.jsonl", b"[]")],
        |asked| asked.documents = Documents::JsonLines,
        &["a.jsonl:2: has no key `text`", "b.jsonl:1: has no key `text`"],
    );
}

#[test]
fn tokenizers_and_their_faults_are_read_with_the_texts() {
    let own = concat!(env!("CARGO_MANIFEST_DIR"), "/../examples/own-text/tokenizer.json");
    let temporary = tempfile::tempdir().unwrap();
    write(temporary.path(), &[("a.txt", b"Ada was"), ("b.txt", b"a baker")]);
    let mut asked = folder(temporary.path());
    (asked.tokenizer, asked.end) = (Some(own.to_owned()), Some("<|endoftext|>".to_owned()));
    let text = read(&asked).unwrap();
    assert_eq!((text.documents(), text.vocabulary()), (2, 384));
    let all = tokens(text);
    assert!(all.iter().filter(|token| **token == 0).count() == 2 && all.last() == Some(&0), "{all:?}");
    let with = |own: &str, end: &str, expect: &[&str]| {
        check(
            &[("a.txt", b"\xff"), ("t.json", b"{\"model\": {\"type\": \"Unigram\"}}")],
            |asked| {
                let own = own.replace("HERE", &asked.path);
                (asked.tokenizer, asked.end) = (Some(own), Some(end.to_owned()));
            },
            expect,
        );
    };
    with("HERE/t.json", "x", &["data.tokenizer: ", "is not text: byte 0 (0xff)"]);
    with("HERE/missing.json", "x", &["cannot read", "is not text"]);
    check(
        &[("a.txt", b"a b")],
        |asked| (asked.tokenizer, asked.end) = (Some(own.to_owned()), Some("<|endoftex|>".to_owned())),
        &["data.end: `<|endoftex|>` is no added token of the tokenizer (did you mean `<|endoftext|>`?)"],
    );
}

fn example(change: impl FnOnce(String) -> String) -> Result<crate::Loaded, crate::Error> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../examples/own-text");
    let text = std::fs::read_to_string(folder.join("scenario.toml")).unwrap();
    crate::scenario::parse("scenario.toml", &change(text), &folder)
}

#[test]
fn the_example_trains_on_its_texts() {
    let loaded = example(|text| text.replace("iterations = 12", "iterations = 4")).unwrap_or_else(|e| panic!("{e}"));
    let again = crate::scenario::parse("again.toml", &loaded.scenario.to_toml(), Path::new(""));
    assert_eq!(again.unwrap_or_else(|e| panic!("{e}")).scenario, loaded.scenario);
    let report = crate::run(&loaded, &crate::Context::default()).unwrap_or_else(|e| panic!("{e}"));
    assert!(report.loss.len() == 4 && report.loss[3] < report.loss[0], "{:?}", report.loss);
    // Untrained, all 384 tokens are as likely.
    assert!((report.loss[0] - 384f64.ln()).abs() < 0.5, "{:?}", report.loss);
    assert!(report.text.starts_with("180 documents of "), "{}", report.text);
    let small = example(|text| text.replace("vocabulary = 384", "vocabulary = 300")).unwrap_or_else(|e| panic!("{e}"));
    let error = crate::run(&small, &crate::Context::default()).unwrap_err().to_string();
    assert!(
        error.contains("the tokenizer knows 384 tokens, and a vocabulary of 300 cannot hold all of them"),
        "{error}"
    );
}

#[test]
fn wrong_data_sections_are_refused() {
    let check = |from: &str, to: &str, expect: &[&str]| {
        let error = match example(|text| text.replace(from, to)) {
            Ok(_) => panic!("{to} was read"),
            Err(error) => error.to_string(),
        };
        assert!(expect.iter().all(|part| error.contains(part)), "{to}: {error}");
    };
    check("folder = \"texts\"", "folder = \"tekst\"", &["data.folder", "cannot read", "tekst"]);
    check("folder = \"texts\"", "folder = \"scenario.toml\"", &["is a file", "name it as `file`"]);
    check("folder = \"texts\"", "file = \"texts\"", &["is a folder", "name it as `folder`"]);
    check("folder = \"texts\"", "folder = \"texts\"\nfile = \"scenario.toml\"", &["exclude each other"]);
    check("folder = \"texts\"", "folder = \"texts\"\nsource = \"generated\"", &["exclude each other"]);
    check("folder = \"texts\"\n", "", &["data.tokenizer", "data.packing", "says how files are read"]);
    check(
        "packing = \"documents\"",
        "packing = \"document\"\nextensions = []",
        &["is none of: concatenate, documents", "did you mean `documents`?", "no file has none of no endings"],
    );
}
