//! E: devices that differ.

use std::path::Path;

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

/// U42: a batch that replicas cannot share equally is refused with the nearest that they can, whatever does not divide.
#[test]
fn unequal_shares_are_refused_with_what_is_equal() {
    let check = |batch: u32, plan: &str, needles: &[&str]| {
        let training = format!("sequence_length = 512\nglobal_batch = {batch}");
        let case = Case { nodes: "1 x dgx-a100", model: &dense(8), training: &training, plan };
        case.refused(needles);
    };
    check(100, "data = 8", &["100", "a global batch of 96 or 104"]);
    check(60, "data = 8\nmicrobatch_size = 2", &["60", "a global batch of 48 or 64"]);
    check(7, "data = 2\npipeline = 4", &["7", "a global batch of 6 or 8"]);
    check(64, "data = 8\nmicrobatch_size = 3", &["64", "a global batch of 48 or 72"]);
    // Not a share for each replica.
    check(64, "data = 2\nmicrobatches = [24, 40]", &["plan.microbatches", "replicas have equal shares"]);
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

/// One node whose network runs at a tenth holds up every exchange that crosses it, and is named. It stands first: a collective
/// is priced by the network of its first member's node, which the row says.
#[test]
fn a_slow_network_of_one_node_holds_up_all_who_wait_for_it() {
    let links = "[links.ib-slow]\nbandwidth = \"20Gbps\"\nlatency = \"5us\"\n";
    let straggler = format!("{links}{}", with_a_straggler("slowdown = 1.0", "nic = \"ib-slow\""));
    let straggler = straggler.replace("[\"3 x dgx-a100\", \"1 x straggler\"]", "[\"1 x straggler\", \"3 x dgx-a100\"]");
    for plan in ["tensor = 8\ndata = 4", "data = 32\nzero = 1"] {
        let (healthy, slowed) = (milliseconds("4 x dgx-a100", plan), milliseconds(&straggler, plan));
        assert!(slowed > healthy * 1.02, "{plan}: {healthy} {slowed} ms");
        let report = explained(&straggler, plan);
        let named =
            report.sensitivity.iter().find(|row| row.what == "network of straggler as fast as that of dgx-a100");
        assert!(named.is_some_and(|row| row.note.contains("first member's node")), "{:#?}", report.sensitivity);
        let change = named.and_then(|row| row.step_change).unwrap_or_else(|| panic!("{:#?}", report.sensitivity));
        assert!((change - (healthy / slowed - 1.0)).abs() < 0.02, "{plan}: {change}, {healthy} of {slowed} ms");
    }
}
