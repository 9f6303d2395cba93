//! One record to one run.

use csv::StringRecord;

use super::cells::Cells;
use super::columns::Header;
use super::refusal::{Reason, Refusal};
use super::run::{
    Activation, Batch, ExpertShape, Hardware, Layout, MeasuredRun, ModelShape, NumberFormat, RunSource, Software, Task,
};
use super::{consistency, figures, reference, words};

/// Reads a record under its heading.
pub(super) fn read(header: &Header, record: &StringRecord) -> Result<MeasuredRun, Refusal> {
    let line = record.position().map_or(0, csv::Position::line);
    let cells = Cells::new(header, record);
    let mut run = None;
    if record.len() == header.width {
        run = assemble(&cells, line);
    } else {
        let message = format!("{} cells under a heading of {}", record.len(), header.width);
        cells.fault(Reason::Malformed, "row_id", message);
    }
    if let Some(run) = &run {
        consistency::check(&cells, run);
    }
    let row_id = cells.text("row_id").to_owned();
    let (faults, resolved) = cells.finish();
    match run {
        Some(run) if faults.is_empty() => Ok(MeasuredRun { resolved, ..run }),
        None if faults.is_empty() => unreachable!("row {row_id} on line {line} is refused without a reason"),
        _ => Err(Refusal { row_id, line, faults }),
    }
}

/// Every part is read before any missing one ends it, so that all faults are found.
fn assemble(cells: &Cells<'_>, line: u64) -> Option<MeasuredRun> {
    if cells.text("row_id").is_empty() {
        cells.fault(Reason::Hole, "row_id", "is not given");
    }
    let quality: Vec<String> =
        cells.text("quality_flags").split(';').map(str::trim).filter(|f| !f.is_empty()).map(str::to_owned).collect();
    if let Some(flag) = quality.iter().find(|flag| flag.starts_with("duplicate_of")) {
        cells.fault(Reason::Duplicate, "quality_flags", format!("`{flag}`"));
    }
    let hardware = hardware(cells);
    let model = model(cells);
    let (task, format) = (task(cells), format(cells));
    let sequence_length = cells.required("seq_len");
    let layout = hardware.as_ref().and_then(|hardware| layout(cells, hardware, model.as_ref()));
    let batch = batch(cells, layout.as_ref().map(|layout| layout.data));
    let software = software(cells);
    let source = source(cells);
    let (hardware, batch, sequence_length) = (hardware?, batch?, sequence_length?);
    let measured = figures::measured(cells, &source, model.as_ref(), hardware.devices, batch.global, sequence_length);
    Some(MeasuredRun {
        row_id: cells.text("row_id").to_owned(),
        line,
        source,
        hardware,
        model: model?,
        task: task?,
        format: format?,
        sequence_length,
        batch,
        layout: layout?,
        software: software?,
        measured: measured?,
        resolved: Vec::new(),
        quality,
    })
}

fn source(cells: &Cells<'_>) -> RunSource {
    let text = |column| cells.text(column).to_owned();
    RunSource {
        id: text("source_id"),
        title: text("source_title"),
        reference: reference::public(cells.text("source_ref"), cells.text("place")),
        commit: text("source_commit"),
    }
}

fn hardware(cells: &Cells<'_>) -> Option<Hardware> {
    let device = cells.text("gpu");
    if device.is_empty() {
        cells.fault(Reason::Hole, "gpu", "is not given");
    } else if device.contains(['+', '|', ';']) || device.contains(" and ") {
        cells.fault(Reason::MixedParts, "gpu", format!("`{device}` names several kinds of device"));
    }
    let layout = cells.text("hetero_layout");
    if !layout.is_empty() && layout != "none" {
        cells.fault(Reason::MixedParts, "hetero_layout", format!("`{layout}`: unlike devices or layers are not read"));
    }
    let devices = cells.required("gpus_total");
    let (per_node, nodes) = (cells.small("gpus_per_node"), cells.small("nodes"));
    let (devices_per_node, nodes) = nodes_of(cells, devices?, per_node, nodes)?;
    Some(Hardware {
        device: device.to_owned(),
        device_memory_gb: cells.number("gpu_mem_gb").map(|printed| printed.value),
        peak_tflops: cells.number("peak_tflops_dense").map(|printed| printed.value),
        devices_per_node,
        nodes,
        devices: devices?,
        intra_link: cells.words("intra_link"),
        intra_gbyte_per_s: cells.number("intra_bw_gbyte_s_per_gpu").map(|printed| printed.value),
        inter_link: cells.words("inter_link"),
        inter_gbit_per_s: cells.number("inter_bw_gbit_s_per_gpu").map(|printed| printed.value),
    })
}

