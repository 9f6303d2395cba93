//! What a moment of a rank's iteration is put down to: one list, one colour each, the same in every table and picture.

use ir::program::{CollectiveKind, Pass};
use ir::{Axis, Op, Program};
use serde::Serialize;

/// What a rank's time goes to. Order is the order of reports.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Activity {
    /// Forward passes.
    Forward,
    /// Forward passes done again for the backward pass.
    Recompute,
    /// Backward passes that give gradients of inputs and weights together.
    Backward,
    /// Backward passes that give gradients of inputs.
    BackwardInput,
    /// Backward passes that give gradients of weights.
    BackwardWeight,
    /// Collectives of the tensor group.
    TensorCommunication,
    /// Messages between stages.
    PipelineCommunication,
    /// Collectives over replicas.
    DataCommunication,
    /// Collectives between stages of one replica: tied embeddings, the gradient's norm.
    ModelCommunication,
    /// Exchange between ranks that share a sequence.
    ContextCommunication,
    /// Dispatch to experts and combination of what they give.
    ExpertCommunication,
    /// Copies to and from host memory.
    HostCopy,
    /// The gradient's norm, clipping and the optimizer step.
    Optimizer,
    /// Waiting for the tokens of the iteration.
    InputStall,
    /// Nothing: waiting for another rank.
    Bubble,
}

impl Activity {
    /// How many there are.
    pub const COUNT: usize = 15;
    /// All of them, in order.
    pub const ALL: [Self; Self::COUNT] = [
        Self::Forward,
        Self::Recompute,
        Self::Backward,
        Self::BackwardInput,
        Self::BackwardWeight,
        Self::TensorCommunication,
        Self::PipelineCommunication,
        Self::DataCommunication,
        Self::ModelCommunication,
        Self::ContextCommunication,
        Self::ExpertCommunication,
        Self::HostCopy,
        Self::Optimizer,
        Self::InputStall,
        Self::Bubble,
    ];

    /// Its position in [`Self::ALL`].
    #[must_use]
    pub const fn index(self) -> usize {
        self as usize
    }

    /// What an instruction is. Both ends of a message are pipeline communication.
    #[must_use]
    pub fn of(program: &Program, op: &Op) -> Self {
        match op {
            Op::Compute { pass: Pass::Forward, .. } => Self::Forward,
            Op::Compute { pass: Pass::Recompute, .. } => Self::Recompute,
            Op::Compute { pass: Pass::Backward, .. } => Self::Backward,
            Op::Compute { pass: Pass::BackwardInput, .. } => Self::BackwardInput,
            Op::Compute { pass: Pass::BackwardWeight, .. } => Self::BackwardWeight,
            Op::Collective { group, .. } => match program.groups[group.index()].axis {
                Axis::Data | Axis::Replica | Axis::Shard | Axis::ExpertReplica => Self::DataCommunication,
                Axis::Tensor => Self::TensorCommunication,
                Axis::Context => Self::ContextCommunication,
                Axis::Expert | Axis::ExpertTensor => Self::ExpertCommunication,
                Axis::Pipeline => Self::PipelineCommunication,
                Axis::Embedding | Axis::Model => Self::ModelCommunication,
            },
            Op::Send { .. } | Op::Receive { .. } => Self::PipelineCommunication,
            Op::GradientNorm | Op::Optimizer => Self::Optimizer,
            Op::HostCopy { .. } => Self::HostCopy,
        }
    }

    /// Whether it is a pass of the model (what a bubble is measured against).
    #[must_use]
    pub const fn is_pass(self) -> bool {
        matches!(self, Self::Forward | Self::Recompute | Self::Backward | Self::BackwardInput | Self::BackwardWeight)
    }

    /// Whether it is communication.
    #[must_use]
    pub const fn is_communication(self) -> bool {
        matches!(
            self,
            Self::TensorCommunication
                | Self::PipelineCommunication
                | Self::DataCommunication
                | Self::ModelCommunication
                | Self::ContextCommunication
                | Self::ExpertCommunication
        )
    }

