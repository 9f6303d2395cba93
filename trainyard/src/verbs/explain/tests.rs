use std::path::Path;

use reports::waterfall::Cause;

use super::explain;
use crate::results::ExplainReport;
use crate::{Context, Error, scenario};

fn report(text: &str) -> ExplainReport {
    let loaded = scenario::parse("s.toml", text, Path::new("")).unwrap_or_else(|e| panic!("{e}"));
    explain(&loaded, &Context::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn text(cluster: &str, model: &str, training: &str, plan: &str) -> String {
    format!("name = \"s\"\ncluster = \"{cluster}\"\nmodel = \"{model}\"\n[training]\n{training}\n[plan]\n{plan}\n")
}

/// A pipeline over nodes, with tensor groups inside them and replicas.
fn pipelined(more: &str) -> String {
    let plan = format!("tensor = 8\nsequence_parallel = true\npipeline = 4\nmicrobatch_size = 1\nzero = 1\n{more}");
    text("8 x dgx-a100", "llama-3.1-70b", "sequence_length = 4096\nglobal_batch = 64", &plan)
}

fn part(report: &ExplainReport, cause: Cause) -> (f64, Option<f64>) {
    let found = report.parts.iter().find(|part| part.cause == cause);
    found.map_or((0.0, None), |part| (part.time_s, part.gives_back_s))
}

/// Parts sum up to the step to the nanosecond, and what one gives back is never more than the step.
fn sound(report: &ExplainReport) {
    let sum: u64 = report.parts.iter().map(|part| part.time.nanoseconds()).sum();
    let step = report.prediction.iteration_ms * 1e6;
    assert!((sum as f64 - step).abs() <= 1.0, "{sum} ns of {step}");
    assert!(report.step_s.low <= report.step_s.expected && report.step_s.expected <= report.step_s.high);
    let shares: f64 = report.parts.iter().map(|part| part.share).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    for part in &report.parts {
        if let Some(back) = part.gives_back_s {
            // A part that costs nothing lengthens nothing, but for the memory-bound swap of recomputation.
            assert!(back >= -1e-6 * report.step_s.expected, "{part:?}");
            assert!(back < report.step_s.expected, "{part:?}");
        }
    }
}

#[test]
fn a_step_is_its_parts_and_each_gives_back_what_a_new_price_says() {
    let report = report(&pipelined("recompute = \"full\""));
    sound(&report);
    for cause in [Cause::Compute, Cause::Recomputation, Cause::Bubble, Cause::TensorCommunication, Cause::Optimizer] {
        assert!(part(&report, cause).0 > 0.0, "{cause:?}: {:#?}", report.parts);
    }
    let step = report.step_s.expected;
    // 32 microbatches over 4 stages: (p - 1) / (m + p - 1) = 3/35 of the passes' span.
    let (bubble, back) = part(&report, Cause::Bubble);
    assert!((0.065..0.095).contains(&(bubble / step)), "{bubble} of {step}");
    assert!(back.is_some_and(|back| back > 0.7 * bubble), "{back:?} of {bubble}");
    // Full recomputation is one forward of four (forward, recomputation, backward of two).
    let (again, back) = part(&report, Cause::Recomputation);
    let (compute, none) = part(&report, Cause::Compute);
    assert_eq!(none, None);
    assert!((0.2..0.6).contains(&(again / compute)), "{again} of {compute}");
    assert!(back.is_some_and(|back| back >= again), "without it the bubble shrinks too: {back:?} of {again}");
    assert!(report.document.html().contains("Where the step goes"));
}

#[test]
fn uneven_stages_are_imbalance_and_even_ones_give_back_less() {
    let uneven = report(&pipelined("layers_per_stage = [14, 22, 22, 22]"));
    let even = report(&pipelined(""));
    for report in [&uneven, &even] {
        sound(report);
    }
    let (lost, back) = part(&uneven, Cause::Imbalance);
    assert!(lost > 1.5 * part(&even, Cause::Imbalance).0, "{lost}");
    assert!(back.is_some_and(|back| (back - lost).abs() < 1e-6), "{back:?} {lost}");
}

#[test]
fn a_plan_that_does_not_fit_has_its_stage_its_moment_and_the_fastest_change_that_fits() {
    let report = report(&text(
        "1 x dgx-a100",
        "llama-3.1-8b",
        "sequence_length = 8192\nglobal_batch = 64",
        "tensor = 1\npipeline = 1\nmicrobatch_size = 4\nzero = 1",
    ));
    sound(&report);
    assert!(!report.fits);
    let misfit = report.misfits.first().expect("a stage");
    assert!(misfit.needs_gib > misfit.of_gib && !misfit.moment.is_empty(), "{misfit:?}");
    let sum: f64 = misfit.parts_gib.values().sum();
    assert!((sum - misfit.needs_gib).abs() < 0.01, "{misfit:?}");
    let chosen = &report.changes[report.smallest_change.expect("something fits")];
    assert!(chosen.fits && chosen.memory_share.is_some_and(|share| share <= 1.0), "{chosen:?}");
    assert!(!chosen.other_devices, "{chosen:?}");
    for other in report.changes.iter().filter(|change| change.fits && !change.other_devices) {
        assert!(chosen.step_s <= other.step_s, "{chosen:?} {other:?}");
    }
    let kinds = [
        "recomputation",
        "ZeRO-2",
        "microbatches of",
        "tensor degree",
        "pipeline degree",
        "context degree",
        "host memory",
        "in place of a100",
    ];
    for kind in kinds {
        assert!(report.changes.iter().any(|change| change.change.contains(kind)), "no {kind}: {:#?}", report.changes);
    }
    assert!(report.verdict().contains(&chosen.change), "{}", report.verdict());
    for change in report.changes.iter().filter(|change| !change.fits) {
        assert!(!change.reason.is_empty(), "{change:?}");
    }
}

#[test]
fn a_step_depends_on_what_it_uses() {
    let report = report(&pipelined(""));
    let of = |what: &str| {
        let found = report.sensitivity.iter().find(|row| row.what == what);
        found.unwrap_or_else(|| panic!("no {what}: {:#?}", report.sensitivity))
    };
    let change = |what: &str| of(what).step_change.unwrap_or_else(|| panic!("{:?}", of(what)));
    assert!(change("bandwidth between nodes halved") >= 0.0 && change("bandwidth between nodes doubled") <= 0.0);
    assert!(change("bandwidth inside domains halved") > 0.01, "{:?}", of("bandwidth inside domains halved"));
    assert!(change("devices doubled, the batch as it is") < -0.2);
    assert!(change("devices and batch doubled").abs() < 0.2);
    let tokens = of("devices and batch doubled").tokens_per_second_change.expect("a rate");
    assert!((0.6..1.05).contains(&tokens), "{tokens}");
    assert!((0.8..1.6).contains(&change("sequences doubled")), "{:?}", of("sequences doubled"));
}

#[test]
fn a_plan_that_is_not_legal_is_refused_with_the_nearest() {
    let text = text("1 x dgx-a100", "llama-3.1-8b", "sequence_length = 4096\nglobal_batch = 30", "data = 8");
    let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|e| panic!("{e}"));
    let error = explain(&loaded, &Context::default()).expect_err("30 sequences over 8 replicas");
    assert!(matches!(error, Error::Infeasible { .. }), "{error}");
    assert!(error.to_string().contains("nearest legal plans"), "{error}");
}
