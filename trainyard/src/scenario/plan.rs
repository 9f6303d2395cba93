//! `[plan]`: a policy with what it must keep to, or the plan itself.
//!
//! Both are written with the same keys. Under `policy = "manual"` (the default as soon as a key of the plan is there)
//! they are the plan, with defaults for the rest; under another policy they are constraints.

use std::ops::Range;
use std::path::Path;

use ir::grid::Grid;
use ir::{
    Cluster, CollectiveAlgorithm, DeviceId, Model, Plan, Problem, Recompute, Schedule, SourceSpan, StagePlan, Workload,
    ZeroStage,
};

use super::Sight;
use crate::read::{Table, Value};

/// What is asked of the scheduler.
#[derive(Clone, PartialEq, Debug)]
pub enum PlanChoice {
    /// The plan itself.
    Written(Plan),
    /// A policy, and what it must keep to.
    Policy(PolicyName, Box<PlanKeys>),
}

/// A policy by name.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum PolicyName {
    /// The rules of thumb of an expert who tunes by hand.
    Megatron,
}

impl PolicyName {
    /// As in scenario files.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Megatron => "megatron",
        }
    }
}

/// The keys of `[plan]` that were written.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct PlanKeys {
    /// Replicas.
    pub data: Option<u32>,
    /// Tensor degree.
    pub tensor: Option<u32>,
    /// Sequence parallelism.
    pub sequence_parallel: Option<bool>,
    /// Pipeline degree.
    pub pipeline: Option<u32>,
    /// Chunks per pipeline position.
    pub chunks_per_stage: Option<u32>,
    /// Layers of each chunk of each position.
    pub layers_per_stage: Option<Vec<Vec<u32>>>,
    /// Recomputation: one for all positions, or one per position.
    pub recompute: Option<Vec<Recompute>>,
    /// Sequences of a microbatch.
    pub microbatch_size: Option<u32>,
    /// Microbatches of an iteration on one replica.
    pub microbatches: Option<u32>,
    /// Order of passes.
    pub schedule: Option<Schedule>,
    /// Sharding of training state.
    pub zero: Option<ZeroStage>,
    /// Overlap of gradient reduction.
    pub overlap_gradients: Option<bool>,
    /// Algorithm of the gradient collectives.
    pub collective: Option<CollectiveAlgorithm>,
    /// Device of each rank.
    pub placement: Option<Vec<DeviceId>>,
}

/// Recomputation by name.
pub(super) const RECOMPUTES: [(&str, Recompute); 3] =
    [("none", Recompute::None), ("selective", Recompute::Selective), ("full", Recompute::Full)];
/// Collective algorithms by name.
pub(super) const COLLECTIVES: [(&str, CollectiveAlgorithm); 4] = [
    ("automatic", CollectiveAlgorithm::Automatic),
    ("ring", CollectiveAlgorithm::Ring),
    ("tree", CollectiveAlgorithm::Tree),
    ("hierarchical", CollectiveAlgorithm::Hierarchical),
];
const SCHEDULES: [(&str, Schedule); 4] = [
    ("1f1b", Schedule::OneForwardOneBackward),
    ("gpipe", Schedule::GPipe),
    ("interleaved", Schedule::OneForwardOneBackward),
    ("zero-bubble-h1", Schedule::ZeroBubbleH1),
];
const POLICIES: [(&str, Option<PolicyName>); 2] = [("manual", None), ("megatron", Some(PolicyName::Megatron))];
/// More positions than layers of any model.
const DEEPEST: u64 = 4096;
/// A pass of each microbatch is an instruction: this many are the most that a program holds with comfort.
const MOST_MICROBATCHES: u64 = 1 << 16;

/// Reads `[plan]`; without one, the megatron policy decides everything.
pub(super) fn read(
    root: &Table<'_>,
    cluster: Option<&Cluster>,
    model: Option<&Model>,
    workload: Option<&Workload>,
    sight: &Sight<'_>,
) -> Option<PlanChoice> {
    let Some(table) = root.table("plan") else {
        return Some(PlanChoice::Policy(PolicyName::Megatron, Box::default()));
    };
    let policy = table.get("policy").map(|v| v.choice(&POLICIES));
    let keys = keys(&table, sight);
    table.finish();
    let policy = match policy {
        None if keys.as_ref().is_some_and(|k| *k == PlanKeys::default()) => Some(PolicyName::Megatron),
        None => None,
        Some(read) => read?,
    };
    let keys = keys?;
    agree(&table, &keys)?;
    match policy {
        Some(policy) => constrained(&table, &keys).map(|()| PlanChoice::Policy(policy, Box::new(keys))),
        None => written(&table, &keys, cluster?, model?, workload?).map(PlanChoice::Written),
    }
}

