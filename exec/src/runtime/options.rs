//! What a person may set about a run.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use ir::{InstructionId, Rank};

use crate::device::Devices;
use crate::state::{Routing, Weights};

/// Settings of a [`crate::CpuBackend`].
#[derive(Clone, Debug)]
pub struct CpuOptions {
    /// A rank that works on one instruction for longer than this while others wait is taken to have stalled.
    pub stall_timeout: Duration,
    /// Set to `true` by anyone (a signal handler, say) to end the iteration with [`ir::BackendError::Interrupted`];
    /// seen within 20 milliseconds and the rest of the instructions under way.
    pub interrupt: Arc<AtomicBool>,
    /// Weights to begin with; `None` draws them from the workload's seed.
    pub initial: Option<Arc<Weights>>,
    /// Where choices of experts come from: comparisons of divisions repeat those of one run.
    pub routing: Routing,
    /// What goes wrong on purpose.
    pub faults: Vec<Fault>,
    /// Devices to compute on; none for the processor with host memory.
    pub devices: Option<Arc<dyn Devices>>,
}

impl Default for CpuOptions {
    fn default() -> Self {
        Self {
            stall_timeout: Duration::from_secs(60),
            interrupt: Arc::default(),
            initial: None,
            routing: Routing::Free,
            faults: Vec::new(),
            devices: None,
        }
    }
}

/// A fault to inject when a rank begins a compute instruction.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub struct Fault {
    /// The rank.
    pub rank: Rank,
    /// The iteration, from 0.
    pub iteration: u64,
    /// The compute instruction of the rank's role; `None` for the first that it begins. At other instructions nothing
    /// happens.
    pub instruction: Option<InstructionId>,
    /// What goes wrong.
    pub kind: FaultKind,
}

/// What goes wrong.
#[derive(Clone, Copy, PartialEq, Eq, Debug, serde::Serialize, serde::Deserialize)]
pub enum FaultKind {
    /// The rank does nothing until it is told to leave.
    Stall,
    /// One of its weights becomes NaN.
    Poison,
    /// Its thread panics.
    Panic,
}
