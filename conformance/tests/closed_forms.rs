//! What can be said without a simulator, the simulator says too: bubbles of schedules, rings, and the closed-form
//! evaluator.

use std::sync::Arc;

use cost::{CostModel, PassTable, StagePasses};
use ir::program::Payload;
use ir::{
    Backend, BytesPerSecond, Cluster, CollectiveAlgorithm, LayerRun, Op, Plan, Recompute, Schedule, SimDuration,
    StagePlan, Timeline, VerifiedProgram, ZeroStage,
};
use sched::{ClosedForm, Evaluator, Folding};
use sim::Simulator;
use trainyard_conformance::alone;
use trainyard_conformance::clusters;
use trainyard_conformance::dice::{Dice, SEED_VARIABLE, for_each_seed};
use trainyard_conformance::swarm::Case;
use trainyard_conformance::workspace::root;

/// A pipeline of one rank a stage on links that are never the bottleneck.
fn pipeline(p: u32, v: u32, m: u32, schedule: Schedule) -> Case {
    let mut case = Case::tiny(0, 1);
    case.cluster = fast(p);
    case.model.layers = p * v;
    case.model.tied_head = false;
    case.workload.global_batch = m;
    case.plan = Plan {
        data: 1,
        tensor: 1,
        sequence_parallel: false,
        stages: vec![
            StagePlan {
                layers: vec![1; v as usize],
                recompute: Recompute::None,
                recompute_layers: None,
                tensor: None
            };
            p as usize
        ],
        microbatch_size: 1,
        microbatches: m,
        shares: ir::Shares::EQUAL,
        schedule,
        zero: ZeroStage::Zero0,
        overlap_gradients: false,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
        placement: Vec::new(),
    };
    case
}

fn fast(devices: u32) -> Cluster {
    let mut cluster = clusters::one_domain(devices);
    cluster.node_kinds[0].domain_link.bandwidth = BytesPerSecond::new(1e18).expect("positive");
    cluster
}

/// `[forward, input gradient, weight gradient, transfer]` in nanoseconds, the same on each stage.
fn table(p: u32, v: u32, [forward, backward_input, backward_weight, transfer]: [u64; 4]) -> PassTable {
    let time = SimDuration::from_nanoseconds;
    let stage = StagePasses {
        forward: time(forward),
        backward_input: time(backward_input),
        backward_weight: time(backward_weight),
    };
    PassTable {
        stages: vec![stage; p as usize],
        chunks_per_stage: v,
        transfer: time(transfer),
        optimizer: time(1),
        gradient_norm: time(1),
    }
}

fn simulate(cost: CostModel, program: &Arc<VerifiedProgram>) -> Timeline {
    let mut simulator = Simulator::new(cost);
    simulator.load(Arc::clone(program)).unwrap_or_else(|error| panic!("{error}"));
    simulator.iterate(0).unwrap_or_else(|error| panic!("{error}")).timeline
}

/// From the start of a stage's first pass to the end of its last, the longest of all stages; and passes in all.
fn longest_stage(case: &Case, table: PassTable) -> (u64, u64) {
    let program = case.program(Folding::Folded);
    let cost =
        CostModel::with_pass_table(case.cluster.clone(), table).unwrap_or_else(|problems| panic!("{problems:?}"));
    let timeline = simulate(cost, &program);
    let mut passes = 0;
    let spans = timeline.lanes.iter().map(|lane| {
        let role = &program.roles[lane.role.index()];
        let own = lane.spans.iter().filter(|span| matches!(role.instruction(span.instruction).op, Op::Compute { .. }));
        passes += own.clone().count() as u64;
        let starts = own.clone().map(|span| span.start).min().expect("a pass");
        (own.map(|span| span.end).max().expect("a pass") - starts).nanoseconds()
    });
    let longest = spans.max().expect("a stage");
    (longest, passes)
}

/// `actual` is what the formula says, up to a nanosecond for each instruction (a message takes at least one).
fn check(words: &str, actual: (u64, u64), expected: u64) {
    let (longest, passes) = actual;
    assert!(longest.abs_diff(expected) <= 2 * passes, "{words}: {longest} ns, and the formula says {expected} ns");
}

/// Numbers that divide by the chunks of a position.
const F: u64 = 600_000;
const B: u64 = 720_000;
const W: u64 = 480_000;

