//! The page over an ablation.

use super::pictures::{self, MOST_ROWS, ratio_text};
use super::statistics::{ALL, Ratio, Score, Spread};
use super::{Ablation, Outcome};
use crate::document::{Block, Document, Figure, Picture, Section};
use crate::show;
use crate::tables::Table;
use crate::unit::Unit;

/// Scenarios with a picture of the best so far.
const MOST_CURVES: usize = 12;
/// Reasons that the page lists.
const MOST_REASONS: usize = 40;

const DASH: &str = "\u{2013}";

fn value(ratio: Option<Ratio>) -> String {
    ratio.map_or_else(|| DASH.to_owned(), |ratio| ratio_text(ratio.value))
}

/// The interval, or why there is none.
fn interval(score: &Score, baseline: &str) -> String {
    match score.ratio.map(|ratio| ratio.spread) {
        None => DASH.to_owned(),
        Some(_) if score.policy == baseline => "the baseline".to_owned(),
        Some(Spread::Exact) => "nothing is drawn".to_owned(),
        Some(Spread::Unknown) => "one seed: unknown".to_owned(),
        Some(Spread::Interval { low, high }) => format!("{} to {}", ratio_text(low), ratio_text(high)),
    }
}

/// What the interval says.
fn verdict(score: &Score, baseline: &str) -> &'static str {
    match score.ratio {
        _ if score.policy == baseline => DASH,
        None => "no plan",
        Some(ratio) => match (ratio.faster(), ratio.spread) {
            (Some(true), _) => "faster",
            (Some(false), _) => "slower",
            (None, Spread::Exact) => "the same",
            (None, Spread::Unknown | Spread::Interval { .. }) => "not told apart",
        },
    }
}

impl Ablation {
    /// The page.
    #[must_use]
    pub fn document(&self) -> Document {
        let (scores, overall) = (self.scores(), self.overall());
        let mut sections = vec![self.ratios(&scores, &overall)];
        sections.push(self.by_scenario(&scores));
        sections.extend(self.best_so_far());
        sections.extend(self.nothing_found());
        let names: Vec<&str> = self.policies.iter().map(|policy| policy.name.as_str()).collect();
        Document {
            title: format!(
                "Ablation: {} over {}",
                show::plural(self.policies.len() as u64, "policy", "policies"),
                show::plural(self.scenarios.len() as u64, "scenario", "scenarios")
            ),
            description: format!(
                "{} with {} evaluations each; every plan is simulated. Ratios are iteration times over those of {}: under \
                 1 is faster.",
                show::capital(&names.join(", ")),
                show::count(self.budget),
                self.baseline
            ),
            warnings: self.warnings(&overall),
            figures: self.figures(&overall),
            sections,
            assumptions: self.assumptions.clone(),
            command: self.command.clone(),
        }
    }

    fn warnings(&self, overall: &[Score]) -> Vec<String> {
        let mut warnings = Vec::new();
        let drawn: Vec<&str> = self.policies.iter().filter(|p| p.draws).map(|p| p.name.as_str()).collect();
        if !drawn.is_empty() && self.seeds.len() == 1 {
            let who = drawn.join(" and ");
            warnings.push(format!("One seed says nothing of how much {who} varies: no interval is given."));
        }
        let short: Vec<&Score> = overall.iter().filter(|score| score.found < score.of).collect();
        if !short.is_empty() {
            let of = |score: &&Score| format!("{} over {} of {}", score.policy, score.found, score.of);
            let each: Vec<String> = short.iter().map(of).collect();
            warnings.push(format!(
                "Means over scenarios leave out those where the policy or {} found no plan with some seed, and then are not \
                 over the same ones: {}.",
                self.baseline,
                each.join(", ")
            ));
        }
        warnings
    }

    fn figures(&self, overall: &[Score]) -> Vec<Figure> {
        let mut figures = vec![
            Figure::new("scenarios", show::count(self.scenarios.len() as u64), ""),
            Figure::new("seeds", show::count(self.seeds.len() as u64), "of policies that draw"),
            Figure::new("cells", show::count(self.cells.len() as u64), "plans decided and simulated"),
        ];
        let whole = overall.iter().filter(|score| score.found == score.of);
        let ratios = whole.filter_map(|score| Some((score, score.ratio?)));
        if let Some((score, ratio)) = ratios.min_by(|a, b| a.1.value.total_cmp(&b.1.value)) {
            let note = format!("{}, {ALL} over scenarios", score.policy);
            figures.push(Figure::new("lowest ratio", pictures::words(ratio), note));
        }
        figures
    }

    fn names(&self) -> Vec<&str> {
        self.policies.iter().map(|policy| policy.name.as_str()).collect()
    }

