//! The scoreboard's data: measured rows, what their software leaves open, and how predictions are scored against them.
//!
//! A row of [`formats::measured_runs`] becomes a [`ResolvedRun`]: every switch has a value, with where it comes from, and
//! the hardware has links with rates. What the row says counts first; what it leaves open is looked up in [`Recipes`]
//! (`catalog/recipes/recipes.toml`) and in the [`Catalog`](crate::catalog::Catalog), and listed in
//! [`ResolvedRun::assumed`]. `board` predicts and holds against what was measured, [`document`] is its JSON, `scoreboard`
//! the published page with its targets, [`published`] holds a new score against it, `bed` fits a test bed's constants to
//! a few of its rows, [`outcomes`] tells of groups of runs whether they fit by what other groups say. [`import`] makes the project's own tables under `catalog/measured/` from published ones.

pub(crate) mod bed;
mod board;
mod case;
mod cold;
pub mod document;
mod fit;
pub mod import;
#[cfg(test)]
mod layouts;
mod measured;
pub mod outcomes;
mod predict;
pub mod published;
mod recipe;
pub(crate) mod scoreboard;
pub(crate) mod scoreboard_notes;
mod scoreboard_targets;
mod stacks;
pub(crate) mod stacks_text;
mod tables;

pub(crate) use board::{Knowledge, score};
pub(crate) use cold::Others;
pub use measured::measured_tables;
pub(crate) use tables::{Tables, name};

pub use case::Case;
pub use recipe::{Family, MemoryFigure, PositionKind, Recipes, ResolvedHardware, ResolvedRun, Switches, UseFitted};

/// Stacks fitted to all rows of tables, with how far each table is off when it is predicted from the others, rounded as
/// they are written. What is no fit stays as it is in `base`.
pub(crate) fn fitted_stacks(tables: &Tables, base: &cost::Stacks, others: &Others) -> cost::Stacks {
    let subjects = tables.subjects(reports::scoreboard::ScoreKind::Fitted);
    let fitted = stacks_text::rounded(&stacks::fitted(subjects, &tables.names(), base));
    let cold = cold::groups(tables, &fitted, others);
    stacks_text::rounded(&cost::Stacks { cold, ..fitted })
}
