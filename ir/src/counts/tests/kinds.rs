//! Units by kind, against going through them one by one.

use super::models::families;
use super::*;
use crate::testing::Random;

#[test]
fn counts_are_those_of_the_units() {
    let mut random = Random::new(3);
    let below = |random: &mut Random, limit: u32| u32::try_from(random.below(u64::from(limit))).expect("under a u32");
    for model in families() {
        for _ in 0..200 {
            let first_layer = below(&mut random, model.layers);
            let layers = 1 + below(&mut random, model.layers - first_layer);
            let chunk = Chunk {
                first_layer,
                layers,
                embedding: below(&mut random, 2) == 0,
                head: below(&mut random, 2) == 0,
                recompute: Recompute::Selective,
                recomputed_layers: below(&mut random, layers + 2),
                ..whole(&model)
            };
            let end = below(&mut random, chunk.units() + 1);
            let units = UnitRange { start: below(&mut random, end + 1), end };
            let mut naive = UnitCounts::default();
            for unit in (units.start..units.end).map(|at| chunk.unit(at)) {
                let kind = UnitKind::of(&model, unit);
                let recomputed = kind.in_layer() && {
                    use crate::program::Unit::{Attention, AttentionNorm, Mlp, MlpNorm};
                    let (AttentionNorm(layer) | Attention(layer) | MlpNorm(layer) | Mlp(layer)) = unit else {
                        panic!("{unit:?} is in no layer")
                    };
                    chunk.recompute_of(layer) == Recompute::Selective
                };
                let counts = if recomputed { &mut naive.recomputed } else { &mut naive.kept };
                counts[kind as usize] += 1;
            }
            assert_eq!(unit_counts(&model, &chunk, units), naive, "{} {chunk:?} {units:?}", model.name);
        }
    }
}

#[test]
fn kinds_stand_in_their_order() {
    for (place, kind) in UnitKind::ALL.into_iter().enumerate() {
        assert_eq!(kind as usize, place);
        assert_eq!(kind.mixer().map(UnitKind::of_mixer).unwrap_or(kind), kind);
    }
    for (place, kind) in Streaming::ALL.into_iter().enumerate() {
        assert_eq!((Streaming::from_name(kind.name()), kind as usize), (Some(kind), place));
        // What is not measured has a rate within two steps.
        let stand_in = kind.stand_in().unwrap_or(kind);
        assert!(stand_in.stand_in().unwrap_or(stand_in).stand_in().is_none(), "{kind:?}");
    }
    assert_eq!(Streaming::from_name("softmax"), None);
}

#[test]
fn eight_bits_are_for_matrices_of_layers() {
    let mut workload = workload();
    workload.precision = Precision::Fp8;
    for (kind, expect) in [
        (UnitKind::Attention, Precision::Fp8),
        (UnitKind::Experts, Precision::Fp8),
        (UnitKind::RouterNorm, Precision::Bf16),
        (UnitKind::Head, Precision::Bf16),
    ] {
        assert_eq!(product_precision(&workload, kind), expect, "{kind:?}");
    }
    workload.precision = Precision::Tf32;
    assert_eq!(product_precision(&workload, UnitKind::Dense), Precision::Tf32);
}
