use std::sync::Arc;

use rand::RngExt;

use super::*;
use crate::evaluate::ClosedForm;
use crate::policies::{Guide, Mcts, Planner as _, Question};
use crate::testing::{analytic, dgx, random, small_model, two_leaves_of_unlike_nodes, with_experts, workload};

fn weights(seed: Option<u64>) -> Arc<Weights> {
    let widths = Widths { state: features::STATE, choice: features::CHOICE, trunk: 8, rating: 6, value: 4 };
    let parameters = match seed {
        None => vec![0.0; widths.parameters()],
        Some(seed) => {
            let mut rng = random(seed);
            (0..widths.parameters()).map(|_| rng.random_range(-1.0..1.0)).collect()
        }
    };
    Arc::new(Weights::new(Network::new(widths, parameters), Origin::default()))
}

/// Whatever the weights are, the search finds legal plans that fit, twice the same; with a budget of everything it finds what
/// rules find, because a guide decides what is looked at first and not what there is.
#[test]
fn no_weights_make_a_search_wrong() {
    let pattern = [ir::LayerRun { layers: 4, mixer: ir::Mixer::Attention, feed_forward: ir::FeedForward::Experts }];
    for (seed, (model, cluster)) in [
        (small_model(6), dgx(1)),
        (small_model(5), two_leaves_of_unlike_nodes()),
        (with_experts(small_model(4), &pattern), dgx(1)),
    ]
    .into_iter()
    .enumerate()
    {
        let (work, cost) = (workload(64, 8), analytic(cluster));
        let ask = Question::new(&model, &work, cost.cluster());
        let find = |guide: Guide, budget: u64| {
            let mut closed = ClosedForm::new(&model, &work, &cost);
            let planner = Mcts { guide, ..Mcts::new(seed as u64) };
            let found = planner.plan(&ask, &mut closed, budget, &mut |_, _| {}).expect("a plan");
            let time = found[0].evaluation.as_ref().expect("it fits").iteration;
            assert!(crate::legal(&found[0].plan, &model, &work, cost.cluster()).is_empty(), "seed {seed}");
            (found[0].plan.clone(), time)
        };
        for of in [None, Some(1), Some(2)] {
            let guide = || Guide::Learned(weights(of));
            assert_eq!(find(guide(), 40), find(guide(), 40), "seed {seed}");
            assert!(find(guide(), 400).1 <= find(guide(), 40).1, "seed {seed}");
        }
    }
}

/// Every number that the network is shown is finite and of a size that it can learn from, at every node of searches on like
/// and unlike clusters; and there are as many as it is built for.
#[test]
fn features_are_small_finite_numbers() {
    let (mut nodes, mut differ) = (0, 0);
    for (seed, cluster) in [dgx(1), dgx(4), two_leaves_of_unlike_nodes()].into_iter().enumerate() {
        for (layers, sequence, batch) in [(1, 16, 1), (6, 512, 24), (24, 32_768, 512)] {
            let (model, work, cost) = (small_model(layers), workload(sequence, batch), analytic(cluster.clone()));
            let ask = Question::new(&model, &work, cost.cluster());
            let planner = Mcts { guide: Guide::Learned(weights(Some(seed as u64))), ..Mcts::new(1) };
            let study = planner.study(&ask, &mut ClosedForm::new(&model, &work, &cost), 30, 0.5);
            for note in &study.notes {
                nodes += 1;
                assert_eq!((note.state.len(), note.rules.len()), (features::STATE, note.choices.len()));
                assert!(note.state.iter().all(|number| number.abs() < 20.0), "{:?}", note.state);
                for choice in &note.choices {
                    assert_eq!(choice.len(), features::CHOICE);
                    assert!(choice.iter().all(|number| number.abs() < 20.0), "{choice:?}");
                }
                differ += u32::from(note.choices.windows(2).all(|pair| pair[0] != pair[1]));
                // The best behind a node is the best behind one of its choices, and no better than the floor.
                assert!(note.times.iter().flatten().all(|time| *time >= study.floor && Some(*time) >= study.best));
                let of = note.visits.iter().zip(&note.times);
                assert!(of.into_iter().all(|(visits, time)| time.is_none() || *visits > 0));
            }
        }
    }
    assert!(nodes > 100 && differ == nodes, "{nodes} nodes, of which {differ} tell their choices apart");
}
