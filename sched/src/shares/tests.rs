use ir::{Schedule, ZeroStage};

use super::*;
use crate::testing::{plan, small_model, workload};

#[test]
fn remainders_go_to_the_largest() {
    let check = |microbatches: u32, weights: &[f64], expect: Option<&[u32]>| {
        let found = apportion(microbatches, weights);
        assert_eq!(found.as_deref(), expect, "{microbatches} by {weights:?}");
        if let Some(found) = found {
            assert_eq!(found.iter().sum::<u32>(), microbatches);
        }
    };
    check(25, &[3.0, 2.0], Some(&[15, 10]));
    check(24, &[2.0, 1.0], Some(&[16, 8]));
    check(10, &[1.0, 1.0, 1.0], Some(&[4, 3, 3]));
    check(7, &[100.0, 1.0, 1.0], Some(&[5, 1, 1]));
    check(3, &[5.0, 1.0, 1.0], Some(&[1, 1, 1]));
    check(2, &[1.0, 1.0, 1.0], None);
    check(5, &[1.0, 0.0], None);
    check(5, &[1.0, f64::NAN], None);
}

/// Who waits for whom in every pass, and through how many passes all of them go.
#[test]
fn replicas_that_divide_state_go_in_company() {
    let (model, work) = (small_model(4), workload(32, 18));
    let base = plan(&model, &work, [4, 1, 1, 1], Schedule::OneForwardOneBackward).with_shares(vec![6, 4, 3, 5]);
    let check = |zero: ZeroStage, shard: Option<u32>, experts: bool, rounds: [u32; 4], levels: &[&[u32]]| {
        let mut plan = base.clone();
        (plan.zero, plan.sharing.shard) = (zero, shard);
        let layout = crate::layout::layout(&plan);
        let found = turns(&layout, experts, &plan.schedule);
        assert_eq!(found.iter().map(|turn| turn.own).collect::<Vec<_>>(), [6, 4, 3, 5]);
        assert_eq!(found.iter().map(|turn| turn.rounds).collect::<Vec<_>>(), rounds, "{zero:?} {shard:?}");
        let found = companies(&layout, experts);
        let counts = |levels: &Vec<Level>| levels.iter().map(|level| level.microbatches).collect::<Vec<_>>();
        assert_eq!(found.iter().map(counts).collect::<Vec<_>>(), levels, "{zero:?} {shard:?}");
        for levels in &found {
            assert!(levels.windows(2).all(|pair| pair[0].replicas.len() > pair[1].replicas.len()), "{levels:?}");
        }
    };
    let apart: &[&[u32]] = &[&[6], &[4], &[3], &[5]];
    check(ZeroStage::Zero0, None, false, [6, 4, 3, 5], apart);
    check(ZeroStage::Zero1, None, true, [6, 4, 3, 5], apart);
    check(ZeroStage::Zero2, Some(1), false, [6, 4, 3, 5], apart);
    check(ZeroStage::Zero2, Some(2), false, [6, 6, 5, 5], &[&[4, 6], &[3, 5]]);
    check(ZeroStage::Zero3, Some(2), true, [6; 4], &[&[3, 4, 5, 6]]);
    check(ZeroStage::Zero3, None, false, [6; 4], &[&[3, 4, 5, 6]]);
}
