use ir::{
    ContextMethod, FeedForward, LayerRun, Mixer, Model, ParallelBranches, Plan, Recompute, Schedule, StageId, Workload,
    ZeroStage,
};

use super::*;
use crate::testing::{plan, small_model, workload};

/// One chunk of a plan that a test changes.
struct Asked {
    model: Model,
    work: Workload,
    plan: Plan,
    chunk: Chunk,
}

fn ask(tensor: u32, layers: u32, ends: [bool; 2], change: impl FnOnce(&mut Asked)) -> Asked {
    let (model, work) = (small_model(4), workload(32, 4));
    let mut plan = plan(&model, &work, [1, tensor, 1, 1], Schedule::GPipe);
    plan.sequence_parallel = false;
    plan.overlap_gradients = true;
    let chunk = Chunk {
        stage: StageId::new(0),
        first_layer: 0,
        layers,
        embedding: ends[0],
        head: ends[1],
        recompute: Recompute::None,
        recomputed_layers: layers,
    };
    let mut asked = Asked { model, work, plan, chunk };
    change(&mut asked);
    asked
}

/// Ops in a line: `F0..3` a pass over units, `AR:Output:2` a collective of a unit's tensor, `AG:P0..4` of parameters of
/// units, `RS:G0..4` of gradients, `out:0..4` a copy to host memory; `&` before what runs beside the next pass.
fn text(asked: &Asked, action: Action) -> String {
    let layout = crate::layout::layout(&asked.plan);
    let shape = Shape { model: &asked.model, workload: &asked.work, layout: &layout };
    let range = |units: UnitRange| format!("{}..{}", units.start, units.end);
    let shown = pass_ops(shape, &asked.chunk, asked.plan.overlap_gradients, action).into_iter().map(|op| {
        let words = match op {
            PassOp::Compute { pass, units } => {
                let letter = match pass {
                    Pass::Forward => "F",
                    Pass::Recompute => "R",
                    Pass::Backward => "B",
                    Pass::BackwardInput => "I",
                    Pass::BackwardWeight => "W",
                };
                format!("{letter}{}", range(units))
            }
            PassOp::Collective { kind, moves, .. } => {
                let kind = match kind {
                    CollectiveKind::AllReduce => "AR",
                    CollectiveKind::AllGather => "AG",
                    CollectiveKind::ReduceScatter => "RS",
                    CollectiveKind::AllToAll => "AA",
                };
                match moves {
                    Moves::Activation { tensor, unit, .. } => format!("{kind}:{tensor:?}:{unit}"),
                    Moves::Parameters { units, experts, .. } => {
                        format!("{kind}:{}{}", if experts { "PE" } else { "P" }, range(units))
                    }
                    Moves::Gradients { units, experts } => {
                        format!("{kind}:{}{}", if experts { "GE" } else { "G" }, range(units))
                    }
                }
            }
            PassOp::HostCopy { units, out, .. } => format!("{}:{}", if out { "out" } else { "in" }, range(units)),
        };
        format!("{}{words}", if op.is_beside() { "&" } else { "" })
    });
    shown.collect::<Vec<_>>().join(" ")
}

fn check(asked: &Asked, action: Action, expect: &str) {
    assert_eq!(text(asked, action), expect, "{action:?}");
}

#[test]
fn one_rank_runs_whole_chunks() {
    let whole = |recompute, action, expect: &str| {
        check(&ask(1, 2, [true, true], |asked| asked.chunk.recompute = recompute), action, expect);
    };
    whole(Recompute::None, Action::Forward, "F0..12");
    whole(Recompute::Selective, Action::Backward, "B0..12");
    whole(Recompute::None, Action::BackwardInput, "I0..12");
    whole(Recompute::Full, Action::BackwardWeight, "W0..12");
    whole(Recompute::Full, Action::Backward, "B9..12 R5..9 B5..9 R1..5 B0..5");
    let first = ask(1, 2, [true, true], |asked| {
        (asked.chunk.recompute, asked.chunk.recomputed_layers) = (Recompute::Full, 1);
    });
    check(&first, Action::Backward, "B5..12 R1..5 B0..5");
}

