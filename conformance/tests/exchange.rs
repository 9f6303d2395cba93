//! Other software's files, in and out: what goes round means the same, whatever the plan.

use std::path::{Path, PathBuf};

use ir::{Model, Plan, Workload};
use trainyard::scenario::PlanChoice;
use trainyard::{Context, Error, ExportTarget, ImportRequest, Loaded, Tool, export, import, scenario};
use trainyard_conformance::dice::{Dice, for_each_seed};

/// A scenario that was read from a file of its own.
fn load(path: &Path) -> Loaded {
    scenario::load(path).unwrap_or_else(|error| panic!("{error}"))
}

fn plan(loaded: &Loaded) -> &Plan {
    match &loaded.scenario.plan {
        PlanChoice::Written(plan) => plan,
        PlanChoice::Policy(..) => panic!("a policy"),
    }
}

fn unnamed(loaded: &Loaded) -> Model {
    Model { name: String::new(), ..loaded.scenario.model.clone() }
}

/// What every file says of how a model is trained; software's own switches aside, and what a program has around it.
fn said(loaded: &Loaded, tool: Tool) -> Workload {
    let mut workload =
        Workload { recipe: ir::Recipe::default(), vocabulary_divisor: 1, ..loaded.scenario.workload.clone() };
    if tool == Tool::DeepSpeed {
        (workload.seed, workload.iterations) = (0, 1);
        workload.attention = ir::AttentionKernel::Fused;
    }
    workload
}

/// Imports a file that says all by itself.
const fn request<'a>(file: &'a Path, out: &'a Path) -> ImportRequest<'a> {
    ImportRequest {
        file,
        from: None,
        model: None,
        cluster: &[],
        sequence_length: None,
        global_batch: None,
        out,
        force: false,
    }
}

/// Imports a file beside it.
fn imported(file: &Path, change: impl FnOnce(&mut ImportRequest<'_>)) -> Result<(Loaded, Vec<String>), Error> {
    let out = file.with_extension("scenario.toml");
    let mut request = ImportRequest { force: true, ..request(file, &out) };
    change(&mut request);
    let report = import(&request)?;
    assert!(!report.read.is_empty(), "nothing was read: {report:?}");
    Ok((load(&out), report.nodes))
}

/// The plan as a file of the tool in a folder, and what it does otherwise.
fn exported(loaded: &Loaded, tool: Tool, folder: &Path) -> Result<(PathBuf, Vec<String>), Error> {
    let report = export(loaded, ExportTarget::Tool(tool), &Context::default())?;
    let path = folder.join(match tool {
        Tool::Megatron => "train.sh",
        Tool::Torchtitan => "train.toml",
        Tool::DeepSpeed => "ds_config.json",
    });
    std::fs::write(&path, &report.text).expect("written");
    Ok((path, report.notes))
}

/// Out, in, out and in: the first way round keeps the plan, the model and what every file says; the second keeps all.
fn round(loaded: &Loaded, tool: Tool, nodes: &[String], model: &str) -> Result<(), Error> {
    let folder = tempfile::tempdir().expect("a folder");
    let (path, _) = exported(loaded, tool, folder.path())?;
    let length = loaded.scenario.workload.sequence_length;
    let read = |path: &Path| {
        let out = path.with_extension("scenario.toml");
        let request = ImportRequest {
            model: (tool == Tool::DeepSpeed).then_some(model),
            cluster: nodes,
            sequence_length: (tool == Tool::DeepSpeed).then_some(length),
            force: true,
            ..request(path, &out)
        };
        let text = std::fs::read_to_string(path).expect("written before");
        import(&request).unwrap_or_else(|error| panic!("{error}\n{text}"));
        load(&out)
    };
    let first = read(&path);
    assert_eq!(plan(&first), plan(loaded), "{tool:?}");
    assert_eq!(unnamed(&first), unnamed(loaded), "{tool:?}");
    assert_eq!(said(&first, tool), said(loaded, tool), "{tool:?}");
    let (again, notes) = exported(&first, tool, folder.path()).unwrap_or_else(|error| panic!("{error}"));
    let own: Vec<_> = notes.iter().filter(|note| !note.contains("does not fit")).collect();
    assert_eq!(own, Vec::<&String>::new(), "{tool:?} does otherwise what it said itself");
    let second = read(&again);
    assert_eq!(second.scenario.workload, first.scenario.workload, "{tool:?}");
    assert_eq!((plan(&second), unnamed(&second)), (plan(&first), unnamed(&first)), "{tool:?}");
    Ok(())
}

/// Models that each tool may be told of, with divisors of their heads.
fn models(tool: Tool) -> &'static [&'static str] {
    match tool {
        Tool::Torchtitan => &["llama-3.1-8b", "llama-3.1-70b", "deepseek-v2-lite", "qwen3-8b", "qwen3-30b-a3b"],
        Tool::Megatron | Tool::DeepSpeed => &[
            "llama-3.1-8b",
            "gpt3-1.3b",
            "mixtral-8x7b",
            "qwen3-8b",
            "deepseek-v2-lite",
            "qwen2.5-7b",
            "gpt3-175b",
            "mistral-7b",
        ],
    }
}

