//! What tests of several modules share.

/// Names a test's input that is not there.
#[expect(clippy::print_stderr, reason = "a skipped test names what it misses")]
pub(crate) fn skipped(path: &str) {
    eprintln!("skipped: {path} is not there");
}
