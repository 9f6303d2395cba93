mod vee;

use ir::grid::{Action, Grid};
use ir::{Schedule, ZeroBubble};

use super::*;
use crate::testing::random;
use rand::RngExt as _;

fn text(schedule: &Schedule, p: u32, v: u32, m: u32) -> String {
    grid(schedule, p, v, m).unwrap().to_string()
}

/// Orders written out by hand from the papers' figures.
#[test]
fn golden_orders() {
    assert_eq!(text(&Schedule::GPipe, 2, 1, 3), "0F0,0F1,0F2,0B0,0B1,0B2\n1F0,1F1,1F2,1B0,1B1,1B2\n");
    let one = Schedule::OneForwardOneBackward;
    assert_eq!(
        text(&one, 3, 1, 4),
        "0F0,0F1,0F2,0B0,0F3,0B1,0B2,0B3\n\
         1F0,1F1,1B0,1F2,1B1,1F3,1B2,1B3\n\
         2F0,2B0,2F1,2B1,2F2,2B2,2F3,2B3\n"
    );
    // Fewer microbatches than positions.
    assert_eq!(text(&one, 3, 1, 1), "0F0,0B0\n1F0,1B0\n2F0,2B0\n");
    // Narayanan et al. 2021: two positions of two chunks.
    assert_eq!(
        text(&one, 2, 2, 4),
        "0F0,0F1,2F0,2F1,0F2,2B0,0F3,2B1,2F2,0B0,2F3,0B1,2B2,2B3,0B2,0B3\n\
         1F0,1F1,3F0,3B0,3F1,3B1,1F2,1B0,1F3,1B1,3F2,3B2,3F3,3B3,1B2,1B3\n"
    );
    // Qi et al. 2024, H1.
    assert_eq!(
        text(&Schedule::ZeroBubbleH1, 3, 1, 4),
        "0F0,0F1,0F2,0I0,0W0,0F3,0I1,0W1,0I2,0W2,0I3,0W3\n\
         1F0,1F1,1I0,1F2,1I1,1W0,1F3,1I2,1W1,1I3,1W2,1W3\n\
         2F0,2I0,2F1,2I1,2F2,2I2,2W0,2F3,2I3,2W1,2W2,2W3\n"
    );
}

/// Megatron-LM#169: p 4, v 2, m 8 warms up with 10, 8, 6, 4 forward passes.
#[test]
fn interleaved_warm_up_is_megatrons() {
    let grid = grid(&Schedule::OneForwardOneBackward, 4, 2, 8).unwrap();
    let before = |row: &Vec<ir::grid::Cell>| row.iter().take_while(|c| c.action == Action::Forward).count() - 1;
    assert_eq!(grid.rows.iter().map(before).collect::<Vec<_>>(), [10, 8, 6, 4]);
}

