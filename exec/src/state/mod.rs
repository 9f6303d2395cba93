//! What one rank of a program holds and computes.
//!
//! A [`RankState`] is one rank without its clock: weights, gradients, optimizer state and the activations of the
//! microbatches in flight, and the arithmetic of every instruction on them. Collectives and messages are cut in two: the
//! caller fetches this rank's [`contribution`](RankState::contribution), joins it with those of the other members, and
//! [`deliver`](RankState::deliver)s the result.
//!
//! **Deliberately ignorant of** threads, clocks, streams and other ranks: the same calls in the same order give the same
//! bits. It trusts a [`VerifiedProgram`]; a call out of order is a bug and panics with what was missing.
//!
//! # Who holds what
//!
//! Attention is divided by heads, the feed-forward part by columns, embedding and head by rows of the padded vocabulary.
//! Norms, learned positions and the biases of row-parallel products (attention projection, down projection) are whole on
//! every tensor rank; tensor rank 0 alone adds such a bias or position, to its summand. Their gradients come out equal on
//! all tensor ranks, except those of norms and routers under sequence parallelism, which `Payload::ReplicatedGradients` sums.
//! Sequences are divided over the context group (module `context`), experts over the expert groups (module `experts`).
//!
//! The parameters of a chunk fall into two: what all replicas (data x context ranks) hold, and this rank's experts, which
//! fewer ranks hold; each is divided over its own ranks. They stand unit by unit ([`weights`] lists the names) in
//! *segments*, each of them a vector: one where all ranks hold all, and one for each part that comes and goes by itself
//! under ZeRO-2 and 3. Where state is divided, a segment is padded at its end to a multiple of the ranks that share it, and
//! the `i`-th of them steps part `i`.
//!
//! A tied head in the chunk of the embedding uses the embedding's table, and its gradient adds to that table's; in another
//! chunk it has a copy of its own, which `Payload::TiedGradients` keeps equal, or the rank that holds both.
//!
//! # Memory
//!
//! Device memory and host memory are two pools. What a plan moves to host memory (what layers keep, optimizer state) is
//! copied there and back by `Op::HostCopy`, and counts in [`RankState::host_bytes_held`].
//!
//! # Where it computes
//!
//! In host memory, by the CPU's kernels, or on a device that it is given: then parameters, gradients, optimizer state and
//! activations are buffers of the device, and passes put operations on it (modules `values`, `arithmetic` and `accelerator`).
//! The passes are the same, and know not which it is. Contributions and results of collectives, and messages, are in host
//! memory in both cases, but for a rank that works ahead of its device: then they stay there.
//!
//! # Split backward
//!
//! `Pass::Backward` is `Pass::BackwardInput` followed by `Pass::BackwardWeight`, unit by unit, so that both give the same
//! bits. Between the two a unit keeps its input and the gradient of its output, nothing else.

mod accelerator;
mod again;
mod arithmetic;
mod attention;
mod boundary;
mod buffers;
mod compute;
mod context;
mod dimensions;
mod ends;
mod experts;
mod formats;
mod gathering;
mod mlp;
mod norm;
mod offered;
mod offload;
mod optimize;
mod optimizer_state;
mod packing;
mod parameters;
mod places;
mod routing;
mod sharding;
mod slot;
mod tensors;
#[cfg(test)]
pub(crate) mod tests;
mod transfer;
mod values;
pub mod weights;
mod work;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use ir::program::{Message, Pass, Unit};
use ir::{Bytes, ChunkId, MicrobatchId, Program, Rank, VerifiedProgram};

pub use buffers::BytesByKind;
pub use routing::{RecordedRouting, Routing};
pub use weights::{Part, Tensor, Weights};

pub(crate) use offered::{Got, Offered};

use accelerator::Accelerator;
use buffers::{Held, Pool};
use compute::Checked;
use dimensions::{Dimensions, size};
use formats::Formats;
use offered::Joined;
use parameters::{Made, Of, Parameters};
use sharding::{Parts, Sharing};
use slot::Slot;
use tensors::experts_of;
use work::{Sample, Starts};

use crate::data::Batch;
use crate::device::Device;
use crate::kernels::attention::AttentionWorkspace;

