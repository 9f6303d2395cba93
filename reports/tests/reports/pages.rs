//! Pages: self-contained, honest, small, quick.

use std::time::{Duration, Instant};

use ir::{Bytes, Clock};
use trainyard_reports::Report;

use crate::support::{EXACT, Pipeline, Times, input, noise, program, timeline, unfolded};

const SHAPE: Pipeline = Pipeline { stages: 4, microbatches: 8, data: 2, tensor: false, split: true };
const TIMES: Times = Times {
    forward: 100_300,
    backward: 200_100,
    weight: 80_700,
    tensor: 10_100,
    message: 4_700,
    gradients: 151_100,
    optimizer: 50_300,
};

/// Tags of a page, checked for balance (void and self-closed ones aside).
fn check_tags(page: &str) {
    const VOID: [&str; 2] = ["meta", "!DOCTYPE"];
    let mut open: Vec<String> = Vec::new();
    let mut rest = page;
    while let Some(start) = rest.find('<') {
        rest = &rest[start + 1..];
        let end = rest.find('>').expect("a tag that ends");
        let tag = &rest[..end];
        rest = &rest[end + 1..];
        if tag.starts_with('?') || tag.ends_with('/') {
            continue;
        }
        let name = tag.trim_start_matches('/').split_whitespace().next().unwrap_or_default().to_owned();
        if tag.starts_with('/') {
            assert_eq!(open.pop().as_deref(), Some(name.as_str()));
        } else if !VOID.contains(&name.as_str()) {
            open.push(name);
        }
    }
    assert_eq!(open, Vec::<String>::new());
}

#[test]
fn a_page_needs_nothing_else() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let measured = unfolded(&program, Clock::Measured, TIMES, &mut noise(1, 10));
    let page = Report::new(input(&program, vec![&simulated, &measured])).unwrap().html();
    check_tags(&page);
    // The only address is the name of SVG's vocabulary.
    assert_eq!(page.matches("://").count(), page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count());
    for word in ["<script", "<link", "<img", "@import", "url(", "src="] {
        assert!(!page.contains(word), "{word} in a page that should need nothing else");
    }
    for word in
        ["Simulated", "Measured", "prefers-color-scheme:dark", "prediction off by", "<title>forward of microbatch 3"]
    {
        assert!(page.contains(word), "no {word}");
    }
    assert!(!page.contains("NaN") && !page.contains("not a number") && !page.contains("inf"));
}

#[test]
fn what_people_wrote_is_text_not_markup() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let mut input = input(&program, vec![&simulated]);
    input.title = "<b>a & b".to_owned();
    input.warnings = vec!["oversubscribed <script>".to_owned()];
    input.resolved_scenario = "key = \"</pre>```\"".to_owned();
    let report = Report::new(input).unwrap();
    let page = report.html();
    check_tags(&page);
    assert!(page.contains("oversubscribed &#60;script&#62;") || page.contains("oversubscribed &lt;script&gt;"));
    assert!(page.find("role=\"alert\"").unwrap() < page.find("<svg").unwrap(), "warnings come first");
    assert!(!page.contains("Prediction against measurement"), "one machine has nothing to be held against");
    let markdown = report.markdown();
    assert!(markdown.contains("> **Warning:** oversubscribed") && markdown.contains("````toml"));
}

#[test]
fn what_does_not_fit_is_said_first() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let mut input = input(&program, vec![&simulated]);
    input.capacity = vec![Bytes::new(1950 << 20); 4];
    let report = Report::new(input).unwrap();
    assert_eq!(report.warnings.len(), 1);
    let warning = &report.warnings[0];
    assert!(warning.starts_with("Stage 0 does not fit: 50.00 MiB more than its device has"), "{warning}");
    assert!(warning.contains("forward of microbatch 3, chunk 0"), "{warning}");
    assert!(report.html().contains("50.00 MiB too much"));
}

