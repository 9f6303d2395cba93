//! Where jobs for training come from: clusters and models drawn from families. What is not handed over is never seen.

use cost::{Calibration, CostModel};
use ir::{
    AdamW, AttentionKernel, BytesPerSecond, Cluster, DeviceKindId, Fabric, LayerRun, Model, NodeGroup, NodeKindId,
    Precision, Recipe, Workload,
};
use rand::RngExt;
use rand_chacha::ChaCha8Rng;

/// What is drawn from.
#[derive(Clone, Debug)]
pub struct Families {
    /// Clusters of one node each: the kinds of node.
    pub nodes: Vec<Cluster>,
    /// The models.
    pub models: Vec<Model>,
    /// Calibrations of all devices.
    pub calibrations: Vec<Calibration>,
}

/// A job that was drawn.
#[derive(Clone, Debug)]
pub struct Drawn {
    /// What is trained.
    pub model: Model,
    /// How.
    pub workload: Workload,
    /// On what, with its prices.
    pub cost: CostModel,
}

impl Drawn {
    /// In a few words: "gpt-13b on 4 x dgx-a100 + 2 x p3dn, 256 sequences of 2048".
    #[must_use]
    pub fn words(&self) -> String {
        let cluster = self.cost.cluster();
        let nodes =
            cluster.groups.iter().map(|group| format!("{} x {}", group.count, cluster.node_kind(group.kind).name));
        let nodes = nodes.collect::<Vec<_>>().join(" + ");
        let (batch, sequence) = (self.workload.global_batch, self.workload.sequence_length);
        format!("{} ({} layers) on {nodes}, {batch} sequences of {sequence}", self.model.name, self.model.layers)
    }
}

/// Devices of a cluster, as powers of two.
const DEVICES: std::ops::RangeInclusive<u32> = 2..=8;
/// Bytes of a parameter's whole state of training: what memory must hold between all devices.
const STATE_BYTES: f64 = 18.0;

impl Families {
    /// Names of the kinds of node, in order.
    #[must_use]
    pub fn node_names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.nodes.iter().flat_map(|node| node.node_kinds.iter().map(|kind| kind.name.clone())).collect();
        names.sort();
        names.dedup();
        names
    }
    /// Names of the models, in order.
    #[must_use]
    pub fn model_names(&self) -> Vec<String> {
        let mut names: Vec<String> = self.models.iter().map(|model| model.name.clone()).collect();
        names.sort();
        names.dedup();
        names
    }

    /// A job: 4 to 256 devices, of one kind in three of five draws and else of two; a model whose state fills between a
    /// thousandth and nine tenths of all memory, with up to half of its layers more or fewer; a batch of a half to sixteen
    /// sequences a device.
    ///
    /// # Panics
    /// If there is no node, no model, or no calibration of a device.
    #[must_use]
    pub fn draw(&self, rng: &mut ChaCha8Rng) -> Drawn {
        loop {
            let cluster = self.cluster(rng);
            let memory: f64 = device_memory(&cluster);
            let model = self.model(rng);
            let share = STATE_BYTES * model.parameters() as f64 / memory;
            if !(1e-3..0.9).contains(&share) {
                continue;
            }
            let workload = workload(rng, &cluster, &model);
            let Ok(cost) = CostModel::new(cluster, self.calibrations.clone()) else {
                panic!("a kind of node has no calibration")
            };
            return Drawn { model, workload, cost };
        }
    }

    fn cluster(&self, rng: &mut ChaCha8Rng) -> Cluster {
        let devices = 1u32 << rng.random_range(DEVICES);
        let kinds = if rng.random_range(0..5) < 3 { 1 } else { 2 };
        let mut cluster = Cluster {
            device_kinds: Vec::new(),
            node_kinds: Vec::new(),
            groups: Vec::new(),
            fabric: Fabric::one_switch(),
        };
        for _ in 0..kinds {
            let node = &self.nodes[rng.random_range(0..self.nodes.len())];
            let size = u32::try_from(node.devices().max(1)).unwrap_or(u32::MAX);
            let share = if rng.random_range(0..2) == 0 { 1 } else { 2 };
            join(&mut cluster, node, (devices * share / (kinds * 2) / size).max(1));
        }
        // Networks differ more than the nodes of a catalog do.
        let factor = [0.25, 0.5, 1.0, 1.0, 1.0, 2.0][rng.random_range(0..6)];
        for node in &mut cluster.node_kinds {
            node.nic.bandwidth = BytesPerSecond::new(node.nic.bandwidth.get() * factor).expect("still a rate");
        }
        if rng.random_range(0..8) == 0 {
            cluster.fabric = Fabric { leaf_nodes: 4, oversubscription: 2.0, ..Fabric::one_switch() };
        }
        cluster
    }

    fn model(&self, rng: &mut ChaCha8Rng) -> Model {
        let mut model = self.models[rng.random_range(0..self.models.len())].clone();
        // A model whose layers are alike may have more or fewer of them.
        if rng.random_range(0..2) == 0 {
            let layers = (model.layers * rng.random_range(2..=6) / 4).max(2);
            match &mut model.variants.pattern[..] {
                [] => model.layers = layers,
                [LayerRun { layers: run, .. }] => {
                    *run = layers;
                    model.layers = layers;
                }
                _ => {}
            }
        }
        model
    }
}

