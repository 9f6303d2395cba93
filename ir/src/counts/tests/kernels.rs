//! Kernels, their bytes and launches.

use super::models::{deepseek, families, gpt2, llama_8b, olmo, qwen3_30b};
use super::*;
use crate::MicrobatchId;

#[test]
fn backward_is_its_two_halves_in_order() {
    for model in families() {
        let (workload, layout) = (workload(), layout(2, true));
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        for recompute in [Recompute::None, Recompute::Selective, Recompute::Full] {
            for kind in UnitKind::ALL.into_iter().filter(|kind| kind.is_in(&model)) {
                let list = |pass| kernels_of(shape, kind, pass, recompute);
                let halves = [list(Pass::BackwardInput), list(Pass::BackwardWeight)].concat();
                assert_eq!(list(Pass::Backward), halves, "{kind:?}");
                assert_eq!(list(Pass::Forward), list(Pass::Recompute), "{kind:?}");
            }
        }
    }
}

#[test]
fn selective_recomputation_adds_one_forward_core() {
    for (model, kind) in [(gpt2(), UnitKind::Attention), (olmo(), UnitKind::Window), (deepseek(), UnitKind::Latent)] {
        let (workload, layout) = (workload(), layout(1, false));
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        let none = kernels_of(shape, kind, Pass::BackwardInput, Recompute::None);
        let selective = kernels_of(shape, kind, Pass::BackwardInput, Recompute::Selective);
        assert!(matches!(selective[0], Kernel::Attention { backward: false, .. }), "{kind:?}");
        assert_eq!(&selective[1..], &none[..]);
    }
}

#[test]
fn a_recomputation_that_stops_early_leaves_out_the_last_product() {
    for model in families() {
        let (mut workload, layout) = (workload(), layout(2, true));
        workload.recipe.early_stop_recompute = true;
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        for kind in UnitKind::ALL.into_iter().filter(|kind| kind.is_in(&model)) {
            let sum = |pass| {
                let kernels = kernels_of(shape, kind, pass, Recompute::Full);
                kernels.into_iter().map(|kernel| flops(kernel).get()).sum::<u128>()
            };
            let left_out = sum(Pass::Forward) - sum(Pass::Recompute);
            let expect = match (kind, model.variants.experts) {
                (UnitKind::Dense, _) => 2 * 2048 * shape.rank_ffn() * u64::from(model.hidden),
                (UnitKind::Experts, Some(experts)) => {
                    let shared = if experts.shared_gate { 0 } else { shape.rank_shared_ffn() };
                    let routed = shape.received_copies() * shape.rank_expert_ffn();
                    2 * (routed + 2048 * shared) * u64::from(model.hidden)
                }
                _ => 0,
            };
            assert_eq!(left_out, u128::from(expect), "{} {kind:?}", model.name);
        }
    }
}

#[test]
fn the_fused_softmax_takes_heads_in_fours() {
    let model = gpt2();
    let fused = |tensor, microbatch_size, switch| {
        let (mut workload, mut layout) = (workload(), layout(tensor, false));
        (layout.microbatch_size, workload.recipe.fused_softmax) = (microbatch_size, switch);
        Shape { model: &model, workload: &workload, layout: &layout }.fused_softmax()
    };
    assert_eq!(
        [fused(1, 1, true), fused(4, 1, true), fused(4, 4, true), fused(1, 1, false)],
        [true, false, true, false]
    );
}

#[test]
fn cores_are_those_of_their_mixers() {
    let core = |model: &Model, kind, change: &dyn Fn(&mut Workload, &mut Layout)| {
        let (mut workload, mut layout) = (workload(), layout(4, true));
        change(&mut workload, &mut layout);
        let shape = Shape { model, workload: &workload, layout: &layout };
        let kernels = kernels_of(shape, kind, Pass::Forward, Recompute::None);
        kernels.into_iter().find(|kernel| matches!(kernel, Kernel::Attention { .. })).expect("a core")
    };
    let expect = |heads, kv_heads, [head_dim, value_dim]: [u64; 2], window| Kernel::Attention {
        sequences: 2,
        sequence_length: 1024,
        heads,
        kv_heads,
        head_dim,
        value_dim,
        window,
        context: 1,
        pieces: 1,
        kernel: AttentionKernel::Fused,
        fused_softmax: true,
        backward: false,
    };
    assert_eq!(core(&deepseek(), UnitKind::Latent, &|_, _| {}), expect(32, 32, [192, 128], 1024));
    assert_eq!(core(&olmo(), UnitKind::Window, &|_, _| {}), expect(10, 2, [128, 128], 1024));
    let mut narrow = olmo();
    narrow.variants.window = Some(256);
    assert_eq!(core(&narrow, UnitKind::Window, &|_, _| {}), expect(10, 2, [128, 128], 256));
    assert_eq!(core(&narrow, UnitKind::Attention, &|_, _| {}), expect(10, 2, [128, 128], 1024));
    let with = |method| {
        core(&llama_8b(), UnitKind::Attention, &move |_: &mut Workload, layout: &mut Layout| {
            (layout.mesh.context, layout.mesh.context_method) = (2, method);
        })
    };
    let Kernel::Attention { heads, context, pieces, .. } = with(crate::ContextMethod::Ring) else { panic!() };
    assert_eq!((heads, context, pieces), (8, 2, 2));
    let Kernel::Attention { heads, kv_heads, context, pieces, sequence_length, .. } =
        with(crate::ContextMethod::AllToAll)
    else {
        panic!()
    };
    assert_eq!((heads, kv_heads, context, pieces, sequence_length), (4, 1, 1, 1, 1024));
}

