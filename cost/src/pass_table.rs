//! Durations of whole passes, given as data: a cost source for schedules whose passes were profiled.

use ir::program::{Chunk, Op, Pass, Program, UnitRange};
use ir::{Problem, SimDuration, ZeroStage};

/// Durations of one pipeline stage's passes over one microbatch.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct StagePasses {
    /// Forward (and recomputation).
    pub forward: SimDuration,
    /// Input gradient.
    pub backward_input: SimDuration,
    /// Weight gradient. A whole backward pass is the sum of both.
    pub backward_weight: SimDuration,
}

/// A table of pass durations. Dispatch and collectives are part of them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct PassTable {
    /// One entry for each pipeline position.
    pub stages: Vec<StagePasses>,
    /// Chunks of each position: a chunk's pass takes this part of its stage's, rounded up.
    pub chunks_per_stage: u32,
    /// One message between stages.
    pub transfer: SimDuration,
    /// The optimizer step of one device.
    pub optimizer: SimDuration,
    /// The gradient norm of one device.
    pub gradient_norm: SimDuration,
}

/// The longest duration of a table. Those of all passes of a program then add up inside 64 bits.
const LONGEST: SimDuration = SimDuration::from_nanoseconds(3_600_000_000_000);

impl PassTable {
    /// Every way in which the table itself cannot be.
    pub(crate) fn problems(&self) -> Vec<Problem> {
        let mut problems = Vec::new();
        if self.stages.is_empty() {
            problems.push(
                Problem::new("cost.stages", "the table has no stage").hint("one entry for each pipeline position"),
            );
        }
        if self.chunks_per_stage == 0 {
            problems.push(Problem::new("cost.chunks_per_stage", "a stage of no chunks").hint("1 unless interleaved"));
        }
        let stages = self.stages.iter().enumerate().flat_map(|(i, stage)| {
            let key = move |name: &str| format!("cost.stages[{i}].{name}");
            [
                (key("forward"), stage.forward),
                (key("backward_input"), stage.backward_input),
                (key("backward_weight"), stage.backward_weight),
            ]
        });
        let rest = [("transfer", self.transfer), ("optimizer", self.optimizer), ("gradient_norm", self.gradient_norm)];
        let all = stages.chain(rest.map(|(name, duration)| (format!("cost.{name}"), duration)));
        problems.extend(all.filter(|(_, duration)| *duration > LONGEST).map(|(key, duration)| {
            Problem::new(key, format!("{duration} is over {LONGEST}")).hint("the duration of one pass, not of a run")
        }));
        problems
    }

    /// The duration of a pass. A range that is not the whole chunk takes its share of the units, so rounded that ranges
    /// which make up the chunk take as long as it together; programs with other ranges are refused by
    /// [`PassTable::unpriced`].
    pub(crate) fn compute(&self, chunk: &Chunk, pass: Pass, units: UnitRange) -> SimDuration {
        let stage = &self.stages[chunk.stage.index().min(self.stages.len() - 1)];
        let whole = match pass {
            Pass::Forward | Pass::Recompute => stage.forward,
            Pass::BackwardInput => stage.backward_input,
            Pass::BackwardWeight => stage.backward_weight,
            Pass::Backward => stage.backward_input + stage.backward_weight,
        };
        let of = u128::from(chunk.units().max(1)) * u128::from(self.chunks_per_stage);
        let up_to = |unit: u32| (u128::from(whole.nanoseconds()) * u128::from(unit)).div_ceil(of);
        let part = up_to(units.end) - up_to(units.start);
        SimDuration::from_nanoseconds(u64::try_from(part).unwrap_or(u64::MAX).max(1))
    }

    /// What of a program the table cannot price.
    pub(crate) fn unpriced(&self, program: &Program) -> Vec<Problem> {
        let mut problems = Vec::new();
        if program.layout.tensor > 1 {
            problems.push(
                Problem::new("plan.tensor", "a table of pass durations cannot divide a pass between collectives")
                    .hint("use tensor = 1: the table's durations already are those of its tensor group"),
            );
        }
        let positions = self.stages.len();
        if program.layout.pipeline as usize != positions {
            problems.push(
                Problem::new(
                    "cost.stages",
                    format!("the table has {positions} stages, the plan {}", program.layout.pipeline),
                )
                .hint(format!("give {} entries", program.layout.pipeline)),
            );
        }
        // A pass that leaves gradients bucket by bucket is cut, and nothing stands between its pieces.
        let buckets = match program.layout.zero {
            ZeroStage::Zero0 | ZeroStage::Zero1 => !program.layout.sharing.offload_activations,
            ZeroStage::Zero2 | ZeroStage::Zero3 => false,
        };
        for (position, role) in program.roles.iter().enumerate() {
            let partial = role.instructions().iter().enumerate().find(|(_, instruction)| match instruction.op {
                Op::Compute { chunk, units, pass, .. } => {
                    units != program.chunk(chunk).all_units() && !(buckets && adds_to_gradients(pass))
                }
                Op::Collective { .. }
                | Op::Send { .. }
                | Op::Receive { .. }
                | Op::GradientNorm
                | Op::Optimizer
                | Op::HostCopy { .. } => false,
            });
            if let Some((id, _)) = partial {
                problems.push(
                    Problem::new(
                        "plan",
                        format!("instruction i{id} of role{position} is a part of a chunk's pass, which the table does not price"),
                    )
                    .hint("no tensor parallelism and no full recomputation with a table of pass durations"),
                );
            }
        }
        problems
    }
}

/// Whether a pass adds to gradients.
const fn adds_to_gradients(pass: Pass) -> bool {
    match pass {
        Pass::Backward | Pass::BackwardWeight => true,
        Pass::Forward | Pass::Recompute | Pass::BackwardInput => false,
    }
}
