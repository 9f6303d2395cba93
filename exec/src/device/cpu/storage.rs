//! Buffers of the CPU device, and operands of one kernel borrowed from them all at once.

use std::collections::BTreeMap;

use half::bf16;

use crate::device::{BufferId, Element, Slice};

/// The elements of a buffer.
#[derive(Debug)]
pub(super) enum Storage {
    F32(Vec<f32>),
    Bf16(Vec<bf16>),
    U32(Vec<u32>),
    F64(Vec<f64>),
}

impl Storage {
    pub(super) fn new(element: Element, length: usize) -> Self {
        // NaN, so that what is read before it was written does not go unseen.
        match element {
            Element::F32 => Self::F32(vec![f32::NAN; length]),
            Element::Bf16 => Self::Bf16(vec![bf16::NAN; length]),
            Element::U32 => Self::U32(vec![u32::MAX; length]),
            Element::F64 => Self::F64(vec![f64::NAN; length]),
        }
    }

    pub(super) fn element(&self) -> Element {
        match self {
            Self::F32(_) => Element::F32,
            Self::Bf16(_) => Element::Bf16,
            Self::U32(_) => Element::U32,
            Self::F64(_) => Element::F64,
        }
    }

    pub(super) fn length(&self) -> usize {
        match self {
            Self::F32(data) => data.len(),
            Self::Bf16(data) => data.len(),
            Self::U32(data) => data.len(),
            Self::F64(data) => data.len(),
        }
    }
}

/// The buffers of a device by number.
#[derive(Debug, Default)]
pub(super) struct Table {
    pub(super) buffers: BTreeMap<BufferId, Storage>,
    pub(super) next: u32,
}

/// Where a borrowed piece of a buffer goes.
#[derive(Debug, Clone, Copy)]
enum Role {
    Read(usize),
    Write(usize),
}

impl Table {
    pub(super) fn get(&self, slice: Slice) -> &Storage {
        let storage = self.buffers.get(&slice.buffer).unwrap_or_else(|| panic!("{slice}: no such buffer"));
        let fits = storage.element() == slice.element && slice.start + slice.length <= storage.length();
        assert!(fits, "{slice} does not lie in its buffer of {} {}", storage.length(), storage.element().name());
        storage
    }

    pub(super) fn get_mut(&mut self, slice: Slice) -> &mut Storage {
        self.get(slice);
        self.buffers.get_mut(&slice.buffer).expect("just found")
    }

    /// A copy of tokens.
    pub(super) fn tokens(&self, slice: Slice) -> Vec<u32> {
        match self.get(slice) {
            Storage::U32(data) => data[slice.start..][..slice.length].to_vec(),
            other => panic!("{slice}: tokens wanted, not {:?}", other.element()),
        }
    }

    /// A double-precision number.
    pub(super) fn f64_mut(&mut self, slice: Slice) -> &mut f64 {
        match self.get_mut(slice) {
            Storage::F64(data) => &mut data[slice.start],
            other => panic!("{slice}: a double wanted, not {:?}", other.element()),
        }
    }

    fn widened(&self, slice: Slice) -> Option<Vec<f32>> {
        match self.get(slice) {
            Storage::Bf16(data) => {
                Some(data[slice.start..][..slice.length].iter().map(|value| value.to_f32()).collect())
            }
            Storage::F32(_) => None,
            other => panic!("{slice}: real numbers wanted, not {:?}", other.element()),
        }
    }

    fn f32s(&self, slice: Slice) -> &[f32] {
        match self.get(slice) {
            Storage::F32(data) => &data[slice.start..][..slice.length],
            other => panic!("{slice}: singles wanted, not {:?}", other.element()),
        }
    }

