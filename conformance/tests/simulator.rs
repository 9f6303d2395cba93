//! The simulator against itself folded and flat, against bounds, and against an oracle that shares nothing.

use std::sync::Arc;

use ir::program::Stream;
use ir::{Backend, Cluster, Op, Program, Rank, Timeline, VerifiedProgram};
use sched::Folding;
use sim::Simulator;
use trainyard_conformance::alone::{self, Times};
use trainyard_conformance::clusters;
use trainyard_conformance::dice::for_each_seed;
use trainyard_conformance::swarm::{Case, sentences};

fn simulate(program: &Arc<VerifiedProgram>, cluster: &Cluster) -> Timeline {
    let mut simulator = Simulator::new(clusters::priced(cluster.clone()));
    simulator.load(Arc::clone(program)).unwrap_or_else(|error| panic!("{error}"));
    let timeline = simulator.iterate(0).unwrap_or_else(|error| panic!("{error}")).timeline;
    let faults = timeline.faults(program, ir::SimDuration::ZERO);
    assert!(faults.is_empty(), "{}", sentences(&faults));
    timeline
}

/// Every rank's spans and memory are those of its folded role.
fn folded_equals_flat(case: &Case) {
    let (folded, flat) = (case.program(Folding::Folded), case.program(Folding::Flat));
    let unfolded =
        VerifiedProgram::new(ir::program::unfold::unfold(&folded)).unwrap_or_else(|p| panic!("{}", sentences(&p)));
    let [few, all, again] = [&folded, &flat, &Arc::new(unfolded)].map(|program| simulate(program, &case.cluster));
    assert_eq!(few.end(), all.end(), "makespans of {} roles and of {} ranks", folded.roles.len(), flat.roles.len());
    for lane in all.lanes.iter().zip(&again.lanes) {
        assert_eq!(lane.0.spans, lane.1.spans, "lowered flat and unfolded: rank {}", lane.0.rank);
    }
    for rank in (0..flat.world()).map(Rank::new) {
        let role = folded.role_of(rank).expect("a role for each rank");
        let (one, own) = (&few.lanes[role.index()], &all.lanes[rank.index()]);
        let unlike = one.spans.iter().zip(&own.spans).find(|(a, b)| a != b);
        if let Some((folded_span, flat_span)) = unlike {
            let op = flat.roles[rank.index()].instruction(flat_span.instruction).op;
            panic!(
                "{role} ({} ranks), rank {rank}: {folded_span:?} folded, {flat_span:?} flat, {op:?}",
                one.multiplicity
            );
        }
        assert_eq!(one.memory, own.memory, "memory of {rank}");
    }
}

#[test]
fn folding_changes_nothing() {
    for_each_seed(400, |seed| folded_equals_flat(&Case::spread(seed, 48)));
}

#[test]
fn folding_changes_nothing_over_all_axes() {
    for_each_seed(300, |seed| folded_equals_flat(&Case::wide(seed, 48)));
}

#[test]
fn folding_changes_nothing_where_stages_have_unlike_tensor_degrees() {
    for_each_seed(150, |seed| folded_equals_flat(&Case::unlike_spread(seed, 48)));
}

#[test]
fn folding_changes_nothing_on_hundreds_of_devices() {
    for_each_seed(16, |seed| {
        let large = |seed: &u64| Case::spread(*seed, 256);
        let case =
            (seed * 1000..).map(|seed| large(&seed)).find(|case| case.plan.world() > 96).expect("some large case");
        folded_equals_flat(&case);
    });
}

/// No instruction ends before its critical path does; where nothing was stretched, the timeline is the oracle's.
#[test]
fn nothing_is_faster_than_its_critical_path_and_what_is_alone_is_exact() {
    let (mut exact, mut stretched) = (0, 0);
    for_each_seed(400, |seed| {
        let case = if seed % 2 == 0 { Case::spread(seed, 16) } else { Case::wide(seed, 16) };
        let program = case.program(Folding::Flat);
        let cost = clusters::priced(case.cluster.clone());
        let (timeline, oracle) = (simulate(&program, &case.cluster), alone::times(&program, &cost));
        let mut alone = true;
        let mut same = true;
        for (lane, expected) in timeline.lanes.iter().zip(&oracle) {
            for (span, times) in lane.spans.iter().zip(expected) {
                let [issued, start, end] = [span.issued, span.start, span.end].map(ir::SimTime::nanoseconds);
                assert!(end >= times.end && start >= times.start, "{}: {span:?} before {times:?}", lane.rank);
                assert!(end - start >= times.end - times.start, "{}: {span:?} is shorter than {times:?}", lane.rank);
                alone &= end - start == times.end - times.start;
                same &= Times { issued, start, end } == *times;
            }
        }
        assert!(same || !alone, "nothing was stretched, and yet something is late");
        if same {
            exact += 1
        } else {
            stretched += 1
        }
        bounds(&program, &case.cluster, &timeline, &oracle);
    });
    if std::env::var(trainyard_conformance::dice::SEED_VARIABLE).is_err() {
        assert!(exact > 20 && stretched > 20, "{exact} cases alone, {stretched} stretched: the swarm is one-sided");
    }
}

