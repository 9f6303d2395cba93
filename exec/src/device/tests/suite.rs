//! Operations on random sizes and values, the same for every device, so that two devices can be held against each other.

use crate::device::*;
use crate::kernels::attention::Attention;
use crate::kernels::loss::{IGNORED, STATS, VocabularyShard};
use crate::kernels::optimizer::AdamW;
use crate::kernels::rope::RotaryTable;
use crate::kernels::testing::Cases;

/// What a case left behind: the name of an output, its values, and the largest error that another device may have, as a
/// share of the largest magnitude.
pub(crate) struct Outcome {
    pub(crate) name: &'static str,
    pub(crate) values: Vec<f32>,
    pub(crate) tolerance: f64,
    /// The least magnitude to which the tolerance applies: where a result is a difference of larger terms, theirs.
    pub(crate) magnitude: f64,
}

/// A device that is put through cases.
pub(crate) struct Bench<'a> {
    device: &'a dyn Device,
    cases: &'a mut Cases,
    element: Element,
    outcomes: Vec<Outcome>,
    buffers: Vec<Slice>,
}

/// Rounding of FP32 sums of some hundred terms in another order, and of functions to a few last places.
const SINGLE: f64 = 4e-6;
/// Half a last place of BF16, twice over where an intermediate value is rounded too.
const HALF: f64 = 1.0 / 128.0;

type Group = fn(&mut Bench<'_>);

/// The groups of cases, by name.
pub(crate) const GROUPS: &[(&str, Group)] = &[
    ("embedding", embeddings),
    ("norm", norms),
    ("rotation", rotation),
    ("activation", activations),
    ("attention", attention),
    ("attention in pieces", attention_in_pieces),
    ("loss", losses),
    ("elementwise", elementwise),
    ("optimizer", optimizer),
    ("routing", routing),
    ("product", products),
    ("streams", streams),
];

/// Runs a group of cases with operands of one element.
pub(crate) fn run(device: &dyn Device, element: Element, cases: &mut Cases, group: Group) -> Vec<Outcome> {
    let mut bench = Bench { device, cases, element, outcomes: Vec::new(), buffers: Vec::new() };
    group(&mut bench);
    let Bench { outcomes, buffers, .. } = bench;
    for buffer in buffers {
        device.release(Stream::COMPUTE, buffer).expect("a release");
    }
    outcomes
}

/// Asserts that two devices agree.
pub(crate) fn assert_agree(group: &str, got: &[Outcome], want: &[Outcome]) {
    assert_eq!(got.len(), want.len(), "{group}: outcomes");
    for (got, want) in got.iter().zip(want) {
        let name = got.name;
        assert_eq!(got.values.len(), want.values.len(), "{group}, {name}: lengths");
        let finite = want.values.iter().filter(|value| value.is_finite());
        let scale = finite.fold(want.magnitude, |scale, &value| scale.max(f64::from(value.abs())));
        for (index, (&got, &expected)) in got.values.iter().zip(&want.values).enumerate() {
            // Infinities, and what is not a number, must be so on both.
            let fits = if expected.is_finite() {
                (f64::from(got) - f64::from(expected)).abs() <= want.tolerance * scale
            } else {
                got.to_bits() == expected.to_bits() || (got.is_nan() && expected.is_nan())
            };
            assert!(fits, "{group}, {name}[{index}]: got {got}, want {expected}, scale {scale:e}");
        }
    }
}

impl Bench<'_> {
    /// A part of a larger buffer, at an odd place.
    fn slice(&mut self, element: Element, length: usize) -> Slice {
        let before = self.cases.size(0, 3);
        let whole = self.device.allocate(Stream::COMPUTE, element, length + before + 1).expect("memory");
        self.buffers.push(whole);
        whole.part(before, length)
    }

    fn values(&mut self, element: Element, length: usize, scale: f32) -> Slice {
        let values = self.cases.values(length, scale);
        self.of(element, &values)
    }

    fn of(&mut self, element: Element, values: &[f32]) -> Slice {
        let slice = self.slice(element, values.len());
        write_f32(self.device, Stream::COMPUTE, values, slice).expect("a write");
        slice
    }

    /// Values of the element under test.
    fn any(&mut self, length: usize, scale: f32) -> Slice {
        self.values(self.element, length, scale)
    }

    /// An output of the element under test.
    fn out(&mut self, length: usize) -> Slice {
        self.slice(self.element, length)
    }

    fn singles(&mut self, length: usize, scale: f32) -> Slice {
        self.values(Element::F32, length, scale)
    }

    fn numbers(&mut self, values: &[u32]) -> Slice {
        let slice = self.slice(Element::U32, values.len());
        write_u32(self.device, Stream::COMPUTE, values, slice).expect("a write");
        slice
    }

    fn tokens(&mut self, count: usize, below: usize) -> Vec<u32> {
        (0..count).map(|_| u32::try_from(self.cases.size(0, below - 1)).expect("small")).collect()
    }

    fn run(&mut self, operation: Operation) {
        self.device.run(Stream::COMPUTE, &operation).unwrap_or_else(|error| panic!("{operation:?}: {error}"));
    }

    fn tolerance(&self) -> f64 {
        if self.element == Element::Bf16 { HALF } else { SINGLE }
    }

    fn check(&mut self, name: &'static str, slice: Slice) {
        let tolerance = if slice.element == Element::Bf16 { HALF } else { SINGLE };
        self.check_to(name, slice, tolerance);
    }

    fn check_to(&mut self, name: &'static str, slice: Slice, tolerance: f64) {
        let values = match slice.element {
            Element::U32 => {
                let bytes = self.device.read(Stream::COMPUTE, slice).expect("a read");
                // Exact for the small numbers of these cases.
                bytes.as_chunks().0.iter().map(|&b| crate::kernels::narrow(f64::from(u32::from_le_bytes(b)))).collect()
            }
            _ => read_f32(self.device, Stream::COMPUTE, slice).expect("a read"),
        };
        self.outcomes.push(Outcome { name, values, tolerance, magnitude: 1e-3 });
    }

    /// The magnitude of the terms of which the last outcome is a difference.
    fn of_terms(&mut self, magnitude: f64) {
        self.outcomes.last_mut().expect("an outcome").magnitude = magnitude;
    }
}

