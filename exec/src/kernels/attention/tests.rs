use super::super::testing::{Cases, assert_close, inner, numerical_gradient, wide};
use super::*;

/// Output, then log-sum-exps, by the formula.
fn twin<'a>(over: impl Into<Packed<'a>>, q: &[f64], k: &[f64], v: &[f64]) -> (Vec<f64>, Vec<f64>) {
    let Packed { shape, starts } = over.into();
    let dim = shape.head_dim;
    let group = shape.query_heads / shape.key_heads;
    let (mut out, mut lse) = (Vec::new(), Vec::new());
    for row in 0..shape.sequences * shape.queries * shape.query_heads {
        let (token, head) = (row / shape.query_heads, row % shape.query_heads);
        let (sequence, query) = (token / shape.queries, token % shape.queries);
        let key = |key: usize| ((sequence * shape.keys + key) * shape.key_heads + head / group) * dim;
        let sees = |key: &usize| {
            let distance = (shape.first_query + query).checked_sub(shape.first_key + key);
            let document = starts.get(sequence * shape.queries + query).map_or(0, |start| *start as usize);
            distance.is_some_and(|distance| distance < shape.window) && shape.first_key + key >= document
        };
        let seen: Vec<usize> = (0..shape.keys).filter(sees).map(key).collect();
        let score = |&key: &usize| {
            let dot: f64 = (0..dim).map(|i| q[row * dim + i] * k[key + i]).sum();
            dot * f64::from(shape.softmax_scale)
        };
        let scores: Vec<f64> = seen.iter().map(score).collect();
        let largest = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        let sum: f64 = scores.iter().map(|score| (score - largest).exp()).sum();
        let weight = |score: &f64| (score - largest).exp() / sum;
        let value = |i: usize| seen.iter().zip(&scores).map(|(key, score)| weight(score) * v[key + i]).sum::<f64>();
        out.extend((0..dim).map(value));
        lse.push(if seen.is_empty() { f64::NEG_INFINITY } else { largest + sum.ln() });
    }
    (out, lse)
}

struct Inputs {
    q: Vec<f32>,
    k: Vec<f32>,
    v: Vec<f32>,
    d_out: Vec<f32>,
}

impl Inputs {
    fn new(cases: &mut Cases, shape: Attention, scale: f32) -> Self {
        let queries = shape.sequences * shape.queries * shape.query_heads * shape.head_dim;
        let keys = shape.sequences * shape.keys * shape.key_heads * shape.head_dim;
        let (q, k) = (cases.values(queries, scale), cases.values(keys, scale));
        Self { q, k, v: cases.values(keys, 1.0), d_out: cases.values(queries, 1.0) }
    }
}

fn forward<'a>(over: impl Into<Packed<'a>>, q: &[f32], k: &[f32], v: &[f32]) -> (Vec<f32>, Vec<f32>) {
    let over = over.into();
    let shape = over.shape;
    let (mut out, mut lse) = (vec![f32::NAN; q.len()], vec![f32::NAN; q.len() / shape.head_dim]);
    let mut workspace = AttentionWorkspace { scores: vec![f32::NAN; 7], ..AttentionWorkspace::default() };
    attention_forward(over, q, k, v, &mut out, &mut lse, &mut workspace);
    (out, lse)
}

fn backward<'a>(over: impl Into<Packed<'a>>, saved: AttentionSaved<'_>, d_out: &[f32]) -> [Vec<f32>; 3] {
    let gradient = |of: &[f32]| vec![f32::NAN; of.len()];
    let (mut dq, mut dk, mut dv) = (gradient(saved.q), gradient(saved.k), gradient(saved.v));
    let gradients = &mut AttentionGradients { dq: &mut dq, dk: &mut dk, dv: &mut dv };
    attention_backward(over, saved, d_out, Store::Overwrite, gradients, &mut AttentionWorkspace::default());
    [dq, dk, dv]
}

