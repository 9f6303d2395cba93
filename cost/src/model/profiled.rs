//! Prices from measured layers, and what holds passes up that exchange messages.

use ir::counts::{Shape, UnitKind, message_bytes};
use ir::program::Pass;
use ir::{Axis, DeviceId, DeviceKindId, Model, Path, Problem, Recompute};

use super::{CostModel, Source};
use crate::GroupPlace;
use crate::compute::{Software, UnitPrice, nanoseconds};
use crate::profile::{Profile, Ready};

impl CostModel {
    /// With measured layers of a model in the place of calibrated kernels, on the kinds of device that have some: passes
    /// with their exchanges over the tensor group, and the optimizer's step. Nothing that a stack does to kernels concerns
    /// them. See [`Profile`].
    ///
    /// # Errors
    /// Every profile of a kind of device that the cluster does not have, or that has one already, and every fault of one.
    pub fn with_profiles(mut self, profiles: &[Profile], model: &Model) -> Result<Self, Vec<Problem>> {
        let mut problems = Vec::new();
        let mut ready: Vec<Option<Ready>> = vec![None; self.cluster.device_kinds.len()];
        for profile in profiles {
            let names: Vec<&str> = self.cluster.device_kinds.iter().map(|kind| kind.name.as_str()).collect();
            let Some(kind) = names.iter().position(|name| *name == profile.device) else {
                let message = format!("{} is of {}, which the cluster does not have", profile.source, profile.device);
                problems.push(Problem::new("cost.profiles", message).hint(format!("one of {}", names.join(", "))));
                continue;
            };
            if ready[kind].is_some() {
                let message = format!("{} is a second profile of {}", profile.source, profile.device);
                problems.push(Problem::new("cost.profiles", message).hint("one for each kind of device"));
                continue;
            }
            match profile.ready(model) {
                Ok(found) => ready[kind] = Some(found),
                Err(faults) => problems.extend(faults),
            }
        }
        if !problems.is_empty() {
            return Err(problems);
        }
        self.profiles = ready;
        Ok(self)
    }

    /// Why passes of a division have no price on some kinds of device: what their profiles did not measure. Empty if all
    /// have one. What is looked up all the same takes longer than anything that is looked for.
    #[must_use]
    pub fn unprofiled(&self, shape: Shape<'_>, kinds: &[DeviceKindId]) -> Vec<Problem> {
        let of = |kind: &DeviceKindId| {
            let name = &self.cluster.device_kind(*kind).name;
            self.profile(*kind).map_or_else(Vec::new, |profile| profile.unmeasured(name, shape))
        };
        kinds.iter().flat_map(of).collect()
    }

    /// Points of profiles that others of them contradict, and what is taken in their place, in sentences.
    #[must_use]
    pub fn replaced_points(&self) -> Vec<String> {
        let of = |profile: &Ready| -> Vec<String> {
            profile.replaced().into_iter().map(|sentence| format!("{}: {sentence}", profile.source)).collect()
        };
        self.profiles.iter().flatten().flat_map(of).collect()
    }

    pub(super) fn profile(&self, device: DeviceKindId) -> Option<&Ready> {
        self.profiles.get(device.index())?.as_ref()
    }

    /// Whether a collective is in the times of passes: of a tensor group whose first device has a profile.
    pub(super) fn is_in_passes(&self, axis: Axis, place: GroupPlace) -> bool {
        axis == Axis::Tensor
            && !self.profiles.is_empty()
            && self.profile(self.cluster.place(place.first).device_kind).is_some()
    }

    /// One unit's pass on a kind of device.
    pub(super) fn unit(
        &self,
        device: DeviceKindId,
        software: &Software,
        shape: Shape<'_>,
        unit: UnitKind,
        of: (Pass, Recompute),
    ) -> UnitPrice {
        let kind = self.cluster.device_kind(device);
        match self.profile(device) {
            Some(profile) => profile.unit(shape, unit, of, kind.slowdown),
            None => self.prepared(device).unit(kind, software, shape, unit, of),
        }
    }

    /// By how much each pass of a chunk is held up where stages exchange messages, in nanoseconds, if it exchanges them with
    /// none, one or two others: what the stack adds to each pass, and, where the recipe says that stages do nothing else
    /// meanwhile ([`ir::Recipe::blocking_messages`]), each message that the pass waits for or hands on, over the network if
    /// there are several nodes. Part of the price of the instruction that begins with the chunk's first unit.
    pub(super) fn message_sync(&self, shape: Shape<'_>, kind: DeviceKindId) -> [u64; 3] {
        if shape.layout.pipeline <= 1 {
            return [0; 3];
        }
        let each = nanoseconds(self.stack.constants.message_sync_us * 1e-6);
        let message = match (shape.workload.recipe.blocking_messages, &self.source) {
            (false, _) => 0,
            (true, Source::Table(table)) => table.transfer.nanoseconds(),
            (true, Source::Calibrations { .. }) => self.first_of(kind).map_or(0, |device| {
                let path = if self.cluster.nodes() > 1 { Path::Leaf } else { Path::Domain };
                nanoseconds(self.pricing(device).message(message_bytes(shape), device, path).0)
            }),
        };
        [each, each + message, each + 2 * message]
    }

    /// The first device of a kind.
    fn first_of(&self, kind: DeviceKindId) -> Option<DeviceId> {
        let mut first = 0_u64;
        for group in &self.cluster.groups {
            let devices = &self.cluster.node_kind(group.kind).devices;
            if let Some(local) = devices.iter().position(|of| *of == kind) {
                return u32::try_from(first + local as u64).ok().map(DeviceId::new);
            }
            first += u64::from(group.count) * devices.len() as u64;
        }
        None
    }
}
