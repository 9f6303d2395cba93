//! What can be shown without a GPU, and what a GPU is put through where there is one.

mod collectives;
mod emulated;
mod joined;
mod machine;
mod probing;
mod signatures;
mod sources;
mod training;

/// Says that a test could not run here.
#[expect(clippy::print_stderr, reason = "how a test says that it did not run")]
fn skip(test: &str, why: &str) {
    eprintln!("SKIP {test}: {why}");
}