fn check<'a>(over: impl Into<Packed<'a>>, inputs: &Inputs) {
    let shape = over.into();
    let Inputs { q, k, v, d_out } = inputs;
    let (wide_q, wide_k, wide_v) = (wide(q), wide(k), wide(v));
    let (out, lse) = forward(shape, q, k, v);
    let (want_out, want_lse) = twin(shape, &wide_q, &wide_k, &wide_v);
    assert_close("out", &out, &want_out, 2e-6);
    assert_close("lse", &lse, &want_lse, 1e-6);

    let [dq, dk, dv] = backward(shape, AttentionSaved { q, k, v, out: &out, lse: &lse }, d_out);
    let want = numerical_gradient(&wide_q, |q| inner(d_out, &twin(shape, q, &wide_k, &wide_v).0));
    assert_close("dq", &dq, &want, 5e-6);
    let want = numerical_gradient(&wide_k, |k| inner(d_out, &twin(shape, &wide_q, k, &wide_v).0));
    assert_close("dk", &dk, &want, 5e-6);
    let want = numerical_gradient(&wide_v, |v| inner(d_out, &twin(shape, &wide_q, &wide_k, v).0));
    assert_close("dv", &dv, &want, 5e-6);
}

#[test]
fn passes_equal_the_twin_and_its_gradient() {
    Cases::run(30, |cases| {
        let (key_heads, group) = (cases.size(1, 2), cases.size(1, 3));
        let (sequences, length, dim) = (cases.size(1, 2), cases.size(1, 7), cases.size(1, 5));
        let shape = Attention::new(sequences, length, key_heads * group, key_heads, dim);
        check(shape, &Inputs::new(cases, shape, 1.5));
    });
}

#[test]
fn a_window_hides_what_lies_before_it() {
    Cases::run(30, |cases| {
        let (key_heads, group) = (cases.size(1, 2), cases.size(1, 3));
        let (sequences, length, dim) = (cases.size(1, 2), cases.size(1, 9), cases.size(1, 4));
        let window = cases.size(1, length);
        let shape = Attention { window, ..Attention::new(sequences, length, key_heads * group, key_heads, dim) };
        check(shape, &Inputs::new(cases, shape, 1.5));
    });
    Cases::run(1, |cases| {
        for (length, window) in [(TILE + 5, 3), (2 * TILE + 3, TILE), (2 * TILE + 3, TILE + 1)] {
            let shape = Attention { window, ..Attention::new(1, length, 2, 1, 1) };
            check(shape, &Inputs::new(cases, shape, 1.5));
        }
    });
}

/// Documents of random lengths in each sequence: of each token where its own begins.
fn documents(cases: &mut Cases, sequences: usize, length: usize) -> Vec<u32> {
    let mut starts = Vec::new();
    for _ in 0..sequences {
        let mut start = 0;
        for position in 0..length {
            if cases.size(0, 3) == 0 {
                start = position;
            }
            starts.push(u32::try_from(start).unwrap());
        }
    }
    starts
}

#[test]
fn a_document_sees_nothing_of_others() {
    Cases::run(40, |cases| {
        let (key_heads, group) = (cases.size(1, 2), cases.size(1, 2));
        let (sequences, length, dim) = (cases.size(1, 3), cases.size(1, 9), cases.size(1, 4));
        let window = if cases.size(0, 1) == 0 { usize::MAX } else { cases.size(1, length) };
        let shape = Attention { window, ..Attention::new(sequences, length, key_heads * group, key_heads, dim) };
        let starts = documents(cases, sequences, length);
        check(Packed { shape, starts: &starts }, &Inputs::new(cases, shape, 1.5));
    });
    Cases::run(1, |cases| {
        let length = 2 * TILE + 3;
        let shape = Attention::new(1, length, 2, 1, 1);
        // One that begins inside a tile, one that is longer than a tile, one at the end.
        let start = |at: usize| [0, 5, TILE + 9, length - 1].into_iter().rev().find(|start| *start <= at).unwrap();
        let starts: Vec<u32> = (0..length).map(|at| u32::try_from(start(at)).unwrap()).collect();
        check(Packed { shape, starts: &starts }, &Inputs::new(cases, shape, 1.5));
    });
}

#[test]
fn tiles_join_without_a_seam() {
    Cases::run(1, |cases| {
        for length in [TILE, TILE + 1, 2 * TILE + 3] {
            let shape = Attention::new(1, length, 2, 1, 1);
            check(shape, &Inputs::new(cases, shape, 1.5));
        }
    });
}