/// How a drawn model is trained.
fn drawn_training(dice: &mut Dice, tool: Tool, batch: u32) -> String {
    let precision = match tool {
        Tool::Megatron => dice.pick(&["bf16", "fp16", "fp8", "fp32"]),
        Tool::Torchtitan => dice.pick(&["bf16", "fp8", "fp32"]),
        Tool::DeepSpeed => dice.pick(&["bf16", "fp16", "fp32"]),
    };
    let (length, steps) = (dice.pick(&[1024, 2048]), dice.within(1, 1000));
    let training = format!(
        "sequence_length = {length}\nglobal_batch = {batch}\niterations = {steps}\nprecision = \"{precision}\"\n"
    );
    let optimizer = format!(
        "learning_rate = {:?}\nbeta2 = {:?}\nweight_decay = {:?}\nwarmup_iterations = {}\nclip_norm = {}\n",
        dice.pick(&[3e-4, 1.5e-5, 0.002]),
        dice.pick(&[0.95, 0.999]),
        dice.pick(&[0.0, 0.1]),
        dice.within(0, 20),
        dice.pick(&["1.0", "0.3", "\"none\""])
    );
    format!("{training}\n[training.optimizer]\n{optimizer}")
}

/// A scenario that is drawn: its text, its nodes and its model. What does not matter to a plan is at its default.
fn drawn(dice: &mut Dice, tool: Tool) -> (String, String, &'static str) {
    let model = dice.pick(models(tool));
    let routed = ["deepseek-v2-lite", "qwen3-30b-a3b", "mixtral-8x7b"].contains(&model);
    let (tensor, data) = (dice.pick(&[1, 1, 2, 4]), dice.pick(&[1, 2, 4, 6, 8]));
    let pipeline = dice.pick(&[1, 1, 2, 4]);
    let context = if tool == Tool::DeepSpeed { 1 } else { dice.pick(&[1, 1, 2]) };
    let expert = if routed && tool != Tool::DeepSpeed { dice.pick(&[1, 2]) } else { 1 };
    let (size, count) = (dice.pick(&[1, 2, 4]), dice.pick(&[4, 8, 12]));
    let mut plan = format!(
        "data = {data}\ntensor = {tensor}\npipeline = {pipeline}\ncontext = {context}\nmicrobatch_size = {size}\nmicrobatches = {count}\n"
    );
    let zero = match tool {
        Tool::Megatron => dice.pick(&[0, 1, 1, 2, 3]),
        Tool::Torchtitan => dice.pick(&[0, 2, 3, 3]),
        Tool::DeepSpeed => dice.pick(&[0, 1, 2, 3]),
    };
    let replicas = data * context;
    let zero = if replicas == 1 { 0 } else { zero };
    let parallel = tensor > 1 && (tool == Tool::Torchtitan || tool == Tool::Megatron && (routed || dice.chance(60)));
    plan += &format!("zero = {zero}\nsequence_parallel = {parallel}\nexpert = {expert}\n");
    if routed && tool == Tool::Megatron && dice.chance(50) {
        plan += &format!("expert_tensor = {tensor}\n");
    }
    if context > 1 {
        let methods =
            if tool == Tool::Torchtitan { &["ring", "all-gather"][..] } else { &["ring", "all-gather", "all-to-all"] };
        plan += &format!("context_method = \"{}\"\n", dice.pick(methods));
    }
    if zero > 0 && data > 1 && data % 2 == 0 && replicas > 2 && dice.chance(40) {
        plan += &format!("shard = {}\n", replicas / 2);
    }
    plan += &format!("overlap_gradients = {}\n", tool == Tool::Torchtitan || replicas == 1 || dice.chance(50));
    plan += &format!("prefetch = {}\n", zero == 3 && (tool == Tool::Torchtitan || dice.chance(50)));
    let ahead =
        tool == Tool::Torchtitan && zero == 2 || tool == Tool::Megatron && (zero == 1 || zero == 2) && dice.chance(50);
    plan += &format!("overlap_parameters = {ahead}\n");
    plan += &format!("overlap_tensor = {}\n", parallel && dice.chance(30));
    if pipeline > 1 && tool != Tool::DeepSpeed && dice.chance(50) {
        plan += "chunks_per_stage = 2\n";
        if tool == Tool::Torchtitan && dice.chance(40) {
            plan += "schedule = \"gpipe\"\n";
        }
    } else if pipeline > 1 && tool != Tool::DeepSpeed && dice.chance(40) {
        plan += &format!("layers_per_stage = \"UNEVEN-{pipeline}\"\n");
    }
    let ways = match tool {
        Tool::Megatron => &["none", "selective", "full"][..],
        Tool::Torchtitan => &["none", "operations", "full"],
        Tool::DeepSpeed => &["none", "full"],
    };
    plan += &format!("recompute = \"{}\"\n", dice.pick(ways));
    if tool != Tool::Torchtitan && dice.chance(20) {
        plan += "offload = [\"optimizer\"]\n";
    }
    let training = drawn_training(dice, tool, data * size * count);
    let world: u32 = replicas * tensor * pipeline;
    let nodes = format!("{} x dgx-h100", world.div_ceil(8));
    let seed = dice.within(0, 1_000_000);
    let text = format!(
        "seed = {seed}\n[cluster]\nnodes = \"{nodes}\"\n[model]\nname = \"{model}\"\n[training]\n{training}\n[plan]\n{plan}"
    );
    (text, nodes, model)
}

