use ir::program::unfold::unfold;
use ir::{Fabric, NodeGroup, NodeKindId, Op, Schedule, VerifiedProgram};

use super::*;
use crate::testing::{
    dgx, gpt3, node, plan, random_case, random_unlike_case, random_wide_case, small_model, thread_cpu_nanoseconds,
    workload,
};

fn shown(problems: &[Problem]) -> String {
    problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n")
}

#[test]
fn random_legal_plans_lower_to_sound_programs_folded_and_flat() {
    let mut roles = 0;
    for seed in 0..800 {
        let (plan, model, work, cluster) = if seed < 400 { random_case(seed) } else { random_wide_case(seed) };
        let say = |what: &str| format!("seed {seed}: {what}\n{plan:#?}");
        let folded = lower(&plan, &model, &work, &cluster).unwrap_or_else(|p| panic!("{}", say(&shown(&p))));
        let flat = lower_as(Folding::Flat, &plan, &model, &work, &cluster).unwrap();
        assert!(unfold(&folded) == flat, "{}", say("folded and flat differ"));
        roles += folded.roles.len() - plan.stages.len();
        for program in [folded, flat] {
            if let Err(problems) = VerifiedProgram::new(program) {
                panic!("{}", say(&shown(&problems)));
            }
        }
    }
    assert!(roles > 100, "the swarm splits roles: {roles} more than positions");
}

/// Stages of unlike tensor degrees: what ranks of one role do is the same, folded or not, and replicas share roles.
#[test]
fn random_plans_of_unlike_degrees_lower_to_sound_programs_folded_and_flat() {
    let (mut folds, mut widens, mut narrows) = (0, 0, 0);
    for seed in 0..600 {
        let (plan, model, work, cluster) = random_unlike_case(seed);
        let say = |what: &str| format!("seed {seed}: {what}\n{plan:#?}");
        let folded = lower(&plan, &model, &work, &cluster).unwrap_or_else(|p| panic!("{}", say(&shown(&p))));
        let flat = lower_as(Folding::Flat, &plan, &model, &work, &cluster).unwrap();
        assert!(unfold(&folded) == flat, "{}", say("folded and flat differ"));
        folds += u32::from(plan.data > 1 && folded.roles.len() < flat.roles.len());
        let tensors = plan.tensors().collect::<Vec<_>>();
        widens += u32::from(tensors[0] < tensors[1]);
        narrows += u32::from(tensors[0] > tensors[1]);
        for program in [folded, flat] {
            if let Err(problems) = VerifiedProgram::new(program) {
                panic!("{}", say(&shown(&problems)));
            }
        }
    }
    assert!(folds > 100 && widens > 100 && narrows > 100, "{folds} {widens} {narrows}");
}

/// A program is as large as its lanes, however many replicas there are, and its first stage's devices come first.
#[test]
fn replicas_of_unlike_degrees_share_roles() {
    let (model, work) = (small_model(6), workload(32, 64));
    let cluster = dgx(24);
    let plan = plan(&model, &work, [16, 1, 3, 1], Schedule::OneForwardOneBackward).with_tensors(&[4, 4, 2]);
    let program = lower(&plan, &model, &work, &cluster).unwrap();
    // Lanes of a tensor group that has unlike partners, at whatever distance, are told apart.
    assert_eq!(program.roles.len(), 4 + 4 + 2);
    assert_eq!(program.world(), 160);
    for role in &program.roles {
        let position = role.stage.raw();
        let (first, wide) = ([0, 64, 128][position as usize], [64, 64, 32][position as usize]);
        assert!(role.ranks.iter().all(|rank| (first..first + wide).contains(&program.device(rank).raw())));
    }
    assert!(VerifiedProgram::new(program).is_ok());
}

#[test]
fn large_programs_are_small_and_fast() {
    let model = gpt3();
    let work = workload(2048, 1536);
    let mut gpt = plan(&model, &work, [16, 8, 8, 1], Schedule::OneForwardOneBackward);
    gpt.zero = ir::ZeroStage::Zero1;
    check_speed("175B on 1,024", &gpt, &model, &work, &dgx(128), 8, 60);

    let mut llama = small_model(126);
    (llama.hidden, llama.heads, llama.kv_heads, llama.head_dim) = (16384, 128, 8, 128);
    (llama.ffn, llama.vocabulary) = (53248, 128_256);
    let work = workload(8192, 2048);
    let plan = plan(&llama, &work, [128, 8, 16, 1], Schedule::OneForwardOneBackward);
    check_speed("405B on 16,384", &plan, &llama, &work, &dgx(2048), 16, 100);
}

