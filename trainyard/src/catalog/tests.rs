use std::collections::BTreeSet;

use cost::{CostModel, GroupPlace};
use ir::counts::Streaming;
use ir::program::CollectiveKind;
use ir::{AttentionKernel, Bytes, CollectiveAlgorithm, DeviceId};

use super::*;

/// A scenario of a small model on this cluster, given as TOML.
fn scenario(cluster: &str) -> crate::scenario::Scenario {
    let text = format!(
        "name = \"t\"\ncluster = {cluster}\nmodel = {{ name = \"gpt2-124m\" }}\n\
         training = {{ sequence_length = 1024, global_batch = 64 }}\nplan = {{ policy = \"megatron\" }}\n"
    );
    match crate::scenario::parse("t.toml", &text, std::path::Path::new("/nowhere")) {
        Ok(loaded) => loaded.scenario,
        Err(error) => panic!("{cluster}: {error:?}"),
    }
}

/// Prices on this cluster by the calibrations of the catalog.
fn prices(cluster: &str) -> CostModel {
    CostModel::new(scenario(cluster).cluster, calibrations()).unwrap_or_else(|e| panic!("{cluster}: {e:?}"))
}

/// The calibration of a device.
fn calibration<'c>(all: &'c [Calibration], device: &DeviceKind) -> &'c Calibration {
    let found = all.iter().find(|calibration| calibration.name == device.calibration);
    found.unwrap_or_else(|| panic!("{}: no calibration {}", device.name, device.calibration))
}

#[test]
fn the_embedded_catalog_is_sound() {
    let catalog = Catalog::embedded();
    for node in &catalog.nodes {
        for device in &node.devices {
            assert!(catalog.device(device).is_some(), "{}: no device {device}", node.name);
        }
        for link in [&node.domain_link, &node.host_link, &node.nic] {
            assert!(catalog.link(link).is_some(), "{}: no link {link}", node.name);
        }
        assert!(node.nics as usize <= node.devices.len(), "{}: device i uses one NIC, so some are idle", node.name);
    }
    for fabric in &catalog.fabrics {
        if let Some(link) = &fabric.up_link {
            assert!(catalog.link(link).is_some(), "{}: no link {link}", fabric.name);
        }
    }
    for (file, text) in EMBEDDED {
        let tables = text.lines().filter(|line| line.starts_with('[')).count();
        let sources = text.lines().filter(|line| line.starts_with("source = \"") && line.len() > 20).count();
        assert_eq!(tables, sources, "{file}: each row has its source");
    }
}

#[test]
fn names_are_unique_and_in_lower_case_words() {
    let catalog = Catalog::embedded();
    let kinds: [(&str, Vec<&String>); 4] = [
        ("device", catalog.devices.iter().map(|d| &d.name).collect()),
        ("link", catalog.links.iter().map(|l| &l.name).collect()),
        ("node", catalog.nodes.iter().map(|n| &n.name).collect()),
        ("fabric", catalog.fabrics.iter().map(|f| &f.name).collect()),
    ];
    for (kind, names) in kinds {
        let distinct: BTreeSet<_> = names.iter().collect();
        assert_eq!(distinct.len(), names.len(), "a {kind} is there twice");
        for name in names {
            let plain = name.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            assert!(plain, "{kind} {name}");
        }
    }
}

#[test]
fn wider_formats_are_never_faster() {
    for device in Catalog::embedded().devices {
        for pair in device.peak.windows(2) {
            let [(wide, slow), (narrow, fast)] = pair else { unreachable!("windows of two") };
            assert!(slow.get() <= fast.get(), "{}: {} before {}", device.name, wide.name(), narrow.name());
        }
        assert_eq!(device.usd_per_hour.is_some(), device.price_source.is_some(), "{}: price", device.name);
        assert!(device.tdp_watts.is_none_or(|watts| (50.0..2000.0).contains(&watts)), "{}: tdp", device.name);
    }
}

