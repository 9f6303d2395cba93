//! Where each unit finds its weights in the vectors of a chunk's segments.

use std::ops::Range;

use ir::program::{Chunk, Unit};

use super::arithmetic::{linear_backward_bias, linear_backward_input, linear_backward_weight, linear_forward};
use super::experts::ExpertDimensions;
use super::parameters::Shard;
use super::sharding::Flat;
use super::tensors::Parameter;
use super::values::{View, ViewMut};
use crate::kernels::Store;
use crate::kernels::linear::Linear;

/// The place of a tensor in the vector of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Place {
    segment: usize,
    start: usize,
    end: usize,
}

impl Place {
    fn of_shard(shard: &Shard) -> Self {
        Self { segment: shard.segment, start: shard.range.start, end: shard.range.end }
    }
    pub(super) fn of(self, flat: &Flat) -> View<'_> {
        flat.piece(self.segment).part(self.range())
    }
    pub(super) fn of_mut(self, flat: &mut Flat) -> ViewMut<'_> {
        flat.piece_mut(self.segment).part(self.range())
    }
    pub(super) const fn segment(self) -> usize {
        self.segment
    }
    pub(super) const fn range(self) -> Range<usize> {
        self.start..self.end
    }
    pub(super) fn len(self) -> usize {
        self.end - self.start
    }
    /// This and the place right after it as one.
    ///
    /// # Panics
    /// If `next` stands elsewhere.
    pub(super) fn then(self, next: Self) -> Self {
        assert_eq!((self.segment, self.end), (next.segment, next.start), "the places do not adjoin");
        Self { end: next.end, ..self }
    }
}

/// A linear layer.
#[derive(Debug, Clone, Copy)]
pub(super) struct LinearPlaces {
    pub(super) weight: Place,
    pub(super) bias: Option<Place>,
}

impl LinearPlaces {
    /// The same layer, its bias left out: a row-parallel bias is added by one rank of the group.
    pub(super) fn biased_if(self, biased: bool) -> Self {
        Self { bias: self.bias.filter(|_| biased), ..self }
    }
    pub(super) fn forward<'a, 'b>(
        self,
        shape: Linear,
        weights: &Flat,
        x: impl Into<View<'a>>,
        y: impl Into<ViewMut<'b>>,
    ) {
        linear_forward(shape, x, self.weight.of(weights), self.bias.map(|bias| bias.of(weights)), y);
    }
    pub(super) fn backward_input<'a, 'b>(
        self,
        shape: Linear,
        weights: &Flat,
        dy: impl Into<View<'a>>,
        store: Store,
        dx: impl Into<ViewMut<'b>>,
    ) {
        linear_backward_input(shape, dy, self.weight.of(weights), store, dx);
    }
    pub(super) fn backward_weight<'a, 'b>(
        self,
        shape: Linear,
        x: impl Into<View<'a>>,
        dy: impl Into<View<'b>>,
        gradients: &mut Flat,
    ) {
        let dy = dy.into();
        linear_backward_weight(shape, x, dy, self.weight.of_mut(gradients));
        if let Some(bias) = self.bias {
            linear_backward_bias(dy, bias.of_mut(gradients));
        }
    }
}

/// A norm; nothing where norms have no parameters.
#[derive(Debug, Clone, Copy)]
pub(super) struct NormPlaces {
    pub(super) weight: Option<Place>,
    pub(super) bias: Option<Place>,
}

impl NormPlaces {
    fn each(self) -> impl Iterator<Item = Place> {
        self.weight.into_iter().chain(self.bias)
    }
}

/// A layer's attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct AttentionPlaces {
    pub(super) q: LinearPlaces,
    pub(super) k: LinearPlaces,
    pub(super) v: LinearPlaces,
    pub(super) projection: LinearPlaces,
    /// Norms of queries and of keys.
    pub(super) query_key_norm: Option<[Place; 2]>,
}

/// A layer's feed-forward part.
#[derive(Debug, Clone, Copy)]
pub(super) struct MlpPlaces {
    /// With SwiGLU and GeGLU.
    pub(super) gate: Option<LinearPlaces>,
    pub(super) up: LinearPlaces,
    pub(super) down: LinearPlaces,
}

/// What a layer of experts has beside them.
#[derive(Debug, Clone, Copy)]
pub(super) struct RouterPlaces {
    pub(super) router: LinearPlaces,
    pub(super) shared_gate: Option<Place>,
}

/// All units of a chunk.
#[derive(Debug, Default)]
pub(super) struct Places {
    pub(super) embedding: Option<Place>,
    pub(super) positions: Option<Place>,
    pub(super) attention: Vec<AttentionPlaces>,
    /// Of each layer its dense part, or what its tokens pass beside experts, if anything.
    pub(super) mlp: Vec<Option<MlpPlaces>>,
    /// Of each layer, where it has experts.
    pub(super) routers: Vec<Option<RouterPlaces>>,
    /// Of each layer, in the segments of experts alone, the experts of this rank.
    pub(super) experts: Vec<Vec<MlpPlaces>>,
    /// The attention and the feed-forward norm of each layer, then the final norm if the chunk has a head.
    pub(super) norms: Vec<NormPlaces>,
    /// The norms after attention and feed-forward part of each layer, where there are norms before and after.
    pub(super) after: Vec<NormPlaces>,
    /// A head of its own, or the copy of a tied table.
    pub(super) head: Option<Place>,
    /// Where the gradient of the head's matrix goes.
    pub(super) head_gradient: Option<Place>,
    pub(super) head_bias: Option<Place>,
}

