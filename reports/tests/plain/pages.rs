//! Pages: self-contained, well-formed, escaped, nothing outside the picture, the same in HTML, Markdown and pictures.

use trainyard_reports::Document;
use trainyard_reports::document::Block;
use trainyard_reports::pareto::ParetoFront;
use trainyard_reports::scoreboard::{ScoreKind, ScoreRow, ScoreSet, Scoreboard};
use trainyard_reports::sweep::{
    Cell, ColumnKind, HeatMapChoice, Objective, Outcome, ScalingChoice, SweepColumn, SweepPoint, SweepReport,
    SweepSchema,
};
use trainyard_reports::unit::Unit;
use trainyard_reports::waterfall::Cause;

use crate::support::{candidates, diff, front, milliseconds, scoreboard, sizing, sweep_report, waterfall};

fn documents() -> Vec<(&'static str, Document)> {
    vec![
        ("scoreboard", scoreboard().document()),
        ("waterfall", waterfall().document()),
        ("sweep", sweep_report(2_000).document()),
        ("diff", diff().document()),
        ("candidates", candidates().document()),
        ("sizing", sizing().document()),
        ("front", front().document()),
    ]
}

fn number(node: roxmltree::Node<'_, '_>, name: &str) -> Option<f64> {
    node.attribute(name)?.parse().ok()
}

/// Marks that begin or end outside the picture.
fn outside(svg: &str) -> Vec<String> {
    let document = roxmltree::Document::parse(svg).expect("well-formed XML");
    let root = document.root_element();
    let view: Vec<f64> = root.attribute("viewBox").unwrap().split(' ').map(|part| part.parse().unwrap()).collect();
    let (width, height) = (view[2], view[3]);
    let mut found = Vec::new();
    let mut check = |what: &str, x: f64, y: f64| {
        if !(-0.5..=width + 0.5).contains(&x) || !(-0.5..=height + 0.5).contains(&y) {
            found.push(format!("{what} at {x}, {y} of {width} x {height}"));
        }
    };
    for node in root.descendants().filter(roxmltree::Node::is_element) {
        match node.tag_name().name() {
            "rect" => {
                let (x, y) = (number(node, "x").unwrap(), number(node, "y").unwrap());
                check("box", x, y);
                check("box", x + number(node, "width").unwrap(), y + number(node, "height").unwrap());
            }
            "line" => {
                check("line", number(node, "x1").unwrap(), number(node, "y1").unwrap());
                check("line", number(node, "x2").unwrap(), number(node, "y2").unwrap());
            }
            "text" => {
                let (x, y, size) =
                    (number(node, "x").unwrap(), number(node, "y").unwrap(), number(node, "font-size").unwrap());
                let words = node.text().unwrap_or_default();
                let long = words.chars().count() as f64 * size * 0.6;
                let (from, to) = match node.attribute("text-anchor") {
                    None => (x, x + long),
                    Some("middle") => (x - long / 2.0, x + long / 2.0),
                    Some(_) => (x - long, x),
                };
                check(words, from, y - size * 0.8);
                check(words, to, y + size * 0.2);
            }
            "polyline" | "polygon" => {
                for point in node.attribute("points").unwrap().split(' ') {
                    let (x, y) = point.split_once(',').unwrap();
                    check("corner", x.parse().unwrap(), y.parse().unwrap());
                }
            }
            _ => {}
        }
    }
    found
}

#[test]
fn pictures_are_well_formed_and_keep_to_their_frame() {
    for (name, document) in documents() {
        let pictures = document.pictures();
        assert!(!pictures.is_empty(), "{name} has no picture");
        for (file, svg) in &pictures {
            assert_eq!(outside(svg), Vec::<String>::new(), "{name}: {file}");
            assert!(!svg.contains("NaN") && !svg.contains("inf"), "{name}: {file}");
        }
        let mut files: Vec<&String> = pictures.iter().map(|(file, _)| file).collect();
        files.sort_unstable();
        files.dedup();
        assert_eq!(files.len(), pictures.len(), "{name}: two pictures in one file");
    }
}