/// Bytes per token and hidden number of a layer's streaming kernels, forward.
fn layer_bytes(model: &Model, workload: &Workload) -> f64 {
    let layout = layout(1, false);
    let shape = Shape { model, workload, layout: &layout };
    let kinds = [UnitKind::AttentionNorm, UnitKind::Attention, UnitKind::MlpNorm];
    let bytes: u64 = kinds.into_iter().map(|kind| streamed(shape, kind, Pass::Forward)).sum();
    bytes as f64 / (shape.tokens() * u64::from(model.hidden)) as f64
}

#[test]
fn elementary_kernels_move_what_was_measured() {
    // Runs of Llama models with plain norms and rotations show 100 to 150 bytes per token and hidden number where fused
    // kernels need some 15 to 30.
    let mut model = llama_8b();
    model.kv_heads = model.heads;
    let (mut plain, fused) = (workload(), workload());
    plain.recipe.fused_normalisation = false;
    let (more, less) = (layer_bytes(&model, &plain), layer_bytes(&model, &fused));
    assert!((100.0..150.0).contains(&more), "{more} bytes");
    assert!((15.0..30.0).contains(&less), "{less} bytes");
    // PyTorch's LayerNorm is one kernel.
    assert!((layer_bytes(&gpt2(), &plain) - layer_bytes(&gpt2(), &fused)).abs() < 1e-9);
}

#[test]
fn losses_move_what_was_measured() {
    let model = llama_8b();
    let bytes = |sharded: bool, fused: bool| {
        let (mut workload, layout) = (workload(), layout(4, true));
        (workload.recipe.sharded_loss, workload.recipe.fused_loss) = (sharded, fused);
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        let forward = streamed(shape, UnitKind::Head, Pass::Forward) + streamed(shape, UnitKind::Loss, Pass::Forward);
        let logits = shape.tokens() * shape.rank_vocabulary();
        (forward + streamed(shape, UnitKind::Loss, Pass::Backward)) as f64 / logits as f64
    };
    // Per logit of a rank's part: about 20, 40, and four times as many where each rank has all of them.
    for (sharded, fused, expect) in
        [(true, true, 20.0), (true, false, 40.0), (false, true, 80.0), (false, false, 160.0)]
    {
        assert!((bytes(sharded, fused) / expect - 1.0).abs() < 0.01, "{sharded} {fused}: {}", bytes(sharded, fused));
    }
}

#[test]
fn launches_are_those_of_frameworks() {
    let layer = |model: &Model, change: &dyn Fn(&mut Workload), pass| {
        let (mut workload, layout) = (workload(), layout(1, false));
        change(&mut workload);
        let shape = Shape { model, workload: &workload, layout: &layout };
        let kinds = [UnitKind::AttentionNorm, UnitKind::Attention, UnitKind::MlpNorm, UnitKind::Dense];
        kinds.into_iter().map(|kind| launched(shape, kind, pass)).sum::<u32>()
    };
    let plain = |workload: &mut Workload| workload.attention = AttentionKernel::Plain;
    let flash = layer(&gpt2(), &|_| {}, Pass::Forward);
    let (forward, backward) = (layer(&gpt2(), &plain, Pass::Forward), layer(&gpt2(), &plain, Pass::Backward));
    assert!((10..=18).contains(&flash), "{flash}");
    assert!((14..=26).contains(&forward), "{forward}");
    let ratio = f64::from(backward) / f64::from(forward);
    assert!((1.4..2.0).contains(&ratio), "{forward} and {backward}");
    // Elementary norms and rotations launch tens more.
    let elementary = layer(&llama_8b(), &|workload| workload.recipe.fused_normalisation = false, Pass::Forward);
    assert!(elementary > 20 + layer(&llama_8b(), &|_| {}, Pass::Forward), "{elementary}");
    // Routing launches about a dozen kernels beside the products.
    let (model, workload, layout) = (qwen3_30b(), workload(), layout(1, false));
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    let routed =
        launched(shape, UnitKind::RouterNorm, Pass::Forward) + launched(shape, UnitKind::Experts, Pass::Forward);
    let dense = launched(shape, UnitKind::MlpNorm, Pass::Forward) + launched(shape, UnitKind::Dense, Pass::Forward);
    assert!((10..=16).contains(&(routed - dense)), "{routed} against {dense}");
}

