//! The catalog of stacks: what stands in for what, by how much it widens, and every fault named.

use ir::prediction::BasisShare;
use ir::program::{Pass, UnitRange};
use ir::{AttentionKernel, Bytes, CollectiveAlgorithm, DeviceId, DeviceKindId, Precision, Recompute};

use super::fixtures::*;
use crate::{
    ClassRow, ColdGroup, CostModel, ExpertSync, GraphUse, GroupPlace, PrecisionClass, SpreadTerms, Stack,
    StackConstants, StackKey, StackRow, Stacks, Widening,
};

const KIND: DeviceKindId = DeviceKindId::new(0);

fn key(class: &str, generation: &str) -> StackKey {
    StackKey {
        class: class.to_owned(),
        generation: generation.to_owned(),
        precision: PrecisionClass::Half,
        experts: false,
        graphs: GraphUse::None,
        release: None,
    }
}

fn row(key: StackKey, compute_factor: f64, spread: f64) -> StackRow {
    let StackKey { class, generation, precision, experts, graphs, release } = key;
    StackRow {
        class,
        generation,
        precision,
        experts,
        graphs,
        release,
        constants: StackConstants { compute_factor, ..StackConstants::default() },
        spread,
        rows: 10,
        tables: vec!["a.csv".to_owned()],
        source: "a test".to_owned(),
    }
}

fn stacks() -> Stacks {
    let released = |release: &str| StackKey { release: Some(release.to_owned()), ..key("megatron", "a100") };
    Stacks {
        spread: SpreadTerms {
            undeclared_device: 0.2,
            assumed: 0.5,
            exchanges: 0.3,
            expert_waits: 0.4,
            slow_launch_us: 80.0,
        },
        widening: Widening {
            release: 0.01,
            graphs: 0.02,
            experts: 0.03,
            precision: 0.04,
            generation: 0.08,
            class: 0.16,
            unknown: 0.6,
        },
        cold: Vec::new(),
        expert_sync: ExpertSync { none_us: 3_000.0, part_us: 1_000.0, full_us: 0.0 },
        class: vec![ClassRow {
            class: "megatron".to_owned(),
            constants: StackConstants { launch_us: Some(9.0), ..StackConstants::default() },
            source: "a test".to_owned(),
        }],
        stack: vec![
            row(released("2021"), 0.9, 0.03),
            row(released("2022"), 1.0, 0.03),
            row(released("2023"), 1.3, 0.03),
            row(StackKey { graphs: GraphUse::Full, ..key("megatron", "h100") }, 1.1, 0.05),
            row(StackKey { precision: PrecisionClass::Quarter, ..key("megatron", "h100") }, 1.2, 0.05),
            row(key("pytorch", "h100"), 1.5, 0.05),
            row(StackKey { experts: true, ..key("nvidia", "h100") }, 1.8, 0.1),
        ],
    }
}

fn check(wanted: &StackKey, factor: f64, widening: &[f64], given_up: &[&str]) {
    let stack = stacks().resolve(wanted);
    assert!((stack.constants.compute_factor - factor).abs() < 1e-12, "{wanted:?}: {stack:?}");
    let least = widening.iter().map(|step| step * step).sum::<f64>().sqrt();
    assert!(stack.spread >= least && stack.spread < 1.0, "{wanted:?}: {} under {least}", stack.spread);
    assert_eq!(stack.notes.is_empty(), given_up.is_empty(), "{:?}", stack.notes);
    for words in given_up {
        assert!(stack.notes.iter().any(|note| note.contains(words)), "{words} is not in {:?}", stack.notes);
    }
}

/// `exp((sum w ln f + 0.4 towards) / (sum w + 0.4))`, written out again.
fn drawn(factors: &[f64], towards: Option<f64>) -> f64 {
    let near = |f: &f64| towards.map_or(f.ln(), |y| f.ln().clamp(y - 0.35, y + 0.35));
    let weigh =
        |f: &f64| towards.map_or(1.0, |y| if (f.ln() - y).abs() <= 0.35 { 1.0 } else { (0.35 / (f.ln() - y)).powi(2) });
    let sum = factors.iter().map(|f| weigh(f) * near(f)).sum::<f64>();
    let weight = factors.iter().map(weigh).sum::<f64>();
    match towards {
        Some(y) => ((sum + 0.4 * y) / (weight + 0.4)).exp(),
        None => (sum / weight).exp(),
    }
}

