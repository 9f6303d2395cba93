//! Plain tables that look like real ones, drawn from a small generator of fixed seed.

#![allow(dead_code, reason = "shared by tests and an example, each of which uses a part")]

use ir::{Bytes, SimDuration};
use trainyard_reports::candidates::{CandidateRow, Candidates};
use trainyard_reports::diff::{Change, Diff, DiffCause, Measure};
use trainyard_reports::junit::{CaseOutcome, JunitCase, JunitRun, JunitSuite};
use trainyard_reports::pareto::{FrontPoint, ParetoFront, Weighed};
use trainyard_reports::scoreboard::{Bound, PeerPrediction, ScoreKind, ScoreRow, ScoreSet, Scoreboard, Target};
use trainyard_reports::sizing::{Interval, Sizing, SizingOption};
use trainyard_reports::sweep::{
    Cell, ColumnKind, HeatMapChoice, Objective, Outcome, ScalingChoice, SweepColumn, SweepPoint, SweepReport,
    SweepSchema,
};
use trainyard_reports::unit::Unit;
use trainyard_reports::waterfall::{Cause, Part, Waterfall};

/// Numbers between 0 and 1 (Lehmer's generator with the multiplier of Park and Miller 1988).
pub(crate) struct Noise(u64);

impl Noise {
    pub(crate) fn new(seed: u64) -> Self {
        Self(seed)
    }
    pub(crate) fn share(&mut self) -> f64 {
        self.0 = self.0 * 48_271 % 2_147_483_647;
        self.0 as f64 / 2_147_483_647.0
    }
    /// About normal, of standard deviation 1.
    pub(crate) fn normal(&mut self) -> f64 {
        (0..12).map(|_| self.share()).sum::<f64>() - 6.0
    }
}

pub(crate) fn milliseconds(value: f64) -> SimDuration {
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a few seconds")]
    SimDuration::from_nanoseconds((value * 1e6) as u64)
}

/// Name, rows, spread of errors when fitted.
const TABLES: [(&str, usize, f64); 9] = [
    ("vtrain_a100_single_and_multi_node.csv", 793, 0.10),
    ("aleph_alpha_llama_layout_sweep.csv", 243, 0.08),
    ("mosaicml_llm_foundry.csv", 110, 0.05),
    ("bloom_prequel.csv", 79, 0.07),
    ("vocabulary_parallel.csv", 120, 0.04),
    ("sc21_megatron.csv", 27, 0.03),
    ("torchtitan.csv", 12, 0.10),
    ("lumi.csv", 4, 0.03),
    ("korthikanti.csv", 4, 0.01),
];

fn score_set(kind: ScoreKind, spread: f64, bias: f64) -> ScoreSet {
    let mut noise = Noise::new(7);
    let mut rows = Vec::new();
    for (file, count, error) in TABLES {
        for index in 0..count {
            let measured = 0.08 * (noise.share() * 5.0).exp() + 0.3;
            let factor = (1.0 + bias) * (noise.normal() * error * spread).exp();
            let width = error * spread * 1.6;
            let mut row = ScoreRow {
                row_id: format!("{}-{index:04}", file.split('_').next().unwrap_or(file)),
                file: file.to_owned(),
                group: Some(format!("{file}-{}", index % 5)),
                measured_s: Some(measured),
                predicted_s: Some(measured * factor),
                low_s: Some(measured * factor * (-width).exp()),
                high_s: Some(measured * factor * width.exp()),
                baseline_s: Some(measured * (noise.normal() * 0.2).exp()),
                ..ScoreRow::default()
            };
            if file.starts_with("vocabulary") {
                row.measured_gb = Some(40.0);
                row.predicted_gb = Some(40.0 * (1.0 + 0.01 * noise.normal()));
                row.memory_kind = Some("allocated".to_owned());
            }
            if file.starts_with("aleph") {
                row.measured_fits = Some(noise.share() > 0.5);
                row.fits = if noise.share() > 0.05 { row.measured_fits } else { Some(false) };
            }
            if index % 29 == 28 {
                (row.predicted_s, row.low_s, row.high_s) = (None, None, None);
                let reason = if index % 2 == 0 { "LoRA" } else { "the model's vocabulary is not given" };
                row.refused = Some(reason.to_owned());
            }
            rows.push(row);
        }
    }
    ScoreSet::of(kind, rows)
}

