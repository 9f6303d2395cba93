//! Text files to the tokens of documents.

use std::path::{Path, PathBuf};

use exec::data::{BYTES, Text, TextBuilder};
use formats::tokenizer::{self, Tokenizer};
use ir::Problem;
use rayon::prelude::*;

use crate::read::nearest;
use crate::scenario::{Documents, TextFiles};

/// Text is held in memory while it is trained on.
const LARGEST: u64 = 4 << 30;
/// Files whose faults are each named.
const MOST_NAMED: usize = 8;
/// What stands between documents of a file, if that is what they are.
const END_OF_TEXT: &str = "<|endoftext|>";

/// Reads and tokenises the text files that a scenario names.
///
/// # Errors
/// Every fault of every file, of the tokenizer and of what they come to together; subjects are keys of `[data]`.
pub(crate) fn read(files: &TextFiles) -> Result<Text, Vec<Problem>> {
    let tokenizer = files.tokenizer.as_deref().map(read_tokenizer).transpose();
    let texts = paths(files).and_then(|paths| read_all(files, &paths));
    let (tokenizer, texts) = match (tokenizer, texts) {
        (Ok(tokenizer), Ok(texts)) => (tokenizer, texts),
        (tokenizer, texts) => {
            return Err(tokenizer.err().into_iter().flatten().chain(texts.err().into_iter().flatten()).collect());
        }
    };
    let end = end(files, tokenizer.as_ref()).map_err(|problem| vec![problem])?;
    let mut documents = Vec::new();
    let mut problems = Vec::new();
    for (path, text) in &texts {
        match cut(files.documents, text) {
            Ok(cut) => documents.extend(cut),
            Err(fault) => problems.push(format!("{}{fault}", path.display())),
        }
    }
    if !problems.is_empty() {
        return Err(named(files, problems));
    }
    if documents.is_empty() {
        return Err(vec![fault(files, format!("there is no document in {}", files.path))]);
    }
    tokenise(files, tokenizer.as_ref(), end, &documents)
}

/// The key that names the files.
const fn key(files: &TextFiles) -> &'static str {
    if files.extensions.is_some() { "data.folder" } else { "data.file" }
}

fn fault(files: &TextFiles, message: String) -> Problem {
    Problem::new(key(files), message)
}

/// The first faults, and how many more there are.
fn named(files: &TextFiles, faults: Vec<String>) -> Vec<Problem> {
    let more = faults.len().saturating_sub(MOST_NAMED);
    let mut problems: Vec<Problem> = faults.into_iter().take(MOST_NAMED).map(|message| fault(files, message)).collect();
    if more > 0 {
        problems.push(fault(files, format!("{more} more files have such faults")));
    }
    problems
}

/// The files, in the order of their paths.
fn paths(files: &TextFiles) -> Result<Vec<PathBuf>, Vec<Problem>> {
    let path = Path::new(&files.path);
    let Some(extensions) = &files.extensions else { return Ok(vec![path.to_owned()]) };
    let (mut found, mut others) = (Vec::new(), 0);
    let mut folders = vec![path.to_owned()];
    while let Some(folder) = folders.pop() {
        let cannot = |error| vec![fault(files, format!("cannot read {}: {error}", folder.display()))];
        for entry in std::fs::read_dir(&folder).map_err(cannot)? {
            let entry = entry.map_err(cannot)?;
            let (path, kind) = (entry.path(), entry.file_type().map_err(cannot)?);
            let hidden = entry.file_name().to_string_lossy().starts_with('.');
            let ending = path.extension().map(|ending| ending.to_string_lossy().into_owned());
            // A link to a folder is not followed: it may lead round.
            if hidden {
                continue;
            }
            if kind.is_dir() {
                folders.push(path);
            } else if !path.is_file() || ending.is_none_or(|ending| !extensions.contains(&ending)) {
                others += 1;
            } else {
                found.push(path);
            }
        }
    }
    if found.is_empty() {
        let endings = extensions.iter().map(|ending| format!(".{ending}")).collect::<Vec<_>>().join(", ");
        let message = format!("no file under {} ends in {endings}; {others} others are there", path.display());
        return Err(vec![fault(files, message).hint("name the endings of its texts as `extensions`")]);
    }
    found.sort_unstable();
    Ok(found)
}

/// The texts of files, each with its path, without byte order marks.
fn read_all(files: &TextFiles, paths: &[PathBuf]) -> Result<Vec<(PathBuf, String)>, Vec<Problem>> {
    let size: u64 = paths.iter().filter_map(|path| std::fs::metadata(path).ok()).map(|found| found.len()).sum();
    if size > LARGEST {
        let message =
            format!("{:.1} GiB of text; at most {} are held", size as f64 / f64::from(1 << 30), LARGEST >> 30);
        return Err(vec![fault(files, message).hint("train on a part of it")]);
    }
    let read: Vec<Result<String, String>> = paths.par_iter().map(|path| read_one(path)).collect();
    let (mut texts, mut faults) = (Vec::new(), Vec::new());
    for (path, read) in paths.iter().zip(read) {
        match read {
            Ok(text) => texts.push((path.clone(), text)),
            Err(what) => faults.push(format!("{}: {what}", path.display())),
        }
    }
    if !faults.is_empty() {
        return Err(named(files, faults));
    }
    if texts.iter().all(|(_, text)| text.trim().is_empty()) {
        let what = if files.extensions.is_some() { "every file in it is empty" } else { "is empty" };
        return Err(vec![fault(files, format!("{}: {what}", files.path)).hint("there is nothing to train on")]);
    }
    Ok(texts)
}

