//! The page of `size`.

use reports::Document;
use reports::document::{Block, Section};
use reports::sizing::{Interval, Sizing, SizingOption};
use reports::unit::Unit;

use super::bill::DAY_S;
use crate::results::{ModelSection, NetworkReport, SizeReport, SizeRow, SizeSection};
use crate::scenario::{Loaded, SizeChoice};
use crate::verbs::pages::{or_dash, percent, table};

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

const COMMAND: &str = "trainyard size resolved.toml --out .";

/// Everything that goes in, in order.
pub(super) fn inputs(loaded: &Loaded, choice: &SizeChoice) -> Vec<(String, String)> {
    let scenario = &loaded.scenario;
    let (model, workload) = (&scenario.model, &scenario.workload);
    let mut rows: Vec<(String, String)> = Vec::new();
    let mut put = |name: &str, value: String| rows.push((name.to_owned(), value));
    let count = |number: u64| Unit::Count.text(number as f64);
    put(
        "model",
        format!(
            "{}: {} parameters, {} active",
            model.name,
            count(model.parameters()),
            count(model.active_parameters())
        ),
    );
    put(
        "batch",
        format!(
            "{} sequences of {} tokens",
            count(workload.global_batch.into()),
            count(workload.sequence_length.into())
        ),
    );
    put("precision", workload.precision.name().to_owned());
    if let Some(tokens) = choice.tokens {
        put("tokens", format!("{tokens:.4e}"));
        let flops = 6.0 * model.active_parameters() as f64 * tokens;
        put("6 x active parameters x tokens", format!("{flops:.4e} FLOPs, for comparison only"));
    }
    if let Some(within) = choice.within {
        put("within", Unit::Days.text(within.seconds() / DAY_S));
    }
    if let Some(budget) = choice.budget_usd {
        put("budget", Unit::Dollars.text(budget));
    }
    if scenario.checkpoint.is_some() {
        let words = "follows from [checkpoint] and [failures] by the closed form, for each cluster and plan; spare nodes are \
                     paid for and draw no power";
        put("goodput", words.to_owned());
    } else {
        put("goodput", format!("{} of elapsed time is useful work", percent(choice.goodput)));
    }
    put(
        "power",
        format!("{} of the devices' limit, times {} for the site", percent(choice.power_share), choice.site_factor),
    );
    put("most nodes", count(choice.most_nodes.into()));
    put(
        "MFU",
        "6 per parameter of a matrix product and 12 x layers x query width x sequence, per token, over the dense peak of the \
         devices used; attention counted whole"
            .to_owned(),
    );
    put(
        "HFU",
        "the same, with the forward pass of fully recomputed layers; selective recomputation not counted".to_owned(),
    );
    let mut names: Vec<&str> = Vec::new();
    for kind in choice.kinds.iter().chain([&scenario.cluster]).flat_map(|cluster| &cluster.device_kinds) {
        if names.contains(&kind.name.as_str()) {
            continue;
        }
        names.push(&kind.name);
        let price = kind.usd_per_hour.map_or_else(|| "no price".to_owned(), |usd| format!("${usd} an hour"));
        let source = kind.price_source.as_ref().map_or_else(String::new, |source| format!(" ({source})"));
        let power = kind.tdp_watts.map_or_else(|| "no power limit".to_owned(), |watts| format!("{watts} W"));
        let peak = kind.peak(workload.precision).map_or_else(|| "none".to_owned(), |peak| peak.to_string());
        rows.push((kind.name.clone(), format!("{price}{source}; {power}; peak {peak}")));
    }
    rows
}

/// The page of a report whose numbers are there.
pub(super) fn document(report: &SizeReport, choice: &SizeChoice) -> Document {
    let mut page = empty();
    let sections = report.cluster.iter().chain(&report.tokens);
    for section in sections {
        let part = sizing(section, choice).document();
        if page.title.is_empty() {
            (page.title, page.description, page.figures) = (part.title, part.description, part.figures);
            page.sections.extend(part.sections);
        } else {
            for mut of_part in part.sections {
                of_part.heading.clone_from(&section.question);
                of_part.note.clone_from(&section.answer);
                page.sections.push(of_part);
            }
        }
        if let Some(last) = page.sections.last_mut() {
            last.blocks.push(Block::Table(utilisation(section)));
        }
    }
    let more = report.model.iter().map(|m| (m.question.clone(), m.answer.clone(), models(m)));
    let more = more.chain(report.network.iter().map(|n| (n.question.clone(), n.answer.clone(), network(n))));
    for (question, answer, block) in more {
        let mut section = if page.title.is_empty() {
            (page.title, page.description) = (question, answer);
            Section::new(block.title.clone(), "")
        } else {
            Section::new(question, answer)
        };
        section.blocks.push(Block::Table(block));
        page.sections.push(section);
    }
    page.warnings.clone_from(&report.warnings);
    page.assumptions.clone_from(&report.inputs);
    // On what the step of the option named rests.
    let named = report.cluster.iter().chain(&report.tokens).filter_map(|section| section.rows.get(section.chosen?));
    page.assumptions.extend(named.take(1).flat_map(|row| row.basis.iter().cloned()));
    COMMAND.clone_into(&mut page.command);
    page
}