#[test]
fn each_part_of_a_key_that_is_missing_is_given_up_in_order_and_named() {
    let a100 = key("megatron", "a100");
    check(&StackKey { release: Some("2022".to_owned()), ..a100.clone() }, 1.0, &[0.03], &[]);
    // The class's three lines on the generation, on which there is no other class: drawn to what it has elsewhere.
    let elsewhere = drawn(&[1.1, 1.2], None).ln();
    let pooled = drawn(&[0.9, 1.0, 1.3], Some(elsewhere));
    check(
        &StackKey { release: Some("2024".to_owned()), ..a100.clone() },
        pooled,
        &[0.03, 0.01],
        &["release line 2024"],
    );
    check(&a100, pooled, &[0.03, 0.01], &["release line not stated"]);
    let graphs = StackKey { graphs: GraphUse::Full, ..a100.clone() };
    check(&graphs, pooled, &[0.03, 0.01, 0.02], &["CUDA graphs: full", "release line"]);
    let single = StackKey { precision: PrecisionClass::Single, ..a100 };
    check(&single, pooled, &[0.04], &["fp32", "3 rows of megatron on a100"]);
    // Beside other classes of the generation.
    let beside = (1.5f64.ln() + 1.8f64.ln()) / 2.0;
    check(&key("megatron", "h100"), drawn(&[1.1, 1.2], Some(beside)), &[0.05, 0.02], &["CUDA graphs: none", "2 rows"]);
    // Another generation of the class; another class of the generation.
    check(&key("megatron", "b200"), drawn(&[0.9, 1.0, 1.3, 1.1, 1.2], None), &[0.03, 0.08], &["generation b200"]);
    check(&key("pytorch", "a100"), drawn(&[0.9, 1.0, 1.3], None), &[0.03, 0.16], &["stack class pytorch", "megatron"]);
    check(&key("deepsped", "a100"), drawn(&[0.9, 1.0, 1.3], None), &[0.03, 0.16], &["deepsped", "the nearest is"]);
    let all = drawn(&[0.9, 1.0, 1.3, 1.1, 1.2, 1.5, 1.8], None);
    check(&key("jax", "t4"), all, &[0.16, 0.08], &["stack class jax", "device generation t4"]);
}

#[test]
fn what_a_class_declares_is_where_its_keys_start() {
    let stacks = stacks();
    let routed = StackKey { experts: true, ..key("megatron", "a100") };
    let constants = stacks.resolve(&routed).constants;
    assert_eq!((constants.launch_us, constants.expert_sync_us), (Some(9.0), 3_000.0));
    let graphs = StackKey { graphs: GraphUse::Full, ..routed };
    assert!(stacks.resolve(&graphs).constants.expert_sync_us.abs() < 1e-12);
    assert!(stacks.resolve(&key("megatron", "a100")).constants.expert_sync_us.abs() < 1e-12);
    let nothing = Stacks::default().resolve(&key("megatron", "a100"));
    assert_eq!(nothing.constants, StackConstants::default());
    assert_eq!(nothing.notes, ["no stack of any class is calibrated"]);
}

/// A key far from what others show says little of its class: early software on a new device.
#[test]
fn a_key_far_from_all_others_hardly_pulls() {
    let mut stacks = stacks();
    stacks.stack.push(row(key("megatron", "b200"), 3.5, 0.03));
    let wanted = StackKey { precision: PrecisionClass::Quarter, ..key("megatron", "b200") };
    let elsewhere = drawn(&[0.9, 1.0, 1.3, 1.1, 1.2], None);
    let factor = stacks.resolve(&wanted).constants.compute_factor;
    assert!(factor > elsewhere && factor < elsewhere * 0.12f64.exp(), "{factor} beside {elsewhere}");
}

