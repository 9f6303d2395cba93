//! CSV: every span, and every number.

use std::io::Write;

use ir::program::{HostCopy, Payload};
use ir::{Op, Timeline};

use crate::activity::InstructionClass;
use crate::metrics::Metrics;
use crate::report::Report;

/// Writes every span of timelines of a program, one row each, with a heading.
///
/// Columns: clock, iteration, stage, rank, multiplicity, instruction, stream, class, chunk, microbatch, bytes,
/// issued_ns, start_ns, end_ns, duration_ns. Chunk, microbatch and bytes are empty where an instruction has none.
fn spans(program: &ir::Program, timelines: &[&Timeline], out: impl Write) -> csv::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record([
        "clock",
        "iteration",
        "stage",
        "rank",
        "multiplicity",
        "instruction",
        "stream",
        "class",
        "chunk",
        "microbatch",
        "bytes",
        "issued_ns",
        "start_ns",
        "end_ns",
        "duration_ns",
    ])?;
    for timeline in timelines {
        for lane in &timeline.lanes {
            let role = &program.roles[lane.role.index()];
            for (instruction, span) in role.instructions().iter().zip(&lane.spans) {
                let (chunk, microbatch, bytes) = subject(&instruction.op);
                csv.write_record([
                    timeline.clock.word(),
                    &timeline.iteration.to_string(),
                    &role.stage.raw().to_string(),
                    &lane.rank.raw().to_string(),
                    &lane.multiplicity.to_string(),
                    &span.instruction.raw().to_string(),
                    instruction.stream.name(),
                    &InstructionClass::of(program, &instruction.op).to_string(),
                    &chunk,
                    &microbatch,
                    &bytes,
                    &span.issued.nanoseconds().to_string(),
                    &span.start.nanoseconds().to_string(),
                    &span.end.nanoseconds().to_string(),
                    &(span.end - span.start).nanoseconds().to_string(),
                ])?;
            }
        }
    }
    csv.flush()?;
    Ok(())
}

/// Chunk, microbatch and bytes of an op, each empty if it has none.
fn subject(op: &Op) -> (String, String, String) {
    let none = String::new;
    match op {
        Op::Compute { chunk, microbatch, .. } => (chunk.raw().to_string(), microbatch.raw().to_string(), none()),
        Op::Collective { payload, bytes, .. } => {
            let bytes = bytes.get().to_string();
            match payload {
                Payload::Activation { chunk, microbatch, .. }
                | Payload::UnitParameters { chunk, microbatch, .. }
                | Payload::UnitGradients { chunk, microbatch, .. } => {
                    (chunk.raw().to_string(), microbatch.raw().to_string(), bytes)
                }
                Payload::Gradients { chunk }
                | Payload::Parameters { chunk }
                | Payload::ExpertGradients { chunk }
                | Payload::ExpertParameters { chunk } => (chunk.raw().to_string(), none(), bytes),
                Payload::ReplicatedGradients | Payload::TiedGradients | Payload::GradientNorm => {
                    (none(), none(), bytes)
                }
            }
        }
        Op::Send { message, bytes, .. } | Op::Receive { message, bytes, .. } => {
            (message.edge.raw().to_string(), message.microbatch.raw().to_string(), bytes.get().to_string())
        }
        Op::HostCopy {
            what: HostCopy::Activations { chunk, microbatch } | HostCopy::Parameters { chunk, microbatch },
            bytes,
            ..
        } => (chunk.raw().to_string(), microbatch.raw().to_string(), bytes.get().to_string()),
        Op::HostCopy { what: HostCopy::OptimizerState, bytes, .. } => (none(), none(), bytes.get().to_string()),
        Op::GradientNorm | Op::Optimizer => (none(), none(), none()),
    }
}

/// Writes every number of metrics as rows of (clock, stage, metric, value); stage is empty for the whole iteration, the
/// metric's name ends in its unit.
fn numbers(metrics: &[Metrics], out: impl Write) -> csv::Result<()> {
    let mut csv = csv::Writer::from_writer(out);
    csv.write_record(["clock", "stage", "metric", "value"])?;
    for m in metrics {
        let mut row =
            |stage: &str, metric: &str, value: String| csv.write_record([m.clock.word(), stage, metric, &value]);
        row("", "iteration_ns", m.iteration_ns.to_string())?;
        row("", "tokens_per_second", m.tokens_per_second.to_string())?;
        let optional = [
            ("bubble_rate", m.bubble_rate),
            ("model_flops_per_second", m.model_flops_per_second),
            ("model_flops_utilization", m.model_flops_utilization),
        ];
        for (name, value) in optional {
            if let Some(value) = value {
                row("", name, value.to_string())?;
            }
        }
        for (activity, nanoseconds) in m.time.iter() {
            row("", crate::metrics::key(activity), nanoseconds.to_string())?;
        }
        for stage in &m.stages {
            let name = stage.stage.raw().to_string();
            for (activity, nanoseconds) in stage.time.iter() {
                row(&name, crate::metrics::key(activity), nanoseconds.to_string())?;
            }
            row(&name, "span_ns", stage.span_ns.to_string())?;
            row(&name, "peak_memory_bytes", stage.memory.peak_bytes.to_string())?;
            for part in &stage.memory.parts {
                row(&name, &format!("peak_{}_bytes", part.kind.replace('-', "_")), part.bytes.to_string())?;
            }
        }
    }
    csv.flush()?;
    Ok(())
}

impl Report<'_> {
    /// Writes every span of every timeline as CSV, one row each: clock, iteration, stage, rank, multiplicity,
    /// instruction, stream, class, chunk, microbatch, bytes, issued_ns, start_ns, end_ns, duration_ns.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn spans_csv(&self, out: impl Write) -> std::io::Result<()> {
        spans(self.input.program, &self.input.timelines, out).map_err(into_io)
    }

    /// Writes every number of the metrics as CSV rows: clock, stage (empty for the whole iteration), metric (its name
    /// ends in its unit), value.
    ///
    /// # Errors
    /// What the writer answers.
    pub fn metrics_csv(&self, out: impl Write) -> std::io::Result<()> {
        numbers(&self.metrics, out).map_err(into_io)
    }
}

pub(crate) fn into_io(error: csv::Error) -> std::io::Error {
    match error.into_kind() {
        csv::ErrorKind::Io(error) => error,
        other => std::io::Error::other(format!("{other:?}")),
    }
}