/// Devices per node and nodes. Of a single node a part may be used.
fn nodes_of(cells: &Cells<'_>, devices: u32, per_node: Option<u32>, nodes: Option<u32>) -> Option<(u32, u32)> {
    let whole = |per_node: u32, nodes: u32| u64::from(per_node) * u64::from(nodes) == u64::from(devices);
    match (per_node, nodes) {
        (Some(per_node), Some(nodes)) if whole(per_node, nodes) || (nodes == 1 && devices < per_node) => {
            Some((per_node, nodes))
        }
        (Some(per_node), Some(nodes)) => {
            let product = u64::from(per_node) * u64::from(nodes);
            let message =
                format!("gpus_total = {devices}, but nodes * gpus_per_node = {nodes} * {per_node} = {product}");
            cells.fault(Reason::Contradiction, "gpus_total", message);
            None
        }
        (Some(per_node), None) if devices < per_node || devices.is_multiple_of(per_node) => {
            let nodes = devices.div_ceil(per_node);
            cells.note(format!("nodes = {nodes}, from gpus_total and gpus_per_node"));
            Some((per_node, nodes))
        }
        (None, Some(nodes)) if devices.is_multiple_of(nodes) => {
            cells.note(format!("gpus_per_node = {}, from gpus_total and nodes", devices / nodes));
            Some((devices / nodes, nodes))
        }
        (None, None) if devices == 1 => Some((1, 1)),
        (None, None) => {
            cells.fault(Reason::Hole, "gpus_per_node", "is not given, nor are nodes");
            None
        }
        (Some(count), None) | (None, Some(count)) => {
            cells.fault(Reason::Contradiction, "gpus_total", format!("{devices} devices are no multiple of {count}"));
            None
        }
    }
}

fn model(cells: &Cells<'_>) -> Option<ModelShape> {
    let name = cells.text("model");
    if let Some(what) = words::foreign_model(name) {
        cells.fault(Reason::OtherModel, "model", format!("`{name}`: {what}"));
    }
    let form = words::attention_form(cells.text("attn_type"));
    if form.is_none() {
        let message = format!("attention of the form `{}` is not modelled", cells.text("attn_type"));
        cells.fault(Reason::OtherModel, "attn_type", message);
    }
    let (layers, hidden, heads) = (cells.required("layers"), cells.required("hidden"), cells.required("heads"));
    let key_value_heads = cells
        .small("kv_heads")
        .or_else(|| heads.inspect(|heads| cells.note(format!("kv_heads = {heads}: not given, so as many as heads"))));
    let head_dim = head_dim(cells, hidden, heads);
    let experts = experts(cells, layers);
    let feed_forward = cells.small("ffn");
    let every_layer_routed = matches!((experts, layers), (Some(Some(e)), Some(layers)) if e.layers >= layers);
    if feed_forward.is_none() && !every_layer_routed && !cells.is_given("ffn") {
        cells.fault(Reason::Hole, "ffn", "is not given");
    }
    let mut shape = ModelShape {
        name: name.to_owned(),
        parameters_billion: cells.number("params_b").map(|printed| printed.value),
        layers: layers?,
        hidden: hidden?,
        feed_forward,
        heads: heads?,
        key_value_heads: key_value_heads?,
        head_dim: head_dim?,
        vocabulary: cells.small("vocab"),
        activation: Activation::Gelu,
        attention: form?,
        experts: experts?,
    };
    shape.activation = activation(cells, &shape)?;
    Some(shape)
}

fn head_dim(cells: &Cells<'_>, hidden: Option<u32>, heads: Option<u32>) -> Option<u32> {
    if cells.is_given("head_dim") {
        return cells.small("head_dim");
    }
    let (hidden, heads) = (hidden?, heads?);
    if hidden.is_multiple_of(heads) {
        return Some(hidden / heads);
    }
    cells.fault(Reason::Hole, "head_dim", format!("is not given, and {heads} heads do not divide hidden = {hidden}"));
    None
}

/// The activation; if it is not given, the one whose count of parameters is the model's.
fn activation(cells: &Cells<'_>, shape: &ModelShape) -> Option<Activation> {
    let text = cells.text("mlp_type");
    if !text.is_empty() {
        let activation = words::activation(text);
        if activation.is_none() {
            cells.fault(Reason::UnknownWord, "mlp_type", format!("`{text}` is no known feed-forward part"));
        }
        return activation;
    }
    let count = |activation| consistency::parameters(&ModelShape { activation, ..shape.clone() }).1;
    let found = match shape.parameters_billion {
        Some(billion) => {
            let distance = |activation| libm::log(count(activation) / (billion * 1e9)).abs();
            let gated = distance(Activation::SwiGlu) < distance(Activation::Gelu);
            Some(if gated { Activation::SwiGlu } else { Activation::Gelu })
        }
        None => (shape.feed_forward == Some(4 * shape.hidden)).then_some(Activation::Gelu),
    };
    match found {
        Some(activation) => {
            cells.note(format!("mlp_type is not given; {} matrices fit the other sizes", activation.matrices()));
        }
        None => cells.fault(Reason::Hole, "mlp_type", "is not given, nor does params_b tell it"),
    }
    found
}