#[test]
fn pages_need_nothing_else_and_markdown_names_each_picture() {
    for (name, document) in documents() {
        let page = document.html();
        assert_eq!(page.matches("://").count(), page.matches("xmlns=\"http://www.w3.org/2000/svg\"").count(), "{name}");
        for word in ["<script", "<link", "<img", "@import", "url(", "src=", "NaN", "not a number"] {
            assert!(!page.contains(word), "{name}: {word}");
        }
        assert_eq!(page.matches("<svg").count(), document.pictures().len(), "{name}");
        let markdown = document.markdown();
        for (file, _) in document.pictures() {
            assert!(markdown.contains(&format!("]({file})")), "{name}: {file}");
        }
        for table in document.tables() {
            assert!(table.rows.iter().all(|row| row.len() == table.columns.len()), "{name}: {}", table.title);
        }
    }
}

#[test]
fn pages_are_small() {
    for (name, document) in documents() {
        let length = document.html().len();
        assert!(length < 900_000, "{name} takes {length} bytes");
    }
}

#[test]
fn what_people_wrote_is_text_not_markup() {
    let mut diff = diff();
    diff.title = "<b>a & b".to_owned();
    diff.measures[0].causes[1].cause = "</svg><script>".to_owned();
    diff.changes[0].after = "a | b\nc".to_owned();
    let document = diff.document();
    assert!(!document.html().contains("<script") && !document.html().contains("<b>a"));
    assert!(document.markdown().contains("a \\| b c"));
    for (_, svg) in document.pictures() {
        assert_eq!(outside(&svg), Vec::<String>::new());
    }
}

#[test]
fn a_scoreboard_says_what_is_missed_and_why() {
    let document = scoreboard().document();
    let markdown = document.markdown();
    assert!(markdown.contains("targets met: **2 of 4**"), "{}", &markdown[..600]);
    let missed = markdown.split("## Missed").nth(1).unwrap().split("\n## ").next().unwrap();
    assert!(missed.contains("30B on 256 devices") && missed.contains("a fixed time per local parameter"));
    assert!(missed.contains("out of memory told right, aleph") && missed.contains("not known"));
    // The peer is 21 % off on each of the 60 rows of which 58 are ours too (two were refused).
    let peers = markdown.split("## Beside other simulators").nth(1).unwrap();
    assert!(peers.contains("| 60 | 21.0 % / 21.0 % |") && peers.contains("(58 rows)"), "{}", &peers[..900]);
    let json: serde_json::Value = serde_json::from_str(&scoreboard().json()).unwrap();
    assert_eq!(json["targets"][1]["met"], false);
    assert_eq!(json["scores"][2]["score"], "cold");
    let table = &json["scores"][0]["tables"][0];
    for key in [
        "file",
        "rows",
        "predicted",
        "refused",
        "median_ape",
        "mean_ape",
        "p90_ape",
        "max_ape",
        "bias",
        "kendall_tau",
        "interval_coverage",
        "baseline_mean_ape",
        "memory_mean_ape",
        "oom_accuracy",
    ] {
        assert!(table.get(key).is_some(), "no {key}");
    }
    let row = &json["scores"][0]["rows"][0];
    for key in [
        "row_id",
        "measured_s",
        "predicted_s",
        "low_s",
        "high_s",
        "ape",
        "measured_gb",
        "predicted_gb",
        "fits",
        "refused",
    ] {
        assert!(row.get(key).is_some(), "no {key}");
    }
}

#[test]
fn odd_scoreboards_have_a_page() {
    let row = |measured: f64, predicted: f64| ScoreRow {
        row_id: "r".to_owned(),
        file: "t.csv".to_owned(),
        measured_s: Some(measured),
        predicted_s: Some(predicted),
        low_s: Some(predicted),
        high_s: Some(predicted),
        ..ScoreRow::default()
    };
    // Nothing; nothing predicted; one row; exact rows; a row that is far off; a prediction of nothing.
    let all = [
        vec![],
        vec![ScoreRow { refused: Some("LoRA".to_owned()), predicted_s: None, ..row(1.0, 1.0) }],
        vec![row(1.0, 1.0)],
        vec![row(2.0, 2.0); 12],
        vec![row(1e-3, 1e3); 12],
        vec![row(1.0, 0.0); 12],
    ];
    for rows in all {
        let scores = vec![ScoreSet::of(ScoreKind::Cold, rows)];
        let document = Scoreboard { title: "odd".to_owned(), scores, ..Scoreboard::default() }.document();
        assert!(!document.html().contains("NaN"));
        for (file, svg) in document.pictures() {
            assert_eq!(outside(&svg), Vec::<String>::new(), "{file}");
        }
    }
}