/// One rank of a program. See the [module](self).
#[derive(Debug)]
pub struct RankState {
    program: Arc<VerifiedProgram>,
    /// The device that it computes on, if that is not the host.
    on: Option<Arc<Accelerator>>,
    rank: Rank,
    dims: Dimensions,
    /// The chunks that this rank holds, in the order of the model.
    chunks: Vec<(ChunkId, Parameters)>,
    /// Of each of them the routed experts of this rank, if its layers have any.
    experts: Vec<Option<Parameters>>,
    /// By chunk of `chunks`, then microbatch.
    slots: Vec<Option<Slot>>,
    /// Empty slots to use again.
    spare: Vec<Slot>,
    samples: Vec<Sample>,
    /// By microbatch, where documents begin.
    starts: Vec<Starts>,
    /// Targets of the global batch that are not ignored.
    counted: u64,
    /// By microbatch, the sum of the losses of its tokens.
    losses: Vec<f64>,
    pool: Pool,
    /// Host memory, where a plan uses it.
    host: Pool,
    /// Gradients of chunk inputs that wait to leave, by edge and microbatch.
    departing_gradients: BTreeMap<(ChunkId, MicrobatchId), Held>,
    /// The boundary tensor handed out last.
    departing: Option<Held>,
    /// Boundary tensors of which more ranks need theirs, and how many.
    several: BTreeMap<Message, (Held, usize)>,
    attention: AttentionWorkspace,
    /// Of several tensors or segments, what goes into a collective together.
    joined: Joined,
    /// Memory for what is put together of many rows.
    packed: Vec<f32>,
    /// What the device was asked to check since it was last waited for.
    checked: Vec<Checked>,
    /// By microbatch, losses of tokens that are still on the device.
    late_losses: Vec<Option<Held>>,
    /// Where choices of experts come from.
    routing: Routing,
    /// What a delivery left that is not finite, for the next compute instruction to report.
    suspect: Option<NotFinite>,
    iteration: u64,
    /// What is known of the sum of squares of the gradients: this rank's part, then the sum over ranks.
    squared_norm: f64,
    /// Its bits, on their way into a collective.
    norm_halves: [f32; 2],
}

/// How far an instruction has come.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Progress {
    /// It is done.
    Ended,
    /// It needs what an exchange beside it is still to bring; see [`RankState::continues`].
    Paused,
}

/// A value that is not a number, or infinite, and where it was found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NotFinite {
    /// The rank that found it.
    pub rank: Rank,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The layer, numbered through the model; none at the model's ends or where it cannot be told.
    pub layer: Option<u32>,
    /// The microbatch and pass; none in the optimizer.
    pub pass: Option<(MicrobatchId, Pass)>,
    /// The tensor: the name of a weight if one of the unit's weights is at fault, else in words.
    pub tensor: String,
}

impl fmt::Display for NotFinite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.tensor)?;
        if let Some(layer) = self.layer {
            write!(f, " in layer {layer}")?;
        }
        if let Some((microbatch, pass)) = self.pass {
            write!(f, ", {} of microbatch {}", pass.name(), microbatch.raw())?;
        }
        write!(f, ", iteration {}, rank {}", self.iteration, self.rank.raw())
    }
}

impl std::error::Error for NotFinite {}

impl RankState {
    /// Allocates and initialises a rank: from `initial`, or from the workload's seed as [`Weights::initial`]. Every
    /// division of a model starts from the same weights.
    ///
    /// # Panics
    /// If the program divides what does not divide, or `initial` are not the model's weights (ask
    /// [`Weights::problems`] first).
    #[must_use]
    pub fn new(program: &Arc<VerifiedProgram>, rank: Rank, initial: Option<&Weights>) -> Self {
        Self::on(program, rank, initial, None)
    }

