//! Statistics by hand and by published tables; pages over cells that are drawn.

use super::statistics::student;
use super::*;

fn cell(scenario: &str, policy: &str, seed: Option<u64>, iteration_ns: Option<u64>) -> Cell {
    let planned = |ns| Planned {
        iteration_ns: ns,
        predicted_ns: ns,
        memory_share: 0.5,
        evaluations: 10,
        curve: vec![(2, 2 * ns), (7, ns)],
        plan: format!("plan of {policy}"),
    };
    let nothing = || Outcome::Nothing("plan: does not fit".to_owned());
    let outcome = iteration_ns.map_or_else(nothing, |ns| Outcome::Planned(planned(ns)));
    Cell { scenario: scenario.to_owned(), policy: policy.to_owned(), seed, outcome }
}

fn ablation(policies: &[(&str, bool)], scenarios: &[&str], seeds: u64, cells: Vec<Cell>) -> Ablation {
    Ablation {
        scenarios: scenarios.iter().map(|name| (*name).to_owned()).collect(),
        policies: policies.iter().map(|(name, draws)| Contender { name: (*name).to_owned(), draws: *draws }).collect(),
        baseline: policies[0].0.to_owned(),
        seeds: (0..seeds).collect(),
        budget: 10,
        cells,
        assumptions: vec![("judge".to_owned(), "simulator".to_owned())],
        command: String::new(),
    }
}

/// A time by its logarithm, in steps so small that rounding does not count.
#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "some 1e13 at most")]
fn picoseconds(log: f64) -> u64 {
    (log.exp() * 1e12).round() as u64
}

/// Two-sided 95 % quantiles of Student's t (Abramowitz and Stegun, table 26.10), and closed forms at 1 and 2 degrees:
/// tan(pi 0.475) and p sqrt(2 / (1 - p^2)) with p = 0.95.
#[test]
fn quantiles_are_those_of_the_table() {
    let table = [(3.0, 3.182), (4.0, 2.776), (5.0, 2.571), (9.0, 2.262), (10.0, 2.228), (30.0, 2.042), (120.0, 1.980)];
    for (freedom, expect) in table {
        assert!((student(freedom) - expect).abs() < 5.1e-4, "{freedom}: {} is not {expect}", student(freedom));
    }
    let one = (std::f64::consts::PI * 0.475).tan();
    assert!((student(1.0) / one - 1.0).abs() < 1e-9, "{} {one}", student(1.0));
    let two = 0.95 * (2.0f64 / (1.0 - 0.95 * 0.95)).sqrt();
    assert!((student(2.0) / two - 1.0).abs() < 1e-9, "{} {two}", student(2.0));
    // The normal distribution's, which it comes to.
    assert!((student(f64::INFINITY) - 1.959_964).abs() < 1e-5, "{}", student(f64::INFINITY));
    assert!((1..200).all(|n| student(f64::from(n)) > student(f64::from(n) + 0.5)));
}

/// e^(1, 2, 3) over e^1: the mean is e^1, the standard error of the logarithm 1 / sqrt(3), and t of 2 degrees 4.3027.
#[test]
fn an_interval_by_hand() {
    let times = [1.0f64, 2.0, 3.0].map(picoseconds);
    let mut cells: Vec<Cell> =
        times.iter().enumerate().map(|(seed, ns)| cell("s", "random", Some(seed as u64), Some(*ns))).collect();
    cells.push(cell("s", "megatron", None, Some(times[0])));
    let ablation = ablation(&[("megatron", false), ("random", true)], &["s"], 3, cells);
    let scores = ablation.scores();
    assert_eq!(scores[0].ratio, Some(Ratio { value: 1.0, spread: Spread::Exact }));
    let ratio = scores[1].ratio.expect("both found plans");
    let (low, high) = ratio.bounds().expect("three seeds");
    let reach = 4.302_652_73 / 3f64.sqrt();
    for (found, expect) in [(ratio.value, 1f64.exp()), (low, (1.0 - reach).exp()), (high, (1.0 + reach).exp())] {
        assert!((found / expect - 1.0).abs() < 1e-6, "{found} is not {expect}");
    }
    assert_eq!(ratio.faster(), None);
    assert!((scores[1].iteration_s.expect("times") / (2f64.exp() * 1e3) - 1.0).abs() < 1e-9);
}