#[test]
fn every_device_has_a_calibration_that_prices_all_of_its_kernels() {
    let all = calibrations();
    for device in Catalog::embedded().devices {
        let calibration = calibration(&all, &device);
        for (precision, _) in &device.peak {
            let row = calibration.matrix_product.iter().find(|row| row.precision == *precision);
            assert!(row.is_some(), "{}: no matrix products in {}", device.name, precision.name());
        }
        for kernel in [AttentionKernel::Fused, AttentionKernel::Plain] {
            assert!(calibration.attention.iter().any(|row| row.kernel == kernel), "{}: {kernel:?}", device.name);
        }
        for kind in Streaming::ALL {
            let of = |name: &str| calibration.streaming.iter().any(|row| row.kernel == name);
            assert!(of(kind.name()) || of("all"), "{}: {}", device.name, kind.name());
        }
    }
}

#[test]
fn calibrations_say_where_each_constant_comes_from_and_whether_it_was_assumed() {
    for calibration in calibrations() {
        let c = &calibration;
        let rows = (c.matrix_product.iter().map(|r| (r.rows, &r.source)))
            .chain(c.attention.iter().map(|r| (r.rows, &r.source)))
            .chain(c.collective_fit.iter().map(|r| (r.rows, &r.source)))
            .chain(c.message_fit.iter().map(|r| (r.rows, &r.source)));
        for (rows, source) in rows {
            assert!(source.len() >= 6, "{}: {source:?}", c.name);
            let assumed = source.starts_with("assumed");
            assert!(!assumed || rows == 0, "{}: assumed, but of {rows} rows: {source}", c.name);
        }
        for source in c.link.iter().map(|r| &r.source).chain(c.protocol.iter().map(|r| &r.source)) {
            assert!(source.len() >= 6, "{}: {source:?}", c.name);
        }
        assert!(!c.source.is_empty() && !c.device.is_empty(), "{}", c.name);
    }
}

/// A link without a known share would be taken at its line rate, in silence.
#[test]
fn the_share_that_is_reached_is_known_of_every_link_of_every_node() {
    let (catalog, all) = (Catalog::embedded(), calibrations());
    for node in &catalog.nodes {
        let calibration = calibration(&all, catalog.device(&node.devices[0]).expect("checked elsewhere"));
        for name in [&node.domain_link, &node.host_link, &node.nic] {
            let link = catalog.link(name).expect("checked elsewhere");
            let known = link.efficiency.is_some() || calibration.link.iter().any(|row| row.link == *name);
            assert!(known || calibration.threads, "{}: {name}", node.name);
        }
    }
}

/// Bus bandwidth of an all-reduce of 1 GiB, in bytes per second.
fn bus_bandwidth(model: &CostModel, devices: u32) -> f64 {
    let members: Vec<DeviceId> = (0..devices).map(DeviceId::new).collect();
    let place = GroupPlace::of(model.cluster(), &members);
    let size = Bytes::from_gib(1);
    let priced = model.collective(CollectiveKind::AllReduce, size, place, CollectiveAlgorithm::Automatic);
    let factor = 2.0 * f64::from(devices - 1) / f64::from(devices);
    size.get() as f64 * factor / priced.duration.seconds()
}

#[test]
fn large_collectives_of_every_node_reach_a_plausible_share_of_the_line() {
    for node in &Catalog::embedded().nodes {
        let one = prices(&format!("\"2 x {}\"", node.name));
        let devices = u32::try_from(node.devices.len()).expect("a small node");
        let kind = &one.cluster().node_kinds[0];
        let mut port = kind.nic.bandwidth.get() * f64::from(node.nics);
        if devices > 1 {
            let slowest = if node.domain_size < devices { &kind.host_link } else { &kind.domain_link };
            port = port.min(slowest.bandwidth.get());
            let share = bus_bandwidth(&one, devices) / slowest.bandwidth.get();
            // A switch that adds up passes each byte once: 482 of 450 GB/s on H200.
            assert!((0.1..=1.1).contains(&share), "{}: inside, {share}", node.name);
        }
        // Between two nodes, sums inside each before and after halve what a ring would send.
        let share = bus_bandwidth(&one, 2 * devices) / port;
        assert!((0.1..=2.0).contains(&share), "{}: between nodes, {share}", node.name);
    }
}

