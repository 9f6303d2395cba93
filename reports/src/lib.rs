//! Timelines to numbers, comparisons and pages.
//!
//! [`Report::new`] computes the [`Metrics`] of each clock's iteration and the [`Comparison`] between two clocks; the
//! report then writes itself as a self-contained HTML page, Markdown, JSON, CSV, a Perfetto trace, SVG and PNG pictures,
//! and as rows for a terminal. Everything goes to a `String`, bytes, or a `Write` that the caller hands in.
//!
//! **Deliberately ignorant of** files, terminals and how a timeline came about: a simulated timeline differs from a
//! measured one by its clock tag only. It neither prices nor decides anything.
//!
//! ```
//! # use ir::program::{Chunk, Layout, Pass, RankSet, Stream, UnitRange};
//! # use ir::*;
//! # fn program() -> Program {
//! #     let model = Model {
//! #         name: "one layer".into(), hidden: 8, layers: 1, heads: 1, kv_heads: 1, head_dim: 8, ffn: 16, vocabulary: 32,
//! #         norm: NormKind::RmsNorm, norm_epsilon: 1e-5, positions: Positions::Rope { theta: 1e4 }, mlp: MlpKind::Gelu,
//! #         qkv_bias: false, projection_bias: false, mlp_bias: false, tied_head: false,
//! #         variants: Variants::default(),
//! #     };
//! #     let workload = Workload {
//! #         sequence_length: 64, global_batch: 1, iterations: 1, precision: Precision::Fp32,
//! #         attention: AttentionKernel::Fused, vocabulary_divisor: 1, optimizer: AdamW::default(), seed: 1,
//! #         recipe: Recipe::default(),
//! #     };
//! #     let layout = Layout {
//! #         data: 1, tensor: 1, tensors: vec![], pipeline: 1, sequence_parallel: false, microbatch_size: 1,
//! #         microbatches: 1,
//! #         shares: ir::Shares::EQUAL, zero: ZeroStage::Zero0, collective: CollectiveAlgorithm::Automatic,
//! #         mesh: Mesh::default(), sharing: Sharing::default(),
//! #     };
//! #     let stage = StageId::new(0);
//! #     let chunk = Chunk { stage, first_layer: 0, layers: 1, embedding: true, head: true, recompute: Recompute::None, recomputed_layers: 0 };
//! #     let mut role = Role::new(stage, RankSet::run(0, 1, 1));
//! #     for pass in [Pass::Forward, Pass::Backward] {
//! #         let (chunk, units, microbatch) = (ChunkId::new(0), UnitRange { start: 0, end: 8 }, MicrobatchId::new(0));
//! #         role.push(Op::Compute { pass, chunk, units, microbatch }, Stream::Compute, &[], &[]);
//! #     }
//! #     Program { model, workload, layout, chunks: vec![chunk], groups: vec![], roles: vec![role], placement: vec![] }
//! # }
//! # fn span(id: u32, start: u64, end: u64) -> Span {
//! #     let time = SimTime::from_nanoseconds;
//! #     Span { instruction: InstructionId::new(id), issued: time(start), start: time(start), end: time(end) }
//! # }
//! # let program = program();
//! # let (role, rank) = (RoleId::new(0), Rank::new(0));
//! // A rank that works for 1 and 2 microseconds, and waits half a one in between.
//! let spans = vec![span(0, 0, 1_000), span(1, 1_500, 3_500)];
//! let lane = Lane { role, rank, multiplicity: 1, spans, memory: vec![] };
//! let (clock, program_digest, input_wait) = (Clock::Simulated, program.digest(), ir::SimDuration::ZERO);
//! let timeline = Timeline { clock, program: program_digest, iteration: 0, input_wait, lanes: vec![lane] };
//!
//! let metrics = trainyard_reports::Metrics::of(&program, &timeline, None, &[]);
//! assert_eq!(metrics.iteration_ns, 3_500);
//! assert_eq!(metrics.time.get(trainyard_reports::Activity::Bubble), 500);
//! assert_eq!(metrics.bubble_rate, Some(1.0 - 3_000.0 / 3_500.0));
//! ```
//!
//! Beside timelines it owns the plain tables of pages whose numbers come from elsewhere, each filled by its caller and
//! written as a [`Document`]: [`scoreboard`] (predictions against measured rows), [`waterfall`] (where a step goes and what
//! each part would give back), [`sweep`] (a long table of points), [`ablation`] (policies over scenarios and seeds),
//! [`diff`], [`candidates`], [`pareto`], [`sizing`], [`long_run`]; and [`junit`].
//!
//! Read next: [`metrics`] for how an iteration's time is divided, [`compare`] for how two timelines join.

pub mod ablation;
mod activity;
pub mod candidates;
pub mod compare;
mod csv_tables;
pub mod diff;
pub mod document;
mod draw;
pub mod junit;
pub mod long_run;
pub mod metrics;
mod page;
pub mod pareto;
mod perfetto;
mod pictures;
mod report;
pub mod scoreboard;
pub mod show;
pub mod sizing;
pub mod sweep;
pub mod tables;
pub mod unit;
pub mod waterfall;
pub mod words;

pub use activity::{Activity, Colour, InstructionClass};
pub use compare::Comparison;
pub use document::Document;
pub use metrics::{Metrics, ModelRate};
pub use perfetto::{Process, write_trace};
pub use report::{LossCurve, Report, ReportInput, SCHEMA_VERSION};
