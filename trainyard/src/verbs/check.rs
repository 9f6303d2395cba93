//! `check`: every scenario of a folder against what it gave before.

use std::path::{Path, PathBuf};

use reports::junit::{CaseOutcome, JunitCase, JunitRun, JunitSuite};
use serde_json::Value;

use crate::results::{CheckReport, CheckedScenario, Figure, Header, Verdict, error_json, json};
use crate::{Context, Error, output, scenario};

/// The baseline of a scenario, inside its folder.
const BASELINE: &str = "expected/simulate.json";

/// Simulates `scenario.toml` of each folder in `folder` and holds the result against `expected/simulate.json`.
/// A result is worse if its iteration is slower, a stage's peak memory is larger (both by more than `tolerance`), or if
/// it is another answer (a plan where there was none, or none where there was one). With `update`, what comes out is
/// written as the new baseline.
///
/// # Errors
/// [`Error::Files`] or [`Error::Input`] if the folder holds no scenario; what is wrong inside a scenario is its verdict.
pub fn check(folder: &Path, tolerance: f64, update: bool, context: &Context<'_>) -> Result<CheckReport, Error> {
    let folders = scenario_folders(folder)?;
    let mut scenarios = Vec::with_capacity(folders.len());
    for (done, path) in folders.iter().enumerate() {
        let name = path.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        context.step("check", done as u64, folders.len() as u64, &name)?;
        scenarios.push(check_one(path, name, tolerance, update, context)?);
    }
    let passed = scenarios.iter().all(|s| !matches!(s.verdict, Verdict::Worse | Verdict::Failed | Verdict::New));
    Ok(CheckReport { header: Header::new("check", ""), tolerance, passed, scenarios })
}

fn scenario_folders(folder: &Path) -> Result<Vec<PathBuf>, Error> {
    let entries =
        std::fs::read_dir(folder).map_err(|e| Error::files(folder, format!("cannot read the folder: {e}")))?;
    let mut folders: Vec<PathBuf> = Vec::new();
    for entry in entries {
        let path = entry.map_err(|e| Error::files(folder, format!("cannot read the folder: {e}")))?.path();
        if path.join("scenario.toml").is_file() {
            folders.push(path);
        }
    }
    if folders.is_empty() {
        let problem = ir::Problem::new(folder.display().to_string(), "holds no folder with a scenario.toml");
        return Err(Error::problem(problem.hint("one folder per scenario, as in scenarios/")));
    }
    folders.sort();
    Ok(folders)
}

/// What a scenario gives, as the JSON of its baseline: a simulation, or why there is none.
///
/// # Errors
/// [`Error::Interrupted`] only.
fn answer(folder: &Path, context: &Context<'_>) -> Result<Value, Error> {
    // Named without its folder: a baseline is the same wherever the scenarios are.
    let loaded = match scenario::read_text(&folder.join("scenario.toml")) {
        Ok(text) => scenario::parse("scenario.toml", &text, folder),
        Err(what) => Err(Error::files(&folder.join("scenario.toml"), what)),
    };
    let result = loaded.and_then(|loaded| crate::simulate(&loaded, context));
    let text = match result {
        Ok(report) => json(&report),
        Err(Error::Interrupted) => return Err(Error::Interrupted),
        Err(error) => error_json("simulate", &error),
    };
    Ok(serde_json::from_str(&text).expect("just written"))
}

/// Whether a scenario gave neither a result nor the answer that there is none.
fn failed(value: &Value) -> bool {
    value.get("error").and_then(Value::as_str).is_some_and(|word| word != "infeasible")
}

