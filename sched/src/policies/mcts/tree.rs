//! The tree: what is known of each action, and which is tried next.

use rand::RngExt;
use rand_chacha::ChaCha8Rng;

use super::guide::Judgement;
use super::steps::{Action, Choice, Layout, Step};

/// An action and what became of it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Child {
    pub(super) action: Action,
    prior: f32,
    /// The node behind it, once it was tried.
    pub(super) node: Option<usize>,
    /// Whether everything behind it was tried or cannot win.
    pub(super) closed: bool,
    /// Evaluations behind it, and the best plan that fits, in units of the aim.
    pub(super) tried: u32,
    pub(super) best: Option<u64>,
}

/// A state and what is known of plans behind it.
#[derive(Clone, Debug)]
pub(super) struct Node {
    pub(super) children: Vec<Child>,
    /// Evaluations behind it.
    visits: u32,
    /// Sum of their rewards: (what the first of the search took / what it takes) to a power; 0 of what does not fit.
    rewards: f64,
    /// The best of them.
    most: f64,
    /// What a guide expects.
    value: Option<f32>,
}

/// How much what was tried rarely is tried again.
const EXPLORE: f64 = 1.0;
/// Rewards are ratios to this power, so that a few per cent are worth something.
const POWER: f64 = 4.0;
/// Evaluations that a guide's value of a node counts as.
const EXPECTED: f64 = 3.0;

/// See the module.
#[derive(Debug)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
    /// The floor of the whole search, and what rewards are measured by, in units of the aim.
    floor: u64,
    measure: Option<u64>,
}

/// Whether a choice decides how many ranks an axis has, or where they are.
const fn is_degree(choice: Choice) -> bool {
    matches!(choice.step(), Step::Tensor | Step::Pipeline | Step::Context | Step::Layout | Step::Data)
}

/// A way through the tree: nodes, and numbers of children.
pub(super) type Way = Vec<(usize, usize)>;

