//! Random shapes, extremes among them: every price is finite, at least a nanosecond, and the same twice.

use ir::program::{CollectiveKind, UnitRange};
use ir::{
    AttentionKernel, Bytes, CollectiveAlgorithm, DeviceId, DeviceKindId, MlpKind, NormKind, Positions, Precision,
    Recompute,
};

use super::fixtures::*;
use crate::memory::{kept, left_for_weights, logits, recomputed, workspace};
use crate::prices::PASSES;
use crate::{CostModel, GroupPlace};

fn shape(draw: &mut Draw) -> Owned {
    let heads = draw.of(&[1u32, 2, 3, 12, 96, 128]);
    let mut model = gpt(draw.of(&[8u32, 64, 768, 12_288, 65_536]) * heads, 20 + draw.small(200), heads);
    model.head_dim = draw.of(&[1, 8, 64, 128, 576]);
    model.ffn = 1 + draw.small(200_000);
    model.vocabulary = draw.of(&[1, 256, 50_257, 1_000_000]);
    model.mlp = draw.of(&[MlpKind::Gelu, MlpKind::SwiGlu]);
    model.norm = draw.of(&[NormKind::LayerNorm, NormKind::RmsNorm]);
    model.positions = draw.of(&[Positions::Rope { theta: 1e4 }, Positions::Learned { maximum: 4096 }]);
    model.qkv_bias = draw.below(2) == 0;
    model.tied_head = draw.below(2) == 0;
    let mut workload = workload(draw.of(&Precision::ALL), draw.of(&[AttentionKernel::Fused, AttentionKernel::Plain]));
    workload.sequence_length = draw.of(&[1, 7, 128, 4096, 131_072]);
    let tensor = draw.of(&[1u32, 2, 8]);
    let layout = layout(tensor, tensor > 1 && draw.below(2) == 0, draw.of(&[1, 3, 64, 1_000_000_000]));
    Owned(model, workload, layout)
}

#[test]
fn every_price_of_a_random_swarm_is_a_time() {
    let seed = 20_260_130;
    let mut draw = Draw(seed);
    let clusters: Vec<CostModel> = ["a100", "h100", "v100", "cpu"]
        .into_iter()
        .map(|name| {
            let cluster = cluster(
                device("x", name, 100.0, 1e12, 80),
                4,
                8,
                4,
                link("nvlink3", 300e9, 1500),
                link("ib-hdr", 25e9, 1750),
            );
            CostModel::new(cluster, vec![catalog(name)]).unwrap()
        })
        .collect();
    for case in 0..400 {
        let owned = shape(&mut draw);
        let model = &clusters[case % clusters.len()];
        let chunk = chunk(
            draw.small(20),
            draw.below(2) == 0,
            draw.below(2) == 0,
            draw.of(&[Recompute::None, Recompute::Selective, Recompute::Full]),
        );
        let start = draw.small(chunk.units() + 1);
        let units = UnitRange { start, end: start + draw.small(chunk.units() - start + 1) };
        let prices = model.prepare(owned.shape());
        for pass in PASSES {
            let priced = model.compute(owned.shape(), &chunk, pass, units, DeviceKindId::new(0));
            let nanoseconds = priced.duration.nanoseconds();
            assert!((1..1 << 62).contains(&nanoseconds), "seed {seed}, case {case}, {pass:?}: {nanoseconds}");
            assert_eq!(priced, prices.compute(&chunk, pass, units, DeviceKindId::new(0)), "seed {seed}, case {case}");
            let _ = workspace(owned.shape(), &chunk, pass, units);
        }
        for of in [kept, recomputed, left_for_weights] {
            let _ = of(owned.shape(), &chunk, units);
        }
        let _ = logits(owned.shape(), &chunk);
        collective(&mut draw, model, case);
    }
}

fn collective(draw: &mut Draw, model: &CostModel, case: usize) {
    let count = 1 + draw.small(32);
    let first = draw.small(33 - count);
    let members: Vec<DeviceId> = (first..first + count).map(DeviceId::new).collect();
    let place = GroupPlace::of(model.cluster(), &members);
    let bytes = Bytes::new(draw.of(&[0u64, 1, 1 << 10, 1 << 30, 1 << 50]));
    let kind = draw.of(&CollectiveKind::ALL);
    let of = |algorithm| model.collective(kind, bytes, place, algorithm);
    let explicit = [CollectiveAlgorithm::Ring, CollectiveAlgorithm::Tree, CollectiveAlgorithm::Hierarchical].map(of);
    let automatic = of(CollectiveAlgorithm::Automatic);
    for priced in explicit.into_iter().chain([automatic]) {
        assert!((1..1 << 62).contains(&priced.duration.nanoseconds()), "case {case}: {place:?} {bytes:?} {priced:?}");
    }
    if model.cluster().device_kind(DeviceKindId::new(0)).calibration != "cpu" {
        assert!(
            explicit.iter().all(|other| other.duration >= automatic.duration),
            "case {case}: {explicit:?} {automatic:?}"
        );
    }
    let message = model.message(bytes, members[0], members[members.len() - 1]);
    assert!((1..1 << 62).contains(&message.duration.nanoseconds()));
}