fn embeddings(b: &mut Bench<'_>) {
    let (tokens, features, rows, first) =
        (b.cases.size(1, 70), b.cases.size(1, 90), b.cases.size(1, 30), b.cases.size(0, 5));
    let of_tokens = b.tokens(tokens, rows + 8);
    let of_tokens = b.numbers(&of_tokens);
    let (table, out, gradient) =
        (b.any(rows * features, 1.0), b.out(tokens * features), b.singles(rows * features, 1.0));
    let sizes = Sizes { features, first, sequence_length: 0 };
    b.run(Operation::EmbeddingForward { sizes, tokens: of_tokens, table, out });
    b.check("embedding", out);
    b.run(Operation::EmbeddingBackward { sizes, tokens: of_tokens, d_out: out, table_gradient: gradient });
    b.check("gradient of the table", gradient);
    let (sequence_length, sequences) = (b.cases.size(1, rows), b.cases.size(1, 4));
    let sizes = Sizes { features, first: b.cases.size(0, rows - sequence_length), sequence_length };
    let x = b.any(sequences * sequence_length * features, 1.0);
    b.run(Operation::PositionsForward { sizes, table, x });
    b.check("positions", x);
    b.run(Operation::PositionsBackward { sizes, dx: x, table_gradient: gradient });
    b.check("gradient of the positions", gradient);
}