    /// Its name in tables and legends.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forward => "forward",
            Self::Recompute => "recompute",
            Self::Backward => "backward",
            Self::BackwardInput => "backward (inputs)",
            Self::BackwardWeight => "backward (weights)",
            Self::TensorCommunication => "tensor communication",
            Self::PipelineCommunication => "pipeline communication",
            Self::DataCommunication => "data communication",
            Self::ModelCommunication => "model communication",
            Self::ContextCommunication => "context communication",
            Self::ExpertCommunication => "expert communication",
            Self::HostCopy => "host copies",
            Self::Optimizer => "optimizer",
            Self::InputStall => "input stall",
            Self::Bubble => "bubble",
        }
    }

    /// Its colour: a name in the page's style sheet and a fallback that reads on white.
    ///
    /// Hues keep apart under red-green colour blindness (after Okabe and Ito 2008); passes also differ in lightness.
    #[must_use]
    pub const fn colour(self) -> Colour {
        match self {
            Self::Forward => Colour { variable: "forward", light: 0x2f6fc4, dark: 0x5b9bee },
            Self::Recompute => Colour { variable: "recompute", light: 0x7fb8ea, dark: 0x2f6296 },
            Self::Backward => Colour { variable: "backward", light: 0xd96b12, dark: 0xf08c3a },
            Self::BackwardInput => Colour { variable: "backward-input", light: 0xe8a332, dark: 0xf2b850 },
            Self::BackwardWeight => Colour { variable: "backward-weight", light: 0x9c4f1d, dark: 0xb86a36 },
            Self::TensorCommunication => Colour { variable: "tensor", light: 0x008f72, dark: 0x1fb896 },
            Self::PipelineCommunication => Colour { variable: "pipeline", light: 0xb83f8f, dark: 0xd96ab4 },
            Self::DataCommunication => Colour { variable: "data", light: 0x7a58c1, dark: 0xa184e6 },
            Self::ModelCommunication => Colour { variable: "model", light: 0x7d8720, dark: 0xb3bd4a },
            Self::ContextCommunication => Colour { variable: "context", light: 0x0f8fa8, dark: 0x3fc0d8 },
            Self::ExpertCommunication => Colour { variable: "expert", light: 0xa23b4e, dark: 0xd96a7d },
            Self::HostCopy => Colour { variable: "host", light: 0x8a6d3b, dark: 0xc2a264 },
            Self::Optimizer => Colour { variable: "optimizer", light: 0x4a5563, dark: 0x93a0b0 },
            Self::InputStall => Colour { variable: "input", light: 0xe59090, dark: 0x9c5f47 },
            Self::Bubble => Colour { variable: "bubble", light: 0xe4e7ec, dark: 0x2b323c },
        }
    }
}

/// A colour of the page: a variable of its style sheet, and its values on light and dark ground (0xRRGGBB).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Colour {
    /// The variable's name, without the leading dashes.
    pub variable: &'static str,
    /// On light ground.
    pub light: u32,
    /// On dark ground.
    pub dark: u32,
}

impl Colour {
    /// A style-sheet value: the variable, or the light colour where there is no style sheet.
    #[must_use]
    pub fn css(self) -> String {
        format!("var(--{},#{:06x})", self.variable, self.light)
    }
    /// Red, green and blue on light ground.
    #[must_use]
    pub const fn rgb(self) -> (u8, u8, u8) {
        let [_, red, green, blue] = self.light.to_be_bytes();
        (red, green, blue)
    }
}

/// A class of instructions that a comparison keeps together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum InstructionClass {
    /// Passes of one kind.
    Pass(Pass),
    /// Collectives of one kind along one axis.
    Collective(CollectiveKind, Axis),
    /// Sending ends of messages.
    Send,
    /// Receiving ends of messages.
    Receive,
    /// The gradient's norm.
    GradientNorm,
    /// Optimizer steps.
    Optimizer,
    /// Copies to and from host memory.
    HostCopy,
}

impl InstructionClass {
    /// The class of an instruction.
    #[must_use]
    pub fn of(program: &Program, op: &Op) -> Self {
        match op {
            Op::Compute { pass, .. } => Self::Pass(*pass),
            Op::Collective { kind, group, .. } => Self::Collective(*kind, program.groups[group.index()].axis),
            Op::Send { .. } => Self::Send,
            Op::Receive { .. } => Self::Receive,
            Op::GradientNorm => Self::GradientNorm,
            Op::Optimizer => Self::Optimizer,
            Op::HostCopy { .. } => Self::HostCopy,
        }
    }
}

impl std::fmt::Display for InstructionClass {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Pass(pass) => f.write_str(pass.name()),
            Self::Collective(kind, axis) => write!(f, "{} over {}", kind.name(), axis.name()),
            Self::Send => f.write_str("send"),
            Self::Receive => f.write_str("receive"),
            Self::GradientNorm => f.write_str("gradient-norm"),
            Self::Optimizer => f.write_str("optimizer"),
            Self::HostCopy => f.write_str("host-copy"),
        }
    }
}

impl Serialize for InstructionClass {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_index_agree() {
        for (index, activity) in Activity::ALL.into_iter().enumerate() {
            assert_eq!(activity.index(), index);
        }
    }

    /// Relative luminance of WCAG 2.1.
    fn luminance(colour: u32) -> f64 {
        let [_, channels @ ..] = colour.to_be_bytes();
        let linear = channels.map(|channel| {
            let c = f64::from(channel) / 255.0;
            if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
        });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    }
    fn contrast(a: u32, b: u32) -> f64 {
        let (a, b) = (luminance(a), luminance(b));
        (a.max(b) + 0.05) / (a.min(b) + 0.05)
    }

    #[test]
    fn colours_stand_out_from_the_ground_and_from_each_other() {
        for activity in Activity::ALL.into_iter().filter(|a| *a != Activity::Bubble) {
            let colour = activity.colour();
            // 2:1 against the ground for large areas that also carry labels, titles and a legend.
            assert!(contrast(colour.light, 0xffffff) >= 2.0, "{activity:?} on light");
            assert!(contrast(colour.dark, 0x14181e) >= 2.0, "{activity:?} on dark");
        }
        let colours: Vec<u32> = Activity::ALL.iter().map(|a| a.colour().light).collect();
        for (i, a) in colours.iter().enumerate() {
            for b in &colours[i + 1..] {
                let distance: i32 = a
                    .to_be_bytes()
                    .iter()
                    .zip(b.to_be_bytes())
                    .map(|(x, y)| (i32::from(*x) - i32::from(y)).abs())
                    .sum();
                assert!(distance > 60, "{a:06x} and {b:06x} look alike");
            }
        }
    }
}
