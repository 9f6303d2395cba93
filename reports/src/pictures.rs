//! A report's pictures, each on its own.

use crate::draw::scene::Scene;
use crate::draw::timeline::{Block, heading, picture};
use crate::metrics::bounds;
use crate::report::{Machine, Report};
use crate::show;

impl Report<'_> {
    /// The pipeline timelines of all clocks on one time axis.
    pub(crate) fn timeline_scene(&self) -> Scene {
        let block = |machine: &Machine<'_>| {
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
            Block { heading: heading(machine.clock).to_owned(), note, timeline: machine.median }
        };
        let blocks: Vec<Block<'_>> = self.machines.iter().map(block).collect();
        picture(self.input.program, &blocks)
    }

    /// The pipeline timelines as an SVG image that stands alone (light colours).
    #[must_use]
    pub fn timeline_svg(&self) -> String {
        self.timeline_scene().svg()
    }

    /// The pipeline timelines as a PNG image of 2400 pixels width; the same bytes on every machine.
    #[must_use]
    pub fn timeline_png(&self) -> Vec<u8> {
        self.timeline_scene().png(2)
    }
}