/// Whether what `layers_per_stage` lists is what the other keys say of the pipeline; notes where it is not.
fn agree(table: &Table<'_>, keys: &PlanKeys) -> Option<()> {
    let Some(listed) = &keys.layers_per_stage else { return Some(()) };
    let count = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
    let (stages, chunks) = (count(listed.len()), count(listed[0].len()));
    let message = if let Some(pipeline) = keys.pipeline.filter(|pipeline| *pipeline != stages) {
        format!("lists {stages} stages, and pipeline says {pipeline}")
    } else if let Some(wanted) = keys.chunks_per_stage.filter(|wanted| *wanted != chunks) {
        format!("lists {chunks} chunks per stage, and chunks_per_stage says {wanted}")
    } else {
        return Some(());
    };
    table.report_at("layers_per_stage", Problem::new(table.path_of("layers_per_stage"), message));
    None
}

/// Whether a policy can keep to `recompute`: one for each stage needs the number of stages to be written too.
fn constrained(table: &Table<'_>, keys: &PlanKeys) -> Option<()> {
    let Some(many) = keys.recompute.as_deref().filter(|many| many.len() != 1) else { return Some(()) };
    let stages = keys.pipeline.map_or_else(|| keys.layers_per_stage.as_ref().map(Vec::len), |p| Some(p as usize));
    let message = match stages {
        Some(stages) if stages == many.len() => return Some(()),
        Some(stages) => format!("lists {} stages, and there are {stages}", many.len()),
        None => format!("lists {} stages, and nothing says how many there are", many.len()),
    };
    let problem =
        Problem::new(table.path_of("recompute"), message).hint("write pipeline too, or one word for all stages");
    table.report_at("recompute", problem);
    None
}

fn keys(table: &Table<'_>, sight: &Sight<'_>) -> Option<PlanKeys> {
    let bounded = |key, most: u64| match table.get(key) {
        None => Some(None),
        Some(value) => value.integer(1..=most).and_then(|n| u32::try_from(n).ok()).map(Some),
    };
    let flag = |key| table.get(key).map_or(Some(None), |v| v.boolean().map(Some));
    let (data, tensor) =
        (bounded("data", super::cluster::MOST_DEVICES), bounded("tensor", super::cluster::MOST_DEVICES));
    let sequence_parallel = flag("sequence_parallel");
    let (pipeline, chunks) = (bounded("pipeline", DEEPEST), bounded("chunks_per_stage", DEEPEST));
    let layers = table.get("layers_per_stage").map_or(Some(None), |v| layers(&v).map(Some));
    let recompute = table.get("recompute").map_or(Some(None), |v| recompute(&v).map(Some));
    let microbatch_size = bounded("microbatch_size", MOST_MICROBATCHES);
    let microbatches = bounded("microbatches", MOST_MICROBATCHES);
    let schedule = table.get("schedule").map_or(Some(None), |v| schedule(&v, sight).map(Some));
    let listed = layers.iter().flatten().flat_map(|stages| stages.first()).map(Vec::len).next();
    if table.get("schedule").is_some_and(|v| v.as_text() == Some("interleaved"))
        && listed.map_or_else(|| chunks.flatten().is_none_or(|n| n < 2), |listed| listed < 2)
    {
        let hint = "such as `chunks_per_stage = 2`";
        table.report(
            Problem::new(table.path_of("chunks_per_stage"), "an interleaved schedule needs at least 2").hint(hint),
        );
    }
    let zero = table.get("zero").map_or(Some(None), |v| {
        v.integer(0..=1).map(|n| Some(if n == 0 { ZeroStage::Zero0 } else { ZeroStage::Zero1 }))
    });
    let overlap_gradients = flag("overlap_gradients");
    let collective = table.get("collective").map_or(Some(None), |v| v.choice(&COLLECTIVES).map(Some));
    let placement = table.get("placement").map_or(Some(None), |v| {
        let items = v.list()?;
        let read: Vec<Option<u32>> = items.iter().map(|item| item.count_from(0)).collect();
        read.into_iter().map(|n| n.map(DeviceId::new)).collect::<Option<Vec<_>>>().map(Some)
    });
    Some(PlanKeys {
        data: data?,
        tensor: tensor?,
        sequence_parallel: sequence_parallel?,
        pipeline: pipeline?,
        chunks_per_stage: chunks?,
        layers_per_stage: layers?,
        recompute: recompute?,
        microbatch_size: microbatch_size?,
        microbatches: microbatches?,
        schedule: schedule?,
        zero: zero?,
        overlap_gradients: overlap_gradients?,
        collective: collective?,
        placement: placement?,
    })
}

