use super::VerifiedProgram;
use crate::program::{Access, Op, Pass, RankSet, Stream, unfold};
use crate::testing::{Line, edit, program};
use crate::{BufferId, Bytes, ChunkId, DeviceId, InstructionId, MicrobatchId, Program, RoleId, StageId};

#[test]
fn sound_programs_pass_folded_and_unfolded() {
    for (data, tensor, microbatches) in [(1, 1, 1), (1, 2, 3), (2, 1, 2), (2, 2, 4), (8, 4, 2)] {
        let folded = program(data, tensor, microbatches);
        let flat = unfold::unfold(&folded);
        assert_eq!(flat.roles.len(), (2 * data * tensor) as usize);
        for (index, role) in flat.roles.iter().enumerate() {
            assert_eq!(*role, unfold::slice(&folded, crate::Rank::at(index)));
            assert_eq!(role.instructions().len(), folded.roles[role.stage.index()].instructions().len());
        }
        for program in [folded, flat] {
            if let Err(problems) = VerifiedProgram::new(program) {
                panic!("{data} x {tensor} x {microbatches}: {problems:#?}");
            }
        }
    }
}

/// Every problem's text, after one change to a sound program of 2 x 2 x 2 ranks and 2 microbatches.
fn faults(change: impl FnOnce(&mut Program)) -> Vec<String> {
    let mut program = program(2, 2, 2);
    change(&mut program);
    VerifiedProgram::new(program).err().unwrap_or_default().iter().map(ToString::to_string).collect()
}

fn check(name: &str, part: &str, change: impl FnOnce(&mut Program)) {
    let faults = faults(change);
    assert!(faults.iter().any(|fault| fault.contains(part)), "{name}: expected {part:?} in {faults:#?}");
}

fn lines(program: &mut Program, role: usize, change: impl FnOnce(&mut Vec<Line>)) {
    edit(&mut program.roles[role], change);
}

/// The index of the first instruction that `is` accepts.
fn find(lines: &[Line], is: impl Fn(&Op) -> bool) -> usize {
    lines.iter().position(|line| is(&line.op)).expect("the sample has one")
}

const fn is_send(op: &Op) -> bool {
    matches!(op, Op::Send { .. })
}
const fn is_receive(op: &Op) -> bool {
    matches!(op, Op::Receive { .. })
}
const fn is_compute(op: &Op) -> bool {
    matches!(op, Op::Compute { .. })
}
const fn is_collective(op: &Op) -> bool {
    matches!(op, Op::Collective { .. })
}
/// Replaces an instruction by one that nothing depends on, so that ids stay.
fn blank(line: &mut Line) {
    line.op = Op::GradientNorm;
    line.stream = Stream::Compute;
}

#[test]
fn faults_of_the_frame_are_named() {
    check("zero degree", "layout.data: is zero", |p| p.layout.data = 0);
    check("huge world", "ranks are over", |p| (p.layout.data, p.layout.tensor) = (u32::MAX, u32::MAX));
    check("rank without role", "rank 7 has no role (1 of 8", |p| p.roles[1].ranks = RankSet::run(4, 3, 1));
    check("rank of two roles", "rank 3, which is also of role0", |p| p.roles[1].ranks = RankSet::run(3, 5, 1));
    check("rank outside", "role1: has rank 8, but ranks are 0 to 7", |p| p.roles[1].ranks = RankSet::run(4, 5, 1));
    check("role without rank", "role1: has no rank", |p| p.roles[1].ranks = RankSet::default());
    check("position outside", "role1: is on position 9", |p| p.roles[1].stage = StageId::new(9));
    check("few devices", "names 3 devices for 8 ranks", |p| p.placement = (0..3).map(DeviceId::new).collect());
    check("one device twice", "device 5 has rank 2 and rank 7", |p| {
        p.placement = [0, 1, 5, 3, 4, 2, 6, 5].map(DeviceId::new).to_vec();
    });
    let shares = |counts: [u32; 2]| crate::Shares::of(counts.to_vec()).1;
    check("shares of others", "layout.shares: the most of 3 + 2 is 3, not 2", |p| p.layout.shares = shares([3, 2]));
    check("unlike ranks", "rank 0 has 2 microbatches and rank 2 has 1, so they cannot share a role", |p| {
        p.layout.shares = shares([2, 1]);
    });
    check("another's microbatch", "have 1 microbatches, and m1 is none of them", |p| {
        (p.layout.shares, p.roles[0].ranks) = (shares([1, 2]), RankSet::run(0, 2, 1));
        let mut rest = p.roles[0].clone();
        rest.ranks = RankSet::run(2, 2, 1);
        p.roles.push(rest);
    });
    check("no chunks", "chunks: there is none", |p| p.chunks.clear());
    check("missing layers", "hold 3 layers, but the model has 4", |p| p.chunks[1].layers = 1);
    check("gap", "c1: begins with layer 3, but layer 2 is next", |p| p.chunks[1].first_layer = 3);
    check("no embedding", "c0: lacks the embedding", |p| p.chunks[0].embedding = false);
    check("two heads", "c0: has the head, which", |p| p.chunks[0].head = true);
    check("rank in two instances", "g0: rank 1 is in instance 0 and in instance 1", |p| {
        p.groups[0].shifts = RankSet::run(0, 2, 1)
    });
    check("group outside", "g1: has rank 9", |p| p.groups[1].shifts = RankSet::from_ascending([0, 1, 7]));
    check("empty group", "g2: has no members", |p| p.groups[2].members = RankSet::default());
    check("first shift", "g0: its first shift is 2", |p| p.groups[0].shifts = RankSet::run(2, 2, 2));
    check("batch", "workload.global_batch: is 9, but replicas", |p| p.workload.global_batch = 9);
}

