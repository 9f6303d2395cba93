//! Prices of one shape, looked up instead of computed.

use ir::counts::{Shape, UnitKind, unit_counts};
use ir::prediction::AtRisk;
use ir::program::{Chunk, Pass, UnitRange};
use ir::{DeviceKindId, Model, Recompute, SimDuration};

use crate::PassTable;
use crate::basis::Basis;
use crate::compute::UnitPrice;
use crate::model::Priced;

/// Passes, in order.
pub(crate) const PASSES: [Pass; 5] =
    [Pass::Forward, Pass::Recompute, Pass::Backward, Pass::BackwardInput, Pass::BackwardWeight];

/// Prices of compute instructions for one shape, on every kind of device of a cluster. A look-up costs nanoseconds and
/// gives exactly what [`crate::CostModel::compute`] gives.
#[derive(Clone, Debug)]
pub struct Prices {
    model: Model,
    kinds: Vec<KindPrices>,
    table: Option<PassTable>,
    /// By how much an instruction that begins a pass of a chunk is held up, by kind of device and by how many others the
    /// chunk exchanges messages with.
    pub(crate) sync: Vec<[u64; 3]>,
    /// Share of a device's waiting for launches in which collectives hide.
    pub(crate) hidden: f64,
}

/// On one kind of device.
#[derive(Clone, Debug)]
pub(crate) struct KindPrices {
    pub(crate) dispatch: (u64, Basis),
    /// By (selective recomputation, pass, kind of unit).
    pub(crate) units: [[[UnitPrice; UnitKind::COUNT]; 5]; WITHIN.len()],
}

impl Prices {
    pub(crate) fn from_table(model: &Model, table: PassTable) -> Self {
        Self { model: model.clone(), kinds: Vec::new(), table: Some(table), sync: Vec::new(), hidden: 0.0 }
    }
    pub(crate) fn of_kinds(model: &Model, kinds: usize, price: impl Fn(DeviceKindId) -> KindPrices) -> Self {
        let kinds = (0..kinds).map(|kind| price(DeviceKindId::at(kind))).collect();
        Self { model: model.clone(), kinds, table: None, sync: Vec::new(), hidden: 0.0 }
    }
    /// One compute instruction; see [`crate::CostModel::compute`].
    #[must_use]
    pub fn compute(&self, chunk: &Chunk, pass: Pass, units: UnitRange, device: DeviceKindId) -> Priced {
        let sync = if begins(chunk, pass, units) { self.sync[device.index()][neighbours(chunk)] } else { 0 };
        if let Some(table) = &self.table {
            let duration = table.compute(chunk, pass, units).nanoseconds().saturating_add(sync);
            return Priced { duration: SimDuration::from_nanoseconds(duration), basis: Basis::Measured };
        }
        let kind = &self.kinds[device.index()];
        let (nanoseconds, basis) = kind.dispatch;
        total((nanoseconds + sync, basis), self.units(kind, chunk, pass, units))
    }
    /// Whether durations of passes were given as a table, by pipeline position.
    #[must_use]
    pub const fn are_given(&self) -> bool {
        self.table.is_some()
    }
    /// How much of a tensor-parallel collective that follows an instruction costs nothing: the device carries it out while it
    /// would otherwise wait for the host to launch the instruction's kernels. Zero unless the stack says that it does.
    #[must_use]
    pub fn hidden(&self, chunk: &Chunk, pass: Pass, units: UnitRange, device: DeviceKindId) -> SimDuration {
        if self.hidden <= 0.0 || self.table.is_some() {
            return SimDuration::ZERO;
        }
        let kind = &self.kinds[device.index()];
        let idle = self.units(kind, chunk, pass, units).map(|(count, price)| f64::from(count) * price.idle as f64);
        SimDuration::from_nanoseconds(crate::compute::nanoseconds(idle.sum::<f64>() * self.hidden * 1e-9))
    }
    /// How much of an instruction the device waits for the host to launch its kernels.
    #[must_use]
    pub fn launch(&self, chunk: &Chunk, pass: Pass, units: UnitRange, device: DeviceKindId) -> SimDuration {
        if self.table.is_some() {
            return SimDuration::ZERO;
        }
        let idle = self.units(&self.kinds[device.index()], chunk, pass, units);
        let sum =
            idle.fold(0u64, |sum, (count, price)| sum.saturating_add(u64::from(count).saturating_mul(price.idle)));
        SimDuration::from_nanoseconds(sum)
    }
    /// What of an instruction hangs on its host: how much longer it would take where launches are slow, and how long the
    /// host waits for the experts' counts.
    #[must_use]
    pub fn at_risk(&self, chunk: &Chunk, pass: Pass, units: UnitRange, device: DeviceKindId) -> AtRisk {
        if self.table.is_some() {
            return AtRisk::default();
        }
        let (mut slower, mut held_up) = (0u64, 0u64);
        for (count, price) in self.units(&self.kinds[device.index()], chunk, pass, units) {
            slower = slower.saturating_add(u64::from(count).saturating_mul(price.slower));
            held_up = held_up.saturating_add(u64::from(count).saturating_mul(price.held_up));
        }
        AtRisk {
            slow_launches: SimDuration::from_nanoseconds(slower),
            expert_waits: SimDuration::from_nanoseconds(held_up),
        }
    }
    /// How many units of each kind a range holds, with the price of each.
    fn units(
        &self,
        kind: &KindPrices,
        chunk: &Chunk,
        pass: Pass,
        units: UnitRange,
    ) -> impl Iterator<Item = (u32, UnitPrice)> {
        let counts = unit_counts(&self.model, chunk, units);
        let selective = within(chunk.recompute);
        let of = |selective: usize| kind.units[selective][pass as usize];
        counts.recomputed.into_iter().zip(of(selective)).chain(counts.kept.into_iter().zip(of(0)))
    }
}

