//! Calibration text to value, with every fault of its values at once.

use ir::counts::Streaming;
use ir::program::CollectiveKind;
use ir::{Problem, SourceSpan};

use crate::Calibration;

/// Reads a calibration.
pub(crate) fn parse(text: &str, file: &str) -> Result<Calibration, Vec<Problem>> {
    let calibration: Calibration = toml::from_str(text).map_err(|error| {
        let problem = Problem::new("calibration", error.message().trim().replace('\n', "; "));
        vec![match error.span() {
            Some(range) => problem.at(SourceSpan { file: file.to_owned(), range }),
            None => problem.hint(format!("in {file}")),
        }]
    })?;
    let faults = problems(&calibration);
    if faults.is_empty() {
        return Ok(calibration);
    }
    Err(faults
        .into_iter()
        .map(|problem| {
            let range = locate(text, &problem.subject);
            problem.at(SourceSpan { file: file.to_owned(), range })
        })
        .collect())
}

/// Every value that cannot be.
pub(crate) fn problems(calibration: &Calibration) -> Vec<Problem> {
    let mut check = Check(Vec::new());
    check.whole(calibration);
    check.rows(calibration);
    check.communication(calibration);
    check.measured(calibration);
    check.0
}

struct Check(Vec<Problem>);

impl Check {
    fn fault(&mut self, subject: String, message: impl Into<String>, hint: &str) {
        self.0.push(Problem::new(subject, message).hint(hint));
    }
    fn at_least_zero(&mut self, subject: &str, value: f64) {
        if !(value.is_finite() && value >= 0.0) {
            self.fault(subject.to_owned(), format!("{value} is not a time"), "finite and not negative");
        }
    }
    /// A share of a peak; above 1 is allowed up to 2, since caches exceed what memory reaches.
    fn share(&mut self, subject: &str, value: f64) {
        if !(value.is_finite() && value > 0.0 && value <= 2.0) {
            self.fault(subject.to_owned(), format!("{value} is not a share of a peak"), "more than 0, at most 2");
        }
    }
    fn positive(&mut self, subject: &str, value: f64) {
        if !(value.is_finite() && value > 0.0) {
            self.fault(subject.to_owned(), format!("{value} is not positive"), "finite and positive");
        }
    }
    fn kernel(&mut self, subject: &str, name: &str, or_all: bool) {
        if Streaming::from_name(name).is_none() && !(or_all && name == "all") {
            let names: Vec<&str> = Streaming::ALL.iter().map(|kind| kind.name()).collect();
            self.fault(subject.to_owned(), format!("no streaming kernel is called `{name}`"), &names.join(", "));
        }
    }

    fn whole(&mut self, c: &Calibration) {
        if let Some(spread) = c.spread.filter(|spread| !(0.0..=3.0).contains(spread)) {
            self.fault(
                "spread".to_owned(),
                format!("{spread} is not a standard deviation of logarithms"),
                "0.1 is about 10 %",
            );
        }
        if c.generation.as_ref().is_some_and(|generation| generation.trim().is_empty()) {
            self.fault("generation".to_owned(), "is empty", "leave it out where it is the name");
        }
        if let Some(host) = &c.host {
            self.positive("host.optimizer_gb_per_s", host.optimizer_gb_per_s);
        }
        self.at_least_zero("dispatch.instruction_us", c.dispatch.instruction_us);
        self.at_least_zero("dispatch.launch_us", c.dispatch.launch_us);
        for (name, value) in [
            ("interference.compute", c.interference.compute),
            ("interference.communication", c.interference.communication),
        ] {
            if !(1.0..=10.0).contains(&value) {
                let message = format!("{value} is not how much longer work takes beside other work");
                self.fault(name.to_owned(), message, "1, where neither slows the other, to 10");
            }
        }
        for (device, composition) in [("real", c.in_training.real), ("emulated", c.in_training.emulated)] {
            for (name, value) in [
                ("forward", composition.forward),
                ("backward", composition.backward),
                ("gradient_norm", composition.gradient_norm),
                ("optimizer", composition.optimizer),
                ("in_step", composition.in_step),
            ] {
                self.positive(&format!("in_training.{device}.{name}"), value);
            }
            self.at_least_zero(&format!("in_training.{device}.exchange_us"), composition.exchange_us);
        }
        let missing = |check: &mut Self, key: &str| {
            check.fault(key.to_owned(), format!("there is no `{key}` row"), "at least one, even if assumed (rows = 0)");
        };
        if c.matrix_product.is_empty() {
            missing(self, "matrix_product");
        }
        if c.attention.is_empty() {
            missing(self, "attention");
        }
        if let Some(kind) = Streaming::ALL.into_iter().find(|kind| c.streaming(*kind).is_none()) {
            self.fault(
                "streaming".to_owned(),
                format!("no row prices the `{}` kernel", kind.name()),
                "add one for it, or one for `all`",
            );
        }
    }

