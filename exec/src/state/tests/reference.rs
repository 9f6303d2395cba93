//! The whole model in double precision, written as the papers do: an oracle that shares no code with the executor.

use std::cell::Cell;
use std::collections::BTreeMap;

use ir::{BranchNorms, Experts, FeedForward, Mixer, MlpKind, Model, NormKind, ParallelBranches, Positions, Scoring};

use super::super::Weights;

/// A matrix by rows.
type Rows = Vec<Vec<f64>>;

/// Tensors in double precision, flattened.
pub(super) struct Reference<'a> {
    pub(super) model: &'a Model,
    pub(super) tensors: BTreeMap<String, Vec<f64>>,
    /// What the sequences of [`loss`](Self::loss) so far add to the loss that balances experts, before its weight.
    pub(super) balance: Cell<f64>,
}

impl<'a> Reference<'a> {
    pub(super) fn new(model: &'a Model, weights: &Weights) -> Self {
        let wide = |data: &[f32]| data.iter().map(|&value| f64::from(value)).collect();
        let tensors = weights.iter().map(|(name, tensor)| (name.to_owned(), wide(&tensor.data))).collect();
        Self { model, tensors, balance: Cell::new(0.0) }
    }

    /// The sum of the cross-entropies of one sequence.
    pub(super) fn loss(&self, tokens: &[u32], targets: &[u32]) -> f64 {
        let hidden = self.model.hidden as usize;
        let row = |name: &str, index: usize| self.tensors[name][index * hidden..][..hidden].to_vec();
        let mut x: Rows = tokens.iter().map(|&token| row("embedding.weight", token as usize)).collect();
        if let Positions::Learned { .. } = self.model.positions {
            for (position, x) in x.iter_mut().enumerate() {
                add(x, &row("positions.weight", position));
            }
        }
        for layer in 0..self.model.layers {
            self.layer(layer, &mut x);
        }
        let head = if self.model.tied_head { "embedding" } else { "head" };
        let mut logits = self.linear(head, &self.norm("final_norm", &x));
        if let (true, Some(bias)) = (self.model.tied_head, self.tensors.get("head.bias")) {
            logits.iter_mut().for_each(|logits| add(logits, bias));
        }
        let loss = |(logits, &target): (&Vec<f64>, &u32)| log_sum_exp(logits) - logits[target as usize];
        logits.iter().zip(targets).map(loss).sum()
    }

    fn layer(&self, layer: u32, x: &mut Rows) {
        let variants = &self.model.variants;
        let [attention_norm, mlp_norm] = ["attention_norm", "mlp_norm"].map(|norm| format!("layers.{layer}.{norm}"));
        let before = |name: &str, x: &Rows| match variants.branch_norms {
            BranchNorms::After => x.clone(),
            BranchNorms::Before | BranchNorms::Both => self.norm(name, x),
        };
        let after = |name: &str, branch: Rows| match variants.branch_norms {
            BranchNorms::Before => branch,
            BranchNorms::After => self.norm(name, &branch),
            BranchNorms::Both => self.norm(&format!("{name}.after"), &branch),
        };
        let input = x.clone();
        let n = before(&attention_norm, &input);
        let branch = after(&attention_norm, self.attention(layer, &n));
        x.iter_mut().zip(branch).for_each(|(x, branch)| add(x, &branch));
        let n = match variants.parallel_branches {
            ParallelBranches::No => before(&mlp_norm, x),
            ParallelBranches::OwnNorms => before(&mlp_norm, &input),
            ParallelBranches::OneNorm => n,
        };
        let branch = match self.model.layer(layer).feed_forward {
            FeedForward::Dense => self.mlp(&format!("layers.{layer}.mlp"), self.model.mlp, &n),
            FeedForward::Experts => self.experts(&format!("layers.{layer}"), &n),
        };
        let branch = after(&mlp_norm, branch);
        x.iter_mut().zip(branch).for_each(|(x, branch)| add(x, &branch));
    }

