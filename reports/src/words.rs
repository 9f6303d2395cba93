//! Instructions, ranks and plans in words: for titles, tables and the moment of a peak.

use ir::program::{Chunk, Direction, HostCopy, Message, Pass, Payload, RankSet, Unit, UnitRange, UnitTensor};
use ir::{ChunkId, InstructionId, Op, Program, RoleId, ZeroStage};

use crate::show::plural;

/// An instruction in words: `forward of microbatch 3, chunk 1 (layers 4-7)`.
#[must_use]
pub fn instruction(program: &Program, role: RoleId, id: InstructionId) -> String {
    op(program, &program.roles[role.index()].instruction(id).op)
}

/// An op in words.
#[must_use]
pub fn op(program: &Program, op: &Op) -> String {
    match op {
        Op::Compute { pass, chunk, units, microbatch } => {
            format!(
                "{} of microbatch {}, {}",
                pass_words(*pass),
                microbatch.raw(),
                units_words(program, *chunk, *units)
            )
        }
        Op::Collective { kind, group, payload, bytes } => {
            let group = &program.groups[group.index()];
            format!(
                "{} over {} {} ranks: {}, {}",
                kind.name(),
                group.size(),
                group.axis.name(),
                payload_words(program, payload),
                crate::show::bytes(*bytes)
            )
        }
        Op::Send { peer, message, bytes } => {
            let stage = program.roles[peer.role.index()].stage.raw();
            format!("send {} to stage {stage}, {}", message_words(message), crate::show::bytes(*bytes))
        }
        Op::Receive { peer, message, bytes } => {
            let stage = program.roles[peer.role.index()].stage.raw();
            format!("receive {} from stage {stage}, {}", message_words(message), crate::show::bytes(*bytes))
        }
        Op::GradientNorm => "gradient norm".to_owned(),
        Op::Optimizer => "optimizer step".to_owned(),
        Op::HostCopy { what, out, bytes } => {
            let what = match what {
                HostCopy::Activations { chunk, microbatch } => {
                    format!("activations of chunk {}, microbatch {}", chunk.raw(), microbatch.raw())
                }
                HostCopy::Parameters { chunk, microbatch } => {
                    format!("parameters of chunk {} for microbatch {}", chunk.raw(), microbatch.raw())
                }
                HostCopy::OptimizerState => "gradients and stepped parameters".to_owned(),
            };
            let way = if *out { "to" } else { "from" };
            format!("copy {way} host memory: {what}, {}", crate::show::bytes(*bytes))
        }
    }
}

const fn pass_words(pass: Pass) -> &'static str {
    match pass {
        Pass::Forward => "forward",
        Pass::Recompute => "recomputation",
        Pass::Backward => "backward",
        Pass::BackwardInput => "backward (inputs)",
        Pass::BackwardWeight => "backward (weights)",
    }
}

fn message_words(message: &Message) -> String {
    let what = match message.direction {
        Direction::Forward => "activation",
        Direction::Backward => "gradient",
    };
    format!("{what} of microbatch {} after chunk {}", message.microbatch.raw(), message.edge.raw())
}

fn payload_words(program: &Program, payload: &Payload) -> String {
    match payload {
        Payload::Activation { tensor, chunk, unit, microbatch, pass } => {
            let tensor = match tensor {
                UnitTensor::Input => "input",
                UnitTensor::Output => "output",
                UnitTensor::OutputGradient => "output gradient",
                UnitTensor::InputGradient => "input gradient",
                UnitTensor::LossStatistics => "loss statistics",
                UnitTensor::Logits => "logits",
                UnitTensor::KeysAndValues => "keys and values",
                UnitTensor::Heads => "heads for tokens",
                UnitTensor::Dispatched => "tokens sent to experts",
                UnitTensor::Combined => "tokens back from experts",
                UnitTensor::ExpertInput => "tokens of a shared expert",
                UnitTensor::RouterStatistics => "choices of experts",
            };
            let chunk = program.chunk(*chunk);
            let unit = if *unit < chunk.units() { unit_words(chunk.unit(*unit)) } else { format!("unit {unit}") };
            format!("{tensor} of {unit}, {}, microbatch {}", pass_words(*pass), microbatch.raw())
        }
        Payload::Gradients { chunk } => format!("gradients of chunk {}", chunk.raw()),
        Payload::Parameters { chunk } => format!("parameters of chunk {}", chunk.raw()),
        Payload::ExpertGradients { chunk } => format!("gradients of the experts of chunk {}", chunk.raw()),
        Payload::ExpertParameters { chunk } => format!("parameters of the experts of chunk {}", chunk.raw()),
        Payload::UnitParameters { chunk, unit, experts, microbatch, pass } => {
            let whose = if *experts { "expert parameters" } else { "parameters" };
            let unit = unit_words(program.chunk(*chunk).unit(*unit));
            format!("{whose} from {unit}, {}, microbatch {}", pass_words(*pass), microbatch.raw())
        }
        Payload::UnitGradients { chunk, unit, experts, microbatch } => {
            let whose = if *experts { "expert gradients" } else { "gradients" };
            format!("{whose} from {}, microbatch {}", unit_words(program.chunk(*chunk).unit(*unit)), microbatch.raw())
        }
        Payload::ReplicatedGradients => "gradients of replicated parameters".to_owned(),
        Payload::TiedGradients => "gradients of the tied embedding".to_owned(),
        Payload::GradientNorm => "gradient norm".to_owned(),
    }
}

