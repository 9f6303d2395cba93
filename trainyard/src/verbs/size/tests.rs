use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use reports::sizing::Interval;

use super::{bill, size};
use crate::results::{SizeReport, SizeRow};
use crate::{Context, Error, Loaded, scenario};

fn parse(text: &str) -> Loaded {
    scenario::parse("s.toml", text, Path::new("")).unwrap_or_else(|e| panic!("{e}"))
}

fn report(text: &str) -> SizeReport {
    size(&parse(text), &Context::default()).unwrap_or_else(|e| panic!("{e}"))
}

fn text(cluster: &str, model: &str, batch: u32, size: &str) -> String {
    format!(
        "name = \"s\"\ncluster = \"{cluster}\"\nmodel = \"{model}\"\n\
         training = {{ sequence_length = 4096, global_batch = {batch} }}\n[size]\n{size}\n"
    )
}

/// What follows from the step of a row, by another way than the code's.
fn agrees(row: &SizeRow, tokens: f64, per_step: f64, goodput: f64, usd_per_device_hour: f64) {
    let (step, days) = (row.step_s.expect("a step"), row.days.expect("a time"));
    let steps = (tokens / per_step).ceil();
    for (step, days) in [(step.low, days.low), (step.expected, days.expected), (step.high, days.high)] {
        let seconds = days * 86_400.0 * goodput;
        assert!((seconds / (steps * step) - 1.0).abs() < 1e-12, "{row:?}");
    }
    let hours = row.device_hours.expect("hours");
    if row.goodput.is_none() {
        assert!((hours.expected / (days.expected * 24.0 * row.devices as f64) - 1.0).abs() < 1e-12, "{row:?}");
    }
    let usd = row.usd.expect("a price");
    assert!((usd.high / (hours.high * usd_per_device_hour) - 1.0).abs() < 1e-12, "{row:?}");
}

/// "How many GPUs for 70B on 2T tokens in 30 days?"
#[test]
fn seventy_billion_on_two_trillion_tokens_in_thirty_days() {
    let asked = "tokens = \"2T\"\nwithin = \"30d\"\nnodes = [\"dgx-h100\", \"dgx-a100\"]";
    let report = report(&text("104 x dgx-h100", "llama-3.1-70b", 1152, asked));
    let section = report.cluster.expect("asked");
    // The rule of thumb, to cross-check the arithmetic: 6 N D = 8.466e23 FLOPs.
    let flops = 6.0 * 70_553_706_496.0_f64 * 2e12;
    assert!((flops / 8.466e23 - 1.0).abs() < 1e-3, "{flops}");
    let by_rule = |mfu: f64, peak: f64| flops / (mfu * peak * 30.0 * 86_400.0);
    assert!((by_rule(0.40, 989e12) - 826.0).abs() < 1.0 && (by_rule(0.50, 312e12) - 2096.0).abs() < 4.0);
    assert_eq!(section.smallest.len(), 2, "{:#?}", section.rows);
    for (index, (node, peak, usd, fewest, most)) in
        section.smallest.iter().zip([("dgx-h100", 989e12, 3.0, 640, 1408), ("dgx-a100", 312e12, 1.3, 1664, 3328)])
    {
        let row = &section.rows[*index];
        assert_eq!(row.node, node);
        assert!((fewest..=most).contains(&row.devices), "{row:#?}");
        assert!(row.days.is_some_and(|days| days.expected <= 30.0) && row.suffices && row.fits);
        agrees(row, 2e12, 1152.0 * 4096.0, 0.95, usd);
        // Utilisation comes from the plan: the devices at just this MFU do it in just this time.
        let mfu = row.model_flops_utilization.expect("a peak");
        let hfu = row.hardware_flops_utilization.expect("a peak");
        assert!((0.25..0.65).contains(&mfu) && hfu >= mfu, "{mfu} {hfu}");
        let model = &parse(&text("1 x dgx-h100", "llama-3.1-70b", 1024, "budget_usd = 1")).scenario.model;
        let attention = 12.0 * f64::from(model.layers) * f64::from(model.hidden) * 4096.0;
        let matrices = 6.0 * (70_553_706_496.0 - 128_256.0 * 8192.0);
        let seconds = (matrices + attention) * 2e12 / (mfu * peak * row.used_devices as f64);
        let days = row.days.expect("a time").expected * 0.95;
        assert!((seconds / 86_400.0 / days - 1.0).abs() < 0.01, "{seconds} s against {days} days");
        // No smaller cluster that was tried suffices.
        let smaller = section.rows.iter().filter(|other| other.node == node && other.nodes < row.nodes);
        assert!(
            smaller.clone().count() >= 1 && smaller.into_iter().all(|other| !other.suffices),
            "{:#?}",
            section.rows
        );
        assert!(row.basis.iter().any(|(name, _)| name == "spread"), "{row:?}");
    }
    assert!(report.warnings.iter().any(|warning| warning.contains("defaults")), "{:?}", report.warnings);
    let page = report.document.html();
    assert!(page.contains("how many nodes?") && page.contains("goodput") && page.contains("MFU"));
    assert!(report.inputs.iter().any(|(name, value)| name == "h100-sxm5-80gb" && value.contains("$3")));
}

