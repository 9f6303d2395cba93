//! `[cost]`: on what durations rest.

use std::path::Path;

use cost::{Calibration, CollectivePoints, Interference, PassTable, StagePasses};
use ir::{Cluster, SimDuration};

use super::profiles::{self, ProfileChoice};
use super::{Sight, collectives};
use crate::read::{Table, Value};

/// The source of durations.
#[derive(Clone, PartialEq, Debug)]
pub enum CostChoice {
    /// Calibrations: those that the devices name, from the catalog, after those of a file.
    Calibration {
        /// Name and text of a calibration that `trainyard calibrate` wrote.
        file: Option<(String, String)>,
        /// Measured times of collectives, before those of every calibration.
        collectives: Vec<CollectivePoints>,
        /// How compute and exchanges slow each other, in place of what every calibration says.
        interference: Option<Interference>,
        /// Measured layers, before those of every calibration.
        profiles: Vec<ProfileChoice>,
    },
    /// Durations of whole passes of each pipeline position.
    PassTable(PassTable),
}

impl Default for CostChoice {
    fn default() -> Self {
        Self::Calibration { file: None, collectives: Vec::new(), interference: None, profiles: Vec::new() }
    }
}

/// The name under which problems of a calibration written into the scenario appear.
const INLINE: &str = "cost.calibration";
/// The same of a catalog of stacks.
const INLINE_STACKS: &str = "cost.stack_catalog";

/// Name and text of a file.
type Text = (String, String);

/// Reads `[cost]`: the source of durations, and a catalog of stacks before the project's own, which only counts if the
/// scenario names its stack.
pub(super) fn read(
    root: &Table<'_>,
    sight: &Sight<'_>,
    cluster: Option<&Cluster>,
    stack_named: bool,
) -> Option<(CostChoice, Option<Text>)> {
    let Some(table) = root.table("cost") else {
        return Some((CostChoice::default(), None));
    };
    let source = table.get("source").map_or(Some(false), |v| v.choice(&[("calibration", false), ("pass-table", true)]));
    let choice = match source {
        None => None,
        Some(true) => pass_table(&table).map(|passes| (CostChoice::PassTable(passes), None)),
        Some(false) => {
            // Sizes are looked at of other nodes too.
            let own = cluster.filter(|_| !root.has("size"));
            let (choice, stacks) = (calibration(&table, sight, (cluster, own)), stacks(&table, sight, stack_named));
            choice.zip(stacks)
        }
    };
    if source.is_some() {
        table.finish();
    }
    choice
}

/// Calibrations; `own` is the cluster of which a file that is named should price some device.
fn calibration(
    table: &Table<'_>,
    sight: &Sight<'_>,
    (cluster, own): (Option<&Cluster>, Option<&Cluster>),
) -> Option<CostChoice> {
    let collectives = table.get("collectives").map_or(Some(Vec::new()), |v| collectives::read(&v, sight, cluster));
    let interference = interference(table);
    let profiles = table.get("profiles").map_or(Some(Vec::new()), |v| profiles::read(&v, sight, cluster));
    let file = match (table.get("file"), table.get("calibration")) {
        (Some(_), Some(text)) => {
            text.problem("a file and a calibration written out exclude each other", None);
            return None;
        }
        (Some(file), None) => {
            let read = sight.read(Path::new(file.text()?), &file)?;
            of_a_device(&file, &read.1, own);
            Some(read)
        }
        (None, Some(value)) => {
            let text = value.text()?.to_owned();
            of_a_device(&value, &text, own);
            Some((INLINE.to_owned(), text))
        }
        (None, None) => None,
    };
    Some(CostChoice::Calibration { file, collectives: collectives?, interference: interference?, profiles: profiles? })
}

/// Reports a calibration that none of the cluster's devices asks for. What else is wrong with it is said when it is used.
fn of_a_device(value: &Value<'_>, text: &str, cluster: Option<&Cluster>) {
    let (Ok(calibration), Some(cluster)) = (Calibration::from_toml(text, ""), cluster) else { return };
    if cluster.device_kinds.iter().any(|kind| kind.calibration == calibration.name) {
        return;
    }
    let asked = cluster.device_kinds.iter().map(|kind| format!("{} asks for `{}`", kind.name, kind.calibration));
    let message =
        format!("the calibration `{}` is of no device of this cluster ({})", calibration.name, calibration.device);
    value.problem(message, Some(asked.collect::<Vec<_>>().join(", ")));
}

/// Factors of the user's own: how much longer work takes beside the other kind.
fn interference(table: &Table<'_>) -> Option<Option<Interference>> {
    let Some(table) = table.table("interference") else { return Some(None) };
    let factor = |key| table.get(key).map_or(Some(1.0), |value| value.number(1.0..=10.0));
    let (compute, communication) = (factor("compute"), factor("communication"));
    table.finish();
    let source = "the scenario".to_owned();
    Some(Some(Interference { compute: compute?, communication: communication?, rows: 0, source }))
}

fn stacks(table: &Table<'_>, sight: &Sight<'_>, stack_named: bool) -> Option<Option<Text>> {
    let (written, text) = match (table.get("stacks"), table.get("stack_catalog")) {
        (None, None) => return Some(None),
        (Some(_), Some(text)) => {
            text.problem("a file of stacks and one written out exclude each other", None);
            return None;
        }
        (Some(file), None) => {
            let text = sight.read(Path::new(file.text()?), &file)?;
            (file, text)
        }
        (None, Some(value)) => {
            let text = (INLINE_STACKS.to_owned(), value.text()?.to_owned());
            (value, text)
        }
    };
    if !stack_named {
        unnamed(&written);
        return None;
    }
    Some(Some(text))
}

fn unnamed(value: &Value<'_>) {
    let hint = "name the software as the file does: [training] stack = \"megatron\"";
    value.problem("a catalog of stacks says nothing of a job whose stack is not named", Some(hint.to_owned()));
}

fn pass_table(table: &Table<'_>) -> Option<PassTable> {
    let rows =
        table.require("stages", "[{ forward = \"10ms\", backward_input = \"10ms\", backward_weight = \"10ms\" }]");
    let stages = rows.and_then(|v| stages(&v));
    let chunks_per_stage = table.get("chunks_per_stage").map_or(Some(1), |v| v.count());
    let duration = |key| table.get(key).map_or(Some(SimDuration::ZERO), |v| v.quantity());
    let (transfer, optimizer, gradient_norm) = (duration("transfer"), duration("optimizer"), duration("gradient_norm"));
    Some(PassTable {
        stages: stages?,
        chunks_per_stage: chunks_per_stage?,
        transfer: transfer?,
        optimizer: optimizer?,
        gradient_norm: gradient_norm?,
    })
}

fn stages(value: &Value<'_>) -> Option<Vec<StagePasses>> {
    let items = value.list()?;
    if items.is_empty() {
        value.problem("needs a row per stage", None);
        return None;
    }
    let rows: Vec<Option<StagePasses>> = items.iter().map(stage).collect();
    rows.into_iter().collect()
}

fn stage(value: &Value<'_>) -> Option<StagePasses> {
    let table = value.table()?;
    let duration = |key| table.require(key, "\"10ms\"").and_then(|v| v.quantity::<SimDuration>());
    let (forward, backward_input) = (duration("forward"), duration("backward_input"));
    let backward_weight = duration("backward_weight");
    table.finish();
    Some(StagePasses { forward: forward?, backward_input: backward_input?, backward_weight: backward_weight? })
}