/// Layers of stages that are not alike, of a model with so many.
fn uneven(text: &str, layers: u32) -> String {
    let (half, each) = (layers / 2, layers / 4);
    let two = format!("[{}, {}]", half + 1, layers.saturating_sub(half + 1));
    let four = format!("[{}, {each}, {}, {}]", each.saturating_sub(1), each + 1, layers.saturating_sub(3 * each));
    text.replace("\"UNEVEN-2\"", &two).replace("\"UNEVEN-4\"", &four)
}

#[test]
fn what_goes_out_and_comes_in_again_means_the_same() {
    const SEEDS: u64 = 60;
    let mut told = [(0, 0); 3];
    for_each_seed(SEEDS, |seed| {
        for (index, tool) in Tool::ALL.into_iter().enumerate() {
            let mut dice = Dice::new(seed * 3 + index as u64);
            // A few draws: not each can be carried out.
            let legal = (0..40).find_map(|_| {
                let (text, nodes, model) = drawn(&mut dice, tool);
                let layers = if text.contains("UNEVEN") { probe(&text) } else { 2 };
                let loaded = scenario::parse("drawn.toml", &uneven(&text, layers), Path::new("")).ok()?;
                let of = &loaded.scenario;
                let fits = sched::legal(plan(&loaded), &of.model, &of.workload, &of.cluster).is_empty();
                fits.then_some((loaded, nodes, model))
            });
            let Some((loaded, nodes, model)) = legal else { continue };
            told[index].0 += 1;
            match round(&loaded, tool, &[nodes], model) {
                Ok(()) => told[index].1 += 1,
                Err(Error::Input(error)) => {
                    let hinted =
                        error.problems.iter().all(|problem| problem.hint.is_some() && !problem.subject.is_empty());
                    assert!(hinted, "{error:?}");
                }
                Err(other) => panic!("{other}"),
            }
        }
    });
    // One seed that is run alone may be one that is refused.
    let enough = told.iter().all(|(drawn, told)| *drawn <= 1 || told * 4 >= *drawn * 3);
    assert!(enough, "of those drawn for each tool, so many could be told: {told:?}");
}