#[test]
fn tensor_parallelism_reduces_partial_sums() {
    let one = ask(2, 1, [true, true], |_| {});
    check(
        &one,
        Action::Forward,
        "F0..1 AR:Output:0 F1..3 AR:Output:2 F3..5 AR:Output:4 F5..7 AG:LossStatistics:6 F7..8",
    );
    let down = "B6..8 AR:InputGradient:6 B4..6 AR:InputGradient:4 B2..4 AR:InputGradient:2 B0..2";
    check(&one, Action::Backward, down);
    check(&one, Action::BackwardWeight, "W0..8");
    let full = ask(2, 1, [true, true], |asked| asked.chunk.recompute = Recompute::Full);
    check(
        &full,
        Action::BackwardInput,
        "I6..8 AR:InputGradient:6 I5..6 R1..3 AR:Output:2 R3..5 I4..5 AR:InputGradient:4 I2..4 AR:InputGradient:2 I0..2",
    );
    let whole_loss = ask(2, 1, [false, true], |asked| asked.work.recipe.sharded_loss = false);
    check(&whole_loss, Action::Forward, "F0..2 AR:Output:1 F2..4 AR:Output:3 F4..6 AG:Logits:5 F6..7");
}

/// GPT-J and Falcon reduce once a layer each way; GPT-NeoX, whose branches have their own norms, twice on the way down.
#[test]
fn branches_beside_each_other_are_reduced_together() {
    let with = |branches, sequence, action, expect: &str| {
        let asked = ask(2, 1, [false, false], |asked| {
            asked.model.variants.parallel_branches = branches;
            asked.plan.sequence_parallel = sequence;
        });
        check(&asked, action, expect);
    };
    let (one, own) = (ParallelBranches::OneNorm, ParallelBranches::OwnNorms);
    with(one, false, Action::Forward, "F0..4 AR:Output:3");
    with(own, false, Action::Forward, "F0..4 AR:Output:3");
    with(one, false, Action::Backward, "B1..4 AR:InputGradient:1 B0..1");
    with(own, false, Action::Backward, "B3..4 AR:InputGradient:3 B1..3 AR:InputGradient:1 B0..1");
    with(one, true, Action::Forward, "F0..1 AG:Input:1 F1..4 RS:Output:3");
    with(one, true, Action::Backward, "AG:OutputGradient:3 AG:Input:3 B1..4 RS:InputGradient:1 B0..1");
}

#[test]
fn sequence_parallelism_gathers_and_scatters() {
    let one = |ends, action, expect: &str| {
        check(&ask(2, 1, ends, |asked| asked.plan.sequence_parallel = true), action, expect);
    };
    one(
        [true, true],
        Action::Forward,
        "F0..1 RS:Output:0 F1..2 AG:Input:2 F2..3 RS:Output:2 F3..4 AG:Input:4 F4..5 RS:Output:4 \
         F5..6 AG:Input:6 F6..7 AG:LossStatistics:6 F7..8",
    );
    one(
        [true, true],
        Action::Backward,
        "AG:Input:6 B6..8 RS:InputGradient:6 B5..6 AG:OutputGradient:4 AG:Input:4 B4..5 RS:InputGradient:4 \
         B3..4 AG:OutputGradient:2 AG:Input:2 B2..3 RS:InputGradient:2 B1..2 AG:OutputGradient:0 B0..1",
    );
    one(
        [false, false],
        Action::Backward,
        "AG:OutputGradient:3 AG:Input:3 B3..4 RS:InputGradient:3 B2..3 AG:OutputGradient:1 AG:Input:1 B1..2 \
         RS:InputGradient:1 B0..1",
    );
    // Chunks of no layers.
    let ends = |tensor: u32, ends| {
        ask(tensor, 0, ends, |asked| {
            asked.plan.sequence_parallel = tensor > 1;
            asked.chunk.recompute = Recompute::Full;
        })
    };
    check(&ends(2, [true, false]), Action::Backward, "AG:OutputGradient:0 B0..1");
    check(&ends(1, [false, true]), Action::Backward, "B0..3");
}

