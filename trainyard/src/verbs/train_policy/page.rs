//! The page of `train-policy`.

use learn::Families;
use reports::Document;
use reports::document::{Block, Figure, Section};

use super::{CURVE, SEEDS, TrainPolicyRequest};
use crate::results::{ScoreRow, TrainPolicyReport};
use crate::verbs::pages::{or_dash, table};

/// A page with nothing on it.
pub(super) const fn empty() -> Document {
    Document {
        title: String::new(),
        description: String::new(),
        warnings: Vec::new(),
        figures: Vec::new(),
        sections: Vec::new(),
        assumptions: Vec::new(),
        command: String::new(),
    }
}

fn ratio(value: Option<f64>) -> String {
    or_dash(value, |value| format!("{value:.4}"))
}

fn interval(low: Option<f64>, high: Option<f64>) -> String {
    or_dash(low.zip(high), |(low, high)| format!("{low:.4} to {high:.4}"))
}

pub(super) fn page(report: &TrainPolicyReport, held_out: &Families, request: &TrainPolicyRequest<'_>) -> Document {
    let mut sections = vec![scores(&report.scores)];
    if !report.curve.is_empty() {
        sections.push(curve(report));
    }
    let list = |names: Vec<String>| names.join(", ");
    let count = |number: u64| reports::unit::Unit::Count.text(number as f64);
    Document {
        title: "The policy `learned` beside `mcts`".to_owned(),
        description: "Iteration times of the plans that a tree search finds when a trained network guides it, over those that \
                      it finds by rules, with as many evaluations, on clusters and models that training never saw. Below 1 \
                      the network is faster."
            .to_owned(),
        warnings: Vec::new(),
        figures: report.scores.iter().map(figure).collect(),
        sections,
        assumptions: vec![
            ("searches".to_owned(), count(report.searches)),
            ("evaluations in all".to_owned(), count(report.evaluations)),
            ("seed".to_owned(), report.seed.to_string()),
            ("parameters".to_owned(), count(report.parameters as u64)),
            ("nodes of training".to_owned(), report.taught_nodes.join(", ")),
            ("models of training".to_owned(), report.taught_models.join(", ")),
            ("nodes of the score".to_owned(), list(held_out.node_names())),
            ("models of the score".to_owned(), list(held_out.model_names())),
            (
                "jobs".to_owned(),
                "4 to 256 devices of one or two kinds of node, network 0.25 to 2 times as fast as the catalog's, models with \
                 half as many to half as many more layers, batches of half a sequence to 16 a device; the estimate is the \
                 closed form, which the searches ask, and each plan found is simulated too"
                    .to_owned(),
            ),
        ],
        command: command(report, request),
    }
}

fn command(report: &TrainPolicyReport, request: &TrainPolicyRequest<'_>) -> String {
    let tail = format!("--weights {} --jobs {} --out .", report.weights, request.jobs);
    if request.score_only {
        return format!("trainyard train-policy --score-only {tail}");
    }
    let (seed, searches, evaluations) = (request.seed, request.searches, request.evaluations);
    format!("trainyard train-policy --seed {seed} --searches {searches} --evaluations {evaluations} {tail}")
}

fn figure(row: &ScoreRow) -> Figure {
    let name = format!("time over mcts, {} evaluations", row.evaluations);
    Figure::new(name, ratio(row.time_ratio), format!("95 %: {}; {}", interval(row.low, row.high), row.verdict))
}

fn scores(rows: &[ScoreRow]) -> Section {
    let cells = |row: &ScoreRow| {
        vec![
            row.evaluations.to_string(),
            ratio(row.time_ratio),
            interval(row.low, row.high),
            ratio(row.simulated_ratio),
            interval(row.simulated_low, row.simulated_high),
            row.both.to_string(),
            row.faster.to_string(),
            row.slower.to_string(),
            row.only_learned.to_string(),
            row.only_mcts.to_string(),
            row.verdict.to_owned(),
        ]
    };
    let columns = [
        ">evaluations",
        ">time over mcts",
        "95 % interval",
        ">simulated",
        "95 % interval, simulated",
        ">both found",
        ">learned faster",
        ">mcts faster",
        ">only learned",
        ">only mcts",
        "verdict",
    ];
    let (jobs, seeds) = rows.first().map_or((0, SEEDS), |row| (row.jobs, row.seeds));
    let note = format!(
        "Geometric means over {jobs} jobs with {seeds} search each; intervals by a bootstrap over jobs. A difference of more \
         than one in a thousand counts as faster."
    );
    let mut section = Section::new("On clusters and models that it never saw", note);
    section.blocks.push(Block::Table(table("learned beside mcts", &columns, rows.iter().map(cells).collect(), "")));
    section
}

fn curve(report: &TrainPolicyReport) -> Section {
    // Means of the losses of the rounds that end at each point of the curve.
    let mut rows = Vec::with_capacity(report.curve.len());
    let mut before = 0;
    for point in &report.curve {
        let here = report.rounds.iter().filter(|round| round.searches > before && round.searches <= point.searches);
        let (count, policy, value) = here.fold((0u32, 0.0, 0.0), |(count, policy, value), round| {
            (count + 1, policy + round.policy_loss, value + round.value_loss)
        });
        let mean = |sum: f64| or_dash((count > 0).then_some(sum), |sum| format!("{:.4}", sum / f64::from(count)));
        rows.push(vec![
            point.searches.to_string(),
            mean(policy),
            mean(value),
            ratio(point.time_ratio),
            interval(point.low, point.high),
        ]);
        before = point.searches;
    }
    let (jobs, evaluations, _) = CURVE;
    let note = format!(
        "Losses are means over the searches since the row before; the time is over mcts on {jobs} other jobs of the families \
         that are held out, with {evaluations} evaluations each. Nothing is chosen by it: the weights are those of the end."
    );
    let columns = [">searches", ">loss of shares", ">loss of values", ">time over mcts", "95 % interval"];
    let mut section = Section::new("Learning curve", note);
    section.blocks.push(Block::Table(table("Learning curve", &columns, rows, "")));
    section
}
