//! One pass of one unit: what it reads and writes, and which unit does what in which pass.

use ir::program::{BufferKind, Pass, Unit};
use ir::{ParallelBranches, Recompute};

use super::Progress;
use super::arithmetic::{accumulate, all_finite};
use super::buffers::{Held, Pool};
use super::dimensions::Dimensions;
use super::parameters::Parameters;
use super::routing::Routes;
use super::slot::{Slot, Stage, Sum};
use crate::kernels::attention::AttentionWorkspace;

/// Tokens of a microbatch.
#[derive(Debug, Default)]
pub(super) struct Sample {
    pub(super) tokens: Vec<u32>,
    pub(super) targets: Vec<u32>,
}

/// Of the tokens of a microbatch, the positions in their sequences at which their documents begin; empty where each sequence
/// is one document.
#[derive(Debug, Default)]
pub(super) struct Starts {
    /// Of this rank's tokens, in its order.
    pub(super) own: Vec<u32>,
    /// Of all tokens, `[sequences, sequence length]`.
    pub(super) whole: Vec<u32>,
}

impl Starts {
    /// Those of one of this rank's pieces, of `length` tokens each.
    pub(super) fn of_piece(&self, piece: usize, length: usize) -> &[u32] {
        if self.own.is_empty() { &[] } else { &self.own[piece * length..][..length] }
    }
}

/// The parts of a rank that one unit's pass touches.
pub(super) struct Work<'a> {
    pub(super) dims: &'a Dimensions,
    /// Of the chunk that holds the unit's weights.
    pub(super) parameters: &'a mut Parameters,
    /// Of the chunk's experts, if it has any.
    pub(super) experts: Option<&'a mut Parameters>,
    pub(super) slot: &'a mut Slot,
    pub(super) pool: &'a mut Pool,
    pub(super) attention: &'a mut AttentionWorkspace,
    /// What leaves for other ranks, while it is put together.
    pub(super) packed: &'a mut Vec<f32>,
    pub(super) routes: Routes<'a>,
    pub(super) sample: &'a Sample,
    pub(super) starts: &'a Starts,
    /// One over the targets of the global batch.
    pub(super) loss_scale: f32,
    /// The sum of the microbatch's losses over its tokens, which the loss's forward pass sets.
    pub(super) loss: &'a mut f64,
    /// Where a rank that works ahead of its device leaves the losses of the microbatch's tokens instead.
    pub(super) late_loss: Option<&'a mut Option<Held>>,
    /// What of the unit is computed again.
    pub(super) recompute: Recompute,
    /// How many of the chunk's layers keep no input of their second half.
    pub(super) discarding: usize,
    /// The position of the unit in its chunk.
    pub(super) position: u32,
    pub(super) first_layer: u32,
    pub(super) pass: Pass,
}

/// A pass left values that are not finite in this tensor of its unit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Suspect(pub(super) &'static str);