/// The less is known the wider: along each chain of fallbacks from one key.
#[test]
fn rows_that_differ_widen_what_they_stand_in_for() {
    let mut alike = stacks();
    for row in &mut alike.stack {
        row.constants.compute_factor = 1.0;
    }
    let unknown = key("jax", "t4");
    let (different, same) = (stacks().resolve(&unknown), alike.resolve(&unknown));
    assert!(different.spread > same.spread + 0.02, "{} against {}", different.spread, same.spread);
    // Seven keys of one factor: their median spread, and every part of the key given up.
    let steps = [0.16f64, 0.08, 0.01, 0.02, 0.04, 0.03];
    let expect = (0.05f64 * 0.05 + steps.iter().map(|step| step * step).sum::<f64>()).sqrt();
    assert!((same.spread - expect).abs() < 1e-12, "{} against {expect}", same.spread);
}

#[test]
fn a_table_left_out_takes_its_rows_with_it() {
    let mut stacks = stacks();
    stacks.stack[0].tables = vec!["a.csv".to_owned(), "b.csv".to_owned()];
    stacks.stack[1].tables = vec!["c.csv".to_owned()];
    let without = stacks.without_table("b.csv");
    assert_eq!(without.stack.len(), stacks.stack.len() - 1);
    assert_eq!(stacks.without_table("a.csv").stack.len(), 1);
    assert_eq!(without.spread, stacks.spread);
    assert_eq!(stacks.classes(), ["megatron", "nvidia", "pytorch"]);
}

/// With what tables showed when others predicted them, intervals of foreign machines rest on that.
#[test]
fn machines_of_others_are_as_far_off_as_tables_were() {
    let group = |table: &str| ColdGroup {
        table: table.to_owned(),
        generation: "a100".to_owned(),
        rows: 12,
        bias: 0.16,
        within: 0.12,
        explained: 0.0,
    };
    let mut stacks = stacks();
    stacks.cold = ["a.csv", "b.csv", "c.csv", "d.csv"].map(group).to_vec();
    stacks.stack[0].tables = vec!["a.csv".to_owned()];
    stacks.stack[1].tables = vec!["mine.csv".to_owned()];
    let between = 0.2 * 1.25f64.sqrt();
    let released = |release: &str| StackKey { release: Some(release.to_owned()), ..key("megatron", "a100") };
    let spread = |key: &StackKey| stacks.resolve(key).spread;
    assert!((spread(&released("2021")) - between).abs() < 1e-12, "a published row is of another machine");
    assert!((spread(&released("2022")) - 0.03).abs() < 1e-12, "one's own bed is known");
    assert!((stacks.resolve_in(&released("2021"), "a.csv").spread - 0.03).abs() < 1e-12);
    assert!((stacks.resolve_in(&released("2021"), "b.csv").spread - between).abs() < 1e-12);
    assert!((spread(&released("2031")) - between).abs() < 1e-12, "no release line");
    let class = (between * between + 0.16f64 * 0.16).sqrt();
    assert!((spread(&key("frobnicator", "a100")) - class).abs() < 1e-12, "no such class");
    // What hangs on the installation counts unless it was fitted.
    let terms = stacks.resolve(&released("2021")).terms;
    assert!((terms.slow_launch_us - 80.0).abs() < 1e-12 && (terms.exchanges - 0.3).abs() < 1e-12);
    let mut many = stacks.clone();
    many.stack[1].rows = 8;
    let terms = many.resolve(&released("2022")).terms;
    assert_eq!(terms, SpreadTerms { undeclared_device: 0.2, assumed: 0.5, ..SpreadTerms::default() });
    assert_eq!(stacks.without_table("b.csv").cold.len(), 3);
}

#[test]
fn a_catalog_reads_back_and_every_fault_has_its_place() {
    let good = stacks();
    assert_eq!(Stacks::from_toml(&good.to_toml(), "stacks.toml").unwrap(), good);
    let mut bad = stacks();
    bad.spread.assumed = -0.1;
    bad.widening.class = f64::NAN;
    bad.stack[0].constants.compute_factor = 0.0;
    bad.stack[0].constants.launch_us = Some(f64::INFINITY);
    bad.stack[1].constants.hidden_in_launches = 1.5;
    bad.stack[1].constants.network_efficiency = 0.0;
    bad.stack[2].rows = 1;
    bad.stack[2].tables.clear();
    bad.stack[3].source = String::new();
    bad.stack[4].spread = 40.0;
    let again = bad.stack[5].clone();
    bad.stack.push(again);
    let problems = Stacks::from_toml(&bad.to_toml(), "stacks.toml").unwrap_err();
    let subjects: Vec<&str> = problems.iter().map(|problem| problem.subject.as_str()).collect();
    for wanted in [
        "spread.assumed",
        "widening.class",
        "stack[0].constants.compute_factor",
        "stack[0].constants.launch_us",
        "stack[1].constants.hidden_in_launches",
        "stack[1].constants.network_efficiency",
        "stack[2].rows",
        "stack[2].tables",
        "stack[3].source",
        "stack[4].spread",
        "stack[7].class",
    ] {
        assert!(subjects.contains(&wanted), "{wanted} is not among {subjects:?}");
    }
    assert_eq!(subjects.len(), 11, "and nothing else: {subjects:?}");
    assert!(problems.iter().all(|problem| problem.span.is_some() && problem.hint.is_some()), "{problems:?}");
}

