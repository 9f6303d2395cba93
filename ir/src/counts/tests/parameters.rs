//! Parameters against published figures, and their division over ranks.

use super::models::{families, known};
use super::*;
use crate::program::Unit;

#[test]
fn parameters_of_known_models() {
    for (model, expect, active) in known() {
        assert_eq!(model.problems(), [], "{}", model.name);
        assert_eq!(model.parameters(), expect, "{}", model.name);
        assert_eq!(model.active_parameters(), active, "{}", model.name);
    }
    // Published as 51.6e9 and 79.7e9 (without the layers of multi-token prediction) and 20.9e9.
    for (name, low, high) in [("Jamba", 51.55e9, 51.65e9), ("Qwen3-Next", 79.6e9, 79.8e9), ("gpt-oss", 20.9e9, 20.93e9)]
    {
        let model = families().into_iter().find(|model| model.name.starts_with(name)).expect("a family");
        let parameters = model.parameters() as f64;
        assert!((low..high).contains(&parameters), "{name}: {parameters}");
    }
}

/// Divisions of a tensor group and of experts that pad nothing of the model.
fn divisions(model: &Model) -> Vec<(Layout, u64)> {
    let mut layouts = Vec::new();
    for (tensor, expert, expert_tensor) in
        [(1, 1, 1), (2, 1, 1), (2, 4, 1), (4, 2, 2), (8, 1, 1), (8, 8, 1), (1, 16, 1), (2, 2, 4)]
    {
        let experts = model.variants.experts.map_or(expert, |experts| experts.count);
        let divides = [model.heads, model.kv_heads, model.ffn].iter().all(|size| size.is_multiple_of(tensor))
            && experts.is_multiple_of(expert)
            && model.padded_vocabulary(1, tensor) == u64::from(model.vocabulary);
        if !divides {
            continue;
        }
        let mut layout = layout(tensor, true);
        (layout.mesh.expert, layout.mesh.expert_tensor) = (expert, expert_tensor);
        layout.data = expert * expert_tensor;
        layouts.push((layout, u64::from(expert) * u64::from(expert_tensor)));
    }
    layouts
}

#[test]
fn what_ranks_hold_is_the_model() {
    for model in known().into_iter().map(|(model, ..)| model).chain(families()) {
        let divisions = divisions(&model);
        assert!(!divisions.is_empty(), "{}", model.name);
        for (layout, expert_ranks) in divisions {
            let workload = workload();
            let shape = Shape { model: &model, workload: &workload, layout: &layout };
            let chunk = whole(&model);
            let units = || (0..chunk.units()).map(|at| chunk.unit(at));
            let whole: u64 = units().map(|unit| replicated_parameters(shape, unit)).sum();
            let held = held_parameters(shape, &chunk, chunk.all_units());
            // Biases of the experts' last matrices are on every expert-tensor rank.
            let copies = model.variants.experts.filter(|experts| experts.bias).map_or(0, |experts| {
                let layers = unit_counts(&model, &chunk, chunk.all_units()).all()[UnitKind::Experts as usize];
                let biases = u64::from(layers) * u64::from(experts.count) * u64::from(model.hidden);
                biases * (shape.expert_tensor() - 1)
            });
            // What is split adds up, what every rank holds counts once.
            let all = (held.common - whole) * shape.tensor() + whole + held.experts * expert_ranks - copies;
            assert_eq!(all, model.parameters(), "{} over {layout:?}", model.name);
            assert_eq!(held.total(), chunk_parameters(shape, &chunk));
            assert_eq!(held.experts, chunk_expert_parameters(shape, &chunk));
            let by_unit: u64 = units().map(|unit| unit_parameters(shape, unit)).sum();
            let tied = if model.tied_head { unit_parameters(shape, Unit::Head) } else { 0 };
            assert_eq!(by_unit - tied, held.total(), "{} over {layout:?}", model.name);
            let partial: u64 = units().map(|unit| partial_gradient_parameters(shape, unit)).sum();
            assert_eq!(partial, chunk_partial_gradient_parameters(shape, &chunk));
        }
    }
}

#[test]
fn chunks_hold_what_their_units_hold() {
    let model = super::models::deepseek();
    let (workload, layout) = (workload(), layout(8, true));
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    let whole = whole(&model);
    let parts = [(0, 3), (3, 7), (10, 51)].map(|(first_layer, layers)| Chunk {
        first_layer,
        layers,
        embedding: first_layer == 0,
        head: first_layer + layers == model.layers,
        ..whole.clone()
    });
    let sum: u64 = parts.iter().map(|chunk| chunk_parameters(shape, chunk)).sum();
    assert_eq!(sum, chunk_parameters(shape, &whole));
    assert_eq!(chunk_expert_parameters(shape, &parts[0]), 0);
    // 256 experts of three matrices in each of seven layers.
    assert_eq!(chunk_expert_parameters(shape, &parts[1]), 7 * 256 * 3 * 7168 * 2048);
}

#[test]
fn keys_of_fewer_heads_than_ranks_are_copied() {
    let model = super::models::qwen3_30b();
    let (workload, layout) = (workload(), layout(8, true));
    let shape = Shape { model: &model, workload: &workload, layout: &layout };
    assert_eq!((shape.rank_kv_heads(), shape.rank_kv_width()), (1, 128));
    let expect = 2048 * (2 * 4 * 128 + 2 * 128) + 2 * 128;
    assert_eq!(unit_parameters(shape, Unit::Attention(0)), expect);
    // Norms, the router, and the norms of heads.
    assert_eq!(partial_gradient_parameters(shape, Unit::MlpNorm(0)), 2048 + 2048 * 128);
    assert_eq!(partial_gradient_parameters(shape, Unit::Attention(0)), 256);
}