    fn ratios(&self, scores: &[Score], overall: &[Score]) -> Section {
        let note = format!(
            "Iteration time over that of {}: geometric means over seeds and scenarios, with the 95 % confidence interval \
             of the mean over seeds (Student's t of the logarithms). What draws nothing has no spread.",
            self.baseline
        );
        let mut section = Section::new("Policies", note);
        let mut table = Table::new(
            "Over all scenarios",
            &["policy", ">scenarios", ">ratio", ">95 % interval", "", ">faster in", ">slower in"],
        );
        for score in overall {
            let own = || scores.iter().filter(|of| of.policy == score.policy).filter_map(|of| of.ratio);
            let count = |faster: bool| own().filter(|ratio| ratio.faster() == Some(faster)).count();
            table.row(vec![
                score.policy.clone(),
                format!("{} of {}", score.found, score.of),
                value(score.ratio),
                interval(score, &self.baseline),
                verdict(score, &self.baseline).to_owned(),
                count(true).to_string(),
                count(false).to_string(),
            ]);
        }
        section.blocks.push(Block::Table(table));
        let mut groups = vec![(show::capital(ALL), overall.iter().collect::<Vec<_>>())];
        let rows = (self.scenarios.len() + 1) * (self.policies.len() + 1);
        let all_shown = rows <= MOST_ROWS;
        if self.scenarios.len() == 1 {
            groups.clear();
        }
        if all_shown || self.scenarios.len() == 1 {
            groups.extend(self.scenarios.iter().map(|name| {
                let own = scores.iter().filter(|score| score.scenario.as_ref() == Some(name));
                (name.clone(), own.collect())
            }));
        }
        if let Some(scene) = pictures::ratios(&groups, &self.names(), &self.baseline) {
            let mut picture = Picture::new("ratios.svg", "Ratios", scene, Vec::new());
            if !all_shown {
                picture = picture.noted("The mean over scenarios alone: there are too many to draw.");
            }
            section.blocks.push(Block::Picture(picture));
        }
        section
    }

    fn by_scenario(&self, scores: &[Score]) -> Section {
        let note = "Times are simulated, means over the seeds that found a plan. What the policy's own evaluator said of \
                    the same plan, the closed form, stands beside it; evaluations are legal plans that it timed.";
        let mut section = Section::new("Scenarios", note);
        let columns = [
            "scenario",
            "policy",
            ">found",
            ">iteration",
            ">closed form",
            ">evaluations",
            ">ratio",
            ">95 % interval",
            "",
        ];
        let mut table = Table::new("By scenario", &columns);
        for score in scores {
            let off = score.predicted_s.zip(score.iteration_s).map(|(predicted, judged)| predicted / judged - 1.0);
            table.row(vec![
                score.scenario.clone().unwrap_or_default(),
                score.policy.clone(),
                format!("{} of {}", score.found, score.of),
                show::or_dash(score.iteration_s, show::seconds),
                show::or_dash(off, show::signed_percent),
                show::or_dash(score.evaluations, |count| Unit::Plain.text(count)),
                value(score.ratio),
                interval(score, &self.baseline),
                verdict(score, &self.baseline).to_owned(),
            ]);
        }
        section.blocks.push(Block::Table(table));
        section
    }

    fn best_so_far(&self) -> Option<Section> {
        let note = format!(
            "The best time so far, as the closed form says, over the best that {} ended with: geometric mean over seeds \
             from where each has a plan that fits, with its 95 % confidence interval. A dot is where a policy ended.",
            self.baseline
        );
        let mut section = Section::new("Best so far", note);
        for (index, scenario) in self.scenarios.iter().enumerate().take(MOST_CURVES) {
            let curves = self.curves(scenario);
            if let Some((scene, keys)) = pictures::best_so_far(&curves, &self.names(), &self.baseline) {
                let picture = Picture::new(format!("best-so-far-{}.svg", index + 1), scenario.clone(), scene, keys);
                section.blocks.push(Block::Picture(picture));
            }
        }
        if self.scenarios.len() > MOST_CURVES {
            let more = self.scenarios.len() - MOST_CURVES;
            let words = format!("{more} more scenarios have no picture; their curves stand in cells.jsonl.");
            section.blocks.push(Block::Words(words));
        }
        (!section.blocks.is_empty()).then_some(section)
    }

    fn nothing_found(&self) -> Option<Section> {
        let mut rows: Vec<(Vec<String>, u64)> = Vec::new();
        for cell in self.in_order() {
            let Outcome::Nothing(reason) = &cell.outcome else { continue };
            let row = vec![cell.scenario.clone(), cell.policy.clone(), reason.replace(['\n', '\r'], " ")];
            match rows.iter_mut().find(|(known, _)| *known == row) {
                Some((_, count)) => *count += 1,
                None => rows.push((row, 1)),
            }
        }
        let mut table = Table::new("Without a plan", &["scenario", "policy", "reason", ">cells"]);
        let more = rows.len().saturating_sub(MOST_REASONS);
        for (mut row, count) in rows.into_iter().take(MOST_REASONS) {
            row.push(show::count(count));
            table.row(row);
        }
        if more > 0 {
            table.note = format!("{more} more reasons stand in cells.csv.");
        }
        let mut section = Section::new(table.title.clone(), "");
        let some = !table.rows.is_empty();
        section.blocks.push(Block::Table(table));
        some.then_some(section)
    }
}