fn unit_words(unit: Unit) -> String {
    match unit {
        Unit::Embedding => "embedding".to_owned(),
        Unit::AttentionNorm(layer) => format!("layer {layer} attention norm"),
        Unit::Attention(layer) => format!("layer {layer} attention"),
        Unit::MlpNorm(layer) => format!("layer {layer} MLP norm"),
        Unit::Mlp(layer) => format!("layer {layer} MLP"),
        Unit::FinalNorm => "final norm".to_owned(),
        Unit::Head => "head".to_owned(),
        Unit::Loss => "loss".to_owned(),
    }
}

fn layers_words(chunk: &Chunk) -> String {
    match chunk.layers {
        0 => "no layers".to_owned(),
        1 => format!("layer {}", chunk.first_layer),
        n => format!("layers {}\u{2013}{}", chunk.first_layer, chunk.first_layer + n - 1),
    }
}

fn units_words(program: &Program, id: ChunkId, units: UnitRange) -> String {
    let chunk = program.chunk(id);
    if units == chunk.all_units() || units.end > chunk.units() || units.start >= units.end {
        return format!("chunk {} ({})", id.raw(), layers_words(chunk));
    }
    let (first, last) = (unit_words(chunk.unit(units.start)), unit_words(chunk.unit(units.end - 1)));
    if units.end - units.start == 1 { first } else { format!("{first} to {last}") }
}

/// Ranks in words: `rank 3`, `ranks 0-7`, `256 ranks from 0`.
#[must_use]
pub fn ranks(set: &RankSet) -> String {
    let count = set.len();
    match (count, set.runs()) {
        (0, _) => "no ranks".to_owned(),
        (1, _) => format!("rank {}", set.first().raw()),
        (_, [run]) if run.stride == 1 => format!("ranks {}\u{2013}{}", run.first, run.first + run.count - 1),
        (_, _) => format!("{count} ranks from {}", set.first().raw()),
    }
}

/// How the program divides its model: one sentence.
#[must_use]
pub fn division(program: &Program) -> String {
    let layout = &program.layout;
    let mut text = format!(
        "{}: data {} \u{d7} tensor {} \u{d7} pipeline {}",
        plural(u64::from(program.world()), "rank", "ranks"),
        layout.data,
        if layout.has_unlike_tensors() {
            layout.tensors.iter().map(u32::to_string).collect::<Vec<_>>().join("/")
        } else {
            layout.tensor.to_string()
        },
        layout.pipeline
    );
    if layout.sequence_parallel {
        text.push_str(", sequence parallel");
    }
    if program.chunks.len() > layout.pipeline as usize {
        text.push_str(&format!(", {} chunks", program.chunks.len()));
    }
    if layout.zero == ZeroStage::Zero1 {
        text.push_str(", ZeRO-1");
    }
    let (shares, on) = if layout.shares.are_equal() {
        (plural(u64::from(layout.microbatches), "microbatch", "microbatches"), "on each replica")
    } else {
        (format!("{} microbatches", layout.shares), "on the replicas")
    };
    text.push_str(&format!(
        "; {shares} of {} \u{d7} {} tokens {on}",
        layout.microbatch_size, program.workload.sequence_length
    ));
    text
}
