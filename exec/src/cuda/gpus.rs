//! The GPUs of this machine for the ranks of a program.

use std::path::PathBuf;
use std::sync::Arc;

use ir::Problem;

use super::links::NcclLinks;
use super::{CudaDevice, CudaOptions, UniqueId, probe};
use crate::device::{Device, DeviceError, Devices, Elsewhere, Links, Operation};

/// GPUs as the driver counts them: the first for the first ranks, and so on.
///
/// Ranks on one GPU have streams and buffers of their own. They take turns on it as the driver lets them, so that their times
/// say little; what they compute is the same.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gpus {
    /// Ranks on each GPU.
    pub ranks_per_gpu: u32,
    /// Where compiled kernels are kept between runs, if anywhere.
    pub cache: Option<PathBuf>,
}

impl Gpus {
    /// NCCL for so many ranks, one of which made the `ticket`.
    pub(crate) fn joined(ticket: &[u8], ranks: u32) -> Result<Arc<dyn Links>, DeviceError> {
        let cause = || DeviceError::new("joining GPUs", format!("{} bytes are no id of NCCL's", ticket.len()));
        let id = <[u8; 128]>::try_from(ticket).map_err(|_| cause())?;
        Ok(Arc::new(NcclLinks::of(UniqueId::from_bytes(id), ranks as usize)))
    }

    /// How many GPUs so many ranks take.
    #[must_use]
    pub fn needed(&self, ranks: u32) -> u32 {
        ranks.div_ceil(self.ranks_per_gpu.max(1))
    }
}

impl Default for Gpus {
    /// A GPU for each rank, and no cache.
    fn default() -> Self {
        Self { ranks_per_gpu: 1, cache: None }
    }
}

impl Devices for Gpus {
    fn problems(&self, ranks: u32) -> Vec<Problem> {
        let found = probe();
        if let Err(error) = found.usable() {
            let hint = "`trainyard doctor` says what is there; device = \"cpu\" needs none of it";
            return vec![Problem::new("run.device", error.to_string()).hint(hint)];
        }
        let (there, needed) = (found.gpus.len(), self.needed(ranks));
        let old = |gpu: &super::Gpu| gpu.capability.0 < super::device::OLDEST_CAPABILITY;
        if there < needed as usize {
            let each = match self.ranks_per_gpu {
                0 | 1 => "a GPU each".to_owned(),
                several => format!("{several} to a GPU"),
            };
            let gpus = if there == 1 { "1 GPU".to_owned() } else { format!("{there} GPUs") };
            let message = format!("{ranks} ranks are to compute here, {each}, and this machine shows {gpus}");
            let most = u32::try_from(there).map_or(ranks, |there| ranks.div_ceil(there));
            let hint =
                format!("set ranks_per_gpu = {most} to let ranks share a GPU, or divide the model over fewer ranks");
            return vec![Problem::new("run.ranks_per_gpu", message).hint(hint)];
        }
        let old = found.gpus.iter().take(needed as usize).enumerate().filter(|(_, gpu)| old(gpu));
        old.map(|(number, gpu)| {
            let (major, minor) = gpu.capability;
            let message = format!("GPU {number} ({}) has compute capability {major}.{minor}", gpu.name);
            Problem::new("run.device", message).hint("the kernels need 8.0 (A100) or newer, for BF16")
        })
        .collect()
    }

    fn unsupported(&self, operation: &Operation) -> Option<String> {
        super::launch::unsupported(operation)
    }

    fn shared(&self, ranks: u32) -> bool {
        self.needed(ranks) < ranks
    }

    /// NCCL, if it is there and each rank has a GPU.
    fn links(&self, ranks: u32) -> Result<Option<Arc<dyn Links>>, DeviceError> {
        if ranks == 1 || self.shared(ranks) || !probe().collectives.is_ready() {
            return Ok(None);
        }
        Ok(Some(Arc::new(NcclLinks::new(ranks as usize)?)))
    }

    fn elsewhere(&self) -> Elsewhere {
        Elsewhere::Cuda { ranks_per_gpu: self.ranks_per_gpu, cache: self.cache.clone() }
    }

    fn open(&self, index: u32) -> Result<Arc<dyn Device>, DeviceError> {
        let ordinal = index / self.ranks_per_gpu.max(1);
        Ok(Arc::new(CudaDevice::open(CudaOptions { ordinal, cache: self.cache.clone() })?))
    }

    fn words(&self, ranks: u32) -> String {
        let needed = self.needed(ranks);
        let names: std::collections::BTreeSet<_> =
            probe().gpus.iter().take(needed as usize).map(|gpu| gpu.name.as_str()).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        let how = match (ranks, self.shared(ranks), probe().collectives.is_ready()) {
            (1, ..) => String::new(),
            (_, true, _) => format!(", {} ranks to each", self.ranks_per_gpu),
            (_, false, true) => ", joined by NCCL".to_owned(),
            (_, false, false) => ", joined by host memory: there is no NCCL".to_owned(),
        };
        format!("{needed} x {names}{how}")
    }
}
