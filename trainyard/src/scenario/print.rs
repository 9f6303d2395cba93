//! The resolved form: a scenario file with nothing left out.

use std::fmt::Display;

use ir::{Link, Model, Plan, Positions, Recompute, Schedule, Workload, ZeroStage};
use toml::{Table, Value};

use super::plan::{COLLECTIVES, RECOMPUTES, schedule_word};
use super::{CostChoice, DataChoice, PlanChoice, PlanKeys, SCHEMA_VERSION, Scenario, data, model, training};

fn text(value: impl Display) -> Value {
    Value::String(value.to_string())
}
fn number(value: impl Into<i64>) -> Value {
    Value::Integer(value.into())
}
fn table<const N: usize>(entries: [(&str, Value); N]) -> Table {
    entries.into_iter().map(|(key, value)| (key.to_owned(), value)).collect()
}
/// The word of a value in a list of choices.
fn word<T: PartialEq>(choices: &[(&'static str, T)], value: &T) -> Value {
    text(choices.iter().find(|(_, v)| v == value).map_or("", |(word, _)| word))
}

impl Scenario {
    /// Writes the scenario out; [`super::parse`] reads it back to the same value.
    ///
    /// # Panics
    /// Never: the tables are plain.
    #[must_use]
    pub fn to_toml(&self) -> String {
        let mut root = table([
            ("schema_version", Value::Integer(i64::try_from(SCHEMA_VERSION).expect("a small number"))),
            ("name", text(&self.name)),
            ("description", text(&self.description)),
            ("seed", Value::Integer(i64::try_from(self.workload.seed).unwrap_or(i64::MAX))),
            ("cluster", self.cluster_table().into()),
            ("model", model_table(&self.model).into()),
            ("training", training_table(&self.workload).into()),
            ("plan", plan_table(&self.plan).into()),
            ("cost", cost_table(&self.cost).into()),
            ("data", data_table(&self.data).into()),
        ]);
        let formats = self.report.formats.iter().map(|format| word(&data::FORMATS, format)).collect();
        root.insert("report".to_owned(), table([("formats", Value::Array(formats))]).into());
        self.add_kinds(&mut root);
        toml::to_string(&root).expect("plain tables")
    }
    fn cluster_table(&self) -> Table {
        let group = |group: &ir::NodeGroup| {
            let kind = &self.cluster.node_kind(group.kind).name;
            table([("kind", text(kind)), ("count", number(group.count))]).into()
        };
        let fabric = &self.cluster.fabric;
        let fabric = table([
            ("leaf_nodes", number(fabric.leaf_nodes)),
            ("oversubscription", Value::Float(fabric.oversubscription)),
        ]);
        let nodes = self.cluster.groups.iter().map(group).collect();
        table([("nodes", Value::Array(nodes)), ("fabric", fabric.into())])
    }
    /// The tables of devices, links and nodes that the cluster is made of. Links of one name that differ get numbers.
    fn add_kinds(&self, root: &mut Table) {
        let mut links: Vec<Link> = Vec::new();
        let mut names: Vec<String> = Vec::new();
        let mut name_of = |link: &Link| {
            let index = links.iter().position(|l| l == link).unwrap_or_else(|| {
                let same = links.iter().filter(|l| l.name == link.name).count();
                names.push(if same == 0 { link.name.clone() } else { format!("{}-{}", link.name, same + 1) });
                links.push(link.clone());
                links.len() - 1
            });
            text(&names[index])
        };
        let mut nodes = Table::new();
        for kind in &self.cluster.node_kinds {
            let devices = kind.devices.iter().map(|d| text(&self.cluster.device_kind(*d).name)).collect();
            let entry = table([
                ("devices", Value::Array(devices)),
                ("domain_size", number(kind.domain_size)),
                ("domain_link", name_of(&kind.domain_link)),
                ("host_link", name_of(&kind.host_link)),
                ("nics", number(kind.nics)),
                ("nic", name_of(&kind.nic)),
            ]);
            nodes.insert(kind.name.clone(), entry.into());
        }
        let devices = self.cluster.device_kinds.iter().map(|kind| (kind.name.clone(), device_table(kind).into()));
        root.insert("devices".to_owned(), Value::Table(devices.collect()));
        let links = links.iter().zip(&names).map(|(link, name)| {
            let entry = table([("bandwidth", text(link.bandwidth)), ("latency", text(link.latency))]);
            (name.clone(), entry.into())
        });
        root.insert("links".to_owned(), Value::Table(links.collect()));
        root.insert("nodes".to_owned(), nodes.into());
    }
}

fn device_table(kind: &ir::DeviceKind) -> Table {
    let peak: Table = kind.peak.iter().map(|(precision, rate)| (precision.name().to_owned(), text(rate))).collect();
    let mut entry = table([
        ("calibration", text(&kind.calibration)),
        ("peak", peak.into()),
        ("memory", text(kind.memory)),
        ("memory_bandwidth", text(kind.memory_bandwidth)),
        ("multiprocessors", number(kind.multiprocessors)),
        ("slowdown", Value::Float(kind.slowdown)),
    ]);
    if let Some(price) = kind.usd_per_hour {
        entry.insert("usd_per_hour".to_owned(), Value::Float(price));
    }
    entry.insert("source".to_owned(), text(&kind.source));
    entry
}

fn model_table(model: &Model) -> Table {
    let (norm, mlp) = model::words(model);
    let positions = match model.positions {
        Positions::Rope { theta } => table([("rope", table([("theta", Value::Float(theta))]).into())]),
        Positions::Learned { maximum } => table([("learned", table([("maximum", number(maximum))]).into())]),
    };
    table([
        ("name", text(&model.name)),
        ("hidden", number(model.hidden)),
        ("layers", number(model.layers)),
        ("heads", number(model.heads)),
        ("kv_heads", number(model.kv_heads)),
        ("head_dim", number(model.head_dim)),
        ("ffn", number(model.ffn)),
        ("vocabulary", number(model.vocabulary)),
        ("norm", text(norm)),
        ("norm_epsilon", Value::Float(model.norm_epsilon)),
        ("mlp", text(mlp)),
        ("qkv_bias", model.qkv_bias.into()),
        ("projection_bias", model.projection_bias.into()),
        ("mlp_bias", model.mlp_bias.into()),
        ("tied_head", model.tied_head.into()),
        ("positions", positions.into()),
    ])
}

fn training_table(workload: &Workload) -> Table {
    let optimizer = &workload.optimizer;
    let optimizer = table([
        ("learning_rate", Value::Float(optimizer.learning_rate)),
        ("beta1", Value::Float(optimizer.beta1)),
        ("beta2", Value::Float(optimizer.beta2)),
        ("epsilon", Value::Float(optimizer.epsilon)),
        ("weight_decay", Value::Float(optimizer.weight_decay)),
        ("warmup_iterations", number(optimizer.warmup_iterations)),
        ("clip_norm", optimizer.clip_norm.map_or_else(|| text("none"), Value::Float)),
    ]);
    table([
        ("sequence_length", number(workload.sequence_length)),
        ("global_batch", number(workload.global_batch)),
        ("iterations", number(workload.iterations)),
        ("precision", text(workload.precision.name())),
        ("attention", word(&training::KERNELS, &workload.attention)),
        ("vocabulary_divisor", number(workload.vocabulary_divisor)),
        ("optimizer", optimizer.into()),
    ])
}

fn plan_table(choice: &PlanChoice) -> Table {
    match choice {
        PlanChoice::Policy(policy, keys) => {
            let mut entries = table([("policy", text(policy.name()))]);
            entries.extend(keys_table(keys));
            entries
        }
        PlanChoice::Written(plan) => {
            let mut entries = table([("policy", text("manual"))]);
            entries.extend(keys_table(&PlanKeys::of(plan)));
            entries
        }
    }
}

impl PlanKeys {
    /// Every key of a plan.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        Self {
            data: Some(plan.data),
            tensor: Some(plan.tensor),
            sequence_parallel: Some(plan.sequence_parallel),
            pipeline: Some(plan.pipeline()),
            chunks_per_stage: None,
            layers_per_stage: Some(plan.stages.iter().map(|stage| stage.layers.clone()).collect()),
            recompute: Some(plan.stages.iter().map(|stage| stage.recompute).collect()),
            microbatch_size: Some(plan.microbatch_size),
            microbatches: Some(plan.microbatches),
            schedule: Some(plan.schedule.clone()),
            zero: Some(plan.zero),
            overlap_gradients: Some(plan.overlap_gradients),
            collective: Some(plan.collective),
            placement: (!plan.placement.is_empty()).then(|| plan.placement.clone()),
        }
    }
}