#[test]
fn bubbles_are_those_of_the_papers() {
    for (p, m) in [(1, 1), (2, 2), (2, 7), (4, 4), (4, 16), (8, 8), (8, 64), (16, 24)] {
        let (p64, m64) = (u64::from(p), u64::from(m));
        // Narayanan et al. 2019, 2021: m passes and p - 1 more of each kind.
        for schedule in [Schedule::OneForwardOneBackward, Schedule::GPipe] {
            let longest = longest_stage(&pipeline(p, 1, m, schedule.clone()), table(p, 1, [F, B, W, 0]));
            check(&format!("{schedule:?} p={p} m={m}"), longest, (m64 + p64 - 1) * (F + B + W));
            let bubble = 1.0 - (m64 * (F + B + W)) as f64 / longest.0 as f64;
            let formula = (p64 - 1) as f64 / (m64 + p64 - 1) as f64;
            assert!((bubble - formula).abs() < 1e-4, "{schedule:?} p={p} m={m}: bubble rate {bubble}, not {formula}");
        }
        // Interleaved: the ramp is a v-th as long.
        for v in [2, 3].into_iter().filter(|_| p > 1 && m % p == 0) {
            let longest = longest_stage(&pipeline(p, v, m, Schedule::OneForwardOneBackward), table(p, v, [F, B, W, 0]));
            let expected = m64 * (F + B + W) + (p64 - 1) * (F + B + W) / u64::from(v);
            check(&format!("interleaved p={p} v={v} m={m}"), longest, expected);
        }
        // Qi et al. 2024, table 1: a bubble of (p - 1)(T_F + T_B - T_W) where m >= p.
        if m >= p {
            let longest = longest_stage(&pipeline(p, 1, m, Schedule::ZeroBubbleH1), table(p, 1, [F, F, F, 0]));
            check(&format!("ZB-H1 p={p} m={m}"), longest, m64 * 3 * F + (p64 - 1) * F);
        }
    }
}

/// `2 (n-1)/n S/B` and `2 (n-1)` latencies; half of both for a gather and a scatter.
#[test]
fn a_ring_takes_its_bytes_over_the_link_and_its_steps_times_the_latency() {
    for data in [2u32, 3, 4, 8] {
        for zero in [ZeroStage::Zero0, ZeroStage::Zero1] {
            let mut case = pipeline(1, 1, 1, Schedule::GPipe);
            // One worker on each node: the group's way is the NIC, an emulated link of latency and bandwidth.
            case.cluster = clusters::cpu(1);
            case.cluster.groups[0].count = data;
            case.workload.global_batch = data;
            case.plan = Plan { data, zero, collective: CollectiveAlgorithm::Ring, ..case.plan };
            let program = case.program(Folding::Flat);
            let timeline = simulate(clusters::priced(case.cluster.clone()), &program);
            let nic = &case.cluster.node_kinds[0].nic;
            for (instruction, span) in program.roles[0].instructions().iter().zip(&timeline.lanes[0].spans) {
                let Op::Collective { bytes, payload: Payload::Gradients { .. } | Payload::Parameters { .. }, .. } =
                    instruction.op
                else {
                    continue;
                };
                let steps = f64::from(data - 1) * if zero == ZeroStage::Zero0 { 2.0 } else { 1.0 };
                let seconds =
                    steps / f64::from(data) * bytes.get() as f64 / nic.bandwidth.get() + steps * nic.latency.seconds();
                let took = (span.end - span.start).nanoseconds() as f64;
                assert!(
                    (took - seconds * 1e9).abs() <= 1.0,
                    "{data} ranks, {zero:?}: {took} ns, not {} ns",
                    seconds * 1e9
                );
            }
        }
    }
}

/// A plan of equal chunks on equal devices of one domain.
fn uniform(seed: u64, wide: bool) -> Case {
    let mut dice = Dice::new(seed ^ 0x5eed);
    loop {
        let mut case = Case::spread(dice.next(), 16);
        let world = u32::try_from(case.plan.world()).expect("at most 16 ranks");
        case.cluster = clusters::one_domain(world);
        case.plan.placement.clear();
        let (p, v) = (case.plan.pipeline(), case.plan.chunks_per_stage());
        let layers = dice.within(1, 3);
        case.model.layers = p * v * layers;
        let recompute = dice.pick(&[Recompute::None, Recompute::Selective, Recompute::Full]);
        case.plan.stages =
            vec![
                StagePlan { layers: vec![layers; v as usize], recompute, recompute_layers: None, tensor: None };
                p as usize
            ];
        if wide {
            case.widen(&mut dice);
            case.cluster = clusters::one_domain(u32::try_from(case.plan.world()).expect("at most some hundred ranks"));
            // Layers of one kind, so that chunks are equal.
            let run = case.model.variants.pattern.last().copied();
            case.model.variants.pattern =
                run.map(|run| LayerRun { layers: case.model.layers, ..run }).into_iter().collect();
            case.model.variants.mamba = None;
        }
        case.plan.schedule =
            dice.pick(&[Schedule::GPipe, Schedule::OneForwardOneBackward, Schedule::OneForwardOneBackward]);
        case.plan.shares = ir::Shares::EQUAL;
        case.plan.microbatches = if v > 1 { p * dice.within(1, 4) } else { dice.within(1, 20) };
        case.workload.global_batch = case.plan.data * case.plan.microbatches * case.plan.microbatch_size;
        if (case.plan.schedule != Schedule::GPipe || v == 1)
            && sched::legal(&case.plan, &case.model, &case.workload, &case.cluster).is_empty()
        {
            return case.shared_out(seed);
        }
    }
}