#[test]
fn eight_bit_products_convert_their_operands() {
    let model = llama_8b();
    let casts = |kind, pass, change: &dyn Fn(&mut Layout)| {
        let (mut workload, mut layout) = (workload(), layout(2, true));
        workload.precision = Precision::Fp8;
        change(&mut layout);
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        let of_cast = |kernel: Kernel| match kernel {
            Kernel::Streaming { kind: Streaming::Cast, bytes, .. } => Some(bytes.get()),
            Kernel::Streaming { .. }
            | Kernel::MatrixProduct { .. }
            | Kernel::GroupedProduct { .. }
            | Kernel::Attention { .. } => None,
        };
        kernels_of(shape, kind, pass, Recompute::None).into_iter().filter_map(of_cast).collect::<Vec<u64>>()
    };
    let (h, f, t) = (4096, 14_336 / 2, 2048);
    let dense = UnitKind::Dense;
    assert_eq!(casts(dense, Pass::Forward, &|_| {}), [4 * t * h, 4 * h * 2 * f, 4 * t * f, 4 * f * h]);
    assert_eq!(casts(dense, Pass::BackwardInput, &|_| {}), [4 * t * h, 4 * t * 2 * f]);
    assert_eq!(casts(dense, Pass::BackwardWeight, &|_| {}), []);
    // Weights once in an iteration of four microbatches; each time where they are gathered.
    let four = |layout: &mut Layout| layout.microbatches = 4;
    assert_eq!(casts(dense, Pass::Forward, &four)[1], h * 2 * f);
    let gathered = |layout: &mut Layout| (layout.microbatches, layout.zero) = (4, ZeroStage::Zero3);
    assert_eq!(casts(dense, Pass::Forward, &gathered)[1], 4 * h * 2 * f);
    assert_eq!(casts(UnitKind::Head, Pass::Forward, &|_| {}), []);
}

#[test]
fn experts_are_grouped_products() {
    let model = qwen3_30b();
    let (workload, mut layout) = (workload(), layout(2, true));
    (layout.mesh.expert, layout.mesh.expert_tensor, layout.data) = (4, 2, 4);
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    // 1,024 tokens of each of eight ranks, eight copies each, over 128 experts; half of each matrix.
    let grouped = |m, n, k| Kernel::GroupedProduct { groups: 32, m, n, k };
    let products = |pass| {
        let kernels = kernels_of(shape, UnitKind::Experts, pass, Recompute::None);
        kernels.into_iter().filter(|kernel| matches!(kernel, Kernel::GroupedProduct { .. })).collect::<Vec<_>>()
    };
    assert_eq!(products(Pass::Forward), [grouped(512, 768, 2048), grouped(512, 2048, 384)]);
    assert_eq!(products(Pass::BackwardInput), [grouped(512, 384, 2048), grouped(512, 2048, 768)]);
    assert_eq!(products(Pass::BackwardWeight), [grouped(384, 2048, 512), grouped(2048, 768, 512)]);
}

#[test]
fn absurd_sizes_stay_inside_their_types() {
    for model in families() {
        let (mut workload, mut layout) = (workload(), layout(1, false));
        (workload.sequence_length, layout.microbatch_size) = (1 << 26, u32::MAX);
        workload.recipe.expert_imbalance = 1e300;
        let shape = Shape { model: &model, workload: &workload, layout: &layout };
        for kind in UnitKind::ALL.into_iter().filter(|kind| kind.is_in(&model)) {
            for pass in [Pass::Forward, Pass::Backward] {
                for kernel in kernels_of(shape, kind, pass, Recompute::Selective) {
                    assert!(kernel.launches() > 0 || matches!(kernel, Kernel::Streaming { .. }));
                }
            }
        }
        let payload = crate::program::Payload::Activation {
            tensor: crate::program::UnitTensor::ExpertInput,
            chunk: crate::ChunkId::new(0),
            unit: 0,
            microbatch: MicrobatchId::new(0),
            pass: Pass::Forward,
        };
        if model.variants.experts.is_some() {
            assert_eq!(payload_bytes(shape, payload), LARGEST);
        }
    }
}
