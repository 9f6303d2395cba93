//! A report's pictures, each on its own.

use crate::activity::Activity;
use crate::draw::scene::{Key, Scene};
use crate::draw::timeline::{Block, heading, picture};
use crate::metrics::bounds;
use crate::report::Report;
use crate::show;

impl Report<'_> {
    /// The pipeline timelines of all clocks on one time axis.
    pub(crate) fn timeline_scene(&self) -> Scene {
        let mut blocks = Vec::with_capacity(self.machines.len());
        for machine in &self.machines {
            let (begin, end) = bounds(machine.median);
            let mut note = show::nanoseconds((end - begin) as f64);
            match machine.repetitions.len() {
                1 => note.push_str(&format!(", iteration {}", machine.median.iteration)),
                n => note.push_str(&format!(", iteration {}, the median of {n}", machine.median.iteration)),
            }
            let lanes = machine.median.lanes.len();
            let shown = crate::draw::timeline::shown_lanes(self.input.program, machine.median).len();
            if shown < lanes {
                note.push_str(&format!("; {shown} of {} rows are shown", show::count(lanes as u64)));
            }
            blocks.push(Block { heading: heading(machine.clock).to_owned(), note, timeline: machine.median });
        }
        picture(self.input.program, &blocks)
    }

    /// The activities that the program's instructions can be put down to, in order.
    pub(crate) fn activities(&self) -> Vec<Activity> {
        let program = self.input.program;
        let ops = || program.roles.iter().flat_map(|role| role.instructions());
        let used = |activity: &Activity| {
            *activity == Activity::Bubble
                || *activity == Activity::InputStall && self.metrics.iter().any(|m| m.time.get(*activity) > 0)
                || ops().any(|instruction| Activity::of(program, &instruction.op) == *activity)
        };
        Activity::ALL.into_iter().filter(used).collect()
    }

    fn standalone(&self) -> Scene {
        let key = |activity: Activity| Key::filled(activity.colour(), activity.name());
        let keys: Vec<Key> = self.activities().into_iter().map(key).collect();
        self.timeline_scene().framed(&keys)
    }

    /// The pipeline timelines as an SVG image that stands alone: legend, margin, light colours.
    #[must_use]
    pub fn timeline_svg(&self) -> String {
        self.standalone().svg()
    }

    /// The pipeline timelines as a PNG image with legend and margin, two device pixels for each pixel; the same bytes on
    /// every machine.
    #[must_use]
    pub fn timeline_png(&self) -> Vec<u8> {
        self.standalone().png(2)
    }
}