    /// The same on a device, where one is given: what the rank holds lies there, and what it computes is put on the device's
    /// compute stream. The device must be able to do all that the program asks for, which
    /// [`CpuBackend`](crate::CpuBackend) asks before.
    ///
    /// # Panics
    /// As [`new`](Self::new). Where the device fails, here or later, the thread unwinds with its
    /// [`DeviceError`](crate::device::DeviceError).
    #[must_use]
    pub fn on(
        program: &Arc<VerifiedProgram>,
        rank: Rank,
        initial: Option<&Weights>,
        device: Option<Arc<dyn Device>>,
    ) -> Self {
        let on = device.map(|device| Arc::new(Accelerator::new(device)));
        let dims = Dimensions::new(program, rank);
        let role = program.role_of(rank).map(|role| &program.roles[role.index()]);
        let position = role.map_or(dims.position, |role| role.stage.raw());
        let ids = (0..program.chunks.len()).map(ChunkId::at);
        let held: Vec<ChunkId> = ids.filter(|id| program.chunk(*id).stage.raw() == position).collect();
        let head = held.iter().position(|id| program.chunk(*id).head);
        let element = dims.formats.activation();
        let (mut pool, mut host) = (Pool::new(element, on.clone()), Pool::new(element, None));
        let mut parameters = |id: ChunkId, of: Of| {
            let parts = role.map(|role| Parts::of(program, role, id)).unwrap_or_default();
            let sharing = Sharing::of(program, rank, &dims, of);
            let (model, seed, chunk) = (&program.model, program.workload.seed, program.chunk(id));
            let formats = match of {
                Of::Common => dims.formats,
                Of::Experts => Formats::of(program, program.layout.expert_shard()),
            };
            let made = Made { model, seed, chunk, dims: &dims, sharing, parts, initial, of, formats };
            Parameters::new(made, &mut pool, &mut host)
        };
        let chunks: Vec<_> = held.iter().map(|id| (*id, parameters(*id, Of::Common))).collect();
        let routed = |id: &ChunkId| {
            let chunk = program.chunk(*id);
            let mut layers = chunk.first_layer..chunk.first_layer + chunk.layers;
            layers.any(|layer| experts_of(&program.model, layer).is_some())
        };
        let experts = held.iter().map(|id| routed(id).then(|| parameters(*id, Of::Experts))).collect();
        let embedding = held.iter().position(|id| program.chunk(*id).embedding);
        let at_end = embedding.is_some() || head.is_some();
        let samples = if at_end { dims.microbatches } else { 0 };
        Self {
            program: Arc::clone(program),
            on,
            rank,
            slots: (0..chunks.len() * dims.microbatches).map(|_| None).collect(),
            spare: Vec::new(),
            samples: (0..samples).map(|_| Sample::default()).collect(),
            starts: (0..dims.microbatches).map(|_| Starts::default()).collect(),
            counted: program.workload.tokens_per_iteration(),
            losses: if head.is_some() { vec![0.0; dims.microbatches] } else { Vec::new() },
            chunks,
            experts,
            dims,
            pool,
            host,
            departing_gradients: BTreeMap::new(),
            departing: None,
            several: BTreeMap::new(),
            attention: AttentionWorkspace::default(),
            joined: Joined::default(),
            packed: Vec::new(),
            checked: Vec::new(),
            late_losses: Vec::new(),
            routing: Routing::Free,
            suspect: None,
            iteration: 0,
            squared_norm: 0.0,
            norm_halves: [0.0; 2],
        }
    }

    /// The rank.
    #[must_use]
    pub fn rank(&self) -> Rank {
        self.rank
    }

    /// From now on the rank works ahead of its device: what it puts into exchanges stays there, nothing waits for the device
    /// but [`settle`](Self::settle), and numbers that are not finite are found then.
    pub(crate) fn work_ahead(&mut self) {
        assert!(self.on.is_some(), "{} has no device to work ahead of", self.rank);
        self.joined.on_device = true;
        self.late_losses = self.losses.iter().map(|_| None).collect();
    }

    /// The device that it computes on.
    pub(crate) fn device(&self) -> Option<Arc<dyn Device>> {
        self.on.as_ref().map(|on| on.device())
    }

    /// From now on choices of experts come from there, or are kept there.
    pub fn set_routing(&mut self, routing: Routing) {
        self.routing = routing;
    }

    /// Whether the rank looks at tokens: it holds the embedding or the head.
    #[must_use]
    pub fn reads_tokens(&self) -> bool {
        !self.samples.is_empty()
    }

    /// Begins an iteration, counted from 0: forgets losses and whatever an earlier iteration left unfinished.
    pub fn begin_iteration(&mut self, iteration: u64) {
        self.iteration = iteration;
        self.losses.fill(0.0);
        self.squared_norm = 0.0;
        self.suspect = None;
        for index in 0..self.slots.len() {
            self.retire(index);
        }
        for (_, held) in std::mem::take(&mut self.departing_gradients) {
            self.pool.give(held);
        }
        for (held, _) in std::mem::take(&mut self.several).into_values() {
            self.pool.give(held);
        }
        self.pool.release(&mut self.departing);
        self.late_losses.iter_mut().for_each(|late| self.pool.release(late));
        self.checked.clear();
        let experts = self.experts.iter_mut().flatten();
        for parameters in self.chunks.iter_mut().map(|(_, parameters)| parameters).chain(experts) {
            parameters.forget(&mut self.pool);
        }
        self.pool.forget_peak();
        self.host.forget_peak();
        self.finish();
    }

