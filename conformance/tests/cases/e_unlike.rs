//! E: devices that differ.

use std::path::Path;

use trainyard::results::PlanReport;
use trainyard::{Context, scenario};

use super::{Case, dense};

const TRAINING: &str = "sequence_length = 1024\nglobal_batch = 64\nprecision = \"fp16\"";

fn milliseconds(cluster: &str, plan: &str) -> f64 {
    Case { nodes: cluster, model: &dense(16), training: TRAINING, plan }.planned().prediction.iteration_ms
}

/// U42: with equal shares the slow device sets the pace: time is the largest of share over rate.
#[test]
fn equal_shares_run_at_the_slow_device() {
    for (fast, slow) in [("dgx-a100", "p3dn"), ("dgx-h100", "dgx-1v")] {
        let plan = "microbatch_size = 1";
        let mixed = milliseconds(&format!("[cluster]\nnodes = [\"1 x {fast}\", \"1 x {slow}\"]"), plan);
        let alone = |node: &str| milliseconds(&format!("2 x {node}"), plan);
        let (quick, late) = (alone(fast), alone(slow));
        assert!(quick < 0.8 * late, "{fast} takes {quick} ms, {slow} {late} ms");
        // Half of the replicas are slow, and all wait for them: as long as if all were, but for the exchange.
        assert!(
            mixed > 0.7 * late && mixed < 1.3 * late,
            "{fast} and {slow}: {mixed} ms, {late} ms of slow ones alone"
        );
    }
}

/// Replicas of one device each: of the quick kind, then of the slow kind.
struct Mixed<'a> {
    cluster: &'a str,
    quick: (&'a str, u32),
    slow: (&'a str, u32),
    batch: u32,
    plan: &'a str,
}

/// Two cards of each kind in one box, as in U42 (huggingface/pytorch-image-models#580).
const WORKSTATION: &str = "[nodes.mixed]\nlike = \"v100-pcie-4\"\ndevices = [\"2 x rtx-a6000\", \"2 x rtx-2080-ti\"]\n\
    [nodes.quick]\nlike = \"v100-pcie-4\"\ndevices = \"4 x rtx-a6000\"\n\
    [nodes.slow]\nlike = \"v100-pcie-4\"\ndevices = \"4 x rtx-2080-ti\"\n[cluster]\nnodes = \"1 x NODE\"";

/// That, yifding/hetseq#11 (an A100 and a V100 server) and 32 A100 with 96 V100 (Sailor's trace of what could be had).
fn mixtures() -> [Mixed<'static>; 3] {
    [
        Mixed {
            cluster: WORKSTATION,
            quick: ("1 x quick", 2),
            slow: ("1 x slow", 2),
            batch: 400,
            plan: "microbatch_size = 2",
        },
        Mixed {
            cluster: "[cluster]\nnodes = [\"1 x dgx-a100\", \"1 x dgx-1v\"]",
            quick: ("2 x dgx-a100", 8),
            slow: ("2 x dgx-1v", 8),
            batch: 512,
            plan: "microbatch_size = 1\nzero = 1",
        },
        Mixed {
            cluster: "[cluster]\nnodes = [\"4 x dgx-a100-40gb\", \"12 x v100-8-16gb-100g\"]",
            quick: ("16 x dgx-a100-40gb", 32),
            slow: ("16 x v100-8-16gb-100g", 96),
            batch: 4096,
            plan: "microbatch_size = 1",
        },
    ]
}

impl Mixed<'_> {
    fn planned(&self, nodes: &str, batch: u32, plan: &str) -> PlanReport {
        let own = self.cluster.contains("NODE");
        let cluster = match nodes.strip_prefix("1 x ") {
            Some(node) if own => self.cluster.replace("NODE", node),
            _ => nodes.to_owned(),
        };
        let training = format!("sequence_length = 1024\nglobal_batch = {batch}\nprecision = \"fp16\"");
        Case { nodes: &cluster, model: &dense(8), training: &training, plan }.planned()
    }

    fn mixed(&self, plan: &str) -> PlanReport {
        let nodes = if self.cluster.contains("NODE") { "1 x mixed" } else { self.cluster };
        self.planned(nodes, self.batch, plan)
    }

    /// Microbatches of the whole batch that one replica of a kind does in a millisecond, where all are of it.
    fn rate(&self, kind: (&str, u32)) -> f64 {
        let all = self.planned(kind.0, self.batch, self.plan);
        f64::from(self.batch) / f64::from(all.plan.data) / all.prediction.iteration_ms
    }
}

