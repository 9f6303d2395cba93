//! The catalog's calibrations read, print and read again; faults have their place.

use super::fixtures::*;
use crate::{Alignment, Basis, Calibration, CollectivePoints, CostModel, Host, Measured};

#[test]
fn every_calibration_of_the_catalog_reads_and_round_trips() {
    let folder = format!("{}/../catalog/calibration", env!("CARGO_MANIFEST_DIR"));
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "toml")
            || path.ends_with("stacks.toml")
            || path.ends_with("memory.toml")
        {
            continue;
        }
        let stem = path.file_stem().unwrap().to_str().unwrap().to_owned();
        let calibration = catalog(&stem);
        assert_eq!(calibration.name, stem, "a file is called after its calibration");
        let again = Calibration::from_toml(&calibration.to_toml(), "again").unwrap();
        assert_eq!(again, calibration);
        assert!(calibration.matrix_product.iter().all(|row| !row.source.is_empty()));
        names.push(stem);
    }
    assert!(["a100", "cpu", "h100", "v100"].iter().all(|name| names.iter().any(|of| of == name)), "{names:?}");
}

fn faults(change: impl Fn(String) -> String) -> Vec<ir::Problem> {
    let text = change(catalog("cpu").to_toml());
    Calibration::from_toml(&text, "cpu.toml").unwrap_err()
}

#[test]
fn faults_are_reported_with_their_place() {
    let unknown = faults(|text| text.replace("threads = true", "threads = true\ntreads = 1"));
    assert!(unknown[0].message.contains("unknown field `treads`"), "{unknown:?}");
    assert!(unknown[0].span.is_some());

    let both = faults(|text| {
        text.replacen("utilisation = 0.6", "utilisation = nan", 1).replacen(
            "forward_utilisation = 0.25",
            "forward_utilisation = -1.0",
            1,
        )
    });
    let subjects: Vec<&str> = both.iter().map(|problem| problem.subject.as_str()).collect();
    assert_eq!(subjects, ["matrix_product[0].utilisation", "attention[0].forward_utilisation"]);
    let text = catalog("cpu").to_toml().replacen("utilisation = 0.6", "utilisation = nan", 1);
    let span = both[0].span.clone().unwrap();
    assert_eq!(&text[span.range], "nan");

    let kernel = faults(|text| text.replace("kernel = \"all\"", "kernel = \"softmax\""));
    assert_eq!(kernel.len(), 2, "the name, and that nothing prices the rest: {kernel:?}");
}

#[test]
fn a_missing_calibration_names_the_nearest() {
    let cluster = cluster(device("x", "a10", 1.0, 1e9, 4), 1, 2, 1, link("l", 1e9, 1), link("n", 1e9, 1));
    let problems = CostModel::new(cluster, vec![catalog("h100"), catalog("a100")]).unwrap_err();
    assert_eq!(problems.len(), 1);
    assert_eq!(problems[0].hint.as_deref(), Some("did you mean `a100`?"));
}

#[test]
fn an_assumed_calibration_says_so() {
    let cluster =
        cluster(device("core", "cpu", 0.1, 1e10, 1), 1, 2, 1, link("shared-memory", 1e10, 1000), link("n", 1e9, 1));
    let model = CostModel::new(cluster, vec![catalog("cpu")]).unwrap();
    let owned = Owned(gpt(256, 2, 4), workload(ir::Precision::Fp32, ir::AttentionKernel::Fused), layout(1, false, 1));
    let chunk = chunk(2, true, true, ir::Recompute::None);
    let priced =
        model.compute(owned.shape(), &chunk, ir::program::Pass::Forward, chunk.all_units(), ir::DeviceKindId::new(0));
    assert_eq!(priced.basis, Basis::Assumed);
}

#[test]
fn what_the_format_gained_is_checked_and_the_old_form_still_reads() {
    let old = catalog("cpu");
    assert_eq!((old.generation(), old.spread, &old.host), ("cpu", None, &None));
    assert!(old.matrix_product.iter().all(|row| row.alignment.is_empty() && row.grouped_utilisation.is_none()));
    let mut new = catalog("a100");
    new.matrix_product[0].alignment =
        vec![Alignment { multiple: 1, time_factor: 2.0 }, Alignment { multiple: 8, time_factor: 0.5 }];
    new.matrix_product[0].grouped_utilisation = Some(3.0);
    new.attention[0].elementary_score_bytes = Some(-1.0);
    new.spread = Some(f64::NAN);
    new.generation = Some(" ".to_owned());
    new.host = Some(Host { optimizer_gb_per_s: 0.0, rows: 0, source: "a test".to_owned() });
    new.link[0].devices_share = 0;
    new.collective_fit[0].kind = Some("all-to-one".to_owned());
    let curve = CollectivePoints {
        link: "nvlink3".to_owned(),
        kind: "all-to-all".to_owned(),
        ranks: 8,
        nodes: 3,
        points: vec![[1.0, 1.0]],
    };
    new.measured = Some(Measured { collectives: vec![curve], ..Measured::default() });
    let problems = Calibration::from_toml(&new.to_toml(), "new.toml").unwrap_err();
    let subjects: Vec<&str> = problems.iter().map(|problem| problem.subject.as_str()).collect();
    for wanted in [
        "spread",
        "generation",
        "host.optimizer_gb_per_s",
        "matrix_product[0].grouped_utilisation",
        "matrix_product[0].alignment[0].multiple",
        "matrix_product[0].alignment[1].time_factor",
        "attention[0].elementary_score_bytes",
        "link[0].devices_share",
        "collective_fit[0].kind",
        "measured.collectives[0].nodes",
    ] {
        assert!(subjects.contains(&wanted), "{wanted} is not among {subjects:?}");
    }
    assert_eq!(subjects.len(), 10, "and nothing else: {subjects:?}");
    assert!(problems.iter().all(|problem| problem.span.is_some() && problem.hint.is_some()));
}