impl Places {
    /// With `again`, the piece of the weights in which a shared table is gathered for the head.
    pub(super) fn new(chunk: &Chunk, shards: &[Shard], again: Option<usize>) -> Self {
        let find = |unit: Unit, part: &str| {
            let shard = shards.iter().find(|shard| shard.unit == unit && shard.parameter.part == part)?;
            Some(Place::of_shard(shard))
        };
        let weight =
            |unit: Unit, part: &'static str| find(unit, part).unwrap_or_else(|| panic!("{unit:?} has no {part}"));
        let linear = |unit, names: [&'static str; 2]| LinearPlaces {
            weight: weight(unit, names[0]),
            bias: find(unit, names[1]),
        };
        let norm = |unit| NormPlaces { weight: find(unit, "weight"), bias: find(unit, "bias") };
        let after = |unit| NormPlaces { weight: find(unit, "after.weight"), bias: find(unit, "after.bias") };
        let layers = chunk.first_layer..chunk.first_layer + chunk.layers;
        let attention = |layer| {
            let unit = Unit::Attention(layer);
            AttentionPlaces {
                q: linear(unit, ["q.weight", "q.bias"]),
                k: linear(unit, ["k.weight", "k.bias"]),
                v: linear(unit, ["v.weight", "v.bias"]),
                projection: linear(unit, ["projection.weight", "projection.bias"]),
                query_key_norm: find(unit, "q_norm.weight").zip(find(unit, "k_norm.weight")).map(Into::into),
            }
        };
        let mlp = |layer| {
            let unit = Unit::Mlp(layer);
            find(unit, "up.weight").map(|_| MlpPlaces {
                gate: find(unit, "gate.weight").map(|_| linear(unit, ["gate.weight", "gate.bias"])),
                up: linear(unit, ["up.weight", "up.bias"]),
                down: linear(unit, ["down.weight", "down.bias"]),
            })
        };
        let router = |layer| {
            let unit = Unit::MlpNorm(layer);
            find(unit, "router.weight").map(|_| RouterPlaces {
                router: linear(unit, ["router.weight", "router.bias"]),
                shared_gate: find(Unit::Mlp(layer), "shared_gate.weight"),
            })
        };
        let norms = || layers.clone().flat_map(|layer| [Unit::AttentionNorm(layer), Unit::MlpNorm(layer)]);
        let embedding = find(Unit::Embedding, "embedding.weight");
        let head = find(Unit::Head, "weight");
        let shared =
            embedding.filter(|_| chunk.head).map(|table| Place { segment: again.unwrap_or(table.segment), ..table });
        Self {
            embedding,
            positions: find(Unit::Embedding, "positions.weight"),
            attention: layers.clone().map(attention).collect(),
            mlp: layers.clone().map(mlp).collect(),
            routers: layers.clone().map(router).collect(),
            experts: Vec::new(),
            norms: norms().chain(chunk.head.then_some(Unit::FinalNorm)).map(norm).collect(),
            after: norms().map(after).collect(),
            head: head.or(shared),
            head_gradient: head.or(embedding.filter(|_| chunk.head)),
            head_bias: find(Unit::Head, "bias"),
        }
    }

    /// A layer's dense part.
    ///
    /// # Panics
    /// If the layer has experts instead.
    pub(super) fn dense(&self, layer: usize) -> MlpPlaces {
        self.mlp[layer].expect("a dense part")
    }

    /// The places of a rank's experts in their segments.
    pub(super) fn of_experts(chunk: &Chunk, shards: &[Shard], experts: &ExpertDimensions) -> Self {
        let of = |layer: u32, expert: usize| {
            let find = |part: &str| {
                let is_it = |shard: &&Shard| {
                    let Parameter { expert: of, part: is, .. } = &shard.parameter;
                    (shard.unit, *of, *is) == (Unit::Mlp(layer), Some(expert), part)
                };
                shards.iter().find(is_it).map(Place::of_shard)
            };
            let linear = |weight, bias| find(weight).map(|weight| LinearPlaces { weight, bias: find(bias) });
            Some(MlpPlaces {
                gate: linear("gate.weight", "gate.bias"),
                up: linear("up.weight", "up.bias")?,
                down: linear("down.weight", "down.bias")?,
            })
        };
        let here = experts.first..experts.first + experts.local;
        let layers = chunk.first_layer..chunk.first_layer + chunk.layers;
        let experts = layers.map(|layer| here.clone().filter_map(|expert| of(layer, expert)).collect()).collect();
        Self { experts, ..Self::default() }
    }

    /// Tensors of which every tensor rank has only a part of the gradient: norms, routers and gates of shared parts under
    /// sequence parallelism (its part of the sequence), norms of each query and key head (its heads).
    pub(super) fn replicated(&self, sequence_parallel: bool, by_head: bool) -> Vec<Place> {
        let norms = self.norms.iter().chain(&self.after).filter(|_| sequence_parallel).flat_map(|norm| norm.each());
        let heads = self.attention.iter().filter(|_| by_head).filter_map(|attention| attention.query_key_norm);
        let routers = self.routers.iter().filter(|_| sequence_parallel).flatten().flat_map(|places| {
            std::iter::once(places.router.weight).chain(places.router.bias).chain(places.shared_gate)
        });
        norms.chain(heads.flatten()).chain(routers).collect()
    }
}