#[test]
fn a_link_between_zones_bounds_what_crosses_it() {
    let price = |fabric: &str| {
        let cluster = format!("{{ nodes = \"8 x a2-highgpu-4g\", fabric = \"{fabric}\" }}");
        let said = scenario(&cluster);
        let again =
            crate::scenario::parse("t.toml", &said.to_toml(), std::path::Path::new("/nowhere")).expect("its own text");
        assert_eq!(again.scenario.cluster, said.cluster, "{fabric}: read back");
        bus_bandwidth(&prices(&cluster), 32)
    };
    let (within, across) = (price("one-switch"), price("cloud-regions"));
    assert!(across < 1.25e9 && across > 0.8e9, "10 Gb/s between regions: {across}");
    assert!(within > 3.0 * across, "50 Gb/s inside: {within}");
}

#[test]
fn an_entry_like_another_says_only_what_differs() {
    let mut catalog = Catalog::embedded();
    let text = r#"
        [devices.ours]
        like = "h100-sxm5-80gb"
        usd_per_hour = 1.9

        [nodes.ours]
        like = "dgx-h100"
        devices = "4 x ours"
        nics = 2
    "#;
    assert_eq!(catalog.add_file("ours.toml", text), Vec::new());
    let (ours, theirs) = (catalog.device("ours").unwrap(), catalog.device("h100-sxm5-80gb").unwrap());
    assert_eq!(ours.usd_per_hour, Some(1.9));
    assert_eq!(ours.price_source, None, "the user's price is not the catalog's");
    assert_eq!((&ours.peak, ours.memory, &ours.calibration), (&theirs.peak, theirs.memory, &theirs.calibration));
    let node = catalog.node("ours").unwrap();
    assert_eq!((node.domain_size, node.nics, node.nic.as_str()), (4, 2, "ib-ndr"));
}

#[test]
fn every_fault_of_an_entry_is_named() {
    let mut catalog = Catalog::embedded();
    let text = r#"
        [devices.a]
        like = "h100-smx5-80gb"

        [devices.b]
        like = "a100-sxm4-80gb"
        tdp = "400"
        peak = { int8 = "1TFLOP/s" }

        [links.c]
        bandwidth = "400Gbps"
        latency = "2us"
        efficiency = 1.5
    "#;
    let problems = catalog.add_file("wrong.toml", text);
    let said = |part: &str| problems.iter().any(|p| format!("{p:?}").contains(part));
    for part in ["h100-sxm5-80gb", "is not a power", "700W", "names no number format", "fp8", "must be between"] {
        assert!(said(part), "{part}: {problems:?}");
    }
}

#[test]
fn models_have_their_published_sizes() {
    let check = |name: &str, expect: u64| {
        let catalog = Catalog::embedded();
        assert_eq!(catalog.model(name).expect(name).parameters(), expect, "{name}");
    };
    check("llama-3.1-8b", 8_030_261_248);
    check("llama-3.1-70b", 70_553_706_496);
    check("llama-3.1-405b", 405_853_388_800);
    check("gpt2-124m", 124_439_808);
    // Published as 175.0 B: 96 layers of 12 * 12288^2 + 13 * 12288, embeddings of 50257 and 2048 rows, the last norm.
    check("gpt3-175b", 96 * (12 * 12288 * 12288 + 13 * 12288) + (50257 + 2048) * 12288 + 2 * 12288);
    check("gpt-13b", 40 * (12 * 5120 * 5120 + 13 * 5120) + (50257 + 2048) * 5120 + 2 * 5120);
}