    fn linear(&self, name: &str, x: &Rows) -> Rows {
        let weight = &self.tensors[&format!("{name}.weight")];
        let bias = self.tensors.get(&format!("{name}.bias"));
        let inputs = x[0].len();
        let output =
            |x: &Vec<f64>, j: usize| dot(x, &weight[j * inputs..][..inputs]) + bias.map_or(0.0, |bias| bias[j]);
        x.iter().map(|x| (0..weight.len() / inputs).map(|j| output(x, j)).collect()).collect()
    }

    fn norm(&self, name: &str, x: &Rows) -> Rows {
        let of = |part: &str| self.tensors.get(&format!("{name}.{part}"));
        let (weight, bias) = (of("weight"), of("bias"));
        let epsilon = self.model.norm_epsilon;
        let normed = |x: &Vec<f64>| -> Vec<f64> {
            let length = x.len() as f64;
            let mean = match self.model.norm {
                NormKind::RmsNorm => 0.0,
                NormKind::LayerNorm => x.iter().sum::<f64>() / length,
            };
            let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / length;
            let value = |j: usize| (x[j] - mean) / (variance + epsilon).sqrt() * weight.map_or(1.0, |weight| weight[j]);
            (0..x.len()).map(|j| value(j) + bias.map_or(0.0, |bias| bias[j])).collect()
        };
        x.iter().map(normed).collect()
    }

    /// Each `width` of a row over its root mean square.
    fn heads_normed(&self, name: &str, mut x: Rows) -> Rows {
        let Some(weight) = self.tensors.get(name) else { return x };
        for part in x.iter_mut().flat_map(|row| row.chunks_exact_mut(weight.len())) {
            let square = part.iter().map(|x| x * x).sum::<f64>() / weight.len() as f64;
            let scale = 1.0 / (square + self.model.norm_epsilon).sqrt();
            part.iter_mut().zip(weight).for_each(|(x, weight)| *x *= scale * weight);
        }
        x
    }

    fn attention(&self, layer: u32, x: &Rows) -> Rows {
        let name = format!("layers.{layer}.attention");
        let window = match self.model.layer(layer).mixer {
            Mixer::Window => self.model.variants.window.expect("the window of the model") as usize,
            _ => usize::MAX,
        };
        let dim = self.model.head_dim as usize;
        let (heads, kv_heads) = (self.model.heads as usize, self.model.kv_heads as usize);
        let part = |part: &str| self.linear(&format!("{name}.{part}"), x);
        let placed = |of: &str| self.rotated(self.heads_normed(&format!("{name}.{of}_norm.weight"), part(of)));
        let (q, k, v) = (placed("q"), placed("k"), part("v"));
        let out = |i: usize| -> Vec<f64> {
            let head = |head: usize| {
                let of = head / (heads / kv_heads) * dim;
                let query = &q[i][head * dim..][..dim];
                let score = |j: usize| dot(query, &k[j][of..][..dim]) / (dim as f64).sqrt();
                let first = (i + 1).saturating_sub(window);
                let scores: Vec<f64> = (first..=i).map(score).collect();
                let total = log_sum_exp(&scores);
                let weighted = |c: usize| (first..=i).map(|j| (scores[j - first] - total).exp() * v[j][of + c]).sum();
                (0..dim).map(weighted).collect::<Vec<f64>>()
            };
            (0..heads).flat_map(head).collect()
        };
        self.linear(&format!("{name}.projection"), &(0..x.len()).map(out).collect())
    }

    fn rotated(&self, mut x: Rows) -> Rows {
        let Positions::Rope { theta } = self.model.positions else { return x };
        let dim = self.model.head_dim as usize;
        for (position, row) in x.iter_mut().enumerate() {
            for head in row.chunks_exact_mut(dim) {
                for i in 0..dim / 2 {
                    let angle = position as f64 * theta.powf(-2.0 * i as f64 / dim as f64);
                    let (a, b) = (head[i], head[i + dim / 2]);
                    head[i] = a * angle.cos() - b * angle.sin();
                    head[i + dim / 2] = b * angle.cos() + a * angle.sin();
                }
            }
        }
        x
    }

