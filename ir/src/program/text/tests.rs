use super::{parse, print};
use crate::program::unfold;
use crate::program::{Access, Op, RankSet, Run, Stream};
use crate::testing::{Random, edit, program};
use crate::{BufferId, DeviceId, InstructionId, Program, Recompute};

fn samples() -> Vec<Program> {
    let mut odd = program(2, 2, 3);
    odd.model.name = "a\n[program]\n'''\"\"\" \\ é\u{1}".to_owned();
    odd.model.norm_epsilon = 1.000_000_000_000_000_2e-5;
    odd.workload.seed = u64::MAX;
    odd.workload.optimizer.clip_norm = None;
    odd.model.positions = crate::Positions::Learned { maximum: 77 };
    odd.chunks[1].recompute = Recompute::Full;
    odd.placement = [3, 4, 5, 0, 9, 8, 7, u32::MAX].map(DeviceId::new).to_vec();
    odd.groups[0].shifts = RankSet::from_ascending([0, 1, 2, 9, 17, 25, 40]);
    edit(&mut odd.roles[0], |lines| {
        lines[0].accesses.extend([(BufferId::new(2), Access::Free), (BufferId::new(0), Access::Use)]);
        lines[3].waits.extend([7, 1, 1].map(InstructionId::new));
        lines[4].stream = Stream::Data;
    });
    let flat = unfold::unfold(&program(2, 1, 2));
    let mut empty = program(1, 1, 1);
    empty.roles.clear();
    empty.groups.clear();
    empty.chunks.clear();
    vec![program(8, 4, 4), odd, flat, empty]
}

#[test]
fn a_printed_program_parses_back_to_an_equal_one() {
    for program in samples() {
        let text = print(&program);
        let back = parse(&text).unwrap_or_else(|problems| panic!("{problems:#?} in\n{text}"));
        assert_eq!(back, program, "{text}");
        assert_eq!(print(&back), text);
        assert_eq!(back.digest(), program.digest());
    }
}

#[test]
fn lines_read_well() {
    let text = print(&program(8, 4, 4));
    for line in [
        "trainyard program, version 1",
        "c0 on s0 layers 0..2 recompute none embedding",
        "g0 tensor members 0..4 shifts 0..64/4",
        "role1 on s1 ranks 32..64",
        "b1 activations 500B",
        "i0 compute forward c0 u0..3 m0 on compute allocate b1",
        "i1 all-reduce g0 output c0 u2 m0 forward 8192B on tensor wait i0",
        "i3 send role1+32 forward after c0 m0 8192B on forward-send wait i2",
    ] {
        assert!(text.lines().any(|l| l == line), "{line}\nin\n{text}");
    }
}

#[test]
fn unreadable_lines_are_named() {
    let text = print(&program(1, 1, 1));
    let check = |from: &str, to: &str, part: &str| {
        let changed = text.replacen(from, to, 1);
        assert_ne!(changed, text, "{from} is not in the sample");
        let problems = parse(&changed).unwrap_err();
        let line = changed.lines().position(|l| text.lines().all(|old| old != l)).unwrap() + 1;
        assert_eq!(problems.len(), 1, "{problems:#?}");
        let shown = problems[0].to_string();
        assert!(shown.contains(part) && shown.starts_with(&format!("line {line}: ")), "line {line}, {part}: {shown}");
    };
    check("trainyard program", "{}", "is not \"trainyard program");
    check("hidden = 64", "hidden = sixty", "");
    check("layers = 4", "lawyers = 4", "lawyers");
    check("i1 all-reduce", "i2 all-reduce", "is i2, but i1 is next");
    check("i1 all-reduce", "i1 all-send", "\"all-send\" is no operation");
    check("u0..3", "u0-3", "expected a range such as u2..5");
    check(" on compute allocate b1", " on computer allocate b1", "expected a stream");
    check(" on compute allocate b1", " on compute alloc b1", "expected allocate, use or free");
    check(" on compute allocate b1", " on compute allocate", "ends where buffers should be");
    check("wait i0", "wait 0", "expected i<number>");
    check("8192B on forward-send", "8192 on forward-send", "expected a number of bytes");
    check("role1+1 ", "role1 ", "a role and a shift");
    check("g0 tensor", "g0 sideways", "expected an axis (data, tensor,");
    check("g0 tensor members 0", "g0 tensor members 8..0", "expected ascending ranks");
    check("c1 on s1", "d1 on s1", "\"d1\" begins no line");
    let short = parse("trainyard program, version 1\n[model]").unwrap_err();
    assert!(short[0].to_string().contains("ends before \"[program]\""), "{short:?}");
}

