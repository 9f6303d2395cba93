#![allow(clippy::print_stderr, missing_docs)]
use crate::testing::*;
use crate::*;
use ir::Schedule;
fn timed<T>(name: &str, n: u64, mut f: impl FnMut() -> T) {
    let mut best = u64::MAX;
    for _ in 0..30 {
        let s = std::time::Instant::now();
        for _ in 0..n {
            std::hint::black_box(f());
        }
        best = best.min(s.elapsed().as_nanos() as u64 / n);
    }
    eprintln!("MEASURED {name}: {:.1} us", best as f64 / 1e3);
}
#[test]
fn measure() {
    let (model, work) = (gpt3(), workload(2048, 1536));
    let cost = analytic(dgx(128));
    let one = plan(&model, &work, [16, 8, 8, 1], Schedule::OneForwardOneBackward);
    timed("lower 175B", 1, || lower(&one, &model, &work, cost.cluster()).unwrap());
    let program = lower(&one, &model, &work, cost.cluster()).unwrap();
    eprintln!("MEASURED instructions {}", program.instructions());
    timed("verify 175B", 1, || ir::VerifiedProgram::new(program.clone()).unwrap());
    let mut closed = ClosedForm::new(&model, &work, &cost);
    let plans = [
        (1, Schedule::OneForwardOneBackward),
        (3, Schedule::OneForwardOneBackward),
        (1, Schedule::GPipe),
        (1, Schedule::ZeroBubbleH1),
    ];
    for (v, schedule) in plans {
        let p = plan(&model, &work, [16, 8, 8, v], schedule);
        let r = closed.evaluate(&p).unwrap();
        eprintln!(
            "MEASURED {:?} v{v}: {:.3} s bubble {:.3} peak0 {:.1}",
            p.schedule,
            r.iteration.seconds(),
            r.bubble_rate.unwrap(),
            r.memory[0].peak.gib()
        );
        timed("  legal", 10, || legal(&p, &model, &work, cost.cluster()));
        timed("  closed", 10, || closed.evaluate(&p).unwrap());
    }
    for v in [1u32, 3] {
        let times = crate::schedules::CellTimes::uniform(8 * v, [1000, 2000, 0, 0], 77);
        for skip in [false, true] {
            timed(&format!("recurrence v{v} {skip}"), 10, || crate::evaluate::recurrence_for_measure(v, &times, skip));
        }
        let p = plan(&model, &work, [16, 8, 8, v], Schedule::OneForwardOneBackward);
        timed("contexts", 10, || crate::evaluate::contexts_for_measure(&p));
        timed("chunks", 10, || crate::layout::chunks(&p));
    }
    timed("set-up", 1, || ClosedForm::new(&model, &work, &cost).evaluate(&one).unwrap());
    let mut used = 0;
    let mut text = String::new();
    timed("megatron", 1, || {
        let ask = Question { model: &model, workload: &work, cluster: cost.cluster() };
        let found = Megatron::default()
            .plan(&ask, &mut ClosedForm::new(&model, &work, &cost), 10000, &mut |n, _| used = n)
            .unwrap();
        text = found
            .iter()
            .map(|c| {
                format!(
                    "\n  d{} t{} p{} v{} mbs{} {:?} {:?}",
                    c.plan.data,
                    c.plan.tensor,
                    c.plan.pipeline(),
                    c.plan.chunks_per_stage(),
                    c.plan.microbatch_size,
                    c.plan.stages[0].recompute,
                    c.reasons
                )
            })
            .collect();
    });
    eprintln!("MEASURED evaluations {used}{text}");
    let mut bad = one.clone();
    bad.data = 23;
    bad.tensor = 7;
    timed("nearest", 1, || nearest(&bad, &model, &work, cost.cluster()));
    let mut llama = small_model(126);
    (llama.hidden, llama.heads, llama.kv_heads, llama.head_dim) = (16384, 128, 8, 128);
    (llama.ffn, llama.vocabulary) = (53248, 128_256);
    let work = workload(8192, 2048);
    let big = plan(&llama, &work, [128, 8, 16, 1], Schedule::OneForwardOneBackward);
    let cluster = dgx(2048);
    timed("lower 405B", 1, || lower(&big, &llama, &work, &cluster).unwrap());
}
