//! A row and the recipes to a run with nothing left open.

use cost::{GraphUse, PrecisionClass, StackKey};
use formats::measured_runs::{
    Activation, AttentionKernel, Dispatcher, Fault, Graphs, MeasuredRun, MemoryKind, NumberFormat, Offload, Reason,
    Recomputation, Refusal, implausible_speed,
};
use ir::{Precision, Recompute, ZeroStage};

use super::entry::Entry;
use super::{Family, MemoryFigure, Recipes, ResolvedHardware, ResolvedRun, Switches, UseFitted, hardware};
use crate::catalog::Catalog;

/// Entries that speak of a row, the most particular first, and what each is called in notes.
#[derive(Debug)]
struct Layers<'r> {
    layers: Vec<(String, &'r Entry)>,
    class: String,
}

impl Layers<'_> {
    /// The first value that an entry gives, and who gives it. A class leaves nothing open.
    fn find<T: Copy>(&self, of: impl Fn(&Entry) -> Option<T>) -> (T, &str) {
        let found = self.layers.iter().find_map(|(name, entry)| Some((of(entry)?, name.as_str())));
        found.unwrap_or_else(|| panic!("class {} leaves a switch open, which reading excludes", self.class))
    }
    fn value<T: Copy>(&self, of: impl Fn(&Entry) -> Option<T>) -> T {
        self.find(of).0
    }
}

/// Notes of what was taken from the catalog.
#[derive(Debug, Default)]
struct Assumed(Vec<String>);

impl Assumed {
    /// The row's value, else the recipes', noted.
    fn or<T: Copy>(
        &mut self,
        row: Option<T>,
        layers: &Layers<'_>,
        what: &str,
        of: impl Fn(&Entry) -> Option<T>,
        word: impl Fn(T) -> String,
    ) -> T {
        row.unwrap_or_else(|| {
            let (value, by) = layers.find(of);
            self.0.push(format!("{what} = {}, by {by}", word(value)));
            value
        })
    }
}

/// The release line of a version or of a framework's own words: the first number with a part behind a point, else a year.
fn release(text: &str) -> Option<String> {
    let mut years = None;
    for word in text.split(|c: char| !(c.is_ascii_digit() || c == '.')) {
        let word = word.trim_matches('.');
        let mut parts = word.split('.');
        match (parts.next(), parts.next()) {
            (Some(major), Some(minor)) if !major.is_empty() && !minor.is_empty() => {
                return Some(format!("{major}.{minor}"));
            }
            (Some(year), None) if year.len() == 4 && year.starts_with("20") => {
                years.get_or_insert_with(|| year.to_owned());
            }
            _ => {}
        }
    }
    years
}

/// Numbers of a release line, for comparison.
fn release_order(line: &str) -> Vec<u32> {
    line.split('.').filter_map(|part| part.parse().ok()).collect()
}