    /// Each token through its best experts, weighted, and through the shared part.
    fn experts(&self, name: &str, x: &Rows) -> Rows {
        let experts: Experts = self.model.variants.experts.expect("a layer of experts");
        let (count, active) = (experts.count as usize, experts.active as usize);
        let mut share = vec![0.0; count];
        let mut mean = vec![0.0; count];
        let mut output = Rows::new();
        for (x, logits) in x.iter().zip(self.linear(&format!("{name}.router"), x)) {
            let total = log_sum_exp(&logits);
            let score = |logit: &f64| match experts.router.scoring {
                Scoring::Softmax => (logit - total).exp(),
                Scoring::Sigmoid => 1.0 / (1.0 + (-logit).exp()),
            };
            let scores: Vec<f64> = logits.iter().map(score).collect();
            let all: f64 = scores.iter().sum();
            mean.iter_mut().zip(&scores).for_each(|(mean, score)| *mean += score / all);
            let mut best: Vec<usize> = (0..count).collect();
            best.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
            best.truncate(active);
            let chosen: f64 = best.iter().map(|expert| scores[*expert]).sum();
            let mut sum = vec![0.0; x.len()];
            let token = vec![x.clone()];
            for expert in best {
                share[expert] += 1.0;
                let weight = if experts.router.normalised { scores[expert] / chosen } else { scores[expert] };
                let given = self.mlp(&format!("{name}.experts.{expert}"), experts.mlp, &token);
                sum.iter_mut().zip(&given[0]).for_each(|(sum, given)| *sum += weight * given);
            }
            if experts.shared_ffn > 0 {
                let gate = match experts.shared_gate {
                    true => 1.0 / (1.0 + (-self.linear(&format!("{name}.shared_gate"), &token)[0][0]).exp()),
                    false => 1.0,
                };
                let given = self.mlp(&format!("{name}.shared"), experts.mlp, &token);
                sum.iter_mut().zip(&given[0]).for_each(|(sum, given)| *sum += gate * given);
            }
            output.push(sum);
        }
        let length = x.len() as f64;
        let factor = count as f64 / (active as f64 * length);
        let balance: f64 = share.iter().zip(&mean).map(|(share, mean)| share * factor * mean / length).sum();
        self.balance.set(self.balance.get() + balance);
        output
    }

    fn mlp(&self, name: &str, kind: MlpKind, x: &Rows) -> Rows {
        let root = (2.0 / std::f64::consts::PI).sqrt();
        let exact = self.model.variants.exact_gelu;
        let gelu = |x: f64| {
            let curve = if exact { libm::erf(x / 2f64.sqrt()) } else { (root * (x + 0.044_715 * x * x * x)).tanh() };
            0.5 * x * (1.0 + curve)
        };
        let mut up = self.linear(&format!("{name}.up"), x);
        let mut gated = |of: &dyn Fn(f64) -> f64| {
            for (up, gate) in up.iter_mut().zip(self.linear(&format!("{name}.gate"), x)) {
                up.iter_mut().zip(gate).for_each(|(up, gate)| *up *= of(gate));
            }
        };
        match kind {
            MlpKind::SwiGlu => gated(&|gate| gate / (1.0 + (-gate).exp())),
            MlpKind::GeGlu => gated(&gelu),
            MlpKind::Gelu => up.iter_mut().flatten().for_each(|x| *x = gelu(*x)),
        }
        self.linear(&format!("{name}.down"), &up)
    }
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

fn dot(x: &[f64], y: &[f64]) -> f64 {
    assert_eq!(x.len(), y.len());
    x.iter().zip(y).map(|(x, y)| x * y).sum()
}

fn log_sum_exp(values: &[f64]) -> f64 {
    let largest = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    largest + values.iter().map(|value| (value - largest).exp()).sum::<f64>().ln()
}