    /// Calls `kernel` with real operands as FP32. BF16 operands are widened before and, if written, rounded after.
    ///
    /// # Panics
    /// If a written slice overlaps another operand.
    pub(super) fn with<const R: usize, const W: usize>(
        &mut self,
        reads: [Slice; R],
        writes: [Slice; W],
        kernel: impl FnOnce([&[f32]; R], [&mut [f32]; W]),
    ) {
        let wide_reads = reads.map(|slice| self.widened(slice));
        let mut wide_writes = writes.map(|slice| self.widened(slice));
        // Buffers that are written leave the table for as long as the kernel runs, so that the others can be read.
        let mut taken: BTreeMap<BufferId, Vec<f32>> = BTreeMap::new();
        for slice in writes.iter().filter(|slice| slice.element == Element::F32) {
            if let Some(Storage::F32(data)) = self.buffers.get_mut(&slice.buffer) {
                taken.entry(slice.buffer).or_insert_with(|| std::mem::take(data));
            }
        }
        let mut inputs: [Option<&[f32]>; R] = [None; R];
        let mut outputs: [Option<&mut [f32]>; W] = [const { None }; W];
        for (input, (wide, slice)) in inputs.iter_mut().zip(wide_reads.iter().zip(&reads)) {
            *input = match wide {
                Some(wide) => Some(wide),
                None if slice.length == 0 => Some(&[]),
                None if taken.contains_key(&slice.buffer) => None,
                None => Some(self.f32s(*slice)),
            };
        }
        for (output, (wide, slice)) in outputs.iter_mut().zip(wide_writes.iter_mut().zip(&writes)) {
            *output = match wide {
                Some(wide) => Some(wide),
                None if slice.length == 0 => Some(&mut []),
                None => None,
            };
        }
        for (buffer, data) in &mut taken {
            let of_reads = reads.iter().enumerate().map(|(index, slice)| (slice, Role::Read(index)));
            let of_writes = writes.iter().enumerate().map(|(index, slice)| (slice, Role::Write(index)));
            let here = of_reads.chain(of_writes).filter(|(slice, _)| slice.buffer == *buffer && slice.length > 0);
            cut(data, here.collect(), &mut inputs, &mut outputs);
        }
        kernel(
            inputs.map(|input| input.expect("every input was borrowed")),
            outputs.map(|output| output.expect("every output was borrowed")),
        );
        for (buffer, data) in taken {
            self.buffers.insert(buffer, Storage::F32(data));
        }
        for (wide, slice) in wide_writes.into_iter().zip(writes) {
            if let (Some(wide), Storage::Bf16(data)) = (wide, self.get_mut(slice)) {
                let out = &mut data[slice.start..][..slice.length];
                out.iter_mut().zip(wide).for_each(|(out, value)| *out = bf16::from_f32(value));
            }
        }
    }
}

/// Hands out pieces of a buffer: a written one to one operand, a read one to all that read exactly it.
fn cut<'a, const R: usize, const W: usize>(
    data: &'a mut [f32],
    mut pieces: Vec<(&Slice, Role)>,
    inputs: &mut [Option<&'a [f32]>; R],
    outputs: &mut [Option<&'a mut [f32]>; W],
) {
    pieces.sort_by_key(|(slice, _)| (slice.start, slice.length));
    let (mut rest, mut at) = (data, 0);
    for same in pieces.chunk_by(|(a, _), (b, _)| (a.start, a.length) == (b.start, b.length)) {
        let slice = same[0].0;
        assert!(slice.start >= at, "{slice} overlaps another operand of the same kernel");
        let (_, tail) = std::mem::take(&mut rest).split_at_mut(slice.start - at);
        let (piece, tail) = tail.split_at_mut(slice.length);
        (rest, at) = (tail, slice.start + slice.length);
        match same {
            [(_, Role::Write(index))] => outputs[*index] = Some(piece),
            readers => {
                let piece: &'a [f32] = piece;
                for (slice, role) in readers {
                    let Role::Read(index) = role else { panic!("{slice} is written and read by one kernel") };
                    inputs[*index] = Some(piece);
                }
            }
        }
    }
}
