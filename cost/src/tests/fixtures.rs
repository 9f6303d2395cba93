//! Models, clusters and shapes that tests share.

use ir::counts::Shape;
use ir::program::{Chunk, Layout};
use ir::{
    AdamW, AttentionKernel, Bytes, BytesPerSecond, Cluster, CollectiveAlgorithm, DeviceKind, DeviceKindId, Fabric,
    FlopsPerSecond, Link, MlpKind, Model, NodeGroup, NodeKind, NodeKindId, NormKind, Positions, Precision, Recompute,
    SimDuration, StageId, Workload, ZeroStage,
};

use crate::{Calibration, CostModel};

pub(crate) fn catalog(name: &str) -> Calibration {
    let path = format!("{}/../catalog/calibration/{name}.toml", env!("CARGO_MANIFEST_DIR"));
    let text = std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{path}: {error}"));
    Calibration::from_toml(&text, &path).unwrap_or_else(|problems| panic!("{problems:?}"))
}

pub(crate) fn link(name: &str, bytes_per_second: f64, latency_ns: u64) -> Link {
    Link {
        name: name.to_owned(),
        bandwidth: BytesPerSecond::new(bytes_per_second).unwrap(),
        latency: SimDuration::from_nanoseconds(latency_ns),
        efficiency: None,
    }
}

pub(crate) fn device(name: &str, calibration: &str, teraflops: f64, bandwidth: f64, processors: u32) -> DeviceKind {
    let rate = FlopsPerSecond::new(teraflops * 1e12).unwrap();
    DeviceKind {
        name: name.to_owned(),
        calibration: calibration.to_owned(),
        peak: vec![(Precision::Fp16, rate), (Precision::Bf16, rate), (Precision::Fp32, rate)],
        memory: Bytes::from_gib(80),
        memory_bandwidth: BytesPerSecond::new(bandwidth).unwrap(),
        multiprocessors: processors,
        slowdown: 1.0,
        tdp_watts: None,
        usd_per_hour: None,
        price_source: None,
        source: "test".to_owned(),
    }
}

pub(crate) fn a100() -> DeviceKind {
    device("a100", "a100", 312.0, 2.039e12, 108)
}

/// `nodes` nodes of `per_node` devices of one kind.
pub(crate) fn cluster(kind: DeviceKind, nodes: u32, per_node: u32, nics: u32, domain: Link, nic: Link) -> Cluster {
    Cluster {
        device_kinds: vec![kind],
        node_kinds: vec![NodeKind {
            name: "node".to_owned(),
            devices: vec![DeviceKindId::new(0); per_node as usize],
            domain_size: per_node,
            host_link: domain.clone(),
            domain_link: domain,
            nics,
            nic,
        }],
        groups: vec![NodeGroup { kind: NodeKindId::new(0), count: nodes }],
        fabric: Fabric::one_switch(),
    }
}

pub(crate) fn dgx_a100(nodes: u32) -> CostModel {
    let cluster = cluster(a100(), nodes, 8, 8, link("nvlink3", 300e9, 1500), link("ib-hdr", 25e9, 1750));
    CostModel::new(cluster, vec![catalog("a100")]).unwrap()
}

/// A calibration without protocols, fits or shares: links are what they say.
pub(crate) fn plain_links() -> Calibration {
    Calibration {
        protocol: vec![],
        collective_fit: vec![],
        link: vec![],
        message_fit: vec![],
        measured: None,
        ..catalog("a100")
    }
}

pub(crate) fn gpt(hidden: u32, layers: u32, heads: u32) -> Model {
    Model {
        name: "gpt".to_owned(),
        hidden,
        layers,
        heads,
        kv_heads: heads,
        head_dim: hidden / heads,
        ffn: 4 * hidden,
        vocabulary: 51_200,
        norm: NormKind::LayerNorm,
        norm_epsilon: 1e-5,
        positions: Positions::Learned { maximum: 2048 },
        mlp: MlpKind::Gelu,
        qkv_bias: true,
        projection_bias: true,
        mlp_bias: true,
        tied_head: true,
        variants: ir::Variants::default(),
    }
}

pub(crate) fn workload(precision: Precision, attention: AttentionKernel) -> Workload {
    Workload {
        sequence_length: 2048,
        global_batch: 8,
        iterations: 1,
        precision,
        attention,
        vocabulary_divisor: 128,
        optimizer: AdamW::default(),
        seed: 0,
        recipe: ir::Recipe::default(),
    }
}

pub(crate) fn layout(tensor: u32, sequence_parallel: bool, microbatch_size: u32) -> Layout {
    Layout {
        data: 1,
        tensor,
        tensors: Vec::new(),
        pipeline: 1,
        sequence_parallel,
        microbatch_size,
        microbatches: 1,
        shares: ir::Shares::EQUAL,
        zero: ZeroStage::Zero0,
        collective: CollectiveAlgorithm::Automatic,
        mesh: ir::Mesh::default(),
        sharing: ir::Sharing::default(),
    }
}

pub(crate) fn chunk(layers: u32, embedding: bool, head: bool, recompute: Recompute) -> Chunk {
    let stage = StageId::new(0);
    Chunk { stage, first_layer: 0, layers, embedding, head, recompute, recomputed_layers: layers }
}

/// Everything a [`Shape`] borrows.
pub(crate) struct Owned(pub(crate) Model, pub(crate) Workload, pub(crate) Layout);

impl Owned {
    pub(crate) fn shape(&self) -> Shape<'_> {
        Shape { model: &self.0, workload: &self.1, layout: &self.2 }
    }
}

/// A seeded generator for swarms (Steele et al. 2014, SplitMix64).
pub(crate) struct Draw(pub(crate) u64);

impl Draw {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
    pub(crate) fn below(&mut self, bound: u64) -> u64 {
        self.next() % bound
    }
    pub(crate) fn of<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[usize::try_from(self.below(choices.len() as u64)).unwrap()]
    }
    pub(crate) fn small(&mut self, bound: u32) -> u32 {
        u32::try_from(self.below(u64::from(bound))).unwrap()
    }
}

/// A prediction of two seconds of computation.
pub(super) fn bare(basis: ir::prediction::BasisShare) -> ir::Prediction {
    let iteration = ir::SimDuration::from_seconds(2.0).expect("a time");
    let mut breakdown = ir::Breakdown::default();
    breakdown.add(ir::Activity::Compute, iteration);
    ir::Prediction {
        iteration,
        interval: None,
        breakdown,
        bubble_rate: None,
        memory: Vec::new(),
        basis,
        at_risk: ir::prediction::AtRisk::default(),
        expense: ir::Expense::default(),
    }
}