/// Broken texts give problems or a catalog, never a panic.
#[test]
fn broken_texts_are_refused_in_words() {
    let text = stacks().to_toml();
    let mut draw = Draw(20_261);
    let alphabet: Vec<char> = "[]{}=\"',.-+e019azAZ_ \n#\u{e9}".chars().collect();
    let (mut refused, mut read) = (0, 0);
    for case in 0..3000 {
        let mut chars: Vec<char> = text.chars().collect();
        for _ in 0..=draw.below(4) {
            let at = usize::try_from(draw.below(chars.len() as u64)).unwrap();
            match draw.below(3) {
                0 => chars[at] = draw.of(&alphabet),
                1 => chars.insert(at, draw.of(&alphabet)),
                _ => {
                    let end = (at + usize::try_from(draw.below(40)).unwrap()).min(chars.len());
                    chars.drain(at..end);
                }
            }
        }
        let broken: String = chars.into_iter().collect();
        match Stacks::from_toml(&broken, "stacks.toml") {
            Ok(stacks) => {
                read += 1;
                assert_eq!(Stacks::from_toml(&stacks.to_toml(), "again").unwrap(), stacks, "case {case}");
            }
            Err(problems) => {
                refused += 1;
                assert!(!problems.is_empty() && problems.iter().all(|problem| !problem.message.is_empty()));
                let inside = |range: &std::ops::Range<usize>| range.end <= broken.len() && range.start <= range.end;
                assert!(problems.iter().all(|problem| problem.span.as_ref().is_none_or(|span| inside(&span.range))));
            }
        }
    }
    assert!(refused > 1000 && read > 20, "{refused} refused, {read} read");
}

#[test]
fn a_stack_adds_what_it_says_to_each_price() {
    let owned = Owned(gpt(4096, 4, 32), workload(Precision::Bf16, AttentionKernel::Fused), {
        let mut layout = layout(1, false, 1);
        layout.pipeline = 2;
        layout
    });
    let chunk = chunk(4, false, false, Recompute::None);
    let with = |constants| dgx_a100(2).with_stack(Stack { constants, ..Stack::default() });
    let (none, some) =
        (StackConstants::default(), StackConstants { launch_us: Some(0.0), ..StackConstants::default() });
    let time = |constants: StackConstants, pass, units| {
        let model = with(constants);
        let direct = model.compute(owned.shape(), &chunk, pass, units, KIND);
        assert_eq!(model.prepare(owned.shape()).compute(&chunk, pass, units, KIND), direct);
        direct.duration.nanoseconds()
    };
    let all = chunk.all_units();
    let plain = time(some, Pass::Forward, all);
    let twice = time(StackConstants { compute_factor: 2.0, ..some }, Pass::Forward, all);
    assert!(twice.abs_diff(2 * plain) <= 32, "{twice} against twice {plain}");
    assert!(time(StackConstants { attention_factor: 2.0, ..some }, Pass::Forward, all) > plain);
    // Once for each pass that begins, not for its later parts, not for weights.
    let synced = StackConstants { message_sync_us: 1000.0, ..some };
    for (pass, units, added) in [
        (Pass::Forward, all, 1_000_000),
        (Pass::Backward, UnitRange { start: 0, end: 1 }, 1_000_000),
        (Pass::Forward, UnitRange { start: 1, end: 4 }, 0),
        (Pass::BackwardWeight, all, 0),
        (Pass::Recompute, all, 0),
    ] {
        assert_eq!(time(synced, pass, units), time(some, pass, units) + added, "{pass:?} {units:?}");
    }
    let step = |constants| with(constants).optimizer(1_000_000, Precision::Bf16, 1, KIND).duration.nanoseconds();
    let added = StackConstants { iteration_us: 2000.0, optimizer_ns_per_parameter: 0.5, ..none };
    assert_eq!(step(added), step(none) + 2_000_000 + 500_000);
    let place = GroupPlace::of(dgx_a100(2).cluster(), &(0..16).map(DeviceId::new).collect::<Vec<_>>());
    let reduce = |constants| {
        let kind = ir::program::CollectiveKind::AllReduce;
        with(constants).collective(kind, Bytes::from_gib(4), place, CollectiveAlgorithm::Ring).duration.seconds()
    };
    assert!(reduce(StackConstants { network_efficiency: 0.5, ..none }) > 1.2 * reduce(none));
    let waiting = StackConstants { launch_us: Some(5000.0), hidden_in_launches: 0.5, ..none };
    let hidden = with(waiting).prepare(owned.shape()).hidden(&chunk, Pass::Forward, all, KIND).nanoseconds();
    let idle = time(waiting, Pass::Forward, all) - plain;
    assert!(hidden.abs_diff(idle / 2) <= 64, "{hidden} of {idle}");
    assert_eq!(with(some).prepare(owned.shape()).hidden(&chunk, Pass::Forward, all, KIND).nanoseconds(), 0);
}