/// Layers of the model that a text names.
fn probe(text: &str) -> u32 {
    let plain = text.split("[plan]").next().unwrap_or_default();
    let loaded = scenario::parse("drawn.toml", plain, Path::new("")).unwrap_or_else(|error| panic!("{error}"));
    loaded.scenario.model.layers
}

/// A file of the formats' own tests, copied to a folder that may be written to.
fn own(name: &str) -> (tempfile::TempDir, PathBuf) {
    copied(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../formats/src").join(name)).expect("a file of the checkout")
}

fn copied(path: &Path) -> Option<(tempfile::TempDir, PathBuf)> {
    let text = std::fs::read(path).ok()?;
    let folder = tempfile::tempdir().expect("a folder");
    let copy = folder.path().join(path.file_name()?);
    std::fs::write(&copy, text).ok()?;
    Some((folder, copy))
}

#[test]
fn files_of_each_tool_become_scenarios_that_are_planned_and_go_back() {
    let check = |name: &str, tool: Tool, model: Option<&str>, cluster: &[&str], expect: (u64, u32, u32)| {
        let (_folder, path) = own(name);
        let cluster: Vec<String> = cluster.iter().map(ToString::to_string).collect();
        let out = path.with_extension("scenario.toml");
        let request = ImportRequest { model, cluster: &cluster, ..request(&path, &out) };
        let report = import(&request).unwrap_or_else(|error| panic!("{error}"));
        assert_eq!(
            (report.tool, report.plan.ranks, report.plan.tensor, report.plan.pipeline),
            (tool.name(), expect.0, expect.1, expect.2)
        );
        assert!(!report.assumed.is_empty() && report.assumed.iter().all(|one| !one.source.is_empty()), "{report:?}");
        let loaded = load(&out);
        match trainyard::plan(&loaded, &Context::default()) {
            Ok(planned) => assert!(planned.prediction.iteration_ms > 0.0),
            // Whether it fits is an answer too.
            Err(Error::Infeasible { infeasible, .. }) => {
                assert!(infeasible.reasons.iter().all(|reason| reason.to_string().contains("GiB")), "{infeasible:?}")
            }
            Err(other) => panic!("{name}: {other}"),
        }
        round(&loaded, tool, &report.nodes, model.unwrap_or_default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    };
    check("megatron/tests/gpt3.sh", Tool::Megatron, None, &[], (128, 8, 16));
    check("megatron/tests/experts.sh", Tool::Megatron, None, &["2 x dgx-a100"], (16, 2, 1));
    check("megatron/tests/llama.log", Tool::Megatron, None, &["8 x dgx-h100"], (64, 4, 2));
    check("torchtitan/tests/llama3_70b.toml", Tool::Torchtitan, None, &[], (256, 4, 4));
    check("deepspeed/tests/pipeline.json", Tool::DeepSpeed, Some("llama-3.1-8b"), &[], (32, 1, 4));
    check("deepspeed/tests/zero3.json", Tool::DeepSpeed, Some("llama-3.1-8b"), &["2 x dgx-a100"], (16, 1, 1));
}

#[test]
fn what_the_command_line_must_say_is_asked_for() {
    let check = |name: &str, change: &dyn Fn(&mut ImportRequest<'_>), needles: &[&str]| {
        let (_folder, path) = own(name);
        let error = imported(&path, change).expect_err("something is missing").to_string();
        needles.iter().for_each(|needle| assert!(error.contains(needle), "no {needle:?} in\n{error}"));
        assert!(!path.with_extension("scenario.toml").exists(), "something was written");
    };
    check("deepspeed/tests/zero3.json", &|_| {}, &["zero3.json:1:1: model", "--model"]);
    check("deepspeed/tests/zero3.json", &|request| request.model = Some("llama-3.1-8b"), &["--cluster"]);
    check(
        "deepspeed/tests/zero3.json",
        &|request| request.model = Some("llama-3.1-8"),
        &["did you mean `llama-3.1-8b`?"],
    );
    check("torchtitan/tests/experts_2024.toml", &|_| {}, &["--cluster"]);
    check("megatron/tests/gpt3.sh", &|request| request.model = Some("gpt3-175b"), &["describes its model itself"]);
    let few = ["1 x dgx-h100".to_owned()];
    check(
        "megatron/tests/gpt3.sh",
        &|request| request.cluster = Box::leak(Box::new(few.clone())),
        &["gpt3.sh:51:1", "the nearest are 128 devices"],
    );
}

/// What only the scenario's rules forbid stands where the file says it.
#[test]
fn a_plan_that_cannot_be_carried_out_is_told_at_its_lines() {
    let check = |name: &str, text: &str, node: &str, needles: &[&str]| {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join(name);
        std::fs::write(&path, text).expect("written");
        let nodes = [node.to_owned()];
        let out = folder.path().join("scenario.toml");
        let request = ImportRequest { cluster: &nodes, ..request(&path, &out) };
        let error = import(&request).expect_err("it is not legal").to_string();
        needles.iter().for_each(|needle| assert!(error.contains(needle), "no {needle:?} in\n{error}"));
        assert!(!out.exists(), "something was written");
    };
    let titan = "[model]\nflavor = \"8B\"\n[training]\nseq_len = 4090\n[parallelism]\ncontext_parallel_degree = 4\ntensor_parallel_degree = 16\n";
    check("t.toml", titan, "16 x dgx-h100", &["t.toml:7:1: model.kv_heads", "t.toml:4:1: training.sequence_length"]);
    let script = "torchrun --nproc_per_node 8 pretrain_gpt.py --num-layers 4 --hidden-size 64 --num-attention-heads 4 \\\n\
        --seq-length 128 --max-position-embeddings 128 --vocab-size 256 --bf16 \\\n\
        --micro-batch-size 1 --global-batch-size 16 \\\n--tensor-model-parallel-size 8\n";
    check("t.sh", script, "1 x dgx-h100", &["t.sh:4:1: model.heads", "tensor can be 1, 2, 4"]);
    let eight = script.replace("--bf16", "--bf16 --fp8-format hybrid").replace("size 8\n", "size 4\n");
    check("t.sh", &eight, "1 x dgx-a100", &["t.sh:2:1: training.precision", "does not compute in fp8"]);
}

#[test]
fn every_file_of_users_is_a_scenario_or_named() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../shared/data/userfiles");
    let read = |name: &str, model: Option<&'static str>, node: &str, batch: Option<u32>| {
        let (_folder, path) = copied(&root.join(name))?;
        let nodes = [node.to_owned()];
        let out = path.with_extension("scenario.toml");
        let request = ImportRequest { model, cluster: &nodes, global_batch: batch, ..request(&path, &out) };
        Some(import(&request).map(|report| (report, load(&out))))
    };
    for (name, tool, model, node, batch, ranks) in [
        ("torchtitan/llama3_405b.toml", Tool::Torchtitan, None, "16 x dgx-h100", None, 128),
        (
            "deepspeed/hf_transformers.ds_config_zero3.json",
            Tool::DeepSpeed,
            Some("llama-3.1-8b"),
            "1 x dgx-a100",
            Some(64),
            8,
        ),
        ("deepspeed/gpt-neox.20B.yml", Tool::DeepSpeed, Some("gpt-neox-20b"), "12 x dgx-a100-40gb", None, 96),
    ] {
        let Some(result) = read(name, model, node, batch) else {
            skipped(&root.join(name));
            continue;
        };
        let (report, loaded) = result.unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!((report.tool, report.plan.ranks), (tool.name(), ranks), "{name}");
        round(&loaded, tool, &[node.to_owned()], model.unwrap_or_default())
            .unwrap_or_else(|error| panic!("{name}: {error}"));
    }
    for (name, part) in [
        ("nemo/llama3_1_405b.yaml", "is a configuration of NeMo"),
        ("hf/Llama-3.1-8B-Instruct.config.json", "is the configuration of a model"),
        ("hf/Jamba-v0.1.subset.config.json", "is the configuration of a model"),
        ("topo/a100_8gpu_nvswitch.topo.txt", "nvidia-smi topo -m"),
        ("slurm/topology_tree_oci_sim.conf", "is Slurm's topology"),
        ("sim/calculon.val_tab5_gpt3-175B_full.json", "calculon"),
        ("sim/calculon.h100_80g_nvl8.json", "is of no software that is known here"),
        ("nccl/all_reduce_perf_a100x8_massaged.txt", "not what starts a training"),
        ("k8s/alibaba_openb_node_list.head60.csv", "is of no software that is known here"),
    ] {
        let Some(result) = read(name, None, "1 x dgx-h100", None) else {
            skipped(&root.join(name));
            continue;
        };
        let message = result.expect_err(name).to_string();
        assert!(message.contains(part) && message.contains("hint:"), "{name}:\n{message}");
    }
}

