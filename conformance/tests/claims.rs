//! Every claim of `scenarios/claims` holds, or says why it does not; and comes to what its golden says: words exactly, numbers
//! within 1e-9. `UPDATE_GOLDENS=1` rewrites.

use serde_json::{Map, Value, json};
use trainyard_conformance::claims::{Claim, Found, Shape, claims, simulate, variant};
use trainyard_conformance::golden::{differences, rewrites};

fn shape(of: &Shape) -> Value {
    json!({
        "plan": of.plan,
        "iteration_s": of.seconds,
        "tokens_per_second_per_device": of.rate,
        "compute_share": of.compute,
        "exposed_share": of.exposed,
        "idle_share": of.idle,
        "communication_s": of.communication,
    })
}

fn golden(found: &Found) -> Value {
    let baselines = found.baselines.iter().map(|(name, of)| (name.clone(), shape(of))).collect::<Map<_, _>>();
    let points = found.points.iter().map(|(point, of)| (point.nodes.clone(), shape(of))).collect::<Map<_, _>>();
    json!({ "policy": shape(&found.own), "baselines": baselines, "points": points })
}

/// What is wrong with a claim.
fn faults(claim: &Claim) -> Vec<String> {
    let found = match simulate(claim) {
        Ok(found) => found,
        Err(what) => return vec![format!("{}: {what}", claim.title)],
    };
    let mut faults = Vec::new();
    for wanted in &claim.wanted {
        let value = found.value(wanted).expect("figures of baselines and points that are there");
        let name = format!("{}, {} {}", claim.title, wanted.figure.name(), wanted.baseline.as_deref().unwrap_or(""));
        match (wanted.holds(value), &wanted.missed) {
            (false, None) => faults.push(format!("{name}: {value} misses {:?} to {:?}", wanted.least, wanted.most)),
            (true, Some(_)) => faults.push(format!("{name}: {value} holds now, and the file says that it is missed")),
            _ => {}
        }
    }
    let (path, is) = (claim.folder.join("expected.json"), golden(&found));
    if rewrites() {
        std::fs::write(&path, serde_json::to_string_pretty(&is).expect("plain values") + "\n").expect("writable");
        return faults;
    }
    let was = std::fs::read_to_string(&path).map_err(|e| e.to_string());
    match was.and_then(|text| serde_json::from_str(&text).map_err(|e| e.to_string())) {
        Ok(was) => differences(&claim.title, &was, &is, &mut faults),
        Err(what) => faults.push(format!("{}: {what}", path.display())),
    }
    faults
}

#[test]
#[expect(clippy::print_stderr, reason = "how a test says that a part of it did not run")]
fn claims_hold_or_say_why_not() {
    let mut claims = claims().expect("readable claims");
    assert!(claims.len() >= 7, "{} claims", claims.len());
    if std::env::var_os("TRAINYARD_LONG_TESTS").is_none() {
        for slow in claims.iter().filter(|claim| claim.slow) {
            eprintln!("SKIP {}: it takes minutes; TRAINYARD_LONG_TESTS=1 holds it too", slow.title);
        }
        claims.retain(|claim| !claim.slow);
    }
    let faults = std::thread::scope(|scope| {
        let of = claims.iter().map(|claim| scope.spawn(move || faults(claim))).collect::<Vec<_>>();
        of.into_iter().flat_map(|thread| thread.join().expect("a claim that is looked at")).collect::<Vec<_>>()
    });
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// What the executor would train has a plan, whoever plans.
#[test]
fn every_twin_has_a_plan() {
    for claim in claims().expect("readable claims") {
        let path = claim.folder.join("twin.toml");
        let own = std::iter::once((None, None));
        let others = claim
            .twin
            .iter()
            .map(|baseline| (Some(&baseline.plan).filter(|plan| !plan.is_empty()), baseline.point.as_ref()));
        assert!(!claim.twin.is_empty(), "{}: nobody to hold the twin against", claim.title);
        for (plan, point) in own.chain(others) {
            let loaded = variant(&path, plan, point).unwrap_or_else(|what| panic!("{what}"));
            let report = trainyard::simulate(&loaded, &trainyard::Context::default());
            let report = report.unwrap_or_else(|error| panic!("{}: {error}", path.display()));
            assert!(report.prediction.iteration_ms > 0.0, "{}", path.display());
        }
    }
}
