//! An operation as launches of kernels: names, grids and arguments, without a device.

mod attention;
mod rows;

use super::source::{Module, Source};
use crate::device::{ActivationKind, Element, Operation, Slice};
use crate::kernels::optimizer::Factors;

/// Threads of most blocks, `THREADS` of `common.cuh`.
const THREADS: u32 = 256;
/// Blocks of a kernel that goes over elements: enough to fill any device, whatever the length, so that a sum over them
/// has one order.
const BLOCKS: usize = 1024;

/// An argument of a kernel.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) enum Argument {
    /// Address of a slice.
    Slice(Slice),
    /// Address that far into the stream's scratch memory.
    Scratch(usize),
    /// No address.
    Null,
    Long(i64),
    Int(i32),
    Unsigned(u32),
    Single(f32),
    Double(f64),
}

impl From<Slice> for Argument {
    fn from(slice: Slice) -> Self {
        Self::Slice(slice)
    }
}

impl From<Option<Slice>> for Argument {
    fn from(slice: Option<Slice>) -> Self {
        slice.map_or(Self::Null, Self::Slice)
    }
}

impl From<usize> for Argument {
    fn from(count: usize) -> Self {
        Self::Long(i64::try_from(count).unwrap_or(i64::MAX))
    }
}

impl From<bool> for Argument {
    fn from(flag: bool) -> Self {
        Self::Int(i32::from(flag))
    }
}

impl From<f32> for Argument {
    fn from(value: f32) -> Self {
        Self::Single(value)
    }
}

/// An `int` of a kernel.
fn int(count: usize) -> Argument {
    Argument::Int(i32::try_from(count).expect("a count that a kernel holds in an int"))
}

/// A call of a kernel.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Launch {
    pub(super) module: Module,
    pub(super) kernel: &'static str,
    pub(super) grid: [u32; 3],
    pub(super) threads: u32,
    /// Dynamic shared memory of a block.
    pub(super) shared_bytes: u32,
    pub(super) arguments: Vec<Argument>,
}

/// Calls that carry an operation out, in order, and the scratch memory that they need.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Launches {
    pub(super) list: Vec<Launch>,
    pub(super) scratch_bytes: usize,
}

fn grid(blocks: usize) -> [u32; 3] {
    [u32::try_from(blocks).expect("fewer blocks than 2^32"), 1, 1]
}

impl Launches {
    fn call<const N: usize>(
        &mut self,
        (source, element): (Source, Element),
        kernel: &'static str,
        blocks: usize,
        arguments: [Argument; N],
    ) {
        let module = Module { source, element, head: None };
        self.push(Launch {
            module,
            kernel,
            grid: grid(blocks),
            threads: THREADS,
            shared_bytes: 0,
            arguments: arguments.to_vec(),
        });
    }

    /// A grid without blocks is an error to CUDA, and nothing to do here.
    fn push(&mut self, launch: Launch) {
        if launch.grid.iter().all(|&blocks| blocks > 0) {
            self.list.push(launch);
        }
    }

    /// A kernel that goes over `count` elements; the count is its first argument.
    fn elements<const N: usize>(
        &mut self,
        module: (Source, Element),
        kernel: &'static str,
        count: usize,
        arguments: [Argument; N],
    ) {
        let blocks = count.div_ceil(THREADS as usize).min(BLOCKS);
        self.call(module, kernel, blocks, arguments);
    }
}

/// Why a GPU's kernels cannot do an operation that a CPU's can.
pub(super) fn unsupported(operation: &Operation) -> Option<String> {
    match operation {
        Operation::AttentionForward { shape, .. } | Operation::AttentionBackward { shape, .. } => {
            let largest = super::source::HEADS[super::source::HEADS.len() - 1];
            (shape.head_dim > largest).then(|| {
                format!("attention with heads of {} elements: the CUDA kernel holds at most {largest}", shape.head_dim)
            })
        }
        _ => None,
    }
}

/// The calls that carry an operation out.
pub(super) fn launches(operation: &Operation) -> Launches {
    let element = operation.element();
    let mut all = Launches::default();
    match *operation {
        Operation::AttentionForward { .. } | Operation::AttentionBackward { .. } | Operation::AttentionMerge { .. } => {
            attention::launches(&mut all, element, operation)
        }
        Operation::NormForward { .. }
        | Operation::NormBackwardInput { .. }
        | Operation::NormBackwardWeight { .. }
        | Operation::BiasBackward { .. }
        | Operation::EmbeddingForward { .. }
        | Operation::EmbeddingBackward { .. }
        | Operation::PositionsForward { .. }
        | Operation::PositionsBackward { .. }
        | Operation::Rotate { .. }
        | Operation::LossStatistics { .. }
        | Operation::LossCombine { .. }
        | Operation::LossBackward { .. } => rows::launches(&mut all, element, operation),
        Operation::Softmax { .. }
        | Operation::ChooseExperts { .. }
        | Operation::OrderByExpert { .. }
        | Operation::GatherRows { .. }
        | Operation::CombineRows { .. }
        | Operation::RowProducts { .. } => rows::routing(&mut all, element, operation),
        Operation::SquaredNorm { .. }
        | Operation::ClipFactor { .. }
        | Operation::AdamW { .. }
        | Operation::CheckFinite { .. } => optimizer(&mut all, element, operation),
        _ => elementwise(&mut all, element, operation),
    }
    all
}