#[expect(clippy::print_stderr, reason = "a skipped test names what it misses")]
fn skipped(path: &Path) {
    eprintln!("skipped: {} is not there", path.display());
}

/// Each rank is where the plan's own functions say.
#[test]
fn a_rank_map_is_the_plans() {
    let (mut seen, mut mapped) = (0, 0);
    for_each_seed(40, |seed| {
        seen += 1;
        let case = trainyard_conformance::swarm::Case::spread(seed, 32);
        let text = scenario_of(&case);
        let Ok(loaded) = scenario::parse("case.toml", &text, Path::new("")) else { return };
        let Ok(report) = export(&loaded, ExportTarget::RankMap, &Context::default()) else { return };
        let map = report.text;
        mapped += 1;
        let of = plan(&loaded);
        let rows: Vec<Vec<&str>> =
            map.lines().filter(|line| !line.starts_with('#')).map(|line| line.split(',').collect()).collect();
        assert_eq!(rows.len() as u64, of.world() + 1, "{map}");
        let columns = &rows[0];
        let number = |row: &[&str], name: &str| {
            let at = columns.iter().position(|column| *column == name).expect("a column");
            row[at].parse::<u32>().expect("a number")
        };
        for row in &rows[1..] {
            let rank = number(row, "rank");
            let replica = number(row, "data") * of.mesh.context + number(row, "context");
            assert_eq!(of.rank(number(row, "pipeline"), replica, number(row, "tensor")).raw(), rank, "{map}");
            let device = of.device(ir::Rank::new(rank));
            let place = loaded.scenario.cluster.place(device);
            assert_eq!((number(row, "node"), number(row, "local_device")), (place.node.raw(), place.local), "{map}");
        }
        assert!(map.contains(
            "# rank = ((pipeline * data_degree + data) * context_degree + context) * tensor_degree + tensor"
        ));
    });
    assert!(seen <= 1 || mapped * 2 > seen, "{mapped} of {seen}");
}

