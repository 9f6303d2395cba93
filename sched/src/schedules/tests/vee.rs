//! Orders down the pipeline and up again, and ZB-H2.

use ir::{Vee, VeeMemory};

use super::*;

const MEMORIES: [VeeMemory; 3] = [VeeMemory::Full, VeeMemory::Half, VeeMemory::Third];

/// The end of everything and the longest time from a position's first pass to its last, where a pass of a chunk takes so long
/// (forward, input gradients, weight gradients) and a message so long.
fn length(grid: &Grid, chunks: u32, [f, b, w]: [u64; 3], message: u64) -> (u64, u64) {
    let times = CellTimes::uniform(chunks, [f, b + w, b, w], message);
    let run = dry_run(grid, chunks, &Order::of(grid, chunks).unwrap(), &times);
    let span = |(row, ends): (&Vec<Cell>, &Vec<u64>)| ends[ends.len() - 1] - (ends[0] - times.of(row[0]));
    (run.makespan(), grid.rows.iter().zip(&run.ends).map(span).max().unwrap())
}

/// The most chunks of microbatches that a row has between their forward pass and their last backward pass.
fn most_held(row: &[Cell]) -> u32 {
    let (mut held, mut most) = (0u32, 0);
    for cell in row {
        match cell.action {
            Action::Forward => held += 1,
            Action::BackwardWeight | Action::Backward => held -= 1,
            Action::BackwardInput => {}
        }
        most = most.max(held);
    }
    most
}

/// Qi et al. 2024, section 2.3: no position idles between its first pass and its last, with at most 2 p microbatches alive.
#[test]
fn zero_bubble_h2_has_none() {
    for (p, m) in [(2, 3), (3, 6), (4, 8), (4, 20), (6, 12), (8, 16), (8, 32), (16, 40)] {
        let grid = grid(&Schedule::ZeroBubbleH2, p, 1, m).unwrap();
        let (end, span) = length(&grid, p, [10, 10, 10], 0);
        assert_eq!((end, span), (u64::from(30 * m + 10 * (p - 1)), u64::from(30 * m)), "p {p} m {m}");
        let most = grid.rows.iter().map(|row| most_held(row)).max();
        assert!(most <= Some((2 * p).min(m)), "p {p} m {m}: {most:?}");
    }
}

/// Where all passes take as long, ZB-V is as short as an order can be whose last position begins `p - 1` passes late, or two
/// passes longer, in the memory of 1F1B (Qi et al. 2024, section 6); V-Half and V-Min pay for less memory with a part of
/// 1F1B's bubble (Qi, Wan, Amar and Lin 2024, table 1: about a half, and two thirds).
#[test]
fn memory_is_bought_with_bubble() {
    for p in 2..=12u32 {
        for m in [2 * p, 3 * p + 1, 5 * p] {
            let idle = |memory: VeeMemory| {
                let grid = grid(&Schedule::Vee(Vee::unprofiled(memory)), p, 2, m).unwrap();
                let most = grid.rows.iter().map(|row| most_held(row)).max().unwrap();
                assert!(most <= memory.chunks(p), "{memory:?} p {p} m {m}: {most}");
                length(&grid, 2 * p, [10, 10, 10], 0).0 - u64::from(60 * m)
            };
            let one_forward = u64::from(60 * (p - 1));
            let [full, half, third] = MEMORIES.map(idle);
            assert!(
                full <= u64::from(10 * (p + 1)) && (p > 6 || full == u64::from(10 * (p - 1))),
                "p {p} m {m}: {full}"
            );
            assert!(full <= half && half * 2 <= one_forward, "p {p} m {m}: {half} {one_forward}");
            assert!(third * 4 <= one_forward * 3, "p {p} m {m}: {third} {one_forward}");
        }
        let [full, half, third] = MEMORIES.map(|memory| memory.chunks(p));
        assert!(third <= half && half <= full && half <= p + 2 && third <= 2 * (p + 6) / 3, "p {p}");
    }
}

