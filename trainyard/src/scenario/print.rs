//! The resolved form: a scenario file with nothing left out.

use std::fmt::Display;

use ir::{
    Experts, GatedDelta, LatentAttention, LayerRun, Link, Mamba, Model, Plan, Positions, Recipe, Recompute, Schedule,
    Variants, Workload,
};
use toml::{Table, Value};

mod draft;
mod long_run;
mod objective;
mod run;
mod size;

pub(crate) use draft::{Draft, Training, differences};
use run::run_table;
use size::{models_table, size_table};

use super::plan::{ALL, MANUAL, OFFLOADED, Written, written};
use super::training::NO_CLIPPING;
use super::{
    CostChoice, DataChoice, Offload, PlanChoice, PlanKeys, ProfileChoice, SCHEMA_VERSION, Scenario, StackChoice, data,
};

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
            ("training", training_table(&self.workload, &self.stack).into()),
            ("plan", plan_table(&self.plan).into()),
            ("objective", objective::objective_table(&self.objective).into()),
            ("cost", cost_table(&self.cost, &self.stack).into()),
            ("data", data_table(&self.data).into()),
        ]);
        let formats = self.report.formats.iter().map(|format| word(&data::FORMATS, format)).collect();
        root.insert("report".to_owned(), table([("formats", Value::Array(formats))]).into());
        if let Some(constraints) = objective::constraints_table(&self.constraints) {
            root.insert("constraints".to_owned(), constraints.into());
        }
        if let Some(size) = &self.size {
            root.insert("size".to_owned(), size_table(size, self.checkpoint.is_none()).into());
            root.insert("models".to_owned(), models_table(&size.models).into());
        }
        if let Some(run) = run_table(&self.run) {
            root.insert("run".to_owned(), run.into());
        }
        let checkpoint = self.checkpoint.as_ref().map(|choice| ("checkpoint", long_run::checkpoint_table(choice)));
        let failures = self.failures.as_ref().map(|choice| ("failures", long_run::failures_table(choice)));
        for (key, entries) in checkpoint.into_iter().chain(failures) {
            root.insert(key.to_owned(), entries.into());
        }
        self.add_kinds(&mut root);
        toml::to_string(&root).expect("plain tables")
    }
    fn cluster_table(&self) -> Table {
        let group = |group: &ir::NodeGroup| {
            let kind = &self.cluster.node_kind(group.kind).name;
            table([("kind", text(kind)), ("count", number(group.count))]).into()
        };
        let fabric = &self.cluster.fabric;
        let mut written = table([
            ("leaf_nodes", number(fabric.leaf_nodes)),
            ("oversubscription", Value::Float(fabric.oversubscription)),
        ]);
        if let Some(link) = &fabric.up_link {
            written.insert("up_link".to_owned(), text(&link.name));
        }
        if fabric.rails {
            written.insert("rails".to_owned(), true.into());
        }
        let nodes = self.cluster.groups.iter().map(group).collect();
        table([("nodes", Value::Array(nodes)), ("fabric", written.into())])
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
        // First, so that its name stays as the cluster's table says it.
        if let Some(link) = &self.cluster.fabric.up_link {
            name_of(link);
        }
        let mut nodes = Table::new();
        let mut of_devices = Table::new();
        let asked = self.size.iter().flat_map(|size| &size.kinds);
        let kinds =
            std::iter::once(&self.cluster).chain(asked).flat_map(|of| of.node_kinds.iter().map(move |kind| (of, kind)));
        for (of, kind) in kinds {
            // The scenario's own come first and count: emulation may have changed them.
            for device in &of.device_kinds {
                of_devices.entry(device.name.as_str()).or_insert_with(|| device_table(device).into());
            }
            if nodes.contains_key(&kind.name) {
                continue;
            }
            let devices = kind.devices.iter().map(|d| text(&of.device_kind(*d).name)).collect();
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
        root.insert("devices".to_owned(), of_devices.into());
        let links = links.iter().zip(&names).map(|(link, name)| {
            let mut entry = table([("bandwidth", text(link.bandwidth)), ("latency", text(link.latency))]);
            if let Some(efficiency) = link.efficiency {
                entry.insert("efficiency".to_owned(), Value::Float(efficiency));
            }
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
    if let Some(watts) = kind.tdp_watts {
        entry.insert("tdp".to_owned(), text(format_args!("{watts}W")));
    }
    if let Some(price) = kind.usd_per_hour {
        entry.insert("usd_per_hour".to_owned(), Value::Float(price));
    }
    if let Some(source) = &kind.price_source {
        entry.insert("price_source".to_owned(), text(source));
    }
    entry.insert("source".to_owned(), text(&kind.source));
    entry
}

fn model_table(model: &Model) -> Table {
    let positions = match model.positions {
        Positions::Rope { theta } => table([("rope", table([("theta", Value::Float(theta))]).into())]),
        Positions::Learned { maximum } => table([("learned", table([("maximum", number(maximum))]).into())]),
        Positions::None => table([("none", true.into())]),
    };
    let mut entries = table([
        ("name", text(&model.name)),
        ("hidden", number(model.hidden)),
        ("layers", number(model.layers)),
        ("heads", number(model.heads)),
        ("kv_heads", number(model.kv_heads)),
        ("head_dim", number(model.head_dim)),
        ("ffn", number(model.ffn)),
        ("vocabulary", number(model.vocabulary)),
        ("norm", text(model.norm.name())),
        ("norm_epsilon", Value::Float(model.norm_epsilon)),
        ("mlp", text(model.mlp.name())),
        ("qkv_bias", model.qkv_bias.into()),
        ("projection_bias", model.projection_bias.into()),
        ("mlp_bias", model.mlp_bias.into()),
        ("tied_head", model.tied_head.into()),
        ("positions", positions.into()),
    ]);
    entries.extend(variants_table(&model.variants));
    entries
}

/// What layers have beyond plain attention and a dense feed-forward part: what is not there is not written.
fn variants_table(variants: &Variants) -> Table {
    let plain = Variants::default();
    let mut entries = Table::new();
    let mut put = |key: &str, there: bool, value: Value| {
        if there {
            entries.insert(key.to_owned(), value);
        }
    };
    let Variants { query_key_norm, branch_norms, parallel_branches, .. } = *variants;
    put("query_key_norm", query_key_norm != plain.query_key_norm, text(query_key_norm.name()));
    put("gated_attention", variants.gated_attention, true.into());
    put("attention_sinks", variants.attention_sinks, true.into());
    put("branch_norms", branch_norms != plain.branch_norms, text(branch_norms.name()));
    put("parallel_branches", parallel_branches != plain.parallel_branches, text(parallel_branches.name()));
    put("exact_gelu", variants.exact_gelu, true.into());
    put("head_bias", variants.head_bias, true.into());
    put("plain_norms", variants.plain_norms, true.into());
    put("window", variants.window.is_some(), number(variants.window.unwrap_or_default()));
    let mut put_sizes = |key: &str, sizes: Option<Table>| put(key, sizes.is_some(), sizes.unwrap_or_default().into());
    put_sizes("latent", variants.latent.map(latent_table));
    put_sizes("mamba", variants.mamba.map(mamba_table));
    put_sizes("delta", variants.delta.map(delta_table));
    put_sizes("experts", variants.experts.map(experts_table));
    let run = |run: &LayerRun| {
        let mixer = ("mixer", text(run.mixer.name()));
        table([("layers", number(run.layers)), mixer, ("feed_forward", text(run.feed_forward.name()))]).into()
    };
    put("pattern", !variants.pattern.is_empty(), Value::Array(variants.pattern.iter().map(run).collect()));
    entries
}

fn latent_table(latent: LatentAttention) -> Table {
    let mut entries = Table::new();
    if let Some(rank) = latent.query_rank {
        entries.insert("query_rank".to_owned(), number(rank));
    }
    entries.extend(table([
        ("kv_rank", number(latent.kv_rank)),
        ("plain_head_dim", number(latent.plain_head_dim)),
        ("rotary_head_dim", number(latent.rotary_head_dim)),
        ("value_head_dim", number(latent.value_head_dim)),
    ]));
    entries
}

fn mamba_table(mamba: Mamba) -> Table {
    table([
        ("inner", number(mamba.inner)),
        ("state", number(mamba.state)),
        ("convolution", number(mamba.convolution)),
        ("step_rank", number(mamba.step_rank)),
        ("normalised", mamba.normalised.into()),
    ])
}

fn delta_table(delta: GatedDelta) -> Table {
    table([
        ("key_heads", number(delta.key_heads)),
        ("key_head_dim", number(delta.key_head_dim)),
        ("value_heads", number(delta.value_heads)),
        ("value_head_dim", number(delta.value_head_dim)),
        ("convolution", number(delta.convolution)),
    ])
}

fn experts_table(experts: Experts) -> Table {
    let mut entries = table([
        ("count", number(experts.count)),
        ("active", number(experts.active)),
        ("ffn", number(experts.ffn)),
        ("shared_ffn", number(experts.shared_ffn)),
        ("shared_gate", experts.shared_gate.into()),
        ("mlp", text(experts.mlp.name())),
        ("bias", experts.bias.into()),
        ("router_bias", experts.router_bias.into()),
    ]);
    if !experts.router.is_default() {
        entries.insert("scoring".to_owned(), text(experts.router.scoring.name()));
        entries.insert("normalised".to_owned(), experts.router.normalised.into());
    }
    entries
}

fn recipe_table(recipe: &Recipe) -> Table {
    let mut entries = table([
        ("fused_normalisation", recipe.fused_normalisation.into()),
        ("fused_softmax", recipe.fused_softmax.into()),
        ("sharded_loss", recipe.sharded_loss.into()),
        ("fused_loss", recipe.fused_loss.into()),
        ("logits", text(recipe.logits.name())),
        ("fused_activation", recipe.fused_activation.into()),
        ("expandable_segments", recipe.expandable_segments.into()),
        ("gradients", text(recipe.gradients.name())),
        ("reduced_gradients", text(recipe.reduced_gradients.name())),
        ("early_stop_recompute", recipe.early_stop_recompute.into()),
        ("scattered_messages", recipe.scattered_messages.into()),
        ("deduplicated_dispatch", recipe.deduplicated_dispatch.into()),
        ("cuda_graphs", recipe.cuda_graphs.into()),
        ("expert_imbalance", Value::Float(recipe.expert_imbalance)),
    ]);
    if recipe.blocking_messages {
        entries.insert("blocking_messages".to_owned(), true.into());
    }
    if recipe.balance_loss > 0.0 {
        entries.insert("balance_loss".to_owned(), Value::Float(recipe.balance_loss));
    }
    if let Some(length) = recipe.document_length {
        entries.insert("document_length".to_owned(), number(length));
    }
    if let Some(rate) = recipe.input_tokens_per_second {
        entries.insert("input_tokens_per_second".to_owned(), Value::Float(rate));
    }
    entries
}

fn training_table(workload: &Workload, stack: &StackChoice) -> Table {
    let optimizer = &workload.optimizer;
    let optimizer = table([
        ("learning_rate", Value::Float(optimizer.learning_rate)),
        ("beta1", Value::Float(optimizer.beta1)),
        ("beta2", Value::Float(optimizer.beta2)),
        ("epsilon", Value::Float(optimizer.epsilon)),
        ("weight_decay", Value::Float(optimizer.weight_decay)),
        ("warmup_iterations", number(optimizer.warmup_iterations)),
        ("clip_norm", optimizer.clip_norm.map_or_else(|| text(NO_CLIPPING), Value::Float)),
    ]);
    let mut entries = table([
        ("sequence_length", number(workload.sequence_length)),
        ("global_batch", number(workload.global_batch)),
        ("iterations", number(workload.iterations)),
        ("precision", text(workload.precision.name())),
        ("attention", text(workload.attention.name())),
        ("vocabulary_divisor", number(workload.vocabulary_divisor)),
    ]);
    entries.extend(recipe_table(&workload.recipe));
    for (key, name) in [("stack", &stack.name), ("release", &stack.release)] {
        entries.extend(name.iter().map(|name| (key.to_owned(), text(name))));
    }
    entries.insert("optimizer".to_owned(), optimizer.into());
    entries
}

fn plan_table(choice: &PlanChoice) -> Table {
    match choice {
        PlanChoice::Policy(policy, keys) => {
            let mut entries = table([("policy", text(policy.name()))]);
            entries.extend(keys_table(keys));
            entries
        }
        PlanChoice::Written(plan) => {
            let mut entries = table([("policy", text(MANUAL))]);
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
            tensor: Some(plan.tensors().collect()),
            sequence_parallel: Some(plan.sequence_parallel),
            context: Some(plan.mesh.context),
            context_method: Some(plan.mesh.context_method),
            expert: Some(plan.mesh.expert),
            expert_tensor: Some(plan.mesh.expert_tensor),
            pipeline: Some(plan.pipeline()),
            chunks_per_stage: None,
            layers_per_stage: Some(plan.stages.iter().map(|stage| stage.layers.clone()).collect()),
            recompute: Some(plan.stages.iter().map(|stage| stage.recompute).collect()),
            recompute_layers: Some(plan.stages.iter().map(|stage| stage.recompute_layers).collect()),
            microbatch_size: Some(plan.microbatch_size),
            microbatches: Some(match plan.shares.counts() {
                [] => vec![plan.microbatches],
                counts => counts.to_vec(),
            }),
            schedule: Some(plan.schedule.clone()),
            zero: Some(plan.zero),
            shard: Some(plan.sharing.shard),
            overlap_gradients: Some(plan.overlap_gradients),
            bucket: plan.sharing.bucket,
            prefetch: Some(plan.sharing.prefetch),
            overlap_parameters: Some(plan.sharing.overlap_parameters),
            overlap_tensor: Some(plan.sharing.overlap_tensor),
            overlap_experts: Some(plan.sharing.overlap_experts),
            offload: Some(Offload {
                activations: plan.sharing.offload_activations,
                optimizer: plan.sharing.offload_optimizer,
                parameters: plan.sharing.offload_parameters,
            }),
            vocabulary: Some(plan.sharing.vocabulary).filter(|division| !division.is_ends()),
            collective: Some(plan.collective),
            placement: (!plan.placement.is_empty()).then(|| plan.placement.clone()),
            budget: None,
            weights: None,
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
    put("tensor", keys.tensor.as_deref().map(|stages| per_stage(stages, |tensor| number(*tensor))));
    put("sequence_parallel", keys.sequence_parallel.map(Value::Boolean));
    put("context", keys.context.map(number));
    put("context_method", keys.context_method.map(|method| text(method.name())));
    put("expert", keys.expert.map(number));
    put("expert_tensor", keys.expert_tensor.map(number));
    put("pipeline", keys.pipeline.map(number));
    put("chunks_per_stage", keys.chunks_per_stage.map(number));
    put(
        "layers_per_stage",
        keys.layers_per_stage.as_ref().map(|stages| {
            let stage = |layers: &Vec<u32>| if let [one] = layers[..] { number(one) } else { list(layers) };
            Value::Array(stages.iter().map(stage).collect())
        }),
    );
    put("recompute", keys.recompute.as_deref().map(|stages| per_stage(stages, |one: &Recompute| text(one.name()))));
    put("recompute_layers", keys.recompute_layers.as_deref().map(|stages| per_stage(stages, all_or_count)));
    put("microbatch_size", keys.microbatch_size.map(number));
    put("microbatches", keys.microbatches.as_deref().map(|counts| per_stage(counts, |count| number(*count))));
    put("schedule", keys.schedule.as_ref().map(|schedule| schedule_value(schedule, chunks.unwrap_or(1))));
    put("zero", keys.zero.map(|zero| number(zero.number())));
    put("shard", keys.shard.as_ref().map(all_or_count));
    put("overlap_gradients", keys.overlap_gradients.map(Value::Boolean));
    put("bucket", keys.bucket.map(|bucket| number(i64::try_from(bucket).expect("limited as it was read"))));
    put("prefetch", keys.prefetch.map(Value::Boolean));
    put("overlap_parameters", keys.overlap_parameters.map(Value::Boolean));
    put("overlap_tensor", keys.overlap_tensor.map(Value::Boolean));
    put("overlap_experts", keys.overlap_experts.map(Value::Boolean));
    put("offload", keys.offload.map(offload_value));
    put("vocabulary", keys.vocabulary.map(|division| text(division.name())));
    put("collective", keys.collective.map(|collective| text(collective.name())));
    put(
        "placement",
        keys.placement
            .as_ref()
            .map(|devices| Value::Array(devices.iter().map(|device| number(device.raw())).collect())),
    );
    put("budget", keys.budget.and_then(|budget| i64::try_from(budget).ok()).map(Value::Integer));
    put("weights", keys.weights.as_ref().map(|(name, _)| Value::String(name.clone())));
    entries
}

/// One value where all stages or replicas have the same, else one for each.
fn per_stage<T: PartialEq>(stages: &[T], value: impl Fn(&T) -> Value) -> Value {
    match stages {
        [first, rest @ ..] if rest.iter().all(|other| other == first) => value(first),
        _ => Value::Array(stages.iter().map(value).collect()),
    }
}

fn all_or_count(count: &Option<u32>) -> Value {
    count.map_or_else(|| text(ALL), number)
}

fn offload_value(offload: Offload) -> Value {
    let named = OFFLOADED.into_iter().zip([offload.activations, offload.optimizer, offload.parameters]);
    Value::Array(named.filter(|(_, offloaded)| *offloaded).map(|(name, _)| text(name)).collect())
}

fn schedule_value(schedule: &Schedule, chunks: u32) -> Value {
    match written(schedule, chunks) {
        Written::Name(word) => text(word),
        Written::Searched(key, limit, profile) => {
            let mut written = table([(key, text(limit))]);
            written.extend(profile.into_iter().map(|(key, figure)| (key.to_owned(), number(figure))));
            written.into()
        }
        Written::Cells(cells) => table([("cells", text(cells))]).into(),
    }
}

fn cost_table(cost: &CostChoice, stack: &StackChoice) -> Table {
    let mut table = durations_table(cost);
    if let Some((_, content)) = &stack.catalog {
        table.insert("stack_catalog".to_owned(), text(content));
    }
    table
}

fn durations_table(cost: &CostChoice) -> Table {
    match cost {
        CostChoice::Calibration { file, collectives, interference, profiles } => {
            let mut entries = table([("source", text("calibration"))]);
            if let Some((_, content)) = file {
                entries.insert("calibration".to_owned(), text(content));
            }
            if !collectives.is_empty() {
                let rows = collectives.iter().map(collective).collect();
                entries.insert("collectives".to_owned(), Value::Array(rows));
            }
            if !profiles.is_empty() {
                entries.insert("profiles".to_owned(), Value::Array(profiles.iter().map(profile).collect()));
            }
            if let Some(own) = interference {
                let factors = [("compute", own.compute), ("communication", own.communication)];
                let factors = table(factors.map(|(key, factor)| (key, Value::Float(factor))));
                entries.insert("interference".to_owned(), factors.into());
            }
            entries
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

fn profile(of: &ProfileChoice) -> Value {
    table([
        ("device", text(&of.profile.device)),
        ("profile", text(&of.text)),
        ("interpolate", of.profile.interpolate.into()),
        ("source", text(&of.profile.source)),
    ])
    .into()
}

fn collective(of: &cost::CollectivePoints) -> Value {
    let pair = |pair: &[f64; 2]| Value::Array(pair.iter().map(|number| Value::Float(*number)).collect());
    table([
        ("link", text(&of.link)),
        ("kind", text(&of.kind)),
        ("ranks", number(of.ranks)),
        ("nodes", number(of.nodes)),
        ("points", Value::Array(of.points.iter().map(pair).collect())),
    ])
    .into()
}

fn data_table(data: &DataChoice) -> Table {
    match data {
        DataChoice::Generated => table([("source", text("generated"))]),
        DataChoice::Files(files) => {
            let key = if files.extensions.is_some() { "folder" } else { "file" };
            let mut entries = table([(key, text(&files.path))]);
            if let Some(extensions) = &files.extensions {
                entries.insert("extensions".to_owned(), Value::Array(extensions.iter().map(text).collect()));
            }
            entries.extend(table([
                ("tokenizer", text(files.tokenizer.as_deref().unwrap_or(data::BYTES))),
                ("documents", text(files.documents.name())),
                ("end", text(files.end.as_deref().unwrap_or(data::NONE))),
                ("packing", text(files.packing.name())),
            ]));
            entries
        }
    }
}