pub(crate) fn scoreboard() -> Scoreboard {
    let scores = vec![
        score_set(ScoreKind::Fitted, 1.0, 0.0),
        score_set(ScoreKind::Shape, 1.4, 0.02),
        score_set(ScoreKind::Cold, 2.0, -0.08),
    ];
    let target = |figure: &str, of: &str, score, bound, found, cause: &str, tried: &str| Target {
        figure: figure.to_owned(),
        of: of.to_owned(),
        score,
        bound,
        found,
        unit: Unit::Share,
        cause: cause.to_owned(),
        tried: tried.to_owned(),
    };
    let (fitted, cold) = (Some(ScoreKind::Fitted), Some(ScoreKind::Cold));
    let peers = scores[0].rows.iter().take(60).map(|row| PeerPrediction {
        peer: "Analytic peer".to_owned(),
        source: "its paper, table 4".to_owned(),
        row_id: row.row_id.clone(),
        predicted_s: row.measured_s.unwrap_or(1.0) * 1.21,
    });
    let tried = "a fixed time per local parameter (13.3 % p90, but worse on two other tables)";
    Scoreboard {
        title: "Scoreboard: predictions against measured runs".to_owned(),
        description: "Every prediction is made by the ordinary path that a scenario takes.".to_owned(),
        warnings: vec!["Made of drawn numbers to show the page.".to_owned()],
        targets: vec![
            target("median error", "vtrain", fitted, Bound::AtMost(0.07), Some(0.065), "", ""),
            target("90th percentile", "aleph", fitted, Bound::AtMost(0.12), Some(0.134), "30B on 256 devices", tried),
            target("coverage", "all tables", cold, Bound::Between(0.8, 0.97), Some(0.89), "", ""),
            target("out of memory told right", "aleph", None, Bound::AtLeast(0.94), None, "", ""),
        ],
        peer_words: Vec::new(),
        peers: peers.collect(),
        assumptions: vec![("rows".to_owned(), "catalog/measured".to_owned())],
        command: "trainyard validate catalog/measured --html scoreboard.html".to_owned(),
        scores,
    }
}

pub(crate) fn waterfall() -> Waterfall {
    let part = |cause, time: f64, without: Option<f64>, advice: &str| Part {
        cause,
        time: milliseconds(time),
        step_without: without.map(milliseconds),
        advice: advice.to_owned(),
    };
    Waterfall {
        title: "175B on 1,024 A100: where the step goes".to_owned(),
        description: "data 16, tensor 8, pipeline 8, interleaved 1F1B, full recomputation".to_owned(),
        step: milliseconds(18_000.0),
        interval: Some((milliseconds(16_900.0), milliseconds(19_300.0))),
        parts: vec![
            part(Cause::DataCommunication, 350.0, Some(17_700.0), "overlap the last reduction"),
            part(Cause::Compute, 10_200.0, None, ""),
            part(Cause::Recomputation, 3_350.0, Some(14_400.0), "selective recomputation, 6.1 GiB more"),
            part(Cause::Launch, 120.0, Some(17_880.0), "CUDA graphs"),
            part(Cause::Imbalance, 430.0, Some(17_300.0), "one layer less on the last stage"),
            part(Cause::Bubble, 1_150.0, Some(16_850.0), "more microbatches or chunks"),
            part(Cause::TensorCommunication, 1_700.0, Some(16_100.0), "sequence parallelism with overlap"),
            part(Cause::ContextCommunication, 110.0, Some(17_890.0), ""),
            part(Cause::ExpertCommunication, 240.0, Some(17_760.0), ""),
            part(Cause::PipelineCommunication, 150.0, Some(17_870.0), ""),
            part(Cause::InputStall, 40.0, Some(17_960.0), "more loader workers"),
            part(Cause::Optimizer, 160.0, Some(17_840.0), ""),
        ],
        warnings: Vec::new(),
        assumptions: vec![("calibration".to_owned(), "a100".to_owned())],
        command: "trainyard explain scenario.toml".to_owned(),
    }
}

