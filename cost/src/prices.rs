//! Prices of one shape, looked up instead of computed.

use ir::counts::Shape;
use ir::program::{Chunk, Pass, Unit, UnitRange};
use ir::{DeviceKindId, Recompute, SimDuration};

use crate::PassTable;
use crate::model::{Basis, Priced};

/// Units that cost the same: layers of one model are equal.
pub(crate) const CLASSES: [Unit; 8] = [
    Unit::Embedding,
    Unit::AttentionNorm(0),
    Unit::Attention(0),
    Unit::MlpNorm(0),
    Unit::Mlp(0),
    Unit::FinalNorm,
    Unit::Head,
    Unit::Loss,
];

/// Passes, in order.
pub(crate) const PASSES: [Pass; 5] =
    [Pass::Forward, Pass::Recompute, Pass::Backward, Pass::BackwardInput, Pass::BackwardWeight];

/// How many units of each class a range of a chunk holds.
pub(crate) fn class_counts(chunk: &Chunk, units: UnitRange) -> [u32; 8] {
    assert!(units.start <= units.end && units.end <= chunk.units(), "units {units:?} of a chunk of {}", chunk.units());
    let first = u32::from(chunk.embedding);
    let layers_end = first + 4 * chunk.layers;
    // Positions of the layers' part below `end` whose remainder by 4 is `residue`.
    let below = |end: u32, residue: u32| (end.clamp(first, layers_end) - first + 3 - residue) / 4;
    let in_layers = |residue: u32| below(units.end, residue) - below(units.start, residue);
    let has = |position: u32, present: bool| u32::from(present && units.start <= position && position < units.end);
    [
        has(0, chunk.embedding),
        in_layers(0),
        in_layers(1),
        in_layers(2),
        in_layers(3),
        has(layers_end, chunk.head),
        has(layers_end + 1, chunk.head),
        has(layers_end + 2, chunk.head),
    ]
}

/// Prices of compute instructions for one shape, on every kind of device of a cluster. A look-up costs nanoseconds and
/// gives exactly what [`crate::CostModel::compute`] gives.
#[derive(Clone, Debug)]
pub struct Prices {
    kinds: Vec<KindPrices>,
    table: Option<PassTable>,
}

/// On one kind of device.
#[derive(Clone, Debug)]
pub(crate) struct KindPrices {
    pub(crate) dispatch: (u64, Basis),
    /// By (selective recomputation, pass, class): nanoseconds and basis.
    pub(crate) units: [[[(u64, Basis); 8]; 5]; 2],
}

impl Prices {
    pub(crate) fn from_table(table: PassTable) -> Self {
        Self { kinds: Vec::new(), table: Some(table) }
    }
    pub(crate) fn of_kinds(kinds: usize, price: impl Fn(DeviceKindId) -> KindPrices) -> Self {
        Self { kinds: (0..kinds).map(|kind| price(DeviceKindId::at(kind))).collect(), table: None }
    }
    /// One compute instruction; see [`crate::CostModel::compute`].
    #[must_use]
    pub fn compute(&self, chunk: &Chunk, pass: Pass, units: UnitRange, device: DeviceKindId) -> Priced {
        if let Some(table) = &self.table {
            return Priced { duration: table.compute(chunk, pass, units), basis: Basis::Measured };
        }
        let kind = &self.kinds[device.index()];
        let of_pass = &kind.units[usize::from(chunk.recompute == Recompute::Selective)][pass as usize];
        total(kind.dispatch, class_counts(chunk, units), |class| of_pass[class])
    }
}

/// Dispatch plus the units of each class; at least a nanosecond.
pub(crate) fn total(dispatch: (u64, Basis), counts: [u32; 8], price: impl Fn(usize) -> (u64, Basis)) -> Priced {
    let (mut nanoseconds, mut basis) = dispatch;
    for (class, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let (each, on) = price(class);
        nanoseconds =
            each.checked_mul(u64::from(count)).and_then(|all| nanoseconds.checked_add(all)).unwrap_or(u64::MAX / 2);
        if each > 0 {
            basis = basis.max(on);
        }
    }
    Priced { duration: SimDuration::from_nanoseconds(nanoseconds.max(1)), basis }
}

/// All prices of one kind of device.
pub(crate) fn kind_prices(
    dispatch: (u64, Basis),
    shape: Shape<'_>,
    unit: impl Fn(Shape<'_>, Unit, Pass, Recompute) -> (u64, Basis),
) -> KindPrices {
    let mut units = [[[(0, Basis::Measured); 8]; 5]; 2];
    for (selective, recompute) in [Recompute::None, Recompute::Selective].into_iter().enumerate() {
        for pass in PASSES {
            for (class, representative) in CLASSES.into_iter().enumerate() {
                units[selective][pass as usize][class] = unit(shape, representative, pass, recompute);
            }
        }
    }
    KindPrices { dispatch, units }
}