#[test]
fn every_grid_is_complete_and_free_of_circles() {
    let (mut sound, mut refused) = (0, 0);
    for p in 1..=6 {
        for v in 1..=3 {
            for m in (1..=14).chain([24, 30]) {
                for (_, schedule) in Schedule::NAMED {
                    match grid(&schedule, p, v, m) {
                        Ok(grid) => {
                            let problems = grid.problems(p * v, m);
                            assert!(problems.is_empty(), "{schedule:?} p {p} v {v} m {m}: {}", problems[0]);
                            assert!(Order::of(&grid, p * v).is_ok());
                            sound += 1;
                        }
                        Err(problems) => {
                            assert!(!problems.is_empty());
                            refused += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(sound > 1100 && refused > 800, "{sound} {refused}");
}

/// Case U05: Megatron-LM asks for m % p = 0, PyTorch for m % max(1, m / p) = 0.
#[test]
fn interleaving_says_whose_rule_refuses() {
    for (p, m, legal) in [(4, 10, true), (4, 3, true), (9, 63, true), (4, 8, true), (4, 11, false), (4, 13, false)] {
        let found = grid(&Schedule::OneForwardOneBackward, p, 2, m);
        assert_eq!(found.is_ok(), legal, "p {p} m {m}");
        if let Err(problems) = found {
            let text = problems[0].to_string();
            assert!(text.contains("PyTorch") && text.contains("Megatron-LM") && text.contains("use "), "{text}");
            assert!(!text.contains("use  "), "{text}");
        }
    }
    let text = grid(&Schedule::OneForwardOneBackward, 1, 2, 4).unwrap_err()[0].to_string();
    assert!(text.contains("at least 2 positions"), "{text}");
    let text = grid(&Schedule::ZeroBubbleH1, 2, 2, 4).unwrap_err()[0].to_string();
    assert!(text.contains("one chunk per stage"), "{text}");
    assert_eq!(grid(&Schedule::GPipe, 0, 1, 0).unwrap_err().len(), 2);
}

fn makespan(grid: &Grid, p: u32, passes: [u64; 4]) -> (u64, DryRun) {
    let order = Order::of(grid, p).unwrap();
    let run = dry_run(grid, p, &order, &CellTimes::uniform(p, passes, 0));
    (run.makespan(), run)
}

/// Qi et al. 2024, table 1: ZB-H1 idles (p-1)(F + B - W) on each position, where 1F1B idles (p-1)(F + B + W).
#[test]
fn zero_bubble_h1_has_its_papers_bubble_and_memory() {
    for (p, m) in [(2, 4), (3, 3), (4, 8), (4, 20), (6, 12), (8, 8), (8, 32)] {
        for [f, b, w] in [[100, 100, 100], [120, 110, 90], [100, 130, 100]] {
            let h1 = grid(&Schedule::ZeroBubbleH1, p, 1, m).unwrap();
            let (end, run) = makespan(&h1, p, [f, b + w, b, w]);
            let (pl, ml) = (u64::from(p), u64::from(m));
            let expect = ml * (f + b + w) + (pl - 1) * (f + b - w);
            if f == b && b == w {
                assert_eq!(end, expect, "p {p} m {m}");
                for (s, row) in h1.rows.iter().enumerate() {
                    // From a position's first pass to its last, minus work.
                    let first = run.ends[s][0] - f;
                    assert_eq!(
                        run.ends[s].last().unwrap() - first - ml * (f + b + w),
                        expect - ml * 300 - s as u64 * f
                    );
                    assert_eq!(row.len(), 3 * m as usize);
                }
            }
            let whole = grid(&Schedule::OneForwardOneBackward, p, 1, m).unwrap();
            let (slower, _) = makespan(&whole, p, [f, b + w, b, w]);
            assert_eq!(slower, (ml + pl - 1) * (f + b + w));
            assert!(end < slower && end >= ml * (f + b + w), "p {p} m {m}: {end} {slower}");
        }
        // No position holds more microbatches than 1F1B's first one.
        for row in &grid(&Schedule::ZeroBubbleH1, p, 1, m).unwrap().rows {
            let (mut held, mut most) = (0u32, 0u32);
            for cell in row {
                match cell.action {
                    Action::Forward => held += 1,
                    Action::BackwardWeight => held -= 1,
                    Action::Backward | Action::BackwardInput => {}
                }
                most = most.max(held);
            }
            assert!(most <= p.min(m), "p {p} m {m}: {most}");
        }
    }
}

#[test]
fn explicit_grids_pass_through_or_are_refused_with_the_cell() {
    let grid_of = |text: &str| Schedule::Explicit(Grid::parse(text).unwrap());
    let v_shape = "0F0,3F0,3B0,0B0\n1F0,2F0,2B0,1B0";
    assert_eq!(grid(&grid_of(v_shape), 2, 2, 1).unwrap().to_string().trim_end(), v_shape);
    let refused = |text: &str, p, v, m, words: &str| {
        let problems = grid(&grid_of(text), p, v, m).unwrap_err();
        assert!(problems.iter().any(|problem| problem.to_string().contains(words)), "{words}: {problems:#?}");
    };
    refused("0F0,0B0", 2, 1, 1, "1 rows and the plan 2 stages");
    refused("0F0,0B0\n1F0", 2, 1, 1, "1B0 is missing");
    refused("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0", 2, 1, 2, "wait");
    refused("0F0,1F0,2F0,2B0,1B0,0B0\n3F0,3B0", 2, 2, 1, "row 0 of the grid holds 3 chunks");
}

#[test]
fn stuck_grids_name_the_cells() {
    let stuck = Order::of(&Grid::parse("0F0,0B0,0F1,0B1\n1F1,1B1,1F0,1B0").unwrap(), 2).unwrap_err();
    assert_eq!(stuck.waiting.len(), 2);
    let text = stuck.to_string();
    assert!(text.contains("(0B0) waits for the backward pass of microbatch 0 through chunk 1"), "{text}");
    assert!(text.contains("(1F1) waits for the forward pass of microbatch 1 through chunk 0"), "{text}");
}

/// Qi et al. 2024, tables 5 and 6: profiled times in microseconds (forward, input, weight, message), and the bubble rates
/// of the schedules that their search made of them. Of 87 (74) bytes that a token and unit of width keep in the smaller
/// (larger) model, with scores of attention, 32 wait for weight passes.
#[test]
fn searched_orders_have_the_published_bubble_rates() {
    let rows = [
        (8, 24, [18_522, 18_086, 9337, 601], 368, [0.1585, 0.0433]),
        (8, 32, [18_513, 18_086, 9331, 626], 368, [0.1242, 0.0039]),
        (8, 64, [18_546, 18_097, 9321, 762], 368, [0.0674, 0.0026]),
        (16, 48, [11_347, 11_248, 8132, 377], 432, [0.1397, 0.0066]),
        (16, 64, [11_307, 11_254, 8101, 379], 432, [0.1088, 0.0054]),
        (16, 128, [11_325, 11_308, 8109, 378], 432, [0.0576, 0.0028]),
    ];
    for (p, m, [forward, backward_input, backward_weight, message], kept, published) in rows {
        for (memory, published) in [1, 2].into_iter().zip(published) {
            let searched = ZeroBubble { memory, forward, backward_input, backward_weight, message, kept };
            let grid = grid(&Schedule::ZeroBubble(searched), p, 1, m).unwrap();
            let rate = bubble_of(&grid, searched);
            assert!((rate - published).abs() < 0.0015, "p {p} m {m} ZB-{memory}p: {rate}, published {published}");
        }
    }
}

fn profile_times(p: u32, searched: ZeroBubble) -> CellTimes {
    let [f, b, w] = [searched.forward, searched.backward_input, searched.backward_weight].map(u64::from);
    CellTimes::uniform(p, [f, b + w, b, w], u64::from(searched.message))
}

/// One less work over the longest time from a position's first pass to its last.
fn bubble_of(grid: &Grid, searched: ZeroBubble) -> f64 {
    let p = u32::try_from(grid.rows.len()).unwrap();
    let times = profile_times(p, searched);
    let run = dry_run(grid, p, &Order::of(grid, p).unwrap(), &times);
    let work: u64 = grid.rows[0].iter().map(|cell| times.of(*cell)).sum();
    let span = |(row, ends): (&Vec<Cell>, &Vec<u64>)| ends[ends.len() - 1] - (ends[0] - times.of(row[0]));
    let longest = grid.rows.iter().zip(&run.ends).map(span).max().unwrap();
    1.0 - work as f64 / longest as f64
}

/// Complete, within memory, and no position busy for longer than 1F1B's longest, whatever the profile.
#[test]
fn searched_orders_fit_and_are_never_longer_than_1f1b() {
    for seed in 0..300u64 {
        let rng = &mut random(seed);
        let (p, m) = (rng.random_range(1..9u32), rng.random_range(1..25u32));
        let searched = ZeroBubble {
            memory: rng.random_range(1..4),
            forward: rng.random_range(1..100),
            backward_input: rng.random_range(1..100),
            backward_weight: rng.random_range(1..100),
            message: rng.random_range(0..20),
            kept: rng.random_range(0..=1000),
        };
        let found = grid(&Schedule::ZeroBubble(searched), p, 1, m).unwrap();
        let say = format!("seed {seed}: p {p} m {m} {searched:?}");
        for row in &found.rows {
            assert_eq!(row.len(), 3 * m as usize, "{say}");
            let most = super::zero_bubble::most_held(searched, row);
            assert!(most <= u64::from(searched.memory * p) * 1000, "{say}: {most}");
        }
        let plain = grid(&Schedule::OneForwardOneBackward, p, 1, m).unwrap();
        let (found, plain) = (bubble_of(&found, searched), bubble_of(&plain, searched));
        assert!(found <= plain + 1e-12, "{say}: {found} {plain}");
    }
}
