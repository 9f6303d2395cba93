//! Whose devices are in a group: no library of collectives joins those of two vendors.

use ir::{Cluster, DeviceId, Plan, Problem};

/// The vendor of a device by its calibration, the vendor's own name for a generation; `None` where that says nothing.
fn vendor(calibration: &str) -> Option<&'static str> {
    let of = |names: &[&str]| names.iter().any(|name| calibration.starts_with(name));
    if of(&["cdna"]) {
        Some("AMD")
    } else if of(&["gaudi"]) {
        Some("Intel")
    } else if of(&["cpu"]) {
        Some("CPU")
    } else if calibration == "analytic" {
        None
    } else {
        Some("NVIDIA")
    }
}

fn of_device(cluster: &Cluster, device: DeviceId) -> (Option<&'static str>, &str) {
    let kind = cluster.device_kind(cluster.place(device).device_kind);
    (vendor(&kind.calibration), &kind.name)
}

/// The first position whose ranks are of two vendors, with a device of each: all collectives of a plan are among the
/// ranks of a position, those of norms and tied embeddings aside, which the host can carry.
pub(super) fn mixed(plan: &Plan, cluster: &Cluster) -> Option<Problem> {
    let wide = (plan.replicas() * plan.tensor) as usize;
    for (position, devices) in plan.placement.chunks(wide).enumerate() {
        let first = of_device(cluster, devices[0]);
        let other = devices.iter().map(|device| of_device(cluster, *device)).find(|other| other.0 != first.0);
        if let Some(other) = other {
            let words =
                |(vendor, name): (Option<&str>, &str)| format!("{name} ({})", vendor.unwrap_or("another vendor"));
            let message = format!(
                "the {wide} ranks of stage {position} are on {} and {}: no library of collectives joins them",
                words(first),
                words(other)
            );
            let hint = "a pipeline degree that gives each stage devices of one vendor";
            return Some(Problem::new("plan.placement", message).hint(hint));
        }
    }
    None
}

/// Positions whose messages to the next one go from one vendor's device to another's.
pub(super) fn staged(plan: &Plan, cluster: &Cluster) -> Vec<u32> {
    let wide = (plan.replicas() * plan.tensor) as usize;
    let firsts: Vec<_> = plan.placement.chunks(wide).map(|devices| of_device(cluster, devices[0]).0).collect();
    (0..).zip(firsts.windows(2)).filter(|(_, two)| two[0] != two[1]).map(|(position, _)| position).collect()
}
