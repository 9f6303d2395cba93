//! What can be asked on the command line.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};

use trainyard::scenario::{Measure, Objective, PolicyName};

use crate::ablation::AblateArguments;
use crate::exit;

/// Plans, simulates and runs hybrid-parallel training.
#[derive(Parser, Debug)]
#[command(name = "trainyard", version, about, after_help = exit::HELP, max_term_width = 100)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

/// What every verb takes.
#[derive(Args, Clone, Debug)]
pub(crate) struct Common {
    /// Write the result as JSON; `-` is standard output, in place of the summary
    #[arg(long, value_name = "FILE", global = true)]
    pub(crate) json: Option<PathBuf>,
    /// Print neither progress nor summary
    #[arg(long, short, global = true)]
    pub(crate) quiet: bool,
}

/// A scenario and where its results go.
#[derive(Args, Clone, Debug)]
pub(crate) struct OfScenario {
    /// A scenario file, or a folder with a scenario.toml
    #[arg(value_name = "SCENARIO")]
    pub(crate) scenario: PathBuf,
    /// Folder for reports and the resolved scenario
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) common: Common,
}

/// Which scores `validate` gives.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ScoreChoice {
    /// The catalog as it stands
    Fitted,
    /// Constants without the table, one factor from it
    Shape,
    /// Nothing from the table
    Cold,
    /// All three
    All,
}

/// Whose file `import` reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum FromChoice {
    /// A script that starts Megatron-LM, or a log with its block of arguments
    Megatron,
    /// torchtitan's TOML
    Torchtitan,
    /// DeepSpeed's JSON
    Deepspeed,
    /// A plan of Sailor's
    Sailor,
}

/// For whom `export` writes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ToChoice {
    /// A script that starts Megatron-LM
    Megatron,
    /// torchtitan's TOML
    Torchtitan,
    /// DeepSpeed's JSON
    Deepspeed,
    /// A table of ranks: node, device and place on every axis
    RankMap,
    /// A plan that Sailor's simulator judges
    Sailor,
}

/// What ranks compute on.
#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum ComputeDevice {
    /// This machine's cores
    Cpu,
    /// Its NVIDIA GPUs
    Cuda,
}

