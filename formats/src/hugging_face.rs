//! The `config.json` of Hugging Face models: dense (Llama, Mistral, Qwen 2 and 3, Phi, Gemma, OLMo, GPT-2, GPT-NeoX,
//! Falcon), with experts (Mixtral, Qwen, OLMoE, DeepSeek, GPT-OSS) and hybrid (Jamba, Qwen3-Next).
//!
//! Strict: a key is read, or known to change nothing that is trained or priced, or refused by name. What a file leaves
//! out has the default of the model's configuration class in the `transformers` library, where that default is the
//! same for all models of the class; otherwise it is asked for. Scaling of rotary frequencies (`rope_scaling`) is
//! accepted: it changes angles, neither sizes nor work. Dropout is accepted and not applied. Layers that predict further
//! tokens (DeepSeek) are accepted and not counted.

mod families;
mod keys;
mod sniff;
#[cfg(test)]
mod tests;
mod tree;

use ir::{Model, Problem, SourceSpan};

use tree::Tree;

/// Reads a model from the text of a `config.json`. `file_name` is the file as the person named it: it stands in every
/// span, and the model takes its name from the file or, if that is plain `config.json`, from its folder.
///
/// # Errors
/// Every problem found, each with the bytes concerned where it has a place: a file that is something else (a Git LFS
/// pointer, a web page, a tokenizer, truncated JSON), a model type or key that is not supported, a value of the wrong
/// type, sizes that do not fit together.
pub fn read(text: &str, file_name: &str) -> Result<Model, Vec<Problem>> {
    let json = text.strip_prefix('\u{feff}').unwrap_or(text);
    let mark = text.len() - json.len();
    read_json(json, file_name).map_err(|mut problems| {
        for span in problems.iter_mut().filter_map(|problem| problem.span.as_mut()) {
            // Bytes of the text as it was given, with its byte order mark.
            span.range = span.range.start + mark..span.range.end + mark;
        }
        problems
    })
}

fn read_json(text: &str, file_name: &str) -> Result<Model, Vec<Problem>> {
    let span = |range| SourceSpan { file: file_name.to_owned(), range };
    if let Some(problem) = sniff::not_json(text) {
        return Err(vec![problem.at(span(0..text.len()))]);
    }
    let entries = tree::entries(text).map_err(|(problem, at)| {
        let length = text[at..].chars().next().map_or(0, char::len_utf8);
        vec![problem.at(span(at..at + length))]
    })?;
    if let Some(problem) = sniff::another_file(&entries) {
        return Err(vec![problem.at(span(0..text.len()))]);
    }
    let mut tree = Tree::new(text, file_name, entries);
    let model = families::model(&mut tree, name(file_name));
    let mut problems = tree.finish();
    if problems.is_empty() {
        // Sizes of a file without other faults were all read.
        problems.extend(model.problems().into_iter().map(|problem| problem.at(span(0..text.len()))));
    }
    if problems.is_empty() { Ok(model) } else { Err(problems) }
}

/// The model's name: of the file without `.config.json`, or of its folder.
fn name(file_name: &str) -> String {
    let mut parts = file_name.rsplit(['/', '\\']).filter(|part| !part.is_empty() && *part != ".");
    let file = parts.next().unwrap_or_default();
    let stem = file.strip_suffix(".json").unwrap_or(file);
    let stem = stem.strip_suffix("config").unwrap_or(stem).trim_end_matches(['.', '_', '-']);
    let name = if stem.is_empty() { parts.next().unwrap_or_default() } else { stem };
    if name.is_empty() { "model".to_owned() } else { name.to_owned() }
}
