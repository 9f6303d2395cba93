//! What is wrong with something a person wrote, in a form that can be shown with its place.

use std::ops::Range;

/// Where in a text something stands, as a byte range of that text.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SourceSpan {
    /// The file, as the person named it.
    pub file: String,
    /// Bytes `start..end` of the file's text.
    pub range: Range<usize>,
}

/// One fault in an input: where, what, and the nearest right thing.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Problem {
    /// Where it stands, if it stands anywhere.
    pub span: Option<SourceSpan>,
    /// The key or part concerned, such as `plan.tensor`.
    pub subject: String,
    /// What is wrong, as a sentence without a full stop.
    pub message: String,
    /// The nearest right thing, or what to do next.
    pub hint: Option<String>,
}

impl Problem {
    /// A fault in `subject`.
    pub fn new(subject: impl Into<String>, message: impl Into<String>) -> Self {
        Self { span: None, subject: subject.into(), message: message.into(), hint: None }
    }
    /// With a hint.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(hint.into());
        self
    }
    /// With its place.
    #[must_use]
    pub fn at(mut self, span: SourceSpan) -> Self {
        self.span = Some(span);
        self
    }
}

impl std::fmt::Display for Problem {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.subject, self.message)?;
        if let Some(hint) = &self.hint {
            write!(f, " ({hint})")?;
        }
        Ok(())
    }
}