/// The verbs.
#[derive(Subcommand, Debug)]
pub(crate) enum Verb {
    /// Plan, simulate, train on this machine's cores and compare, in under a minute
    Quickstart {
        /// Folder for reports
        #[arg(long, value_name = "DIR", default_value = "runs/quickstart")]
        out: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Write a scenario for a model and a cluster
    Init {
        /// A model of the catalog, or a Hugging Face config.json
        #[arg(long, value_name = "MODEL")]
        model: String,
        /// Nodes by name and count; again for groups of unlike nodes
        #[arg(long, value_name = "\"32 x dgx-h100\"", required = true)]
        cluster: Vec<String>,
        /// Tokens of one sequence
        #[arg(long, value_name = "TOKENS")]
        sequence_length: Option<u32>,
        /// Sequences of one iteration
        #[arg(long, value_name = "SEQUENCES")]
        global_batch: Option<u32>,
        /// Folder for the scenario
        #[arg(long, value_name = "DIR", default_value = ".")]
        out: PathBuf,
        /// Replace a scenario that is there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Write a scenario of what Megatron-LM's, torchtitan's or DeepSpeed's own file says
    Import {
        /// A script, a log, a TOML or a JSON
        #[arg(value_name = "FILE")]
        file: PathBuf,
        /// Whose file it is; without it, its content says it
        #[arg(long, value_name = "SOFTWARE", value_enum)]
        from: Option<FromChoice>,
        /// Nodes by name and count, again for groups of unlike nodes; without it, as many as the file speaks of
        #[arg(long, value_name = "\"32 x dgx-h100\"")]
        cluster: Vec<String>,
        /// A model of the catalog, or a Hugging Face config.json, where the file does not say what is trained
        #[arg(long, value_name = "MODEL")]
        model: Option<String>,
        /// Tokens of one sequence, where the file does not say it
        #[arg(long, value_name = "TOKENS", value_parser = clap::value_parser!(u32).range(1..))]
        sequence_length: Option<u32>,
        /// Sequences of one iteration, where the file does not say it
        #[arg(long, value_name = "SEQUENCES", value_parser = clap::value_parser!(u32).range(1..))]
        global_batch: Option<u32>,
        /// The scenario to write
        #[arg(long, value_name = "FILE", default_value = "scenario.toml")]
        out: PathBuf,
        /// Replace a scenario that is there
        #[arg(long)]
        force: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Write a scenario's plan as a file of the software that trains, or as a table of ranks
    Export {
        /// A scenario file, or a folder with a scenario.toml
        #[arg(value_name = "SCENARIO")]
        scenario: PathBuf,
        /// For whom
        #[arg(long, value_name = "SOFTWARE", value_enum)]
        to: ToChoice,
        /// The file to write; without it, standard output
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Decide how a scenario is divided, and say why
    Plan {
        #[command(flatten)]
        of: OfScenario,
        /// Who decides, in place of the scenario's policy or written plan: megatron, exhaustive, dynprog, mcts,
        /// mcts-seeded (which begins from the answer of dynprog) or random
        #[arg(long, value_name = "POLICY", value_parser = policy)]
        policy: Option<PolicyName>,
        /// What is made small, in place of what the scenario says: time, money or energy
        #[arg(long, value_name = "OBJECTIVE", value_parser = objective)]
        objective: Option<Objective>,
        /// Show the plans too that no other beats in all of these: time, money, energy, memory
        #[arg(long, value_name = "MEASURES", num_args = 0..=1, require_equals = true,
              default_missing_value = "time,money,energy,memory", value_parser = measures)]
        pareto: Option<Measures>,
    },
    /// Search for the order of devices that is fastest for a scenario's plan, and say what it gains
    Place {
        #[command(flatten)]
        of: OfScenario,
        /// Measured rates between all devices: a square table whose first cell is a unit, or what p2pBandwidthLatencyTest or
        /// nvbandwidth prints
        #[arg(long, value_name = "FILE", conflicts_with = "topology")]
        matrix: Option<PathBuf>,
        /// What `nvidia-smi topo -m` prints of a node, Slurm's topology.conf, or what nccl-tests prints with its list of ranks
        #[arg(long, value_name = "FILE")]
        topology: Option<PathBuf>,
        /// Orders that may be evaluated
        #[arg(long, value_name = "EVALUATIONS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
        budget: u64,
    },
    /// Simulate one iteration of a scenario
    Simulate(OfScenario),
    /// Say where a step goes, what each part would give back, and what would make a plan fit
    Explain(OfScenario),
    /// Answer the questions of a scenario's `size`: how many nodes, tokens for a budget, largest model, network
    Size(OfScenario),
    /// Train a scenario on this machine's cores, or its GPUs
    Run {
        #[command(flatten)]
        of: OfScenario,
        /// What ranks compute on, in place of what the scenario's `run` says
        #[arg(long, value_enum, value_name = "DEVICE")]
        device: Option<ComputeDevice>,
        /// Ranks on each GPU; without it, a GPU for each rank
        #[arg(long, value_name = "RANKS", value_parser = clap::value_parser!(u32).range(1..))]
        ranks_per_gpu: Option<u32>,
        /// Go on from this checkpoint, or the newest whole one of this folder, in place of the scenario's own
        #[arg(long, value_name = "FOLDER")]
        resume: Option<PathBuf>,
    },
    /// Train a scenario with a process of this host for each rank; under torchrun, srun or mpirun, use `run`
    Launch {
        #[command(flatten)]
        of: OfScenario,
        /// How many processes: the plan's number of ranks
        #[arg(long, value_name = "PROCESSES", value_parser = clap::value_parser!(u32).range(1..))]
        nproc: u32,
        /// How long a process may say nothing before it counts as stopped
        #[arg(long, value_name = "SECONDS", default_value = "10s", value_parser = seconds)]
        silence: Duration,
        /// How many times lost processes are started again
        #[arg(long, value_name = "TIMES", default_value_t = 3)]
        restarts: u32,
        /// Go on from this checkpoint, or the newest whole one of this folder, in place of the scenario's own
        #[arg(long, value_name = "FOLDER")]
        resume: Option<PathBuf>,
        /// Where no checkpoints are written, keep the state to go on from in memory after every so many iterations
        #[arg(long, value_name = "ITERATIONS", default_value_t = 20, value_parser = clap::value_parser!(u64).range(1..))]
        keep_every: u64,
    },
    /// One of the processes that `launch` starts
    #[command(hide = true)]
    Worker {
        #[command(flatten)]
        common: Common,
    },
    /// Simulate and train a scenario, and compare instruction by instruction
    Compare(OfScenario),
    /// Measure this machine's CPU for the simulator, in under a minute; or fit a test bed's software to its measured rows
    Calibrate {
        /// The calibration to write; without it, runs/cpu.toml, or runs/stacks.toml with --rows
        #[arg(long, value_name = "FILE")]
        out: Option<PathBuf>,
        /// A table of measured rows: their software's constants are fitted, in place of measuring this machine
        #[arg(long, value_name = "FILE")]
        rows: Option<PathBuf>,
        /// Fit to so many of the rows, and predict the others
        #[arg(long, value_name = "ROWS", requires = "rows", value_parser = clap::value_parser!(u32).range(2..))]
        take: Option<u32>,
        /// Which rows: the same seed takes the same
        #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "take")]
        seed: u64,
        #[command(flatten)]
        common: Common,
    },
    /// Hold every scenario of a folder against its expected results
    Check {
        /// Folder of scenario folders, each with expected/
        #[arg(long, value_name = "DIR", required_unless_present = "scoreboard")]
        baseline: Option<PathBuf>,
        /// Hold the errors on the project's measured rows against a published scoreboard.json instead
        #[arg(long, value_name = "FILE", conflicts_with_all = ["baseline", "tolerance", "junit", "markdown", "update"])]
        scoreboard: Option<PathBuf>,
        /// Relative change that still counts as the same
        #[arg(long, value_name = "PERCENT", default_value = "3%", value_parser = percent)]
        tolerance: f64,
        /// Also write the checks as JUnit XML
        #[arg(long, value_name = "FILE")]
        junit: Option<PathBuf>,
        /// Also write the table as Markdown
        #[arg(long, value_name = "FILE")]
        markdown: Option<PathBuf>,
        /// Write what comes out as the new baselines
        #[arg(long)]
        update: bool,
        #[command(flatten)]
        common: Common,
    },
    /// Predict measured runs and hold the predictions against what was measured
    Validate {
        /// Tables of measured rows; without them, the project's own
        #[arg(value_name = "FILE")]
        files: Vec<PathBuf>,
        /// Know nothing of a table: what rests on it is fitted again to the others
        #[arg(long, value_name = "TABLE")]
        leave_out: Option<String>,
        /// Fit the constants of software stacks to the project's tables and these, in place of taking the catalog's
        #[arg(long)]
        refit: bool,
        /// Write the stacks as a catalog; of a file that is there, all but its `stack` rows stays
        #[arg(long, value_name = "FILE", requires = "refit")]
        write_stacks: Option<PathBuf>,
        /// What predictions may know of a table
        #[arg(long, value_name = "SCORE", default_value = "all", value_enum)]
        score: ScoreChoice,
        /// Measured plans in Sailor's format, a file or a folder, in place of tables: predicted with a scenario
        #[arg(long, value_name = "PATH", requires = "scenario", conflicts_with_all = ["files", "leave_out", "refit"])]
        plans: Option<PathBuf>,
        /// The cluster, model, training and profiles of those plans
        #[arg(long, value_name = "SCENARIO", requires = "plans")]
        scenario: Option<PathBuf>,
        /// Sizes of the model's layers, for the memory of those plans
        #[arg(long, value_name = "FILE", requires = "plans")]
        layers: Option<PathBuf>,
        /// Folder for the page: scoreboard.md, .html, .csv, .json and pictures; of plans, sailor.md
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Hold two results, plans or scenarios against each other, largest cause first
    Diff {
        /// simulate.json, plan.json or a scenario
        #[arg(value_name = "BEFORE")]
        before: PathBuf,
        /// The same, to be held against it
        #[arg(value_name = "AFTER")]
        after: PathBuf,
        /// Folder for the page
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Evaluate many variations of a scenario on all cores
    Sweep {
        /// A scenario file, or a folder with a scenario.toml
        #[arg(value_name = "SCENARIO")]
        scenario: PathBuf,
        /// A key with its values, as in plan.tensor=1,2,4 or plan.pipeline=1..16:x2; again for further keys
        #[arg(long, value_name = "KEY=VALUES", required_unless_present = "list")]
        vary: Vec<String>,
        /// So many draws from the values, in place of every combination
        #[arg(long, value_name = "POINTS", requires = "vary", value_parser = clap::value_parser!(u64).range(1..))]
        random: Option<u64>,
        /// The seed of the draws
        #[arg(long, value_name = "NUMBER", default_value_t = 0, requires = "random")]
        seed: u64,
        /// Points as a CSV file, whose headings are keys
        #[arg(long, value_name = "FILE", conflicts_with = "vary")]
        list: Option<PathBuf>,
        /// Simulate every point, in place of the closed form
        #[arg(long)]
        simulate: bool,
        /// Folder for the table and its page; a sweep that was stopped there goes on
        #[arg(long, value_name = "DIR")]
        out: PathBuf,
        #[command(flatten)]
        common: Common,
    },
    /// Train the network of the policy `learned` in simulation, and score it on clusters and models that it has not seen
    TrainPolicy {
        /// The weights to write; without it, runs/learned.weights. What goes on from there lies beside it
        #[arg(long, value_name = "FILE")]
        weights: Option<PathBuf>,
        /// The seed of all draws
        #[arg(long, value_name = "NUMBER", default_value_t = 1)]
        seed: u64,
        /// Searches to learn from
        #[arg(long, value_name = "SEARCHES", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
        searches: u64,
        /// Evaluations of each
        #[arg(long, value_name = "EVALUATIONS", default_value_t = 100, value_parser = clap::value_parser!(u64).range(1..))]
        evaluations: u64,
        /// Go on with a training that was stopped, or beyond its searches
        #[arg(long, conflicts_with = "score_only")]
        resume: bool,
        /// Score the weights that are there, and train nothing
        #[arg(long)]
        score_only: bool,
        /// Jobs to score on
        #[arg(long, value_name = "JOBS", default_value_t = 40, value_parser = clap::value_parser!(u64).range(1..))]
        jobs: u64,
        /// Folder for the page: learned.md, .html and .json
        #[arg(long, value_name = "DIR")]
        out: Option<PathBuf>,
        #[command(flatten)]
        common: Common,
    },
    /// Hold policies against each other over scenarios and seeds, on all cores or in shards
    Ablate(Box<AblateArguments>),
    /// Print the JSON Schema of scenario files
    Schema {
        #[command(flatten)]
        common: Common,
    },
    /// Say what this machine can do and what stands in the way
    Doctor {
        #[command(flatten)]
        common: Common,
    },
}

impl Verb {
    /// Its name.
    pub(crate) const fn name(&self) -> &'static str {
        match self {
            Self::Quickstart { .. } => "quickstart",
            Self::Init { .. } => "init",
            Self::Import { .. } => "import",
            Self::Export { .. } => "export",
            Self::Plan { .. } => "plan",
            Self::Place { .. } => "place",
            Self::Simulate(_) => "simulate",
            Self::Explain(_) => "explain",
            Self::Size(_) => "size",
            Self::Run { .. } => "run",
            Self::Launch { .. } => "launch",
            Self::Worker { .. } => "worker",
            Self::Compare(_) => "compare",
            Self::Calibrate { .. } => "calibrate",
            Self::Check { .. } => "check",
            Self::Validate { .. } => "validate",
            Self::Diff { .. } => "diff",
            Self::Sweep { .. } => "sweep",
            Self::TrainPolicy { .. } => "train-policy",
            Self::Ablate(_) => "ablate",
            Self::Schema { .. } => "schema",
            Self::Doctor { .. } => "doctor",
        }
    }
    /// What every verb takes.
    pub(crate) const fn common(&self) -> &Common {
        match self {
            Self::Quickstart { common, .. }
            | Self::Init { common, .. }
            | Self::Import { common, .. }
            | Self::Export { common, .. }
            | Self::Calibrate { common, .. }
            | Self::Check { common, .. }
            | Self::Validate { common, .. }
            | Self::Diff { common, .. }
            | Self::Sweep { common, .. }
            | Self::TrainPolicy { common, .. }
            | Self::Schema { common }
            | Self::Worker { common }
            | Self::Doctor { common } => common,
            Self::Ablate(asked) => &asked.common,
            Self::Plan { of, .. }
            | Self::Place { of, .. }
            | Self::Simulate(of)
            | Self::Explain(of)
            | Self::Size(of)
            | Self::Compare(of)
            | Self::Run { of, .. }
            | Self::Launch { of, .. } => &of.common,
        }
    }
}

/// What a front weighs.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Measures(pub(crate) Vec<Measure>);

/// `time,money`.
fn measures(text: &str) -> Result<Measures, String> {
    let names = Measure::ALL.map(Measure::name).join(", ");
    let one = |word: &str| {
        let found = Measure::ALL.into_iter().find(|measure| measure.name() == word.trim());
        found.ok_or_else(|| format!("nothing weighs `{word}`; there are {names}"))
    };
    let found = text.split(',').map(one).collect::<Result<Vec<_>, _>>()?;
    let twice = found.iter().enumerate().find(|(at, measure)| found[..*at].contains(measure));
    match (twice, found.len()) {
        (Some((_, measure)), _) => Err(format!("{} is there twice", measure.name())),
        (None, 1) => Err(format!("a front weighs two or more of {names}")),
        (None, _) => Ok(Measures(found)),
    }
}

/// An objective by its name.
fn objective(text: &str) -> Result<Objective, String> {
    let names = Objective::ALL.map(Objective::name).join(", ");
    let found = Objective::ALL.into_iter().find(|objective| objective.name() == text);
    found.ok_or_else(|| format!("there is no objective `{text}`; there are {names}"))
}

/// A policy by its name.
pub(crate) fn policy(text: &str) -> Result<PolicyName, String> {
    let names = PolicyName::ALL.map(PolicyName::name).join(", ");
    PolicyName::from_name(text).ok_or_else(|| format!("there is no policy `{text}`; there are {names}"))
}

/// `3%` is 0.03. The sign is required, as every unit is.
fn percent(text: &str) -> Result<f64, String> {
    let number = text.strip_suffix('%').ok_or("write it in percent, such as 3%")?;
    let number: f64 = number.trim().parse().map_err(|_| format!("`{number}` is not a number"))?;
    if (0.0..=100.0).contains(&number) { Ok(number / 100.0) } else { Err("must be between 0% and 100%".to_owned()) }
}

/// `10s` is ten seconds. The unit is required, as every unit is.
fn seconds(text: &str) -> Result<Duration, String> {
    let number = text.strip_suffix('s').ok_or("write it in seconds, such as 10s")?;
    let number: f64 = number.trim().parse().map_err(|_| format!("`{number}` is not a number"))?;
    if (0.1..=86_400.0).contains(&number) {
        Ok(Duration::from_secs_f64(number))
    } else {
        Err("must be between 0.1s and 86400s".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory as _;

    #[test]
    fn the_arguments_are_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn a_front_weighs_two_or_more() {
        let check = |text: &str, expect: Option<&[Measure]>| {
            assert_eq!(measures(text).ok().map(|Measures(list)| list).as_deref(), expect, "{text}");
        };
        check("time,money", Some(&[Measure::Time, Measure::Money]));
        check("memory, time ,energy", Some(&[Measure::Memory, Measure::Time, Measure::Energy]));
        check("time", None);
        check("time,time", None);
        check("time,price", None);
        check("", None);
        let read = |words: &[&str]| Arguments::try_parse_from(words).ok().map(|read| read.verb);
        let front = |words: &[&str]| match read(words) {
            Some(Verb::Plan { pareto, of, .. }) => pareto.map(|Measures(list)| (list.len(), of.scenario)),
            _ => None,
        };
        assert_eq!(front(&["trainyard", "plan", "--pareto", "s"]), Some((4, PathBuf::from("s"))));
        assert_eq!(front(&["trainyard", "plan", "s", "--pareto=time,energy"]), Some((2, PathBuf::from("s"))));
        assert!(read(&["trainyard", "plan", "s", "--objective", "speed"]).is_none());
    }

    #[test]
    fn a_silence_needs_its_unit() {
        let check = |text: &str, expect: Option<u64>| {
            assert_eq!(seconds(text).ok(), expect.map(Duration::from_millis), "{text}");
        };
        check("10s", Some(10_000));
        check("0.5s", Some(500));
        check("10", None);
        check("0s", None);
        check("nans", None);
    }

    #[test]
    fn a_tolerance_needs_its_unit() {
        let check = |text: &str, expect: Option<f64>| assert_eq!(percent(text).ok(), expect, "{text}");
        check("3%", Some(0.03));
        check("0%", Some(0.0));
        check("12.5 %", Some(0.125));
        check("3", None);
        check("-1%", None);
        check("nan%", None);
        check("x%", None);
        check("101%", None);
    }
}
