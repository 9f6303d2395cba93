//! `[checkpoint]` and `[failures]`.

use sim::long_run::RepairTime;
use toml::{Table, Value};

use super::{number, table, text};
use crate::scenario::{CheckpointChoice, CheckpointInterval, CheckpointStorage, FailureChoice, FailureRate};

pub(super) fn checkpoint_table(choice: &CheckpointChoice) -> Table {
    let interval = match choice.interval {
        CheckpointInterval::Best => text("best"),
        CheckpointInterval::Every(interval) => text(interval),
    };
    let mut entries = table([("interval", interval), ("asynchronous", choice.asynchronous.into())]);
    let mut put = |key: &str, value: Option<Value>| entries.extend(value.map(|value| (key.to_owned(), value)));
    match choice.storage {
        CheckpointStorage::Times { write, read } => {
            put("write_time", Some(text(write)));
            put("read_time", Some(text(read)));
        }
        CheckpointStorage::Bandwidths { shared, node, read } => {
            put("bandwidth", shared.map(text));
            put("node_bandwidth", node.map(text));
            put("read_bandwidth", read.map(text));
        }
    }
    put("size", choice.size.map(text));
    put("copy_bandwidth", choice.copy_bandwidth.map(text));
    entries
}

pub(super) fn failures_table(choice: &FailureChoice) -> Table {
    let rate = match choice.rate {
        FailureRate::PerNodeDay(rate) => ("per_node_day", Value::Float(rate)),
        FailureRate::NodeMtbf(mtbf) => ("node_mtbf", text(mtbf)),
        FailureRate::DeviceMtbf(mtbf) => ("device_mtbf", text(mtbf)),
        FailureRate::Mtbf { mtbf, .. } => ("mtbf", text(mtbf)),
    };
    let mut entries = table([
        rate,
        ("detection", text(choice.detection)),
        ("watchdog", text(choice.watchdog)),
        ("hang_share", Value::Float(choice.hang_share)),
        ("restart", text(choice.restart)),
        ("duration", text(choice.duration)),
        ("runs", number(choice.runs)),
    ]);
    if let Some(repair) = choice.repair {
        let repair = match repair {
            RepairTime::Fixed(time) => text(time),
            RepairTime::LogNormal { median, mean } => table([("median", text(median)), ("mean", text(mean))]).into(),
        };
        entries.extend(table([
            ("spares", number(choice.spares)),
            ("repair", repair),
            ("repair_share", Value::Float(choice.repair_share)),
        ]));
    }
    entries
}