#[test]
fn tensor_overlap_leaves_one_piece_of_each_exposed() {
    let one = ask(4, 1, [false, false], |asked| {
        asked.plan.sequence_parallel = true;
        asked.plan.sharing.overlap_tensor = true;
    });
    check(
        &one,
        Action::Forward,
        "F0..1 AG:Input:1 &AG:Input:1 &RS:Output:1 F1..2 RS:Output:1 F2..3 AG:Input:3 &AG:Input:3 &RS:Output:3 F3..4 \
         RS:Output:3",
    );
    let layout = crate::layout::layout(&one.plan);
    let shape = Shape { model: &one.model, workload: &one.work, layout: &layout };
    let of = |wanted: bool| -> u64 {
        let ops = pass_ops(shape, &one.chunk, true, Action::Forward);
        let sizes = ops.iter().filter_map(|op| match op {
            PassOp::Collective { bytes, beside, .. } if *beside == wanted => Some(bytes.get()),
            _ => None,
        });
        sizes.sum()
    };
    assert_eq!((of(false) * 3, of(false)), (of(true), ir::counts::activation_bytes(shape).get()));
}

#[test]
fn context_parallelism_exchanges_around_mixers() {
    let with = |method, tensor: u32| {
        ask(tensor, 1, [false, false], |asked| {
            (asked.plan.mesh.context, asked.plan.mesh.context_method) = (2, method);
            asked.plan.sequence_parallel = tensor > 1;
        })
    };
    check(&with(ContextMethod::Ring, 1), Action::Forward, "F0..1 &AG:KeysAndValues:1 F1..2 F2..4");
    check(&with(ContextMethod::Ring, 1), Action::Backward, "B2..4 &AG:KeysAndValues:1 &RS:KeysAndValues:1 B1..2 B0..1");
    check(
        &with(ContextMethod::Ring, 2),
        Action::Forward,
        "F0..1 AG:Input:1 &AG:KeysAndValues:1 F1..2 RS:Output:1 F2..3 AG:Input:3 F3..4 RS:Output:3",
    );
    check(&with(ContextMethod::AllGather, 1), Action::Forward, "F0..1 AG:KeysAndValues:1 F1..4");
    check(
        &with(ContextMethod::AllGather, 1),
        Action::Backward,
        "B2..4 AG:KeysAndValues:1 B1..2 RS:KeysAndValues:1 B0..1",
    );
    check(&with(ContextMethod::AllToAll, 1), Action::Forward, "F0..1 AA:Heads:1 F1..2 AA:Heads:1 F2..4");
    check(&with(ContextMethod::AllToAll, 1), Action::Backward, "B2..4 AA:Heads:1 B1..2 AA:Heads:1 B0..1");
    check(&with(ContextMethod::Ring, 1), Action::BackwardWeight, "W0..4");
}

/// A model whose second layer is of experts.
fn with_experts(asked: &mut Asked, shared_ffn: u32) {
    let run = |feed_forward| LayerRun { layers: 1, mixer: Mixer::Attention, feed_forward };
    asked.model = crate::testing::with_experts(small_model(2), &[run(FeedForward::Dense), run(FeedForward::Experts)]);
    let experts = asked.model.variants.experts.as_mut().expect("made above");
    experts.shared_ffn = shared_ffn;
    asked.chunk.recomputed_layers = 2;
}

#[test]
fn experts_get_their_tokens_and_give_them_back() {
    let with = |tensor: u32, shared: u32, [expert, expert_tensor]: [u32; 2], overlap: bool| {
        ask(tensor, 2, [false, false], |asked| {
            with_experts(asked, shared);
            (asked.plan.mesh.expert, asked.plan.mesh.expert_tensor) = (expert, expert_tensor);
            asked.plan.sequence_parallel = tensor > 1;
            asked.plan.sharing.overlap_experts = overlap;
        })
    };
    check(&with(1, 0, [1, 1], false), Action::Forward, "F0..8");
    check(&with(1, 0, [2, 1], false), Action::Forward, "F0..7 AA:Dispatched:7 F7..8 AA:Combined:7");
    check(&with(1, 0, [2, 1], false), Action::Backward, "AA:Dispatched:7 B7..8 AA:Combined:7 B0..7");
    // Combination has no body to hide beside at the end of a chunk.
    check(&with(1, 0, [2, 1], true), Action::Forward, "F0..7 &AA:Dispatched:7 F7..8 AA:Combined:7");
    check(&with(1, 0, [2, 1], true), Action::Backward, "&AA:Dispatched:7 B7..8 &AA:Combined:7 B0..7");
    check(
        &with(2, 64, [2, 2], false),
        Action::Forward,
        "F0..1 AG:Input:1 F1..2 RS:Output:1 F2..3 AG:Input:3 F3..4 RS:Output:3 F4..5 AG:Input:5 F5..6 RS:Output:5 F6..7 \
         AG:Input:7 AA:Dispatched:7 AG:ExpertInput:7 F7..8 RS:ExpertInput:7 AA:Combined:7 RS:Output:7",
    );
    // Without shared experts nothing of the layer is divided over the tensor group.
    let alone = text(&with(2, 0, [2, 1], false), Action::Forward);
    assert!(alone.ends_with("F6..7 AA:Dispatched:7 F7..8 AA:Combined:7"), "{alone}");
}

