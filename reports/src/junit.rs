//! A run of checks as JUnit XML, the form that CI systems read.
//!
//! Elements and attributes are those that Jenkins, GitLab and GitHub actions agree on: `testsuites` (name, tests, failures,
//! errors, skipped, time), `testsuite` (the same), `testcase` (name, classname, file, time), and in it `failure`, `error` or
//! `skipped`, and `system-out`. Times are seconds.

use std::fmt::Write as _;

use ir::SimDuration;

/// What became of a case.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum CaseOutcome {
    /// It holds.
    Passed,
    /// It does not hold.
    Failed {
        /// In one line: what was expected and what was found.
        message: String,
        /// All of it; may be empty.
        details: String,
    },
    /// It could not be checked.
    Errored {
        /// In one line.
        message: String,
        /// All of it; may be empty.
        details: String,
    },
    /// It was left out.
    Skipped {
        /// Why.
        message: String,
    },
}

/// One thing that was checked.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JunitCase {
    /// Its name, such as an expectation.
    pub name: String,
    /// What it is of, such as a scenario's name.
    pub class_name: String,
    /// The file that it is written in, if any.
    pub file: Option<String>,
    /// How long it took, on the wall clock of whoever checked.
    pub time: SimDuration,
    /// What became of it.
    pub outcome: CaseOutcome,
    /// What it said; may be empty.
    pub output: String,
}

/// Cases that belong together.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JunitSuite {
    /// Its name, such as a scenario's path.
    pub name: String,
    /// Its cases, in order.
    pub cases: Vec<JunitCase>,
}

/// A whole run.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct JunitRun {
    /// Its name.
    pub name: String,
    /// Its suites, in order.
    pub suites: Vec<JunitSuite>,
}

/// Counts and time of cases.
#[derive(Default)]
struct Totals {
    tests: u64,
    failures: u64,
    errors: u64,
    skipped: u64,
    nanoseconds: u64,
}

impl Totals {
    fn of<'a>(cases: impl Iterator<Item = &'a JunitCase>) -> Self {
        let mut totals = Self::default();
        for case in cases {
            totals.tests += 1;
            totals.nanoseconds = totals.nanoseconds.saturating_add(case.time.nanoseconds());
            match case.outcome {
                CaseOutcome::Passed => {}
                CaseOutcome::Failed { .. } => totals.failures += 1,
                CaseOutcome::Errored { .. } => totals.errors += 1,
                CaseOutcome::Skipped { .. } => totals.skipped += 1,
            }
        }
        totals
    }

    fn attributes(&self) -> String {
        format!(
            "tests=\"{}\" failures=\"{}\" errors=\"{}\" skipped=\"{}\" time=\"{}\"",
            self.tests,
            self.failures,
            self.errors,
            self.skipped,
            time(self.nanoseconds)
        )
    }
}

/// Seconds with six decimals.
fn time(nanoseconds: u64) -> String {
    format!("{:.6}", nanoseconds as f64 / 1e9)
}

/// Text for an attribute or content: what XML 1.0 has no place for becomes U+FFFD, line ends in attributes are kept.
fn escape(text: &str, attribute: bool) -> String {
    let mut out = String::with_capacity(text.len());
    for character in text.chars() {
        match character {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\n' | '\t' if attribute => {
                let _ = write!(out, "&#{};", u32::from(character));
            }
            // Parsers turn a bare carriage return into a line feed.
            '\r' => out.push_str("&#13;"),
            '\n' | '\t' => out.push(character),
            c if c < ' ' || matches!(c, '\u{fffe}' | '\u{ffff}') => out.push('\u{fffd}'),
            c => out.push(c),
        }
    }
    out
}

fn problem(out: &mut String, element: &str, message: &str, details: &str) {
    let message = escape(message, true);
    let _ = writeln!(out, "      <{element} message=\"{message}\">{}</{element}>", escape(details, false));
}

fn write_case(out: &mut String, case: &JunitCase) {
    let (name, class) = (escape(&case.name, true), escape(&case.class_name, true));
    let file = case.file.as_ref().map_or_else(String::new, |file| format!(" file=\"{}\"", escape(file, true)));
    let time = time(case.time.nanoseconds());
    let _ = write!(out, "    <testcase name=\"{name}\" classname=\"{class}\"{file} time=\"{time}\"");
    if case.outcome == CaseOutcome::Passed && case.output.is_empty() {
        out.push_str("/>\n");
        return;
    }
    out.push_str(">\n");
    match &case.outcome {
        CaseOutcome::Passed => {}
        CaseOutcome::Failed { message, details } => problem(out, "failure", message, details),
        CaseOutcome::Errored { message, details } => problem(out, "error", message, details),
        CaseOutcome::Skipped { message } => {
            let _ = writeln!(out, "      <skipped message=\"{}\"/>", escape(message, true));
        }
    }
    if !case.output.is_empty() {
        let _ = writeln!(out, "      <system-out>{}</system-out>", escape(&case.output, false));
    }
    out.push_str("    </testcase>\n");
}

impl JunitRun {
    /// Whether nothing failed and nothing could not be checked.
    #[must_use]
    pub fn passed(&self) -> bool {
        let totals = Totals::of(self.suites.iter().flat_map(|suite| &suite.cases));
        totals.failures == 0 && totals.errors == 0
    }

    /// As an XML document.
    #[must_use]
    pub fn xml(&self) -> String {
        let mut out = "<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n".to_owned();
        let totals = Totals::of(self.suites.iter().flat_map(|suite| &suite.cases));
        let _ = writeln!(out, "<testsuites name=\"{}\" {}>", escape(&self.name, true), totals.attributes());
        for suite in &self.suites {
            let totals = Totals::of(suite.cases.iter());
            let _ = writeln!(out, "  <testsuite name=\"{}\" {}>", escape(&suite.name, true), totals.attributes());
            suite.cases.iter().for_each(|case| write_case(&mut out, case));
            out.push_str("  </testsuite>\n");
        }
        out.push_str("</testsuites>\n");
        out
    }
}