/// Welch and Satterthwaite by hand: two means of equal variance v of 3 and 5 draws have (v/3 + v/5)^2 / ((v/3)^2/2 +
/// (v/5)^2/4) degrees of freedom. And two scenarios halve the logarithm's error by sqrt(2) where they are alike.
#[test]
fn independent_means_add_up() {
    let draws = |policy: &str, scenario: &str, logs: &[f64]| -> Vec<Cell> {
        let ns = |log: &f64| Some(picoseconds(*log));
        logs.iter().enumerate().map(|(seed, log)| cell(scenario, policy, Some(seed as u64), ns(log))).collect()
    };
    let (three, five) = ([-1.0, 0.0, 1.0], [-1.0, -1.0, 0.0, 1.0, 1.0]);
    let mut cells = draws("a", "s", &three);
    cells.extend(draws("b", "s", &five));
    let ratio = ablation(&[("a", true), ("b", true)], &["s"], 5, cells).scores()[1].ratio.expect("both found plans");
    let (a, b) = (1.0f64 / 3.0, 1.0 / 5.0);
    let freedom = (a + b) * (a + b) / (a * a / 2.0 + b * b / 4.0);
    let reach = student(freedom) * (a + b).sqrt();
    let (low, high) = ratio.bounds().expect("several seeds");
    assert!((low.ln() + reach).abs() < 1e-6 && (high.ln() - reach).abs() < 1e-6, "{ratio:?} {reach}");

    let mut cells = Vec::new();
    for scenario in ["s", "t"] {
        cells.push(cell(scenario, "a", None, Some(1_000_000_000_000)));
        cells.extend(draws("b", scenario, &three));
    }
    let overall = ablation(&[("a", false), ("b", true)], &["s", "t"], 3, cells).overall();
    let (low, high) = overall[1].ratio.and_then(Ratio::bounds).expect("several seeds");
    let reach = student(4.0) / 6f64.sqrt();
    assert!((low.ln() + reach).abs() < 1e-6 && (high.ln() - reach).abs() < 1e-6, "{low} {high} {reach}");
}

/// What draws nothing has no spread, one seed says nothing of it, and equal draws have an interval of no width.
#[test]
fn spreads_say_what_they_know() {
    let with = |times: &[u64]| {
        let mut cells = vec![cell("s", "a", None, Some(100)), cell("s", "c", None, Some(110))];
        cells.extend(times.iter().enumerate().map(|(seed, ns)| cell("s", "b", Some(seed as u64), Some(*ns))));
        let all = [("a", false), ("b", true), ("c", false)];
        ablation(&all, &["s"], times.len() as u64, cells)
    };
    let ratios =
        |ablation: &Ablation| ablation.scores().into_iter().map(|s| s.ratio.expect("plans")).collect::<Vec<_>>();
    let one = with(&[90]);
    assert_eq!(ratios(&one)[1].spread, Spread::Unknown);
    assert_eq!(ratios(&one)[1].faster(), None);
    assert!(one.document().warnings.iter().any(|w| w.contains("One seed")), "{:?}", one.document().warnings);
    let equal = with(&[90, 90]);
    let ratio = ratios(&equal)[1];
    assert_eq!(ratio.bounds(), Some((ratio.value, ratio.value)));
    assert_eq!((ratio.faster(), ratios(&equal)[2].faster()), (Some(true), Some(false)));
    assert_eq!(ratios(&equal)[2].spread, Spread::Exact);
    let page = equal.document().markdown();
    assert!(page.contains("nothing is drawn") && page.contains("slower") && page.contains("the baseline"), "{page}");
}