#[test]
fn parameters_come_and_gradients_go_part_by_part() {
    let with = |zero, prefetch: bool, overlap: bool, recompute| {
        ask(1, 2, [true, true], |asked| {
            (asked.plan.data, asked.plan.zero, asked.plan.sharing.prefetch) = (2, zero, prefetch);
            (asked.plan.overlap_gradients, asked.chunk.recompute) = (overlap, recompute);
        })
    };
    let none = Recompute::None;
    check(&with(ZeroStage::Zero1, false, true, none), Action::Backward, "B0..12");
    check(&with(ZeroStage::Zero2, true, true, none), Action::Forward, "F0..12");
    check(
        &with(ZeroStage::Zero2, false, true, none),
        Action::Backward,
        "B9..12 &RS:G9..12 B5..9 &RS:G5..9 B1..5 &RS:G1..5 B0..1 RS:G0..1",
    );
    check(
        &with(ZeroStage::Zero3, false, false, none),
        Action::Forward,
        "AG:P0..1 F0..1 AG:P1..5 F1..5 AG:P5..9 F5..9 AG:P9..12 F9..12",
    );
    check(
        &with(ZeroStage::Zero3, true, true, none),
        Action::Forward,
        "AG:P0..1 &AG:P1..5 F0..1 &AG:P5..9 F1..5 &AG:P9..12 F5..9 F9..12",
    );
    check(
        &with(ZeroStage::Zero3, true, true, none),
        Action::Backward,
        "AG:P9..12 &AG:P5..9 B9..12 &RS:G9..12 &AG:P1..5 B5..9 &RS:G5..9 &AG:P0..1 B1..5 &RS:G1..5 B0..1 RS:G0..1",
    );
    // Recomputation and backward pass share one gather.
    check(
        &with(ZeroStage::Zero3, true, true, Recompute::Full),
        Action::Backward,
        "AG:P9..12 &AG:P5..9 B9..12 &RS:G9..12 R5..9 &AG:P1..5 B5..9 &RS:G5..9 R1..5 &AG:P0..1 B1..5 &RS:G1..5 B0..1 \
         RS:G0..1",
    );
    check(
        &with(ZeroStage::Zero3, true, true, none),
        Action::BackwardWeight,
        "W9..12 &RS:G9..12 W5..9 &RS:G5..9 W1..5 &RS:G1..5 W0..1 RS:G0..1",
    );
    let halves = ask(2, 1, [false, false], |asked| {
        (asked.plan.data, asked.plan.zero, asked.plan.sharing.prefetch) = (2, ZeroStage::Zero3, true);
    });
    check(&halves, Action::Forward, "AG:P0..2 &AG:P2..4 F0..2 AR:Output:1 F2..4 AR:Output:3");
}

#[test]
fn what_layers_keep_leaves_and_returns_beside_their_neighbours() {
    let with = ask(1, 3, [true, true], |asked| asked.plan.sharing.offload_activations = true);
    check(&with, Action::Forward, "F0..1 F1..5 &out:1..5 F5..9 &out:5..9 F9..13 F13..16");
    check(&with, Action::Backward, "B13..16 &in:5..9 B9..13 &in:1..5 B5..9 B1..5 B0..1");
}