#[test]
fn digests_tell_programs_apart() {
    let base = program(2, 2, 2);
    let mut digests = vec![base.digest()];
    let changes: [fn(&mut Program); 10] = [
        |p| p.workload.seed = 8,
        |p| p.model.norm_epsilon *= 2.0,
        |p| p.layout.microbatch_size = 2,
        |p| p.chunks[0].head = true,
        |p| p.placement = vec![DeviceId::new(1)],
        |p| p.groups[0].shifts = RankSet::run(0, 3, 1),
        |p| p.roles[0].ranks = RankSet::run(0, 3, 1),
        |p| edit(&mut p.roles[0], |l| l[0].op = Op::Optimizer),
        |p| edit(&mut p.roles[0], |l| l[3].waits.push(InstructionId::new(0))),
        |p| edit(&mut p.roles[0], |l| l[0].accesses[0].1 = Access::Use),
    ];
    for change in changes {
        let mut changed = base.clone();
        change(&mut changed);
        digests.push(changed.digest());
    }
    digests.sort_unstable();
    digests.dedup();
    assert_eq!(digests.len(), 11);
}

#[test]
fn sets_of_ranks_refuse_runs_that_do_not_ascend() {
    let run = |first, count, stride| Run { first, count, stride };
    for (runs, good) in [
        (vec![], true),
        (vec![run(3, 1, 1), run(4, 2, 5)], true),
        (vec![run(3, 1, 2)], false),
        (vec![run(3, 0, 1)], false),
        (vec![run(3, 2, 0)], false),
        (vec![run(3, 2, 1), run(4, 1, 1)], false),
        (vec![run(u32::MAX - 1, 2, 1)], false),
        (vec![run(0, u32::MAX, u32::MAX)], false),
    ] {
        assert_eq!(RankSet::from_runs(runs.clone()).is_some(), good, "{runs:?}");
    }
}

/// Whatever a text says, parsing and verifying it give a value.
#[test]
fn mutated_texts_do_not_panic() {
    let mut random = Random::new(4);
    let bases: Vec<String> = [program(1, 2, 1), program(2, 2, 2)].iter().map(print).collect();
    let numbers = ["0", "1", "4294967295", "4294967296", "18446744073709551616", "-1", "9999999"];
    let mut parsed = 0;
    for round in 0..6_000 {
        let mut text = bases[random.index(bases.len())].clone();
        for _ in 0..=random.below(2) {
            let mut at = random.index(text.len() + 1);
            while !text.is_char_boundary(at) {
                at -= 1;
            }
            match random.below(5) {
                0 => text.truncate(at),
                1 => text.insert_str(at, ["é", " ", "\n", ",", "..", "i0", "b", "\"", "/"][random.index(9)]),
                2 | 3 => {
                    // Another number in place of the next one.
                    let start = text[at..].find(|c: char| c.is_ascii_digit()).map_or(text.len(), |i| at + i);
                    let end = text[start..].find(|c: char| !c.is_ascii_digit()).map_or(text.len(), |i| start + i);
                    text.replace_range(start..end, numbers[random.index(numbers.len())]);
                }
                _ => {
                    // A line moved elsewhere.
                    let mut lines: Vec<&str> = text.lines().collect();
                    let line = lines.remove(random.index(lines.len()));
                    lines.insert(random.index(lines.len() + 1), line);
                    text = lines.join("\n");
                }
            }
        }
        if let Ok(program) = parse(&text) {
            parsed += 1;
            let printed = print(&program);
            assert_eq!(parse(&printed).as_ref(), Ok(&program), "round {round}");
            let _ = crate::VerifiedProgram::new(program);
        }
    }
    assert!(parsed > 300, "only {parsed} mutated texts were readable");
}
