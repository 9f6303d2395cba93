//! The verb `ablate`.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use trainyard::results::{AblateResult, json};
use trainyard::scenario::PolicyName;
use trainyard::{AblateRequest, Context, Error, Seeds, Shard};

use crate::answer::Answer;
use crate::arguments::{Common, policy};
use crate::tables::{document, line};

/// What `ablate` is asked.
#[derive(Args, Clone, Debug)]
#[command(args_conflicts_with_subcommands = true, subcommand_negates_reqs = true)]
pub(crate) struct AblateArguments {
    #[command(subcommand)]
    pub(crate) merge: Option<AblateVerb>,
    /// Scenario files, or folders with a scenario.toml
    #[arg(value_name = "SCENARIO", required = true)]
    pub(crate) scenarios: Vec<PathBuf>,
    /// The policies, as in megatron,dynprog,random
    #[arg(long, value_name = "POLICIES", value_delimiter = ',', required = true, value_parser = policy)]
    pub(crate) policies: Vec<PolicyName>,
    /// The policy that times are held against; without it, the first
    #[arg(long, value_name = "POLICY", value_parser = policy)]
    pub(crate) baseline: Option<PolicyName>,
    /// Seeds of the policies that draw: 0..9 (both ends count), 1,5,8, or both
    #[arg(long, value_name = "SEEDS", default_value = "0..9", value_parser = seeds)]
    pub(crate) seeds: Seeds,
    /// Evaluations that each policy may use
    #[arg(long, value_name = "EVALUATIONS", default_value_t = 1000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) budget: u64,
    /// A part of the cells, from 1/N to N/N; in a Slurm array, "$SLURM_ARRAY_TASK_ID/$SLURM_ARRAY_TASK_COUNT"
    #[arg(long, value_name = "I/N", value_parser = shard)]
    pub(crate) shard: Option<Shard>,
    /// Folder for the cells, tables and page; an ablation that was stopped there goes on
    #[arg(long, value_name = "DIR", required = true)]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// What is done with parts.
#[derive(Subcommand, Clone, Debug)]
pub(crate) enum AblateVerb {
    /// Put the shards of an ablation together
    Merge {
        /// Folders that shards were written to
        #[arg(value_name = "DIR", required = true)]
        folders: Vec<PathBuf>,
        /// Folder for the whole
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
    },
}

fn seeds(text: &str) -> Result<Seeds, String> {
    text.parse::<Seeds>().map_err(|problem| problem.to_string())
}

fn shard(text: &str) -> Result<Shard, String> {
    text.parse::<Shard>().map_err(|problem| problem.to_string())
}

pub(crate) fn answer(asked: &AblateArguments, context: &Context<'_>) -> Result<Answer, Error> {
    let report = match &asked.merge {
        Some(AblateVerb::Merge { folders, out }) => trainyard::merge_ablations(folders, out)?,
        None => {
            let request = AblateRequest {
                scenarios: &asked.scenarios,
                policies: &asked.policies,
                baseline: asked.baseline,
                seeds: &asked.seeds,
                budget: asked.budget,
                shard: asked.shard,
                folder: asked.out.as_deref().expect("required"),
            };
            trainyard::ablate(&request, context)?
        }
    };
    Ok(Answer::good(json(&report), summary(&report)))
}

fn summary(report: &AblateResult) -> String {
    let mut out = report.page.as_ref().map_or_else(String::new, document);
    if report.resumed > 0 {
        line(&mut out, "went on after", format!("{} of {} cells", report.resumed, report.here));
    }
    if let Some(shard) = &report.shard {
        line(&mut out, "shard", format!("{shard}: {} of {} cells", report.here, report.cells));
        line(&mut out, "next", "trainyard ablate merge DIR... --out DIR, with the folders of all shards");
    }
    for file in &report.files {
        line(&mut out, "wrote", file);
    }
    out
}