    /// Sets the sequences of a microbatch. Call it for every microbatch of an iteration; of tokens, ranks that hold neither
    /// end of the model take no notice.
    ///
    /// # Panics
    /// If the sizes are wrong, nothing counts, or a token is not in the vocabulary (a target may also be
    /// [`IGNORED`](crate::kernels::loss::IGNORED)).
    pub fn feed(&mut self, microbatch: MicrobatchId, batch: &Batch) {
        let Batch { tokens, targets, starts, counted } = batch;
        let whole = self.dims.sequences * size(self.program.workload.sequence_length);
        assert_eq!((tokens.len(), targets.len()), (whole, whole), "tokens of {microbatch}");
        assert!(starts.is_empty() || starts.len() == whole, "starts of documents of {microbatch}");
        assert!(*counted > 0, "no target of the global batch counts");
        self.counted = *counted;
        let own = &mut self.starts[microbatch.index()];
        own.whole.clone_from(starts);
        own.own.clear();
        if !starts.is_empty() {
            self.dims.context.select(starts, &mut own.own);
        }
        if !self.reads_tokens() {
            return;
        }
        let vocabulary = self.program.model.vocabulary;
        let known = |&token: &u32| token < vocabulary;
        assert!(tokens.iter().all(known), "{microbatch}: a token outside the vocabulary of {vocabulary}");
        let ignored = crate::kernels::loss::IGNORED;
        assert!(targets.iter().all(|t| known(t) || *t == ignored), "{microbatch}: a target outside the vocabulary");
        let sample = &mut self.samples[microbatch.index()];
        self.dims.context.select(tokens, &mut sample.tokens);
        self.dims.context.select(targets, &mut sample.targets);
    }

    /// This replica's share of the iteration's mean loss: the sum of its tokens' cross-entropies over the targets of the
    /// *global* batch that are not ignored. `None` on ranks without the head. All ranks of a tensor group say the same, so sum over the ranks of
    /// tensor index 0 only: over replicas, and over the ranks that share sequences.
    #[must_use]
    pub fn loss(&self) -> Option<f64> {
        (!self.losses.is_empty()).then(|| self.losses.iter().sum::<f64>() / self.counted as f64)
    }