#[test]
fn segments_take_the_longest_of_their_streams() {
    let with = ask(1, 2, [true, true], |asked| {
        (asked.plan.data, asked.plan.zero, asked.plan.sharing.prefetch) = (2, ZeroStage::Zero3, true);
    });
    let layout = crate::layout::layout(&with.plan);
    let shape = Shape { model: &with.model, workload: &with.work, layout: &layout };
    let ops = pass_ops(shape, &with.chunk, true, Action::Backward);
    let time = |_: usize, op: PassOp| if matches!(op, PassOp::Compute { .. }) { 5 } else { 4 };
    let found = |slowing| -> Vec<_> {
        let segments = segments(ops.iter().copied(), slowing, time);
        segments.map(|segment| (segment.time, segment.own, segment.longest.is_some())).collect()
    };
    // The first gather; head with one beside it, layers with two, the embedding with one; the last scatter.
    let expect = [(4, 4, false), (5, 5, false), (8, 5, true), (8, 5, true), (5, 5, false), (4, 4, false)];
    assert_eq!(found(cost::Slowing::NONE), expect);
    // Compute at half rate until the exchange of 4 ends at 8, when it has 1 left; the layers' own 5 end at 10, when their
    // exchanges, at half rate too, have 3 left.
    let expect = [(4, 4, false), (9, 9, false), (13, 10, true), (13, 10, true), (9, 9, false), (4, 4, false)];
    assert_eq!(found(cost::Slowing::new(2.0, 2.0)), expect);
}

/// Buckets close at the first part with which they are large enough, from the end of the chunk on; what is left at its
/// beginning is one. Nothing of a pass but where its instructions end depends on them.
#[test]
fn passes_end_instructions_where_buckets_do() {
    let check_buckets = |asked: &Asked, least: u64, action: Action, expect: &str| {
        let layout = crate::layout::layout(&asked.plan);
        let shape = Shape { model: &asked.model, workload: &asked.work, layout: &layout };
        let found = buckets(shape, &asked.chunk, least);
        let held = found.iter().map(|bucket| bucket.held.total()).sum::<u64>();
        assert_eq!(held, ir::counts::chunk_parameters(shape, &asked.chunk));
        assert!(found.iter().rev().skip(1).all(|bucket| bucket.held.total() >= least));
        let ops = pass_in_buckets(shape, &asked.chunk, true, action, &found);
        let completed = ops.iter().filter_map(|op| completes(op, &found)).map(|bucket| bucket.units);
        assert!(completed.eq(found.iter().map(|bucket| bucket.units)), "{ops:?} {found:?}");
        let text = |op: &PassOp| match op {
            PassOp::Compute { pass, units } => {
                let letter = match pass {
                    Pass::Recompute => "R",
                    Pass::BackwardWeight => "W",
                    Pass::Forward | Pass::Backward | Pass::BackwardInput => "B",
                };
                format!("{letter}{}..{}", units.start, units.end)
            }
            PassOp::Collective { kind, .. } => kind.name().to_owned(),
            PassOp::HostCopy { .. } => "copy".to_owned(),
        };
        assert_eq!(ops.iter().map(text).collect::<Vec<_>>().join(" "), expect, "{least}");
    };
    let whole = ask(1, 2, [true, true], |_| {});
    let layer = ir::counts::held_parameters(
        Shape { model: &whole.model, workload: &whole.work, layout: &crate::layout::layout(&whole.plan) },
        &whole.chunk,
        UnitRange { start: 1, end: 5 },
    );
    check_buckets(&whole, 1, Action::Backward, "B9..12 B5..9 B1..5 B0..1");
    check_buckets(&whole, 1, Action::BackwardWeight, "W9..12 W5..9 W1..5 W0..1");
    check_buckets(&whole, 1 << 40, Action::Backward, "B0..12");
    // The head is larger than a layer, and the embedding follows the first two.
    check_buckets(&whole, 2 * layer.total(), Action::Backward, "B5..12 B0..5");
    let again = ask(1, 2, [true, true], |asked| asked.chunk.recompute = Recompute::Full);
    check_buckets(&again, 1, Action::Backward, "B9..12 R5..9 B5..9 R1..5 B1..5 B0..1");
    let reduced = ask(2, 2, [false, false], |_| {});
    check_buckets(
        &reduced,
        1 << 40,
        Action::Backward,
        "B7..8 all-reduce B5..7 all-reduce B3..5 all-reduce B1..3 all-reduce B0..1",
    );
    check_buckets(
        &reduced,
        1,
        Action::Backward,
        "B7..8 all-reduce B5..7 all-reduce B4..5 B3..4 all-reduce B1..3 all-reduce B0..1",
    );
}