/// A drawn plan on nodes of eight, as a scenario.
fn scenario_of(case: &trainyard_conformance::swarm::Case) -> String {
    let plan = &case.plan;
    let nodes = plan.world().div_ceil(8);
    let layers: Vec<String> = plan.stages.iter().map(|stage| format!("{:?}", stage.layers)).collect();
    let model = &case.model;
    let placement: Vec<u32> = plan.placement.iter().map(|device| device.raw()).collect();
    let most = placement.iter().max().map_or(nodes, |most| u64::from(most / 8 + 1).max(nodes));
    let placed = if placement.is_empty() { String::new() } else { format!("placement = {placement:?}\n") };
    format!(
        "cluster = \"{most} x dgx-a100\"\n[model]\nname = \"m\"\nhidden = {}\nlayers = {}\nheads = {}\nkv_heads = {}\nhead_dim = {}\nffn = {}\nvocabulary = {}\n\
         [training]\nsequence_length = {}\nglobal_batch = {}\n[plan]\ndata = {}\ntensor = {}\npipeline = {}\nlayers_per_stage = [{}]\nmicrobatch_size = {}\nmicrobatches = {}\n{placed}",
        model.hidden,
        model.layers,
        model.heads,
        model.kv_heads,
        model.head_dim,
        model.ffn,
        model.vocabulary,
        case.workload.sequence_length,
        plan.data * plan.microbatch_size * plan.microbatches,
        plan.data,
        plan.tensor,
        plan.pipeline(),
        layers.join(", "),
        plan.microbatch_size,
        plan.microbatches
    )
}

