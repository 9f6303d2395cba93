//! Ops and sets in words, the same in the text form of a program and in messages.

use crate::named::named;
use std::fmt::{Display, Formatter, Result};

use crate::program::{Direction, HostCopy, Message, Op, Payload, Peer, RankSet, UnitTensor};

named!(UnitTensor {
    Input = "input",
    Output = "output",
    OutputGradient = "output-gradient",
    InputGradient = "input-gradient",
    LossStatistics = "loss-statistics",
    Logits = "logits",
    KeysAndValues = "keys-and-values",
    Heads = "heads",
    Dispatched = "dispatched",
    Combined = "combined",
    ExpertInput = "expert-input",
    RouterStatistics = "router-statistics",
});

impl Direction {
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Backward => "backward",
        }
    }
}

impl Display for Message {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{} after {} {}", self.direction.name(), self.edge, self.microbatch)
    }
}

impl Display for Peer {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        write!(f, "{}{:+}", self.role, self.shift)
    }
}

impl Display for Payload {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Activation { tensor, chunk, unit, microbatch, pass } => {
                write!(f, "{} {chunk} u{unit} {microbatch} {}", tensor.name(), pass.name())
            }
            Self::Gradients { chunk } => write!(f, "gradients {chunk}"),
            Self::Parameters { chunk } => write!(f, "parameters {chunk}"),
            Self::ExpertGradients { chunk } => write!(f, "expert-gradients {chunk}"),
            Self::ExpertParameters { chunk } => write!(f, "expert-parameters {chunk}"),
            Self::UnitParameters { chunk, unit, experts, microbatch, pass } => {
                let experts = if experts { " experts" } else { "" };
                write!(f, "unit-parameters {chunk} u{unit}{experts} {microbatch} {}", pass.name())
            }
            Self::UnitGradients { chunk, unit, experts, microbatch } => {
                let experts = if experts { " experts" } else { "" };
                write!(f, "unit-gradients {chunk} u{unit}{experts} {microbatch}")
            }
            Self::ReplicatedGradients => f.write_str("replicated-gradients"),
            Self::TiedGradients => f.write_str("tied-gradients"),
            Self::GradientNorm => f.write_str("gradient-norm"),
        }
    }
}

impl Display for Op {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        match *self {
            Self::Compute { pass, chunk, units, microbatch } => {
                write!(f, "compute {} {chunk} u{}..{} {microbatch}", pass.name(), units.start, units.end)
            }
            Self::Collective { kind, group, payload, bytes } => {
                write!(f, "{} {group} {payload} {}B", kind.name(), bytes.get())
            }
            Self::Send { peer, message, bytes } => write!(f, "send {peer} {message} {}B", bytes.get()),
            Self::Receive { peer, message, bytes } => write!(f, "receive {peer} {message} {}B", bytes.get()),
            Self::GradientNorm => f.write_str("gradient-norm"),
            Self::Optimizer => f.write_str("optimizer"),
            Self::HostCopy { what, out, bytes } => {
                f.write_str(if out { "copy-out " } else { "copy-in " })?;
                match what {
                    HostCopy::Activations { chunk, microbatch } => write!(f, "activations {chunk} {microbatch}")?,
                    HostCopy::Parameters { chunk, microbatch } => write!(f, "parameters {chunk} {microbatch}")?,
                    HostCopy::OptimizerState => f.write_str("optimizer-state")?,
                }
                write!(f, " {}B", bytes.get())
            }
        }
    }
}

impl Display for RankSet {
    /// Runs joined by commas: `5`, `0..8` (0 to 7), `0..64/8` (0, 8, … 56); `none` if there are none.
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        if self.is_empty() {
            return f.write_str("none");
        }
        for (index, run) in self.runs().iter().enumerate() {
            f.write_str(if index == 0 { "" } else { "," })?;
            let end = u64::from(run.first) + u64::from(run.count) * u64::from(run.stride);
            match (run.count, run.stride) {
                (1, _) => write!(f, "{}", run.first)?,
                (_, 1) => write!(f, "{}..{end}", run.first)?,
                (_, stride) => write!(f, "{}..{end}/{stride}", run.first)?,
            }
        }
        Ok(())
    }
}
