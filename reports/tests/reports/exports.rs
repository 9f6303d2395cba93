//! Files that other tools read.

use std::collections::BTreeMap;

use ir::{Clock, Rank};
use serde_json::Value;
use trainyard_reports::{Process, Report, write_trace};

use crate::support::{Pipeline, Times, input, noise, program, timeline, unfolded};

const SHAPE: Pipeline = Pipeline { stages: 3, microbatches: 4, data: 2, tensor: true, split: true };
const TIMES: Times =
    Times { forward: 1003, backward: 2001, weight: 807, tensor: 101, message: 47, gradients: 1511, optimizer: 503 };

fn two_per_node(rank: Rank) -> Process {
    Process { id: rank.raw() / 2, name: format!("node {}", rank.raw() / 2) }
}

fn trace() -> Vec<Value> {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let measured = unfolded(&program, Clock::Measured, TIMES, &mut noise(5, 30));
    let mut out = Vec::new();
    write_trace(&program, &[&simulated, &measured], &two_per_node, &mut out).unwrap();
    let value: Value = serde_json::from_slice(&out).unwrap();
    value["traceEvents"].as_array().unwrap().clone()
}

fn of_phase<'a>(events: &'a [Value], phase: &'a str) -> impl Iterator<Item = &'a Value> {
    events.iter().filter(move |event| event["ph"] == phase)
}

#[expect(clippy::cast_possible_truncation, reason = "times of a test are small")]
fn nanoseconds(value: &Value) -> i64 {
    (value.as_f64().unwrap() * 1e3).round() as i64
}

#[test]
fn a_trace_has_every_span_and_its_events_do_not_overlap() {
    let events = trace();
    let mut by_thread: BTreeMap<(u64, u64), Vec<(i64, i64)>> = BTreeMap::new();
    for event in of_phase(&events, "X") {
        let (start, length) = (nanoseconds(&event["ts"]), nanoseconds(&event["dur"]));
        let thread = (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap());
        by_thread.entry(thread).or_default().push((start, start + length));
    }
    let program = program(SHAPE);
    let per_rank: usize = program.roles.iter().map(|role| role.instructions().len()).sum();
    assert_eq!(by_thread.values().map(Vec::len).sum::<usize>(), per_rank * (1 + 4));
    for (thread, spans) in &mut by_thread {
        spans.sort_unstable();
        assert!(spans.windows(2).all(|pair| pair[0].1 <= pair[1].0), "events of thread {thread:?} overlap");
    }
    // Each thread and each process has a name, and both clocks have their own processes.
    let named = |what: &str| of_phase(&events, "M").filter(|event| event["name"] == what).count();
    assert_eq!(named("thread_name"), by_thread.len());
    let names: Vec<&str> = of_phase(&events, "M")
        .filter(|event| event["name"] == "process_name")
        .map(|event| event["args"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names.iter().filter(|name| name.starts_with("simulated \u{b7} node")).count(), 3);
    assert_eq!(names.iter().filter(|name| name.starts_with("measured \u{b7} node")).count(), 6);
}

#[test]
fn every_message_is_an_arrow_inside_its_events() {
    let events = trace();
    let spans: Vec<(u64, u64, i64, i64)> = of_phase(&events, "X")
        .map(|event| {
            let (start, length) = (nanoseconds(&event["ts"]), nanoseconds(&event["dur"]));
            (event["pid"].as_u64().unwrap(), event["tid"].as_u64().unwrap(), start, start + length)
        })
        .collect();
    let mut arrows: BTreeMap<u64, Vec<&Value>> = BTreeMap::new();
    for event in of_phase(&events, "s").chain(of_phase(&events, "f")) {
        arrows.entry(event["id"].as_u64().unwrap()).or_default().push(event);
    }
    // Two edges, two directions, four microbatches: once folded, and for each of four ranks of a stage.
    assert_eq!(arrows.len(), 2 * 2 * 4 * (1 + 4));
    for (id, ends) in arrows {
        let [start, finish] = ends.as_slice() else { panic!("arrow {id} has {} ends", ends.len()) };
        assert_eq!((&start["ph"], &finish["ph"]), (&Value::from("s"), &Value::from("f")));
        assert!(start["ts"].as_f64() <= finish["ts"].as_f64(), "arrow {id} goes back in time");
        for end in ends {
            let (pid, tid, ts) = (end["pid"].as_u64().unwrap(), end["tid"].as_u64().unwrap(), nanoseconds(&end["ts"]));
            assert!(
                spans.iter().any(|s| s.0 == pid && s.1 == tid && s.2 <= ts && ts <= s.3),
                "arrow {id} hangs in the air"
            );
        }
    }
}

#[test]
fn a_trace_counts_memory() {
    let events = trace();
    let most = of_phase(&events, "C").map(|event| event["args"]["bytes"].as_u64().unwrap()).max();
    assert_eq!(most, Some((1600 + 300) << 20));
}

#[test]
fn spans_come_back_from_csv() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let report = Report::new(input(&program, vec![&simulated])).unwrap();
    let mut out = Vec::new();
    report.spans_csv(&mut out).unwrap();
    let mut reader = csv::Reader::from_reader(out.as_slice());
    let headings = reader.headers().unwrap().clone();
    let column = |name: &str| headings.iter().position(|heading| heading == name).unwrap();
    let (start, end, duration) = (column("start_ns"), column("end_ns"), column("duration_ns"));
    let rows: Vec<csv::StringRecord> = reader.records().collect::<Result<_, _>>().unwrap();
    assert_eq!(rows.len(), program.instructions());
    for row in &rows {
        let number = |column: usize| row[column].parse::<u64>().unwrap();
        assert_eq!(number(end) - number(start), number(duration));
    }
    assert!(rows.iter().any(|row| &row[column("class")] == "all-reduce over data"));
}

#[test]
fn numbers_come_back_from_csv_and_json() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let report = Report::new(input(&program, vec![&simulated])).unwrap();
    let mut out = Vec::new();
    report.metrics_csv(&mut out).unwrap();
    let rows: Vec<csv::StringRecord> =
        csv::Reader::from_reader(out.as_slice()).records().collect::<Result<_, _>>().unwrap();
    let whole: u64 = rows.iter().find(|r| &r[2] == "iteration_ns").unwrap()[3].parse().unwrap();
    let value: Value = serde_json::from_str(&report.json()).unwrap();
    assert_eq!(value["metrics"][0]["iteration_ns"].as_u64(), Some(whole));
    for stage in ["", "0", "1", "2"] {
        let parts = rows.iter().filter(|r| &r[1] == stage && r[2].ends_with("_ns"));
        let parts = parts.filter(|r| &r[2] != "iteration_ns" && &r[2] != "span_ns");
        assert_eq!(parts.map(|r| r[3].parse::<u64>().unwrap()).sum::<u64>(), whole, "stage {stage:?}");
    }
    assert_eq!(value["schema_version"], 1);
    assert!(value["metrics"][0]["stages"][0]["memory"]["peak_bytes"].as_u64().unwrap() > 1600 << 20);
}
