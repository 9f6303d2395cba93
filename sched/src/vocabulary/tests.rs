use ir::{Evaluation, Plan, Prediction, Schedule, VerifiedProgram, VocabularyDivision};

use super::order::{Nominal, Pattern};
use super::*;
use crate::evaluate::{ClosedForm, Evaluator as _, OnBackend};
use crate::testing::{Interpreter, analytic, dgx, plan, random, small_model, workload};
use rand::RngExt as _;

const DIVIDED: [VocabularyDivision; 3] =
    [VocabularyDivision::TwoBarriers, VocabularyDivision::OneBarrier, VocabularyDivision::Interlaced];

fn nominal(forward: i64, product: i64, division: VocabularyDivision) -> Nominal {
    let (scores, gradients) =
        if division == VocabularyDivision::OneBarrier { (2 * product, product) } else { (product, 2 * product) };
    Nominal { forward, backward: 2 * forward, scores, gradients }
}

/// Every pass and exchange is there once, and nothing comes before what it waits for.
#[test]
fn orders_are_complete_and_causal() {
    for seed in 0..200u64 {
        let rng = &mut random(seed);
        let (p, m) = (rng.random_range(2..9usize), rng.random_range(1..20u32));
        let (forward, product) = (rng.random_range(1..100), rng.random_range(1..100));
        let division = DIVIDED[rng.random_range(0..3)];
        let events = Pattern::new(division, nominal(forward, product, division), p).events(m);
        let exchanges = if division == VocabularyDivision::OneBarrier { 4 } else { 5 };
        assert_eq!(events.len(), m as usize * (p * Work::COUNT + exchanges), "seed {seed}");
        let mut sorted = events.clone();
        sorted.sort_unstable();
        sorted.dedup();
        assert_eq!(sorted.len(), events.len(), "seed {seed}: something happens twice");
        let place = |event: Event| events.iter().position(|other| *other == event).expect("complete");
        for (at, event) in events.iter().enumerate() {
            let Event::Pass { position, work, microbatch } = *event else { continue };
            let ends = (position == 0, position as usize + 1 == p);
            if let Some(exchange) = awaited(division, work, ends) {
                assert!(place(Event::Exchange { exchange, microbatch }) < at, "seed {seed}: {event:?}");
            }
            if let Some(exchange) = fed(division, work, ends) {
                assert!(place(Event::Exchange { exchange, microbatch }) > at, "seed {seed}: {event:?}");
            }
            let neighbour = match work {
                Work::Forward if !ends.0 => Some(position - 1),
                Work::Backward if !ends.1 => Some(position + 1),
                _ => None,
            };
            if let Some(position) = neighbour {
                assert!(place(Event::Pass { position, work, microbatch }) < at, "seed {seed}: {event:?}");
            }
        }
    }
}

/// With times that are the nominal ones and exchanges that cost nothing, a long run keeps every position busy but for the
/// fill and drain of the pipeline: what dividing the vocabulary is for. Microbatches are in flight for one cycle more for
/// each barrier, and half as many again of passes in step (Yeung et al. 2024, section 5).
#[test]
fn positions_are_busy() {
    for (p, product) in [(4u32, 10), (8, 5), (8, 40), (8, 120), (16, 60), (32, 20)] {
        for division in DIVIDED {
            let m = 16 * p;
            let p = p as usize;
            let nominal = nominal(100, product, division);
            let pattern = Pattern::new(division, nominal, p);
            let mut passes = [0; Work::COUNT];
            passes[Work::Scores as usize] = nominal.scores.unsigned_abs();
            passes[Work::Gradients as usize] = nominal.gradients.unsigned_abs();
            (passes[Work::Forward as usize], passes[Work::Backward as usize]) = (100, 200);
            let times = Times {
                passes: vec![passes; p],
                exchanges: [0; Exchange::ALL.len()],
                forward_message: vec![0; p - 1],
                backward_message: vec![0; p - 1],
            };
            let ran = run(&pattern.events(m), division, m, &times);
            let longest = *ran.row.iter().max().unwrap();
            let cycle = passes.iter().sum::<u64>();
            let work = cycle * u64::from(m);
            let idle = 1.0 - work as f64 / longest as f64;
            let in_flight = (0..p).map(|at| pattern.in_flight(at)).collect::<Vec<_>>();
            let fill = (cycle * (p as u64 + 2)) as f64 / longest as f64;
            assert!(idle <= fill, "p {p} product {product} {division:?}: idle {idle}, {fill}");
            for (at, in_flight) in in_flight.into_iter().enumerate() {
                let plain = (p - at) as i64;
                let most = match division {
                    VocabularyDivision::OneBarrier => plain + 1,
                    VocabularyDivision::Interlaced => plain + (plain + 1) / 2,
                    VocabularyDivision::Ends | VocabularyDivision::TwoBarriers => plain + 2,
                };
                assert!(in_flight <= most, "p {p} product {product} {division:?} {at}: {in_flight} over {most}");
            }
        }
    }
}

