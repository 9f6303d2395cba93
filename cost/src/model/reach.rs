//! What a device reaches at best, by its calibration.

use ir::{DeviceKindId, FlopsPerSecond, Precision};

use super::{CostModel, Source};

impl CostModel {
    /// Operations per second of large matrix products: the peak of the device, slowed down as it is emulated, times the
    /// share that its calibration found (`u` of [`crate::MatrixProduct`]). `None` where durations are given, and where the
    /// device has no peak in that precision.
    #[must_use]
    pub fn reachable(&self, device: DeviceKindId, precision: Precision) -> Option<FlopsPerSecond> {
        if matches!(self.source, Source::Table(_)) {
            return None;
        }
        let kind = self.cluster.device_kind(device);
        let (row, _) = self.prepared(device).calibration.matrix_product(precision)?;
        FlopsPerSecond::new(kind.peak(precision)?.get() * row.utilisation / kind.slowdown)
    }

    /// Operations per second of the fastest matrix product that was measured on a device, slowed down as it is emulated: what
    /// a device whose peak is assumed (a core of some CPU) shows that it can. `None` where none was measured.
    #[must_use]
    pub fn fastest_product(&self, device: DeviceKindId) -> Option<FlopsPerSecond> {
        if matches!(self.source, Source::Table(_)) {
            return None;
        }
        let slowdown = self.cluster.device_kind(device).slowdown;
        let measured = self.prepared(device).calibration.measured.as_ref()?;
        let rates = measured.matrix_products.iter().map(|[m, k, n, us]| 2.0 * m * k * n / (us * 1e-6));
        FlopsPerSecond::new(rates.fold(0.0, f64::max) / slowdown)
    }
}