impl Recipes {
    /// Resolves the rows of one table; what one row leaves open another of the same model, devices, degrees and batch may
    /// say. Rows that cannot be resolved are refused by name.
    #[must_use]
    pub fn resolve_table(
        &self,
        rows: &[Result<MeasuredRun, Refusal>],
        catalog: &Catalog,
        fitted: UseFitted,
    ) -> Vec<Result<ResolvedRun, Refusal>> {
        let read: Vec<&MeasuredRun> = rows.iter().flatten().collect();
        rows.iter()
            .map(|row| match row {
                Ok(run) => self.resolve(run, &read, catalog, fitted),
                Err(refusal) => Err(refusal.clone()),
            })
            .collect()
    }
    /// Resolves a row; `table` are the rows beside it.
    ///
    /// # Errors
    /// A refusal with every reason: an unknown device (with the nearest names), a number format that the device lacks, a
    /// step faster than its peak, a batch that the assumed microbatch does not divide.
    pub fn resolve(
        &self,
        run: &MeasuredRun,
        table: &[&MeasuredRun],
        catalog: &Catalog,
        fitted: UseFitted,
    ) -> Result<ResolvedRun, Refusal> {
        let refused = |fault: Fault| Refusal { row_id: run.row_id.clone(), line: run.line, faults: vec![fault] };
        let entry = self.tables.iter().find(|(name, _)| *name == run.source.id).map(|(_, entry)| entry);
        let nic = entry.filter(|_| fitted == UseFitted::Yes).and_then(|e| e.fitted.nic_gbit_per_s_per_device);
        let mut assumed = Assumed::default();
        let hardware = hardware::resolve(&run.hardware, catalog, nic, &mut assumed.0).map_err(refused)?;
        let precision = precision(run, &hardware).map_err(refused)?;
        let generation = generation(&hardware);
        let layers = self.layers(run, &generation, &mut assumed);
        let family = self.family(run);
        let vocabulary = run.model.vocabulary.unwrap_or_else(|| {
            assumed.0.push(format!("vocabulary = {}, by family {}", family.vocabulary, family.name));
            family.vocabulary
        });
        let chunks = chunks(run, table, &layers, &mut assumed);
        let (microbatch, microbatches) = microbatch(run, table, &layers, &mut assumed).map_err(refused)?;
        let switches = switches(run, precision, &layers, &generation, &mut assumed);
        let stack = StackKey {
            class: layers.class.clone(),
            generation,
            precision: PrecisionClass::of(precision),
            experts: run.model.experts.is_some(),
            graphs: switches.graphs,
            release: release_line(run, entry, &layers),
        };
        let untied = run.quality.iter().any(|flag| flag.contains("untied_embeddings"));
        Ok(ResolvedRun {
            row: run.clone(),
            hardware,
            tied_head: family.tied_head && !untied,
            family: family.clone(),
            vocabulary,
            microbatch,
            microbatches,
            chunks,
            memory: memory(run, &layers, &mut assumed),
            switches,
            stack,
            assumed: assumed.0,
        })
    }
    /// The class that stands for a class on a generation of devices.
    pub(crate) fn class_on<'c>(&'c self, class: &'c str, generation: &str) -> &'c str {
        let entry = self.classes.iter().find(|(name, _)| name == class).map(|(_, entry)| entry);
        let newer =
            entry.and_then(|entry| entry.on.iter().find(|(beginning, _)| generation.starts_with(beginning.as_str())));
        newer.map_or(class, |(_, name)| name)
    }
    fn layers(&self, run: &MeasuredRun, generation: &str, assumed: &mut Assumed) -> Layers<'_> {
        let name = run.software.framework.to_lowercase();
        let padded = format!(" {name} ");
        let table = self.tables.iter().find(|(id, _)| *id == run.source.id);
        let framework =
            self.frameworks.iter().find(|(_, entry)| entry.words.iter().all(|word| padded.contains(word.as_str())));
        let class_of = |name: &str| self.classes.iter().find(|(class, _)| class == name);
        let by_word =
            || self.classes.iter().find(|(_, entry)| entry.words.iter().any(|word| padded.contains(word.as_str())));
        let found = framework.and_then(|(_, entry)| class_of(entry.class.as_deref()?)).or_else(by_word);
        let class = found.or_else(|| class_of("generic")).expect("reading makes sure of a generic class");
        if framework.is_none() {
            let known =
                if name.is_empty() { "no framework named".to_owned() } else { format!("`{name}` is not known") };
            assumed.0.push(format!("stack class = {}: {known}", class.0));
        }
        let newer = class.1.on.iter().find(|(beginning, _)| generation.starts_with(beginning.as_str()));
        let class = newer.and_then(|(_, name)| class_of(name)).unwrap_or(class);
        let mut layers = Vec::new();
        layers.extend(table.map(|(name, entry)| (format!("table {name}"), entry)));
        // What is known of a framework on older devices says nothing of what bears its name on others.
        if newer.is_none() {
            layers.extend(framework.map(|(name, entry)| (format!("framework {name}"), entry)));
        }
        layers.push((format!("class {}", class.0), &class.1));
        Layers { layers, class: class.0.clone() }
    }
    fn family(&self, run: &MeasuredRun) -> &Family {
        let name: String =
            run.model.name.chars().filter(char::is_ascii_alphanumeric).collect::<String>().to_lowercase();
        let gated = matches!(run.model.activation, Activation::SwiGlu | Activation::GeGlu);
        let by_name = self.families.iter().find(|family| family.words.iter().any(|word| name.starts_with(word)));
        let stand_in = || self.families.iter().find(|family| family.gated == Some(gated));
        by_name.or_else(stand_in).expect("reading makes sure of families that stand in")
    }
}

/// The device generation by which stacks are keyed: that of its calibration.
fn generation(hardware: &ResolvedHardware) -> String {
    static GENERATIONS: std::sync::OnceLock<Vec<(String, String)>> = std::sync::OnceLock::new();
    let generations = GENERATIONS.get_or_init(|| {
        let calibrations = crate::catalog::calibrations();
        calibrations.iter().map(|one| (one.name.clone(), one.generation().to_owned())).collect()
    });
    let name = &hardware.device.calibration;
    generations.iter().find(|(calibration, _)| calibration == name).map_or(name, |(_, generation)| generation).clone()
}

