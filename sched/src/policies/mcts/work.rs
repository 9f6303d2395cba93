//! What no plan goes under, before its layers are laid out: all compute of an iteration, on all devices together.
//!
//! Let the passes of one microbatch of `b` sequences through the whole model take `W` on a group of tensor x context ranks of
//! the first kind, computing alone, and let a group of kind `k` be at most `s_k` times as fast in any layer. Every layer of every
//! microbatch is computed by some group, so with `n_k` groups an iteration of `B` sequences takes `(B / b) W / sum of n_k s_k` at
//! least, however layers and microbatches are dealt out. Where every device of kind `k` costs `r_k` in each moment that an
//! iteration takes, it costs `(B / b) W` times the devices of a group times the least `r_k / s_k` at least: no device does its part
//! of the work for less.

use ir::program::Chunk;
use ir::{Backward, DeviceKindId, Plan, Recompute, Schedule, StageId, ZeroStage};

use super::super::Question;
use super::super::dynprog::kinds::Kind;
use super::super::exhaustive::{Degrees, Space, Values};
use super::steps::State;
use super::worth::Worth;
use crate::evaluate::Evaluator;

/// See the module.
#[derive(Debug)]
pub(super) struct Work {
    /// Empty if nothing is known.
    rows: Vec<Row>,
    /// Devices of each kind.
    devices: Vec<f64>,
    batch: f64,
}

/// What a microbatch takes under some keys.
#[derive(Debug)]
struct Row {
    tensor: u32,
    context: u32,
    expert: u32,
    size: u32,
    sequence: bool,
    split: bool,
    several: bool,
    /// Nanoseconds of the whole model on a group of the first kind.
    whole: f64,
    /// How fast kinds are at most, as multiples of the first, and which they are; the fastest first.
    speeds: Vec<(f64, usize)>,
}

impl Work {
    pub(super) fn new(
        evaluator: &mut dyn Evaluator,
        ask: &Question<'_>,
        (values, orders): (&Values, &[(Schedule, u32)]),
        (kinds, space): (&[Kind], &Space),
    ) -> Self {
        let devices = kinds.iter().map(|kind| kind.devices.len() as f64).collect();
        let batch = f64::from(ask.workload.global_batch);
        let rows = rows(evaluator, ask, (values, orders), (kinds, space)).unwrap_or_default();
        Self { rows, devices, batch }
    }

    /// What no plan behind a state goes under.
    pub(super) fn floor(&self, state: &State, orders: &[(Schedule, u32)], worth: &Worth<'_>) -> u64 {
        let open = |decided: u32, row: u32| decided == 0 || decided == row;
        let split = state.order.map(|order| orders[order as usize].0.backward() == Backward::Split);
        let behind = |row: &&Row| {
            let Degrees { tensor, context, pipeline, expert, .. } = state.degrees;
            open(tensor, row.tensor)
                && open(context, row.context)
                && open(expert, row.expert)
                && open(state.size, row.size)
                && (pipeline == 0 || row.several == (pipeline > 1))
                && state.sequence.is_none_or(|sequence| sequence == row.sequence)
                && split.is_none_or(|split| split == row.split)
        };
        #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "rounded down, and not negative")]
        let whole = |least: f64| (least * (1.0 - 1e-9)) as u64;
        let bound = |row: &Row| {
            let time = worth.of_time(whole(self.bound(row, state.degrees)), state);
            worth.of_work(self.of_devices(row), &row.speeds).map_or(time, |work| time.max(work))
        };
        self.rows.iter().filter(behind).map(bound).min().unwrap_or(0)
    }

    /// What the work of an iteration takes on devices of the first kind, in nanoseconds of all of them together.
    fn of_devices(&self, row: &Row) -> f64 {
        let wide = f64::from(row.tensor) * f64::from(row.context);
        self.batch / f64::from(row.size) * row.whole * wide * (1.0 - 1e-9)
    }