impl Work<'_> {
    /// Carries out the pass, as far as it goes before it needs what other ranks are still to send.
    pub(super) fn run(&mut self, unit: Unit) -> Result<Progress, Suspect> {
        if matches!(self.pass, Pass::Backward | Pass::BackwardWeight) {
            self.parameters.open_gradients(self.position, self.dims.formats, self.pool);
            if let Some(experts) = self.experts.as_deref_mut() {
                experts.open_gradients(self.position, self.dims.formats, self.pool);
            }
        }
        match self.pass {
            Pass::Forward | Pass::Recompute => return self.forward(unit),
            Pass::Backward => {
                if self.backward_input(unit) == Progress::Paused {
                    return Ok(Progress::Paused);
                }
                self.backward_weight(unit);
            }
            Pass::BackwardInput => return Ok(self.backward_input(unit)),
            Pass::BackwardWeight => self.backward_weight(unit),
        }
        Ok(Progress::Ended)
    }

    fn forward(&mut self, unit: Unit) -> Result<Progress, Suspect> {
        match unit {
            Unit::Embedding => self.embedding_forward()?,
            Unit::AttentionNorm(layer) => self.norm_forward(2 * self.local(layer))?,
            Unit::Attention(layer) => return self.attention_forward(self.local(layer)),
            Unit::MlpNorm(layer) => {
                let layer = self.local(layer);
                self.norm_forward(2 * layer + 1)?;
                self.router_forward(layer)?;
            }
            Unit::Mlp(layer) if self.is_routed(layer) => self.experts_forward(self.local(layer))?,
            Unit::Mlp(layer) => self.mlp_forward(self.local(layer))?,
            Unit::FinalNorm => self.norm_forward(self.last())?,
            Unit::Head => self.head_forward()?,
            Unit::Loss => self.loss_forward()?,
        }
        Ok(Progress::Ended)
    }

    fn backward_input(&mut self, unit: Unit) -> Progress {
        match unit {
            Unit::Embedding => self.embedding_backward_input(),
            Unit::AttentionNorm(layer) => self.norm_backward_input(2 * self.local(layer)),
            Unit::Attention(layer) => return self.attention_backward_input(self.local(layer)),
            Unit::MlpNorm(layer) => {
                let layer = self.local(layer);
                self.router_backward_input(layer);
                self.norm_backward_input(2 * layer + 1);
            }
            Unit::Mlp(layer) if self.is_routed(layer) => self.experts_backward_input(self.local(layer)),
            Unit::Mlp(layer) => self.mlp_backward_input(self.local(layer)),
            Unit::FinalNorm => self.norm_backward_input(self.last()),
            Unit::Head => self.head_backward_input(),
            Unit::Loss => self.loss_backward(),
        }
        Progress::Ended
    }

    fn backward_weight(&mut self, unit: Unit) {
        match unit {
            Unit::Embedding => self.embedding_backward_weight(),
            Unit::AttentionNorm(layer) => self.norm_backward_weight(2 * self.local(layer)),
            Unit::Attention(layer) => {
                let layer = self.local(layer);
                // Gradients that other ranks still hold make the pass end when they arrive.
                if self.slot.attention[layer].stage == Stage::Start {
                    self.attention_backward_weight(layer);
                }
            }
            Unit::MlpNorm(layer) => {
                let layer = self.local(layer);
                self.router_backward_weight(layer);
                self.norm_backward_weight(2 * layer + 1);
            }
            Unit::Mlp(layer) if self.is_routed(layer) => self.experts_backward_weight(self.local(layer)),
            Unit::Mlp(layer) => self.mlp_backward_weight(self.local(layer)),
            Unit::FinalNorm => self.norm_backward_weight(self.last()),
            Unit::Head => self.head_backward_weight(),
            Unit::Loss => {}
        }
    }

    pub(super) fn local(&self, layer: u32) -> usize {
        super::dimensions::size(layer - self.first_layer)
    }

    /// Whether a layer has experts.
    fn is_routed(&self, layer: u32) -> bool {
        self.parameters.places.routers[self.local(layer)].is_some()
    }

    /// Whether the pass goes up.
    pub(super) const fn upwards(&self) -> bool {
        matches!(self.pass, Pass::Forward | Pass::Recompute)
    }

    /// The sublayer of final norm and head.
    pub(super) fn last(&self) -> usize {
        self.slot.sublayers.len() - 1
    }

    /// Whether this is a forward pass over a layer of which only the input is kept.
    pub(super) fn discards(&self) -> bool {
        self.pass == Pass::Forward && self.recompute == Recompute::Full
    }

    /// Whether what the input pass leaves waits for a weight pass of its own.
    pub(super) fn defers(&self) -> bool {
        self.pass == Pass::BackwardInput
    }

    /// The kind of a gradient that the weight pass reads.
    pub(super) fn gradient_kind(&self) -> BufferKind {
        if self.defers() { BufferKind::Activations } else { BufferKind::Workspace }
    }

    /// Leaves a body's output as the branch, whole if this rank is alone in its tensor group.
    pub(super) fn leave_branch(&mut self, mut data: Held, of: &'static str) -> Result<(), Suspect> {
        self.dims.formats.round(&mut data);
        let finite = all_finite(&data, of);
        assert!(self.slot.branch.is_none(), "a branch was left unread before the output of {of}");
        self.slot.branch = Some(Sum { data, whole: self.dims.alone() });
        if finite { Ok(()) } else { Err(Suspect(of)) }
    }

    /// Keeps the gradient of a body's output where a weight pass to come will need it.
    pub(super) fn keep_output_gradient(&mut self, sublayer: usize) {
        self.before_body(sublayer);
        if self.defers() && !self.dims.sequence_parallel {
            let kept = &mut self.slot.sublayers[sublayer].output_gradient;
            match kept {
                Some(gradient) => self.pool.relabel(gradient, BufferKind::Activations),
                none => {
                    let gradient = self.slot.residual_gradient.as_ref().expect("the residual gradient arrived");
                    *none = Some(self.pool.copy(BufferKind::Activations, gradient));
                }
            }
        }
    }

    /// The sublayer whose norm's output a body reads: with one norm for both branches, the layer's first.
    pub(super) fn reads(&self, sublayer: usize) -> usize {
        let in_layers = sublayer < 2 * self.slot.attention.len();
        if self.dims.branches == ParallelBranches::OneNorm && in_layers { sublayer & !1 } else { sublayer }
    }

    /// After a body's forward pass its gathered input is given up, and with recomputation of it the normed one too, once
    /// every branch has read it.
    pub(super) fn release_after_forward(&mut self, sublayer: usize) {
        self.pool.release(&mut self.slot.sublayers[sublayer].gathered);
        let last = self.dims.branches != ParallelBranches::OneNorm || sublayer % 2 == 1;
        if self.discards_cheap() && last {
            let source = self.reads(sublayer);
            self.pool.release(&mut self.slot.sublayers[source].output);
        }
    }
}

/// The residual stream after the branch that is still to be added; what nothing needs after that is given up: of the first
/// `discarding` layers, and of all if branches run side by side, the input of the second branch.
pub(super) fn take_residual(slot: &mut Slot, pool: &mut Pool, dims: &Dimensions, discarding: usize) -> Held {
    let Sum { mut data, whole } = slot.branch.take().expect("a branch to continue the residual stream");
    assert!(whole, "a branch was read before it was summed over the tensor group");
    if let Some(latest) = slot.latest {
        let before = &mut slot.sublayers[latest].input;
        accumulate(&mut data, before.as_ref().expect("the residual stream before the branch"));
        dims.formats.round(&mut data);
        let in_layers = latest < 2 * slot.attention.len();
        if latest % 2 == 1 && in_layers && (latest / 2 < discarding || dims.side_by_side()) {
            pool.release(before);
        }
    }
    data
}