/// Rows torchtitan-0001 to 0003 of catalog/measured: what torchtitan itself published of a configuration (Llama 3.1 8B on
/// eight H100 of 500 W, December 2024), in tokens per second and device, and GiB.
#[test]
fn published_configurations_are_predicted_as_they_were_measured() {
    let check = |converters: &str, compiled: bool, (tokens_per_second, gib): (f64, f64)| {
        let text = format!(
            "[model]\nname = \"llama3\"\nflavor = \"8B\"\nconverters = [{converters}]\n[training]\nbatch_size = 2\nseq_len = 8192\n\
             compile = {compiled}\n[parallelism]\ndata_parallel_shard_degree = -1\n\
             [activation_checkpoint]\nmode = \"selective\"\nselective_ac_option = \"op\"\n"
        );
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("train.toml");
        std::fs::write(&path, text).expect("written");
        let nodes = ["1 x hgx-h100-96gb-hbm2e".to_owned()];
        let out = folder.path().join("scenario.toml");
        let request = ImportRequest { cluster: &nodes, ..request(&path, &out) };
        import(&request).unwrap_or_else(|error| panic!("{error}"));
        let planned = trainyard::plan(&load(&out), &Context::default()).unwrap_or_else(|error| panic!("{error}"));
        let measured_ms = 2.0 * 8192.0 / tokens_per_second * 1e3;
        let (found, peak) = (planned.prediction.iteration_ms, planned.prediction.memory[0].peak_gib);
        // Twice what the stack's own rows are spread by.
        assert!((found / measured_ms - 1.0).abs() < 0.06, "{found} ms, measured {measured_ms}");
        assert!((peak / gib - 1.0).abs() < 0.03, "{peak} GiB, measured {gib}");
    };
    check("", false, (5762.0, 82.4));
    check("", true, (6667.0, 77.0));
    check("\"float8\"", true, (8532.0, 76.8));
}