/// What nothing stretches is what the closed form says, to the nanosecond; so the closed form is also the oracle's. Where
/// streams share links the closed form is the lower bound.
fn closed_form_is_the_oracle(wide: bool, seeds: u64, exact: u32) {
    let (mut simulated, mut unequal) = ([0u32; 3], 0);
    for_each_seed(seeds, |seed| {
        let case = uniform(seed, wide);
        let mut cost = clusters::priced(case.cluster.clone());
        if seed % 4 == 0 {
            cost = cost.with_stack(launch_bound());
        }
        let flat = case.program(Folding::Flat);
        let oracle = alone::times(&flat, &cost).iter().flatten().map(|times| times.end).max().expect("an instruction");
        let estimate = ClosedForm::new(&case.model, &case.workload, &cost).evaluate(&case.plan).expect("a legal plan");
        assert_eq!(estimate.breakdown.total(), estimate.iteration, "{:?}", estimate.breakdown);
        unequal += u32::from(!case.plan.shares.are_equal());
        let estimate = estimate.iteration.nanoseconds();
        assert_eq!(estimate, oracle, "closed form and oracle\n{:?}\n{:?}", case.plan, case.model);
        let end = simulate(cost, &case.program(Folding::Folded)).end().nanoseconds();
        assert!(end >= estimate, "the simulation takes {end} ns, the closed form {estimate} ns");
        assert!(end <= estimate * 2, "links are shared by two directions at most: {end} ns, closed form {estimate} ns");
        let schedule = match (&case.plan.schedule, case.plan.chunks_per_stage()) {
            (Schedule::GPipe, _) => 0,
            (_, 1) => 1,
            _ => 2,
        };
        simulated[schedule] += u32::from(end == estimate && case.plan.pipeline() > 1);
    });
    if std::env::var(SEED_VARIABLE).is_err() {
        assert!(simulated.iter().all(|cases| *cases > exact), "pipelines that no link stretched: {simulated:?}");
        assert!(u64::from(unequal) > seeds / 10, "unequal shares: {unequal} of {seeds}");
    }
}

/// Software whose host is slow to launch, so that devices wait and collectives hide meanwhile.
fn launch_bound() -> cost::Stack {
    let constants = cost::StackConstants {
        launch_us: Some(30.0),
        hidden_in_launches: 0.6,
        message_sync_us: 5.0,
        iteration_us: 100.0,
        ..cost::StackConstants::default()
    };
    cost::Stack { constants, ..cost::Stack::default() }
}

#[test]
fn the_closed_form_is_the_simulation_where_no_link_is_shared() {
    closed_form_is_the_oracle(false, 500, 15);
}

#[test]
fn the_closed_form_is_the_simulation_over_all_axes() {
    closed_form_is_the_oracle(true, 300, 2);
}

