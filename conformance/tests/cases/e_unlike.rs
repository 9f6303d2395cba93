//! E: devices that differ.

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
