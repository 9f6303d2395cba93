//! `init`: a scenario for a model and a cluster.

use std::path::Path;

use ir::Problem;

use crate::results::{Header, InitReport};
use crate::{Error, output, scenario};

/// What `init` is asked for.
#[derive(Clone, Copy, Debug)]
pub struct InitRequest<'a> {
    /// A model of the catalog, or the path of a Hugging Face `config.json`.
    pub model: &'a str,
    /// Nodes by name and count, such as `32 x dgx-h100`.
    pub cluster: &'a [String],
    /// Tokens of one sequence; `None` for a common length that the model allows.
    pub sequence_length: Option<u32>,
    /// Sequences of one iteration; `None` for a common number of tokens.
    pub global_batch: Option<u32>,
    /// The folder to write `scenario.toml` to.
    pub folder: &'a Path,
    /// Whether to replace one that is there.
    pub force: bool,
}

/// Sequences where nothing else is said: what recent models are trained with at first.
const SEQUENCE_LENGTH: u32 = 4096;
/// Tokens of an iteration where nothing else is said: 2^21, between GPT-3 (3.2 M) and Llama-2 (4 M) and small models.
const TOKENS: u32 = 1 << 21;
/// Sequence and tokens of a model that a CPU trains.
const SMALL: (u32, u32) = (64, 1 << 10);

/// Writes a scenario and reads it back, so that what is written is known to be right.
///
/// # Errors
/// [`Error::Input`] for an unknown model or node, or a scenario that is there already.
pub fn init(request: &InitRequest<'_>) -> Result<InitReport, Error> {
    let path = request.folder.join("scenario.toml");
    if path.exists() && !request.force {
        let problem = Problem::new(path.display().to_string(), "is there already").hint("--force replaces it");
        return Err(Error::problem(problem));
    }
    let text = text(request)?;
    let loaded = scenario::parse(&path.display().to_string(), &text, request.folder)?;
    std::fs::create_dir_all(request.folder)
        .map_err(|e| Error::files(request.folder, format!("cannot make the folder: {e}")))?;
    output::write(&path, text.as_bytes())?;
    Ok(InitReport {
        header: Header::new("init", &loaded.scenario.name),
        path: path.display().to_string(),
        parameters: loaded.scenario.model.parameters(),
        devices: loaded.scenario.cluster.devices(),
        scenario: text,
    })
}

fn text(request: &InitRequest<'_>) -> Result<String, Error> {
    let quoted = |text: &str| toml::Value::String(text.to_owned()).to_string();
    let is_file = Path::new(request.model).extension().is_some_and(|e| e.eq_ignore_ascii_case("json"));
    let (model, name) = if is_file {
        let path = std::path::absolute(request.model).unwrap_or_else(|_| request.model.into());
        // A model file below the scenario's folder is named from there, so that the folder can move.
        let folder = std::path::absolute(request.folder).unwrap_or_else(|_| request.folder.into());
        let shown = path.strip_prefix(&folder).unwrap_or(&path).display().to_string();
        let stem = path
            .parent()
            .and_then(Path::file_name)
            .map_or_else(|| "model".to_owned(), |n| n.to_string_lossy().into_owned());
        (format!("config = {}", quoted(&shown)), stem)
    } else {
        (format!("name = {}", quoted(request.model)), request.model.to_owned())
    };
    let nodes: Vec<String> = request.cluster.iter().map(|group| quoted(group)).collect();
    let nodes = nodes.join(", ");
    // The rest is asked of a scenario that reads, so that a wrong name is reported as such.
    let draft = |length: u32, batch: u32| {
        format!(
            "name = {}\nseed = 1\n\n[cluster]\nnodes = [{nodes}]\n\n[model]\n{model}\n\n[training]\nsequence_length = {length}\nglobal_batch = {batch}\n\n\
            # The policy decides whatever of data, tensor, pipeline, schedule, recompute, … is not written here.\n\
            [plan]\npolicy = \"megatron\"\n",
            quoted(&name)
        )
    };
    let probe = scenario::parse("scenario.toml", &draft(1, 1), request.folder)?.scenario;
    let longest = match probe.model.positions {
        ir::Positions::Learned { maximum } => maximum,
        ir::Positions::Rope { .. } | ir::Positions::None => u32::MAX,
    };
    let small = probe.workload.precision == ir::Precision::Fp32;
    let (length, tokens) = if small { SMALL } else { (SEQUENCE_LENGTH, TOKENS) };
    let length = request.sequence_length.unwrap_or(length).min(longest.max(1));
    let batch = request.global_batch.unwrap_or_else(|| (tokens / length.max(1)).max(1));
    Ok(draft(request.sequence_length.unwrap_or(length), batch))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(model: &str, cluster: &[&str], expect: Result<(u64, &str), &str>) {
        let folder = tempfile::tempdir().expect("a folder");
        let cluster: Vec<String> = cluster.iter().map(ToString::to_string).collect();
        let request = InitRequest {
            model,
            cluster: &cluster,
            sequence_length: None,
            global_batch: None,
            folder: folder.path(),
            force: false,
        };
        match (init(&request), expect) {
            (Ok(report), Ok((devices, needle))) => {
                assert_eq!(report.devices, devices);
                assert!(report.scenario.contains(needle), "no {needle:?} in\n{}", report.scenario);
                assert!(init(&request).expect_err("it is there").to_string().contains("is there already"));
                assert!(init(&InitRequest { force: true, ..request }).is_ok());
            }
            (Err(error), Err(needle)) => {
                assert!(error.to_string().contains(needle), "no {needle:?} in\n{error}");
                assert_eq!(std::fs::read_dir(folder.path()).expect("a folder").count(), 0, "something was written");
            }
            (found, expect) => panic!("{found:?} where {expect:?} was expected"),
        }
    }

    #[test]
    fn scenarios_are_written_and_right() {
        check("llama-3.1-70b", &["32 x dgx-h100"], Ok((256, "sequence_length = 4096\nglobal_batch = 512")));
        check("gpt3-175b", &["4 x dgx-a100", "2 x dgx-h100"], Ok((48, "sequence_length = 2048")));
        check("tiny-gpt", &["1 x cpu-4"], Ok((4, "sequence_length = 64\nglobal_batch = 16")));
        check("llama-3.1-70", &["32 x dgx-h100"], Err("did you mean `llama-3.1-70b`?"));
        check("tiny-gpt", &["1 x dgx-h1000"], Err("did you mean `dgx-h100`?"));
        check("nowhere/config.json", &["1 x dgx-h100"], Err("cannot read"));
        check("a\"b\n", &["1 x dgx-h100"], Err("there is no model"));
    }
}
