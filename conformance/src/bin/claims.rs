//! Claims about plans, simulated, and their small twins trained for real: the study behind `reports/published/claims.md`.
//!
//! ```text
//! cargo run --release -p trainyard-conformance --bin claims -- reports/published
//! ```
//!
//! Every folder of `scenarios/claims` is planned and simulated with its baselines; then, in each of three rounds, this machine
//! is calibrated and every twin is simulated and trained, its own plan and its baselines'. Writes `claims.md` and
//! `claims.svg` into the folder; `--simulated` leaves the twins out. Exit status 1 if a figure is missed that nothing
//! explains. Run it on an otherwise idle machine.

#![expect(clippy::print_stdout, clippy::print_stderr, reason = "a program that a person runs and reads")]

use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use reports::compare::statistics::quantile;
use trainyard::Context;
use trainyard_conformance::claims::{Claim, Found, Shape, Wanted, claims, simulate, twin};

/// Rounds, each with a calibration of its own.
const ROUNDS: usize = 3;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let simulated = arguments.iter().any(|argument| argument == "--simulated");
    let Some(folder) = arguments.iter().find(|argument| !argument.starts_with('-')).map(PathBuf::from) else {
        eprintln!("usage: claims [--simulated] FOLDER");
        return ExitCode::from(2);
    };
    match study(&folder, if simulated { 0 } else { ROUNDS }) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(message) => {
            eprintln!("{message}");
            ExitCode::from(2)
        }
    }
}

/// A twin's plan in all rounds: simulated and measured tokens per second and device.
struct Twin {
    name: String,
    plan: String,
    simulated: Vec<f64>,
    measured: Vec<f64>,
    oversubscribed: bool,
}

fn middle(values: &[f64]) -> f64 {
    quantile(values.to_vec(), 0.5).unwrap_or(f64::NAN)
}

fn study(folder: &Path, rounds: usize) -> Result<bool, String> {
    let mut rows = Vec::new();
    for claim in claims()? {
        eprintln!("{}", claim.title);
        let found = simulate(&claim).map_err(|what| format!("{}: {what}", claim.title))?;
        rows.push((claim, found, Vec::<Twin>::new()));
    }
    for round in 1..=rounds {
        let calibration = trainyard::calibrate(&Context::default()).map_err(|e| e.to_string())?;
        eprintln!("round {round} of {rounds}: calibrated in {:.0} s", calibration.elapsed_s);
        for (claim, _, twins) in &mut rows {
            for (at, (name, loaded)) in twin(claim, &calibration.calibration_toml)?.into_iter().enumerate() {
                let compared = trainyard::compare(&loaded, &Context::default());
                let report = compared.map_err(|e| format!("{}, {name}: {e}", claim.title))?;
                let devices = report.simulated.devices as f64;
                let tokens = loaded.scenario.workload.tokens_per_iteration() as f64 / devices;
                let rates = [report.simulated.prediction.iteration_ms, report.measured.iteration_ms]
                    .map(|ms| tokens / ms * 1e3);
                eprintln!(
                    "{}, {name}: simulated {:.0}, measured {:.0} tokens/s per device",
                    claim.title, rates[0], rates[1]
                );
                if twins.len() == at {
                    let plan = report.simulated.plan.words.clone();
                    let (simulated, measured) = (Vec::new(), Vec::new());
                    twins.push(Twin { name, plan, simulated, measured, oversubscribed: false });
                }
                twins[at].simulated.push(rates[0]);
                twins[at].measured.push(rates[1]);
                twins[at].oversubscribed |= report.measured.oversubscribed;
            }
        }
    }
    std::fs::create_dir_all(folder).map_err(|e| e.to_string())?;
    let (page, good) = page(&rows)?;
    for (name, text) in [("claims.md", page), ("claims.svg", picture(&rows))] {
        std::fs::write(folder.join(name), text).map_err(|e| format!("{name}: {e}"))?;
    }
    println!("wrote claims.md and claims.svg to {}", folder.display());
    Ok(good)
}

fn page(rows: &[(Claim, Found, Vec<Twin>)]) -> Result<(String, bool), String> {
    let mut page = String::from(
        "# Claims about plans\n\n\
         Each claim is a folder of `scenarios/claims`: a scenario that a policy plans, baselines that plan the same job, and what\n\
         is claimed. Times are *simulated*, on the calibrations of the catalog. The twins are small models on emulated devices and\n\
         links that the executor trains for real; their gains are *measured*, beside what the simulator predicts of the same\n\
         runs, as medians over rounds with a calibration each.\n\n\
         Made by `cargo run --release -p trainyard-conformance --bin claims -- reports/published`.\n\n\
         ![where the time goes](claims.svg)\n\n| claim | figure | wanted | found | |\n|---|---|--:|--:|---|\n",
    );
    let mut good = true;
    for (claim, found, _) in rows {
        for wanted in &claim.wanted {
            let value = found.value(wanted).map_err(|what| format!("{}: {what}", claim.title))?;
            let holds = wanted.holds(value);
            good &= holds || wanted.missed.is_some();
            let verdict = if holds { "holds" } else { "missed" };
            let _ = writeln!(
                page,
                "| {} | {} | {} | {value:.3} | {verdict} |",
                claim.title,
                figure(wanted),
                limits(wanted)
            );
        }
    }
    for (claim, found, twins) in rows {
        let _ = writeln!(page, "\n## {}\n\n{}\n\n{}\n", claim.title, claim.says, claim.account);
        plans(&mut page, found);
        for missed in claim.wanted.iter().filter_map(|wanted| wanted.missed.as_ref().map(|why| (wanted, why))) {
            let _ = writeln!(page, "\n*Missed, {}*: {}", figure(missed.0), missed.1);
        }
        points(&mut page, found);
        measured(&mut page, twins);
    }
    Ok((page, good))
}