fn norms(b: &mut Bench<'_>) {
    let (rows, features) = (b.cases.size(1, 150), b.cases.size(1, 700));
    for bias in [false, true] {
        let weight = b.any(features, 1.0);
        let norm = Norm { weight, bias: bias.then(|| b.any(features, 1.0)), epsilon: 1e-5 };
        let (x, y, dy, dx) = (
            b.any(rows * features, 3.0),
            b.out(rows * features),
            b.any(rows * features, 1.0),
            b.any(rows * features, 1.0),
        );
        let mean = bias.then(|| b.slice(Element::F32, rows));
        let rstd = b.slice(Element::F32, rows);
        b.run(Operation::NormForward { norm, x, y, mean, rstd });
        b.check("normed", y);
        b.check("rstd", rstd);
        if let Some(mean) = mean {
            b.check("mean", mean);
        }
        let saved = NormSaved { x, mean, rstd };
        for add in [false, true] {
            b.run(Operation::NormBackwardInput { norm, saved, dy, add, dx });
            b.check("input gradient", dx);
        }
        let (weight_gradient, bias_gradient) = (b.singles(features, 1.0), bias.then(|| b.singles(features, 1.0)));
        b.run(Operation::NormBackwardWeight { saved, dy, weight_gradient, bias_gradient });
        b.check_to("weight gradient", weight_gradient, 2e-5);
        if let Some(bias_gradient) = bias_gradient {
            b.check_to("bias gradient", bias_gradient, 2e-5);
        }
    }
}

fn rotation(b: &mut Bench<'_>) {
    let (head_dim, heads, sequence_length) = (2 * b.cases.size(1, 40), b.cases.size(1, 5), b.cases.size(1, 20));
    let (first_position, sequences) = (b.cases.size(0, 9), b.cases.size(1, 3));
    let table = RotaryTable::new(sequence_length + first_position, head_dim, 1e4);
    let (cosines, sines) = table.content();
    let (cosines, sines) = (b.of(Element::F32, cosines), b.of(Element::F32, sines));
    let x = b.any(sequences * sequence_length * heads * head_dim, 1.0);
    for back in [false, true] {
        let rotation = Rotation { cosines, sines, head_dim, heads, sequence_length, first_position, back };
        b.run(Operation::Rotate { rotation, x });
        b.check("rotated", x);
    }
}

fn activations(b: &mut Bench<'_>) {
    let count = b.cases.size(1, 3000);
    let [gate, up, d_out] = [6.0, 1.0, 1.0].map(|scale| b.any(count, scale));
    let [out, d_gate, d_up] = [(); 3].map(|()| b.out(count));
    b.run(Operation::SwigluForward { gate, up, out });
    b.run(Operation::SwigluBackward { gate, up, d_out, d_gate, d_up });
    b.check("swiglu", out);
    b.check("gradient of the gate", d_gate);
    b.check("gradient of the other", d_up);
    for kind in [ActivationKind::GeluExact, ActivationKind::GeluTanh] {
        b.run(Operation::ActivationForward { kind, x: gate, y: out });
        b.check("activation", out);
        b.run(Operation::ActivationBackward { kind, x: gate, dy: d_out, dx: d_gate });
        b.check("gradient of the activation", d_gate);
        b.run(Operation::GegluForward { kind, gate, up, out });
        b.run(Operation::GegluBackward { kind, gate, up, d_out, d_gate, d_up });
        b.check("geglu", out);
        b.check("gradient of the gate of a GELU", d_gate);
        b.check("gradient of what it gates", d_up);
    }
}

fn attention_shape(b: &mut Bench<'_>) -> Attention {
    let key_heads = b.cases.size(1, 2);
    let dim = [8, 24, 64, 80, 128][b.cases.size(0, 4)];
    let window = [usize::MAX, b.cases.size(1, 160)][b.cases.size(0, 1)];
    let shape =
        Attention::new(b.cases.size(1, 2), b.cases.size(1, 150), key_heads * b.cases.size(1, 3), key_heads, dim);
    Attention { window, ..shape }
}

/// Where documents begin that sequences hold: of each query, at its own position or before.
fn starts_of_documents(b: &mut Bench<'_>, shape: Attention) -> Slice {
    let mut starts = Vec::new();
    for _ in 0..shape.sequences {
        let mut start = b.cases.size(0, shape.first_query);
        for query in 0..shape.queries {
            if b.cases.size(0, 9) == 0 {
                start = shape.first_query + query;
            }
            starts.push(u32::try_from(start).expect("small"));
        }
    }
    b.numbers(&starts)
}