fn elementwise(all: &mut Launches, element: Element, operation: &Operation) {
    let module = (Source::Elementwise, element);
    let tanh = |kind| Argument::from(kind == ActivationKind::GeluTanh);
    match *operation {
        Operation::SwigluForward { gate, up, out } => {
            let n = out.length;
            all.elements(module, "swiglu_forward", n, [n.into(), gate.into(), up.into(), out.into()]);
        }
        Operation::SwigluBackward { gate, up, d_out, d_gate, d_up } => {
            let n = gate.length;
            let arguments = [n.into(), gate.into(), up.into(), d_out.into(), d_gate.into(), d_up.into()];
            all.elements(module, "swiglu_backward", n, arguments);
        }
        Operation::GegluForward { kind, gate, up, out } => {
            let n = out.length;
            all.elements(module, "geglu_forward", n, [n.into(), tanh(kind), gate.into(), up.into(), out.into()]);
        }
        Operation::GegluBackward { kind, gate, up, d_out, d_gate, d_up } => {
            let (n, kind) = (gate.length, tanh(kind));
            let arguments = [n.into(), kind, gate.into(), up.into(), d_out.into(), d_gate.into(), d_up.into()];
            all.elements(module, "geglu_backward", n, arguments);
        }
        Operation::ActivationForward { kind, x, y } => {
            let n = x.length;
            all.elements(module, "activation_forward", n, [n.into(), tanh(kind), x.into(), y.into()]);
        }
        Operation::ActivationBackward { kind, x, dy, dx } => {
            let n = x.length;
            all.elements(module, "activation_backward", n, [n.into(), tanh(kind), x.into(), dy.into(), dx.into()]);
        }
        Operation::AddBias { y, bias } => {
            let n = y.length;
            all.elements(module, "add_bias", n, [n.into(), bias.length.into(), y.into(), bias.into()]);
        }
        Operation::Add { a, b, out } => {
            all.elements(module, "add", out.length, [out.length.into(), a.into(), b.into(), out.into()]);
        }
        Operation::Accumulate { total, factor, part } => {
            // The kernel is built for the element of the summand.
            let module = (Source::Elementwise, part.element);
            let kernel = if total.element == part.element { "accumulate" } else { "accumulate_single" };
            let n = total.length;
            all.elements(module, kernel, n, [n.into(), factor.into(), total.into(), part.into()]);
        }
        Operation::Scale { values, factor } => {
            all.elements(module, "scale", values.length, [values.length.into(), factor.into(), values.into()]);
        }
        Operation::CopyBlock { rows, columns, from, from_stride, to, to_stride } => {
            let arguments = [rows.into(), columns.into(), from.into(), from_stride.into(), to.into(), to_stride.into()];
            all.elements(module, "copy_block", rows * columns, arguments);
        }
        Operation::Cast { from, to } => {
            let kernel = if from.element == Element::F32 { "round_to_element" } else { "widen_element" };
            all.elements(module, kernel, to.length, [to.length.into(), from.into(), to.into()]);
        }
        _ => unreachable!("{operation:?} does not go element by element"),
    }
}

fn optimizer(all: &mut Launches, element: Element, operation: &Operation) {
    match *operation {
        Operation::SquaredNorm { values, sum } => {
            let module = (Source::Optimizer, Element::F32);
            let blocks = values.length.div_ceil(THREADS as usize).min(BLOCKS);
            all.scratch_bytes = blocks * size_of::<f64>();
            let parts = Argument::Scratch(0);
            all.call(module, "squared_norm_parts", blocks, [values.length.into(), values.into(), parts]);
            all.call(module, "add_squared_norm", blocks.min(1), [int(blocks), parts, sum.into()]);
        }
        Operation::ClipFactor { squared_norm, largest, factor } => {
            let module = Module { source: Source::Optimizer, element: Element::F32, head: None };
            let arguments = vec![Argument::Double(largest), squared_norm.into(), factor.into()];
            all.push(Launch { module, kernel: "clip_factor", grid: [1; 3], threads: 1, shared_bytes: 0, arguments });
        }
        Operation::AdamW { options, step, decay, factor, master, gradients, first, second, rounded } => {
            let f = Factors::new(&options, step, decay);
            let arguments = [
                master.length.into(),
                f.keep.into(),
                f.new1.into(),
                f.old2.into(),
                f.new2.into(),
                f.negative_step_size.into(),
                f.root_correction2.into(),
                f.epsilon.into(),
                factor.into(),
                master.into(),
                gradients.into(),
                first.into(),
                second.into(),
                rounded.into(),
            ];
            all.elements((Source::Optimizer, Element::F32), "adamw", master.length, arguments);
        }
        Operation::CheckFinite { values, label, flag } => {
            let arguments = [values.length.into(), Argument::Unsigned(label), values.into(), flag.into()];
            all.elements((Source::Optimizer, element), "check_finite", values.length, arguments);
        }
        _ => unreachable!("{operation:?} is no part of the optimizer"),
    }
}