fn ask(division: VocabularyDivision, degrees: [u32; 4], change: impl Fn(&mut Plan)) -> (Evaluation, Prediction) {
    let mut model = small_model(8);
    (model.hidden, model.heads, model.kv_heads, model.head_dim, model.ffn) = (1024, 8, 8, 128, 4096);
    (model.vocabulary, model.tied_head) = (131_072, degrees[0] == 2);
    let work = workload(1024, 24 * degrees[0]);
    let cost = analytic(dgx(2));
    let mut plan = plan(&model, &work, degrees, Schedule::OneForwardOneBackward);
    plan.sharing.vocabulary = division;
    change(&mut plan);
    let closed = ClosedForm::new(&model, &work, &cost).evaluate(&plan);
    let carried = OnBackend::new(&model, &work, &cost, Interpreter::new(&cost)).evaluate(&plan).unwrap();
    (closed, carried)
}

#[test]
fn closed_form_equals_the_carried_out_program() {
    for division in DIVIDED {
        for degrees in [[1, 1, 2, 1], [1, 1, 4, 1], [2, 1, 4, 1], [1, 1, 8, 1], [2, 1, 8, 1]] {
            for (zero, overlap) in [(ir::ZeroStage::Zero0, false), (ir::ZeroStage::Zero1, true)] {
                let (closed, carried) = ask(division, degrees, |plan| {
                    (plan.zero, plan.overlap_gradients) = (zero, overlap);
                });
                let closed = closed.unwrap();
                let say = format!("{division:?} {degrees:?} {zero:?}");
                assert_eq!(closed.iteration, carried.iteration, "{say}");
                assert_eq!(closed.breakdown.total(), closed.iteration, "{say}");
                let (a, b) = (closed.bubble_rate.unwrap(), carried.bubble_rate.unwrap());
                assert!((a - b).abs() < 1e-9, "{say}: {a} {b}");
                for (a, b) in closed.memory.iter().zip(&carried.memory) {
                    let off = a.peak.get() as f64 / b.peak.get() as f64 - 1.0;
                    assert!(off.abs() < 0.02, "{say}: {a:?} {b:?}");
                }
            }
        }
    }
}

/// A large vocabulary on the last stage alone holds up all others; divided it does not.
#[test]
fn dividing_a_large_vocabulary_pays() {
    let (ends, _) = ask(VocabularyDivision::Ends, [1, 1, 8, 1], |_| ());
    let ends = ends.unwrap();
    for division in DIVIDED {
        let divided = ask(division, [1, 1, 8, 1], |_| ()).0.unwrap();
        assert!(divided.iteration.seconds() < 0.7 * ends.iteration.seconds(), "{division:?} {:?}", divided.iteration);
        let peak = |prediction: &Prediction| prediction.memory.iter().map(|stage| stage.peak).max();
        assert!(peak(&divided) < peak(&ends), "{division:?}");
    }
}

#[test]
fn folded_and_flat_programs_verify() {
    let model = small_model(8);
    let work = workload(64, 12);
    let cost = analytic(dgx(2));
    let mut plan = plan(&model, &work, [4, 1, 4, 1], Schedule::OneForwardOneBackward);
    for division in DIVIDED {
        plan.sharing.vocabulary = division;
        for folding in [crate::Folding::Folded, crate::Folding::Flat] {
            let program = crate::lower_as(folding, &plan, &model, &work, cost.cluster()).unwrap();
            let text = ir::program::text::print(&program);
            assert_eq!(ir::program::text::parse(&text).unwrap(), program);
            let verified = VerifiedProgram::new(program).unwrap_or_else(|problems| panic!("{problems:#?}"));
            assert_eq!(verified.roles.len() < 16, folding == crate::Folding::Folded);
        }
    }
}
