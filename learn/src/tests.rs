//! Trainings of a few searches: their bits, their limits, and that they learn.

use cost::Calibration;
use ir::{
    Bytes, BytesPerSecond, Cluster, DeviceKind, DeviceKindId, Fabric, FlopsPerSecond, Link, MlpKind, Model, NodeGroup,
    NodeKind, NodeKindId, NormKind, Positions, Precision, SimDuration,
};

use crate::families::Families;
use crate::gradient::{Sample, backward};
use crate::trainer::{Settings, Trainer, widths};

fn node(name: &str, peak: f64, gib: u64, nic: f64) -> Cluster {
    let link = |name: &str, bytes: f64| Link {
        name: name.into(),
        bandwidth: BytesPerSecond::new(bytes).expect("a rate"),
        latency: SimDuration::from_nanoseconds(3000),
        efficiency: None,
    };
    let device = DeviceKind {
        name: format!("device of {name}"),
        calibration: "a100".into(),
        peak: vec![(Precision::Bf16, FlopsPerSecond::new(peak).expect("a rate"))],
        memory: Bytes::from_gib(gib),
        memory_bandwidth: BytesPerSecond::new(2e12).expect("a rate"),
        multiprocessors: 108,
        slowdown: 1.0,
        tdp_watts: None,
        usd_per_hour: None,
        price_source: None,
        source: "test".into(),
    };
    let node = NodeKind {
        name: name.into(),
        devices: vec![DeviceKindId::new(0); 4],
        domain_size: 4,
        domain_link: link("nvlink3", 300e9),
        host_link: link("pcie4", 32e9),
        nics: 1,
        nic: link("hdr", nic),
    };
    Cluster {
        device_kinds: vec![device],
        node_kinds: vec![node],
        groups: vec![NodeGroup { kind: NodeKindId::new(0), count: 1 }],
        fabric: Fabric::one_switch(),
    }
}

fn families() -> Families {
    let text = include_str!("../../catalog/calibration/a100.toml");
    let model = |name: &str, hidden: u32, layers: u32| Model {
        name: name.into(),
        hidden,
        layers,
        heads: hidden / 128,
        kv_heads: hidden / 128,
        head_dim: 128,
        ffn: 4 * hidden,
        vocabulary: 32_000,
        norm: NormKind::RmsNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Rope { theta: 1e4 },
        mlp: MlpKind::SwiGlu,
        qkv_bias: false,
        projection_bias: false,
        mlp_bias: false,
        tied_head: false,
        variants: ir::Variants::default(),
    };
    Families {
        nodes: vec![node("quick", 312e12, 80, 25e9), node("slow", 156e12, 40, 3e9)],
        models: vec![model("one", 2048, 12), model("two", 4096, 24)],
        calibrations: vec![Calibration::from_toml(text, "a100.toml").expect("the catalog's")],
    }
}

const NEVER: &(dyn Fn() -> bool + Sync) = &|| false;

/// Stopped after a round and read back, a training goes on to the bits of one that never stopped; whatever else holds a
/// checkpoint is refused with words.
#[test]
fn a_training_that_goes_on_is_one_that_never_stopped() {
    let families = families();
    let settings = Settings { seed: 5, searches: 24, evaluations: 8 };
    let mut whole = Trainer::new(settings.clone(), &families);
    let mut part = Trainer::new(settings, &families);
    let before = part.clone();
    assert!(part.round(&families, &|| true).is_none());
    assert_eq!(part, before, "a round that was stopped changes nothing");
    part.round(&families, NEVER).expect("nobody stops it");
    let kept = part.checkpoint();
    let mut resumed = Trainer::resumed(&kept).expect("its own checkpoint");
    while !resumed.is_done() {
        resumed.round(&families, NEVER).expect("nobody stops it");
    }
    while !whole.is_done() {
        whole.round(&families, NEVER).expect("nobody stops it");
    }
    assert_eq!(resumed, whole);
    assert_eq!(resumed.weights().text(), whole.weights().text());
    assert_eq!(whole.weights().origin.nodes, ["quick", "slow"]);
    assert!(whole.searches() == 24 && whole.rounds().len() == 2 && whole.weights().origin.evaluations > 24);

    let refused = |bytes: &[u8], expect: &str| {
        let problem = Trainer::resumed(bytes).expect_err(expect);
        assert!(problem.message.contains(expect) && problem.hint.is_some(), "{problem}");
    };
    refused(b"schema_version = 1", "is no checkpoint");
    refused(&kept[..kept.len() / 2], "is damaged");
    for at in (22..kept.len()).step_by(kept.len() / 50) {
        let mut changed = kept.clone();
        changed[at] ^= 4;
        refused(&changed, "is damaged");
    }
}