/// Compute and exchanges that slow each other: to the nanosecond where all of it is inside passes. Of messages and of what
/// runs beside whole passes the closed form knows nothing, so that it is the lower bound; and nothing takes longer than the
/// larger factor makes it.
#[test]
fn the_closed_form_slows_what_the_simulation_slows() {
    let (mut slowed, mut exact) = (0, 0);
    for_each_seed(300, |seed| {
        let case = uniform(seed, true);
        let mut dice = Dice::new(seed ^ 0xfac7);
        let factors = [f64::from(dice.within(0, 8)), f64::from(dice.within(0, 8))].map(|tenths| 1.0 + tenths / 10.0);
        let mut calibrations = clusters::calibrations();
        for calibration in &mut calibrations {
            [calibration.interference.compute, calibration.interference.communication] = factors;
        }
        let cost = CostModel::new(case.cluster.clone(), calibrations).unwrap_or_else(|problems| panic!("{problems:?}"));
        let closed = |cost: &CostModel| {
            let estimate = ClosedForm::new(&case.model, &case.workload, cost).evaluate(&case.plan).expect("legal");
            assert_eq!(estimate.breakdown.total(), estimate.iteration, "{:?}", estimate.breakdown);
            estimate.iteration.nanoseconds()
        };
        let program = case.program(Folding::Folded);
        let simulated = |cost: &CostModel| simulate(cost.clone(), &program).end().nanoseconds();
        let plain = clusters::priced(case.cluster.clone());
        let ((estimate, end), (free, free_end)) =
            ((closed(&cost), simulated(&cost)), (closed(&plain), simulated(&plain)));
        let say = format!("{factors:?}\n{:?}\n{:?}", case.plan, case.model);
        assert!(end >= estimate, "the simulation takes {end} ns, the closed form {estimate} ns: {say}");
        assert!(
            end >= free_end && estimate >= free,
            "faster beside each other: {end} {free_end} {estimate} {free} {say}"
        );
        let most = factors[0].max(factors[1]) * 1.000_01;
        assert!(estimate as f64 <= free as f64 * most, "{estimate} ns, alone {free} ns: {say}");
        assert!(end as f64 <= free_end as f64 * most * 1.05, "{end} ns, alone {free_end} ns: {say}");
        let inside = case.plan.pipeline() == 1 && case.plan.chunks_per_stage() == 1;
        if inside && free == free_end {
            assert_eq!(end, estimate, "{say}");
            exact += 1;
            slowed += u32::from(end > free_end);
        }
    });
    if std::env::var(SEED_VARIABLE).is_err() {
        assert!(slowed > 10 && exact > 30, "{exact} cases to the nanosecond, {slowed} of them slowed");
    }
}

/// Rows of the zero-bubble paper (Qi et al. 2024): profiled times through a pass table give the printed bubble rate.
#[test]
fn the_printed_bubble_rates_of_1f1b_follow_from_the_printed_times() {
    let file = root().join("../shared/data/published/zero_bubble_schedules.csv");
    let Ok(text) = std::fs::read_to_string(&file) else {
        return say(&format!(
            "skipped: the_printed_bubble_rates_of_1f1b_follow_from_the_printed_times (no {})",
            file.display()
        ));
    };
    let mut lines = text.lines();
    let header: Vec<&str> = lines.next().expect("a header").split(',').collect();
    let column = |name: &str| header.iter().position(|key| *key == name).expect("a column");
    let mut rows = 0;
    for row in lines.map(cells) {
        let cell = |name: &str| row[column(name)].as_str();
        if cell("pp_schedule") != "1F1B" {
            continue;
        }
        let number = |name: &str| cell(name).parse::<f64>().unwrap_or_else(|_| panic!("{name} is a number"));
        let profiled = |key: &str| -> u64 {
            let notes = cell("notes");
            let start = notes.find(key).unwrap_or_else(|| panic!("{key} in the notes")) + key.len();
            let digits: String = notes[start..].chars().take_while(|c| c.is_ascii_digit() || *c == '.').collect();
            SimDuration::from_seconds(digits.parse::<f64>().expect("milliseconds") * 1e-3)
                .expect("a time")
                .nanoseconds()
        };
        let whole = |name: &str| cell(name).parse::<u32>().unwrap_or_else(|_| panic!("{name} is a whole number"));
        let (p, m) = (whole("pp"), whole("grad_accum"));
        let times = [profiled("T_F="), profiled("T_B="), profiled("T_W="), profiled("T_comm=")];
        let (longest, _) = longest_stage(&pipeline(p, 1, m, Schedule::OneForwardOneBackward), table(p, 1, times));
        let bubble = 1.0 - (u64::from(m) * (times[0] + times[1] + times[2])) as f64 / longest as f64;
        let printed = number("bubble_rate");
        assert!((bubble - printed).abs() <= 0.004, "{}: bubble rate {bubble:.4}, printed {printed:.4}", cell("row_id"));
        rows += 1;
    }
    assert!(rows >= 6, "{rows} rows of 1F1B");
}

/// Cells of a line of CSV, quotes removed.
fn cells(line: &str) -> Vec<String> {
    let (mut cells, mut quoted) = (vec![String::new()], false);
    for character in line.chars() {
        match character {
            '"' => quoted = !quoted,
            ',' if !quoted => cells.push(String::new()),
            other => cells.last_mut().expect("a cell").push(other),
        }
    }
    cells
}

#[expect(clippy::print_stderr, reason = "a skipped test names itself")]
fn say(words: &str) {
    eprintln!("{words}");
}
