//! A sweep's memory does not grow with its points. Alone in its process: the figure is the whole process's.
#![cfg(target_os = "linux")]

use std::io::Write;

use trainyard_reports::sweep::{CsvSweep, SweepWriter};

#[path = "plain/support.rs"]
mod support;
use support::{point, schema};

/// Counts bytes and keeps none.
#[derive(Default)]
struct Counter(u64);

impl Write for &mut Counter {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0 += bytes.len() as u64;
        Ok(bytes.len())
    }
    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

fn resident_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find(|line| line.starts_with("VmRSS:")).unwrap();
    line.split_whitespace().nth(1).unwrap().parse().unwrap()
}

/// 300,000 points through every writer and the report: a hundred megabytes as values, of which a few may stay.
#[test]
fn memory_does_not_grow_with_points() {
    let mut counters = [Counter::default(), Counter::default()];
    let [first, second] = &mut counters;
    let mut writers: Vec<Box<dyn SweepWriter + '_>> = vec![Box::new(CsvSweep::new(schema(), first).unwrap())];
    #[cfg(feature = "parquet")]
    writers.push(Box::new(trainyard_reports::sweep::ParquetSweep::new(schema(), second).unwrap()));
    #[cfg(not(feature = "parquet"))]
    let _ = second;
    let mut report = support::sweep_report(0);
    let mut before = 0;
    for index in 0..300_000 {
        if index == 60_000 {
            before = resident_kib();
        }
        let point = point(index);
        report.push(&point);
        writers.iter_mut().for_each(|writer| writer.push(&point).unwrap());
    }
    let grown = resident_kib().saturating_sub(before);
    writers.into_iter().for_each(|writer| writer.finish().unwrap());
    assert_eq!(report.points(), 300_000);
    assert!(counters[0].0 > 10_000_000);
    assert!(grown < 16_384, "{grown} KiB more after 240,000 further points");
}
