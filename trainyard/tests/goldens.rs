//! Every scenario of the project gives what it gave before, to the last digit.
//!
//! `UPDATE_GOLDENS=1` writes what comes out as the new expectation.

use std::path::Path;

use trainyard::Context;
use trainyard::results::Verdict;

#[test]
fn scenarios_give_what_they_gave() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../scenarios");
    let update = std::env::var_os("UPDATE_GOLDENS").is_some_and(|value| value == "1");
    let report = trainyard::check(&folder, 0.0, update, &Context::default()).unwrap_or_else(|e| panic!("{e}"));
    let good = |verdict| matches!(verdict, Verdict::Same | Verdict::Updated);
    assert!(
        report.scenarios.iter().all(|scenario| good(scenario.verdict)),
        "{}\nUPDATE_GOLDENS=1 writes these as the new expectation.",
        report.markdown()
    );
}
