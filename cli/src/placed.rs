//! The verb `place`.

use std::path::Path;

use owo_colors::OwoColorize as _;
use trainyard::results::{GroupPlaces, PlaceReport, json};
use trainyard::{Context, Error, PlaceRequest};

use crate::answer::{Answer, close, open, stage};
use crate::arguments::OfScenario;
use crate::tables::{line, numbers_right, table, time, title};

pub(crate) fn answer(
    of: &OfScenario,
    (matrix, topology, budget): (Option<&Path>, Option<&Path>, u64),
    context: &Context<'_>,
) -> Result<Answer, Error> {
    let (loaded, mut out) = open(of)?;
    let report = trainyard::place(&loaded, &PlaceRequest { matrix, topology, budget }, context)?;
    stage(&mut out, "ranks.csv", report.ranks.as_bytes())?;
    stage(&mut out, "placed.toml", report.placed_scenario.as_bytes())?;
    close(out, &loaded, "place.json", &json(&report))?;
    Ok(Answer::good(json(&report), summary(&report)))
}

/// Ranks whose devices a summary lists.
const MOST_RANKS: usize = 64;

fn summary(report: &PlaceReport) -> String {
    let mut out = String::new();
    title(&mut out, &format!("{}: {}", report.header.scenario, report.plan.words));
    report.domains.iter().for_each(|words| line(&mut out, "domains", words));
    report.found.iter().for_each(|words| line(&mut out, "found", words));
    let before = report.before_ms.map_or_else(|| "not legal".to_owned(), time);
    line(&mut out, "as it was", before);
    let gain = report.gain.map_or_else(String::new, |gain| format!(" ({:+.2} % faster)", gain * 100.0));
    line(&mut out, "as placed", format!("{}{gain}", time(report.after_ms)).bold());
    let ended = if report.settled { "no exchange gains any more" } else { "the budget ended the search" };
    line(&mut out, "looked at", format!("{} orders; {ended}", report.evaluations));
    report
        .steps
        .iter()
        .for_each(|step| line(&mut out, "faster by", format!("{}: {}", step.step, time(step.iteration_ms))));
    if !report.axes.is_empty() {
        let mut rows = table(&["groups", "number", "in a domain", "in a node", "under a leaf", "beyond"]);
        for axis in &report.axes {
            let both = |of: fn(&GroupPlaces) -> u64| {
                let (before, after) = (of(&axis.before), of(&axis.after));
                if before == after { after.to_string() } else { format!("{before} -> {after}") }
            };
            rows.add_row(vec![
                axis.axis.to_owned(),
                axis.groups.to_string(),
                both(|places| places.domain),
                both(|places| places.node),
                both(|places| places.leaf),
                both(|places| places.beyond),
            ]);
        }
        numbers_right(&mut rows, 1);
        out.push_str(&format!("{rows}\n"));
    }
    let shown: Vec<String> = report.order.iter().take(MOST_RANKS).map(u32::to_string).collect();
    let more = report.order.len().saturating_sub(MOST_RANKS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    line(&mut out, "device of each rank", format!("{}{more}", shown.join(" ")));
    report.notes.iter().for_each(|note| line(&mut out, "note", note.yellow()));
    out
}