#[test]
fn what_cannot_be_done_is_an_answer_with_what_was_tried() {
    let asked = "tokens = \"15T\"\nwithin = \"1d\"\nmost_nodes = 64";
    let report_ = report(&text("1 x dgx-h100", "llama-3.1-70b", 512, asked));
    let section = report_.cluster.expect("asked");
    assert_eq!((section.chosen, section.rows.len()), (None, 0));
    assert!(section.answer.contains("at the devices' peak"), "{}", section.answer);
    let asked = "tokens = \"2B\"\nwithin = \"30d\"\nbudget_usd = 1\nmost_nodes = 8";
    let section = report(&text("1 x dgx-h100", "llama-3.1-8b", 512, asked)).cluster.expect("asked");
    assert!(section.chosen.is_none() && section.rows.iter().all(|row| !row.suffices), "{section:#?}");
    assert!(section.answer.starts_with("No cluster that was tried suffices"), "{}", section.answer);
    assert!(section.answer.contains("cost more than $1.00: the cheapest"), "{}", section.answer);
    assert!(section.question.contains("for at most $1.00"), "{}", section.question);
}

#[test]
fn a_kind_that_cannot_compute_in_the_format_is_named_and_others_are_sized() {
    let asked = "tokens = \"20B\"\nwithin = \"30d\"\nnodes = [\"dgx-1v\", \"dgx-h100\"]";
    let section = report(&text("1 x dgx-h100", "llama-3.1-8b", 512, asked)).cluster.expect("asked");
    assert!(section.answer.contains("v100-sxm2-32gb of dgx-1v does not compute in bf16"), "{}", section.answer);
    assert!(section.chosen.is_some_and(|row| section.rows[row].node == "dgx-h100"), "{section:#?}");
}

#[test]
fn a_budget_buys_tokens_in_proportion() {
    let of = |budget: &str| {
        let asked = format!("budget_usd = {budget}");
        report(&text("4 x dgx-h100", "llama-3.1-8b", 512, &asked)).tokens.expect("asked")
    };
    let (one, ten) = (of("100000.0"), of("1000000.0"));
    let tokens = |section: &crate::results::SizeSection| section.rows[0].tokens.expect("tokens");
    assert!((tokens(&ten).expected / tokens(&one).expected - 10.0).abs() < 1e-9);
    assert!(tokens(&one).low <= tokens(&one).expected && tokens(&one).expected <= tokens(&one).high);
    let row = &one.rows[0];
    assert!(row.usd.is_some_and(|usd| (usd.expected - 100_000.0).abs() < 1e-6), "{row:?}");
    // 32 devices at 3 dollars: 1,041.7 hours.
    assert!(row.days.is_some_and(|days| (days.expected * 24.0 - 100_000.0 / 96.0).abs() < 1e-6), "{row:?}");
    let mwh = row.megawatt_hours.expect("a limit").expected;
    assert!((mwh - 32.0 * 700.0 * 1e-6 * 100_000.0 / 96.0).abs() < 1e-6, "{mwh}");
    let error = size(
        &parse(&text("1 x cpu-4", "tiny-llama", 64, "budget_usd = 1.0").replace("4096", "64")),
        &Context::default(),
    );
    let error = error.expect_err("a core has no price").to_string();
    assert!(error.contains("has no price") && error.contains("usd_per_hour"), "{error}");
}

#[test]
fn the_largest_model_fits_and_larger_ones_do_not() {
    let asked = "models = [\"llama-3.1-405b\", \"llama-3.1-8b\", \"llama-3.1-70b\"]";
    let section = report(&text("4 x dgx-h100", "llama-3.1-8b", 512, asked)).model.expect("asked");
    let names: Vec<&str> = section.rows.iter().map(|row| row.model.as_str()).collect();
    assert_eq!(names, ["llama-3.1-8b", "llama-3.1-70b", "llama-3.1-405b"]);
    assert_eq!(section.largest, Some(1), "{:#?}", section.rows);
    assert!(!section.rows[2].fits && !section.rows[2].reason.is_empty());
    let scaled = report(&text("1 x dgx-h100", "llama-3.1-8b", 512, "ask = [\"model\"]"));
    let scaled = scaled.model.expect("asked");
    let largest = scaled.largest.expect("the model itself fits");
    // Weights, gradients and optimizer state alone take 18 bytes of each parameter of the 640 GiB.
    let parameters = scaled.rows[largest].parameters as f64;
    assert!((8e9..640.0 * 1.0737e9 / 16.0).contains(&parameters), "{parameters:e}");
    assert!(scaled.rows[largest + 1..].iter().all(|row| !row.fits) && scaled.rows.len() > largest + 1);
}