fn device_memory(cluster: &Cluster) -> f64 {
    let of = |group: &NodeGroup| {
        let node = cluster.node_kind(group.kind);
        let bytes: f64 = node.devices.iter().map(|kind| cluster.device_kind(*kind).memory.get() as f64).sum();
        f64::from(group.count) * bytes
    };
    cluster.groups.iter().map(of).sum()
}

/// Adds `count` nodes of the kind that a cluster of one node has.
fn join(cluster: &mut Cluster, node: &Cluster, count: u32) {
    let kind = &node.node_kinds[node.groups[0].kind.index()];
    if let Some(at) = cluster.node_kinds.iter().position(|known| known.name == kind.name) {
        cluster.groups.push(NodeGroup { kind: NodeKindId::at(at), count });
        return;
    }
    let first = cluster.device_kinds.len();
    cluster.device_kinds.extend(node.device_kinds.iter().cloned());
    let mut kind = kind.clone();
    kind.devices.iter_mut().for_each(|device| *device = DeviceKindId::at(first + device.index()));
    cluster.node_kinds.push(kind);
    cluster.groups.push(NodeGroup { kind: NodeKindId::at(cluster.node_kinds.len() - 1), count });
}

/// The format that is fastest on the slowest device of those that all have.
fn precision(cluster: &Cluster) -> Precision {
    let all = |precision: &Precision| cluster.device_kinds.iter().all(|kind| kind.peak(*precision).is_some());
    [Precision::Bf16, Precision::Fp16].into_iter().find(all).unwrap_or(Precision::Fp32)
}

fn workload(rng: &mut ChaCha8Rng, cluster: &Cluster, model: &Model) -> Workload {
    let most = match model.positions {
        ir::Positions::Learned { maximum } => maximum,
        ir::Positions::Rope { .. } | ir::Positions::None => u32::MAX,
    };
    let sequence = [1024, 2048, 2048, 4096, 4096, 8192, 32768][rng.random_range(0..7)];
    let devices = u32::try_from(cluster.devices()).unwrap_or(u32::MAX).next_power_of_two();
    let batch = (devices / 2).max(4) << rng.random_range(0..6);
    let batch = if rng.random_range(0..4) == 0 { batch / 4 * 3 } else { batch };
    Workload {
        sequence_length: sequence.min(most),
        global_batch: batch.min(4096),
        iterations: 1,
        precision: precision(cluster),
        attention: AttentionKernel::Fused,
        vocabulary_divisor: 128,
        optimizer: AdamW::default(),
        seed: 0,
        recipe: Recipe::default(),
    }
}
