//! Joins of two timelines with known differences.

use ir::{Axis, Clock, Timeline};
use trainyard_reports::InstructionClass;
use trainyard_reports::compare::compare;

use crate::support::{EXACT, Pipeline, Times, noise, program, timeline, unfolded};

const SHAPE: Pipeline = Pipeline { stages: 3, microbatches: 6, data: 2, tensor: true, split: true };
const TIMES: Times =
    Times { forward: 1000, backward: 2000, weight: 800, tensor: 100, message: 40, gradients: 1500, optimizer: 500 };

fn close(a: f64, b: f64) {
    assert!((a - b).abs() < 1e-9, "{a} is not {b}");
}

#[test]
fn a_folded_prediction_joins_every_rank() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    // Everything takes a quarter longer than predicted, so each prediction is 20 % short.
    let measured = unfolded(&program, Clock::Measured, TIMES, &mut |d| d * 5 / 4);
    let c = compare(&program, &predicted, &[&measured]).unwrap();
    close(c.iteration.relative_error, -0.2);
    let instructions: usize = program.roles.iter().map(|r| r.instructions().len() * r.ranks.len() as usize).sum();
    assert_eq!(c.all.count, instructions as u64);
    assert_eq!(c.classes.iter().map(|class| class.count).sum::<u64>(), c.all.count);
    for class in c.classes.iter().chain([&c.all]) {
        close(class.ratio, 0.8);
        close(class.median_relative_error, 0.2);
        close(class.p90_relative_error, 0.2);
        close(class.bias, -0.2);
    }
    let names: Vec<String> = c.classes.iter().filter_map(|class| Some(class.class?.to_string())).collect();
    assert!(names.contains(&"all-reduce over tensor".to_owned()), "{names:?}");
    assert!(names.contains(&"backward-weight".to_owned()) && names.contains(&"send".to_owned()), "{names:?}");
    assert_eq!(c.stages.len(), 3);
    for stage in &c.stages {
        close(stage.busy.relative_error, -0.2);
        close(stage.exposed_communication.relative_error, -0.2);
        // Times differ, what is held does not.
        assert!(stage.memory.measured_bytes > 0, "{stage:?}");
        close(stage.memory.relative_error, 0.0);
    }
    assert!(c.exposed_communication.measured_ns > 0, "{:?}", c.exposed_communication);
    close(c.exposed_communication.relative_error, -0.2);
    assert_eq!(c.worst.len(), 10);
    assert_eq!(c.worst[0].duration.measured_ns - c.worst[0].duration.predicted_ns, 500);
}

#[test]
fn equal_timelines_have_no_error() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let c = compare(&program, &predicted, &[&predicted]).unwrap();
    assert!(c.worst.is_empty());
    close(c.all.p90_relative_error, 0.0);
    close(c.iteration.relative_error, 0.0);
}

#[test]
fn several_iterations_give_each_instruction_its_median() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let slow = unfolded(&program, Clock::Measured, TIMES, &mut |d| d * 10);
    let runs: Vec<Timeline> = vec![
        slow,
        unfolded(&program, Clock::Measured, TIMES, &mut |d| d),
        unfolded(&program, Clock::Measured, TIMES, &mut |d| d),
    ];
    let c = compare(&program, &predicted, &runs.iter().collect::<Vec<_>>()).unwrap();
    assert_eq!(c.measured_iterations, 3);
    close(c.all.p90_relative_error, 0.0);
    close(c.iteration.relative_error, 0.0);
}

#[test]
fn an_error_shows_in_its_class_alone() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let measured = unfolded(&program, Clock::Measured, Times { tensor: 200, ..TIMES }, &mut |d| d);
    let c = compare(&program, &predicted, &[&measured]).unwrap();
    for class in &c.classes {
        let tensor = matches!(class.class, Some(InstructionClass::Collective(_, Axis::Tensor)));
        close(class.bias, if tensor { -0.5 } else { 0.0 });
    }
    assert!(c.worst.iter().all(|error| error.what.starts_with("all-reduce over 2 tensor ranks")), "{:?}", c.worst[0]);
}

#[test]
fn noise_is_neither_lost_nor_made() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let mut vary = noise(3, 20);
    let runs: Vec<Timeline> = (0..5).map(|_| unfolded(&program, Clock::Measured, TIMES, &mut vary)).collect();
    let c = compare(&program, &predicted, &runs.iter().collect::<Vec<_>>()).unwrap();
    // Measured is predicted times 1.00 to 1.20, its median near 1.10.
    assert!((0.06..0.12).contains(&c.all.median_relative_error), "{}", c.all.median_relative_error);
    assert!(c.all.bias < 0.0 && c.all.p90_relative_error < 0.17);
}

#[test]
fn what_cannot_be_joined_is_refused_with_all_reasons() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    assert_eq!(compare(&program, &predicted, &[]).unwrap_err().len(), 1);
    let mut other = predicted.clone();
    other.program = 8;
    other.lanes.pop();
    let problems = compare(&program, &predicted, &[&predicted, &other]).unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    let mut short = predicted.clone();
    short.lanes[1].spans.pop();
    let problems = compare(&program, &short, &[&predicted]).unwrap_err();
    assert!(problems[0].message.contains("spans"), "{problems:?}");
    let mut backwards = predicted.clone();
    backwards.lanes[0].spans[2].end = ir::SimTime::ZERO;
    let problems = compare(&program, &predicted, &[&backwards]).unwrap_err();
    assert!(problems[0].message.contains("ends before it starts"), "{problems:?}");
    let mut unknown = timeline(&program, Clock::Simulated, EXACT, &mut |d| d);
    unknown.lanes.remove(0);
    let problems = compare(&program, &unknown, &[&predicted]).unwrap_err();
    assert!(problems[0].message.contains("not predicted"), "{problems:?}");
}

#[test]
fn keys_of_json_name_their_units() {
    let program = program(SHAPE);
    let predicted = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let value = serde_json::to_value(compare(&program, &predicted, &[&predicted]).unwrap()).unwrap();
    assert_eq!(value["iteration"]["predicted_ns"], value["iteration"]["measured_ns"]);
    assert_eq!(value["classes"][0]["class"], "forward");
    assert_eq!(value["measured_clock"], "simulated");
}