fn bounds(program: &Program, cluster: &Cluster, timeline: &Timeline, oracle: &[Vec<Times>]) {
    let makespan = timeline.end().nanoseconds();
    for (role, times) in program.roles.iter().zip(oracle) {
        for stream in Stream::ALL {
            let own = role.instructions().iter().zip(times).filter(|(instruction, _)| instruction.stream == stream);
            let busy: u64 = own.map(|(_, times)| times.end - times.start).sum();
            assert!(makespan >= busy, "{} is busy for {busy} ns of {makespan} ns", stream.name());
        }
    }
    let cost = clusters::priced(cluster.clone());
    for (link, seconds) in alone::link_seconds(program, &cost) {
        let nanoseconds = seconds * 1e9;
        assert!(
            makespan as f64 >= nanoseconds * (1.0 - 1e-9),
            "{link:?} carries {nanoseconds} ns of messages in {makespan} ns"
        );
    }
}

/// Two ranks behind one NIC get half of it each: the fabric matters at all.
#[test]
fn a_shared_nic_is_shared() {
    let mut found = false;
    for_each_seed(200, |seed| {
        let case = if seed % 2 == 0 { Case::spread(seed, 16) } else { Case::wide(seed, 16) };
        let program = case.program(Folding::Flat);
        let cost = clusters::priced(case.cluster.clone());
        let timeline = simulate(&program, &case.cluster);
        for (role, lane) in program.roles.iter().zip(&timeline.lanes) {
            for (instruction, span) in role.instructions().iter().zip(&lane.spans) {
                if let Op::Send { .. } = instruction.op {
                    let alone = alone::transfer(&program, role, instruction.op, &cost);
                    found |= span.end.nanoseconds() - span.start.nanoseconds() > alone + alone / 2;
                }
            }
        }
    });
    assert!(
        found || std::env::var(trainyard_conformance::dice::SEED_VARIABLE).is_ok(),
        "no message was ever stretched"
    );
}

/// The check of timelines finds what it is there to find: each of these breaks one rule of a sound timeline.
#[test]
fn a_broken_timeline_is_found_out() {
    let case = (0..).map(|seed| Case::spread(seed, 16)).find(|case| case.plan.pipeline() > 1 && case.plan.data > 1);
    let case = case.expect("some case of messages and collectives");
    let program = case.program(Folding::Flat);
    let sound = simulate(&program, &case.cluster);
    let place = |wanted: fn(&Op) -> bool| {
        let of =
            |role: usize| program.roles[role].instructions().iter().position(|instruction| wanted(&instruction.op));
        (0..program.roles.len()).find_map(|role| Some((role, of(role)?))).expect("an instruction of this kind")
    };
    let send = place(|op| matches!(op, Op::Send { .. }));
    let collective = place(|op| matches!(op, Op::Collective { .. }));
    let last = sound.lanes[0].spans.len() - 1;
    let moment = ir::SimTime::from_nanoseconds;
    type Break<'a> = (&'a str, &'a dyn Fn(&mut Timeline));
    let breaks: [Break; 6] = [
        ("a span is missing", &|t| t.lanes[0].spans.truncate(last)),
        ("a span ends before it starts", &|t| t.lanes[0].spans[last].end = moment(0)),
        ("an instruction does not wait", &|t| t.lanes[0].spans[last].issued = moment(0)),
        ("spans are in another order", &|t| t.lanes[0].spans.swap(0, last)),
        ("a message arrives before it is sent", &|t| {
            let span = &mut t.lanes[send.0].spans[send.1];
            (span.issued, span.start, span.end) = (sound.end(), sound.end(), sound.end());
        }),
        ("a member of a collective comes late", &|t| {
            let span = &mut t.lanes[collective.0].spans[collective.1];
            (span.issued, span.start, span.end) = (sound.end(), sound.end(), sound.end());
        }),
    ];
    for (words, change) in breaks {
        let mut broken = sound.clone();
        change(&mut broken);
        assert!(!broken.faults(&program, ir::SimDuration::ZERO).is_empty(), "nobody noticed that {words}");
    }
}