#[test]
fn timelines_of_other_programs_are_not_compared() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let mut measured = unfolded(&program, Clock::Measured, TIMES, &mut |d| d);
    measured.program = 1;
    let report = Report::new(input(&program, vec![&simulated, &measured])).unwrap();
    assert!(report.comparison.is_none());
    assert!(report.warnings[0].starts_with("Not compared"), "{:?}", report.warnings);
    assert!(Report::new(input(&program, vec![])).is_err());
    measured.lanes[0].spans.pop();
    assert_eq!(Report::new(input(&program, vec![&measured])).unwrap_err().len(), 1);
}

#[test]
fn repetitions_show_the_median_one() {
    let program = program(SHAPE);
    let run = |factor: u64, iteration: u64| {
        let mut timeline = unfolded(&program, Clock::Measured, TIMES, &mut |d| d * factor);
        timeline.iteration = iteration;
        timeline
    };
    let runs = [run(3, 0), run(1, 1), run(2, 2)];
    let report = Report::new(input(&program, runs.iter().collect())).unwrap();
    assert_eq!(report.metrics[0].iteration, 2);
    assert!(report.html().contains("iteration 2, the median of 3"));
}

#[test]
fn a_picture_is_the_same_bytes_every_time() {
    let program = program(SHAPE);
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let report = Report::new(input(&program, vec![&simulated])).unwrap();
    let png = report.timeline_png();
    assert_eq!(&png[..8], b"\x89PNG\r\n\x1a\n");
    assert_eq!(u32::from_be_bytes(png[16..20].try_into().unwrap()), 2 * (1200 + 2 * 16));
    assert!(png.len() < 400_000, "{} bytes", png.len());
    assert_eq!(png, report.timeline_png());
    check_tags(&report.timeline_svg());
    assert_eq!(report.html(), report.html());
}

#[test]
fn a_page_of_many_instructions_stays_small_and_quick() {
    // 32 stages, 1,200 microbatches: over 150,000 instructions.
    let program = program(Pipeline { stages: 32, microbatches: 1_200, data: 1, tensor: false, split: false });
    assert!(program.instructions() >= 150_000, "{}", program.instructions());
    let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
    let measured = timeline(&program, Clock::Measured, TIMES, &mut noise(9, 20));
    let start = Instant::now();
    let page = Report::new(input(&program, vec![&simulated, &measured])).unwrap().html();
    let elapsed = start.elapsed();
    check_tags(&page);
    assert!(page.len() < 3_000_000, "{} bytes", page.len());
    // Builds without optimisation are given more room.
    let limit = if cfg!(debug_assertions) { Duration::from_secs(20) } else { Duration::from_secs(2) };
    assert!(elapsed < limit, "{elapsed:?}");
}

#[test]
fn a_page_of_as_many_titles_as_are_given_stays_small() {
    // Just under 5,000 spans on both machines together, each with its title; and just over.
    for (microbatches, titled) in [(100, true), (110, false)] {
        let program = program(Pipeline { stages: 4, microbatches, data: 1, tensor: false, split: true });
        let simulated = timeline(&program, Clock::Simulated, TIMES, &mut |d| d);
        let measured = timeline(&program, Clock::Measured, TIMES, &mut noise(2, 20));
        assert_eq!(2 * program.instructions() <= 5_000, titled, "{}", program.instructions());
        let page = Report::new(input(&program, vec![&simulated, &measured])).unwrap().html();
        assert!(page.len() < 2_000_000, "{} bytes", page.len());
        assert_eq!(page.contains("heights are shares of time"), !titled);
        assert_eq!(page.contains("<title>backward (weights) of microbatch 7, chunk 2"), titled);
    }
}

#[test]
fn many_ranks_are_shown_by_stage() {
    let program = program(Pipeline { stages: 4, microbatches: 4, data: 16, tensor: false, split: false });
    let measured = unfolded(&program, Clock::Measured, EXACT, &mut |d| d);
    let report = Report::new(input(&program, vec![&measured])).unwrap();
    assert!(report.html().contains("4 of 64 rows are shown"));
    let rows = report.tables();
    assert!(rows.iter().all(|table| table.rows.iter().all(|row| row.len() == table.columns.len())));
}
