//! The cases of the accuracy study: plans, models, and devices alike or not.

use std::fmt::Write as _;

/// One plan of one model on emulated or real cores.
#[derive(Clone, Debug)]
pub struct Case {
    /// What it is, for tables.
    pub name: String,
    /// Whether its devices differ.
    pub unlike: bool,
    model: &'static str,
    shape: &'static Shape,
}

/// A plan, as scenario text, and where it runs.
#[derive(Debug)]
struct Shape {
    name: &'static str,
    nodes: &'static str,
    /// Emulation factors, one per device; empty for real cores.
    factors: &'static [f64],
    /// More keys of `[emulate]`.
    emulate: &'static str,
    plan: &'static str,
}

const MODELS: [&str; 3] = ["small-llama", "small-gpt", "llama-6m"];
const MIXTURES: [&str; 1] = ["small-mixture"];

const LINK: &str = "between_nodes = { bandwidth = \"400Mbps\", latency = \"200us\" }";

/// Sums of 1/factor stay below two cores / 1.3.
const SHAPES: &[Shape] = &[
    Shape { name: "one rank", nodes: "1 x cpu-1", factors: &[], emulate: "", plan: "microbatch_size = 2" },
    Shape {
        name: "data 2",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "data = 2\nmicrobatch_size = 2\nzero = 1",
    },
    Shape { name: "tensor 2", nodes: "1 x cpu-2", factors: &[], emulate: "", plan: "tensor = 2\nmicrobatch_size = 4" },
    Shape {
        name: "pipeline 2, full recomputation",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "pipeline = 2\nmicrobatch_size = 2\nrecompute = \"full\"",
    },
    Shape {
        name: "pipeline 4, GPipe",
        nodes: "1 x cpu-4",
        factors: &[3.0; 4],
        emulate: "",
        plan: "pipeline = 4\nmicrobatch_size = 2\nschedule = \"gpipe\"",
    },
    Shape {
        name: "pipeline 4, ZB-H1",
        nodes: "1 x cpu-4",
        factors: &[3.0; 4],
        emulate: "",
        plan: "pipeline = 4\nmicrobatch_size = 2\nschedule = \"zero-bubble-h1\"",
    },
    Shape {
        name: "data 2, pipeline 2 over a slow link",
        nodes: "2 x cpu-2",
        factors: &[3.0; 4],
        emulate: LINK,
        plan: "data = 2\npipeline = 2\nmicrobatch_size = 2",
    },
    Shape {
        name: "pipeline 4, unlike, layers 3 3 1 1",
        nodes: "1 x cpu-4",
        factors: &[2.5, 2.5, 5.0, 4.0],
        emulate: "",
        plan: "pipeline = 4\nmicrobatch_size = 2\nlayers_per_stage = [3, 3, 1, 1]",
    },
    Shape {
        name: "pipeline 2, interleaved, unlike",
        nodes: "1 x cpu-2",
        factors: &[2.0, 4.0],
        emulate: "",
        plan: "pipeline = 2\nmicrobatch_size = 2\nchunks_per_stage = 2\nschedule = \"interleaved\"",
    },
    Shape {
        name: "data 2, tensor 2 in sequence, unlike replicas",
        nodes: "1 x cpu-4",
        factors: &[3.0, 3.0, 5.0, 5.0],
        emulate: "",
        plan: "data = 2\ntensor = 2\nsequence_parallel = true\nmicrobatch_size = 2",
    },
    Shape {
        name: "data 2, ZeRO-3",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "data = 2\nmicrobatch_size = 2\nzero = 3",
    },
    Shape {
        name: "data 4, ZeRO-3 over 2, prefetch over a slow link",
        nodes: "2 x cpu-2",
        factors: &[3.0; 4],
        emulate: LINK,
        plan: "data = 4\nmicrobatch_size = 2\nzero = 3\nshard = 2\nprefetch = true",
    },
    Shape {
        name: "pipeline 2, ZeRO-2 over 2 unlike replicas",
        nodes: "1 x cpu-4",
        factors: &[3.0, 3.0, 5.0, 5.0],
        emulate: "",
        plan: "data = 2\npipeline = 2\nmicrobatch_size = 2\nzero = 2",
    },
    Shape {
        name: "activations in host memory",
        nodes: "1 x cpu-1",
        factors: &[],
        emulate: "",
        plan: "microbatch_size = 2\noffload = [\"activations\"]",
    },
    Shape {
        name: "pipeline 2, optimizer in host memory",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "pipeline = 2\nmicrobatch_size = 2\noffload = [\"optimizer\"]",
    },
    Shape {
        name: "single operations again, 4 of 8 layers",
        nodes: "1 x cpu-1",
        factors: &[],
        emulate: "",
        plan: "microbatch_size = 2\nrecompute = \"operations\"\nrecompute_layers = 4",
    },
    Shape {
        name: "context 2, ring",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "context = 2\nmicrobatch_size = 2",
    },
    Shape {
        name: "context 2 by heads, data 2 over a slow link",
        nodes: "2 x cpu-2",
        factors: &[3.0; 4],
        emulate: LINK,
        plan: "data = 2\ncontext = 2\ncontext_method = \"all-to-all\"\nmicrobatch_size = 2",
    },
];