/// `[12, 12]`, or `[[6, 6], [6, 6]]` with several chunks per position.
fn layers(value: &Value<'_>) -> Option<Vec<Vec<u32>>> {
    let stages = value.list()?;
    if stages.is_empty() {
        value.problem("a pipeline needs a stage", None);
        return None;
    }
    let read: Vec<Option<Vec<u32>>> = stages
        .iter()
        .map(|stage| {
            if !stage.is_list() {
                return stage.count_from(0).map(|n| vec![n]);
            }
            let chunks: Vec<Option<u32>> = stage.list()?.iter().map(|chunk| chunk.count_from(0)).collect();
            chunks.into_iter().collect()
        })
        .collect();
    let read: Vec<Vec<u32>> = read.into_iter().collect::<Option<_>>()?;
    if let Some(odd) = read.iter().position(|chunks| chunks.len() != read[0].len() || chunks.is_empty()) {
        stages[odd]
            .problem(format!("has {} chunks where the first stage has {}", read[odd].len(), read[0].len()), None);
        return None;
    }
    Some(read)
}

fn recompute(value: &Value<'_>) -> Option<Vec<Recompute>> {
    if !value.is_list() {
        return value.choice(&RECOMPUTES).map(|r| vec![r]);
    }
    let read: Vec<Option<Recompute>> = value.list()?.iter().map(|item| item.choice(&RECOMPUTES)).collect();
    read.into_iter().collect()
}

fn schedule(value: &Value<'_>, sight: &Sight<'_>) -> Option<Schedule> {
    if !value.is_table() {
        return value.choice(&SCHEDULES);
    }
    let table = value.table()?;
    let (file, cells) = (table.get("grid"), table.get("cells"));
    table.finish();
    let (name, text, place) = match (file, cells) {
        (Some(file), None) => {
            let (name, text) = sight.read(Path::new(file.text()?), &file)?;
            (name, text, file)
        }
        (None, Some(cells)) => (String::new(), cells.text()?.to_owned(), cells),
        _ => {
            value.problem("must be either { grid = \"FILE\" } or { cells = \"0F0,0B0\" }", None);
            return None;
        }
    };
    match Grid::parse(&text) {
        Ok(grid) => Some(Schedule::Explicit(grid)),
        Err(problems) => {
            let mut places = wrong_cells(&text).into_iter();
            for problem in problems {
                let range = places.next();
                match range.filter(|_| !name.is_empty()) {
                    Some(range) => sight.report(problem.at(SourceSpan { file: name.clone(), range })),
                    None => {
                        place.report(Problem { subject: format!("{}: {}", place.path(), problem.subject), ..problem })
                    }
                }
            }
            None
        }
    }
}

/// Where the cells stand that are no pass, in the order in which the parser of grids reports them.
pub(super) fn wrong_cells(text: &str) -> Vec<Range<usize>> {
    let mut places = Vec::new();
    let mut at = 0;
    for piece in text.split_inclusive([',', '\n']) {
        let cell = piece.trim_end_matches([',', '\n']).trim();
        let start = at + (piece.len() - piece.trim_start().len());
        if !cell.is_empty() && Grid::parse(cell).is_err() {
            places.push(start..start + cell.len());
        }
        at += piece.len();
    }
    places
}

