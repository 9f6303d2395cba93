//! `run` and `launch`: training with threads, with processes of this host, or with those of a launcher.

use std::path::Path;
use std::process::Command;

use trainyard::results::{RunReport, json};
use trainyard::{Context, DeviceChoice, Error, Launch, LaunchRequest, Loaded, Output, Subject};

use crate::answer::{Answer, close_with_reports, open};
use crate::arguments::{ComputeDevice, OfScenario};
use crate::tables;

/// `run`: with threads, unless a launcher started this process and others.
pub(crate) fn run(
    of: &OfScenario,
    devices: (Option<ComputeDevice>, Option<u32>),
    resume: Option<&Path>,
    context: &Context<'_>,
) -> Result<Answer, Error> {
    match Launch::read()? {
        None => {
            let (mut loaded, out) = open(of)?;
            loaded.scenario.run.device = computing(&loaded, devices)?;
            close(trainyard::run_from(&loaded, resume, context)?, &loaded, out)
        }
        Some(launch) if launch.rank == 0 => {
            // First of all: whatever is wrong with the scenario, the others are told to end.
            let gathered = trainyard::gather(&launch, context)?;
            let (mut loaded, out) = open(of)?;
            loaded.scenario.run.device = computing(&loaded, devices)?;
            close(trainyard::run_gathered(&loaded, gathered, resume, context)?, &loaded, out)
        }
        Some(launch) => trainyard::take_part(&launch).map(|()| Answer::none()),
    }
}

/// What ranks compute on: what was asked for, or what the scenario says.
fn computing(
    loaded: &Loaded,
    (device, ranks_per_gpu): (Option<ComputeDevice>, Option<u32>),
) -> Result<DeviceChoice, Error> {
    let (said, ranks) = match loaded.scenario.run.device {
        DeviceChoice::Cpu => ("cpu", None),
        DeviceChoice::Cuda { ranks_per_gpu } => ("cuda", Some(ranks_per_gpu)),
    };
    let (word, ranks) = match device {
        None => (said, ranks_per_gpu.or(ranks)),
        Some(ComputeDevice::Cpu) => ("cpu", ranks_per_gpu),
        Some(ComputeDevice::Cuda) => ("cuda", ranks_per_gpu.or(ranks)),
    };
    DeviceChoice::of(word, ranks).map_err(|problem| loaded.error(vec![problem]))
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
