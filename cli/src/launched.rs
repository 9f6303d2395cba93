//! `run` and `launch`: training with threads, with processes of this host, or with those of a launcher.

use std::path::Path;
use std::process::Command;

use trainyard::results::{RunReport, json};
use trainyard::{Context, Error, Launch, LaunchRequest, Loaded, Output, Subject};

use crate::answer::{Answer, close_with_reports, open};
use crate::arguments::OfScenario;
use crate::tables;

/// `run`: with threads, unless a launcher started this process and others.
pub(crate) fn run(of: &OfScenario, resume: Option<&Path>, context: &Context<'_>) -> Result<Answer, Error> {
    match Launch::read()? {
        None => {
            let (loaded, out) = open(of)?;
            close(trainyard::run_from(&loaded, resume, context)?, &loaded, out)
        }
        Some(launch) if launch.rank == 0 => {
            // First of all: whatever is wrong with the scenario, the others are told to end.
            let gathered = trainyard::gather(&launch, context)?;
            let (loaded, out) = open(of)?;
            close(trainyard::run_gathered(&loaded, gathered, resume, context)?, &loaded, out)
        }
        Some(launch) => trainyard::take_part(&launch).map(|()| Answer::none()),
    }
}

/// `launch`: with processes of this program.
pub(crate) fn launch(of: &OfScenario, request: &LaunchRequest, context: &Context<'_>) -> Result<Answer, Error> {
    let (loaded, out) = open(of)?;
    close(trainyard::launch_processes(&loaded, request, context)?, &loaded, out)
}

/// One process of this program that waits for its rank.
pub(crate) fn worker() -> Command {
    let program = std::env::current_exe().unwrap_or_else(|_| "trainyard".into());
    let mut command = Command::new(program);
    command.arg("worker");
    command
}

fn close(report: RunReport, loaded: &Loaded, out: Option<Output>) -> Result<Answer, Error> {
    close_with_reports(out, loaded, &Subject::Measured(&report), &json(&report))?;
    Ok(Answer::good(json(&report), tables::run(&report)))
}
