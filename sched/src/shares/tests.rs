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

/// U42 and hetseq#11: shares as rates are, as far as whole microbatches and memory go.
#[test]
fn unlike_replicas_end_together() {
    let pace =
        |replicas: std::ops::Range<u32>, fixed, each, most| Pace { replicas: replicas.collect(), fixed, each, most };
    let check = |paces: &[Pace], microbatches: u32, unit: u32, expect: Option<&[u32]>| {
        assert_eq!(balanced(paces, microbatches, unit).as_deref(), expect, "{microbatches} by {unit}: {paces:?}");
    };
    let cards = [pace(0..1, 0, 20, 100), pace(1..2, 0, 30, 100)];
    check(&cards, 25, 1, Some(&[15, 10]));
    check(&cards, 24, 1, Some(&[14, 10]));
    check(&cards, 20, 4, Some(&[12, 8]));
    check(&cards, 22, 4, None);
    check(&[pace(0..2, 50, 10, 100), pace(2..4, 50, 20, 100)], 24, 1, Some(&[8, 8, 4, 4]));
    // The small card takes as much as it holds.
    check(&[pace(0..1, 0, 20, 100), pace(1..2, 0, 30, 7)], 25, 1, Some(&[18, 7]));
    check(&[pace(0..1, 0, 20, 10), pace(1..2, 0, 30, 10)], 25, 1, None);
    check(&[pace(0..1, 0, 20, 10), pace(1..2, 0, 30, 0)], 5, 1, None);
    // A replica that is far slower still takes one.
    check(&[pace(0..3, 0, 1, 100), pace(3..4, 0, 1000, 100)], 31, 1, Some(&[10, 10, 10, 1]));
    check(&[pace(0..3, 0, 7, 100)], 8, 1, Some(&[3, 3, 2]));
}

/// No other shares end sooner: all of them tried, over random paces.
#[test]
fn no_shares_end_sooner() {
    use rand::RngExt;
    for seed in 0..300 {
        let rng = &mut crate::testing::random(seed);
        let paces = (0..3u32)
            .map(|replica| Pace {
                replicas: vec![replica],
                fixed: rng.random_range(0..50),
                each: rng.random_range(1..30),
                most: rng.random_range(1..12),
            })
            .collect::<Vec<_>>();
        let microbatches: u32 = rng.random_range(3..20);
        let end = |counts: &[u32]| {
            let all = paces.iter().zip(counts).map(|(pace, n)| pace.fixed + pace.each * u64::from(*n));
            all.max().unwrap()
        };
        let mut best = None;
        for (a, b) in (1..=paces[0].most).flat_map(|a| (1..=paces[1].most).map(move |b| (a, b))) {
            let Some(c) = microbatches.checked_sub(a + b).filter(|c| (1..=paces[2].most).contains(c)) else { continue };
            let time = end(&[a, b, c]);
            best = Some(best.map_or(time, |best: u64| best.min(time)));
        }
        let found = balanced(&paces, microbatches, 1);
        if let Some(found) = &found {
            assert_eq!(found.iter().sum::<u32>(), microbatches, "seed {seed}");
        }
        assert_eq!(found.map(|counts| end(&counts)), best, "seed {seed}: {microbatches} over {paces:?}");
    }
}