/// The number format, if the device has it and the step is possible in it.
fn precision(run: &MeasuredRun, hardware: &ResolvedHardware) -> Result<Precision, Fault> {
    let precision = match run.format {
        NumberFormat::Fp32 => Precision::Fp32,
        NumberFormat::Tf32 => Precision::Tf32,
        NumberFormat::Fp16 => Precision::Fp16,
        NumberFormat::Bf16 => Precision::Bf16,
        NumberFormat::Fp8(_) => Precision::Fp8,
    };
    let name = &hardware.device.name;
    let Some(peak) = hardware.device.peak(precision) else {
        let message = format!("{name} has no {} of the catalog", precision.name());
        return Err(Fault::new(Reason::NumberFormat, "precision", message));
    };
    implausible_speed(run, peak.get() / 1e12).map_or(Ok(precision), Err)
}

/// The same model on the same devices with the same degrees and batch.
fn is_sibling(a: &MeasuredRun, b: &MeasuredRun) -> bool {
    let key = |run: &MeasuredRun| {
        let (model, layout) = (&run.model, &run.layout);
        let degrees = [layout.tensor, layout.pipeline, layout.context, layout.expert, layout.data];
        (model.layers, model.hidden, run.sequence_length, run.batch.global, degrees)
    };
    a.row_id != b.row_id && a.hardware.device == b.hardware.device && key(a) == key(b)
}

/// What all siblings that say it agree on.
fn of_siblings<T: PartialEq + Copy>(
    run: &MeasuredRun,
    table: &[&MeasuredRun],
    of: impl Fn(&MeasuredRun) -> Option<T>,
) -> Option<(T, String)> {
    let mut said = table.iter().filter(|other| is_sibling(run, other)).filter_map(|other| Some((of(other)?, other)));
    let (value, first) = said.next()?;
    said.all(|(other, _)| other == value).then(|| (value, first.row_id.clone()))
}

/// Chunks of a pipeline position.
fn chunks(run: &MeasuredRun, table: &[&MeasuredRun], layers: &Layers<'_>, assumed: &mut Assumed) -> u32 {
    if run.layout.pipeline == 1 {
        return 1;
    }
    if let Some(chunks) = run.layout.chunks {
        return chunks;
    }
    // Interleaved schedules need whole chunks.
    let (chunks, by) = layers.find(|entry| entry.chunks);
    let whole = run.model.layers.is_multiple_of(run.layout.pipeline * chunks);
    // Another release may have another schedule.
    let alike = |other: &MeasuredRun| {
        other.layout.schedule == run.layout.schedule && other.software.version == run.software.version
    };
    let sibling = of_siblings(run, table, |other| other.layout.chunks.filter(|_| alike(other)));
    let (chunks, by) = match sibling {
        Some((chunks, row)) => (chunks, format!("row {row}")),
        None if whole => (chunks, by.to_owned()),
        None => (1, "default: the layers do not divide".to_owned()),
    };
    assumed.0.push(format!("chunks of a position = {chunks}, by {by}"));
    chunks
}

/// Microbatch and microbatches.
fn microbatch(
    run: &MeasuredRun,
    table: &[&MeasuredRun],
    layers: &Layers<'_>,
    assumed: &mut Assumed,
) -> Result<(u32, u32), Fault> {
    if let (Some(microbatch), Some(microbatches)) = (run.batch.microbatch, run.batch.microbatches) {
        return Ok((microbatch, microbatches));
    }
    let sibling = of_siblings(run, table, |other| other.batch.microbatch);
    let (microbatch, by) = match &sibling {
        Some((microbatch, row)) => (*microbatch, format!("row {row}")),
        None => {
            let (microbatch, by) = layers.find(|entry| entry.microbatch);
            (microbatch, by.to_owned())
        }
    };
    let unit = u64::from(run.layout.data) * u64::from(microbatch);
    let count = run.batch.global.is_multiple_of(unit).then_some(run.batch.global / unit);
    let Some(microbatches) = count.and_then(|count| u32::try_from(count).ok()) else {
        let message = format!("is not given, and {microbatch} (by {by}) does not divide the batch");
        return Err(Fault::new(Reason::Hole, "micro_batch", message));
    };
    assumed.0.push(format!("microbatch = {microbatch}, by {by}"));
    Ok((microbatch, microbatches))
}