fn keys_table(keys: &PlanKeys) -> Table {
    let mut entries = Table::new();
    let mut put = |key: &str, value: Option<Value>| {
        if let Some(value) = value {
            entries.insert(key.to_owned(), value);
        }
    };
    let list = |items: &[u32]| Value::Array(items.iter().map(|n| number(*n)).collect());
    let chunks = keys.chunks_per_stage.or_else(|| {
        let first = keys.layers_per_stage.as_ref()?.first()?;
        u32::try_from(first.len()).ok()
    });
    put("data", keys.data.map(number));
    put("tensor", keys.tensor.map(number));
    put("sequence_parallel", keys.sequence_parallel.map(Value::Boolean));
    put("pipeline", keys.pipeline.map(number));
    put("chunks_per_stage", keys.chunks_per_stage.map(number));
    put(
        "layers_per_stage",
        keys.layers_per_stage.as_ref().map(|stages| {
            let stage = |layers: &Vec<u32>| if let [one] = layers[..] { number(one) } else { list(layers) };
            Value::Array(stages.iter().map(stage).collect())
        }),
    );
    put("recompute", keys.recompute.as_deref().map(recompute_value));
    put("microbatch_size", keys.microbatch_size.map(number));
    put("microbatches", keys.microbatches.map(number));
    put("schedule", keys.schedule.as_ref().map(|schedule| schedule_value(schedule, chunks.unwrap_or(1))));
    put("zero", keys.zero.map(|zero| number(i64::from(zero == ZeroStage::Zero1))));
    put("overlap_gradients", keys.overlap_gradients.map(Value::Boolean));
    put("collective", keys.collective.map(|collective| word(&COLLECTIVES, &collective)));
    put(
        "placement",
        keys.placement
            .as_ref()
            .map(|devices| Value::Array(devices.iter().map(|device| number(device.raw())).collect())),
    );
    entries
}