/// `Some(None)` without experts, `None` if they are not read.
#[expect(clippy::option_option, reason = "none of them and not read are two things")]
fn experts(cells: &Cells<'_>, layers: Option<u32>) -> Option<Option<ExpertShape>> {
    let Some(count) = cells.small("moe_experts") else {
        let others = ["moe_top_k", "moe_ffn", "moe_layers"];
        if let Some(other) = others.into_iter().find(|column| cells.is_given(column)) {
            cells.fault(Reason::Hole, "moe_experts", format!("is not given, but {other} is"));
            return None;
        }
        return (!cells.is_given("moe_experts")).then_some(None);
    };
    let (active, feed_forward) = (cells.required("moe_top_k"), cells.required("moe_ffn"));
    let shared = cells.number_or_zero("moe_shared_experts").unwrap_or(0.0);
    let stated = cells.small("moe_layers");
    if stated.is_none() {
        cells.note("moe_layers is not given: every layer has experts");
    }
    let routed = stated.or(layers)?;
    if layers.is_some_and(|layers| routed > layers) || active.is_some_and(|active| active > count) {
        let message = format!("{routed} of {layers:?} layers, {active:?} of {count} experts");
        cells.fault(Reason::Contradiction, "moe_experts", message);
    }
    #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "a float's cast saturates")]
    let shared = shared as u32;
    Some(Some(ExpertShape { count, active: active?, feed_forward: feed_forward?, shared, layers: routed }))
}

fn task(cells: &Cells<'_>) -> Option<Task> {
    match words::task(cells.text("task")) {
        Ok(task) => Some(task),
        Err(message) => {
            cells.fault(Reason::OtherTask, "task", message);
            None
        }
    }
}

fn format(cells: &Cells<'_>) -> Option<NumberFormat> {
    let text = cells.text("precision");
    match words::format(text) {
        Ok((format, remark)) => {
            if let Some(remark) = remark {
                cells.note(remark);
            }
            Some(format)
        }
        Err(message) => {
            let reason = if text.is_empty() { Reason::Hole } else { Reason::NumberFormat };
            cells.fault(reason, "precision", message);
            None
        }
    }
}

/// A value of words; words that are not understood are a fault.
fn understood<T>(cells: &Cells<'_>, column: &'static str, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
    // Words that say that nobody knows.
    const NOTHING: [&str; 9] = ["na", "n/a", "-", "--", "?", "null", "nan", "unknown", "not given"];
    let text = cells.text(column);
    if text.is_empty() || NOTHING.contains(&text.to_lowercase().as_str()) {
        return None;
    }
    let value = read(text);
    if value.is_none() {
        cells.fault(Reason::UnknownWord, column, format!("`{text}` is not understood"));
    }
    value
}

fn layout(cells: &Cells<'_>, hardware: &Hardware, model: Option<&ModelShape>) -> Option<Layout> {
    let degrees = degrees(cells, hardware.devices);
    let expert = cells.small("ep").or_else(|| {
        let dense = model.is_none_or(|model| model.experts.is_none());
        if !dense && !cells.is_given("ep") {
            cells.fault(Reason::Hole, "ep", "is not given for a model with experts");
        }
        dense.then_some(1)
    });
    let zero = understood(cells, "zero_stage", words::zero);
    let schedule = match cells.text("pp_schedule").to_lowercase().as_str() {
        "none" | "no" | "no pipeline" => None,
        // Without positions there is no order of passes among them.
        _ if matches!(degrees, Some([_, 1, _, _])) => None,
        _ => understood(cells, "pp_schedule", words::schedule),
    };
    let billion = model.and_then(|model| model.parameters_billion);
    let recompute = understood(cells, "recompute", |text| words::recomputation(text, billion));
    if cells.text("recompute").contains("not printed per row") {
        cells.note("recompute is not printed per row; the published configurations beside it are read");
    }
    let offload = understood(cells, "offload", words::offload);
    let [tensor, pipeline, context, data] = degrees?;
    Some(Layout {
        tensor,
        pipeline,
        chunks: if pipeline == 1 { Some(1) } else { cells.small("vpp") },
        context,
        expert: expert?,
        expert_tensor: cells.small("etp"),
        data,
        shard_group: cells.small("fsdp_shard").or(zero.and_then(|(_, group)| group)).filter(|group| *group < data),
        zero: zero.and_then(|(stage, _)| stage),
        sequence_parallel: cells.flag("sequence_parallel"),
        recomputation: recompute.flatten(),
        offload,
        schedule: schedule.map(|(schedule, _)| schedule),
        vocabulary: schedule.and_then(|(_, placement)| placement),
        split: words::split(cells.text("pp_layer_split")),
    })
}