fn check_one(
    folder: &Path,
    name: String,
    tolerance: f64,
    update: bool,
    context: &Context<'_>,
) -> Result<CheckedScenario, Error> {
    let begun = std::time::Instant::now();
    let now = answer(folder, context)?;
    let elapsed_s = begun.elapsed().as_secs_f64();
    let path = folder.join(BASELINE);
    let baseline = match std::fs::read_to_string(&path) {
        Ok(text) => match serde_json::from_str::<Value>(&text) {
            Ok(value) => Some(value),
            Err(error) if !update => {
                let message = format!("{} is not JSON: {error}", path.display());
                let (verdict, figures) = (Verdict::Failed, Vec::new());
                return Ok(CheckedScenario { name, verdict, figures, message, elapsed_s });
            }
            Err(_) => None,
        },
        Err(_) => None,
    };
    let (mut verdict, figures, message) = judge(baseline.as_ref(), &now, tolerance);
    if update && !failed(&now) && baseline.as_ref() != Some(&now) {
        output::write(&path, json(&now).as_bytes())?;
        verdict = Verdict::Updated;
    }
    Ok(CheckedScenario { name, verdict, figures, message, elapsed_s })
}

/// The verdict, the figures worth showing and a message.
fn judge(baseline: Option<&Value>, now: &Value, tolerance: f64) -> (Verdict, Vec<Figure>, String) {
    let error = |value: &Value| value.get("error").and_then(Value::as_str).map(ToOwned::to_owned);
    let message = |value: &Value| value.get("message").and_then(Value::as_str).unwrap_or("").to_owned();
    if failed(now) {
        return (Verdict::Failed, Vec::new(), message(now));
    }
    let Some(baseline) = baseline else { return (Verdict::New, figures(now, now), String::new()) };
    match (error(baseline), error(now)) {
        (None, None) => {}
        (Some(_), Some(_)) => return (Verdict::Same, Vec::new(), "infeasible, as before".to_owned()),
        (None, Some(_)) => return (Verdict::Worse, Vec::new(), format!("was feasible: {}", message(now))),
        (Some(_), None) => return (Verdict::Worse, figures(now, now), "was infeasible: another answer".to_owned()),
    }
    let all = figures(baseline, now);
    let worse = all.iter().any(|figure| figure.change() > tolerance);
    let better = all.iter().any(|figure| figure.change() < -tolerance);
    let shown =
        all.into_iter().enumerate().filter(|(index, f)| *index == 0 || f.change().abs() > tolerance).map(|(_, f)| f);
    let verdict = match (worse, better) {
        (true, _) => Verdict::Worse,
        (false, true) => Verdict::Better,
        (false, false) => Verdict::Same,
    };
    let plan = |value: &Value| value.pointer("/plan/words").and_then(Value::as_str).unwrap_or("").to_owned();
    let message = if plan(baseline) == plan(now) { String::new() } else { format!("the plan was: {}", plan(baseline)) };
    (verdict, shown.collect(), message)
}

/// The figures that count, the iteration first: less is better in each.
fn figures(baseline: &Value, now: &Value) -> Vec<Figure> {
    let number = |value: &Value, pointer: &str| value.pointer(pointer).and_then(Value::as_f64);
    let mut pointers = vec![("iteration_ms".to_owned(), "/prediction/iteration_ms".to_owned())];
    let stages = now.pointer("/prediction/memory").and_then(Value::as_array).map_or(0, Vec::len);
    pointers.extend((0..stages).map(|s| (format!("stage {s} peak_gib"), format!("/prediction/memory/{s}/peak_gib"))));
    let figure = |(key, pointer): (String, String)| {
        Some(Figure { key, baseline: number(baseline, &pointer)?, now: number(now, &pointer)? })
    };
    pointers.into_iter().filter_map(figure).collect()
}

