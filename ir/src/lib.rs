//! The vocabulary of Trainyard.
//!
//! Everything that two crates must agree on is here: quantities and ids, what exists ([`Cluster`]),
//! what is trained ([`Model`], [`Workload`]), what is decided ([`Plan`]), what is carried out
//! ([`Program`]), what happened ([`Timeline`]) and the [`Backend`] trait that joins the last two.
//!
//! **Deliberately ignorant of** files, clocks, randomness and choice: nothing here reads, measures,
//! draws or prefers. Two runs of any function here on equal arguments give equal results.
//!
//! Read next: [`program`] for what a backend carries out, [`verify`] for what makes it safe to.

pub mod backend;
mod breakdown;
pub mod cluster;
pub mod counts;
pub mod grid;
pub mod ids;
mod long_run;
pub mod measurement;
pub mod model;
mod named;
pub mod plan;
pub mod prediction;
pub mod problem;
pub mod program;
pub mod quantity;
mod schedule;
mod shares;
#[cfg(test)]
mod testing;
pub mod timeline;
pub mod verify;
pub mod workload;

pub use backend::{Backend, BackendError, Clock, Decision, Event, IterationOutcome};
pub use breakdown::{Activity, Breakdown};
pub use cluster::{Cluster, DeviceKind, Fabric, Link, NodeGroup, NodeKind, Path, PhysicalLink, Relay};
pub use ids::{
    BufferId, ChunkId, DeviceId, DeviceKindId, GroupId, InstructionId, MicrobatchId, NodeId, NodeKindId, Rank, RoleId,
    StageId,
};
pub use long_run::{RunAccount, RunPart};
pub use measurement::{MeasuredOp, Measurement};
pub use model::{
    BranchNorms, Experts, FeedForward, GatedDelta, LatentAttention, LayerKind, LayerRun, Mamba, Mixer, MlpKind, Model,
    NormKind, ParallelBranches, Positions, QueryKeyNorm, Router, Scoring, Variants,
};
pub use plan::{
    Axis, CollectiveAlgorithm, ContextMethod, Mesh, Plan, Recompute, Sharing, StagePlan, VocabularyDivision, ZeroStage,
};
pub use prediction::{Candidate, Evaluation, Expense, Infeasible, Prediction, StageMemory};
pub use problem::{Problem, SourceSpan};
pub use program::{Instruction, Op, Program, Role};
pub use quantity::{Bytes, BytesPerSecond, Flops, FlopsPerSecond, SimDuration, SimTime};
pub use schedule::{Backward, Schedule, Vee, VeeMemory, ZeroBubble};
pub use shares::Shares;
pub use timeline::{Lane, Span, Timeline};
pub use verify::VerifiedProgram;
pub use workload::{AdamW, AttentionKernel, GradientFormat, LogitCopies, Precision, Recipe, Workload};