#[test]
fn faults_of_ids_are_named() {
    check("wait ahead", "role0 i0 \"compute forward c0 u0..3 m0\": waits for i5, which does not come before it", |p| {
        lines(p, 0, |l| l[0].waits.push(InstructionId::new(5)));
    });
    check("wait for itself", "waits for i0, which", |p| lines(p, 0, |l| l[0].waits.push(InstructionId::new(0))));
    check("unknown buffer", "uses b99, but the role has 3 buffers", |p| {
        lines(p, 0, |l| l[0].accesses.push((BufferId::new(99), Access::Use)));
    });
    check("chunk elsewhere", "c1 is on position 1, this role on position 0", |p| {
        lines(p, 0, |l| {
            if let Op::Compute { chunk, .. } = &mut l[0].op {
                *chunk = ChunkId::new(1)
            }
        });
    });
    check("unknown chunk", "c7 does not exist", |p| {
        lines(p, 0, |l| {
            if let Op::Compute { chunk, .. } = &mut l[0].op {
                *chunk = ChunkId::new(7)
            }
        });
    });
    check("unknown microbatch", "m7 does not exist", |p| {
        lines(p, 0, |l| {
            if let Op::Compute { microbatch, .. } = &mut l[0].op {
                *microbatch = MicrobatchId::new(7)
            }
        });
    });
    check("units outside", "units 0..99 are not a part of the 9 of c0", |p| {
        lines(p, 0, |l| {
            if let Op::Compute { units, .. } = &mut l[0].op {
                units.end = 99
            }
        });
    });
    check("unknown group", "g9 does not exist", |p| {
        lines(p, 0, |l| {
            if let Op::Collective { group, .. } = &mut l[1].op {
                *group = crate::GroupId::new(9)
            }
        });
    });
    check("empty collective", "moves no bytes", |p| {
        lines(p, 0, |l| {
            if let Op::Collective { bytes, .. } = &mut l[1].op {
                *bytes = Bytes::ZERO
            }
        });
    });
    check("unknown role", "role9 does not exist", |p| {
        lines(p, 0, |l| {
            if let Op::Send { peer, .. } = &mut l[3].op {
                peer.role = RoleId::new(9)
            }
        });
    });
    check("unknown edge", "there is no chunk after c1", |p| {
        lines(p, 0, |l| {
            if let Op::Send { message, .. } = &mut l[3].op {
                message.edge = ChunkId::new(1)
            }
        });
    });
}

#[test]
fn faults_of_messages_are_named() {
    check("lost send", "role0 sends no such message", |p| lines(p, 0, |l| blank(&mut l[3])));
    check("lost receive", "role1 receives no such message", |p| lines(p, 1, |l| blank(&mut l[0])));
    check("other size", "receives 8192 bytes, but role0 i3 sends 1", |p| {
        lines(p, 0, |l| {
            if let Op::Send { bytes, .. } = &mut l[3].op {
                *bytes = Bytes::new(1)
            }
        });
    });
    check("sent twice", "i3 sends the same message", |p| {
        lines(p, 0, |l| {
            let again = l[3].clone();
            l.push(again);
        });
    });
    check("received twice", "i0 receives the same message", |p| {
        lines(p, 1, |l| {
            let again = l[0].clone();
            l.push(again);
        });
    });
    check("wrong shift", "rank 0 of role0 would send to rank 9, which is not of role1", |p| {
        lines(p, 0, |l| {
            if let Op::Send { peer, .. } = &mut l[3].op {
                peer.shift = 9
            }
        });
    });
    check("other direction", "role0 does not hold c1, which this message concerns", |p| {
        lines(p, 0, |l| {
            if let Op::Send { message, .. } = &mut l[3].op {
                message.direction = crate::program::Direction::Backward;
            }
        });
    });
    check("extreme shift", "which is not of role1", |p| {
        lines(p, 0, |l| {
            if let Op::Send { peer, .. } = &mut l[3].op {
                peer.shift = i64::MIN
            }
        });
        lines(p, 1, |l| {
            if let Op::Receive { peer, .. } = &mut l[0].op {
                peer.shift = i64::MAX
            }
        });
    });
}

