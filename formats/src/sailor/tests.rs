//! Good files, faults by name and place, and plans there and back.

use ir::{
    Bytes, BytesPerSecond, Cluster, DeviceKind, DeviceKindId, Fabric, FlopsPerSecond, Link, Model, NodeGroup, NodeKind,
    NodeKindId, Plan, Precision, Problem, SimDuration,
};

use super::{bandwidths, layers, of_plan, plan, profile};
use crate::text::testing::mutate;

const PROFILE: &str = r#"{
  "1": { "1": { "0": [0.001, 0.0, 0.002], "1": [0.01, 0.02, 0.002], "2": [0.003, 0.004, 0.0] } },
  "4": { "1": { "0": [0.002, 0.0, 0.002], "1": [0.03, 0.05, 0.002], "2": [0.009, 0.012, 0.0] },
         "2": { "0": [0.002, 0.0, 0.001], "1": [0.02, 0.03, 0.001], "2": [0.007, 0.008, 0.0] } }
}"#;

const LAYERS: &str = r#"{"tiny": {"1": {
  "0": {"params_floats": 100, "act_output_floats": 8, "act_input_floats": 9, "act_mem_floats": 8, "params_bytes": 400},
  "1": {"params_floats": 50, "act_output_floats": 8, "act_input_floats": 8, "act_mem_floats": 80}
}}}"#;

const PLAN: &str = r#"{"zone": "z", "pipeline_list": [{"num_stages": 2, "layers_per_stage": [[0, 1, 2], [3, 4, 5]],
  "tmp_per_stage": [[[[["GH-96", 4, "z"]], 4]], [[[["GH-96", 4, "z"]], 4]]], "dp": [1, 1]}],
  "mbs": 2, "gbs": 8, "real": 0.5, "red_grads": 0.01, "max_mem": 1000, "N": 2}"#;

/// Each problem's subject and what it says, in one line.
fn said(problems: &[Problem], text: &str) -> Vec<String> {
    for problem in problems {
        let span = problem.span.as_ref().unwrap_or_else(|| panic!("no place: {problem}"));
        assert!(text.get(span.range.clone()).is_some(), "a place outside the text: {problem}");
        assert!(problem.hint.is_some(), "no hint: {problem}");
    }
    problems.iter().map(|problem| format!("{}: {}", problem.subject, problem.message)).collect()
}

#[test]
fn a_profile_is_read_with_its_gaps() {
    let read = profile(PROFILE, "p.json").expect("a sound file");
    assert_eq!(read.layers(), 3);
    let keys: Vec<_> = read.points.iter().map(|point| (point.tensor, point.microbatch)).collect();
    assert_eq!(keys, [(1, 1), (1, 4), (2, 4)]);
    assert_eq!(read.points[1].layers[1].backward.to_bits(), 0.05_f64.to_bits());
    assert_eq!(read.gaps, ["at tensor degree 2 nothing was measured of microbatch 1"]);
}