fn attention_tensors(b: &mut Bench<'_>, shape: Attention) -> AttentionTensors {
    let rows = shape.sequences * shape.queries * shape.query_heads;
    let keys = shape.sequences * shape.keys * shape.key_heads * shape.head_dim;
    let (q, k, v) = (b.any(rows * shape.head_dim, 2.0), b.any(keys, 2.0), b.any(keys, 1.0));
    let starts = (b.cases.size(0, 2) == 0).then(|| starts_of_documents(b, shape));
    AttentionTensors { q, k, v, out: b.out(rows * shape.head_dim), lse: b.slice(Element::F32, rows), starts }
}

fn attention(b: &mut Bench<'_>) {
    let shape = attention_shape(b);
    let tensors = attention_tensors(b, shape);
    b.run(Operation::AttentionForward { shape, tensors });
    let tolerance = b.tolerance();
    b.check_to("attention", tensors.out, 2.0 * tolerance);
    b.check("log-sum-exp", tensors.lse);
    let d_out = b.any(tensors.q.length, 1.0);
    let delta = b.slice(Element::F32, tensors.lse.length);
    let [dq, dk, dv] = [tensors.q, tensors.k, tensors.v].map(|like| b.any(like.length, 1.0));
    for add in [false, true] {
        b.run(Operation::AttentionBackward { shape, tensors, d_out, delta, add, dq, dk, dv });
        for (name, gradient) in [("gradient of q", dq), ("gradient of k", dk), ("gradient of v", dv)] {
            b.check_to(name, gradient, 4.0 * tolerance);
            // Queries that see one key have a gradient of zero, as a difference of inner products.
            b.of_terms(1.0);
        }
    }
}

/// Keys in two pieces, each with its own place in the sequence, as context parallelism has them.
fn attention_in_pieces(b: &mut Bench<'_>) {
    let whole = attention_shape(b);
    let queries = b.cases.size(1, whole.queries);
    let first_query = b.cases.size(0, whole.keys);
    let (mut out, mut lse) = (None, None);
    let mut tensors = attention_tensors(b, Attention { queries, ..whole });
    for first_key in [0, whole.keys] {
        let shape = Attention { queries, first_query, first_key, ..whole };
        let piece = attention_tensors(b, shape);
        tensors = AttentionTensors { q: tensors.q, ..piece };
        b.run(Operation::AttentionForward { shape, tensors });
        let (all, sums) = match (out, lse) {
            (Some(out), Some(lse)) => (out, lse),
            _ => {
                let zeros = vec![0.0; tensors.out.length];
                let nothing = vec![f32::NEG_INFINITY; tensors.lse.length];
                (b.of(Element::F32, &zeros), b.of(Element::F32, &nothing))
            }
        };
        b.run(Operation::AttentionMerge { out: all, lse: sums, part_out: tensors.out, part_lse: tensors.lse });
        (out, lse) = (Some(all), Some(sums));
        let tolerance = 2.0 * b.tolerance();
        b.check_to("merged", all, tolerance);
        b.check("log-sum-exps", sums);
    }
}

fn losses(b: &mut Bench<'_>) {
    let (tokens, ranks, columns) = (b.cases.size(1, 40), b.cases.size(1, 3), b.cases.size(1, 900));
    let padding = b.cases.size(0, columns - 1);
    let mut targets = b.tokens(tokens, ranks * columns - padding);
    targets[0] = IGNORED;
    let targets = b.numbers(&targets);
    let all = b.slice(Element::F32, ranks * STATS * tokens);
    let mut shards = Vec::new();
    for rank in 0..ranks {
        let valid = if rank + 1 == ranks { columns - padding } else { columns };
        let shard = VocabularyShard { first: rank * columns, valid, columns };
        let logits = b.any(tokens * columns, 8.0);
        let statistics = all.part(rank * STATS * tokens, STATS * tokens);
        b.run(Operation::LossStatistics { shard, logits, targets, statistics });
        b.check("statistics", statistics);
        shards.push((shard, logits));
    }
    let [losses, lse] = [(); 2].map(|()| b.slice(Element::F32, tokens));
    b.run(Operation::LossCombine { statistics: all, targets, losses, lse });
    b.check("losses", losses);
    b.check("log-sum-exps", lse);
    for (shard, logits) in shards {
        b.run(Operation::LossBackward { shard, logits, targets, lse, scale: 0.25 });
        let tolerance = b.tolerance();
        b.check_to("gradient of the logits", logits, tolerance);
    }
}