fn figure(wanted: &Wanted) -> String {
    match &wanted.baseline {
        Some(baseline) => format!("{}, {baseline}", wanted.figure.name()),
        None => wanted.figure.name().to_owned(),
    }
}

fn limits(wanted: &Wanted) -> String {
    let least = wanted.least.map(|least| format!("at least {least}"));
    let most = wanted.most.map(|most| format!("at most {most}"));
    least.into_iter().chain(most).collect::<Vec<_>>().join(", ")
}

fn all(found: &Found) -> impl Iterator<Item = (&str, &Shape)> {
    std::iter::once(("the policy", &found.own))
        .chain(found.baselines.iter().map(|(name, shape)| (name.as_str(), shape)))
}

fn plans(page: &mut String, found: &Found) {
    let _ = writeln!(
        page,
        "| who plans | plan | iteration, s | compute, weighted by peak | exposed | idle | the policy is so much faster |\n\
         |---|---|--:|--:|--:|--:|--:|"
    );
    for (name, shape) in all(found) {
        let _ = writeln!(
            page,
            "| {name} | {} | {:.3} | {:.1} % | {:.1} % | {:.1} % | {:.2} x |",
            shape.plan,
            shape.seconds,
            shape.compute * 100.0,
            shape.exposed * 100.0,
            shape.idle * 100.0,
            shape.seconds / found.own.seconds
        );
    }
}

fn points(page: &mut String, found: &Found) {
    let Some((_, first)) = found.points.first() else { return };
    let _ = writeln!(
        page,
        "\n| nodes | batch | plan | iteration, s | tokens/s per device | efficiency |\n|---|--:|---|--:|--:|--:|"
    );
    for (point, shape) in &found.points {
        let _ = writeln!(
            page,
            "| {} | {} | {} | {:.3} | {:.1} | {:.1} % |",
            point.nodes,
            point.global_batch,
            shape.plan,
            shape.seconds,
            shape.rate,
            shape.rate / first.rate * 100.0
        );
    }
    if let Some((activity, grown)) = found.saturating() {
        let _ = writeln!(
            page,
            "\nWhat grows most from the first to the last is {}: by {:.1} % of the iteration.",
            activity.name(),
            grown * 100.0
        );
    }
}

fn measured(page: &mut String, twins: &[Twin]) {
    let Some(own) = twins.first() else { return };
    let _ = writeln!(
        page,
        "\nThe twin, trained on CPU ranks; tokens per second and device, and the policy's gain over each:\n\n\
         | who plans | plan | simulated | measured | predicted gain | measured gain |\n|---|---|--:|--:|--:|--:|"
    );
    for twin in twins {
        let [simulated, measured] = [middle(&twin.simulated), middle(&twin.measured)];
        let _ = writeln!(
            page,
            "| {} | {} | {simulated:.0} | {measured:.0}{} | {:.2} x | {:.2} x |",
            twin.name,
            twin.plan,
            if twin.oversubscribed { " (oversubscribed)" } else { "" },
            middle(&own.simulated) / simulated,
            middle(&own.measured) / measured
        );
    }
}

/// A bar for each plan: compute, exposed communication and idle time, over the policy's iteration.
fn picture(rows: &[(Claim, Found, Vec<Twin>)]) -> String {
    let bars = rows.iter().map(|(_, found, _)| all(found).count() + 1).sum::<usize>();
    let slowest = rows.iter().flat_map(|(_, found, _)| all(found).map(|(_, s)| s.seconds / found.own.seconds));
    let scale = 400.0 / slowest.fold(1.0, f64::max);
    let (height, colours) = (bars * 22 + rows.len() * 10 + 50, ["#0072b2", "#d55e00", "#cccccc"]);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 760 {height}\" font-family=\"sans-serif\" font-size=\"12\">\n\
         <rect width=\"760\" height=\"{height}\" fill=\"#ffffff\"/>\n"
    );
    for (at, word) in ["compute", "exposed communication", "idle"].iter().enumerate() {
        let x = 20 + at * 180;
        let _ = writeln!(svg, "<rect x=\"{x}\" y=\"14\" width=\"12\" height=\"12\" fill=\"{}\"/>", colours[at]);
        let _ = writeln!(svg, "<text x=\"{}\" y=\"24\">{word}</text>", x + 18);
    }
    let mut y = 46;
    for (claim, found, _) in rows {
        let _ = writeln!(svg, "<text x=\"20\" y=\"{y}\" font-weight=\"bold\">{}</text>", escaped(&claim.title));
        y += 8;
        for (name, shape) in all(found) {
            let _ = writeln!(svg, "<text x=\"250\" y=\"{}\" text-anchor=\"end\">{}</text>", y + 13, escaped(name));
            let over = shape.seconds / found.own.seconds;
            let mut x = 260.0;
            for (share, colour) in [1.0 - shape.exposed - shape.idle, shape.exposed, shape.idle].iter().zip(colours) {
                let width = share.max(0.0) * over * scale;
                let _ = writeln!(
                    svg,
                    "<rect x=\"{x:.1}\" y=\"{y}\" width=\"{width:.1}\" height=\"16\" fill=\"{colour}\"/>"
                );
                x += width;
            }
            let _ = writeln!(svg, "<text x=\"{:.1}\" y=\"{}\">{over:.2} x</text>", x + 6.0, y + 13);
            y += 22;
        }
        y += 24;
    }
    svg.push_str("</svg>\n");
    svg
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;")
}