    /// What this rank steps of each tensor, in FP32: all ranks together have all. A tied head's copy goes by the
    /// embedding's name.
    pub fn weights(&self) -> impl Iterator<Item = Part<'_>> {
        self.all_parameters().flat_map(Parameters::weight_parts)
    }

    /// What this rank holds of the optimizer's first and second moments: under ZeRO-1 its part only.
    #[must_use]
    pub fn moments(&self) -> [Vec<Part<'_>>; 2] {
        [0, 1].map(|which| self.all_parameters().flat_map(|parameters| parameters.moment_parts(which)).collect())
    }

    /// What this rank writes into a checkpoint, tensor by tensor: its weights in FP32 and both moments. All ranks of a program
    /// together write every element once: of ranks that hold copies, the first does.
    pub fn written(&self) -> impl Iterator<Item = [Part<'_>; 3]> {
        self.all_parameters().flat_map(Parameters::written_parts)
    }

    /// Names of the tensors that a rank of a program holds a part of.
    #[must_use]
    pub fn tensors_of(program: &Program, rank: Rank) -> BTreeSet<String> {
        let dims = Dimensions::new(program, rank);
        let experts = dims.experts.as_ref().map(|experts| experts.first..experts.first + experts.local);
        let held = program.chunks.iter().filter(|chunk| chunk.stage.raw() == dims.position);
        let units = held.flat_map(|chunk| (0..chunk.units()).map(|position| chunk.unit(position)));
        let parameters = units.flat_map(|unit| tensors::unit_parameters(&program.model, unit));
        let here = |expert| experts.as_ref().is_none_or(|held| held.contains(&expert));
        parameters.filter(|one| one.expert.is_none_or(here)).map(|one| one.name).collect()
    }

    /// Continues from the moments of another run of the same model, gathered by [`Weights::put`] from
    /// [`moments`](Self::moments) of all its ranks.
    ///
    /// # Panics
    /// If they are not of the model's tensors.
    pub fn load_moments(&mut self, first: &Weights, second: &Weights) {
        for parameters in self.all_parameters_mut() {
            parameters.load_moments(0, first);
            parameters.load_moments(1, second);
        }
    }

    /// Makes the first of this rank's weights not a number, to see what comes of it (fault injection).
    pub fn poison(&mut self) {
        let Some((_, parameters)) = self.chunks.first_mut() else { return };
        let own = parameters.own_weights.as_mut().map(Held::view_mut);
        let weights = own.or_else(|| parameters.weights.pieces_mut().next());
        if let Some(weights) = weights.filter(|weights| weights.len() > 0) {
            weights.part(0..1).copy_from(&[f32::NAN][..]);
        }
    }

    /// Waits for the device, where an iteration begins or ends: what a pass that broke off has checked is forgotten.
    fn finish(&self) {
        if let Some(on) = &self.on {
            let _forgotten = on.found();
        }
    }

    /// Bytes in use now, by kind. Buffers kept for reuse are not counted; neither are the attention's tiles, which are
    /// the same size whatever is in flight.
    #[must_use]
    pub fn bytes_held(&self) -> BytesByKind {
        self.pool.bytes()
    }

    /// Bytes in use, by kind, at the moment of this iteration when their sum was largest.
    #[must_use]
    pub fn peak_bytes(&self) -> BytesByKind {
        self.pool.peak()
    }

    /// The most bytes in use at a time since this was last asked.
    pub fn take_highest_bytes(&mut self) -> Bytes {
        self.pool.take_highest()
    }

    /// Bytes of host memory in use now for what the plan keeps there, by kind.
    #[must_use]
    pub fn host_bytes_held(&self) -> BytesByKind {
        self.host.bytes()
    }

    /// Bytes of host memory in use, by kind, at the moment of this iteration when their sum was largest.
    #[must_use]
    pub fn host_peak_bytes(&self) -> BytesByKind {
        self.host.peak()
    }

    /// All that this rank holds: of each chunk what is not experts', then all experts.
    fn all_parameters(&self) -> impl Iterator<Item = &Parameters> {
        self.chunks.iter().map(|(_, parameters)| parameters).chain(self.experts.iter().flatten())
    }

    fn all_parameters_mut(&mut self) -> impl Iterator<Item = &mut Parameters> {
        self.chunks.iter_mut().map(|(_, parameters)| parameters).chain(self.experts.iter_mut().flatten())
    }

    fn holds(&self, chunk: ChunkId) -> bool {
        self.chunks.iter().any(|(id, _)| *id == chunk)
    }

    /// The index of a chunk among those that this rank holds.
    fn local(&self, chunk: ChunkId) -> usize {
        let found = self.chunks.iter().position(|(id, _)| *id == chunk);
        found.unwrap_or_else(|| panic!("{} does not hold {chunk}", self.rank))
    }

    fn slot_index(&self, local: usize, microbatch: MicrobatchId) -> usize {
        assert!(microbatch.index() < self.dims.microbatches, "{}: no {microbatch} in this program", self.rank);
        local * self.dims.microbatches + microbatch.index()
    }

    /// The slot of a microbatch in a chunk, made if it is new.
    fn slot(&mut self, chunk: ChunkId, microbatch: MicrobatchId) -> &mut Slot {
        let index = self.slot_index(self.local(chunk), microbatch);
        let (spare, program) = (&mut self.spare, &self.program);
        self.slots[index].get_or_insert_with(|| {
            let chunk = program.chunk(chunk);
            spare.pop().unwrap_or_default().resized(size(chunk.layers), chunk.head)
        })
    }

    /// Ends a slot: its buffers and itself can be used again.
    fn retire(&mut self, index: usize) {
        if let Some(mut slot) = self.slots[index].take() {
            slot.release(&mut self.pool, &mut self.host);
            self.spare.push(slot);
        }
    }
}

/// The layer of a unit.
fn layer_of(unit: Unit) -> Option<u32> {
    match unit {
        Unit::AttentionNorm(layer) | Unit::Attention(layer) | Unit::MlpNorm(layer) | Unit::Mlp(layer) => Some(layer),
        Unit::Embedding | Unit::FinalNorm | Unit::Head | Unit::Loss => None,
    }
}

/// Whether no value is infinite or not a number.
fn all_finite(values: &[f32]) -> bool {
    const EXPONENT: u32 = 0x7f80_0000;
    // Without an early exit inside a piece, so that it becomes vector code.
    let finite = |piece: &[f32]| !piece.iter().fold(false, |bad, x| bad | (x.to_bits() & EXPONENT == EXPONENT));
    values.chunks(1024).all(finite)
}