/// The plan that the keys say, with defaults for the others. Whether it is legal is the scheduler's to say.
fn written(table: &Table<'_>, keys: &PlanKeys, cluster: &Cluster, model: &Model, workload: &Workload) -> Option<Plan> {
    let tensor = keys.tensor.unwrap_or(1);
    let grid_rows = match &keys.schedule {
        Some(Schedule::Explicit(Grid { rows })) => u32::try_from(rows.len()).ok(),
        _ => None,
    };
    let listed = keys.layers_per_stage.as_ref().and_then(|l| u32::try_from(l.len()).ok());
    let pipeline = keys.pipeline.or(listed).or(grid_rows).unwrap_or(1);
    let layers = match &keys.layers_per_stage {
        Some(layers) => layers.clone(),
        None => even(table, model.layers, pipeline, keys.chunks_per_stage.unwrap_or(1))?,
    };
    let data = match keys.data {
        Some(data) => data,
        None => replicas(table, cluster.devices(), u64::from(tensor) * u64::from(pipeline))?,
    };
    let microbatch_size = keys.microbatch_size.unwrap_or(1);
    let per_replica = workload.global_batch / data;
    let microbatches = keys.microbatches.unwrap_or_else(|| (per_replica / microbatch_size).max(1));
    if u64::from(microbatches) > MOST_MICROBATCHES {
        let message = format!(
            "{microbatches} microbatches on a replica are more than the {MOST_MICROBATCHES} that a program holds"
        );
        table.report(
            Problem::new(table.path_of("microbatch_size"), message).hint("a larger microbatch or more replicas"),
        );
        return None;
    }
    let recompute = match keys.recompute.as_deref() {
        None => vec![Recompute::None; layers.len()],
        Some([one]) => vec![*one; layers.len()],
        Some(many) if many.len() == layers.len() => many.to_vec(),
        Some(many) => {
            let message = format!("lists {} stages, and there are {}", many.len(), layers.len());
            table.report_at("recompute", Problem::new(table.path_of("recompute"), message));
            return None;
        }
    };
    Some(Plan {
        data,
        tensor,
        sequence_parallel: keys.sequence_parallel.unwrap_or(false),
        stages: layers.into_iter().zip(recompute).map(|(layers, recompute)| StagePlan { layers, recompute }).collect(),
        microbatch_size,
        microbatches,
        schedule: keys.schedule.clone().unwrap_or(Schedule::OneForwardOneBackward),
        zero: keys.zero.unwrap_or(ZeroStage::Zero0),
        overlap_gradients: keys.overlap_gradients.unwrap_or(true),
        collective: keys.collective.unwrap_or(CollectiveAlgorithm::Automatic),
        placement: keys.placement.clone().unwrap_or_default(),
    })
}

/// Equal shares for every chunk; which layers go where is not guessed if they do not divide.
fn even(table: &Table<'_>, layers: u32, pipeline: u32, chunks: u32) -> Option<Vec<Vec<u32>>> {
    let parts = u64::from(pipeline) * u64::from(chunks);
    if u64::from(layers).is_multiple_of(parts) {
        let share = u32::try_from(u64::from(layers) / parts).expect("a share is at most the whole");
        return Some(vec![vec![share; chunks as usize]; pipeline as usize]);
    }
    let fits = |p: u32| layers.is_multiple_of(p.saturating_mul(chunks).max(1));
    let mut near: Vec<u32> = (1..pipeline).rev().find(|p| fits(*p)).into_iter().collect();
    near.extend((pipeline + 1..=layers.min(4 * pipeline)).find(|p| fits(*p)));
    let near = near.iter().map(|p| format!("pipeline = {p}")).collect::<Vec<_>>().join(" or ");
    let mut hint = if near.is_empty() { String::new() } else { format!("{near} would; ") };
    if chunks == 1 && pipeline <= layers && pipeline <= 16 {
        let (share, extra) = (layers / pipeline, layers % pipeline);
        // The first and the last stage also hold the embedding and the head, so the ones between take what is left over.
        let larger = |stage: u32| (1..=extra).any(|i| stage == (i % pipeline));
        let list: Vec<String> = (0..pipeline).map(|s| (share + u32::from(larger(s))).to_string()).collect();
        hint.push_str(&format!("or say which stage takes more: layers_per_stage = [{}]", list.join(", ")));
    } else {
        hint.push_str("or write layers_per_stage");
    }
    let message = format!("{layers} layers do not divide into {parts} equal chunks");
    table.report_at("pipeline", Problem::new(table.path_of("pipeline"), message).hint(hint));
    None
}

/// The replicas that use every device.
fn replicas(table: &Table<'_>, devices: u64, model_ranks: u64) -> Option<u32> {
    if model_ranks <= devices && devices.is_multiple_of(model_ranks) {
        return u32::try_from(devices / model_ranks).ok();
    }
    let message = format!("tensor x pipeline = {model_ranks} does not divide the {devices} devices");
    table.report(Problem::new(table.path_of("data"), message).hint("write data, or degrees whose product divides"));
    None
}

/// The words of a schedule, for the resolved form; an explicit one is written out in cells.
pub(super) fn schedule_word(schedule: &Schedule, chunks: u32) -> Result<&'static str, String> {
    match schedule {
        Schedule::OneForwardOneBackward if chunks > 1 => Ok("interleaved"),
        Schedule::OneForwardOneBackward => Ok("1f1b"),
        Schedule::GPipe => Ok("gpipe"),
        Schedule::ZeroBubbleH1 => Ok("zero-bubble-h1"),
        Schedule::Explicit(grid) => Err(grid.to_string()),
    }
}
