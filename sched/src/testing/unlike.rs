//! Random plans whose stages have unlike tensor degrees.

use ir::{Cluster, Model, NodeGroup, NodeKindId, Plan, Workload, ZeroStage};
use rand::RngExt;

use super::{dgx, node, random, random_case, share_out};
use crate::legality::legal;

/// All devices on one switch: every lane has the same price.
pub(crate) fn one_domain(devices: u32) -> Cluster {
    let mut cluster = dgx(1);
    cluster.node_kinds = vec![node("one", &vec![0; devices as usize], devices, devices)];
    cluster.groups = vec![NodeGroup { kind: NodeKindId::new(0), count: 1 }];
    cluster
}

/// A random legal plan of unlike degrees with any sharding over replicas, its model, workload and cluster: of odd seeds
/// one
/// domain, of others whatever there is.
pub(crate) fn random_unlike_case(seed: u64) -> (Plan, Model, Workload, Cluster) {
    for attempt in 0u64.. {
        let (mut plan, model, mut work, cluster) = random_case(seed ^ (attempt << 32));
        let rng = &mut random(seed ^ (attempt << 32) ^ 0x7e25);
        let pick = |rng: &mut rand_chacha::ChaCha8Rng, choices: &[u32]| choices[rng.random_range(0..choices.len())];
        let degrees = (0..plan.pipeline()).map(|_| pick(rng, &[1, 2, 2, 4])).collect::<Vec<_>>();
        plan = plan.with_tensors(&degrees);
        plan.sequence_parallel = rng.random_bool(0.5);
        plan.zero = ZeroStage::ALL[rng.random_range(0..4)];
        if plan.zero != ZeroStage::Zero0 && rng.random_bool(0.4) {
            plan.sharing.shard = Some(pick(rng, &[1, 2, plan.data]));
        }
        plan.sharing.prefetch = plan.zero == ZeroStage::Zero3 && rng.random_bool(0.7);
        let parameters = matches!(plan.zero, ZeroStage::Zero1 | ZeroStage::Zero2);
        plan.sharing.overlap_parameters = parameters && rng.random_bool(0.5);
        plan.sharing.overlap_tensor = plan.sequence_parallel && rng.random_bool(0.3);
        plan.sharing.offload_optimizer = rng.random_bool(0.15);
        work.recipe.sharded_loss = rng.random_bool(0.7);
        if plan.data > 1 && plan.microbatches > 1 && rng.random_bool(0.2) {
            share_out(seed ^ attempt, &mut plan, &mut work);
        }
        let world = u32::try_from(plan.world()).unwrap_or(u32::MAX).min(1 << 10);
        let cluster = if seed % 2 == 1 { one_domain(world) } else { cluster };
        if plan.has_unlike_tensors() && legal(&plan, &model, &work, &cluster).is_empty() {
            return (plan, model, work, cluster);
        }
    }
    unreachable!("some case is legal")
}
