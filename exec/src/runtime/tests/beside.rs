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
    // The second rank takes half a second for each piece; the gather takes 30 milliseconds on its link.
    let cluster = cluster(&[1.0, 100.0], 1e9, 30_000);
    let (crew, log) = crew(ring(), &cluster, Duration::from_millis(5), CpuOptions::default());
    for iteration in 0..2 {
        log.lock().unwrap().clear();
        let reports = crew.iterate(iteration).unwrap();
        let words: Vec<String> = {
            let log = log.lock().unwrap();
            log.iter().filter(|(rank, ..)| rank.raw() == 0).map(|(_, what, _)| what.clone()).collect()
        };
        // The second piece does not wait for the gather; what follows it does.
        let forward = format!("forward {} {}", ChunkId::new(0), MicrobatchId::new(0));
        let wanted = ["piece 1", "piece 2", "all-gather", &forward, &forward];
        assert!(words.ends_with(&wanted.map(str::to_owned)), "{words:?}");
        for (rank, report) in reports.iter().enumerate() {
            let [gather, attention, after] = [0, 1, 2].map(|instruction| milliseconds(report, instruction));
            assert!(attention.0 <= gather.0 && attention.1 >= gather.1, "{rank}: {attention:?} over {gather:?}");
            // The slower rank's keys are there when its device has had the time for them.
            assert!(gather.0 >= 490.0 && gather.1 - gather.0 >= 30.0, "{rank}: {gather:?}");
            assert!(after.0 >= attention.1.max(gather.1), "{rank}: {after:?} follows {attention:?} and {gather:?}");
        }
    }
}