fn recompute_value(stages: &[Recompute]) -> Value {
    match stages {
        [first, rest @ ..] if rest.iter().all(|r| r == first) => word(&RECOMPUTES, first),
        _ => Value::Array(stages.iter().map(|r| word(&RECOMPUTES, r)).collect()),
    }
}

fn schedule_value(schedule: &Schedule, chunks: u32) -> Value {
    match schedule_word(schedule, chunks) {
        Ok(word) => text(word),
        Err(cells) => table([("cells", text(cells))]).into(),
    }
}

fn cost_table(cost: &CostChoice) -> Table {
    match cost {
        CostChoice::Calibration { file: None } => table([("source", text("calibration"))]),
        CostChoice::Calibration { file: Some((_, content)) } => {
            table([("source", text("calibration")), ("calibration", text(content))])
        }
        CostChoice::PassTable(passes) => {
            let row = |row: &cost::StagePasses| {
                table([
                    ("forward", text(row.forward)),
                    ("backward_input", text(row.backward_input)),
                    ("backward_weight", text(row.backward_weight)),
                ])
                .into()
            };
            table([
                ("source", text("pass-table")),
                ("chunks_per_stage", number(passes.chunks_per_stage)),
                ("transfer", text(passes.transfer)),
                ("optimizer", text(passes.optimizer)),
                ("gradient_norm", text(passes.gradient_norm)),
                ("stages", Value::Array(passes.stages.iter().map(row).collect())),
            ])
        }
    }
}

fn data_table(data: &DataChoice) -> Table {
    match data {
        DataChoice::Generated => table([("source", text("generated"))]),
        DataChoice::File { path } => table([("file", text(path))]),
    }
}
