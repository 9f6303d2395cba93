//! A catalog of stacks from its text, with every fault of its values at once.

use ir::{Problem, SourceSpan};

use super::Stacks;
use crate::calibration_text::locate;

/// Reads a catalog.
pub(super) fn parse(text: &str, file: &str) -> Result<Stacks, Vec<Problem>> {
    let stacks: Stacks = toml::from_str(text).map_err(|error| {
        let problem = Problem::new("stacks", error.message().trim().replace('\n', "; "));
        vec![match error.span() {
            Some(range) => problem.at(SourceSpan { file: file.to_owned(), range }),
            None => problem.hint(format!("in {file}")),
        }]
    })?;
    let faults = problems(&stacks);
    if faults.is_empty() {
        return Ok(stacks);
    }
    let place = |problem: Problem| {
        let range = locate(text, &problem.subject);
        problem.at(SourceSpan { file: file.to_owned(), range })
    };
    Err(faults.into_iter().map(place).collect())
}

/// Largest factor of time that is taken for one, and largest spread: beyond them some unit is wrong.
const LARGEST_FACTOR: f64 = 100.0;
const LARGEST_SPREAD: f64 = 3.0;

fn problems(stacks: &Stacks) -> Vec<Problem> {
    let mut problems = Vec::new();
    let mut check = |subject: String, value: f64, fits: bool, what: &str, hint: &str| {
        if !fits {
            problems.push(Problem::new(subject, format!("{value} is not {what}")).hint(hint));
        }
    };
    for (subject, value) in spreads(stacks) {
        let fits = (0.0..=LARGEST_SPREAD).contains(&value);
        check(subject, value, fits, "a standard deviation of logarithms", "0.1 is about 10 %");
    }
    let slow = stacks.spread.slow_launch_us;
    check(
        "spread.slow_launch_us".to_owned(),
        slow,
        slow.is_finite() && slow >= 0.0,
        "a time",
        "finite and not negative",
    );
    let classes = stacks.class.iter().enumerate().map(|(i, row)| (format!("class[{i}]"), &row.constants));
    let of_rows = stacks.stack.iter().enumerate().map(|(i, row)| (format!("stack[{i}]"), &row.constants));
    for (place, c) in classes.chain(of_rows) {
        for (name, value) in [("compute_factor", c.compute_factor), ("attention_factor", c.attention_factor)] {
            let fits = value > 0.0 && value <= LARGEST_FACTOR;
            check(format!("{place}.constants.{name}"), value, fits, "a factor of time", "1 where nothing is added");
        }
        for (name, value) in [
            ("launch_us", c.launch_us.unwrap_or(0.0)),
            ("message_sync_us", c.message_sync_us),
            ("expert_sync_us", c.expert_sync_us),
            ("iteration_us", c.iteration_us),
            ("optimizer_ns_per_parameter", c.optimizer_ns_per_parameter),
        ] {
            let fits = value.is_finite() && value >= 0.0;
            check(format!("{place}.constants.{name}"), value, fits, "a time", "finite and not negative");
        }
        for (name, value) in
            [("hidden_in_launches", c.hidden_in_launches), ("stragglers_per_doubling", c.stragglers_per_doubling)]
        {
            let subject = format!("{place}.constants.{name}");
            check(subject, value, (0.0..=1.0).contains(&value), "a share", "from 0 to 1");
        }
        let subject = format!("{place}.constants.network_efficiency");
        let fits = c.network_efficiency > 0.0 && c.network_efficiency <= 2.0;
        check(subject, c.network_efficiency, fits, "a share of a bandwidth", "more than 0, at most 2");
    }
    problems.extend(of_keys(stacks));
    problems
}

/// Every standard deviation and distance of logarithms, with its place.
fn spreads(stacks: &Stacks) -> Vec<(String, f64)> {
    let (w, s) = (&stacks.widening, &stacks.spread);
    let mut spreads: Vec<(String, f64)> = [
        ("spread.undeclared_device", s.undeclared_device),
        ("spread.assumed", s.assumed),
        ("spread.exchanges", s.exchanges),
        ("spread.expert_waits", s.expert_waits),
        ("widening.release", w.release),
        ("widening.graphs", w.graphs),
        ("widening.experts", w.experts),
        ("widening.precision", w.precision),
        ("widening.generation", w.generation),
        ("widening.class", w.class),
        ("widening.unknown", w.unknown),
    ]
    .map(|(name, value)| (name.to_owned(), value))
    .to_vec();
    for (i, group) in stacks.cold.iter().enumerate() {
        let parts = [("bias", group.bias.abs()), ("within", group.within), ("explained", group.explained)];
        spreads.extend(parts.map(|(name, value)| (format!("cold[{i}].{name}"), value)));
    }
    spreads.extend(stacks.stack.iter().enumerate().map(|(i, row)| (format!("stack[{i}].spread"), row.spread)));
    spreads
}

/// Names that are missing, too few measurements, two rows of one key.
fn of_keys(stacks: &Stacks) -> Vec<Problem> {
    let mut problems = Vec::new();
    for (i, row) in stacks.stack.iter().enumerate() {
        for (name, value) in [("class", &row.class), ("generation", &row.generation), ("source", &row.source)] {
            if value.trim().is_empty() {
                problems.push(Problem::new(format!("stack[{i}].{name}"), "is empty").hint("every row says what it is"));
            }
        }
        if row.rows < 2 {
            let message = format!("{} is too few measurements for a constant", row.rows);
            problems.push(Problem::new(format!("stack[{i}].rows"), message).hint("two or more, or no row at all"));
        }
        if row.tables.is_empty() {
            let problem = Problem::new(format!("stack[{i}].tables"), "names no table");
            problems.push(problem.hint("the tables that its rows come from"));
        }
        if let Some(first) = stacks.stack[..i].iter().position(|other| other.key() == row.key()) {
            let message = format!("has the key of stack[{first}]");
            problems.push(Problem::new(format!("stack[{i}].class"), message).hint("one row for each key"));
        }
    }
    problems
}