fn check_speed(
    name: &str,
    plan: &Plan,
    model: &Model,
    work: &Workload,
    cluster: &Cluster,
    roles: usize,
    limit_ms: u64,
) {
    let mut best = u64::MAX;
    for _ in 0..3 {
        let start = thread_cpu_nanoseconds();
        let program = lower(plan, model, work, cluster).unwrap_or_else(|p| panic!("{}", shown(&p)));
        best = best.min(thread_cpu_nanoseconds() - start);
        assert_eq!(program.roles.len(), roles, "{name}");
    }
    // Only an optimised build is timed.
    assert!(cfg!(debug_assertions) || best < limit_ms * 1_000_000, "{name}: {best} ns, more than {limit_ms} ms");
}

#[test]
fn unlike_loads_split_roles() {
    let model = small_model(4);
    let work = workload(32, 8);
    // Three nodes of eight devices behind one NIC: replicas of two ranks, so that all lie alike in their node.
    let mut cluster = dgx(4);
    cluster.node_kinds = vec![node("one-nic", &[0; 8], 8, 1)];
    let like = plan(&model, &work, [4, 2, 4, 1], Schedule::OneForwardOneBackward);
    assert_eq!(lower(&like, &model, &work, &cluster).unwrap().roles.len(), 4);
    // Two of four nodes under a leaf: the boundaries between leaves are others than those inside.
    cluster.fabric = Fabric { leaf_nodes: 2, ..Fabric::one_switch() };
    assert_eq!(lower(&like, &model, &work, &cluster).unwrap().roles.len(), 4);
    // A slower kind of node for the last stage changes no one else.
    cluster.device_kinds.push(crate::testing::device("other", 40));
    cluster.node_kinds.push(node("other", &[1; 8], 8, 1));
    cluster.groups =
        vec![NodeGroup { kind: NodeKindId::new(0), count: 3 }, NodeGroup { kind: NodeKindId::new(1), count: 1 }];
    assert_eq!(lower(&like, &model, &work, &cluster).unwrap().roles.len(), 4);
    // Replicas across the border of unlike nodes do.
    let across = plan(&model, &work, [8, 2, 2, 1], Schedule::OneForwardOneBackward);
    let program = lower(&across, &model, &work, &cluster).unwrap();
    assert!(program.roles.len() > 2, "{} roles", program.roles.len());
}

#[test]
fn receives_come_in_the_order_of_need() {
    for (p, v, m) in [(4, 1, 8), (4, 2, 8), (3, 2, 9), (2, 3, 10), (4, 2, 3)] {
        let model = small_model(p * v);
        let work = workload(32, m);
        for schedule in [Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::ZeroBubbleH1] {
            let plan = plan(&model, &work, [1, 1, p, v], schedule);
            if !crate::legal(&plan, &model, &work, &dgx(4)).is_empty() {
                continue;
            }
            let program = lower(&plan, &model, &work, &dgx(4)).unwrap();
            for role in &program.roles {
                for (at, instruction) in role.instructions().iter().enumerate() {
                    if matches!(instruction.op, Op::Receive { .. }) {
                        let next = &role.instructions()[at + 1];
                        assert!(role.waits(next).contains(&ir::InstructionId::at(at)), "{p} {v} {m}: i{at} is early");
                    }
                }
            }
        }
    }
}

#[test]
fn leaf_switches_tell_ranks_apart_only_where_they_hold_up() {
    let (model, work) = (small_model(4), workload(32, 12));
    let plan = plan(&model, &work, [12, 4, 2, 1], Schedule::OneForwardOneBackward);
    let mut cluster = dgx(12);
    // Five nodes under a leaf: the stages' borders are not the leaves'.
    cluster.fabric = Fabric { leaf_nodes: 5, ..Fabric::one_switch() };
    assert_eq!(lower(&plan, &model, &work, &cluster).unwrap().roles.len(), 2);
    cluster.fabric.oversubscription = 4.0;
    let split = lower(&plan, &model, &work, &cluster).unwrap();
    assert!(split.roles.len() > 4, "{}", split.roles.len());
    assert!(VerifiedProgram::new(split).is_ok());
}

#[test]
fn programs_of_too_many_roles_are_refused() {
    let (model, work) = (small_model(126), workload(64, 4096));
    let plan = plan(&model, &work, [16, 4, 2, 1], Schedule::OneForwardOneBackward);
    assert_eq!(lower(&plan, &model, &work, &dgx(16)).unwrap().roles.len(), 2);
    let text = lower_as(Folding::Flat, &plan, &model, &work, &dgx(16)).unwrap_err()[0].to_string();
    assert!(text.contains("128 roles of ") && text.contains("align stages"), "{text}");
}