#[test]
fn a_faster_network_exposes_less_until_it_does_not_matter() {
    let network = report(&text("16 x v100-4-100g", "gpt-13b", 256, "ask = [\"network\"]").replace("4096", "2048"));
    let network = network.network.expect("asked");
    assert_eq!(network.points.len(), 13);
    for pair in network.points.windows(2) {
        assert!(pair[1].step_s <= pair[0].step_s * (1.0 + 1e-9), "{pair:?}");
        assert!((pair[1].node_gbit_per_s / pair[0].node_gbit_per_s - 2.0).abs() < 1e-9);
    }
    let (slow, fast) = (network.points[0], network.points[12]);
    assert!(slow.exposed_share > fast.exposed_share, "{slow:?} {fast:?}");
    let at = network.one_percent_gbit_per_s.expect("it matters at a 64th and not at 64 times the rate");
    let above = network.points.iter().find(|point| point.node_gbit_per_s >= at).expect("in the range");
    let below = network.points.iter().rev().find(|point| point.node_gbit_per_s < at * 0.98).expect("in the range");
    assert!(above.exposed_share < 0.01 && below.exposed_share >= 0.01, "{above:?} {below:?}");
    if let Some(equal) = network.as_compute_gbit_per_s {
        assert!(equal < at, "{equal} {at}");
    }
    let error = size(&parse(&text("1 x dgx-h100", "llama-3.1-8b", 64, "ask = [\"network\"]")), &Context::default());
    assert!(error.is_err_and(|error| error.to_string().contains("the cluster has one")));
}

#[test]
fn a_scenario_that_asks_nothing_is_told_what_it_could() {
    let plain = "cluster = \"1 x dgx-h100\"\nmodel = \"llama-3.1-8b\"\ntraining = { sequence_length = 512, global_batch = 8 }\n";
    let error = size(&parse(plain), &Context::default()).expect_err("nothing is asked").to_string();
    assert!(error.contains("asks nothing") && error.contains("tokens"), "{error}");
}

/// A search that goes on after its first guess stops there.
#[test]
fn a_search_stops_when_asked() {
    let mut stopped = 0;
    for days in [10, 15, 20, 25, 30, 35] {
        let interrupt = Arc::new(AtomicBool::new(false));
        let flag = Arc::clone(&interrupt);
        let context = Context::new(Arc::clone(&interrupt), move |progress| {
            if progress.step == "size" && progress.done == 1 {
                flag.store(true, Ordering::Relaxed);
            }
        });
        let asked = format!("tokens = \"2T\"\nwithin = \"{days}d\"");
        let found = size(&parse(&text("1 x dgx-h100", "llama-3.1-70b", 1024, &asked)), &context);
        let asked_to = interrupt.load(Ordering::Relaxed);
        assert_eq!(matches!(found, Err(Error::Interrupted)), asked_to, "{days} days: {found:?}");
        stopped += u32::from(asked_to);
    }
    assert!(stopped > 1, "{stopped} of 6 searches went on after their first guess");
}

#[test]
fn bills_are_what_they_are_by_hand() {
    let step = Interval { low: 9.0, expected: 10.0, high: 12.0 };
    assert!((bill::iterations(1e6, 3e5) - 4.0).abs() < 1e-12);
    let days = bill::days(8640.0, step, 0.5);
    let by_hand = [(days.low, 1.8), (days.expected, 2.0), (days.high, 2.4)];
    assert!(by_hand.iter().all(|(found, expect)| (found - expect).abs() < 1e-12), "{days:?}");
    let tokens = bill::tokens(120.0, step, 1000.0, 0.9);
    assert!((tokens.expected - 10_800.0).abs() < 1e-9 && (tokens.low - 9000.0).abs() < 1e-9);
    assert!(tokens.high > tokens.expected);
}

/// With failures, dates and money follow from the goodput of each cluster; spares are paid for.
#[test]
fn goodput_follows_from_checkpoints_and_failures() {
    let asked = "tokens = \"20B\"\nwithin = \"30d\"\nnodes = [\"dgx-h100\"]\n[checkpoint]\ninterval = \"best\"\nbandwidth = \"5GB/s\"\n\
                 [failures]\nnode_mtbf = \"20d\"\nrestart = \"20min\"\nspares = 1\nrepair = \"12h\"";
    let report = report(&text("4 x dgx-h100", "llama-3.1-8b", 512, asked));
    let section = report.cluster.expect("asked");
    let rows: Vec<&SizeRow> = section.rows.iter().filter(|row| row.fits).collect();
    assert!(!rows.is_empty(), "{section:#?}");
    for row in &rows {
        let goodput = row.goodput.expect("it follows");
        // One failure of the cluster in 20 days over its nodes costs a restart and some lost work.
        let per_day = row.nodes as f64 / 20.0;
        assert!(goodput < 1.0 - per_day * 20.0 / 1440.0 && goodput > 0.5, "{row:?}");
        agrees(row, 20e9, 512.0 * 4096.0, goodput, 3.0);
        let hours = row.device_hours.expect("hours").expected;
        let (days, nodes) = (row.days.expect("a time").expected, row.nodes as f64);
        assert!((hours / (days * 24.0 * 8.0 * (nodes + 1.0)) - 1.0).abs() < 1e-12, "{row:?}");
        assert!(row.notes.contains("spare nodes are paid for"), "{row:?}");
    }
    assert!(report.inputs.iter().any(|(name, value)| name == "goodput" && value.contains("[failures]")));
    assert!(report.document.html().contains("goodput"));
}