#[test]
fn a_query_sees_nothing_later() {
    Cases::run(3, |cases| {
        let shape = Attention::new(1, 80, 2, 2, 4);
        let Inputs { q, mut k, mut v, .. } = Inputs::new(cases, shape, 1.0);
        let (before, _) = forward(shape, &q, &k, &v);
        let token = 8;
        k[70 * token..].fill(1e3);
        v[70 * token..].fill(-1e3);
        let (after, _) = forward(shape, &q, &k, &v);
        assert_eq!(before[..70 * token], after[..70 * token]);
        assert_ne!(before[70 * token..], after[70 * token..]);
    });
}

#[test]
fn large_scores_stay_finite() {
    Cases::run(5, |cases| {
        // Scores of up to 3e4: far beyond what an exponential without the shift bears.
        let shape = Attention::new(1, 9, 1, 1, 3);
        let Inputs { q, k, v, d_out } = Inputs::new(cases, shape, 130.0);
        let (out, lse) = forward(shape, &q, &k, &v);
        let (want, _) = twin(shape, &wide(&q), &wide(&k), &wide(&v));
        assert_close("out", &out, &want, 1e-2); // a score's own rounding is 2e-3
        let gradients = backward(shape, AttentionSaved { q: &q, k: &k, v: &v, out: &out, lse: &lse }, &d_out);
        assert!(gradients.iter().flatten().all(|value| value.is_finite()));
    });
}

/// Ring attention on one thread: queries and keys in two pieces each, cut at different places.
#[test]
fn pieces_of_keys_merge_into_the_whole() {
    Cases::run(10, |cases| {
        let (length, heads, dim) = (cases.size(2, 90), 2, 3);
        let whole = Attention::new(1, length, heads, 1, dim);
        let starts = if cases.size(0, 1) == 0 { Vec::new() } else { documents(cases, 1, length) };
        let packed = Packed { shape: whole, starts: &starts };
        let Inputs { q, k, v, d_out } = Inputs::new(cases, whole, 1.5);
        let (want_out, want_lse) = forward(packed, &q, &k, &v);
        let saved = AttentionSaved { q: &q, k: &k, v: &v, out: &want_out, lse: &want_lse };
        let [want_dq, want_dk, want_dv] = backward(packed, saved, &d_out);

        let (query_cut, key_cut) = (cases.size(1, length - 1), cases.size(1, length - 1));
        let mut workspace = AttentionWorkspace::default();
        let (mut got_dq, mut got_dk, mut got_dv) = (vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]);
        for queries in [0..query_cut, query_cut..length] {
            let pieces = [0..key_cut, key_cut..length].map(|keys| {
                let shape = Attention {
                    queries: queries.len(),
                    first_query: queries.start,
                    keys: keys.len(),
                    first_key: keys.start,
                    ..whole
                };
                let starts = if starts.is_empty() { &[] } else { &starts[queries.clone()] };
                (Packed { shape, starts }, keys.start * dim..keys.end * dim)
            });
            let rows = queries.start * heads..queries.end * heads;
            let elements = rows.start * dim..rows.end * dim;
            let (mut out, mut lse) = (vec![0.0; elements.len()], vec![f32::NEG_INFINITY; rows.len()]);
            for (shape, keys) in &pieces {
                let (part_out, part_lse) = forward(*shape, &q[elements.clone()], &k[keys.clone()], &v[keys.clone()]);
                attention_merge(&mut out, &mut lse, &part_out, &part_lse);
            }
            assert_close("out", &out, &wide(&want_out[elements.clone()]), 1e-6);
            assert_close("lse", &lse, &wide(&want_lse[rows]), 1e-6);
            for (shape, keys) in pieces {
                let saved = AttentionSaved {
                    q: &q[elements.clone()],
                    k: &k[keys.clone()],
                    v: &v[keys.clone()],
                    out: &out,
                    lse: &lse,
                };
                let mut gradients = AttentionGradients {
                    dq: &mut got_dq[elements.clone()],
                    dk: &mut got_dk[keys.clone()],
                    dv: &mut got_dv[keys],
                };
                let d_out = &d_out[elements.clone()];
                attention_backward(shape, saved, d_out, Store::Accumulate, &mut gradients, &mut workspace);
            }
        }
        assert_close("dq", &got_dq, &wide(&want_dq), 5e-6);
        assert_close("dk", &got_dk, &wide(&want_dk), 5e-6);
        assert_close("dv", &got_dv, &wide(&want_dv), 5e-6);
    });
}
