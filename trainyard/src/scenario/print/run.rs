//! `[run]`, written out.

use toml::{Table, Value};

use super::{number, table, text, word};
use crate::scenario::run::{DeviceChoice, ON_FAILURE, ON_LOSS, RunChoice};

/// The section; `None` where nothing of it differs from having none.
pub(super) fn run_table(run: &RunChoice) -> Option<Table> {
    if *run == RunChoice::default() {
        return None;
    }
    let mut all = table([("on_loss", word(&ON_LOSS, &run.on_loss))]);
    if let Some(folder) = &run.checkpoints {
        all.extend(table([
            ("checkpoints", text(&folder.path)),
            ("every", number(folder.every)),
            ("keep", number(folder.keep)),
            ("asynchronous", Value::Boolean(folder.asynchronous)),
            ("on_failure", word(&ON_FAILURE, &folder.on_failure)),
        ]));
    }
    if let Some(factor) = run.slow_rank {
        all.insert("slow_rank".to_owned(), Value::Float(factor));
    }
    if let DeviceChoice::Cuda { ranks_per_gpu } = run.device {
        all.extend(table([("device", text("cuda")), ("ranks_per_gpu", number(ranks_per_gpu))]));
    }
    Some(all)
}
