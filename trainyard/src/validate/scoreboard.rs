//! The scoreboard page: scores, peers' predictions of the same rows, and what was promised.

use std::collections::BTreeMap;

use cost::Stacks;
use reports::scoreboard::{PeerPrediction, ScoreKind, ScoreRow, ScoreSet, Scoreboard};

use super::board::Knowledge;
use super::outcomes::Outcomes;
use super::scoreboard_notes::Notes;
use super::scoreboard_targets::targets;
use super::tables::Tables;
use crate::Error;
use crate::progress::Context;

/// The page of any tables.
pub(crate) fn plain(scores: &[ScoreSet], tables: &Tables, stacks: &Stacks, command: &str) -> Scoreboard {
    Scoreboard {
        title: "Predicted against measured".to_owned(),
        description:
            "Training runs that others measured and published, predicted one by one. The three kinds of score stand \
                      apart: fitted, shape and cold."
                .to_owned(),
        warnings: Vec::new(),
        scores: scores.to_vec(),
        targets: Vec::new(),
        peers: peers(tables),
        peer_words: Vec::new(),
        assumptions: assumptions(stacks),
        command: command.to_owned(),
    }
}

/// The page of the project's own tables, with targets.
pub(crate) fn judged(
    scores: &[ScoreSet],
    outcomes: Option<&Outcomes>,
    known: &Knowledge<'_>,
    command: &str,
    context: &Context<'_>,
) -> Result<Scoreboard, Error> {
    let notes = Notes::embedded();
    let mut page = plain(scores, known.tables, known.stacks, command);
    page.title = "Scoreboard".to_owned();
    page.targets = targets(scores, outcomes, known, context)?;
    notes.apply(&mut page.targets);
    page.warnings = notes.warnings;
    page.peer_words = notes.peers;
    Ok(page)
}

/// What other tools predicted for rows, in seconds; costs in units of their own rank only and are left out.
fn peers(tables: &Tables) -> Vec<PeerPrediction> {
    let asked = tables.subjects(ScoreKind::Fitted).iter().filter(|subject| subject.table < tables.asked);
    asked
        .filter_map(|subject| {
            let row = &subject.run.row;
            let peer = row.measured.peer.as_ref()?;
            Some(PeerPrediction {
                peer: peer.tool.clone(),
                source: row.source.title.clone(),
                row_id: row.row_id.clone(),
                predicted_s: peer.step_s?,
            })
        })
        .collect()
}

fn assumptions(known: &Stacks) -> Vec<(String, String)> {
    let stacks = known;
    let rows: u64 = stacks.stack.iter().map(|row| u64::from(row.rows)).sum();
    let mut tables: Vec<&str> = stacks.stack.iter().flat_map(|row| &row.tables).map(String::as_str).collect();
    tables.sort_unstable();
    tables.dedup();
    let stacks = format!(
        "{} keys of stack class, device generation, precision, dense or routed model, CUDA graphs and release line, fitted \
         to {rows} rows of {} tables",
        stacks.stack.len(),
        tables.len()
    );
    let baseline = "measured time over the time of all FLOPs at the devices' peak with the bubble of 1F1B: one constant per \
                    key (fitted and shape), or one over all other tables (cold)";
    let shape = "constants fitted without the table, and one factor for each of its keys: that of zero median error";
    let cold = "every constant that rests on the table is fitted again to the other tables, and what was read off its rows is \
                not used";
    let intervals = intervals(known);
    [
        ("stacks", stacks.as_str()),
        ("one-constant baseline", baseline),
        ("shape", shape),
        ("cold", cold),
        ("cold intervals", intervals.as_str()),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_owned()))
    .to_vec()
}

/// What intervals of stacks that are not known rest on, in words.
fn intervals(stacks: &Stacks) -> String {
    let mut generations: Vec<&str> = stacks.cold.iter().map(|group| group.generation.as_str()).collect();
    generations.sort_unstable();
    generations.dedup();
    let of = |name: &str| stacks.unknown_spread_on(name).map(|spread| format!("{name} {spread:.2}"));
    let spreads: Vec<String> = generations.into_iter().filter_map(of).collect();
    let terms = stacks.spread;
    format!(
        "each table is predicted from the others; the standard deviation of the logarithm of what is left, between tables \
         and within them, over {} groups of table and device generation: {}. It is made again without the table that is \
         predicted. Wider, in quadrature, by the device's own; by {} times the share of exposed exchanges, {} times that of \
         waits for experts, {} times that of assumed operations; and upwards by what launches of {} us would add on one host \
         in twenty",
        stacks.cold.len(),
        spreads.join(", "),
        terms.exchanges,
        terms.expert_waits,
        terms.assumed,
        terms.slow_launch_us
    )
}

/// The significant digits of numbers in the table of rows.
const DIGITS: usize = 5;

/// A line of what was measured for each row, and of what each kind of score predicts. Seconds; memory in the table's unit;
/// five significant digits.
pub(crate) fn rows_csv(scores: &[ScoreSet]) -> Vec<u8> {
    let mut out = csv::Writer::from_writer(Vec::new());
    let mut write = |cells: &[String]| out.write_record(cells).expect("a vector takes what is written");
    let mut heading = vec!["file".to_owned(), "row_id".to_owned(), "device".to_owned(), "measured_s".to_owned()];
    for set in scores {
        heading.extend(["s", "low_s", "high_s"].map(|what| format!("{}_{what}", set.score.name())));
    }
    heading
        .extend(["measured_gb", "predicted_gb", "memory_kind", "measured_fits", "fits", "refused"].map(str::to_owned));
    write(&heading);
    let by_id: Vec<BTreeMap<(&str, &str), &ScoreRow>> = scores
        .iter()
        .map(|set| set.rows.iter().map(|row| ((row.file.as_str(), row.row_id.as_str()), row)).collect())
        .collect();
    for row in scores.first().map_or(&[][..], |set| &set.rows) {
        let text = |value: &Option<String>| value.clone().unwrap_or_default();
        let flag = |value: Option<bool>| value.map_or_else(String::new, |value| value.to_string());
        let mut cells = vec![row.file.clone(), row.row_id.clone(), text(&row.device), number(row.measured_s)];
        for rows in &by_id {
            let of = rows.get(&(row.file.as_str(), row.row_id.as_str()));
            cells.extend([
                number(of.and_then(|row| row.predicted_s)),
                number(of.and_then(|row| row.low_s)),
                number(of.and_then(|row| row.high_s)),
            ]);
        }
        cells.extend([
            number(row.measured_gb),
            number(row.predicted_gb),
            text(&row.memory_kind),
            flag(row.measured_fits),
            flag(row.fits),
            text(&row.refused),
        ]);
        write(&cells);
    }
    out.into_inner().expect("a vector takes what is written")
}

fn number(value: Option<f64>) -> String {
    let digits = |value: f64| format!("{value:.*e}", DIGITS - 1).parse::<f64>().unwrap_or(value);
    value.map_or_else(String::new, |value| digits(value).to_string())
}
