//! Where the time of a timeline goes: along the lane that ends last, instant by instant.

use ir::program::{Pass, Payload, Role, Stream};
use ir::{Activity, Breakdown, Lane, Op, SimDuration, SimTime, Timeline, VerifiedProgram};

use super::spent::activity_along;

/// What is under way in an instant, first what counts: work on the device hides what runs beside it.
const PRIORITY: [Activity; 10] = [
    Activity::Recomputation,
    Activity::Compute,
    Activity::Optimizer,
    Activity::Tensor,
    Activity::Context,
    Activity::Expert,
    Activity::HostCopy,
    Activity::Pipeline,
    Activity::Data,
    Activity::Launch,
];

/// The breakdown of an iteration, up to its end on the timeline.
pub(super) fn breakdown(program: &VerifiedProgram, timeline: &Timeline) -> Breakdown {
    let mut found = Breakdown::default();
    let Some(lane) = last(timeline) else { return found };
    let role = &program.roles[lane.role.index()];
    let mut changes: Vec<(SimTime, bool, usize)> = Vec::with_capacity(2 * lane.spans.len() + 1);
    for (from, to, activity) in shown(program, role, lane) {
        let place = PRIORITY.iter().position(|other| *other == activity).expect("what instructions are");
        changes.push((from, true, place));
        changes.push((to, false, place));
    }
    changes.push((end(lane), false, PRIORITY.len()));
    changes.sort_unstable();
    let mut active = [0u32; PRIORITY.len()];
    found.add(Activity::Stall, timeline.input_wait);
    let mut now = SimTime::ZERO + timeline.input_wait;
    for (at, begins, place) in changes {
        let first = active.iter().position(|count| *count > 0);
        let activity = first.map_or(Activity::Bubble, |place| PRIORITY[place]);
        found.add(activity, at.saturating_since(now));
        now = now.max(at);
        if let Some(count) = active.get_mut(place) {
            *count = if begins { *count + 1 } else { *count - 1 };
        }
    }
    found
}

/// The lane that ends last; of lanes that end together, the first.
pub(super) fn last(timeline: &Timeline) -> Option<&Lane> {
    timeline.lanes.iter().rev().max_by_key(|lane| end(lane))
}

fn end(lane: &Lane) -> SimTime {
    lane.spans.iter().map(|span| span.end).max().unwrap_or(SimTime::ZERO)
}

/// The times during which something counts: all work; exchanges while they move; of those over replicas that run beside
/// passes only what lies before the first or after the last of them.
fn shown<'a>(
    program: &'a VerifiedProgram,
    role: &'a Role,
    lane: &'a Lane,
) -> impl Iterator<Item = (SimTime, SimTime, Activity)> + 'a {
    let of = move |id| role.instruction(id);
    let is_pass = |op: Op| matches!(op, Op::Compute { .. });
    let passes = move || lane.spans.iter().filter(move |span| is_pass(of(span.instruction).op));
    let first = passes().map(|span| span.start).min().unwrap_or(SimTime::NEVER);
    let last = passes().map(|span| span.end).max().unwrap_or(SimTime::ZERO);
    lane.spans.iter().flat_map(move |span| {
        let instruction = of(span.instruction);
        let whole = [Some((span.start, span.end)), None];
        let (times, activity) = match instruction.op {
            Op::Compute { pass: Pass::Recompute, .. } => (whole, Activity::Recomputation),
            Op::Compute { .. } => (whole, Activity::Compute),
            Op::GradientNorm | Op::Optimizer | Op::Collective { payload: Payload::GradientNorm, .. } => {
                (whole, Activity::Optimizer)
            }
            Op::HostCopy { .. } => (whole, Activity::HostCopy),
            Op::Receive { .. } => (whole, Activity::Pipeline),
            // What is sent holds up nobody here, unless everything else has ended.
            Op::Send { .. } => ([None, Some((span.start.max(last), span.end))], Activity::Pipeline),
            Op::Collective { group, .. } if instruction.stream == Stream::Data => {
                let outside = [Some((span.start, span.end.min(first))), Some((span.start.max(last), span.end))];
                (outside, activity_along(program.groups[group.index()].axis))
            }
            Op::Collective { group, .. } => (whole, activity_along(program.groups[group.index()].axis)),
        };
        times.into_iter().flatten().filter(|(from, to)| from < to).map(move |(from, to)| (from, to, activity))
    })
}

/// Time that nothing on a timeline accounts for.
pub(super) fn stalled(mut breakdown: Breakdown, time: SimDuration) -> Breakdown {
    breakdown.add(Activity::Stall, time);
    breakdown
}