pub(crate) fn schema() -> SweepSchema {
    let keys = vec![
        SweepColumn::new("cluster.device", ColumnKind::Text, Unit::Plain),
        SweepColumn::new("devices", ColumnKind::Integer, Unit::Count),
        SweepColumn::new("plan.tensor", ColumnKind::Integer, Unit::Count),
        SweepColumn::new("plan.pipeline", ColumnKind::Integer, Unit::Count),
        SweepColumn::new("plan.recompute", ColumnKind::Flag, Unit::Plain),
    ];
    let results = vec![
        SweepColumn::new("step_s", ColumnKind::Number, Unit::Seconds),
        SweepColumn::new("tokens_per_second", ColumnKind::Number, Unit::TokensPerSecond),
    ];
    SweepSchema::new(keys, results).expect("sound columns")
}

/// A point of a sweep over devices, tensor and pipeline degrees.
pub(crate) fn point(index: u64) -> SweepPoint {
    let pick = |values: &[i64], place: u64| values[usize::try_from(place).expect("small") % values.len()];
    let device = if index.is_multiple_of(2) { "A100" } else { "H100" };
    let tensor = pick(&[1, 2, 4, 8], index / 2);
    let pipeline = pick(&[1, 2, 4, 8, 16], index / 8);
    let devices = pick(&[64, 128, 256, 512, 1024], index / 40);
    let recompute = (index / 200).is_multiple_of(2);
    let keys = vec![
        Cell::Text(device.to_owned()),
        Cell::Integer(devices),
        Cell::Integer(tensor),
        Cell::Integer(pipeline),
        Cell::Flag(recompute),
    ];
    let outcome = if tensor * pipeline < 4 {
        Outcome::Infeasible("does not fit: 112.4 GiB of 80 GiB,\non stage 0".to_owned())
    } else {
        let speed = if device == "H100" { 2.3 } else { 1.0 };
        let waste = 1.0 + 0.04 * (tensor as f64) + 0.05 * pipeline as f64 + if recompute { 0.3 } else { 0.0 };
        let step = 900.0 * waste / speed / devices as f64 * (1.0 + (devices as f64).ln() * 0.03);
        Outcome::Done(vec![Cell::Number(step), Cell::Number(4_194_304.0 / step)])
    };
    SweepPoint { index, keys, outcome }
}

pub(crate) fn sweep_report(points: u64) -> SweepReport {
    let objective = Objective { result: "step_s".to_owned(), lowest: true };
    let map = |x: &str, y: &str| HeatMapChoice { x: x.to_owned(), y: y.to_owned() };
    let scaling = |result: &str, lowest| ScalingChoice {
        x: "devices".to_owned(),
        result: result.to_owned(),
        lowest,
        series: Some("cluster.device".to_owned()),
    };
    let maps = [map("plan.tensor", "plan.pipeline"), map("devices", "cluster.device")];
    let scalings = [scaling("step_s", true), scaling("tokens_per_second", false)];
    let mut report = SweepReport::new(schema(), &objective, &maps, &scalings).expect("columns that exist");
    report.title = "Sweep over degrees and devices".to_owned();
    report.command = "trainyard sweep sweep.toml --out sweep".to_owned();
    (0..points).for_each(|index| report.push(&point(index)));
    report
}

