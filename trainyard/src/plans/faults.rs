//! Measured plans that are there twice, and figures that cannot be. Nothing here sees a prediction.
//!
//! | rule | what is wrong |
//! |---|---|
//! | two files of one plan, microbatch and batch | the second measures the same |
//! | two plans with one time and one memory, to the last digit | one is a copy of the other |
//! | a reduction that takes no less than its iteration | the reduction |
//! | a reduction over five times the longest of all others of the same stages, tensor degree and devices | the reduction |
//! | a pass that takes no more than a third of that of a smaller microbatch of the same stages | the iteration |
//! | more memory than the device has | the memory |
//! | a number of nodes that is not the plan's | the number of nodes |

use formats::sailor::{Measured, Pipeline, SailorPlan};

/// What a figure of a measured plan is not.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Doubt {
    /// The row counts in no figure.
    pub(crate) duplicate: bool,
    /// Its time counts in none.
    pub(crate) iteration: bool,
    /// Its reduction.
    pub(crate) reduction: bool,
    /// Its memory.
    pub(crate) memory: bool,
}

/// A measured plan with its name.
#[derive(Clone, Debug)]
pub(crate) struct Named {
    pub(crate) name: String,
    pub(crate) plan: SailorPlan,
    pub(crate) measured: Measured,
    /// Bytes of the smallest device, where it is known.
    pub(crate) capacity: Option<u64>,
}

impl Named {
    fn pipeline(&self) -> &Pipeline {
        &self.plan.pipelines[0]
    }
    /// Microbatches of a replica, and the positions that they pass.
    fn slots(&self) -> Option<f64> {
        let replicas = self.pipeline().replicas[0].len() as f64;
        let microbatches = f64::from(self.plan.batch?) / (replicas * f64::from(self.plan.microbatch));
        Some(microbatches + self.pipeline().layers.len() as f64 - 1.0)
    }
    /// Whether stages, tensor degrees and kinds of device are the same, whatever the replicas.
    fn is_like(&self, other: &Self) -> bool {
        let first = |of: &Self| -> Vec<(u32, String)> {
            of.pipeline().replicas.iter().map(|stage| (stage[0].tensor, stage[0].nodes[0].device.clone())).collect()
        };
        self.pipeline().layers == other.pipeline().layers && first(self) == first(other)
    }
    /// Seconds of one microbatch in one position, reductions not counted.
    fn pass(&self) -> Option<f64> {
        Some(self.measured.iteration / self.slots()?)
    }
}

/// How many times longer than all others a reduction cannot be.
const OUTLIER: f64 = 5.0;
/// The share of a smaller microbatch's pass that a pass cannot be under.
const TOO_SHORT: f64 = 1.0 / 3.0;

/// What is to be doubted of each row, and why, in sentences.
pub(crate) fn doubts(rows: &[Named]) -> Vec<(Doubt, Vec<String>)> {
    rows.iter().enumerate().map(|(place, row)| doubt(row, place, rows)).collect()
}

