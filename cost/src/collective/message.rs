//! Messages and copies to seconds.

use ir::{Bytes, DeviceId, Link, Path};

use super::Pricing;
use crate::basis::Basis;
use crate::calibration::SHARED_MEMORY;
use crate::compute::fitted;

const MIB: f64 = 1_048_576.0;

impl Pricing<'_> {
    /// Seconds of a message over a path, and on what they rest.
    pub(crate) fn message(&self, bytes: Bytes, from: DeviceId, path: Path) -> (f64, Basis) {
        let link = self.cluster.link_of_path(from, path);
        let size = bytes.get() as f64;
        let calibration = self.calibration();
        if calibration.threads {
            return self.message_between_threads(size, from, path);
        }
        if path == Path::Local {
            // Read once, written once.
            let kind = self.cluster.device_kind(self.cluster.place(from).device_kind);
            return (2.0 * size / kind.memory_bandwidth.get(), Basis::Analytic);
        }
        let network = if path >= Path::Leaf { self.network } else { 1.0 };
        let (seconds, basis) = self.fitted(link, size, network).unwrap_or_else(|| {
            let known = link.efficiency.is_some() || calibration.link.iter().any(|row| row.link == link.name);
            (self.plain(size, from, path), if known { Basis::Analytic } else { Basis::Assumed })
        });
        if path != Path::Rail {
            return (seconds, basis);
        }
        // Piece by piece to the neighbour and on: one step more, and the slower of both links.
        let domain = self.cluster.link_of_path(from, Path::Domain);
        let handed_on = size / calibration.reached(domain);
        (seconds.max(handed_on) + self.domain_step(domain), basis)
    }

    /// A step over a domain's link: the library's shortest, else the link's latency.
    fn domain_step(&self, domain: &Link) -> f64 {
        let steps = self.calibration().protocol.iter().map(|protocol| protocol.domain_step_us * 1e-6);
        steps.reduce(f64::min).unwrap_or_else(|| domain.latency.seconds())
    }

    /// Latency of the link, and the bytes at what it reaches; on its way over the spine no more than a NIC sends.
    fn plain(&self, size: f64, from: DeviceId, path: Path) -> f64 {
        let link = self.cluster.link_of_path(from, path);
        let port = if path == Path::Spine { self.cluster.link_of_path(from, Path::Leaf) } else { link };
        let network = if path >= Path::Leaf { self.network } else { 1.0 };
        let reached = self.calibration().reached(link).min(self.calibration().reached(port));
        link.latency.seconds() + size / (reached * network)
    }

    fn fitted(&self, link: &Link, size: f64, network: f64) -> Option<(f64, Basis)> {
        let fit = self.calibration().message_fit.iter().find(|fit| fit.link == link.name)?;
        let seconds = fit.overhead_us * 1e-6
            + size / (link.bandwidth.get() * fit.bandwidth_fraction * network)
            + fit.root_us_per_sqrt_mib * 1e-6 * (size / MIB).sqrt();
        Some((seconds, fitted(fit.rows)))
    }

    fn message_between_threads(&self, size: f64, from: DeviceId, path: Path) -> (f64, Basis) {
        let link = self.cluster.link_of_path(from, path);
        let copy = self.prepared.copies.as_ref().map(|curve| curve.at(size));
        match (copy, path == Path::Local || link.name == SHARED_MEMORY) {
            (Some((seconds, true)), true) => (seconds + self.exchange_overhead(from), Basis::Measured),
            (Some((seconds, false)), true) => (seconds + self.exchange_overhead(from), Basis::Interpolated),
            (Some((seconds, _)), false) => (seconds.max(self.plain(size, from, path)), Basis::Interpolated),
            (None, _) => (self.plain(size, from, path), Basis::Analytic),
        }
    }

    /// Seconds of a copy between a device and the memory of its host, over the link that leads there. Devices that share
    /// it copy at the same time.
    pub(crate) fn host_copy(&self, bytes: Bytes, device: DeviceId) -> (f64, Basis) {
        let node = self.cluster.node_kind(self.cluster.place(device).node_kind);
        let (link, size) = (&node.host_link, bytes.get() as f64);
        let sharers = self.calibration().devices_share(link).min(u32::try_from(node.devices.len()).unwrap_or(u32::MAX));
        let size = size * f64::from(sharers.max(1));
        if let Some(fitted) = self.fitted(link, size, 1.0) {
            return fitted;
        }
        let known = link.efficiency.is_some() || self.calibration().link.iter().any(|row| row.link == link.name);
        let basis = if known { Basis::Analytic } else { Basis::Assumed };
        (link.latency.seconds() + size / self.calibration().reached(link), basis)
    }
}