/// As many tables, options, curves and cells as pictures take, of long names: nothing leaves the frame.
#[test]
fn crowded_pictures_keep_to_their_frame() {
    let name = |index: usize| format!("a_table_with_a_rather_long_name_of_its_own_{index:02}.csv");
    let row = |index: usize| ScoreRow {
        row_id: format!("r{index}"),
        file: name(index % 30),
        measured_s: Some(1.0 + index as f64),
        predicted_s: Some((1.0 + index as f64) * if index.is_multiple_of(3) { 3.0 } else { 1.02 }),
        low_s: Some(0.5 + index as f64),
        high_s: Some(2.0 + index as f64),
        ..ScoreRow::default()
    };
    let rows: Vec<ScoreRow> = (0..600).map(row).collect();
    let scores = ScoreKind::ALL.map(|kind| ScoreSet::of(kind, rows.clone())).to_vec();
    let board = Scoreboard { title: "crowded".to_owned(), scores, ..Scoreboard::default() }.document();
    assert!(board.markdown().contains("The 24 tables of most rows, of 30."));

    let mut sizing = sizing();
    let kinds: Vec<_> = (0..9).flat_map(|_| sizing.options.clone()).collect();
    sizing.options = kinds;
    for (index, option) in sizing.options.iter_mut().enumerate() {
        option.device = format!("kind {} of a long name, 80 GB, air cooled", index % 9);
        option.devices = 8 << (index % 17);
    }
    let mut diff = diff();
    let cause = diff.measures[0].causes[1].clone();
    diff.measures[0].causes = vec![cause; 40];
    for (index, cause) in diff.measures[0].causes.iter_mut().enumerate() {
        cause.cause = format!("a cause whose name goes on and on until it is cut, number {index}");
        cause.after = Some(if index.is_multiple_of(2) { 1e4 } else { -1e4 });
    }
    let mut waterfall = waterfall();
    waterfall.parts.iter_mut().for_each(|part| part.step_without = Some(milliseconds(0.0)));
    let documents = [board, sizing.document(), diff.document(), waterfall.document(), crowded_sweep(40)];
    for (file, svg) in documents.iter().flat_map(Document::pictures) {
        assert_eq!(outside(&svg), Vec::<String>::new(), "{file}");
    }
    // One value more, and the picture is left out with its reason.
    let words = crowded_sweep(41).markdown();
    assert!(words.contains("more than 40 values") && !words.contains("heat-map-1.svg"));
}

/// A sweep over two keys of many values, with ten curves.
fn crowded_sweep(values: i64) -> Document {
    let key = |name: &str, kind| SweepColumn::new(name, kind, Unit::Plain);
    let keys = vec![
        key("a rather long name of a key", ColumnKind::Text),
        SweepColumn::new("devices", ColumnKind::Integer, Unit::Count),
    ];
    let results = vec![SweepColumn::new("memory", ColumnKind::Number, Unit::Bytes)];
    let schema = SweepSchema::new(keys, results).unwrap();
    let name = "a rather long name of a key".to_owned();
    let objective = Objective { result: "memory".to_owned(), lowest: false };
    let map = HeatMapChoice { x: name.clone(), y: "devices".to_owned() };
    let (x, result) = ("devices".to_owned(), "memory".to_owned());
    let curves = ScalingChoice { x, result, lowest: false, series: Some(name) };
    let mut report = SweepReport::new(schema, &objective, &[map], &[curves]).unwrap();
    for index in 0..values * values {
        let (x, y) = (index / values, index % values);
        let keys = vec![Cell::Text(format!("value {x} of a long name")), Cell::Integer(1 + y * y * y)];
        let outcome = Outcome::Done(vec![Cell::Number(1e9 * (1.0 + (x * y) as f64))]);
        report.push(&SweepPoint { index: index.unsigned_abs(), keys, outcome });
    }
    report.document()
}

#[test]
fn a_waterfall_sums_up_or_says_why_not() {
    let mut waterfall = waterfall();
    assert_eq!(waterfall.check(), Ok(()));
    let document = waterfall.document();
    let table = document.tables()[0];
    assert_eq!(table.rows[0][0], "compute", "parts stand in the causes' order");
    assert_eq!(
        table.rows[1],
        ["recomputation", "3.350 s", "18.6 %", "3.600 s", "20.0 %", "selective recomputation, 6.1 GiB more"]
    );
    assert!(document.figures[1].name.contains("recomputation"));
    waterfall.parts[0].time = milliseconds(1.0);
    waterfall.parts.push(waterfall.parts[0].clone());
    let problems = waterfall.check().unwrap_err();
    assert_eq!(problems.len(), 2, "{problems:?}");
    assert_eq!(Cause::ALL.len(), 13);
}

