//! From tensors to what a figure of memory shows, and to what must fit into a device.

use ir::program::BufferKind;
use ir::{Bytes, DeviceKind, Recipe, StageMemory};

/// Whose figure a peak of memory is. The three differ by gigabytes, so a comparison names its kind.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum MemoryKind {
    /// Tensors alone (`torch.cuda.max_memory_allocated`).
    Allocated,
    /// What the framework's allocator holds (`max_memory_reserved`): tensors, and what it could not use again.
    Reserved,
    /// What the driver counts for the process (`nvidia-smi`): the context, communication libraries and the allocator too.
    Driver,
}

impl MemoryKind {
    /// All of them, in order.
    pub const ALL: [Self; 3] = [Self::Allocated, Self::Reserved, Self::Driver];
    /// Its name in text.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Allocated => "allocated",
            Self::Reserved => "reserved",
            Self::Driver => "driver",
        }
    }
    /// The one of a name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }
}

/// What a peak has beyond tensors. `resident` are bytes that stay through an iteration (weights, state), `passing` those
/// that come and go (activations, buffers), `u` the share of the latter that an allocator cannot use again:
///
/// | figure | |
/// |---|---|
/// | allocated | resident + passing + workspace |
/// | reserved | allocated + u passing; without `u` where segments expand |
/// | driver's | allocated + 1/4 passing + 9.5 GiB |
/// | what a device must have | reserved + context |
///
/// A driver's figure holds what an allocator once took and gives back before it fails, so it does not decide.
/// `catalog/calibration/memory.toml` lists the constants with the rows that each rests on.
#[derive(Clone, Copy, PartialEq, Debug)]
pub struct Figures {
    /// Of libraries of matrix products, among allocated tensors.
    pub workspace: Bytes,
    /// Thousandths of what comes and goes that an allocator holds and cannot use again.
    pub unused_thousandths: u64,
    /// What the driver's context, communicators and the device itself take of a device's memory.
    pub context: Bytes,
    /// Thousandths of what comes and goes that a driver counts beside it.
    pub driver_thousandths: u64,
    /// What a driver counts beyond.
    pub driver: Bytes,
}

impl Figures {
    /// Half a GiB of matrix libraries' workspaces.
    pub const WORKSPACE: Bytes = Bytes::new(1 << 29);
    /// 12 % of what comes and goes.
    pub const UNUSED_THOUSANDTHS: u64 = 120;
    /// Half a GiB of context and communicators, beside [`Self::HIDDEN_PART`].
    pub const CONTEXT: Bytes = Bytes::new(1 << 29);
    /// A device keeps one part in 80 for itself: of 80 GiB, 79.15 are visible on an A100.
    pub const HIDDEN_PART: u64 = 80;
    /// A quarter of what comes and goes.
    pub const DRIVER_THOUSANDTHS: u64 = 250;
    /// 9.5 GiB.
    pub const DRIVER: Bytes = Bytes::new(19 << 29);

    /// Those of a device under some software. CPU workers (one multiprocessor) have none: their runtime is their
    /// process's.
    #[must_use]
    pub const fn of(device: &DeviceKind, recipe: &Recipe) -> Self {
        if device.multiprocessors <= 1 {
            let none = Bytes::ZERO;
            return Self { workspace: none, unused_thousandths: 0, context: none, driver_thousandths: 0, driver: none };
        }
        Self {
            workspace: Self::WORKSPACE,
            unused_thousandths: if recipe.expandable_segments { 0 } else { Self::UNUSED_THOUSANDTHS },
            context: Bytes::new(Self::CONTEXT.get() + device.memory.get() / Self::HIDDEN_PART),
            driver_thousandths: Self::DRIVER_THOUSANDTHS,
            driver: Self::DRIVER,
        }
    }

    /// What an allocator holds of what comes and goes, and cannot use again.
    #[must_use]
    pub const fn unused(&self, passing: Bytes) -> Bytes {
        thousandths(passing, self.unused_thousandths)
    }

    /// What a runtime takes for itself of the memory that a device must have.
    #[must_use]
    pub const fn reserve(&self) -> Bytes {
        Bytes::new(self.workspace.get() + self.context.get())
    }

    /// What a figure of a kind shows at a peak.
    #[must_use]
    pub fn shown(&self, kind: MemoryKind, resident: Bytes, passing: Bytes) -> Bytes {
        let allocated = resident + passing + self.workspace;
        match kind {
            MemoryKind::Allocated => allocated,
            MemoryKind::Reserved => allocated + self.unused(passing),
            MemoryKind::Driver => allocated + thousandths(passing, self.driver_thousandths) + self.driver,
        }
    }

    /// What a device must have.
    #[must_use]
    pub fn needed(&self, resident: Bytes, passing: Bytes) -> Bytes {
        resident + passing + self.unused(passing) + self.reserve()
    }
}

const fn thousandths(bytes: Bytes, count: u64) -> Bytes {
    let (whole, rest) = (bytes.get() / 1000, bytes.get() % 1000);
    Bytes::new(whole * count + rest * count / 1000)
}

/// Whether buffers of a kind come and go in an iteration, where they do not stay or are the runtime's. Whole gradients that
/// wait to be scattered count with those that stay.
#[must_use]
pub const fn passes(kind: BufferKind) -> bool {
    match kind {
        BufferKind::Activations | BufferKind::Workspace | BufferKind::Logits | BufferKind::Communication => true,
        BufferKind::Weights | BufferKind::Gradients | BufferKind::OptimizerState | BufferKind::Reserve => false,
    }
}

/// Of a stage's peak, what stays through an iteration and what comes and goes; neither holds what the runtime takes.
#[must_use]
pub fn divided(stage: &StageMemory) -> (Bytes, Bytes) {
    let of = |wanted: &dyn Fn(BufferKind) -> bool| -> Bytes {
        let named = |name: &str| BufferKind::ALL.into_iter().any(|kind| kind.name() == name && wanted(kind));
        stage.parts.iter().filter(|(name, _)| named(name)).map(|(_, bytes)| *bytes).sum()
    };
    (of(&|kind| !passes(kind) && kind != BufferKind::Reserve), of(&passes))
}

/// Adds to a stage's peak of tensors and reserve what its allocator holds and cannot use again, as part of the reserve.
pub fn add_unused(device: &DeviceKind, recipe: &Recipe, stage: &mut StageMemory) {
    let unused = Figures::of(device, recipe).unused(divided(stage).1);
    if unused == Bytes::ZERO {
        return;
    }
    stage.peak += unused;
    let reserve = BufferKind::Reserve.name();
    match stage.parts.iter_mut().find(|(name, _)| *name == reserve) {
        Some((_, bytes)) => *bytes += unused,
        None => stage.parts.push((reserve, unused)),
    }
    stage.parts.sort_by_key(|(_, bytes)| std::cmp::Reverse(*bytes));
}
