//! What training takes, from the time of a step: days, device-hours, money, energy.

use ir::{Cluster, SimDuration};
use reports::sizing::Interval;

use crate::scenario::SizeChoice;

/// Seconds of a day.
pub(super) const DAY_S: f64 = 86_400.0;

/// Rent of a whole cluster for an hour, US dollars; the first device without a price instead.
pub(super) fn usd_per_hour(cluster: &Cluster) -> Result<f64, String> {
    over_devices(cluster, |kind| kind.usd_per_hour)
}

/// Power of a whole cluster's devices, watts, at the share of their limit that they draw, site included; the first device
/// without a limit instead.
pub(super) fn watts(cluster: &Cluster, choice: &SizeChoice) -> Result<f64, String> {
    over_devices(cluster, |kind| kind.tdp_watts).map(|watts| watts * choice.power_share * choice.site_factor)
}

fn over_devices(cluster: &Cluster, of: impl Fn(&ir::DeviceKind) -> Option<f64>) -> Result<f64, String> {
    let mut sum = 0.0;
    for group in &cluster.groups {
        for device in &cluster.node_kind(group.kind).devices {
            let kind = cluster.device_kind(*device);
            sum += f64::from(group.count) * of(kind).ok_or_else(|| kind.name.clone())?;
        }
    }
    Ok(sum)
}

/// Steps of a batch that tokens fill, the last one begun counted.
pub(super) fn iterations(tokens: f64, tokens_per_step: f64) -> f64 {
    (tokens / tokens_per_step).ceil()
}

/// Elapsed days of so many steps: their time over the goodput.
pub(super) fn days(iterations: f64, step_s: Interval, goodput: f64) -> Interval {
    step_s.times(iterations / goodput / DAY_S)
}

/// Tokens of an elapsed time: more in a shorter step.
pub(super) fn tokens(elapsed_s: f64, step_s: Interval, tokens_per_step: f64, goodput: f64) -> Interval {
    let of = |step: f64| elapsed_s * goodput / step * tokens_per_step;
    Interval { low: of(step_s.high), expected: of(step_s.expected), high: of(step_s.low) }
}

/// Devices that could do it at their peak and no fewer: total FLOPs over what one does in time.
pub(super) fn fewest_devices(flops: f64, peak: f64, within: SimDuration, goodput: f64) -> f64 {
    flops / (peak * within.seconds() * goodput)
}