#[test]
fn differences_stand_by_size() {
    let diff = diff();
    let table = diff.measures[0].table();
    let names: Vec<&str> = table.rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, ["exposed tensor communication", "bubble", "exposed data communication", "optimizer", "whole"]);
    assert_eq!(table.rows[0][3..5], ["\u{2212}470.0 ms", "63.5 %"]);
    assert_eq!(table.rows[4][3], "\u{2212}300.0 ms");
    let mut same = diff.clone();
    same.changes.clear();
    same.measures.iter_mut().for_each(|measure| {
        measure.after = measure.before;
        measure.causes.iter_mut().for_each(|cause| cause.after = cause.before);
    });
    assert!(same.is_empty() && !diff.is_empty());
    assert!(same.document().markdown().contains("equal in everything"));
}

#[test]
fn candidates_say_how_far_behind_they_are() {
    let table = candidates().table();
    assert_eq!(table.rows[1][2..4], ["18.43 s", "+2.4 %"]);
    assert_eq!(table.rows.last().unwrap()[2], "cannot be");
    let mut csv = Vec::new();
    candidates().csv(&mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    assert!(text.lines().nth(3).unwrap().ends_with("Bubble 6.1 points more. Longer messages."), "{text}");
}

#[test]
fn a_front_has_a_row_for_each_plan_and_a_panel_for_each_pair() {
    let front = front();
    let table = front.table();
    assert_eq!((table.rows.len(), table.columns.len()), (30, 8));
    assert_eq!(table.rows[0].last().unwrap(), "least iteration, least energy per token, least peak memory");
    assert_eq!(table.rows[4].last().unwrap(), "chosen");
    assert!(table.rows[29].last().unwrap().starts_with("least money"), "{:?}", table.rows[29]);
    let mut csv = Vec::new();
    front.csv(&mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    let head = "plan,devices,iteration_s,usd_per_million_tokens,joules_per_token,peak_memory_bytes,chosen";
    assert_eq!((text.lines().next(), text.lines().count()), (Some(head), 31));
    // Thirty dots in each of three panels, one of them larger.
    let svg = front.picture().unwrap().svg();
    assert_eq!(svg.matches("stroke-linecap=\"round\"").count(), 90);
    assert_eq!(svg.matches("stroke-width=\"10\"").count(), 3);
    let none = ParetoFront { points: Vec::new(), ..front };
    assert!(none.picture().is_none() && none.document().html().contains("plans on the front"));
}

#[test]
fn sizing_prints_what_went_in_and_what_does_not_fit() {
    let document = sizing().document();
    let markdown = document.markdown();
    assert!(markdown.contains("price of H100") && markdown.contains("does not fit") && markdown.contains("chosen"));
    assert!(markdown.contains("21.3 GiB of 16 GiB"));
    let mut csv = Vec::new();
    sizing().csv(&mut csv).unwrap();
    let text = String::from_utf8(csv).unwrap();
    assert_eq!(text.lines().count(), 17);
    assert!(text.lines().all(|line| line.matches(',').count() >= 22));
}

#[test]
fn a_sweep_page_has_its_pictures_and_reasons() {
    let document = sweep_report(2_000).document();
    let pictures: Vec<String> = document.pictures().into_iter().map(|(file, _)| file).collect();
    assert_eq!(pictures, ["heat-map-1.svg", "heat-map-2.svg", "scaling-1.svg", "scaling-2.svg"]);
    let markdown = document.markdown();
    assert!(markdown.contains("does not fit: 112.4 GiB"));
    let best = document.tables()[0];
    assert_eq!(best.rows.len(), 20);
    // 2,000 points are each of 400 combinations five times: the best five share one value, first by number.
    assert!(best.rows[0][1] == "H100" && best.rows[0][2] == "1,024", "{:?}", best.rows[0]);
    assert!(document.sections.iter().flat_map(|section| &section.blocks).any(|b| matches!(b, Block::Picture(_))));
}
