//! Objectives and constraints from scenario files: what is made small, what is kept to, and how what cannot be is refused.

use std::path::Path;

use trainyard::results::PlanReport;
use trainyard::scenario::{self, Measure, Objective};
use trainyard::{Context, Error, Loaded};

/// Two unlike nodes, with more sections.
fn text(policy: &str, more: &str) -> String {
    format!(
        "seed = 7\n[cluster]\nnodes = [\"2 x dgx-h100\", \"2 x dgx-a100\"]\n[model]\nname = \"llama-2-7b\"\n[training]\n\
         sequence_length = 4096\nglobal_batch = 64\n[plan]\npolicy = \"{policy}\"\ntensor = 1\nmicrobatch_size = 1\n{more}"
    )
}

fn read(policy: &str, more: &str) -> Result<Loaded, Error> {
    scenario::parse("s.toml", &text(policy, more), Path::new(""))
}

fn planned(policy: &str, more: &str) -> PlanReport {
    let loaded = read(policy, more).unwrap_or_else(|error| panic!("{more}: {error}"));
    trainyard::plan(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{policy} {more}: {error}"))
}

fn refused(policy: &str, more: &str, needles: &[&str]) {
    let error = match read(policy, more) {
        Err(error) => error.to_string(),
        Ok(loaded) => match trainyard::plan(&loaded, &Context::default()) {
            Err(error) => error.to_string(),
            Ok(report) => panic!("{more}: planned {}", report.plan.words),
        },
    };
    for needle in needles {
        assert!(error.contains(needle), "{more}: no {needle:?} in\n{error}");
    }
}

fn figures(report: &PlanReport) -> [f64; 3] {
    let (usd, joules) = (report.usd_per_million_tokens, report.joules_per_token);
    [report.prediction.iteration_ms, usd.expect("prices"), joules.expect("limits")]
}

#[test]
fn each_objective_is_best_at_its_own_and_says_so() {
    for policy in ["exhaustive", "dynprog"] {
        let plans = Objective::ALL
            .map(|objective| planned(policy, &format!("[objective]\nminimise = \"{}\"\n", objective.name())));
        for (at, objective) in Objective::ALL.into_iter().enumerate() {
            let best = figures(&plans[at])[at];
            let all = plans.iter().map(|plan| figures(plan)[at]);
            assert!(
                all.clone().all(|other| best <= other * (1.0 + 1e-12)),
                "{policy} {objective:?}: {best} {:?}",
                all.collect::<Vec<_>>()
            );
            assert_eq!(plans[at].objective, objective.name());
        }
        let [fast, cheap, lean] = &plans;
        assert!(
            figures(cheap)[1] < 0.99 * figures(fast)[1] && cheap.plan.ranks < fast.plan.ranks,
            "{}",
            cheap.plan.words
        );
        assert!(
            cheap.reasons[0].contains("cheapest of") && cheap.reasons[0].contains("per million tokens"),
            "{:?}",
            cheap.reasons
        );
        assert!(lean.reasons[0].contains("J per token"), "{:?}", lean.reasons);
        assert!(cheap.reasons.iter().any(|reason| reason.contains("of 32 devices")), "{:?}", cheap.reasons);
        assert!(cheap.expense_notes[0].contains("idle nodes are released"), "{:?}", cheap.expense_notes);
        // Where all is paid all the same, the fastest is the cheapest.
        let kept = planned(policy, "[objective]\nminimise = \"money\"\npaid = \"cluster\"\n");
        assert!(figures(&kept)[0] <= figures(fast)[0] * (1.0 + 1e-9), "{policy}: {}", kept.plan.words);
        assert!(figures(&kept)[1] > figures(cheap)[1], "{policy}: {}", kept.plan.words);
    }
    // The rules of thumb are judged, and say so; with another objective on the command line as well.
    let loaded = read("megatron", "").expect("a scenario").minimising(Objective::Money);
    let rules = trainyard::plan(&loaded, &Context::default()).expect("a plan");
    assert!(rules.reasons.iter().any(|reason| reason.contains("judged by money")), "{:?}", rules.reasons);
}

#[test]
fn what_is_asked_reads_back() {
    let more = "[objective]\nminimise = \"energy\"\npaid = \"devices\"\nbusy_power = 0.9\nwaiting_power = 0.25\nsite_factor = 1.2\n\
                pareto = [\"energy\", \"memory\"]\n[constraints]\nmemory_headroom = 0.05\ntokens = \"300B\"\ngoodput = 0.9\n\
                budget_usd = 1e6\ndeadline = \"40d\"\navoid = { kinds = [\"dgx-a100\"], nodes = [1], devices = [2, 3] }\n";
    for more in [more, "[constraints]\nmemory_headroom = \"4GiB\"\n", ""] {
        let first = read("exhaustive", more).unwrap_or_else(|error| panic!("{error}")).scenario;
        let again = scenario::parse("again.toml", &first.to_toml(), Path::new(""));
        assert_eq!(again.unwrap_or_else(|error| panic!("{error}")).scenario, first, "{more}");
    }
}

#[test]
fn constraints_are_kept_to() {
    let free = |report: &PlanReport| {
        let left = report.prediction.memory.iter().map(|stage| stage.capacity_gib - stage.peak_gib);
        left.fold(f64::INFINITY, f64::min)
    };
    let usual = planned("exhaustive", "");
    for policy in ["megatron", "exhaustive", "dynprog", "random", "mcts", "mcts-seeded", "learned"] {
        let plan = planned(policy, "[constraints]\nmemory_headroom = \"30GiB\"\n");
        let most = plan.prediction.memory.iter().map(|stage| stage.peak_gib).fold(0.0, f64::max);
        assert!(free(&plan) >= 0.0 && most <= 50.1, "{policy}: {most}");
        let avoided =
            planned(policy, "[constraints]\navoid = { kinds = [\"dgx-h100\"], nodes = [2], devices = [31] }\n");
        let placed = &avoided.plan.placement;
        assert!(
            placed.len() as u64 == avoided.plan.ranks && placed.iter().all(|device| (24..31).contains(&device.raw())),
            "{policy}: {placed:?}"
        );
        // What is planned reads back, with what it keeps to, to the same plan.
        let again = scenario::parse("again.toml", &avoided.planned_scenario, Path::new(""));
        let again = again.unwrap_or_else(|error| panic!("{error}"));
        let again = trainyard::plan(&again, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(again.plan, avoided.plan);
    }
    // 64 sequences of 4096 tokens: a million iterations.
    let (seconds, tokens) = (usual.prediction.iteration_ms * 1e-3, 64.0 * 4096.0 * 1e6);
    let days = seconds * 1e6 / 0.5 / 86_400.0;
    let asked = |more: &str| {
        format!("[objective]\nminimise = \"money\"\n[constraints]\ntokens = {tokens:e}\ngoodput = 0.5\n{more}")
    };
    let cheapest = planned("exhaustive", &asked(""));
    let in_time = planned("exhaustive", &asked(&format!("deadline = \"{:.3}d\"\n", days * 1.05)));
    assert!(in_time.prediction.iteration_ms <= usual.prediction.iteration_ms * 1.0501, "{}", in_time.plan.words);
    assert!(
        figures(&in_time)[1] > figures(&cheapest)[1]
            && in_time.prediction.iteration_ms < cheapest.prediction.iteration_ms
    );
    // The fastest for money between the cheapest and the fastest.
    let whole = |report: &PlanReport| figures(report)[1] * 1e-6 * tokens / 0.5;
    let budget = (whole(&cheapest) + whole(&usual)) / 2.0;
    let bought =
        planned("exhaustive", &format!("[constraints]\ntokens = {tokens:e}\ngoodput = 0.5\nbudget_usd = {budget}\n"));
    assert!(
        whole(&bought) <= budget && bought.prediction.iteration_ms <= cheapest.prediction.iteration_ms,
        "{}",
        bought.plan.words
    );
    assert!(bought.reasons[0].contains("keep to the constraints"), "{:?}", bought.reasons);
}

#[test]
fn what_cannot_be_kept_to_is_named_with_what_is_nearest() {
    let asked = |more: &str| format!("[constraints]\ntokens = \"2T\"\n{more}");
    for policy in ["megatron", "exhaustive", "dynprog", "random", "mcts", "mcts-seeded", "learned"] {
        refused(
            policy,
            &asked("budget_usd = 1000\n"),
            &[
                "s.toml:15:14",
                "constraints.budget_usd",
                "$1000 is not enough",
                "the cheapest",
                "times as much",
                "budget_usd = ",
            ],
        );
        refused(
            policy,
            &asked("deadline = \"1h\"\n"),
            &["constraints.deadline", "3600.0 s is not enough", "the fastest", "days", "deadline = \""],
        );
        refused(policy, "[constraints]\nmemory_headroom = \"80GiB\"\n", &["memory_headroom", "leaves nothing of the"]);
        refused(
            policy,
            "[constraints]\nmemory_headroom = 0.97\n",
            &["constraints.memory_headroom", "GiB of each device free", "memory_headroom = \""],
        );
    }
    // Each alone can be kept to, and not both: each is said with the other kept.
    let [fast, cheap] =
        ["time", "money"].map(|objective| planned("exhaustive", &format!("[objective]\nminimise = \"{objective}\"\n")));
    let steps = 2e12 / (64.0 * 4096.0) / 0.95;
    let budget = cheap.prediction.iteration_usd.expect("prices") * steps * 1.01;
    let deadline = fast.prediction.iteration_ms * 1e-3 * steps * 1.01;
    refused(
        "exhaustive",
        &asked(&format!("budget_usd = {budget}\ndeadline = \"{:.0}s\"\n", deadline)),
        &[
            "constraints.budget_usd",
            "constraints.deadline",
            "the cheapest uniform plan that keeps to all else",
            "the fastest uniform plan that keeps to all else",
        ],
    );
    // What is said to be enough is enough.
    let loaded = read("exhaustive", &asked("budget_usd = 1000\n")).expect("a scenario");
    let error = trainyard::plan(&loaded, &Context::default()).expect_err("a budget").to_string();
    let enough = error.rsplit("budget_usd = ").next().and_then(|rest| rest.split(|c: char| !c.is_ascii_digit()).next());
    planned("exhaustive", &asked(&format!("budget_usd = {}\n", enough.expect("a number"))));
    // A plan that is written is held against the limits too.
    let written = "[plan]\ndata = 32\n";
    let whole = text("manual", "").replace("[plan]\npolicy = \"manual\"\ntensor = 1\nmicrobatch_size = 1\n", written);
    let loaded =
        scenario::parse("s.toml", &format!("{whole}zero = 3\n{}", asked("budget_usd = 1000\n")), Path::new(""))
            .expect("a plan");
    let error = trainyard::plan(&loaded, &Context::default()).expect_err("a budget").to_string();
    assert!(error.contains("constraints.budget_usd") && error.contains("it takes $"), "{error}");
}

#[test]
fn what_says_nothing_is_refused_where_it_stands() {
    let constraint = |key: &str, needles: &[&str]| {
        refused("exhaustive", &format!("[constraints]\ntokens = \"2T\"\n{key}\n"), needles)
    };
    constraint("budget_usd = 0", &["s.toml:15:14", "no money at all", "budget_usd = 1e6"]);
    constraint("budget_usd = -1", &["constraints.budget_usd", "must be between 0 and"]);
    constraint("budget_usd = nan", &["constraints.budget_usd", "must be between"]);
    constraint("deadline = \"0s\"", &["no time at all", "\"30d\""]);
    constraint("deadline = 30", &["needs a unit"]);
    constraint("memory_headroom = 4", &["must be between 0 and 0.99"]);
    constraint("budget = 3", &["unknown key", "budget_usd"]);
    constraint("avoid = { kinds = [\"dgx-h200\"] }", &["no node or device `dgx-h200`", "dgx-h100"]);
    constraint("avoid = { nodes = [4] }", &["there is no node 4", "0 to 3"]);
    constraint("avoid = { devices = [32] }", &["there is no device 32", "0 to 31"]);
    constraint("avoid = { kinds = [\"dgx-h100\", \"a100-sxm4-80gb\"] }", &["leaves no device"]);
    refused(
        "exhaustive",
        "placement = [0]\n[constraints]\navoid = { nodes = [0] }\n",
        &["constraints.avoid", "device 0"],
    );
    refused("exhaustive", "[constraints]\nbudget_usd = 5\n", &["constraints.tokens", "is missing", "tokens = \"2T\""]);
    refused(
        "exhaustive",
        "[constraints]\ntokens = 9\ndeadline = \"1d\"\n",
        &["constraints.tokens", "of one iteration"],
    );
    refused("exhaustive", "[objective]\nminimise = \"mony\"\n", &["did you mean `money`?"]);
    refused("exhaustive", "[objective]\npareto = [\"time\"]\n", &["a front weighs two or more"]);
    refused("exhaustive", "[objective]\npareto = [\"time\", \"time\"]\n", &["the same twice"]);
    refused("exhaustive", "[objective]\nbusy_power = 0.3\n", &["waiting_power", "0.5 over 0.3", "at most busy_power"]);
    // Evaluations.
    refused("exhaustive", "budget = 0\n", &["plan.budget", "must be between 1"]);
    // A device without a price, and without a limit of power, where they matter.
    let bare = |more: &str| {
        format!(
            "cluster = \"1 x cpu-4\"\nmodel = \"tiny-llama\"\ntraining = {{ sequence_length = 64, global_batch = 64 }}\nplan = {{ policy = \"exhaustive\" }}\n{more}"
        )
    };
    for (objective, lacks, key) in [("money", "has no price", "usd_per_hour"), ("energy", "has no power limit", "tdp")]
    {
        let error =
            scenario::parse("s.toml", &bare(&format!("[objective]\nminimise = \"{objective}\"\n")), Path::new(""));
        let error = error.expect_err("no figure").to_string();
        assert!(error.contains(lacks) && error.contains(key) && error.contains("s.toml:6:12"), "{error}");
    }
    let loaded = scenario::parse("s.toml", &bare(""), Path::new("")).expect("a scenario").minimising(Objective::Energy);
    let error = trainyard::plan(&loaded, &Context::default()).expect_err("no figure").to_string();
    assert!(error.contains("has no power limit"), "{error}");
}

/// Nodes that no switch joins to the others are refused where the fabric is read, whatever is planned.
#[test]
fn nodes_that_nothing_reaches_are_refused() {
    let folder = tempfile::tempdir().expect("a folder");
    let check = |topology: &str, needles: &[&str]| {
        std::fs::write(folder.path().join("topology.conf"), topology).expect("a file");
        let text = "model = \"llama-2-7b\"\ntraining = { sequence_length = 4096, global_batch = 64 }\n\
                    [cluster]\nnodes = \"4 x dgx-h100\"\nfabric = { topology = \"topology.conf\" }\n";
        let error = scenario::parse("s.toml", text, folder.path()).map(|_| ()).expect_err(topology).to_string();
        for needle in needles {
            assert!(error.contains(needle), "{topology}: no {needle:?} in\n{error}");
        }
    };
    check(
        "SwitchName=s1 Nodes=n[1-2]\nSwitchName=s2 Nodes=n[3-4]\n",
        &["topology.conf", "several roots, whose nodes do not reach each other"],
    );
    check("SwitchName=s1 Nodes=n[1-3]\n", &["s.toml:5:", "4"]);
    let none = "cluster = \"1 x mine\"\nmodel = \"llama-2-7b\"\ntraining = { sequence_length = 4096, global_batch = 64 }\n\
                [nodes.mine]\nlike = \"dgx-h100\"\nnics = 0\n";
    let error = scenario::parse("s.toml", none, folder.path()).map(|_| ()).expect_err("no adapter").to_string();
    assert!(error.contains("nodes.mine.nics") && error.contains("between 1"), "{error}");
}

#[test]
fn a_front_is_of_plans_that_no_other_beats() {
    let loaded = read("exhaustive", "[objective]\npareto = [\"time\", \"money\", \"energy\", \"memory\"]\n")
        .expect("a scenario");
    let report = trainyard::plan(&loaded, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
    let front = report.pareto.as_ref().expect("it was asked for");
    assert_eq!(front.measures, ["time", "money", "energy", "memory"]);
    assert!(front.points.len() > 5 && front.points.len() == front.scenarios.len(), "{}", front.points.len());
    let value = |point: &trainyard::results::ParetoPoint| {
        [
            point.iteration_ms,
            point.usd_per_million_tokens.expect("a price"),
            point.joules_per_token.expect("a limit"),
            point.peak_gib,
        ]
    };
    for (at, point) in front.points.iter().enumerate() {
        let beaten = front
            .points
            .iter()
            .enumerate()
            .any(|(other, by)| other != at && value(by).iter().zip(value(point)).all(|(by, own)| *by <= own));
        assert!(!beaten, "{}", point.plan.words);
    }
    // The fastest and the cheapest that the policy finds are on it.
    let best = |at: usize| front.points.iter().map(|point| value(point)[at]).fold(f64::INFINITY, f64::min);
    assert!((best(0) / report.prediction.iteration_ms - 1.0).abs() < 1e-9);
    let cheap = planned("exhaustive", "[objective]\nminimise = \"money\"\n");
    assert!((best(1) / figures(&cheap)[1] - 1.0).abs() < 1e-9);
    // A point is a plan: its scenario gives its figures.
    let last = scenario::parse("p.toml", front.scenarios.last().expect("a point"), Path::new(""));
    let last = trainyard::plan(&last.unwrap_or_else(|error| panic!("{error}")), &Context::default());
    let last = last.unwrap_or_else(|error| panic!("{error}"));
    assert_eq!(last.plan, front.points.last().expect("a point").plan);
    let two = read("random", "budget = 10\n").expect("a scenario").weighing(vec![Measure::Money, Measure::Time]);
    let two = trainyard::plan(&two, &Context::default()).unwrap_or_else(|error| panic!("{error}"));
    let two = two.pareto.expect("it was asked for");
    assert!(two.notes.iter().any(|note| note.contains("budget of 10 ")), "{:?}", two.notes);
    // A plan that is written has no front.
    let written = scenario::parse("p.toml", &report.planned_scenario, Path::new("")).expect("a plan");
    let error = trainyard::plan(&written.weighing(vec![Measure::Time, Measure::Memory]), &Context::default());
    assert!(error.expect_err("no front").to_string().contains("the plan is written"));
}