pub(crate) fn diff() -> Diff {
    let cause = |name: &str, before: Option<f64>, after: Option<f64>, note: &str| DiffCause {
        cause: name.to_owned(),
        before,
        after,
        note: note.to_owned(),
    };
    let change = |what: &str, before: &str, after: &str| Change {
        what: what.to_owned(),
        before: before.to_owned(),
        after: after.to_owned(),
    };
    let gib = |value: f64| Some(value * 1_073_741_824.0);
    Diff {
        title: "Tensor degree 8 against 4".to_owned(),
        before: "a.json".to_owned(),
        after: "b.json".to_owned(),
        changes: vec![change("tensor degree", "8", "4"), change("overlap of tensor communication", "", "on")],
        measures: vec![
            Measure {
                name: "step time".to_owned(),
                unit: Unit::Seconds,
                before: Some(3.2),
                after: Some(2.9),
                causes: vec![
                    cause("compute", Some(2.0), Some(2.0), ""),
                    cause("bubble", Some(0.30), Some(0.42), "half the microbatches"),
                    cause("exposed tensor communication", Some(0.85), Some(0.38), "within one switch"),
                    cause("optimizer", Some(0.05), None, "sharded over replicas"),
                    cause("exposed data communication", None, Some(0.10), ""),
                ],
            },
            Measure {
                name: "peak memory".to_owned(),
                unit: Unit::Bytes,
                before: gib(48.0),
                after: gib(71.5),
                causes: vec![
                    cause("weights", gib(12.0), gib(24.0), ""),
                    cause("activations", gib(36.0), gib(47.5), ""),
                ],
            },
        ],
        warnings: Vec::new(),
        command: "trainyard diff a.json b.json".to_owned(),
    }
}

pub(crate) fn junit() -> JunitRun {
    let case = |name: &str, outcome: CaseOutcome| JunitCase {
        name: name.to_owned(),
        class_name: "quickstart".to_owned(),
        file: Some("scenarios/quickstart/scenario.toml".to_owned()),
        time: milliseconds(12.5),
        outcome,
        output: String::new(),
    };
    let message = "step time: at most 3 s, found 3.2 s <\"&'>\nsee the report \u{1b}[31m".to_owned();
    let details = "line one\n]]> & <two>\r\n\tthree".to_owned();
    JunitRun {
        name: "trainyard check".to_owned(),
        suites: vec![JunitSuite {
            name: "scenarios/quickstart".to_owned(),
            cases: vec![
                case("fits", CaseOutcome::Passed),
                case("step time", CaseOutcome::Failed { message, details: details.clone() }),
                case("digest", CaseOutcome::Errored { message: "no golden".to_owned(), details }),
                case("cuda", CaseOutcome::Skipped { message: "no device".to_owned() }),
            ],
        }],
    }
}

pub(crate) fn candidates() -> Candidates {
    let row = |plan: &str, step: Option<f64>, reasons: &[&str]| CandidateRow {
        plan: plan.to_owned(),
        step: step.map(milliseconds),
        interval: step.map(|step| (milliseconds(step * 0.93), milliseconds(step * 1.08))),
        peak: Some(Bytes::from_gib(if step.is_some() { 71 } else { 112 })),
        capacity: Some(Bytes::from_gib(80)),
        bubble_rate: step.map(|_| 0.074),
        tokens_per_second: step.map(|step| 4_194_304.0 / step * 1e3),
        reasons: reasons.iter().map(|reason| (*reason).to_owned()).collect(),
    };
    let mut rows = vec![
        row(
            "data 16, tensor 8, pipeline 8, interleaved 1F1B of 2, selective recomputation",
            Some(18_000.0),
            &["Best."],
        ),
        row("data 32, tensor 8, pipeline 4, 1F1B", Some(18_430.0), &["Bubble 1.2 points more."]),
        row("data 8, tensor 8, pipeline 16, 1F1B", Some(19_950.0), &["Bubble 6.1 points more.", "Longer messages."]),
    ];
    rows.extend((0..10u32).map(|i| row("data 16, tensor 4, pipeline 16", Some(20_000.0 + 300.0 * f64::from(i)), &[])));
    rows.push(row("data 1024", None, &["Does not fit: stage 0 needs 112 GiB of 80 GiB."]));
    Candidates {
        title: "Plans for 175B on 1,024 A100".to_owned(),
        description: "Policy exhaustive over all uniform plans.".to_owned(),
        rows,
        space: Some(12_480),
        priced: 1_377,
        pruned: 9_003,
        infeasible: 2_100,
        assumptions: vec![("calibration".to_owned(), "a100".to_owned())],
        command: "trainyard plan scenario.toml".to_owned(),
    }
}