/// U42: 200 images each on A6000 and 2080 Ti gave 2000 images a second, 300 and 200 gave 2500. Equal shares wait for the
/// slow card; the shares that are proposed come near the sum of what all cards can do, and are carried out if written.
#[test]
fn unequal_shares_come_near_the_sum_of_rates() {
    for mixture in mixtures() {
        let equal = mixture.mixed(mixture.plan);
        let (quick, slow) = (mixture.rate(mixture.quick), mixture.rate(mixture.slow));
        let (quicks, slows) = (f64::from(mixture.quick.1), f64::from(mixture.slow.1));
        let batch = f64::from(mixture.batch);
        let pace = batch / (quicks + slows) / slow;
        assert!(
            equal.prediction.iteration_ms > 0.9 * pace,
            "{} ms, {pace} ms of slow ones",
            equal.prediction.iteration_ms
        );
        let said = equal.reasons.iter().any(|reason| reason.starts_with("unlike replicas: with "));
        assert!(said, "{:?}", equal.reasons);
        let other = &equal.alternatives[0];
        let shares = other.plan.shares.counts();
        assert_eq!(shares.len(), (mixture.quick.1 + mixture.slow.1) as usize, "{}", other.plan.words);
        assert!(shares[0] > *shares.last().expect("a share"), "{}", other.plan.words);
        let best = other.prediction.as_ref().expect("it fits").iteration_ms;
        let ideal = batch / (quicks * quick + slows * slow);
        // Shares are whole microbatches, and gradients still have their way between unlike servers.
        assert!(best < 1.25 * ideal && best > 0.95 * ideal, "{best} ms of shares {shares:?}, {ideal} ms of all rates");
        assert!(best < 0.9 * equal.prediction.iteration_ms, "{best} and {}", equal.prediction.iteration_ms);
        let written = mixture.mixed(&format!("{}\nmicrobatches = {shares:?}", mixture.plan));
        assert!(
            (written.prediction.iteration_ms / best - 1.0).abs() < 1e-6,
            "{} {best}",
            written.prediction.iteration_ms
        );
        assert!(written.runtimes["Megatron-LM"].iter().any(|reason| reason.contains("equally many microbatches")));
    }
}

/// Where nobody says how many, the search shares out by itself; rules of thumb say what they leave, and choose it not.
#[test]
fn policies_share_out_where_replicas_are_unlike() {
    let mixture = &mixtures()[1];
    let keys = "tensor = 1\npipeline = 1\nchunks_per_stage = 1\nschedule = \"1f1b\"";
    let found = mixture.mixed(&format!("policy = \"exhaustive\"\n{keys}"));
    let shares = found.plan.shares.counts();
    assert!(!shares.is_empty() && shares[0] > shares[15], "{}", found.plan.words);
    let rules = mixture.mixed(&format!("policy = \"megatron\"\n{keys}"));
    assert!(rules.plan.shares.are_equal(), "{}", rules.plan.words);
    assert!(rules.reasons.iter().any(|reason| reason.contains("in place of equal shares")), "{:?}", rules.reasons);
    assert!(found.prediction.iteration_ms < 0.9 * rules.prediction.iteration_ms);
}

/// U42: the small card's memory caps its share. With GPipe all microbatches of a replica are in flight at once.
#[test]
fn memory_caps_the_small_cards_share() {
    let mixture = &mixtures()[0];
    let of = |schedule: &str, cluster: &str| {
        let plan = format!("microbatch_size = 2\nschedule = \"{schedule}\"\nrecompute = \"full\"");
        let training = "sequence_length = 2048\nglobal_batch = 200\nprecision = \"fp16\"";
        let case = Case { nodes: cluster, model: &dense(16), training, plan: &plan };
        case.plan().map(|report| report.alternatives[0].plan.shares.counts().to_vec())
    };
    let cluster = mixture.cluster.replace("NODE", "mixed");
    let even = of("1f1b", &cluster).expect("a plan");
    assert!(even[3] < even[0], "{even:?}");
    // All at once, so many do not fit into 11 GiB; with fewer on the small cards and more on the others they do.
    let training = "sequence_length = 2048\nglobal_batch = 88\nprecision = \"fp16\"";
    let plan = "microbatch_size = 2\nschedule = \"gpipe\"\nrecompute = \"full\"\nmicrobatches = [20, 20, 2, 2]";
    let capped = Case { nodes: &cluster, model: &dense(16), training, plan }.planned();
    let stage = &capped.prediction.memory[0];
    assert!(stage.peak_gib < stage.capacity_gib, "{} of {} GiB", stage.peak_gib, stage.capacity_gib);
    let plan = "microbatch_size = 2\nschedule = \"gpipe\"\nrecompute = \"full\"\nmicrobatches = [11, 11, 11, 11]";
    Case { nodes: &cluster, model: &dense(16), training, plan }.refused(&["stage 0 needs", "of 11.0"]);
}