/// Tensor, pipeline, context and data degree. One that is missing follows from the others; a table without a column for
/// it did not divide so.
fn degrees(cells: &Cells<'_>, devices: u32) -> Option<[u32; 4]> {
    const NAMES: [&str; 4] = ["tp", "pp", "cp", "dp"];
    let mut degrees = NAMES.map(|name| {
        let absent = name != "dp" && !cells.has(name);
        if absent { Some(1) } else { cells.small(name) }
    });
    if NAMES.iter().zip(&degrees).any(|(name, degree)| degree.is_none() && cells.is_given(name)) {
        return None;
    }
    let known: u64 = degrees.iter().flatten().map(|degree| u64::from(*degree)).product();
    let missing: Vec<usize> = (0..4).filter(|index| degrees[*index].is_none()).collect();
    match missing[..] {
        [] if known == u64::from(devices) => {}
        [only] if u64::from(devices).is_multiple_of(known) => {
            let degree = u32::try_from(u64::from(devices) / known).ok();
            degrees[only] = degree;
            cells.note(format!("{} = {}, from gpus_total and the other degrees", NAMES[only], degree?));
        }
        [] | [_] => {
            let message = format!("tp * pp * cp * dp = {known}, but gpus_total = {devices}");
            cells.fault(Reason::Contradiction, "gpus_total", message);
            return None;
        }
        [first, ..] => {
            let names: Vec<&str> = missing.iter().map(|index| NAMES[*index]).collect();
            cells.fault(Reason::Hole, NAMES[first], format!("{} are not given", names.join(" and ")));
            return None;
        }
    }
    let [tensor, pipeline, context, data] = degrees;
    Some([tensor?, pipeline?, context?, data?])
}

/// Of global batch, microbatch and their count, one that is missing follows from the others; of microbatch and count
/// both may be open.
fn batch(cells: &Cells<'_>, data: Option<u32>) -> Option<Batch> {
    let (global, micro, count) = (cells.count("global_batch"), cells.small("micro_batch"), cells.small("grad_accum"));
    let data = u64::from(data?);
    let contradiction = |message: String| {
        cells.fault(Reason::Contradiction, "global_batch", message);
        None
    };
    let divided = |global: u64, by: u32, what: &'static str| {
        let unit = data * u64::from(by);
        let quotient = global.is_multiple_of(unit).then_some(global / unit).and_then(|q| u32::try_from(q).ok());
        match quotient {
            Some(quotient) => cells.note(format!("{what} = {quotient}, from the other parts of the batch")),
            None => drop(contradiction(format!("{global} is no multiple of dp * {by} = {unit}"))),
        }
        quotient
    };
    let (microbatch, microbatches) = match (global, micro, count) {
        (Some(global), Some(micro), Some(count)) => {
            let product = data * u64::from(micro) * u64::from(count);
            if product != global {
                let parts = format!("micro_batch * grad_accum * dp = {micro} * {count} * {data} = {product}");
                return contradiction(format!("global_batch = {global}, but {parts}"));
            }
            (Some(micro), Some(count))
        }
        (Some(global), Some(micro), None) => (Some(micro), Some(divided(global, micro, "grad_accum")?)),
        (Some(global), None, Some(count)) => (Some(divided(global, count, "micro_batch")?), Some(count)),
        (Some(global), None, None) if global.is_multiple_of(data) => (None, None),
        (Some(global), None, None) => return contradiction(format!("{global} is no multiple of dp = {data}")),
        (None, Some(micro), Some(count)) => {
            let global = data * u64::from(micro) * u64::from(count);
            cells.note(format!("global_batch = {global}, from micro_batch, grad_accum and dp"));
            return Some(Batch { global, microbatch: Some(micro), microbatches: Some(count) });
        }
        (None, ..) => {
            cells.fault(Reason::Hole, "global_batch", "is not given, nor do micro_batch and grad_accum give it");
            return None;
        }
    };
    Some(Batch { global: global?, microbatch, microbatches })
}

fn software(cells: &Cells<'_>) -> Option<Software> {
    let attention = understood(cells, "attn_kernel", words::attention_kernel);
    Some(Software {
        framework: cells.text("framework").to_owned(),
        version: cells.words("framework_version"),
        attention: attention.map(|(kernel, _)| kernel),
        fused_norms: attention.and_then(|(_, norms)| norms),
        flags: words::flags(cells.text("other_flags")),
    })
}
