//! What tests of several readers share.

use std::path::Path;

/// Names a test's input that is not there.
#[expect(clippy::print_stderr, reason = "a skipped test names what it misses")]
pub(crate) fn skipped(path: &Path) {
    eprintln!("skipped: {} is not there", path.display());
}
