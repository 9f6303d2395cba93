//! What people say about the scoreboard's figures: why a target is missed, what was measured elsewhere, what others claim.

use ir::{Problem, SourceSpan};
use reports::scoreboard::{ScoreKind, Target};
use serde::Deserialize;

/// The project's own notes, as a file.
pub(crate) const NOTES: (&str, &str) =
    ("reports/published/scoreboard_notes.toml", include_str!("../../../reports/published/scoreboard_notes.toml"));

/// The notes.
#[derive(Clone, PartialEq, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Notes {
    /// Why targets are missed.
    #[serde(default)]
    note: Vec<Note>,
    /// Figures that no score holds, such as the time of a search.
    #[serde(default)]
    measured: Vec<Measured>,
    /// What others published, a paragraph each.
    #[serde(default)]
    pub(crate) peers: Vec<String>,
    /// What a reader must know before trusting a number.
    #[serde(default)]
    pub(crate) warnings: Vec<String>,
}

/// Why a figure is what it is.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Note {
    figure: String,
    of: String,
    score: Option<ScoreWord>,
    cause: String,
    tried: String,
}

/// A figure that was measured by another command.
#[derive(Clone, PartialEq, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Measured {
    figure: String,
    of: String,
    found: f64,
    /// The command or test that measures it.
    by: String,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug, Deserialize)]
#[serde(rename_all = "lowercase")]
enum ScoreWord {
    Fitted,
    Shape,
    Cold,
}

impl ScoreWord {
    const fn kind(self) -> ScoreKind {
        match self {
            Self::Fitted => ScoreKind::Fitted,
            Self::Shape => ScoreKind::Shape,
            Self::Cold => ScoreKind::Cold,
        }
    }
}

impl Notes {
    /// The project's own.
    ///
    /// # Panics
    /// If the embedded file is wrong, which a test excludes.
    pub(crate) fn embedded() -> Self {
        let (file, text) = NOTES;
        Self::from_toml(text, file).unwrap_or_else(|problem| panic!("{file} is wrong: {problem}"))
    }

    /// Reads notes; `file` names them in problems.
    ///
    /// # Errors
    /// What is no such TOML.
    pub(crate) fn from_toml(text: &str, file: &str) -> Result<Self, Problem> {
        toml::from_str(text).map_err(|error| {
            let problem = Problem::new("notes", error.message().trim().replace('\n', "; "));
            match error.span() {
                Some(range) => problem.at(SourceSpan { file: file.to_owned(), range }),
                None => problem,
            }
        })
    }

    /// Adds to targets what was measured elsewhere, and to those that are missed their causes.
    pub(crate) fn apply(&self, targets: &mut [Target]) {
        for target in targets {
            let measured = self.measured.iter().find(|m| m.figure == target.figure && m.of == target.of);
            if let Some(measured) = measured.filter(|_| target.found.is_none()) {
                target.found = Some(measured.found);
                target.of = format!("{} ({})", target.of, measured.by);
            }
            let about = |note: &&Note| {
                note.figure == target.figure
                    && note.of == target.of
                    && note.score.is_none_or(|score| Some(score.kind()) == target.score)
            };
            if let Some(note) = self.note.iter().find(about).filter(|_| !target.met()) {
                (target.cause, target.tried) = (note.cause.clone(), note.tried.clone());
            }
        }
    }

    /// Notes and measurements that are about no target: a figure or table written otherwise than the page does.
    #[cfg(test)]
    pub(crate) fn about_nothing(&self, targets: &[Target]) -> Vec<String> {
        let known = |figure: &str, of: &str| targets.iter().any(|t| t.figure == figure && t.of == of);
        let notes = self.note.iter().map(|note| (&note.figure, &note.of));
        let all = notes.chain(self.measured.iter().map(|m| (&m.figure, &m.of)));
        all.filter(|(figure, of)| !known(figure, of)).map(|(figure, of)| format!("{figure}, {of}")).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use reports::scoreboard::Bound;
    use reports::unit::Unit;

    fn target(of: &str, found: Option<f64>) -> Target {
        Target {
            figure: "median error".to_owned(),
            of: of.to_owned(),
            score: Some(ScoreKind::Cold),
            bound: Bound::AtMost(0.05),
            found,
            unit: Unit::Share,
            cause: String::new(),
            tried: String::new(),
        }
    }

    const TEXT: &str = "peers = [\"x\"]\n[[note]]\nfigure = \"median error\"\nof = \"a\"\nscore = \"cold\"\ncause = \"why\"\n\
        tried = \"what\"\n[[measured]]\nfigure = \"median error\"\nof = \"b\"\nfound = 0.04\nby = \"a bench\"\n";

    #[test]
    fn missed_targets_get_their_cause_and_met_ones_none() {
        let notes = Notes::from_toml(TEXT, "notes.toml").expect("notes");
        let mut targets = [target("a", Some(0.06)), target("a", Some(0.01)), target("b", None)];
        notes.apply(&mut targets);
        assert_eq!((targets[0].cause.as_str(), targets[0].tried.as_str()), ("why", "what"));
        assert_eq!(targets[1].cause, "");
        assert_eq!((targets[2].found, targets[2].of.as_str()), (Some(0.04), "b (a bench)"));
        assert_eq!(notes.about_nothing(&[target("a", None)]), ["median error, b"]);
    }

    #[test]
    fn wrong_notes_have_their_place() {
        let problem = Notes::from_toml("[[note]]\nfigur = \"x\"\n", "notes.toml").expect_err("a slip");
        assert!(problem.message.contains("figur") && problem.span.is_some(), "{problem:?}");
    }

    #[test]
    fn the_projects_own_notes_are_sound() {
        drop(Notes::embedded());
    }
}