    fn rows(&mut self, c: &Calibration) {
        for (i, row) in c.matrix_product.iter().enumerate() {
            let key = |name: &str| format!("matrix_product[{i}].{name}");
            self.at_least_zero(&key("overhead_us"), row.overhead_us);
            self.share(&key("utilisation"), row.utilisation);
            self.share(&key("memory_efficiency"), row.memory_efficiency);
            self.at_least_zero(&key("wave_exponent"), row.wave_exponent);
            if let Some(utilisation) = row.grouped_utilisation {
                self.share(&key("grouped_utilisation"), utilisation);
            }
            self.alignment(&key("alignment"), &row.alignment);
            if row.tile_m == 0 || row.tile_n == 0 {
                self.fault(key("tile_m"), "a tile has no size", "1 or more, and so for tile_n");
            }
        }
        for (i, row) in c.attention.iter().enumerate() {
            let key = |name: &str| format!("attention[{i}].{name}");
            self.share(&key("forward_utilisation"), row.forward_utilisation);
            self.share(&key("backward_utilisation"), row.backward_utilisation);
            self.at_least_zero(&key("overhead_us"), row.overhead_us);
            self.at_least_zero(&key("score_bytes"), row.score_bytes);
            self.at_least_zero(&key("score_bytes_backward"), row.score_bytes_backward);
            for (name, bytes) in [
                ("elementary_score_bytes", row.elementary_score_bytes),
                ("elementary_score_bytes_backward", row.elementary_score_bytes_backward),
            ] {
                self.at_least_zero(&key(name), bytes.unwrap_or(0.0));
            }
            self.alignment(&key("alignment"), &row.alignment);
        }
        for (i, row) in c.streaming.iter().enumerate() {
            let key = |name: &str| format!("streaming[{i}].{name}");
            self.kernel(&key("kernel"), &row.kernel, true);
            self.at_least_zero(&key("overhead_us"), row.overhead_us);
            self.share(&key("bandwidth_fraction"), row.bandwidth_fraction);
        }
    }

    fn alignment(&mut self, subject: &str, rows: &[crate::Alignment]) {
        for (i, row) in rows.iter().enumerate() {
            if row.multiple < 2 {
                let message = format!("every size is a multiple of {}", row.multiple);
                self.fault(format!("{subject}[{i}].multiple"), message, "2 or more");
            }
            if !(row.time_factor.is_finite() && row.time_factor >= 1.0) {
                let message = format!("{} is not a penalty", row.time_factor);
                self.fault(format!("{subject}[{i}].time_factor"), message, "a factor of time, 1 or more");
            }
        }
    }
    fn collective_kind(&mut self, subject: String, name: &str) {
        if CollectiveKind::from_name(name).is_none() {
            let names = ir::program::CollectiveKind::ALL.map(ir::program::CollectiveKind::name);
            self.fault(subject, format!("no collective is called `{name}`"), &names.join(", "));
        }
    }