fn elementwise(b: &mut Bench<'_>) {
    let (rows, columns) = (b.cases.size(1, 200), b.cases.size(1, 40));
    let [x, z] = [(); 2].map(|()| b.any(rows * columns, 1.0));
    let (bias, gradient, sum, out) =
        (b.any(columns, 1.0), b.singles(columns, 1.0), b.singles(rows * columns, 1.0), b.out(rows * columns));
    b.run(Operation::AddBias { y: x, bias });
    b.check("biased", x);
    b.run(Operation::BiasBackward { dy: x, bias_gradient: gradient });
    b.check_to("gradient of the bias", gradient, 2e-5);
    b.run(Operation::Add { a: x, b: z, out });
    b.check("sum", out);
    b.run(Operation::Accumulate { total: z, factor: 0.3, part: x });
    b.check("added to", z);
    b.run(Operation::Accumulate { total: sum, factor: -1.7, part: x });
    b.check("added to singles", sum);
    b.run(Operation::Scale { values: x, factor: 0.7 });
    b.check("scaled", x);
    let (wide, narrow) = (b.cases.size(columns, 70), b.cases.size(1, columns));
    let to = b.any(rows * wide, 1.0);
    b.run(Operation::CopyBlock { rows, columns: narrow, from: x, from_stride: columns, to, to_stride: wide });
    b.check("block", to);
    let (half, back) = (b.slice(Element::Bf16, sum.length), b.slice(Element::F32, sum.length));
    b.run(Operation::Cast { from: sum, to: half });
    b.run(Operation::Cast { from: half, to: back });
    // Rounding to nearest even is one function on every device.
    b.check_to("rounded", back, 0.0);
}

fn optimizer(b: &mut Bench<'_>) {
    let count = b.cases.size(1, 5000);
    let [master, gradients, first] = [1.0, 2.0, 0.5].map(|scale| b.singles(count, scale));
    let squares: Vec<f32> = b.cases.values(count, 0.1).iter().map(|value| value * value).collect();
    let second = b.of(Element::F32, &squares);
    let sum = b.slice(Element::F64, 1);
    b.device.zero(Stream::COMPUTE, sum).expect("zeros");
    let factor = b.slice(Element::F32, 1);
    for _ in 0..2 {
        b.run(Operation::SquaredNorm { values: gradients, sum });
    }
    b.check_to("squared norm", sum, 1e-7);
    b.run(Operation::ClipFactor { squared_norm: sum, largest: 1.0, factor });
    b.check_to("factor", factor, 2e-7);
    let options = AdamW { learning_rate: 1e-3, beta1: 0.9, beta2: 0.95, epsilon: 1e-8, weight_decay: 0.1 };
    let rounded = b.slice(Element::Bf16, count);
    for (step, decay, factor, rounded) in [(1, false, None, Some(rounded)), (7, true, Some(factor), None)] {
        b.run(Operation::AdamW { options, step, decay, factor, master, gradients, first, second, rounded });
        b.check("weights", master);
        b.check("first moments", first);
        b.check("second moments", second);
    }
    b.check("rounded weights", rounded);
    let flag = b.numbers(&[9]);
    let guilty = [b.any(count, 1.0), b.any(count, f32::INFINITY), b.any(count, f32::INFINITY)];
    for (values, label) in guilty.into_iter().zip([3, 7, 8]) {
        b.run(Operation::CheckFinite { values, label, flag });
        b.check_to("label", flag, 0.0);
    }
}