/// States whose right choice is known: the one with the largest first number, worth what the state's first number says. After
/// some hundred steps nearly all shares and values are right.
#[test]
fn what_is_taught_is_learned() {
    let mut trainer = Trainer::new(Settings { seed: 1, searches: 1, evaluations: 1 }, &families());
    let widths = widths();
    let sample = |number: u32| {
        let pseudo = |at: u16| {
            let mixed = (number * 31 + u32::from(at)) * 7919 % 1009;
            f32::from(u16::try_from(mixed).expect("below 1009")) / 1009.0
        };
        let row = |width: usize, seed: u16| (seed..).take(width).map(|at| 0.3 * pseudo(at)).collect::<Vec<f32>>();
        let mut choices: Vec<Vec<f32>> = (0..4).map(|choice| row(widths.choice, choice * 100)).collect();
        let mut state = row(widths.state, 977);
        let right = (number % 4) as usize;
        choices.iter_mut().enumerate().for_each(|(at, choice)| choice[0] = if at == right { 1.0 } else { 0.0 });
        state[0] = pseudo(5);
        let shares = (0..4).map(|at| if at == right { 1.0 } else { 0.0 }).collect();
        Sample { value: state[0], state, choices, rules: vec![0.0; 4], shares }
    };
    (0..256).for_each(|number| trainer.keep(sample(number)));
    let (mut first, mut last) = (None, trainer.learn());
    for _ in 0..12 {
        first.get_or_insert(last);
        last = trainer.learn();
    }
    let first = first.expect("a loss");
    assert!(first.policy > 0.3 && last.policy < 0.01, "{first:?} {last:?}");
    // On samples that were not kept.
    let network = trainer.network();
    let mut nothing = vec![0.0; network.parameters().len()];
    let losses = (1000..1100).map(|number| backward(&network, &sample(number), 0.0, &mut nothing));
    let (policy, value) = losses.fold((0.0, 0.0), |(policy, value), loss| (policy + loss.policy, value + loss.value));
    assert!(policy / 100.0 < 0.02 && value / 100.0 < 0.01, "{policy} {value}");
}

/// The same seed draws the same jobs; they are of the families, fit into memory between them, and are not alike.
#[test]
fn draws_are_of_the_families() {
    let families = families();
    let jobs = crate::score::jobs(&families, 3, 200);
    let words: Vec<String> = jobs.iter().map(crate::Drawn::words).collect();
    let again: Vec<String> = crate::score::jobs(&families, 3, 200).iter().map(crate::Drawn::words).collect();
    assert_eq!(words, again);
    let distinct: std::collections::BTreeSet<&String> = words.iter().collect();
    assert!(distinct.len() > 150, "{}", distinct.len());
    let unlike = jobs.iter().filter(|job| job.cost.cluster().node_kinds.len() > 1).count();
    assert!((20..80).contains(&unlike), "{unlike} of 200 jobs are on unlike nodes");
    for job in &jobs {
        let cluster = job.cost.cluster();
        assert!((4..=384).contains(&cluster.devices()), "{}", job.words());
        assert!(job.workload.problems().is_empty() && job.model.problems().is_empty(), "{}", job.words());
        assert!(job.workload.global_batch >= 1);
    }
}
