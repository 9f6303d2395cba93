//! Writes a report of a hand-made pipeline to standard output: `html`, `markdown`, `png`, `svg`, `json`, `trace` or `large`.
//!
//! `cargo run -p trainyard-reports --example sample_report html > report.html`

use std::io::Write;

use ir::{Bytes, Clock, Flops, FlopsPerSecond, Rank};
use trainyard_reports::{LossCurve, ModelRate, Process, Report};

#[path = "../tests/reports/support.rs"]
mod support;
use support::{Pipeline, Times, input, noise, program, timeline, unfolded};

fn main() -> std::io::Result<()> {
    let what = std::env::args().nth(1).unwrap_or_default();
    let times = Times {
        forward: 1_003_000,
        backward: 2_001_000,
        weight: 907_000,
        tensor: 181_000,
        message: 97_000,
        gradients: 2_511_000,
        optimizer: 1_499_000,
    };
    let pipeline = match what.as_str() {
        "large" => Pipeline { stages: 32, microbatches: 1_200, data: 1, tensor: false, split: false },
        _ => Pipeline { stages: 4, microbatches: 8, data: 2, tensor: true, split: true },
    };
    let program = program(pipeline);
    let simulated = timeline(&program, Clock::Simulated, times, &mut |d| d);
    let mut vary = noise(1, 18);
    let runs: Vec<_> = (0..if what == "large" { 1 } else { 5 })
        .map(|iteration| {
            let mut run = unfolded(&program, Clock::Measured, times, &mut vary);
            run.iteration = iteration;
            run
        })
        .collect();
    let mut input = input(&program, std::iter::once(&simulated).chain(&runs).collect());
    input.title = "Quickstart: 1F1B on four unlike stages".to_owned();
    input.description = "A hand-made pipeline, so that every number can be checked by eye.".to_owned();
    input.command = "trainyard quickstart".to_owned();
    input.rate = Some(ModelRate { flops_per_token: Flops::new(6_000_000), peak: FlopsPerSecond::new(6e11) });
    input.capacity = vec![Bytes::from_gib(2), Bytes::from_gib(2), Bytes::from_gib(3), Bytes::new(1_600 << 20)];
    let loss =
        |bias: f64| (0..20).map(|i| 5.5 * (-0.09 * f64::from(i)).exp() + 0.02 * bias * f64::from(i % 3)).collect();
    input.losses = vec![
        LossCurve { name: "8 ranks".to_owned(), loss_nats_per_token: loss(1.0) },
        LossCurve { name: "1 rank".to_owned(), loss_nats_per_token: loss(2.0) },
    ];
    input.provenance = vec![
        ("seed".to_owned(), "1".to_owned()),
        ("calibration".to_owned(), "cpu-2-cores, cross-validation error 4.1 %".to_owned()),
        ("basis of durations".to_owned(), "82 % measured, 11 % interpolated, 7 % analytic".to_owned()),
    ];
    input.warnings =
        vec!["8 emulated ranks on 2 cores: oversubscribed, so no figure here counts for accuracy.".to_owned()];
    input.resolved_scenario = "seed = 1\n\n[model]\nname = \"tiny\"\nhidden = 64\n".to_owned();
    let report = Report::new(input).expect("a sound report");
    let mut out = std::io::stdout().lock();
    match what.as_str() {
        "markdown" => out.write_all(report.markdown().as_bytes()),
        "json" => out.write_all(report.json().as_bytes()),
        "svg" => out.write_all(report.timeline_svg().as_bytes()),
        "png" => out.write_all(&report.timeline_png()),
        "trace" => {
            let node = |rank: Rank| Process { id: rank.raw() / 4, name: format!("node {}", rank.raw() / 4) };
            report.perfetto(&node, out)
        }
        _ => out.write_all(report.html().as_bytes()),
    }
}