/// The row's release line.
fn release_line(run: &MeasuredRun, table: Option<&Entry>, layers: &Layers<'_>) -> Option<String> {
    let line = run.software.version.as_deref().and_then(release).or_else(|| release(&run.software.framework));
    let framework = layers.layers.iter().find_map(|(name, _)| name.strip_prefix("framework "));
    let prefix = table.and_then(|entry| entry.release_prefix.as_deref());
    let named = match (prefix, framework, line) {
        (Some(prefix), _, Some(line)) => Some(format!("{prefix}{line}")),
        (_, Some(framework), Some(line)) => Some(format!("{framework} {line}")),
        (_, Some(framework), None) => Some(framework.to_owned()),
        (_, None, line) => line,
    };
    // A machine before a repair is another one, if the row says so.
    let flagged = table.into_iter().flat_map(|entry| &entry.release_flags);
    let repair = flagged.into_iter().find(|(flag, _)| run.quality.iter().any(|of| of == *flag)).map(|(_, line)| line);
    match (named, repair) {
        (Some(named), Some(repair)) => Some(format!("{named}, {repair}")),
        (named, repair) => named.or_else(|| repair.cloned()),
    }
}

fn memory(run: &MeasuredRun, layers: &Layers<'_>, assumed: &mut Assumed) -> MemoryFigure {
    let printed = run.measured.memory;
    let (kind, unit) = (printed.and_then(|memory| memory.kind), printed.and_then(|memory| memory.unit));
    let kind_of = |entry: &Entry| entry.memory_kind.map(Into::into);
    let unit_of = |entry: &Entry| entry.memory_unit.map(Into::into);
    if printed.is_none() {
        return MemoryFigure { kind: layers.value(kind_of), unit: layers.value(unit_of) };
    }
    let word = |kind: MemoryKind| format!("{kind:?}").to_lowercase();
    MemoryFigure {
        kind: assumed.or(kind, layers, "kind of memory", kind_of, word),
        unit: assumed.or(unit, layers, "unit of memory", unit_of, |unit| format!("{unit:?}").to_lowercase()),
    }
}

fn switches(
    run: &MeasuredRun,
    precision: Precision,
    layers: &Layers<'_>,
    generation: &str,
    assumed: &mut Assumed,
) -> Switches {
    let (layout, flags) = (&run.layout, &run.software.flags);
    let kernel: AttentionKernel = assumed.or(
        run.software.attention,
        layers,
        "attention",
        |entry| entry.attention.map(Into::into),
        |kernel| format!("{kernel:?}"),
    );
    let (attention, flash_version) = match kernel {
        AttentionKernel::Flash { version } => (ir::AttentionKernel::Fused, version),
        AttentionKernel::FusedSoftmax | AttentionKernel::Plain => (ir::AttentionKernel::Plain, 2),
    };
    let fused_softmax = match run.software.attention {
        Some(AttentionKernel::FusedSoftmax) => true,
        Some(AttentionKernel::Plain) => false,
        Some(AttentionKernel::Flash { .. }) | None => layers.value(|entry| entry.fused_softmax),
    };
    let recipe = recipe(run, precision, layers, fused_softmax, assumed);
    let graphs = graphs(run, layers, generation);
    let zero = zero(run, layers, assumed);
    let overlaps = flags.overlap != Some(false);
    let sequence_parallel = layout.tensor > 1 && {
        let of = |entry: &Entry| entry.sequence_parallel;
        assumed.or(layout.sequence_parallel, layers, "sequence parallelism", of, |on| on.to_string())
    };
    Switches {
        precision,
        attention,
        flash_version,
        recipe: ir::Recipe { cuda_graphs: graphs == GraphUse::Full, ..recipe },
        zero,
        shard_group: layout.shard_group,
        sequence_parallel,
        recomputation: recomputation(run, layers, assumed),
        offload: layout.offload.unwrap_or(Offload::None),
        overlap_gradients: overlaps && layers.value(|entry| entry.overlap_gradients),
        overlap_parameters: overlaps && layers.value(|entry| entry.overlap_parameters),
        overlap_tensor: overlaps
            && layout.tensor > 1
            && flags.tensor_overlap.unwrap_or_else(|| layers.value(|entry| entry.overlap_tensor)),
        overlap_experts: overlaps
            && run.model.experts.is_some()
            && flags.expert_overlap.unwrap_or_else(|| layers.value(|entry| entry.overlap_experts)),
        prefetch: overlaps && layers.value(|entry| entry.prefetch),
        graphs,
        vocabulary_divisor: layers.value(|entry| entry.vocabulary_divisor),
    }
}