/// Shares that are not the batch's, or not one for each replica, are refused with what is nearest.
#[test]
fn shares_are_refused_with_what_is_nearest() {
    let check = |batch: u32, plan: &str, needles: &[&str]| {
        let training = format!("sequence_length = 512\nglobal_batch = {batch}");
        let case = Case { nodes: "1 x dgx-a100", model: &dense(8), training: &training, plan };
        case.refused(needles);
    };
    // Equal shares that do not divide: other batches, or unequal shares.
    check(100, "data = 8", &["100", "a global batch of 96 or 104", "microbatches = [13, 13, 13, 13, 12, 12, 12, 12]"]);
    check(60, "data = 8\nmicrobatch_size = 2", &["60", "a global batch of 48 or 64", "[4, 4, 4, 4, 4, 4, 3, 3]"]);
    check(7, "data = 2\npipeline = 4", &["7", "a global batch of 6 or 8", "microbatches = [4, 3]"]);
    check(64, "data = 8\nmicrobatch_size = 3", &["64", "a global batch of 48 or 72"]);
    // Another sum than the batch, in the same proportion.
    check(64, "data = 2\nmicrobatches = [24, 16]", &["microbatch_size 1 x (24 + 16) microbatches = 40", "[38, 26]"]);
    check(64, "data = 2\nmicrobatch_size = 3\nmicrobatches = [12, 8]", &["= 60", "a global batch of 60 is"]);
    check(3, "data = 4\nmicrobatches = [1, 1, 1, 2]", &["3 microbatches are fewer than 4 replicas"]);
    // Not one for each replica, and none at all.
    check(64, "data = 4\nmicrobatches = [24, 40]", &["plan.microbatches", "lists 2 replicas, and there are 4"]);
    check(64, "data = 2\nmicrobatches = [64, 0]", &["plan.microbatches"]);
    check(64, "data = 2\nmicrobatches = []", &["no replica takes any"]);
    check(64, "data = 2\nmicrobatch_size = [2, 1]", &["plan.microbatch_size", "microbatches are of one size"]);
    // Each replica goes through groups of its own.
    let interleaved = "data = 2\npipeline = 4\nchunks_per_stage = 2\nmicrobatches = [25, 13]";
    check(38, interleaved, &["25 microbatches do not divide into groups", "13 microbatches do not divide into groups"]);
}

/// A tensor group of unlike devices runs in lockstep and is refused; unlike stages and replicas are not.
#[test]
fn tensor_groups_are_of_one_kind() {
    let cluster = "[nodes.mixed]\nlike = \"dgx-a100\"\ndevices = [\"4 x a100-sxm4-80gb\", \"4 x v100-sxm2-32gb\"]\ndomain_size = 8\n[cluster]\nnodes = \"1 x mixed\"";
    let model = dense(16);
    let case = |plan| Case { nodes: cluster, model: &model, training: TRAINING, plan };
    case("tensor = 8").refused(&["unlike devices"]);
    for plan in ["tensor = 4\ndata = 2", "tensor = 4\npipeline = 2", "pipeline = 2\ntensor = 2"] {
        case(plan).planned();
    }
}

/// Nodes of A100s of which one is throttled, or its network is: `3 x dgx-a100` and one that is written out.
fn with_a_straggler(device: &str, node: &str) -> String {
    format!(
        "[devices.slow]\nlike = \"a100-sxm4-80gb\"\n{device}\n[nodes.straggler]\nlike = \"dgx-a100\"\n{node}\n\
         [cluster]\nnodes = [\"3 x dgx-a100\", \"1 x straggler\"]"
    )
}

