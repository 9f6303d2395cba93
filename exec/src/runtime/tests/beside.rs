//! An instruction and an exchange beside it, each of which needs the other.

use ir::program::UnitTensor;

use super::*;

/// Two ranks whose keys and values go round beside the instruction that computes them; another one follows both.
fn ring() -> Program {
    let mut program = program(1, 1, 1);
    program.layout.mesh.context = 2;
    program.groups = vec![Group { axis: Axis::Context, members: RankSet::run(0, 2, 1), shifts: RankSet::run(0, 1, 1) }];
    let (chunk, microbatch) = (ChunkId::new(0), MicrobatchId::new(0));
    let tensor = UnitTensor::KeysAndValues;
    let payload = Payload::Activation { tensor, chunk, unit: 1, microbatch, pass: Pass::Forward };
    let kind = CollectiveKind::AllGather;
    let mut role = Role::new(StageId::new(0), RankSet::run(0, 2, 1));
    let gather = Op::Collective { kind, group: GroupId::new(0), payload, bytes: Bytes::new(80) };
    let gather = role.push(gather, Stream::Context, &[], &[]);
    let units = UnitRange { start: 1, end: 2 };
    let attention = Op::Compute { pass: Pass::Forward, chunk, units, microbatch };
    let attention = role.push(attention, Stream::Compute, &[], &[]);
    role.push(forward(0, 0), Stream::Compute, &[gather, attention], &[]);
    program.roles = vec![role];
    program
}

#[test]
fn work_goes_on_while_keys_go_round() {
    for slowdown in [1.0, 2.0] {
        // The gather takes 30 milliseconds on its link.
        let cluster = cluster(&[slowdown; 2], 1e9, 30_000);
        let (crew, log) = crew(ring(), &cluster, Duration::from_millis(1), CpuOptions::default());
        for iteration in 0..2 {
            log.lock().unwrap().clear();
            let reports = crew.iterate(iteration).unwrap();
            for (rank, report) in reports.iter().enumerate() {
                let log = log.lock().unwrap();
                let mine = log.iter().filter(|(of, what, _)| of.index() == rank && !what.contains("begin"));
                let words: Vec<&str> = mine.map(|(_, what, _)| what.as_str()).collect();
                // The second piece does not wait for the gather; the end of the instruction does.
                let attention = format!("forward {} {}", ChunkId::new(0), MicrobatchId::new(0));
                let wanted = ["feed m0", "piece 1", "piece 2", "all-gather", &attention, &attention];
                assert_eq!(words[1..], wanted[1..], "rank {rank}, slowdown {slowdown}");
                let [gather, attention, after] = [0, 1, 2].map(|instruction| milliseconds(report, instruction));
                assert!(attention.0 <= gather.0 && attention.1 >= gather.1, "{attention:?} over {gather:?}");
                assert!(gather.1 - gather.0 >= 30.0, "{gather:?}");
                assert!(after.0 >= attention.1.max(gather.1), "{after:?} follows {attention:?} and {gather:?}");
            }
        }
    }
}