/// The switches that time and memory share.
fn recipe(
    run: &MeasuredRun,
    precision: Precision,
    layers: &Layers<'_>,
    fused_softmax: bool,
    assumed: &mut Assumed,
) -> ir::Recipe {
    let flags = &run.software.flags;
    let fused_norms = run.software.fused_norms.or(flags.compiled);
    let of = |entry: &Entry| entry.fused_normalisation;
    let fused_normalisation = assumed.or(fused_norms, layers, "fused norms", of, |on| on.to_string());
    ir::Recipe {
        fused_normalisation,
        fused_softmax,
        sharded_loss: layers.value(|entry| entry.sharded_loss),
        fused_loss: flags.fused_loss.unwrap_or_else(|| layers.value(|entry| entry.fused_loss)),
        logits: layers.value(|entry| entry.logits),
        expandable_segments: layers.value(|entry| entry.expandable_segments),
        fused_activation: flags.compiled.unwrap_or_else(|| layers.value(|entry| entry.fused_activation)),
        gradients: layers.value(|entry| entry.gradients).under(precision),
        reduced_gradients: layers.value(|entry| entry.reduced_gradients).under(precision),
        early_stop_recompute: layers.value(|entry| entry.early_stop_recompute),
        scattered_messages: layers.value(|entry| entry.scattered_messages),
        deduplicated_dispatch: match run.software.flags.dispatcher {
            Some(Dispatcher::AllToAll) => false,
            Some(Dispatcher::DeepEp | Dispatcher::HybridEp) => true,
            None => layers.value(|entry| entry.deduplicated_dispatch),
        },
        ..ir::Recipe::default()
    }
}

fn graphs(run: &MeasuredRun, layers: &Layers<'_>, generation: &str) -> GraphUse {
    if let Some(graphs) = run.software.flags.graphs {
        return match graphs {
            Graphs::None => GraphUse::None,
            Graphs::Modules => GraphUse::Part,
            Graphs::FullIteration => GraphUse::Full,
        };
    }
    let line = run.software.version.as_deref().and_then(release);
    let since = |from: &str| line.as_deref().is_some_and(|line| release_order(line) >= release_order(from));
    let released = layers.layers.iter().flat_map(|(_, entry)| &entry.releases).find_map(|release| {
        let here = release.generation.as_deref().is_none_or(|of| of == generation);
        release.graphs.filter(|_| here && since(&release.from))
    });
    released.unwrap_or_else(|| layers.value(|entry| entry.graphs))
}

fn zero(run: &MeasuredRun, layers: &Layers<'_>, assumed: &mut Assumed) -> ZeroStage {
    let by_flag = (run.software.flags.megatron_fsdp == Some(true)).then_some(3);
    let stage = run.layout.zero.map(u32::from).or(by_flag);
    let replicas = run.layout.data * run.layout.context;
    let number = if replicas == 1 {
        stage.unwrap_or(0)
    } else {
        assumed.or(stage, layers, "zero", |entry| entry.zero, |stage| stage.to_string())
    };
    match number {
        0 => ZeroStage::Zero0,
        1 => ZeroStage::Zero1,
        2 => ZeroStage::Zero2,
        3 => ZeroStage::Zero3,
        other => panic!("ZeRO stage {other} of row {} was read as one", run.row_id),
    }
}

fn recomputation(run: &MeasuredRun, layers: &Layers<'_>, assumed: &mut Assumed) -> Recomputation {
    if let Some(recomputation) = &run.layout.recomputation {
        return recomputation.clone();
    }
    let (value, by) = layers.find(|entry| entry.recompute);
    assumed.0.push(format!("recomputation = {}, by {by}", format!("{value:?}").to_lowercase()));
    match value {
        Recompute::None => Recomputation::None,
        // FlashAttention recomputes scores by itself; what PyTorch stacks call selective is chosen by operation.
        Recompute::Selective if layers.class == "pytorch-fsdp" => Recomputation::PerOperation,
        Recompute::Operations => Recomputation::PerOperation,
        Recompute::Selective => Recomputation::AttentionCore,
        Recompute::Full => Recomputation::Full { layers: None },
    }
}