fn doubt(row: &Named, place: usize, rows: &[Named]) -> (Doubt, Vec<String>) {
    let mut doubt = Doubt::default();
    let mut why = Vec::new();
    let others = || rows.iter().enumerate().filter(|(other, _)| *other != place).map(|(_, other)| other);
    for earlier in &rows[..place] {
        let same_plan = earlier.plan.pipelines == row.plan.pipelines
            && (earlier.plan.microbatch, earlier.plan.batch) == (row.plan.microbatch, row.plan.batch);
        let same_figures = earlier.measured.iteration.to_bits() == row.measured.iteration.to_bits()
            && earlier.measured.memory == row.measured.memory
            && earlier.measured.memory.is_some();
        if same_plan {
            doubt.duplicate = true;
            why.push(format!("the plan of {} again", earlier.name));
        } else if same_figures {
            doubt.duplicate = true;
            why.push(format!("the time and memory of {}, another plan, to the last digit", earlier.name));
        }
    }
    if let Some(reduction) = row.measured.reduction {
        let possible = |of: &Measured| of.reduction.filter(|reduction| *reduction < of.iteration);
        let like = || others().filter(|other| other.is_like(row)).filter_map(|other| possible(&other.measured));
        let longest = like().fold(0.0, f64::max);
        if reduction >= row.measured.iteration {
            doubt.reduction = true;
            why.push("a reduction that takes no less than its iteration".to_owned());
        } else if like().count() >= 2 && longest > 0.0 && reduction > OUTLIER * longest {
            doubt.reduction = true;
            why.push(format!(
                "its reduction takes {:.0} ms, {:.0} times the longest of other runs of the same stages",
                reduction * 1e3,
                reduction / longest
            ));
        }
    }
    let smaller = |other: &&Named| other.is_like(row) && other.plan.microbatch < row.plan.microbatch;
    for other in others().filter(smaller) {
        if let (Some(own), Some(theirs)) = (row.pass(), other.pass())
            && own < TOO_SHORT * theirs
        {
            doubt.iteration = true;
            why.push(format!("a microbatch takes {own:.4} s, and {theirs:.4} s of a smaller one in {}", other.name));
            break;
        }
    }
    if let (Some(memory), Some(capacity)) = (row.measured.memory, row.capacity)
        && memory > capacity
    {
        doubt.memory = true;
        why.push(format!("{memory} bytes in use of a device of {capacity}"));
    }
    let mut nodes = 0.0;
    for replica in row.plan.places() {
        nodes += replica.nodes.iter().map(|of| f64::from(replica.tensor) / f64::from(of.per_node)).sum::<f64>();
    }
    if let Some(said) = row.measured.nodes
        && f64::from(said) < nodes
    {
        why.push(format!("says {said} nodes, and its plan is on {nodes}"));
    }
    (doubt, why)
}

#[cfg(test)]
mod tests {
    use super::{Named, doubts};

    fn row(name: &str, (replicas, microbatch, batch): (usize, u32, u32), figures: (f64, f64, u64)) -> Named {
        let (real, reduction, memory) = figures;
        let one = r#"[[["GH-96", 4, "z"]], 4]"#;
        let text = format!(
            r#"{{"pipeline_list": [{{"num_stages": 1, "layers_per_stage": [[0, 1, 2]], "tmp_per_stage": [[{}]],
            "dp": [{replicas}]}}], "mbs": {microbatch}, "gbs": {batch}, "real": {real}, "red_grads": {reduction},
            "max_mem": {memory}, "N": {replicas}}}"#,
            vec![one; replicas].join(", ")
        );
        let plan = formats::sailor::plan(&text, name).unwrap_or_else(|problems| panic!("{problems:?}"));
        let measured = plan.measured.expect("measured");
        Named { name: name.to_owned(), plan, measured, capacity: Some(1000) }
    }

    #[test]
    fn duplicates_and_figures_that_cannot_be_are_named() {
        let rows = [
            row("a", (1, 1, 32), (2.28, 0.008, 500)),
            row("b", (2, 2, 32), (0.8, 0.036, 510)),
            row("c", (4, 4, 128), (1.2, 1.06, 520)),
            row("d", (1, 1, 32), (2.31, 0.008, 501)),
            row("e", (8, 8, 512), (1.9, 0.04, 510)),
            row("f", (16, 8, 1024), (1.9, 0.04, 510)),
            row("g", (2, 8, 512), (0.5, 0.03, 2000)),
            row("h", (2, 1, 64), (2.3, 2.4, 400)),
        ];
        let found = doubts(&rows);
        let said: Vec<String> = found.iter().map(|(_, why)| why.join("; ")).collect();
        let expect = [
            "",
            "",
            "its reduction takes 1060 ms",
            "the plan of a again",
            "",
            "the time and memory of e, another plan",
            "a microbatch takes",
            "a reduction that takes no less",
        ];
        for (said, part) in said.iter().zip(expect) {
            assert!(said.contains(part) && said.is_empty() == part.is_empty(), "{said}: {part}");
        }
        assert!(found[2].0.reduction && !found[2].0.iteration && !found[2].0.duplicate);
        assert!(found[3].0.duplicate && found[5].0.duplicate);
        assert!(found[6].0.iteration && found[6].0.memory, "{:?}", found[6]);
    }
}
