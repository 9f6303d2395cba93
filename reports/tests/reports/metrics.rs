//! Numbers against closed forms.

use ir::{Bytes, Clock, Flops, FlopsPerSecond, SimTime};
use trainyard_reports::metrics::{Metrics, memory_peak};
use trainyard_reports::{Activity, ModelRate};

use crate::support::{EXACT, Pipeline, Times, noise, program, timeline, unfolded};

const PLAIN: Pipeline = Pipeline { stages: 4, microbatches: 8, data: 1, tensor: false, split: false };
const ALL_KINDS: Times =
    Times { forward: 1003, backward: 2001, weight: 707, tensor: 97, message: 53, gradients: 1511, optimizer: 499 };

fn metrics(p: Pipeline, times: Times) -> Metrics {
    let program = program(p);
    Metrics::of(&program, &timeline(&program, Clock::Simulated, times, &mut |d| d), None, &[])
}

#[test]
fn bubble_of_1f1b_is_the_closed_form() {
    for (stages, microbatches) in [(4, 8), (2, 2), (8, 32), (4, 2), (1, 5)] {
        let m = metrics(Pipeline { stages, microbatches, ..PLAIN }, EXACT);
        let (p, n) = (f64::from(stages), f64::from(microbatches));
        let expected = (p - 1.0) / (n + p - 1.0);
        let rate = m.bubble_rate.unwrap();
        assert!(
            (rate - expected).abs() < 1e-12,
            "{stages} stages, {microbatches} microbatches: {rate}, not {expected}"
        );
        // (m + p - 1)(F + B), then the optimizer of the first stage, which ends last.
        assert_eq!(m.iteration_ns, u64::from(microbatches + stages - 1) * 3000 + 500);
    }
}

#[test]
fn parts_sum_to_the_iteration_exactly() {
    for seed in 0..40 {
        let p = Pipeline {
            stages: 1 + u32::try_from(seed % 5).unwrap(),
            microbatches: 1 + u32::try_from(seed % 7).unwrap(),
            data: 1 + u32::try_from(seed % 3).unwrap(),
            tensor: seed % 2 == 0,
            split: seed % 4 < 2,
        };
        let program = program(p);
        let timeline = unfolded(&program, Clock::Measured, ALL_KINDS, &mut noise(seed, 60));
        let m = Metrics::of(&program, &timeline, None, &[]);
        assert_eq!(m.time.total(), m.iteration_ns, "{p:?}");
        for stage in &m.stages {
            assert_eq!(stage.time.total(), m.iteration_ns, "{p:?}, stage {}", stage.stage);
            assert_eq!(stage.busy_ns + stage.exposed_communication_ns + stage.bubble_ns, m.iteration_ns, "{p:?}");
        }
        for communication in &m.communication {
            assert!(communication.exposed_ns <= communication.running_ns + 1, "{p:?}: {communication:?}");
        }
    }
}

#[test]
fn each_part_is_what_was_put_in() {
    let p = Pipeline { stages: 4, microbatches: 8, data: 2, tensor: true, split: true };
    let m = metrics(p, ALL_KINDS);
    for stage in &m.stages {
        let part = |activity| stage.time.get(activity);
        assert_eq!(part(Activity::Forward), 8 * 1003);
        assert_eq!(part(Activity::BackwardInput), 8 * 2001);
        assert_eq!(part(Activity::BackwardWeight), 8 * 707);
        assert_eq!(part(Activity::Backward), 0);
        assert_eq!(part(Activity::TensorCommunication), 16 * 97);
        assert_eq!(part(Activity::DataCommunication), 1511);
        assert_eq!(part(Activity::Optimizer), 499);
        assert_eq!(stage.ranks, 4);
    }
    // Of the first stage's 16 messages some run beside passes.
    let first = m.stages[0].time.get(Activity::PipelineCommunication);
    assert!(first > 0 && first < 16 * 53, "{first}");
}

#[test]
fn the_waits_of_one_stage_and_two() {
    // Two stages, one microbatch: F0, message, F1, B1, message, B0; nothing else happens.
    let times = Times { message: 50, ..EXACT };
    let m = metrics(Pipeline { stages: 2, microbatches: 1, ..PLAIN }, times);
    assert_eq!(m.iteration_ns, 1000 + 50 + 1000 + 2000 + 50 + 2000 + 500);
    let (first, last) = (&m.stages[0].time, &m.stages[1].time);
    assert_eq!(first.get(Activity::PipelineCommunication), 50 + 50, "its activation goes, its gradient comes");
    assert_eq!(first.get(Activity::Bubble), 3000);
    assert_eq!(last.get(Activity::PipelineCommunication), 50, "the gradient's way back is hidden by the optimizer");
    assert_eq!(last.get(Activity::Bubble), 1000 + 2050);
}