fn sizing(section: &SizeSection, choice: &SizeChoice) -> Sizing {
    Sizing {
        question: section.question.clone(),
        answer: section.answer.clone(),
        warnings: Vec::new(),
        options: section.rows.iter().map(option).collect(),
        chosen: section.chosen,
        deadline_days: choice.within.map(|within| within.seconds() / DAY_S),
        budget_dollars: choice.budget_usd,
        inputs: Vec::new(),
        command: COMMAND.to_owned(),
    }
}

fn option(row: &SizeRow) -> SizingOption {
    SizingOption {
        device: format!("{} ({})", row.node, row.device),
        nodes: row.nodes,
        devices: row.devices,
        plan: row.plan.clone(),
        step_s: row.step_s,
        days: row.days,
        device_hours: row.device_hours,
        dollars: row.usd,
        megawatt_hours: row.megawatt_hours,
        fits: row.fits,
        suffices: row.suffices,
        notes: row.notes.clone(),
    }
}

/// What the plans make of their devices.
fn utilisation(section: &SizeSection) -> reports::tables::Table {
    let follows = section.rows.iter().any(|row| row.goodput.is_some());
    let row = |row: &SizeRow| {
        let tokens = |tokens: Interval| format!("{:.4e}", tokens.expected);
        vec![
            row.node.clone(),
            Unit::Count.text(row.nodes as f64),
            or_dash(row.model_flops_utilization, percent),
            or_dash(row.hardware_flops_utilization, percent),
            or_dash(row.memory_share, percent),
            or_dash(row.tokens, tokens),
            or_dash(row.iterations, |steps| Unit::Count.text(steps)),
            if row.surely { "yes" } else { "no" }.to_owned(),
        ]
        .into_iter()
        .chain(follows.then(|| or_dash(row.goodput, percent)))
        .collect()
    };
    let columns =
        ["node", ">nodes", ">MFU", ">HFU", ">of the memory", ">tokens", ">steps", "suffices at the upper end"];
    let rows = section.rows.iter().filter(|row| row.fits).map(row).collect();
    let columns: Vec<&str> = columns.into_iter().chain(follows.then_some(">goodput")).collect();
    table("Utilisation", &columns, rows, "Conventions of MFU and HFU stand under what was assumed.")
}

fn models(section: &ModelSection) -> reports::tables::Table {
    let row = |(index, row): (usize, &crate::results::ModelRow)| {
        let verdict = match (section.largest == Some(index), row.fits) {
            (true, _) => "largest that fits",
            (false, true) => "fits",
            (false, false) => "does not fit",
        };
        vec![
            row.model.clone(),
            Unit::Count.text(row.parameters as f64),
            verdict.to_owned(),
            or_dash(row.step_s, |step| Unit::Seconds.interval(step.low, step.expected, step.high)),
            or_dash(row.model_flops_utilization, percent),
            or_dash(row.memory_share, percent),
            if row.fits { row.plan.clone() } else { row.reason.clone() },
        ]
    };
    let columns = ["model", ">parameters", "", ">step", ">MFU", ">of the memory", "plan, or why there is none"];
    table("Models", &columns, section.rows.iter().enumerate().map(row).collect(), "In brackets the 90 % interval.")
}

fn network(report: &NetworkReport) -> reports::tables::Table {
    let row = |point: &crate::results::NetworkPoint| {
        let present = (point.node_gbit_per_s / report.present_gbit_per_s - 1.0).abs() < 1e-9;
        vec![
            format!("{} Gb/s{}", Unit::Plain.text(point.node_gbit_per_s), if present { " (as it is)" } else { "" }),
            Unit::Seconds.text(point.step_s),
            Unit::Seconds.text(point.exposed_s),
            percent(point.exposed_share),
        ]
    };
    let columns = [">a node's bandwidth", ">step", ">exposed between nodes", ">of the step"];
    let note = format!("The plan stays as it is: {}.", report.plan);
    table("Network", &columns, report.points.iter().map(row).collect(), &note)
}