/// How a way is found.
#[derive(Clone, Copy, Debug)]
pub(super) enum Walk<'a> {
    /// By what is known and by priors.
    Tree,
    /// The same to a uniform plan.
    Uniform,
    /// As another way, but for the choice at a place.
    Beside(&'a [Choice], usize),
    /// As near to another way as there is one.
    Along(&'a [Choice]),
    /// By floors: where the bound is.
    Floor,
}

impl Tree {
    pub(super) const fn new(floor: u64) -> Self {
        Self { nodes: Vec::new(), floor, measure: None }
    }

    pub(super) fn add(&mut self, actions: &[Action], judgement: &Judgement) -> usize {
        let child = |(action, prior): (&Action, &f32)| Child {
            action: *action,
            prior: *prior,
            node: None,
            closed: false,
            tried: 0,
            best: None,
        };
        let children = actions.iter().zip(&judgement.priors).map(child).collect();
        self.nodes.push(Node { children, visits: 0, rewards: 0.0, most: 0.0, value: judgement.value });
        self.nodes.len() - 1
    }

    /// Whether everything was tried or cannot win.
    pub(super) fn is_closed(&self) -> bool {
        self.nodes.first().is_none_or(|root| root.children.iter().all(|child| child.closed))
    }

    fn reward(&self, time: u64) -> f64 {
        let measure = self.measure.unwrap_or(time);
        libm::pow(measure as f64 / time.max(1) as f64, POWER)
    }

    /// What a time is worth beside the best so far, in 0 to 1.
    fn worth(&self, reward: f64, limit: u64) -> f64 {
        if limit == u64::MAX { 0.0 } else { (reward / self.reward(limit)).min(1.0) }
    }

    /// The next child of a node on a walk, after choices; `None` if none is open. What cannot go under a limit is closed;
    /// what is known is measured by something else, or the same.
    pub(super) fn next(
        &mut self,
        node: usize,
        (walk, chosen): (Walk<'_>, &[Choice]),
        (limit, measure): (u64, u64),
        rng: &mut ChaCha8Rng,
    ) -> Option<usize> {
        let children = &mut self.nodes[node].children;
        children.iter_mut().for_each(|child| child.closed |= child.action.floor >= limit);
        let open = (0..children.len()).filter(|at| !children[*at].closed).collect::<Vec<_>>();
        if open.len() < 2 {
            return open.first().copied();
        }
        let uniform = |at: &&usize| children[**at].action.choice == Choice::Layout(Layout::Uniform);
        if matches!(walk, Walk::Uniform)
            && let Some(at) = open.iter().find(uniform)
        {
            return Some(*at);
        }
        match walk {
            Walk::Floor => open.iter().copied().min_by_key(|at| children[*at].action.floor),
            Walk::Tree | Walk::Uniform if self.nodes[node].visits == 0 => Some(self.draw(node, &open, rng)),
            Walk::Tree | Walk::Uniform => Some(self.best(node, &open, measure)),
            Walk::Beside(way, at) if at == chosen.len() => Some(self.beside(node, &open, way.get(at), rng)),
            // Degrees that suit each other change together.
            Walk::Beside(_, at)
                if at < chosen.len() && is_degree(chosen[at]) && self.is_degree(node) && rng.random() =>
            {
                Some(self.draw(node, &open, rng))
            }
            Walk::Beside(way, _) | Walk::Along(way) => {
                let along = self.along(node, &open, (way, chosen));
                Some(along.unwrap_or_else(|| self.likeliest(node, &open, rng)))
            }
        }
    }

    /// Whether degrees are chosen at a node.
    fn is_degree(&self, node: usize) -> bool {
        self.nodes[node].children.first().is_some_and(|child| is_degree(child.action.choice))
    }

    /// By priors.
    fn draw(&self, node: usize, open: &[usize], rng: &mut ChaCha8Rng) -> usize {
        let children = &self.nodes[node].children;
        let all = open.iter().map(|at| f64::from(children[*at].prior)).sum::<f64>();
        let mut left = rng.random::<f64>() * all;
        for at in open {
            left -= f64::from(children[*at].prior);
            if left <= 0.0 {
                return *at;
            }
        }
        open[open.len() - 1]
    }

    /// What plans behind a node are worth: their mean, with what a guide expected as so many of them.
    fn mean(&self, node: &Node, limit: u64) -> f64 {
        let expected = node.value.map(|value| {
            let time = self.floor as f64 / f64::from(value.clamp(1e-3, 1.0));
            let ratio = if limit == u64::MAX { 0.0 } else { limit as f64 / time.max(1.0) };
            libm::pow(ratio, POWER).min(1.0)
        });
        let weight = if expected.is_some() { EXPECTED } else { 0.0 };
        let known = self.worth(node.rewards / f64::from(node.visits.max(1)), limit) * f64::from(node.visits);
        (known + weight * expected.unwrap_or(0.0)) / (f64::from(node.visits) + weight).max(1.0)
    }

    /// The largest of what is known and what is hoped: what was not tried counts as its like.
    fn best(&self, node: usize, open: &[usize], limit: u64) -> usize {
        let here = &self.nodes[node];
        let (mean, root) = (self.mean(here, limit), libm::sqrt(f64::from(here.visits)));
        let score = |at: &usize| {
            let child = &here.children[*at];
            let (visits, worth) = match child.node.map(|node| &self.nodes[node]) {
                Some(known) if known.visits > 0 => {
                    (known.visits, 0.5 * (self.mean(known, limit) + self.worth(known.most, limit)))
                }
                _ => (0, mean),
            };
            worth + EXPLORE * f64::from(child.prior) * root / (1.0 + f64::from(visits))
        };
        open.iter().copied().max_by(|a, b| score(a).total_cmp(&score(b)).then(b.cmp(a))).unwrap_or(open[0])
    }

    /// Another than a way's own: of ends one nearby, else by priors.
    fn beside(&self, node: usize, open: &[usize], own: Option<&Choice>, rng: &mut ChaCha8Rng) -> usize {
        let children = &self.nodes[node].children;
        let others = open.iter().copied().filter(|at| Some(&children[*at].action.choice) != own).collect::<Vec<_>>();
        match own {
            Some(Choice::Number(Step::End, end)) if !others.is_empty() => {
                let mut near = others;
                near.sort_by_key(|at| children[*at].action.choice.number().abs_diff(*end));
                near[rng.random_range(0..near.len().min(4))]
            }
            _ if !others.is_empty() => self.draw(node, &others, rng),
            _ => open[0],
        }
    }

    /// What has the largest prior; of kinds, which may come in any order, one drawn by priors.
    fn likeliest(&self, node: usize, open: &[usize], rng: &mut ChaCha8Rng) -> usize {
        let children = &self.nodes[node].children;
        let prior = |at: &usize| children[*at].prior;
        if children[open[0]].action.choice.step() == Step::Kind {
            return self.draw(node, open, rng);
        }
        open.iter().copied().max_by(|a, b| prior(a).total_cmp(&prior(b)).then(b.cmp(a))).unwrap_or(open[0])
    }

    /// The nearest to a way's own choice of the same step; `None` without one.
    fn along(&self, node: usize, open: &[usize], (way, chosen): (&[Choice], &[Choice])) -> Option<usize> {
        let children = &self.nodes[node].children;
        let step = children[open[0]].action.choice.step();
        // Cuts belong to positions that are as wide and as many, keys to their name.
        let uniform = Choice::Layout(Layout::Uniform);
        let own = match step {
            // What uniform plans are laid on.
            Step::Kind if chosen.contains(&uniform) => {
                way.iter().find(|own| own.step() == step).filter(|_| way.contains(&uniform))
            }
            Step::Kind | Step::End => {
                let shape = |choice: &&Choice| is_degree(**choice);
                let same = way.iter().filter(shape).eq(chosen.iter().filter(shape));
                way.get(chosen.len()).filter(|own| same && own.step() == step)
            }
            _ => way.iter().find(|own| own.step() == step),
        };
        let own = own?;
        let same = open.iter().copied().find(|at| children[*at].action.choice == *own);
        same.or_else(|| match own {
            Choice::Number(..) => {
                let distance = |at: &usize| children[*at].action.choice.number().abs_diff(own.number());
                open.iter().copied().min_by_key(distance)
            }
            _ => None,
        })
    }

    /// Enters what came out at the end of a way: what a plan that fits takes.
    pub(super) fn enter(&mut self, way: &Way, time: Option<u64>) {
        if self.measure.is_none() {
            self.measure = time;
        }
        let reward = time.map_or(0.0, |time| self.reward(time));
        for (node, child) in way {
            let node = &mut self.nodes[*node];
            let child = &mut node.children[*child];
            child.tried += 1;
            child.best = child.best.into_iter().chain(time).min();
            node.visits += 1;
            node.rewards += reward;
            node.most = node.most.max(reward);
        }
    }

    /// Closes the end of a way, and what has nothing open before it; else what was closed may have held floors down.
    pub(super) fn close(&mut self, way: &Way) {
        let mut behind = None;
        for (node, child) in way.iter().rev() {
            let children = &mut self.nodes[*node].children;
            let action = &mut children[*child].action;
            match behind {
                None => children[*child].closed = true,
                Some(floor) => action.floor = action.floor.max(floor),
            }
            behind = children.iter().filter(|child| !child.closed).map(|child| child.action.floor).min();
        }
    }

    /// The least floor of what was not tried.
    pub(super) fn open_floor(&self) -> Option<u64> {
        let open = self.nodes.iter().flat_map(|node| &node.children);
        open.filter(|child| !child.closed && child.node.is_none()).map(|child| child.action.floor).min()
    }
}