#[test]
fn rates_follow_from_the_iteration() {
    let program = program(PLAIN);
    let timeline = timeline(&program, Clock::Simulated, EXACT, &mut |d| d);
    let rate = ModelRate { flops_per_token: Flops::new(6_000), peak: FlopsPerSecond::new(4e12) };
    let m = Metrics::of(&program, &timeline, Some(rate), &[]);
    let seconds = 33_500e-9;
    assert!((m.tokens_per_second * seconds / (8.0 * 128.0) - 1.0).abs() < 1e-12);
    assert!((m.model_flops_per_second.unwrap() * seconds / (8.0 * 128.0 * 6_000.0) - 1.0).abs() < 1e-12);
    assert!((m.model_flops_utilization.unwrap() - m.model_flops_per_second.unwrap() / 4e12).abs() < 1e-12);
}

#[test]
fn memory_of_1f1b_is_as_many_microbatches_as_stages_left() {
    let program = program(PLAIN);
    let timeline = timeline(&program, Clock::Simulated, EXACT, &mut |d| d);
    let m = Metrics::of(&program, &timeline, None, &[Bytes::from_gib(2); 4]);
    for (index, stage) in m.stages.iter().enumerate() {
        let held = 4 - index as u64;
        assert_eq!(stage.memory.peak_bytes, (1600 + 100 * held) << 20, "stage {index}");
        assert_eq!(Some(stage.memory.peak_bytes), stage.memory.counted_peak_bytes);
        assert_eq!(stage.memory.capacity_bytes, Some(2 << 30));
        assert_eq!(stage.memory.parts.iter().map(|part| part.bytes).sum::<u64>(), stage.memory.peak_bytes);
        assert_eq!(stage.memory.parts[0].kind, "optimizer-state");
        // The last forward pass of the warm-up is microbatch `held - 1`.
        let expected = format!("forward of microbatch {}, chunk {index}", held - 1);
        assert!(stage.memory.moment.starts_with(&expected), "{} is not {expected}", stage.memory.moment);
    }
}

#[test]
fn memory_that_nothing_changes_is_resident() {
    let mut program = program(Pipeline { stages: 1, microbatches: 1, ..PLAIN });
    let timeline = timeline(&program, Clock::Simulated, EXACT, &mut |d| d);
    program.roles[0].buffers[3].bytes = Bytes::ZERO;
    let peak = memory_peak(&program, &timeline.lanes[0], None);
    assert_eq!((peak.peak_bytes, peak.moment.as_str()), (1600 << 20, "all through the iteration"));
}

#[test]
fn an_instruction_of_no_length_takes_and_gives_back() {
    // Buffers of passes that take no time must not be given back before they are taken.
    let p = Pipeline { split: true, ..PLAIN };
    let m = metrics(p, Times { forward: 0, backward: 0, weight: 0, optimizer: 1, ..EXACT });
    assert_eq!(m.bubble_rate, None);
    assert!(m.stages.iter().all(|stage| stage.memory.peak_bytes > 1600 << 20));
}

#[test]
fn a_timeline_may_begin_late() {
    let program = program(PLAIN);
    let early = timeline(&program, Clock::Measured, ALL_KINDS, &mut |d| d);
    let mut late = early.clone();
    for span in late.lanes.iter_mut().flat_map(|lane| &mut lane.spans) {
        let moved = |time: SimTime| SimTime::from_nanoseconds(time.nanoseconds() + 1_000_000);
        (span.issued, span.start, span.end) = (moved(span.issued), moved(span.start), moved(span.end));
    }
    let (early, late) = (Metrics::of(&program, &early, None, &[]), Metrics::of(&program, &late, None, &[]));
    assert_eq!((early.iteration_ns, early.time, early.bubble_rate), (late.iteration_ns, late.time, late.bubble_rate));
}

#[test]
fn folded_and_unfolded_runs_give_the_same_numbers() {
    let p = Pipeline { stages: 3, microbatches: 5, data: 4, tensor: true, split: true };
    let program = program(p);
    let folded = Metrics::of(&program, &timeline(&program, Clock::Simulated, ALL_KINDS, &mut |d| d), None, &[]);
    let flat = Metrics::of(&program, &unfolded(&program, Clock::Simulated, ALL_KINDS, &mut |d| d), None, &[]);
    assert_eq!(folded, flat);
}