#[test]
fn faults_of_collectives_are_named() {
    check("member missing", "role1 is a member of the group and does not take part", |p| {
        lines(p, 1, |l| {
            let at = l.len() - 2;
            blank(&mut l[at]);
        });
    });
    check("other bytes", "issues another collective at this place", |p| {
        lines(p, 1, |l| {
            let at = l.len() - 2;
            if let Op::Collective { bytes, .. } = &mut l[at].op {
                *bytes = Bytes::new(3);
            }
        });
    });
    check("rank in no instance", "is in no instance of g1", |p| p.groups[1].shifts = RankSet::run(0, 2, 1));
    check("asymmetric", "so they cannot share a role", |p| {
        // Ranks 0 and 1 with 4 and 5, but 2 and 3 with each other only.
        p.groups[2].members = RankSet::from_ascending([0, 4]);
        p.groups[2].shifts = RankSet::from_ascending([0, 1, 2, 3]);
        p.groups[0].members = RankSet::from_ascending([0, 2]);
        p.groups[0].shifts = RankSet::from_ascending([0, 1, 4, 5]);
        p.roles[0].ranks = RankSet::from_ascending([0, 1, 2, 4]);
        p.roles[1].ranks = RankSet::from_ascending([3, 5, 6, 7]);
    });
    assert!(is_collective(&program(2, 2, 2).roles[0].instructions()[1].op));
}

#[test]
fn faults_of_order_are_shown_in_the_schedule() {
    // The first position waits for the gradient of microbatch 0 before it sends microbatch 1.
    let circle = faults(|p| {
        lines(p, 0, |l| {
            let receive = find(l, is_receive);
            let moved = l.remove(receive);
            l.insert(4, moved);
            for line in l.iter_mut() {
                for wait in &mut line.waits {
                    let at = wait.index();
                    *wait = InstructionId::at(match at {
                        at if at == receive => 4,
                        at if (4..receive).contains(&at) => at + 1,
                        at => at,
                    });
                }
            }
            l[5].waits.push(InstructionId::new(4));
        });
    });
    assert_eq!(circle.len(), 1, "{circle:#?}");
    for part in ["in a circle", "waits for role1", ">", "position 0 |", "position 1 |", "1B0"] {
        assert!(circle[0].contains(part), "{part}: {}", circle[0]);
    }
    check("backward first", ">0B0<", |p| {
        lines(p, 0, |l| {
            if let Op::Compute { pass, .. } = &mut l[0].op {
                *pass = Pass::Backward
            }
        });
    });
    check("forward twice", "u0 is passed forward twice", |p| {
        lines(p, 0, |l| {
            let again = Line { accesses: Vec::new(), ..l[0].clone() };
            l.insert(4, again);
            l.truncate(5);
        });
    });
    check("incomplete", "the optimizer steps, but the backward pass of c0 m1 is missing", |p| {
        lines(p, 0, |l| {
            let last = l.iter().rposition(|line| is_compute(&line.op)).unwrap();
            blank(&mut l[last]);
        });
    });
    assert!(is_send(&program(2, 2, 2).roles[0].instructions()[3].op));
}

#[test]
fn faults_of_buffers_are_named() {
    let access = |line: usize, accesses: &'static [(u32, Access)]| {
        move |p: &mut Program| {
            lines(p, 0, |l| l[line].accesses = accesses.iter().map(|(b, a)| (BufferId::new(*b), *a)).collect());
        }
    };
    check("never allocated", "frees b1, which is not allocated yet", access(0, &[]));
    check("resident", "allocates b0, which is resident", access(0, &[(0, Access::Allocate)]));
    check("allocated twice", "allocates b1, which is allocated already", access(2, &[(1, Access::Allocate)]));
    check("used early", "uses b2, which is not allocated yet", access(2, &[(2, Access::Use)]));
    check("freed twice", "frees b1, which is freed already", access(2, &[(1, Access::Free)]));
    check("freed in place", "b2", access(2, &[(2, Access::Free), (2, Access::Allocate)]));
    check("leaked", "b1 (activations) is never freed", |p| {
        lines(p, 0, |l| {
            l.iter_mut().for_each(|line| line.accesses.retain(|(b, a)| (b.raw(), *a) != (1, Access::Free)))
        });
    });
    check("unused", "b3 (workspace) is never allocated", |p| {
        p.roles[0].buffer(crate::program::BufferKind::Workspace, Bytes::new(1), false);
    });
}

#[test]
fn many_faults_are_counted() {
    let faults = faults(|p| {
        lines(p, 0, |l| l.iter_mut().for_each(|line| line.waits.extend((100..110).map(InstructionId::new))));
    });
    assert_eq!(faults.len(), 17, "{faults:#?}");
    assert!(faults[16].contains("more faults of names"), "{}", faults[16]);
}
