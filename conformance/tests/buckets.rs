//! Gradients that are reduced bucket by bucket beside the last backward pass.

use exec::data::generate;
use exec::runtime::{CpuBackend, CpuOptions};
use ir::program::Payload;
use ir::{Backend, Op, ZeroStage};
use sched::Folding;
use trainyard_conformance::dice::{SEED_VARIABLE, for_each_seed};
use trainyard_conformance::swarm::Case;

/// Losses and gradient norms of some iterations.
fn train(case: &Case) -> (Vec<f64>, Vec<f64>) {
    let mut backend = CpuBackend::new(case.cluster.clone(), generate(5, 60_000), CpuOptions::default());
    backend.load(case.program(Folding::Folded)).unwrap_or_else(|error| panic!("{error}"));
    let outcomes = (0..20).map(|iteration| backend.iterate(iteration).unwrap_or_else(|error| panic!("{error}")));
    outcomes.map(|outcome| (outcome.loss.expect("a loss"), outcome.gradient_norm.expect("a norm"))).unzip()
}

/// Whether a program reduces gradients bucket by bucket.
fn in_buckets(case: &Case) -> bool {
    let shallow = matches!(case.plan.zero, ZeroStage::Zero0 | ZeroStage::Zero1);
    let bucket = |op| matches!(op, Op::Collective { payload: Payload::UnitGradients { .. }, .. });
    shallow && case.program(Folding::Folded).roles.iter().any(|role| role.instructions().iter().any(|i| bucket(i.op)))
}

/// Gradients that are reduced bucket by bucket beside the last backward pass are those that are reduced when all passes have
/// ended, to the bit. Where a rank steps other elements (ZeRO-1) only the norm is added up in another order.
#[test]
fn buckets_beside_the_last_pass_change_no_bit() {
    let mut reached = [0; 2];
    for_each_seed(100, |seed| {
        let mut case = Case::tiny(seed, 8);
        case.workload.optimizer.clip_norm = None;
        case.plan.zero = if seed % 2 == 0 { ZeroStage::Zero0 } else { ZeroStage::Zero1 };
        case.plan.sharing.bucket = Some(if seed % 3 == 0 { 1500 } else { 1 });
        case.plan.overlap_gradients = true;
        if !in_buckets(&case) {
            return;
        }
        let mut after = case.clone();
        after.plan.overlap_gradients = false;
        let ((losses, norms), (after, others)) = (train(&case), train(&after));
        let bits = |all: &[f64]| all.iter().map(|loss| loss.to_bits()).collect::<Vec<_>>();
        assert_eq!(bits(&losses), bits(&after), "{:?}\n{losses:?}\n{after:?}", case.plan);
        let divided = case.plan.zero == ZeroStage::Zero1;
        let apart = norms.iter().zip(others).map(|(norm, other)| (norm / other - 1.0).abs()).fold(0.0, f64::max);
        assert!(apart <= if divided { 1e-12 } else { 0.0 }, "norms are {apart:.1e} apart\n{:?}", case.plan);
        reached[usize::from(divided)] += 1;
    });
    assert!(std::env::var(SEED_VARIABLE).is_ok() || reached.iter().all(|cases| *cases >= 5), "{reached:?}");
    let drawn = (0..100).filter(|seed| in_buckets(&Case::tiny(*seed, 8))).count();
    assert!(drawn >= 3, "{drawn} of 100 cases of the swarm that trains as one rank does");
}