impl CheckReport {
    /// The checks as JUnit XML, a case for each scenario; `folder` is where the scenarios are.
    #[must_use]
    pub fn junit(&self, folder: &Path) -> String {
        let case = |scenario: &CheckedScenario| {
            let figures: Vec<String> = scenario.figures.iter().map(Figure::words).collect();
            let said = |otherwise: &str| {
                let worst = scenario.figures.iter().max_by(|a, b| a.change().total_cmp(&b.change()));
                let worst = worst.filter(|figure| figure.change() > self.tolerance).map(Figure::words);
                let first = scenario.message.lines().next().filter(|line| !line.is_empty()).map(str::to_owned);
                worst.or(first).unwrap_or_else(|| otherwise.to_owned())
            };
            let details = [scenario.message.clone(), figures.join("\n")].join("\n").trim().to_owned();
            let outcome = match scenario.verdict {
                Verdict::Same | Verdict::Better | Verdict::Updated => CaseOutcome::Passed,
                Verdict::Worse => CaseOutcome::Failed { message: said("worse"), details },
                Verdict::New => CaseOutcome::Failed { message: "there is no baseline".to_owned(), details },
                Verdict::Failed => CaseOutcome::Errored { message: said("it could not be computed"), details },
            };
            JunitCase {
                name: scenario.name.clone(),
                class_name: "check".to_owned(),
                file: Some(folder.join(&scenario.name).join("scenario.toml").display().to_string()),
                time: ir::SimDuration::from_seconds(scenario.elapsed_s).unwrap_or(ir::SimDuration::ZERO),
                output: if outcome == CaseOutcome::Passed { figures.join("\n") } else { String::new() },
                outcome,
            }
        };
        let name = format!("{} at a tolerance of {:.1} %", folder.display(), self.tolerance * 100.0);
        let suite = JunitSuite { name, cases: self.scenarios.iter().map(case).collect() };
        JunitRun { name: "trainyard check".to_owned(), suites: vec![suite] }.xml()
    }
    /// A table in Markdown.
    #[must_use]
    pub fn markdown(&self) -> String {
        use std::fmt::Write as _;
        let mut text = format!(
            "**{}** at a tolerance of {:.1} %\n\n| scenario | verdict | figure | baseline | now | change |\n|---|---|---|--:|--:|--:|\n",
            if self.passed { "Passed" } else { "Failed" },
            self.tolerance * 100.0
        );
        for scenario in &self.scenarios {
            let verdict = match scenario.verdict {
                Verdict::Same => "same",
                Verdict::Better => "better",
                Verdict::Worse => "**worse**",
                Verdict::New => "**no baseline**",
                Verdict::Updated => "updated",
                Verdict::Failed => "**failed**",
            };
            if scenario.figures.is_empty() {
                let _ = writeln!(text, "| {} | {verdict} | | | | |", scenario.name);
            }
            for figure in &scenario.figures {
                let _ = writeln!(
                    text,
                    "| {} | {verdict} | {} | {:.3} | {:.3} | {:+.1} % |",
                    scenario.name,
                    figure.key,
                    figure.baseline,
                    figure.now,
                    figure.change() * 100.0
                );
            }
        }
        for scenario in self.scenarios.iter().filter(|s| !s.message.is_empty()) {
            let _ = write!(text, "\n{}: {}\n", scenario.name, scenario.message.replace('\n', "\n    "));
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn result(iteration: f64, peak: f64) -> Value {
        json!({"plan": {"words": "p"}, "prediction": {"iteration_ms": iteration, "memory": [{"peak_gib": peak}]}})
    }

    #[test]
    fn verdicts() {
        let check = |baseline: Option<Value>, now: Value, expect: Verdict, shown: usize| {
            let (verdict, figures, _) = judge(baseline.as_ref(), &now, 0.03);
            assert_eq!((verdict, figures.len()), (expect, shown), "{baseline:?} {now}");
        };
        let no = json!({"error": "infeasible", "message": "m"});
        check(Some(result(100.0, 1.0)), result(102.9, 1.0), Verdict::Same, 1);
        check(Some(result(100.0, 1.0)), result(103.1, 1.0), Verdict::Worse, 1);
        check(Some(result(100.0, 1.0)), result(96.0, 1.0), Verdict::Better, 1);
        check(Some(result(100.0, 1.0)), result(100.0, 1.1), Verdict::Worse, 2);
        check(Some(result(100.0, 1.0)), result(90.0, 1.1), Verdict::Worse, 2);
        check(Some(no.clone()), no.clone(), Verdict::Same, 0);
        check(Some(no.clone()), result(1.0, 1.0), Verdict::Worse, 2);
        check(Some(result(1.0, 1.0)), no, Verdict::Worse, 0);
        check(None, result(1.0, 1.0), Verdict::New, 2);
        check(Some(result(1.0, 1.0)), json!({"error": "bad-input", "message": "m"}), Verdict::Failed, 0);
    }
}