fn routing(b: &mut Bench<'_>) {
    let (tokens, experts, width) = (b.cases.size(1, 60), b.cases.size(1, 40), b.cases.size(1, 70));
    let share = b.cases.size(1, experts.min(4));
    let choices = tokens * share;
    let scores = b.singles(tokens * experts, 3.0);
    b.run(Operation::Softmax { columns: experts, values: scores });
    b.check("scores", scores);
    // Scores that are equal: which is first is part of the contract, and rounding must not decide.
    let numbers: Vec<f32> =
        b.tokens(tokens * experts, 6).into_iter().map(|n| crate::kernels::narrow(f64::from(n + 1))).collect();
    let scores = b.of(Element::F32, &numbers);
    let [chosen, order, places] = [(); 3].map(|()| b.slice(Element::U32, choices));
    let (counts, weights) = (b.slice(Element::U32, experts), b.slice(Element::F32, choices));
    for normalised in [false, true] {
        b.run(Operation::ChooseExperts { experts, normalised, tokens, scores, chosen, weights });
        b.check_to("chosen", chosen, 0.0);
        b.check("weights", weights);
    }
    b.run(Operation::OrderByExpert { chosen, order, places, counts });
    for (name, slice) in [("order", order), ("places", places), ("counts", counts)] {
        b.check_to(name, slice, 0.0);
    }
    let (x, copies, out, products) =
        (b.any(tokens * width, 1.0), b.out(choices * width), b.out(tokens * width), b.slice(Element::F32, choices));
    for factors in [None, Some(weights)] {
        b.run(Operation::GatherRows { width, share, indices: order, factors, from: x, to: copies });
        b.check("copies", copies);
        b.run(Operation::CombineRows { width, share, places, factors, rows: copies, out });
        b.check("combined", out);
    }
    b.run(Operation::RowProducts { width, share, places, a: x, rows: copies, products });
    b.check("products", products);
}

fn products(b: &mut Bench<'_>) {
    let (tokens, inputs, outputs) = (b.cases.size(1, 40), b.cases.size(1, 50), b.cases.size(1, 30));
    let (x, w, dy) = (b.any(tokens * inputs, 1.0), b.any(outputs * inputs, 1.0), b.any(tokens * outputs, 1.0));
    let (y, dx, dw) = (b.any(tokens * outputs, 1.0), b.any(tokens * inputs, 1.0), b.singles(outputs * inputs, 1.0));
    for add in [false, true] {
        for product in [
            Product::forward(tokens, inputs, outputs, x, w, add, y),
            Product::input_gradient(tokens, inputs, outputs, dy, w, add, dx),
            Product::weight_gradient(tokens, inputs, outputs, x, dy, dw),
            Product { alpha: 0.3, ..Product::forward(tokens, inputs, outputs, x, w, true, y) },
        ] {
            b.device.product(Stream::COMPUTE, &product).expect("a product");
            b.check("product", product.c);
        }
    }
}

/// A chain of work over all streams, ordered by nothing but events.
fn streams(b: &mut Bench<'_>) {
    let count = b.cases.size(1, 500);
    let order = [Stream::COMPUTE, Stream::COMMUNICATION, Stream::COPY, Stream::COMPUTE, Stream::COPY];
    let (mut from, other) = (b.any(count, 1.0), b.any(count, 1.0));
    let mut last: Option<Event> = None;
    let host = b.device.pin(4 + count * b.element.bytes()).expect("memory of the host");
    for &stream in order.iter().cycle().take(12) {
        let to = b.out(count);
        if let Some(event) = last.take() {
            b.device.wait(stream, event).expect("a wait");
            b.device.forget(event).expect("an end");
        } else {
            b.device.synchronize(Stream::COMPUTE).expect("a wait of the host");
        }
        b.device.run(stream, &Operation::Add { a: from, b: other, out: to }).expect("a sum");
        let next = b.out(count);
        if stream == Stream::COPY {
            b.device.offload(stream, to, host, 4).expect("a copy to the host");
            b.device.fetch(stream, host, 4, next).expect("a copy from the host");
        } else {
            b.device.copy(stream, to, next).expect("a copy");
        }
        last = Some(b.device.record(stream).expect("an event"));
        from = next;
    }
    b.device.wait(Stream::COMPUTE, last.expect("twelve")).expect("a wait");
    let tolerance = 4.0 * b.tolerance();
    b.check_to("end of the chain", from, tolerance);
    b.device.unpin(host).expect("memory of the host goes back");
}