fn read_one(path: &Path) -> Result<String, String> {
    let bytes = std::fs::read(path).map_err(|error| format!("cannot be read: {error}"))?;
    if let Some(at) = bytes.iter().position(|byte| *byte == 0) {
        return Err(format!("is binary, not text: byte {at} is zero"));
    }
    let text = String::from_utf8(bytes).map_err(|error| {
        let at = error.utf8_error().valid_up_to();
        format!("is not text: byte {at} ({:#04x}) is not UTF-8", error.as_bytes()[at])
    })?;
    Ok(text.strip_prefix('\u{feff}').map(str::to_owned).unwrap_or(text))
}

/// The documents of a text; those without a word are none. A fault begins with its place in the file.
fn cut(documents: Documents, text: &str) -> Result<Vec<String>, String> {
    let mut found: Vec<String> = match documents {
        Documents::Files => vec![text.to_owned()],
        Documents::EndOfText => text.split(END_OF_TEXT).map(str::to_owned).collect(),
        Documents::Paragraphs => {
            let mut paragraphs = vec![String::new()];
            for line in text.split_inclusive('\n') {
                match paragraphs.last_mut() {
                    Some(last) if !line.trim().is_empty() => last.push_str(line),
                    Some(_) | None => paragraphs.push(String::new()),
                }
            }
            paragraphs
        }
        Documents::JsonLines => {
            let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
            lines
                .map(|(index, line)| of_json(line).map_err(|what| format!(":{}: {what}", index + 1)))
                .collect::<Result<_, _>>()?
        }
    };
    found.retain(|document| !document.trim().is_empty());
    Ok(found)
}

fn of_json(line: &str) -> Result<String, String> {
    let value: serde_json::Value = serde_json::from_str(line).map_err(|error| format!("is not JSON: {error}"))?;
    match value.get("text") {
        Some(serde_json::Value::String(text)) if text.contains('\0') => Err("its text holds a zero byte".to_owned()),
        Some(serde_json::Value::String(text)) => Ok(text.clone()),
        Some(_) => Err("its `text` is no text".to_owned()),
        None => Err("has no key `text`".to_owned()),
    }
}

fn read_tokenizer(path: &str) -> Result<Tokenizer, Vec<Problem>> {
    let cannot = |what: String| vec![Problem::new("data.tokenizer", format!("cannot read {path}: {what}"))];
    let text = crate::scenario::read_text(Path::new(path)).map_err(cannot)?;
    tokenizer::read(&text, path).map_err(|problems| {
        let of_file = |problem: Problem| {
            let message = format!("{path}: {}: {}", problem.subject, problem.message);
            let named = Problem::new("data.tokenizer", message);
            Problem { hint: problem.hint, ..named }
        };
        problems.into_iter().map(of_file).collect()
    })
}

/// The token that stands after each document.
fn end(files: &TextFiles, tokenizer: Option<&Tokenizer>) -> Result<Option<u32>, Problem> {
    let (Some(end), Some(tokenizer)) = (&files.end, tokenizer) else {
        return Ok(files.end.as_ref().map(|_| BYTES));
    };
    tokenizer.added(end).map(Some).ok_or_else(|| {
        let problem = Problem::new("data.end", format!("`{end}` is no added token of the tokenizer"));
        match nearest(end, tokenizer.all_added()) {
            Some(near) => problem.hint(format!("did you mean `{near}`?")),
            None => problem.hint("write \"none\", or one of its added tokens"),
        }
    })
}

fn tokenise(
    files: &TextFiles,
    tokenizer: Option<&Tokenizer>,
    end: Option<u32>,
    documents: &[String],
) -> Result<Text, Vec<Problem>> {
    let vocabulary = tokenizer.map_or(BYTES + u32::from(end.is_some()), Tokenizer::vocabulary);
    let mut builder = TextBuilder::new(vocabulary);
    // Some at a time, so that their tokens are not all there twice.
    for some in documents.chunks(1024) {
        let tokens = |document: &String| {
            let mut tokens = match tokenizer {
                Some(tokenizer) => tokenizer.encode(document)?,
                None => document.bytes().map(u32::from).collect(),
            };
            tokens.extend(end);
            Ok(tokens)
        };
        let made: Vec<Result<Vec<u32>, Problem>> = some.par_iter().map(tokens).collect();
        for tokens in made {
            let tokens = tokens.map_err(|problem| vec![Problem { subject: "data.tokenizer".to_owned(), ..problem }])?;
            builder.push(&tokens);
        }
    }
    Ok(builder.finish(files.packing))
}

#[cfg(test)]
mod tests;
