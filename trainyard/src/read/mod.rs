//! Reading TOML so that every fault is found at once, each with its place.
//!
//! A derived deserializer stops at its first error. Here a [`Table`] hands out [`Value`]s, each conversion notes its own
//! problem and returns `None`, and [`Table::finish`] names the keys that nobody asked for, with the nearest known one.

mod table;
mod trace;
mod value;

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ops::Range;
use std::rc::Rc;

use ir::{Problem, SourceSpan};
use toml::de::DeTable;

pub(crate) use table::{Table, UNKNOWN};
pub(crate) use trace::{Asked, Trace, Wanted};
pub(crate) use value::Value;

/// Where each key that was read stands: `plan.tensor` to the bytes of its value.
pub(crate) type Spans = BTreeMap<String, SourceSpan>;

/// Collects the problems and the places of one file.
#[derive(Debug)]
pub(crate) struct Reader {
    file: String,
    problems: RefCell<Vec<Problem>>,
    spans: RefCell<Spans>,
    trace: Option<Rc<RefCell<Trace>>>,
}

impl Reader {
    pub(crate) fn new(file: impl Into<String>) -> Self {
        Self { file: file.into(), problems: RefCell::default(), spans: RefCell::default(), trace: None }
    }
    /// A reader that notes what is asked of it, and its notes.
    pub(crate) fn tracing(file: impl Into<String>) -> (Self, Rc<RefCell<Trace>>) {
        let trace = Rc::<RefCell<Trace>>::default();
        (Self { trace: Some(Rc::clone(&trace)), ..Self::new(file) }, trace)
    }
    /// Notes what is asked, if this reader does.
    fn note(&self, note: impl FnOnce(&mut Trace)) {
        if let Some(trace) = &self.trace {
            note(&mut trace.borrow_mut());
        }
    }
    pub(crate) fn span(&self, range: Range<usize>) -> SourceSpan {
        SourceSpan { file: self.file.clone(), range }
    }
    pub(crate) fn report(&self, problem: Problem) {
        self.problems.borrow_mut().push(problem);
    }
    /// Notes a problem at the place of the key that it is about, or of the nearest key around that.
    pub(crate) fn report_placed(&self, problem: Problem) {
        let problem = place(&self.spans.borrow(), problem);
        self.report(problem);
    }
    fn remember(&self, path: &str, range: Range<usize>) {
        self.spans.borrow_mut().insert(path.to_owned(), self.span(range));
    }
    /// Parses the text; the faults of its syntax are noted, and what could be read is given to `body` all the same.
    /// Returns what `body` gave together with every problem, in the order of the file.
    pub(crate) fn read<T>(self, text: &str, body: impl FnOnce(&Table<'_>) -> T) -> (T, Vec<Problem>, Spans) {
        let (root, errors) = DeTable::parse_recoverable(text);
        let broken = !errors.is_empty();
        let mut line = None;
        for error in errors {
            let place = error.span().unwrap_or(0..0);
            // What follows a fault on its line is nearly always the same fault.
            let here = text.bytes().take(place.start).filter(|b| *b == b'\n').count();
            if line.replace(here) == Some(here) {
                continue;
            }
            self.report(
                Problem::new("", format!("not TOML: {}", error.message().replace('\n', ", "))).at(self.span(place)),
            );
        }
        let table = Table::root(&self, root.get_ref());
        let result = body(&table);
        table.finish();
        let mut problems = self.problems.into_inner();
        if broken {
            // What is missing may stand in the part that could not be read.
            problems.retain(|problem| !problem.message.starts_with(table::MISSING));
        }
        problems.sort_by_key(|problem| problem.span.as_ref().map_or(0, |span| span.range.start));
        (result, problems, self.spans.into_inner())
    }
}

/// Gives a problem the place of the key that it is about, or of the nearest key around that, if it has none.
pub(crate) fn place(spans: &Spans, problem: Problem) -> Problem {
    if problem.span.is_some() {
        return problem;
    }
    let mut key = problem.subject.clone();
    loop {
        if let Some(span) = spans.get(&key) {
            return problem.at(span.clone());
        }
        match key.rfind(['.', '[']) {
            Some(parent) => key.truncate(parent),
            None => return problem,
        }
    }
}

/// The candidate nearest to `word`, if one is near enough to be meant.
pub(crate) fn nearest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let lower = word.to_lowercase();
    candidates
        .into_iter()
        .map(|candidate| (strsim::jaro_winkler(&lower, &candidate.to_lowercase()), candidate))
        .filter(|(likeness, candidate)| {
            *likeness >= 0.80 || (!lower.is_empty() && candidate.to_lowercase().contains(&lower))
        })
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, candidate)| candidate)
}

/// "did you mean …" if something is near, else the list of what there is.
pub(crate) fn suggest<'a>(word: &str, candidates: impl IntoIterator<Item = &'a str>) -> String {
    let candidates: Vec<&str> = candidates.into_iter().collect();
    nearest(word, candidates.iter().copied()).map_or_else(
        || {
            if candidates.is_empty() {
                "there are none".to_owned()
            } else {
                format!("one of: {}", candidates.join(", "))
            }
        },
        |near| format!("did you mean `{near}`?"),
    )
}