#[test]
fn stragglers_are_an_option_and_grow_with_the_nodes() {
    let owned = Owned(gpt(4096, 4, 32), workload(Precision::Bf16, AttentionKernel::Fused), layout(1, false, 1));
    let chunk = chunk(4, true, true, Recompute::None);
    let time = |model: &CostModel| {
        model.compute(owned.shape(), &chunk, Pass::Forward, chunk.all_units(), KIND).duration.seconds()
    };
    let plain = time(&dgx_a100(16));
    for (nodes, factor) in [(1, 1.0), (2, 1.01), (16, 1.04)] {
        let slower = time(&dgx_a100(nodes).with_stragglers(0.01).unwrap());
        assert!((slower / plain - factor).abs() < 1e-5, "{nodes} nodes: {}", slower / plain);
    }
    for wrong in [-0.1, 1.5, f64::NAN] {
        assert!(dgx_a100(1).with_stragglers(wrong).unwrap_err().message.contains("not a share"));
    }
}

#[test]
fn the_interval_holds_what_each_part_leaves() {
    let model = dgx_a100(1).with_stack(stacks().resolve(&key("jax", "t4")));
    let device = catalog("a100").spread.unwrap_or(0.2);
    let above = |model: &CostModel, assumed| {
        let basis = BasisShare { assumed, ..BasisShare::default() };
        let spread = model.spread(&[KIND], &bare(basis));
        assert!((spread.above() - spread.below()).abs() < 1e-12, "nothing hangs on the host");
        spread.above()
    };
    let stack = model.stack().spread;
    assert!((above(&model, 0.0) - stack.hypot(device)).abs() < 1e-12);
    assert!((above(&model, 0.4) - stack.hypot(device).hypot(0.2)).abs() < 1e-12);
    assert!(above(&dgx_a100(1), 0.0) <= device + 1e-12, "no stack: the hardware's own");
}

/// What belongs to no stack is declared in the catalog, and the less is known the wider.
#[test]
fn the_catalog_declares_what_is_not_known() {
    let path = format!("{}/../catalog/calibration/stacks.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    let stacks = Stacks::from_toml(&text, &path).unwrap_or_else(|problems| panic!("{problems:#?}"));
    let w = stacks.widening;
    let spread = stacks.spread;
    assert!(spread.undeclared_device > 0.0 && spread.assumed > 0.0 && spread.exchanges > 0.0);
    assert!(spread.expert_waits > 0.0 && spread.slow_launch_us > 0.0);
    assert!(stacks.cold.len() > 20, "what tables showed when others predicted them");
    assert!(w.release > 0.0 && w.release <= w.class && w.class <= w.unknown && w.generation <= w.unknown);
    let nothing = Stacks { stack: vec![], ..stacks }.resolve(&key("any", "thing"));
    assert!((nothing.spread - w.unknown).abs() < 1e-12 && nothing.notes.len() == 1);
}
