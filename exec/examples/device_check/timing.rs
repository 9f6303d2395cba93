//! How long something takes on a stream.

use std::fmt;
use std::time::{Duration, Instant};

use trainyard_exec::cuda::CudaDevice;
use trainyard_exec::device::{Device, DeviceError, Element, Slice, Stream, write_f32};

/// Median of some repetitions, and their spread.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Took {
    median_s: f64,
    /// Distance of the quartiles, as a share of the median.
    spread: f64,
}

/// A line of a table.
#[derive(Debug)]
pub(crate) struct Row {
    what: String,
    sizes: String,
    took: Took,
    work: f64,
    unit: &'static str,
}

impl Row {
    /// `work` is in the unit times seconds.
    pub(crate) fn new(what: &str, sizes: String, took: Took, work: f64, unit: &'static str) -> Self {
        Self { what: what.to_owned(), sizes, took, work, unit }
    }
}

impl fmt::Display for Row {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { what, sizes, took, work, unit } = self;
        let (us, percent) = (took.median_s * 1e6, took.spread * 100.0);
        write!(f, "{what},{sizes},{us:.2},{percent:.1},{:.2},{unit}", work / took.median_s)
    }
}

/// Times what `run` puts on the compute stream, in batches long enough that the host's wait does not count; the first
/// batch compiles and warms up, and is left out.
pub(crate) fn time(gpu: &CudaDevice, mut run: impl FnMut() -> Result<(), DeviceError>) -> Result<Took, DeviceError> {
    const BATCHES: usize = 7;
    let batch_time = Duration::from_millis(10);
    let mut batch = |count: u32| -> Result<Duration, DeviceError> {
        gpu.synchronize(Stream::COMPUTE)?;
        let start = Instant::now();
        (0..count).try_for_each(|_| run())?;
        gpu.synchronize(Stream::COMPUTE)?;
        Ok(start.elapsed())
    };
    batch(1)?;
    let once = batch(2)? / 2;
    let fits = batch_time.as_nanos() / once.as_nanos().max(1);
    let count = u32::try_from(fits.clamp(1, 1000)).expect("at most a thousand");
    let mut all = (0..BATCHES)
        .map(|_| batch(count).map(|took| took.as_secs_f64() / f64::from(count)))
        .collect::<Result<Vec<_>, _>>()?;
    all.sort_by(f64::total_cmp);
    let median_s = all[BATCHES / 2];
    Ok(Took { median_s, spread: (all[BATCHES * 3 / 4] - all[BATCHES / 4]) / median_s })
}

/// A buffer of values in -0.5..0.5 that differ from their neighbours. Powers of GPUs depend on the values, so zeros would
/// flatter.
pub(crate) fn filled(gpu: &CudaDevice, element: Element, length: usize) -> Result<Slice, DeviceError> {
    const BLOCK: u32 = 1 << 18;
    let slice = gpu.allocate(Stream::COMPUTE, element, length)?;
    let value =
        |i: u32| f32::from(u16::try_from(i.wrapping_mul(2_654_435_761) >> 16).expect("16 bits")) / 65536.0 - 0.5;
    let block = length.min(BLOCK as usize);
    let values: Vec<f32> = (0..BLOCK).take(block).map(value).collect();
    write_f32(gpu, Stream::COMPUTE, &values, slice.part(0, block))?;
    let mut done = block;
    while done < length {
        let next = done.min(length - done);
        gpu.copy(Stream::COMPUTE, slice.part(0, next), slice.part(done, next))?;
        done += next;
    }
    Ok(slice)
}