/// Plans of models with experts.
const SHAPES_OF_EXPERTS: &[Shape] = &[
    Shape { name: "one rank", nodes: "1 x cpu-1", factors: &[], emulate: "", plan: "microbatch_size = 2" },
    Shape {
        name: "data 2, all experts on each",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "data = 2\nmicrobatch_size = 2\nzero = 1",
    },
    Shape {
        name: "experts over 2 of 2 replicas",
        nodes: "1 x cpu-2",
        factors: &[],
        emulate: "",
        plan: "data = 2\nexpert = 2\nmicrobatch_size = 2",
    },
    Shape {
        name: "experts over 2, pipeline 2 over a slow link",
        nodes: "2 x cpu-2",
        factors: &[3.0; 4],
        emulate: LINK,
        plan: "data = 2\npipeline = 2\nexpert = 2\nmicrobatch_size = 2",
    },
    Shape {
        name: "experts over 4, unlike",
        nodes: "1 x cpu-4",
        factors: &[3.0, 3.0, 5.0, 5.0],
        emulate: "",
        plan: "data = 4\nexpert = 4\nmicrobatch_size = 2",
    },
    Shape { name: "tensor 2", nodes: "1 x cpu-2", factors: &[], emulate: "", plan: "tensor = 2\nmicrobatch_size = 4" },
];

/// All cases: every shape with every model that has it.
#[must_use]
pub fn cases() -> Vec<Case> {
    let of_model = |shapes: &'static [Shape], model: &'static str| {
        shapes.iter().map(move |shape| Case {
            name: format!("{model}, {}", shape.name),
            unlike: shape.factors.windows(2).any(|pair| pair[0].total_cmp(&pair[1]).is_ne()),
            model,
            shape,
        })
    };
    let dense = MODELS.into_iter().flat_map(|model| of_model(SHAPES, model));
    dense.chain(MIXTURES.into_iter().flat_map(|model| of_model(SHAPES_OF_EXPERTS, model))).collect()
}

impl Case {
    /// Its devices, in words.
    #[must_use]
    pub fn devices(&self) -> String {
        match self.shape.factors {
            [] => "real cores".to_owned(),
            factors => {
                format!("emulated, factors {}", factors.iter().map(f64::to_string).collect::<Vec<_>>().join(" "))
            }
        }
    }

    /// The scenario, priced by a calibration given as text.
    #[must_use]
    pub fn scenario(&self, calibration: &str) -> String {
        let Shape { nodes, factors, emulate, plan, .. } = self.shape;
        let mut text = format!("name = \"accuracy\"\nseed = 1\n\n[cluster]\nnodes = \"{nodes}\"\n\n");
        if !factors.is_empty() {
            let list: Vec<String> = factors.iter().map(|factor| format!("{factor:?}")).collect();
            let _ = writeln!(text, "[emulate]\nfactors = [{}]\n{emulate}\n", list.join(", "));
        }
        let _ = writeln!(text, "[model]\nname = \"{}\"\n", self.model);
        let _ = writeln!(text, "[training]\nsequence_length = 64\nglobal_batch = 16\niterations = 8\n");
        let _ = writeln!(text, "[plan]\n{plan}\n");
        let _ = writeln!(text, "[cost]\ncalibration = '''\n{calibration}'''");
        text
    }
}
