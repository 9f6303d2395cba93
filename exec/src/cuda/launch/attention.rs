//! Launches of attention.

use super::{Argument, Launch, Launches, THREADS, grid};
use crate::cuda::source::{HEADS, Module, Source};
use crate::device::{AttentionTensors, Element, Operation, Slice};
use crate::kernels::attention::Attention;

/// `WARPS * 32` and `ROWS` of `attention.cu`.
const BLOCK_THREADS: u32 = 128;
const ROWS: usize = 64;
/// A window that holds every position, small enough to be added to one.
const NO_WINDOW: usize = 1 << 40;

/// What `attention.cu` defines for an element and a size of heads.
struct Tiling {
    element_bytes: usize,
    stride: usize,
    padding: usize,
    forward_keys: usize,
    backward_columns: usize,
}

impl Tiling {
    fn new(element: Element, head: usize) -> Self {
        let (padding, forward_keys, backward_columns) = match element {
            Element::Bf16 => (8, 64, if head > 64 { 16 } else { 32 }),
            Element::F32 | Element::F64 | Element::U32 => (4, 32, 16),
        };
        Self { element_bytes: element.bytes(), stride: head + padding, padding, forward_keys, backward_columns }
    }

    /// Shared memory for some tiles of 64 rows, twice `columns` rows, and 64 rows of `columns`.
    fn bytes(&self, tiles: usize, columns: usize) -> u32 {
        let elements = (tiles * ROWS + 2 * columns) * self.stride + ROWS * (columns + self.padding);
        u32::try_from(elements * self.element_bytes).expect("some kilobytes")
    }
}

fn shape_arguments(shape: Attention, starts: Option<Slice>) -> Vec<Argument> {
    vec![
        shape.queries.into(),
        shape.first_query.into(),
        shape.keys.into(),
        shape.first_key.into(),
        shape.query_heads.into(),
        shape.key_heads.into(),
        shape.head_dim.into(),
        shape.window.min(NO_WINDOW).into(),
        shape.softmax_scale.into(),
        starts.into(),
    ]
}

fn module_for(shape: Attention, element: Element) -> Module {
    let head = HEADS.into_iter().find(|&head| shape.head_dim <= head).expect("unsupported() refuses larger heads");
    Module { source: Source::Attention, element, head: Some(head) }
}

pub(super) fn launches(all: &mut Launches, element: Element, operation: &Operation) {
    match *operation {
        Operation::AttentionForward { shape, tensors: AttentionTensors { q, k, v, out, lse, starts } } => {
            let module = module_for(shape, element);
            let tiling = Tiling::new(element, module.head.expect("attention has a size of heads"));
            let mut arguments = shape_arguments(shape, starts);
            arguments.extend([q, k, v, out, lse].map(Argument::Slice));
            all.push(Launch {
                module,
                kernel: "attention_forward",
                grid: grid(shape.queries.div_ceil(ROWS) * shape.query_heads * shape.sequences),
                threads: BLOCK_THREADS,
                shared_bytes: tiling.bytes(1, tiling.forward_keys),
                arguments,
            });
        }
        Operation::AttentionBackward { .. } => backward(all, element, operation),
        Operation::AttentionMerge { out, lse, part_out, part_lse } => {
            let module = Module { source: Source::Attention, element: part_out.element, head: Some(HEADS[0]) };
            let rows = lse.length;
            let dim = out.length.checked_div(rows).unwrap_or(0);
            let pieces = [out, lse, part_out, part_lse].map(Argument::Slice);
            warps(all, module, "attention_merge", rows, [rows.into(), dim.into()].into_iter().chain(pieces).collect());
        }
        _ => unreachable!("{operation:?} is no attention"),
    }
}

fn backward(all: &mut Launches, element: Element, operation: &Operation) {
    let Operation::AttentionBackward { shape, tensors, d_out, delta, add, dq, dk, dv } = *operation else {
        unreachable!("{operation:?} is no backward pass of attention")
    };
    let AttentionTensors { q, k, v, out, lse, starts } = tensors;
    let module = module_for(shape, element);
    let tiling = Tiling::new(element, module.head.expect("attention has a size of heads"));
    let rows = lse.length;
    let arguments = vec![rows.into(), shape.head_dim.into(), out.into(), d_out.into(), delta.into()];
    warps(all, module, "attention_delta", rows, arguments);
    let shared_bytes = tiling.bytes(2, tiling.backward_columns);
    let common = || {
        let mut arguments = shape_arguments(shape, starts);
        arguments.push(add.into());
        arguments.extend([q, k, v, lse, delta, d_out].map(Argument::Slice));
        arguments
    };
    let mut push = |kernel, blocks, outputs: &[crate::device::Slice]| {
        let mut arguments = common();
        arguments.extend(outputs.iter().copied().map(Argument::Slice));
        all.push(Launch { module, kernel, grid: grid(blocks), threads: BLOCK_THREADS, shared_bytes, arguments });
    };
    let blocks = |length: usize, heads: usize| length.div_ceil(ROWS) * heads * shape.sequences;
    push("attention_backward_queries", blocks(shape.queries, shape.query_heads), &[dq]);
    push("attention_backward_keys", blocks(shape.keys, shape.key_heads), &[dk, dv]);
}

/// A warp per row.
fn warps(all: &mut Launches, module: Module, kernel: &'static str, rows: usize, arguments: Vec<Argument>) {
    let grid = grid((rows * 32).div_ceil(THREADS as usize));
    all.push(Launch { module, kernel, grid, threads: THREADS, shared_bytes: 0, arguments });
}