/// A scenario where a policy found nothing with some seed counts in no mean of that policy, and the page says why.
#[test]
fn what_was_not_found_is_left_out_and_named() {
    let mut cells = Vec::new();
    for (scenario, found) in [("s", true), ("t", false)] {
        cells.push(cell(scenario, "a", None, Some(100)));
        cells.push(cell(scenario, "b", Some(0), Some(120)));
        cells.push(cell(scenario, "b", Some(1), found.then_some(120)));
    }
    let ablation = ablation(&[("a", false), ("b", true)], &["s", "t"], 2, cells);
    let (scores, overall) = (ablation.scores(), ablation.overall());
    assert_eq!((scores[3].found, scores[3].of, scores[3].ratio), (1, 2, None));
    assert_eq!((overall[1].found, overall[1].of), (1, 2));
    assert!((overall[1].ratio.expect("over one").value - 1.2).abs() < 1e-12);
    let page = ablation.document();
    assert!(page.warnings.iter().any(|w| w.contains("b over 1 of 2")), "{:?}", page.warnings);
    assert!(page.markdown().contains("plan: does not fit"), "{}", page.markdown());
    let lines: Vec<String> = ablation.cells_csv().lines().map(str::to_owned).collect();
    assert_eq!(lines.len(), 7);
    assert_eq!(lines[6], "t,b,1,,,,,,plan: does not fit");
    assert_eq!(ablation.summary_csv().lines().count(), 1 + 4 + 2);
}

/// Cells in any order give the same bytes, and a cell reads back from its JSON.
#[test]
fn order_does_not_matter() {
    let mut cells = Vec::new();
    for scenario in ["s", "t"] {
        cells.push(cell(scenario, "a", None, Some(1000)));
        cells.extend((0..5).map(|seed| cell(scenario, "b", Some(seed), Some(1100 + 37 * seed))));
    }
    let one = ablation(&[("a", false), ("b", true)], &["s", "t"], 5, cells.clone());
    cells.reverse();
    let other = Ablation { cells: cells.clone(), ..one.clone() };
    let written = |of: &Ablation| (of.document().html(), of.document().pictures(), of.summary_csv(), of.cells_csv());
    assert_eq!(written(&one), written(&other));
    let text = serde_json::to_string(&cells[0]).expect("plain values");
    assert_eq!(serde_json::from_str::<Cell>(&text).expect("as written"), cells[0]);
}

/// From 2 evaluations on each seed has a plan; at 7 they go down to the end, where the mean over the baseline's is the
/// ratio.
#[test]
fn curves_are_means_of_staircases() {
    let mut cells = vec![cell("s", "a", None, Some(1000))];
    cells.extend([(0, 1000u64), (1, 4000)].map(|(seed, ns)| cell("s", "b", Some(seed), Some(ns))));
    let Outcome::Planned(planned) = &mut cells[2].outcome else { unreachable!("made above") };
    planned.curve = vec![(4, 16_000), (9, 4000)];
    let ablation = ablation(&[("a", false), ("b", true)], &["s"], 2, cells);
    let curves = ablation.curves("s");
    let steps: Vec<(u64, f64)> = curves[1].steps.iter().map(|step| (step.evaluations, step.mean)).collect();
    // sqrt(2000 x 16000), sqrt(1000 x 16000) and sqrt(1000 x 4000) over 1000.
    let expect = [(4, 32f64.sqrt()), (7, 4.0), (9, 2.0)];
    assert_eq!(steps.len(), expect.len(), "{steps:?}");
    for ((at, mean), (expect_at, expect_mean)) in steps.iter().zip(expect) {
        assert!(*at == expect_at && (mean / expect_mean - 1.0).abs() < 1e-9, "{steps:?}");
    }
    assert!(curves[1].steps.iter().all(|step| step.band.is_some()) && curves[1].end == 10);
    assert!(curves[0].steps.iter().all(|step| step.band.is_none()), "{curves:?}");
    let pictures = ablation.document().pictures();
    let names: Vec<&str> = pictures.iter().map(|(name, _)| name.as_str()).collect();
    assert_eq!(names, ["ratios.svg", "best-so-far-1.svg"]);
    assert!(pictures.iter().all(|(_, svg)| !svg.contains("NaN") && !svg.contains("inf")), "{pictures:?}");
}