    fn communication(&mut self, c: &Calibration) {
        for (i, row) in c.link.iter().enumerate() {
            self.share(&format!("link[{i}].efficiency"), row.efficiency);
            if row.devices_share == 0 {
                self.fault(
                    format!("link[{i}].devices_share"),
                    "a link of no device",
                    "1 where each device has its own",
                );
            }
        }
        for (i, row) in c.protocol.iter().enumerate() {
            let key = |name: &str| format!("protocol[{i}].{name}");
            self.at_least_zero(&key("base_us"), row.base_us);
            self.at_least_zero(&key("domain_step_us"), row.domain_step_us);
            self.at_least_zero(&key("host_step_us"), row.host_step_us);
            self.at_least_zero(&key("network_step_us"), row.network_step_us);
            self.at_least_zero(&key("peer_us"), row.peer_us);
            self.share(&key("bandwidth_fraction"), row.bandwidth_fraction);
            if let Some(cap) = row.bandwidth_cap_gb_per_s {
                self.positive(&key("bandwidth_cap_gb_per_s"), cap);
            }
        }
        for (i, row) in c.collective_fit.iter().enumerate() {
            let key = |name: &str| format!("collective_fit[{i}].{name}");
            if let Some(kind) = &row.kind {
                self.collective_kind(key("kind"), kind);
            }
            self.at_least_zero(&key("overhead_us"), row.overhead_us);
            self.at_least_zero(&key("overhead_us_per_rank"), row.overhead_us_per_rank);
            self.positive(&key("bus_gb_per_s"), row.bus_gb_per_s);
            self.at_least_zero(&key("root_us_per_sqrt_mib"), row.root_us_per_sqrt_mib);
        }
        for (i, row) in c.message_fit.iter().enumerate() {
            let key = |name: &str| format!("message_fit[{i}].{name}");
            self.at_least_zero(&key("overhead_us"), row.overhead_us);
            self.share(&key("bandwidth_fraction"), row.bandwidth_fraction);
            self.at_least_zero(&key("root_us_per_sqrt_mib"), row.root_us_per_sqrt_mib);
        }
    }

    fn measured(&mut self, c: &Calibration) {
        let Some(measured) = &c.measured else { return };
        self.points("measured.matrix_products", &measured.matrix_products);
        self.points("measured.attention_forward", &measured.attention_forward);
        self.points("measured.attention_backward", &measured.attention_backward);
        self.points("measured.copies", &measured.copies);
        for (i, row) in measured.streaming.iter().enumerate() {
            self.kernel(&format!("measured.streaming[{i}].kernel"), &row.kernel, false);
            self.points(&format!("measured.streaming[{i}].points"), &row.points);
        }
        for (i, row) in measured.collectives.iter().enumerate() {
            self.collective_kind(format!("measured.collectives[{i}].kind"), &row.kind);
            if row.nodes == 0 || !row.ranks.is_multiple_of(row.nodes) {
                let message = format!("{} members do not lie on {} nodes in equal parts", row.ranks, row.nodes);
                self.fault(format!("measured.collectives[{i}].nodes"), message, "a divisor of the members");
            }
            if row.ranks < 2 {
                self.fault(format!("measured.collectives[{i}].ranks"), "a collective of fewer than two", "2 or more");
            }
            self.points(&format!("measured.collectives[{i}].points"), &row.points);
        }
    }
    fn points<const N: usize>(&mut self, subject: &str, points: &[[f64; N]]) {
        for (i, point) in points.iter().enumerate() {
            if point.iter().any(|value| !(value.is_finite() && *value > 0.0)) {
                self.fault(
                    format!("{subject}[{i}]"),
                    format!("{point:?} has a number that is not positive"),
                    "sizes, then microseconds",
                );
            }
        }
    }
}

/// Where the key of a subject such as `streaming[2].kernel` stands: the whole text if it is not found.
pub(crate) fn locate(text: &str, subject: &str) -> std::ops::Range<usize> {
    let whole = 0..text.len();
    let Ok(root) = toml::de::DeTable::parse(text) else { return whole };
    let mut span = root.span();
    let mut table = Some(root.into_inner());
    for part in subject.split('.') {
        let (name, index) = match part.split_once('[') {
            Some((name, rest)) => (name, rest.trim_end_matches(']').parse::<usize>().ok()),
            None => (part, None),
        };
        let Some(mut value) = table.take().and_then(|mut table| table.remove(name)) else { break };
        if let (Some(index), toml::de::DeValue::Array(items)) = (index, value.get_ref()) {
            let Some(item) = items.get(index).cloned() else { break };
            value = item;
        }
        span = value.span();
        if let toml::de::DeValue::Table(inner) = value.into_inner() {
            table = Some(inner);
        }
    }
    span
}