/// What is recomputed inside a backward pass. Full recomputation is passes of its own.
pub(crate) const WITHIN: [Recompute; 3] = [Recompute::None, Recompute::Selective, Recompute::Operations];

/// The place of a chunk's recomputation among [`WITHIN`].
const fn within(recompute: Recompute) -> usize {
    match recompute {
        Recompute::None | Recompute::Full => 0,
        Recompute::Selective => 1,
        Recompute::Operations => 2,
    }
}

/// Whether an instruction begins a pass that follows a message of another stage. A slice of a divided vocabulary gets none.
pub(crate) const fn begins(chunk: &Chunk, pass: Pass, units: UnitRange) -> bool {
    match pass {
        _ if chunk.layers == 0 && chunk.embedding && chunk.head => false,
        Pass::Forward | Pass::Backward | Pass::BackwardInput => units.start == 0 && units.end > 0,
        Pass::Recompute | Pass::BackwardWeight => false,
    }
}

/// How many others a chunk exchanges messages with: the one before it and the one behind.
pub(crate) fn neighbours(chunk: &Chunk) -> usize {
    usize::from(!chunk.embedding) + usize::from(!chunk.head)
}

/// Dispatch plus all units; at least a nanosecond.
pub(crate) fn total(dispatch: (u64, Basis), units: impl Iterator<Item = (u32, UnitPrice)>) -> Priced {
    let (mut nanoseconds, mut basis) = dispatch;
    for (count, price) in units.filter(|(count, _)| *count > 0) {
        let all = price.nanoseconds.checked_mul(u64::from(count));
        nanoseconds = all.and_then(|all| nanoseconds.checked_add(all)).unwrap_or(u64::MAX / 2);
        if price.nanoseconds > 0 {
            basis = basis.max(price.basis);
        }
    }
    Priced { duration: SimDuration::from_nanoseconds(nanoseconds.max(1)), basis }
}

/// All prices of one kind of device. A backward pass is its halves, and only the input half knows what is recomputed.
pub(crate) fn kind_prices(
    dispatch: (u64, Basis),
    shape: Shape<'_>,
    unit: impl Fn(UnitKind, Pass, Recompute) -> UnitPrice,
) -> KindPrices {
    let nothing = UnitPrice { nanoseconds: 0, idle: 0, held_up: 0, slower: 0, basis: Basis::Measured };
    let mut units = [[[nothing; UnitKind::COUNT]; 5]; WITHIN.len()];
    for kind in UnitKind::ALL.into_iter().filter(|kind| kind.is_in(shape.model)) {
        let forward = unit(kind, Pass::Forward, Recompute::None);
        // A recomputation that stops early is shorter.
        let stops = shape.workload.recipe.early_stop_recompute;
        let again = if stops { unit(kind, Pass::Recompute, Recompute::None) } else { forward };
        let weight = unit(kind, Pass::BackwardWeight, Recompute::None);
        for (selective, recompute) in WITHIN.into_iter().enumerate() {
            let input = if selective == 1 && kind.mixer().is_none() {
                units[0][Pass::BackwardInput as usize][kind as usize]
            } else {
                unit(kind, Pass::BackwardInput, recompute)
            };
            for pass in PASSES {
                units[selective][pass as usize][kind as usize] = match pass {
                    Pass::Forward => forward,
                    Pass::Recompute => again,
                    Pass::Backward => input.and(weight),
                    Pass::BackwardInput => input,
                    Pass::BackwardWeight => weight,
                };
            }
        }
    }
    KindPrices { dispatch, units }
}