/// Any profile: complete, within memory, never blocked.
#[test]
fn any_profile_has_an_order() {
    for seed in 0..200u64 {
        let rng = &mut random(seed);
        let (p, m) = (rng.random_range(2..9u32), rng.random_range(1..30u32));
        let searched = Vee {
            memory: MEMORIES[rng.random_range(0..3)],
            forward: rng.random_range(1..100),
            backward_input: rng.random_range(1..100),
            backward_weight: rng.random_range(1..100),
            message: rng.random_range(0..40),
        };
        let say = format!("seed {seed}: p {p} m {m} {searched:?}");
        let grid = grid(&Schedule::Vee(searched), p, 2, m).unwrap();
        assert!(grid.problems(2 * p, m).is_empty(), "{say}");
        for (position, row) in (0..p).zip(&grid.rows) {
            assert_eq!(row.len(), 6 * m as usize, "{say}");
            assert!(most_held(row) <= searched.memory.chunks(p), "{say}");
            let own = [position, 2 * p - 1 - position];
            assert!(row.iter().all(|cell| own.contains(&cell.chunk.raw())), "{say}");
        }
        let [f, b, w] = [searched.forward, searched.backward_input, searched.backward_weight].map(u64::from);
        let (end, _) = length(&grid, 2 * p, [f, b, w], u64::from(searched.message));
        let once = 2 * u64::from(p) * (f + b) + 4 * u64::from(searched.message * (p - 1)) + w;
        let all = 2 * u64::from(m) * (f + b + w);
        // No longer than if each microbatch waited for the one before it.
        assert!(end >= all.max(once) && end <= u64::from(m) * (once + 2 * w), "{say}: {end}");
    }
}

/// Where passes beside each other take the sum of their times and all passes as long, a position waits for a pass of each
/// position after it: less than the `(p - 1) (F&B + B - 3 W)` that DeepSeek-AI 2025 states of passes that overlap. It holds
/// `2 p + 1` chunks of microbatches, as stated there.
#[test]
fn dual_pipe_v_has_its_authors_bubble_and_memory() {
    for (p, m) in [(2, 4), (2, 9), (3, 6), (4, 8), (4, 20), (6, 13), (8, 16), (8, 40)] {
        let dual = grid(&Schedule::DualPipeV, p, 2, m).unwrap();
        let passes = [10, 10, 10];
        let (_, span) = length(&dual, 2 * p, passes, 0);
        assert_eq!(span, u64::from(60 * m + 10 * (p - 1)), "p {p} m {m}");
        let most = dual.rows.iter().map(|row| most_held(row)).max().unwrap();
        assert!(most <= 2 * p + 1, "p {p} m {m}: {most}");
        for chunk in 0..2 * p {
            let of = |action: Action| {
                let cells = dual.rows.iter().flatten();
                let same = cells.filter(|cell| cell.chunk.raw() == chunk && cell.action == action);
                u32::try_from(same.count()).unwrap()
            };
            let split = split_in_dual_pipe_v(p, chunk as usize);
            assert_eq!(
                [split, split, m - split],
                [Action::BackwardInput, Action::BackwardWeight, Action::Backward].map(of)
            );
            let last = dual.rows.iter().find_map(|row| {
                let of = |cell: &&Cell| cell.chunk.raw() == chunk && !matches!(cell.action, Action::Forward);
                row.iter().rev().find(of).map(|cell| cell.action)
            });
            assert_eq!(last, Some(last_of_dual_pipe_v(p, chunk as usize)), "p {p} m {m} chunk {chunk}");
        }
    }
    assert_eq!(
        text(&Schedule::DualPipeV, 2, 2, 4),
        "0F0,0F1,0F2,3F0,3I0,3W0,3F1,0F3,3B1,3F2,0B0,3B2,3F3,0B1,3B3,0I2,0W2,0I3,0W3\n\
         1F0,2F0,1F1,2F1,1F2,2B0,2F2,1B0,1F3,2B1,2F3,1B1,2B2,1B2,2I3,1I3,2W3,1W3\n"
    );
}

#[test]
fn what_they_need_is_said() {
    let said = |schedule: &Schedule, p, v, m| {
        grid(schedule, p, v, m).unwrap_err().iter().map(ToString::to_string).collect::<Vec<_>>().join("; ")
    };
    let vee = Schedule::Vee(Vee::unprofiled(VeeMemory::Half));
    assert!(said(&vee, 4, 1, 8).contains("two chunks per stage, here there are 1"), "{}", said(&vee, 4, 1, 8));
    assert!(said(&vee, 1, 2, 8).contains("at least 2 positions"), "{}", said(&vee, 1, 2, 8));
    let few = said(&Schedule::DualPipeV, 4, 2, 7);
    assert!(few.contains("two microbatches for each position, 8, and there are 7"), "{few}");
    let instant = Schedule::Vee(Vee { forward: 0, ..Vee::unprofiled(VeeMemory::Full) });
    assert!(said(&instant, 4, 2, 8).contains("takes no time"), "{}", said(&instant, 4, 2, 8));
    assert!(said(&Schedule::ZeroBubbleH2, 4, 2, 8).contains("ZB-H2 is defined for one chunk"));
}
