//! Files: CSV that goes on after a stop, Parquet, JUnit.

use trainyard_reports::sweep::{
    Cell, ColumnKind, CsvSweep, CsvSweepReader, Outcome, SweepColumn, SweepPoint, SweepSchema, SweepWriter,
};
use trainyard_reports::unit::Unit;

use crate::support::{junit, point, schema};

fn csv(points: std::ops::Range<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = Box::new(CsvSweep::new(schema(), &mut bytes).unwrap());
    points.for_each(|index| writer.push(&point(index)).unwrap());
    writer.finish().unwrap();
    bytes
}

/// What reads back of a point: line ends in text are spaces.
fn read_back(mut point: SweepPoint) -> SweepPoint {
    if let Outcome::Infeasible(reason) = &mut point.outcome {
        *reason = reason.replace('\n', " ");
    }
    point
}

#[test]
fn csv_reads_back() {
    let bytes = csv(0..1_000);
    let text = String::from_utf8(bytes.clone()).unwrap();
    assert_eq!(text.lines().count(), 1_001, "one line for each point");
    assert!(text.starts_with("point,cluster.device,devices,plan.tensor,plan.pipeline,plan.recompute,step_s,"));
    let mut reader = CsvSweepReader::new(schema(), bytes.as_slice()).unwrap();
    let points: Vec<SweepPoint> = reader.by_ref().map(Result::unwrap).collect();
    assert_eq!(reader.whole_bytes(), bytes.len() as u64);
    assert_eq!(points, (0..1_000).map(|index| read_back(point(index))).collect::<Vec<_>>());
}

#[test]
fn a_file_cut_anywhere_goes_on_to_the_same_bytes() {
    let whole = csv(0..12);
    let heading = whole.iter().position(|byte| *byte == b'\n').unwrap() + 1;
    for cut in heading..whole.len() {
        let mut file = whole[..cut].to_vec();
        let mut reader = CsvSweepReader::new(schema(), file.as_slice()).unwrap();
        let done = reader.by_ref().map(Result::unwrap).count() as u64;
        let keep = usize::try_from(reader.whole_bytes()).unwrap();
        file.truncate(keep);
        let mut writer = Box::new(CsvSweep::append(schema(), &mut file));
        (done..12).for_each(|index| writer.push(&point(index)).unwrap());
        writer.finish().unwrap();
        assert_eq!(file, whole, "cut at byte {cut}");
    }
}

#[test]
fn another_sweeps_file_is_refused_with_its_line() {
    let other = SweepSchema::new(vec![SweepColumn::new("x", ColumnKind::Number, Unit::Plain)], vec![]).unwrap();
    let error = CsvSweepReader::new(other.clone(), csv(0..1).as_slice()).unwrap_err();
    assert!(error.to_string().contains("point,x,status,reason"), "{error}");
    let text = "point,x,status,reason\n0,1.5,ok,\n1,fast,ok,\n";
    let results: Vec<_> = CsvSweepReader::new(other, text.as_bytes()).unwrap().collect();
    assert_eq!(results[0].as_ref().unwrap().keys, [Cell::Number(1.5)]);
    let error = results[1].as_ref().unwrap_err().to_string();
    assert!(error.contains("line 3") && error.contains("fast in x"), "{error}");
}

#[test]
fn columns_that_clash_are_refused_all_at_once() {
    let column = |name: &str| SweepColumn::new(name, ColumnKind::Text, Unit::Plain);
    let problems = SweepSchema::new(vec![column("a"), column("status")], vec![column("a"), column("")]).unwrap_err();
    assert_eq!(problems.len(), 3, "{problems:?}");
}

#[cfg(feature = "parquet")]
#[test]
fn parquet_reads_back() {
    use std::io::Write;

    use parquet::file::reader::{FileReader, SerializedFileReader};
    use parquet::record::RowAccessor;

    const POINTS: u64 = 40_000;
    let mut bytes = Vec::new();
    let mut writer = Box::new(trainyard_reports::sweep::ParquetSweep::new(schema(), &mut bytes).unwrap());
    (0..POINTS).for_each(|index| writer.push(&point(index)).unwrap());
    writer.finish().unwrap();
    assert!(bytes.len() * 3 < csv(0..POINTS).len(), "{} bytes", bytes.len());
    let mut file = tempfile::tempfile().unwrap();
    file.write_all(&bytes).unwrap();
    let reader = SerializedFileReader::new(file).unwrap();
    assert_eq!(reader.num_row_groups(), 3);
    let names: Vec<String> =
        reader.metadata().file_metadata().schema_descr().columns().iter().map(|c| c.name().to_owned()).collect();
    assert_eq!(names, schema().headings());
    let mut count = 0u64;
    for row in reader.get_row_iter(None).unwrap() {
        let (row, expected) = (row.unwrap(), point(count));
        assert_eq!(row.get_long(0).unwrap(), i64::try_from(count).unwrap());
        assert_eq!(&Cell::Text(row.get_string(1).unwrap().clone()), &expected.keys[0]);
        assert_eq!(Cell::Integer(row.get_long(3).unwrap()), expected.keys[2]);
        assert_eq!(Cell::Flag(row.get_bool(5).unwrap()), expected.keys[4]);
        match &expected.outcome {
            Outcome::Done(results) => {
                assert_eq!(Cell::Number(row.get_double(6).unwrap()), results[0]);
                assert_eq!(row.get_string(8).unwrap(), "ok");
                assert!(row.get_string(9).is_err());
            }
            Outcome::Infeasible(reason) => {
                assert!(row.get_double(6).is_err(), "no result");
                assert_eq!(row.get_string(9).unwrap(), reason);
            }
        }
        count += 1;
    }
    assert_eq!(count, POINTS);
}

#[test]
fn junit_is_what_a_parser_reads() {
    let run = junit();
    let xml = run.xml();
    let document = roxmltree::Document::parse(&xml).expect("well-formed XML");
    let root = document.root_element();
    for (name, value) in [("tests", "4"), ("failures", "1"), ("errors", "1"), ("skipped", "1"), ("time", "0.050000")] {
        assert_eq!(root.attribute(name), Some(value), "{name}");
        assert_eq!(root.first_element_child().unwrap().attribute(name), Some(value), "{name}");
    }
    let cases: Vec<_> = root.descendants().filter(|node| node.has_tag_name("testcase")).collect();
    assert_eq!(cases.len(), 4);
    assert_eq!(cases[0].children().count(), 0);
    let failure = cases[1].first_element_child().unwrap();
    // A control character has no place in XML; all else reads back, line ends included.
    let message = "step time: at most 3 s, found 3.2 s <\"&'>\nsee the report \u{fffd}[31m";
    assert_eq!(failure.attribute("message"), Some(message));
    assert_eq!(failure.text(), Some("line one\n]]> & <two>\r\n\tthree"));
    assert!(cases[2].first_element_child().unwrap().has_tag_name("error"));
    assert!(cases[3].first_element_child().unwrap().has_tag_name("skipped"));
    assert!(!run.passed());
}