#[test]
fn all_faults_of_a_profile_are_named() {
    fn check(change: (&str, &str), expect: &[&str]) {
        let text = PROFILE.replacen(change.0, change.1, 1);
        assert_ne!(text, PROFILE, "{change:?} changes nothing");
        let problems = profile(&text, "p.json").expect_err("a fault");
        let found = said(&problems, &text);
        assert_eq!(found.len(), expect.len(), "{found:?}");
        for (found, part) in found.iter().zip(expect) {
            assert!(found.contains(part), "{found} has not {part}");
        }
    }
    check(("\"1\": [0.01", "\"3\": [0.01"), &["1.1: has layer 3, and not 1"]);
    check(("[0.01, 0.02, 0.002]", "[0.01, -0.02, 0.002]"), &["1.1.1[1]: is `-0.02`"]);
    check(("[0.01, 0.02, 0.002]", "[0.0, 0.02, 0.002]"), &["1.1.1: takes no time forward"]);
    check(("[0.01, 0.02, 0.002]", "[0.01, 0.02]"), &["1.1.1: has 2 times"]);
    check(("[0.01, 0.02, 0.002]", "7"), &["1.1.1: is `7`"]);
    check(("\"4\": {", "\"four\": {"), &["four: the key `four` is no microbatch"]);
    check(("\"4\": {", "\"1\": {"), &["1: stands in the file twice"]);
    check(("\"2\": { \"0\"", "\"0\": { \"0\""), &["4.0: the key `0` is no tensor degree"]);
    check(
        (", \"2\": [0.009, 0.012, 0.0] }", ", \"2\": [0.009, 0.012, 0.0], \"3\": [1.0, 1.0, 0.0] }"),
        &["4.1: has 4 layers"],
    );
    check(("0.001", "NaN"), &["p.json: `NaN` is neither a number"]);
    check(
        (r#""1": { "1": { "0": [0.001, 0.0, 0.002]"#, r#""1": { "1": { "0": ["x", 0.0, 1e9]"#),
        &["1.1.0[0]: is `x`", "1.1.0[2]: is"],
    );
    assert!(profile("{}", "p.json").is_err());
    assert!(profile("", "p.json").is_err());
}

#[test]
fn layers_and_bandwidths_are_read() {
    let read = layers(LAYERS, "l.json").expect("a sound file");
    assert_eq!((read["tiny"][&1].len(), read["tiny"][&1][1].kept), (2, 80));
    let text = LAYERS.replace("400", "401").replace("act_output_floats\": 8, \"act_input_floats\": 8", "act_out\": 8");
    let found = said(&layers(&text, "l.json").expect_err("faults"), &text);
    assert!(found[0].contains("401 bytes are not four times 100"), "{found:?}");
    assert!(found.iter().any(|one| one.contains("act_out: is no key")), "{found:?}");

    let text = r#"{"a": {"A": {"1": {"b": {"B": {"2": [[-0.1, 0.5, 3.0], 4e9]}}}}}}"#;
    let read = bandwidths(text, "b.json").expect("a sound file");
    assert_eq!(read[0].0.to, ("b".to_owned(), "B".to_owned(), 2));
    let fit = read[0].1;
    // log2(4 MB / 1 MB) = 2: -0.4 + 1 + 3 GB/s.
    assert!((fit.at(4e6) - 3.6e9).abs() < 1.0);
    assert!([1.0, 1e30].iter().all(|bytes| (fit.at(*bytes) - 4e7).abs() < 1.0));
    assert_eq!(bandwidths(r#"{"A": {"2": [[0, 0, 1.0], 1e9]}}"#, "b").expect("sound")[0].0.from.1, "A");
    assert_eq!(bandwidths(r#"{"intra": {}, "inter": {"A": {"2": [[0, 0, 1.0], 1e9]}}}"#, "b").expect("sound").len(), 1);
    for wrong in [
        r#"{"A": {"x": [[0, 0, 1.0], 1e9]}}"#,
        r#"{"A": {"2": [[0, 0], 1e9]}}"#,
        r#"{"A": {"2": [[0, 0, 1]]}}"#,
        r#"{"A": {"2": [[0, 0, 1], 0]}}"#,
        r#"{"A": {"B": {"2": [[0, 0, 1], 5]}}}"#,
        "{}",
        "[]",
    ] {
        assert!(bandwidths(wrong, "b").is_err(), "{wrong}");
    }
}

#[test]
fn all_faults_of_a_plan_are_named() {
    let read = plan(PLAN, "plan.json").expect("a sound file");
    let measured = read.measured.expect("measured");
    assert_eq!(
        (measured.iteration.to_bits(), measured.memory, measured.nodes),
        (0.5_f64.to_bits(), Some(1000), Some(2))
    );
    let check = |change: (&str, &str), part: &str| {
        let text = PLAN.replacen(change.0, change.1, 1);
        assert_ne!(text, PLAN, "{change:?} changes nothing");
        let problems = plan(&text, "plan.json").expect_err("a fault");
        let found = said(&problems, &text);
        assert!(found.iter().any(|one| one.contains(part)), "{found:?} has not {part}");
    };
    check(("\"num_stages\": 2", "\"num_stages\": 3"), "layers_per_stage: has 2 stages, and num_stages is 3");
    check(("[1, 1]", "[1, 2]"), "stage 1 has 1 replicas, and dp says 2");
    check(("[3, 4, 5]", "[3, 3, 5]"), "are not all layers in order");
    check(("\"real\"", "\"reel\""), "reel: is no key of such a file");
    check(("\"real\": 0.5", "\"real\": 0"), "real: is `0`");
    check(("\"real\": 0.5, ", ""), "`real` is not there");
    check(("\"mbs\": 2", "\"mbs\": 2.5"), "mbs: is 2.5");
    check(("\"mbs\": 2, ", ""), "has no `mbs`");
    check(("[[[[\"GH-96\", 4, \"z\"]], 4]]", "[[[[\"GH-96\", 2, \"z\"]], 4]]"), "has 2 devices for tensor degree 4");
}

#[test]
fn mutated_files_are_read_or_refused() {
    let seed = 20_261_201;
    let tried = mutate(seed, 4000, &[PROFILE, LAYERS, PLAN, r#"{"A": {"2": [[0, 0, 1.0], 1e9]}}"#], |text| {
        if let Ok(read) = profile(text, "p") {
            let times = read.points.iter().flat_map(|point| &point.layers);
            assert!(times.clone().all(|of| of.forward > 0.0 && of.backward >= 0.0 && of.update.is_finite()), "{text}");
        }
        let _ = (layers(text, "l"), bandwidths(text, "b"));
        if let Ok(read) = plan(text, "p") {
            let _ = read.divide(&model(4), None);
        }
    });
    assert!(tried > 2000, "seed {seed}: {tried}");
}

fn model(layers: u32) -> Model {
    let text = format!(
        r#"{{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": {layers},
        "num_attention_heads": 4, "vocab_size": 256}}"#
    );
    crate::hugging_face::read(&text, "tiny").expect("a sound file")
}

/// Nodes of four devices; in zones of `zone` nodes if that is not 0.
fn cluster(nodes: u32, zone: u32) -> Cluster {
    let link = |name: &str| Link {
        name: name.to_owned(),
        bandwidth: BytesPerSecond::new(1e10).expect("positive"),
        latency: SimDuration::from_nanoseconds(1000),
        efficiency: None,
    };
    let kind = DeviceKind {
        name: "gh200-96gb".to_owned(),
        calibration: "none".to_owned(),
        peak: vec![(Precision::Fp32, FlopsPerSecond::new(1e14).expect("positive"))],
        memory: Bytes::from_gib(96),
        memory_bandwidth: BytesPerSecond::new(1e12).expect("positive"),
        multiprocessors: 132,
        slowdown: 1.0,
        tdp_watts: None,
        usd_per_hour: None,
        price_source: None,
        source: "a test".to_owned(),
    };
    let node = NodeKind {
        name: "four".to_owned(),
        devices: vec![DeviceKindId::new(0); 4],
        domain_size: 4,
        domain_link: link("fast"),
        host_link: link("fast"),
        nics: 1,
        nic: link("nic"),
    };
    let up_link = (zone > 0).then(|| link("wan"));
    Cluster {
        device_kinds: vec![kind],
        node_kinds: vec![node],
        groups: vec![NodeGroup { kind: NodeKindId::new(0), count: nodes }],
        fabric: Fabric { leaf_nodes: zone, up_link, ..Fabric::one_switch() },
    }
}

/// Every plan of small degrees that Sailor can be told is the same when it has been written and read.
#[test]
fn plans_come_back_as_they_were_written() {
    let mut written = 0;
    for (stages, data, tensor, behind, zone) in (1..=4)
        .flat_map(|p| {
            (1..=3).flat_map(move |d| {
                [1, 2, 4].into_iter().flat_map(move |t| [1, 2].map(|b| [0, 3].map(|z| (p, d, t, b, z))))
            })
        })
        .flatten()
    {
        let model = model(7);
        let read = plan(PLAN, "p").expect("sound").divide(&self::model(4), None).expect("sound");
        let mut cuts = vec![1; stages];
        cuts[stages / 2] += 7 - u32::try_from(stages).expect("few");
        let stage = read.stages[0].clone();
        let mine = Plan {
            data,
            tensor,
            stages: cuts.iter().map(|layers| ir::StagePlan { layers: vec![*layers], ..stage.clone() }).collect(),
            microbatch_size: 2,
            microbatches: 3,
            ..read
        };
        let batch = 6 * data;
        let text = of_plan(&model, (batch, &mine), &cluster(12, zone), behind, Some(0.25)).expect("it can be told");
        let again = plan(&text, "again").unwrap_or_else(|problems| panic!("{problems:?}\n{text}"));
        assert_eq!(again.divide(&model, None).expect("a plan of ours"), mine, "{text}");
        let all: usize = again.pipelines[0].layers.iter().map(Vec::len).sum();
        assert_eq!(all, 8 + behind as usize);
        let ranks = u32::try_from(again.places().count()).expect("few") * tensor;
        assert_eq!(u64::from(ranks), mine.world());
        if zone > 0 && mine.world() > 12 {
            assert!(again.places().any(|place| place.nodes[0].zone == "us-central1-b"), "{text}");
        }
        written += 1;
    }
    assert_eq!(written, 4 * 3 * 3 * 2 * 2);
}

#[test]
fn what_sailor_cannot_be_told_is_named() {
    let mine = plan(PLAN, "p").expect("sound").divide(&model(4), None).expect("a plan");
    let check = |change: &dyn Fn(&mut Plan), subject: &str| {
        let mut changed = mine.clone();
        change(&mut changed);
        let problems = of_plan(&model(4), (8, &changed), &cluster(4, 0), 1, None).expect_err(subject);
        assert!(problems.iter().any(|problem| problem.subject == subject && problem.hint.is_some()), "{problems:?}");
    };
    check(&|plan| plan.zero = ir::ZeroStage::Zero1, "plan.zero");
    check(&|plan| plan.sequence_parallel = true, "plan.sequence_parallel");
    check(&|plan| plan.schedule = ir::Schedule::GPipe, "plan.schedule");
    check(&|plan| plan.stages[1].recompute = ir::Recompute::Full, "plan.recompute");
    check(&|plan| plan.mesh.context = 2, "plan.mesh");
    check(&|plan| plan.sharing.offload_optimizer = true, "plan.offload");
    check(&|plan| plan.tensor = 8, "plan.tensor");
    check(&|plan| plan.data = 100, "plan");
}

#[test]
fn what_no_plan_of_ours_says_is_named() {
    let check = |change: (&str, &str), subject: &str| {
        let text = PLAN.replacen(change.0, change.1, 1);
        let read = plan(&text, "p").unwrap_or_else(|problems| panic!("{problems:?}"));
        let problems = read.divide(&model(4), None).expect_err(subject);
        assert!(problems.iter().any(|problem| problem.subject == subject), "{problems:?}");
    };
    check(("\"gbs\": 8, ", ""), "gbs");
    check(("\"gbs\": 8", "\"gbs\": 7"), "gbs");
    check(("[[[[\"GH-96\", 4, \"z\"]], 4]]", "[[[[\"GH-96\", 4, \"z\"]], 2]]"), "tmp_per_stage");
    check(("[[0, 1, 2], [3, 4, 5]]", "[[0], [1, 2, 3, 4, 5]]"), "layers_per_stage");
    check(("[[0, 1, 2], [3, 4, 5]]", "[[0, 1, 2], [3, 4, 5, 6, 7]]"), "layers_per_stage");
}
