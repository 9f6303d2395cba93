//! The verb `train-policy`.

use std::path::Path;

use trainyard::results::json;
use trainyard::{Context, Error, Output, TrainPolicyRequest};

use crate::answer::{Answer, stage};
use crate::arguments::Verb;
use crate::tables;

pub(crate) fn answer(verb: &Verb, context: &Context<'_>) -> Result<Answer, Error> {
    let Verb::TrainPolicy { weights, seed, searches, evaluations, resume, score_only, jobs, out, .. } = verb else {
        unreachable!("{} trains no policy", verb.name())
    };
    let mut out = out.as_deref().map(Output::open).transpose()?;
    let weights = weights.as_deref().unwrap_or(Path::new("runs/learned.weights"));
    let request = TrainPolicyRequest {
        weights,
        seed: *seed,
        searches: *searches,
        evaluations: *evaluations,
        resume: *resume,
        score_only: *score_only,
        jobs: *jobs,
    };
    let report = trainyard::train_policy(&request, context)?;
    stage(&mut out, "learned.md", report.page.markdown().as_bytes())?;
    stage(&mut out, "learned.html", report.page.html().as_bytes())?;
    stage(&mut out, "learned.json", json(&report).as_bytes())?;
    if let Some(out) = out {
        out.commit()?;
    }
    Ok(Answer::good(json(&report), tables::document(&report.page)))
}
