//! `size`: the inverse questions. Each answer is a plan that was priced, never a utilisation that was assumed.

mod bill;
mod clusters;
mod models;
mod network;
mod page;
#[cfg(test)]
mod tests;
mod trial;

use ir::Problem;

use crate::results::{Header, SizeReport};
use crate::scenario::{Loaded, SizeChoice, SizeQuestion};
use crate::verbs::whatif;
use crate::{Context, Error};

/// Answers the questions of a scenario's `[size]`.
///
/// # Errors
/// [`Error::Input`] if the scenario asks nothing; [`Error::Infeasible`] if a question about its own cluster has no plan;
/// [`Error::Interrupted`]. That no cluster suffices is an answer.
pub fn size(loaded: &Loaded, context: &Context<'_>) -> Result<SizeReport, Error> {
    let Some(choice) = loaded.scenario.size.clone() else {
        let hint = "such as [size] with tokens = \"2T\" and within = \"30d\"";
        return Err(loaded.error(vec![Problem::new("size", "the scenario asks nothing").hint(hint)]));
    };
    let mut report = SizeReport {
        header: Header::new("size", &loaded.scenario.name),
        inputs: page::inputs(loaded, &choice),
        cluster: None,
        tokens: None,
        model: None,
        network: None,
        warnings: Vec::new(),
        document: page::empty(),
    };
    for question in choice.ask.clone() {
        match question {
            SizeQuestion::Cluster => report.cluster = Some(clusters::smallest(loaded, &choice, context)?),
            SizeQuestion::Tokens => report.tokens = Some(clusters::tokens(loaded, &choice, context)?),
            SizeQuestion::Model => report.model = Some(models::largest(loaded, &choice, context)?),
            SizeQuestion::Network => report.network = Some(network::network(loaded, context)?),
        }
    }
    report.warnings = warnings(loaded, &choice, &report);
    report.document = page::document(&report, &choice);
    Ok(report)
}

/// What a reader must know before trusting the numbers.
fn warnings(loaded: &Loaded, choice: &SizeChoice, report: &SizeReport) -> Vec<String> {
    let mut warnings: Vec<String> = whatif::unnamed_stack(loaded).into_iter().collect();
    let kinds = || choice.kinds.iter().chain([&loaded.scenario.cluster]).flat_map(|cluster| &cluster.device_kinds);
    let priced = report.cluster.is_some() || report.tokens.is_some();
    let defaults: Vec<&str> =
        kinds().filter(|kind| kind.price_source.is_some()).map(|kind| kind.name.as_str()).collect();
    if priced && !defaults.is_empty() {
        let mut names = defaults;
        names.sort_unstable();
        names.dedup();
        warnings.push(format!(
            "Prices of {} are defaults, not offers: write [devices.NAME] with like = \"NAME\" and usd_per_hour to replace them.",
            names.join(", ")
        ));
    }
    let sections = report.cluster.iter().chain(&report.tokens).flat_map(|section| &section.rows);
    if sections.clone().any(|row| row.model_flops_utilization.is_some_and(|share| share > 1.0)) {
        warnings.push("A plan would compute faster than its devices' peak: its calibration is wrong.".to_owned());
    }
    warnings
}
