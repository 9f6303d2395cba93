//! One scenario, one digest: in another process, and whichever queue the engine runs on.

use std::process::Command;
use std::sync::Arc;

use ir::{Backend, Timeline, VerifiedProgram};
use sched::Folding;
use sim::Simulator;
use sim::machine::End;
use sim::queue::{IndexedQueue, Queue, RadixQueue};
use trainyard_conformance::clusters;
use trainyard_conformance::dice::for_each_seed;
use trainyard_conformance::swarm::Case;

/// Set in the processes that only say their digests.
const CHILD: &str = "TRAINYARD_DIGEST_CHILD";
const CASES: u64 = 40;

fn simulate<Q: Queue<End> + Default>(case: &Case, program: &Arc<VerifiedProgram>) -> Timeline {
    let mut simulator = Simulator::<Q>::with_queue(clusters::priced(case.cluster.clone()));
    simulator.load(Arc::clone(program)).unwrap_or_else(|error| panic!("{error}"));
    simulator.iterate(0).unwrap_or_else(|error| panic!("{error}")).timeline
}

/// Of the programs and the timelines of all cases, folded and flat.
fn digests() -> String {
    let lines = (0..CASES).flat_map(|seed| {
        let case = Case::spread(seed, 32);
        [Folding::Folded, Folding::Flat].map(|folding| {
            let program = case.program(folding);
            format!(
                "digest {seed} {:016x} {:016x}\n",
                program.digest(),
                simulate::<RadixQueue<End>>(&case, &program).digest()
            )
        })
    });
    lines.collect()
}

#[test]
#[expect(clippy::print_stdout, reason = "the other process tells its digests")]
fn child() {
    if std::env::var_os(CHILD).is_some() {
        print!("\n{}", digests());
    }
}

#[test]
fn another_process_gives_the_same_digests() {
    let own = digests();
    assert_eq!(own.lines().count() as u64, 2 * CASES);
    for _ in 0..2 {
        let program = std::env::current_exe().expect("this test has a path");
        let output = Command::new(program)
            .args(["--exact", "child", "--nocapture"])
            .env(CHILD, "1")
            .output()
            .expect("it runs again");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        let said = String::from_utf8(output.stdout).expect("text");
        let digests: String =
            said.lines().filter(|line| line.starts_with("digest ")).map(|line| format!("{line}\n")).collect();
        assert_eq!(digests, own, "two processes disagree");
    }
}

#[test]
fn every_queue_gives_the_same_timeline() {
    for_each_seed(120, |seed| {
        let case = Case::spread(seed, 32);
        let program = case.program(Folding::Flat);
        let (radix, indexed) =
            (simulate::<RadixQueue<End>>(&case, &program), simulate::<IndexedQueue<End>>(&case, &program));
        assert_eq!(radix, indexed, "the order of events depends on the queue");
    });
}