    /// `(B / b) W / sum of n_k s_k`, with no more groups than there are.
    fn bound(&self, row: &Row, degrees: Degrees) -> f64 {
        let wide = f64::from(row.tensor) * f64::from(row.context);
        let known = degrees.data > 0 && degrees.pipeline > 0;
        let mut left = if known { f64::from(degrees.data) * f64::from(degrees.pipeline) } else { f64::INFINITY };
        let mut rate = 0.0;
        for (speed, kind) in &row.speeds {
            let groups = (self.devices[*kind] / wide).min(left);
            rate += groups * speed;
            left -= groups;
        }
        if rate > 0.0 { self.batch / f64::from(row.size) * row.whole / rate } else { f64::INFINITY }
    }
}

/// `None` if the evaluator does not know what a pass takes.
fn rows(
    evaluator: &mut dyn Evaluator,
    ask: &Question<'_>,
    (values, orders): (&Values, &[(Schedule, u32)]),
    (kinds, space): (&[Kind], &Space),
) -> Option<Vec<Row>> {
    if kinds.is_empty() {
        return None;
    }
    let mut passes = Vec::<(bool, &(Schedule, u32))>::new();
    for order in orders {
        let split = order.0.backward() == Backward::Split;
        if !passes.iter().any(|(known, _)| *known == split) {
            passes.push((split, order));
        }
    }
    let some = |wanted: bool| values.pipelines.iter().any(|pipeline| (*pipeline > 1) == wanted);
    let several = [false, true].into_iter().filter(|several| some(*several)).collect::<Vec<_>>();
    let sizes = if space.microbatch_size.is_empty() { values.sizes(1) } else { space.microbatch_size.clone() };
    let mut rows = Vec::new();
    for (tensor, context) in values.tensors.iter().flat_map(|t| values.contexts.iter().map(move |c| (*t, *c))) {
        for (expert, size) in values.experts.iter().flat_map(|e| sizes.iter().map(move |s| (*e, *s))) {
            for sequence in values.sequences(tensor, context) {
                for (several, (split, order)) in several.iter().flat_map(|s| passes.iter().map(move |p| (*s, *p))) {
                    let pipeline = if several { 2 } else { 1 };
                    let data = space.data.first().copied().unwrap_or(expert);
                    let degrees = Degrees { pool: 0, data, tensor, context, pipeline, expert };
                    let mut plan = values.plan(degrees, (size, sequence, ZeroStage::Zero0), order);
                    plan.microbatches = ask.workload.global_batch.max(1);
                    let (whole, speeds) = of_kinds(evaluator, ask, &plan, kinds)?;
                    rows.push(Row { tensor, context, expert, size, sequence, split, several, whole, speeds });
                }
            }
        }
    }
    Some(rows)
}

/// What the whole model takes on the first kind, and how fast the others are at most.
fn of_kinds(
    evaluator: &mut dyn Evaluator,
    ask: &Question<'_>,
    plan: &Plan,
    kinds: &[Kind],
) -> Option<(f64, Vec<(f64, usize)>)> {
    let device_kinds = kinds.iter().map(|kind| ask.cluster.place(kind.devices[0]).device_kind).collect::<Vec<_>>();
    let chunk = |first_layer: u32, layers: u32, (embedding, head): (bool, bool)| Chunk {
        stage: StageId::new(0),
        first_layer,
        layers,
        embedding,
        head,
        recompute: Recompute::None,
        recomputed_layers: 0,
    };
    let mut time = |chunk: &Chunk, kind: DeviceKindId| Some(evaluator.compute(plan, chunk, kind)? as f64);
    let whole = time(&chunk(0, ask.model.layers, (true, true)), device_kinds[0])?;
    let mut speeds = vec![(1.0, 0)];
    // Layers of each run, and the ends.
    let mut first = 0;
    let mut parts = vec![chunk(0, 0, (true, false)), chunk(ask.model.layers, 0, (false, true))];
    for run in ask.model.runs().filter(|run| run.layers > 0) {
        parts.push(chunk(first, 1, (false, false)));
        first += run.layers;
    }
    for (number, kind) in device_kinds.iter().enumerate().skip(1) {
        let mut speed = 0.0f64;
        for part in &parts {
            let (here, there) = (time(part, device_kinds[0])?, time(part, *kind)?);
            speed = speed.max(here / there.max(1.0));
        }
        speeds.push((speed, number));
    }
    speeds.sort_by(|a, b| b.0.total_cmp(&a.0));
    Some((whole, speeds))
}
