//! Text of many documents, and text that comes late.

use std::sync::Arc;

use ir::{Backend, Positions, SimDuration, ZeroStage};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;
use rand_chacha::rand_core::SeedableRng;

use super::domain;
use super::training::{assert_close, model, train, workload};
use crate::data::{DataPosition, Packing, Text, TextBuilder, generate};
use crate::device::{CpuDevices, Devices};
use crate::runtime::{CpuBackend, CpuOptions};
use crate::state::tests::programs::{Division, program};

/// Documents of these lengths.
pub(crate) fn text(lengths: &[usize], packing: Packing) -> Text {
    let (bytes, mut builder, mut from) = (generate(5, 60_000), TextBuilder::new(256), 0);
    for length in lengths {
        let document: Vec<u32> = bytes[from..from + length].iter().copied().map(u32::from).collect();
        builder.push(&document);
        from += length;
    }
    builder.finish(packing)
}

fn losses(text: &Text, division: &Division, positions: Positions, devices: Option<Arc<dyn Devices>>) -> Vec<f64> {
    let mut model = model();
    model.positions = positions;
    let program = program(&model, &workload(), division);
    let ranks = vec![1.0; program.world() as usize];
    let options = CpuOptions { devices, ..CpuOptions::default() };
    train(&mut CpuBackend::new(domain(&ranks), text.clone(), options), program, 0..5)
}

/// Documents of unequal lengths, with padding: a replica has fewer tokens than another, and the mean is over all of them.
#[test]
fn packed_documents_train_the_same_however_divided() {
    let mut random = ChaCha8Rng::seed_from_u64(8);
    let lengths: Vec<usize> = (0..300).map(|_| random.random_range(1..50)).collect();
    let text = text(&lengths, Packing::Documents);
    for positions in [Positions::Rope { theta: 1e4 }, Positions::Learned { maximum: 32 }] {
        let one = losses(&text, &Division::ONE, positions, None);
        let devices = || Some(Arc::new(CpuDevices) as Arc<dyn Devices>);
        assert_close(&losses(&text, &Division::ONE, positions, devices()), &one, "on a device");
        let base = Division { microbatches: 2, ..Division::ONE };
        for division in [
            Division { data: 2, zero: ZeroStage::Zero1, ..base },
            Division { tensor: 2, sequence_parallel: true, ..base },
            Division { positions: 2, microbatches: 4, split: true, ..base },
        ] {
            for devices in [None, devices()] {
                let what = format!("{division:?}, {devices:?}");
                assert_close(&losses(&text, &division, positions, devices), &one, &what);
            }
        }
    }
}

/// Two documents in each sequence, or each in a sequence of its own: attention and positions are those of the document.
#[test]
fn documents_packed_together_are_trained_on_as_if_alone() {
    let text = text(&[17; 16], Packing::Documents);
    for positions in [Positions::Rope { theta: 1e4 }, Positions::Learned { maximum: 32 }] {
        let mut model = model();
        model.positions = positions;
        let of = |sequence_length, global_batch| {
            let mut work = workload();
            (work.sequence_length, work.global_batch) = (sequence_length, global_batch);
            let program = program(&model, &work, &Division::ONE);
            train(&mut CpuBackend::new(domain(&[1.0]), text.clone(), CpuOptions::default()), program, 0..4)
        };
        // One epoch each: the same documents in every iteration.
        assert_close(&of(32, 8), &of(16, 16), "packed and alone");
    }
}

#[test]
fn a_run_goes_on_with_the_next_sample() {
    let division = Division { microbatches: 2, ..Division::ONE };
    let program = program(&model(), &workload(), &division);
    let new = || CpuBackend::new(domain(&[1.0]), generate(1, 30_000), CpuOptions::default());
    let mut first = new();
    // The weights are those of the beginning in both: only the samples are those of the third iteration.
    let expect = train(&mut first, Arc::clone(&program), 3..4);
    let position = first.data_position(3).unwrap();
    assert_eq!((position.epoch, position.next), (0, 24));
    let mut second = new().from_position(0, position);
    assert_eq!(train(&mut second, Arc::clone(&program), 0..1), expect);
    assert_eq!(second.data_position(1).unwrap(), DataPosition { next: 32, ..position });
    // Another text has other samples.
    let mut other = CpuBackend::new(domain(&[1.0]), generate(2, 30_000), CpuOptions::default());
    assert!(other.unsupported(&program).is_empty());
    other = other.from_position(0, position);
    let reasons = other.unsupported(&program);
    assert!(reasons.len() == 1 && reasons[0].message.contains("the run went on with data"), "{reasons:?}");
}

#[test]
fn slow_input_is_a_stall_on_the_timeline() {
    let mut work = workload();
    // 8 sequences of 32 tokens in 80 ms.
    work.recipe.input_tokens_per_second = Some(3200.0);
    let slow = program(&model(), &work, &Division { microbatches: 2, ..Division::ONE });
    let expect = slow.layout.input_time(&work).unwrap();
    assert_eq!(expect, SimDuration::from_seconds(0.08).unwrap());
    let mut backend = CpuBackend::new(domain(&[1.0]), generate(1, 30_000), CpuOptions::default());
    backend.load(Arc::clone(&slow)).unwrap();
    let timelines: Vec<_> = (0..4).map(|iteration| backend.iterate(iteration).unwrap().timeline).collect();
    for timeline in &timelines {
        assert!(timeline.faults(&slow, SimDuration::ZERO).is_empty());
        assert!(timeline.input_wait > SimDuration::ZERO);
    }
    // The source sets the pace, whatever part of it the ranks worked.
    let whole: f64 = timelines.iter().map(|timeline| timeline.end().nanoseconds() as f64 * 1e-9).sum();
    // Between iterations, which is no part of them, the source works on.
    assert!(whole > 0.25, "{whole} s for four iterations of 0.08 s");
    let quick = program(&model(), &workload(), &Division { microbatches: 2, ..Division::ONE });
    backend.load(Arc::clone(&quick)).unwrap();
    let waits = (4..8).map(|iteration| backend.iterate(iteration).unwrap().timeline.input_wait.seconds());
    let least = waits.fold(f64::INFINITY, f64::min);
    assert!(least < 0.02, "{least} s for input that is there");
}