/// A front of thirty plans: the fewer devices, the slower and the cheaper.
pub(crate) fn front() -> ParetoFront {
    let weighed = |name: &str, key: &str, unit| Weighed { name: name.to_owned(), key: key.to_owned(), unit };
    let point = |number: u32| {
        let nodes = f64::from(31 - number);
        let slower = 1.0 + 0.02 * nodes;
        let memory = 60.0 + 10.0 * f64::from(number % 3);
        FrontPoint {
            plan: format!("data {}, tensor 8, pipeline 4, 1F1B", 31 - number),
            devices: 32 * u64::from(31 - number),
            values: vec![40.0 / nodes * slower, 0.2 * slower, 0.5 + 0.1 / nodes, memory * 1_073_741_824.0],
            chosen: number == 4,
        }
    };
    ParetoFront {
        title: "175B on 1,024 A100: plans that no other beats".to_owned(),
        description: "Searched: uniform plans.".to_owned(),
        weighed: vec![
            weighed("iteration", "iteration_s", Unit::Seconds),
            weighed("money per million tokens", "usd_per_million_tokens", Unit::Dollars),
            weighed("energy per token", "joules_per_token", Unit::Joules),
            weighed("peak memory", "peak_memory_bytes", Unit::Bytes),
        ],
        points: (0..30).map(point).collect(),
        devices: 1024,
        assumptions: vec![("money and energy".to_owned(), "nodes are paid whole".to_owned())],
        command: "trainyard plan scenario.toml --pareto".to_owned(),
    }
}

pub(crate) fn sizing() -> Sizing {
    let option = |device: &str, nodes: u64, speed: f64, price: f64| {
        let devices = 8 * nodes;
        let days = 30.0 * 1024.0 / devices as f64 / speed * (1.0 + 0.02 * (nodes as f64).ln());
        let interval = |value: f64| Interval { low: value * 0.88, expected: value, high: value * 1.15 };
        let hours = days * 24.0 * devices as f64;
        SizingOption {
            device: device.to_owned(),
            nodes,
            devices,
            plan: format!("data {}, tensor 8, pipeline 4", devices / 32),
            step_s: Some(interval(days / 4.0)),
            days: Some(interval(days)),
            device_hours: Some(interval(hours)),
            dollars: Some(interval(hours * price)),
            megawatt_hours: Some(interval(hours * 0.000_7)),
            fits: true,
            suffices: days * 1.15 <= 30.0,
            notes: if days > 30.0 { "past the deadline".to_owned() } else { String::new() },
        }
    };
    let mut options = Vec::new();
    for (device, speed, price) in [("A100-80", 1.0, 1.8), ("H100", 2.4, 3.1), ("B200", 5.1, 5.5)] {
        options.extend([16, 32, 64, 128, 256].map(|nodes| option(device, nodes, speed, price)));
    }
    let nothing = (None, None, None);
    let (step_s, days, dollars) = nothing;
    options.push(SizingOption {
        device: "T4".to_owned(),
        nodes: 64,
        devices: 256,
        plan: String::new(),
        step_s,
        days,
        device_hours: None,
        dollars,
        megawatt_hours: None,
        fits: false,
        suffices: false,
        notes: "70B does not fit at any legal degree: 21.3 GiB of 16 GiB".to_owned(),
    });
    Sizing {
        question: "70B on 2T tokens in 30 days: how many of which device?".to_owned(),
        answer: "512 H100 in 64 nodes: 24 days, at 1.0 million dollars.".to_owned(),
        warnings: vec!["Prices are the catalog's defaults.".to_owned()],
        options,
        chosen: Some(7),
        deadline_days: Some(30.0),
        budget_dollars: Some(2.5e6),
        inputs: vec![
            ("tokens".to_owned(), "2 T".to_owned()),
            ("price of H100".to_owned(), "$3.10 per device-hour (catalog default)".to_owned()),
        ],
        command: "trainyard size scenario.toml".to_owned(),
    }
}
