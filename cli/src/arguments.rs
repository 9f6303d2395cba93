//! What can be asked on the command line.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

use crate::exit;

/// Plans, simulates and runs hybrid-parallel training.
#[derive(Parser, Debug)]
#[command(name = "trainyard", version, about, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What every verb takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Write the result as JSON; `-` is standard output, in place of the summary
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) json: Option<PathBuf>,
    /// Print neither progress nor summary
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

/// A scenario and where its results go.
#[derive(Args, Clone, Debug)]
pub(crate) struct OfScenario {
    /// A scenario file, or a folder with a scenario.toml
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenario: PathBuf,
    /// Folder for reports and the resolved scenario
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Plan, simulate, train on this machine's cores and compare, in under a minute
    Quickstart {
        /// Folder for reports
        #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
        out: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Write a scenario for a model and a cluster
    Init {
        /// A model of the catalog, or a Hugging Face config.json
        #[arg(long, value_name = "MODEL")]
        model: String,
        /// Nodes by name and count; again for groups of unlike nodes
        #[arg(long, value_name = "\"32 x dgx-h100\"", required = true)]
        cluster: Vec<String>,
        /// Tokens of one sequence
        #[arg(long, value_name = "TOKENS")]
        sequence_length: Option<u32>,
        /// Sequences of one iteration
        #[arg(long, value_name = "SEQUENCES")]
        global_batch: Option<u32>,
        /// Folder for the scenario
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
        /// Replace a scenario that is there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Decide how a scenario is divided, and say why
    Plan(OfScenario),
    /// Simulate one iteration of a scenario
    Simulate(OfScenario),
    /// Train a scenario on this machine's cores
    Run(OfScenario),
    /// Simulate and train a scenario, and compare instruction by instruction
    Compare(OfScenario),
    /// Measure this machine's CPU for the simulator, in under a minute
    Calibrate {
        /// The calibration file to write
        #[arg(long, value_name = "FILE", default_value = "runs/cpu.toml")]
        out: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Hold every scenario of a folder against its expected results
    Check {
        /// Folder of scenario folders, each with expected/
        #[arg(long, value_name = "DIR")]
        baseline: PathBuf,
        /// Relative change that still counts as the same
        #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
        tolerance: f64,
        /// Also write the table as Markdown
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
        /// Write what comes out as the new baselines
        #[arg(long)]
        update: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Say what this machine can do and what stands in the way
    Doctor {
        #[command(flatten)]
        common: Common,
    },
}

impl Verb {
    /// Its name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Quickstart { .. } => "quickstart",
            Self::Init { .. } => "init",
            Self::Plan(_) => "plan",
            Self::Simulate(_) => "simulate",
            Self::Run(_) => "run",
            Self::Compare(_) => "compare",
            Self::Calibrate { .. } => "calibrate",
            Self::Check { .. } => "check",
            Self::Doctor { .. } => "doctor",
        }
    }
    /// What every verb takes.
    pub(crate) const fn common(&self) -> &Common {
        match self {
            Self::Quickstart { common, .. }
            | Self::Init { common, .. }
            | Self::Calibrate { common, .. }
            | Self::Check { common, .. }
            | Self::Doctor { common } => common,
            Self::Plan(of) | Self::Simulate(of) | Self::Run(of) | Self::Compare(of) => &of.common,
        }
    }
}

/// `3%` is 0.03. The sign is required, as every unit is.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("write it in percent, such as 3%")?;
    let number: f64 = number.trim().parse().map_err(|_| format!("`{number}` is not a number"))?;
    if (0.0..=100.0).contains(&number) { Ok(number / 100.0) } else { Err("must be between 0% and 100%".to_owned()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_tolerance_needs_its_unit() {
        let check = |text: &str, expect: Option<f64>| assert_eq!(percent(text).ok(), expect, "{text}");
        check("3%", Some(0.03));
        check("0%", Some(0.0));
        check("12.5 %", Some(0.125));
        check("3", None);
        check("-1%", None);
        check("nan%", None);
        check("x%", None);
        check("101%", None);
    }
}