fn explained(cluster: &str, plan: &str) -> trainyard::results::ExplainReport {
    let text = Case { nodes: cluster, model: &dense(16), training: TRAINING, plan }.text();
    let loaded = scenario::parse("s.toml", &text, Path::new("")).unwrap_or_else(|error| panic!("{error}\n{text}"));
    trainyard::explain(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

/// One device at 0.74 of its clock (or half): its tensor group waits for it in every layer, all replicas in every step, the
/// pipeline in every microbatch. The step is nearly that of a cluster of slow devices, and what the straggler costs is named.
#[test]
fn a_throttled_device_sets_the_pace_of_all_who_wait_for_it() {
    const ONE: &str = "devices = [\"1 x slow\", \"7 x a100-sxm4-80gb\"]";
    for (slowdown, plan) in [
        (1.0 / 0.74, "tensor = 8\ndata = 4"),
        (2.0, "tensor = 8\npipeline = 4"),
        (1.0 / 0.74, "data = 32"),
        (2.0, "tensor = 4\ndata = 8\nsequence_parallel = true"),
    ] {
        let device = format!("slowdown = {slowdown}");
        let healthy = milliseconds("4 x dgx-a100", plan);
        let one = with_a_straggler(&device, ONE);
        let slowed = milliseconds(&one, plan);
        let all = with_a_straggler(&device, "devices = \"8 x slow\"").replace("3 x dgx-a100", "3 x straggler");
        let everywhere = milliseconds(&all, plan);
        assert!(healthy < slowed && slowed <= everywhere * 1.001, "{plan}: {healthy} {slowed} {everywhere} ms");
        // All but what no pass is: exchanges, the pipeline's other stages at their ends.
        assert!(slowed > 0.9 * everywhere, "{plan}: {slowed} of {everywhere} ms");
        // The simulator says the same as the closed form.
        let text = Case { nodes: &one, model: &dense(16), training: TRAINING, plan }.text();
        let loaded = scenario::parse("s.toml", &text, Path::new("")).expect("read before");
        let simulated = trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
        let off = simulated.prediction.iteration_ms / slowed - 1.0;
        assert!(off.abs() < 0.01, "{plan}: {slowed} ms, {} ms simulated", simulated.prediction.iteration_ms);
        let report = explained(&one, plan);
        let named = report.sensitivity.iter().find(|row| row.what == "slow as fast as a100-sxm4-80gb");
        let change = named.and_then(|row| row.step_change).unwrap_or_else(|| panic!("{:#?}", report.sensitivity));
        assert!((change - (healthy / slowed - 1.0)).abs() < 0.01, "{plan}: {change}, {healthy} of {slowed} ms");
    }
}

/// One node whose network runs at a tenth holds up every exchange that crosses it, wherever it stands, and is named; the
/// simulator says the same as the closed form.
#[test]
fn a_slow_network_of_one_node_holds_up_all_who_wait_for_it() {
    let links = "[links.ib-slow]\nbandwidth = \"20Gbps\"\nlatency = \"5us\"\n";
    let last = format!("{links}{}", with_a_straggler("slowdown = 1.0", "nic = \"ib-slow\""));
    let listed = |nodes: &str| last.replace("[\"3 x dgx-a100\", \"1 x straggler\"]", nodes);
    let first = listed("[\"1 x straggler\", \"3 x dgx-a100\"]");
    let amid = listed("[\"1 x dgx-a100\", \"1 x straggler\", \"2 x dgx-a100\"]");
    for plan in ["tensor = 8\ndata = 4", "data = 32\nzero = 1"] {
        let healthy = milliseconds("4 x dgx-a100", plan);
        let everywhere = milliseconds(&listed("[\"4 x straggler\"]"), plan);
        for straggler in [&first, &amid, &last] {
            let slowed = milliseconds(straggler, plan);
            assert!(slowed > healthy * 1.02, "{plan}: {healthy} {slowed} ms");
            assert!((slowed / everywhere - 1.0).abs() < 0.001, "{plan}: {slowed} ms, {everywhere} if all were slow");
            let text = Case { nodes: straggler, model: &dense(16), training: TRAINING, plan }.text();
            let loaded = scenario::parse("s.toml", &text, Path::new("")).expect("read before");
            let simulated = trainyard::simulate(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
            let off = simulated.prediction.iteration_ms / slowed - 1.0;
            assert!(off.abs() < 0.01, "{plan}: {slowed} ms, {} ms simulated", simulated.prediction.iteration_ms);
            let report = explained(straggler, plan);
            let named =
                report.sensitivity.iter().find(|row| row.what == "network of straggler as fast as that of dgx-a100");
            let change = named.and_then(|row| row.step_change).unwrap_or_else(|| panic!("{:#?}", report.sensitivity));
            assert!((change - (healthy / slowed - 1.0)).abs() < 0.02, "{plan}: {change}, {healthy} of {slowed} ms");
        }
    }
}
