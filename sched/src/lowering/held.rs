//! Amounts of memory of ranges of units, each found once, and which step of a pass touches a unit last.

use cost::memory;
use ir::Bytes;
use ir::counts::Shape;
use ir::program::{Chunk, Pass, UnitRange};

use super::template::Step;
use crate::passes::PassOp;

/// What an amount is of.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum What {
    Kept,
    KeptUntilInputs,
    Recomputed,
    RecomputedUntilInputs,
    LeftForWeights,
    Workspace(Pass),
}

/// Amounts of a chunk. Ranges of like units have like amounts: each is counted once.
#[derive(Debug)]
pub(super) struct Amounts<'a> {
    shape: Shape<'a>,
    chunk: &'a Chunk,
    /// What ranges hold, each once.
    likes: Vec<Like>,
    /// Amounts, by the number of what the range holds.
    known: Vec<(What, usize, Bytes)>,
    /// The range that was asked for last, and the number of what it holds: several amounts of one are asked for in a row.
    last: Option<(UnitRange, usize)>,
    /// Where all layers are alike: the same of ranges by where in a layer they begin, and how many units they have.
    in_layers: Option<Vec<((u32, u32), usize)>>,
}

/// Ranges that hold like units.
type Like = ir::counts::UnitCounts;

impl<'a> Amounts<'a> {
    pub(super) fn new(shape: Shape<'a>, chunk: &'a Chunk) -> Self {
        let one_recomputation = chunk.recomputed_layers == 0 || chunk.recomputed_layers >= chunk.layers;
        let alike = shape.model.variants.pattern.is_empty() && one_recomputation;
        let in_layers = alike.then(Vec::new);
        Self { shape, chunk, likes: Vec::new(), known: Vec::new(), last: None, in_layers }
    }
    pub(super) fn kept(&mut self, units: UnitRange) -> Bytes {
        self.find(What::Kept, units)
    }
    pub(super) fn kept_until_inputs(&mut self, units: UnitRange) -> Bytes {
        self.find(What::KeptUntilInputs, units)
    }
    pub(super) fn recomputed_until_inputs(&mut self, units: UnitRange) -> Bytes {
        self.find(What::RecomputedUntilInputs, units)
    }
    pub(super) fn recomputed(&mut self, units: UnitRange) -> Bytes {
        self.find(What::Recomputed, units)
    }
    pub(super) fn left_for_weights(&mut self, units: UnitRange) -> Bytes {
        self.find(What::LeftForWeights, units)
    }
    pub(super) fn workspace(&mut self, pass: Pass, units: UnitRange) -> Bytes {
        self.find(What::Workspace(pass), units)
    }

    fn find(&mut self, what: What, units: UnitRange) -> Bytes {
        let (shape, chunk) = (self.shape, self.chunk);
        let like = match self.last {
            Some((range, like)) if range == units => like,
            Some(_) | None => self.like(units),
        };
        self.last = Some((units, like));
        let same = self.known.iter().find(|(known, of, _)| *known == what && *of == like);
        if let Some((_, _, bytes)) = same {
            return *bytes;
        }
        let bytes = match what {
            What::Kept => memory::kept(shape, chunk, units),
            What::KeptUntilInputs => memory::kept_until_inputs(shape, chunk, units),
            What::RecomputedUntilInputs => memory::recomputed_until_inputs(shape, chunk, units),
            What::Recomputed => memory::recomputed(shape, chunk, units),
            What::LeftForWeights => memory::left_for_weights(shape, chunk, units),
            What::Workspace(pass) => memory::workspace(shape, chunk, pass, units),
        };
        self.known.push((what, like, bytes));
        bytes
    }
}

impl Amounts<'_> {
    /// The number of what a range holds.
    fn like(&mut self, units: UnitRange) -> usize {
        let first = u32::from(self.chunk.embedding);
        let inside = first <= units.start && units.end <= first + 4 * self.chunk.layers;
        let place = inside.then(|| ((units.start - first) % 4, units.end - units.start));
        let mut in_layers = place.and_then(|place| Some((place, self.in_layers.as_mut()?)));
        if let Some((place, known)) = &in_layers
            && let Some((_, like)) = known.iter().find(|(other, _)| other == place)
        {
            return *like;
        }
        let counts = ir::counts::unit_counts(self.shape.model, self.chunk, units);
        let like = self.likes.iter().position(|other| *other == counts).unwrap_or_else(|| {
            self.likes.push(counts);
            self.likes.len() - 1
        });
        if let Some((place, known)) = &mut in_layers {
            known.push((*place, like));
        }
        like
    }
}

/// Of each unit of a chunk, the place of the last step of these passes that goes through it.
pub(super) fn cover(steps: &[Step], chunk: &Chunk, passes: &[Pass]) -> Vec<usize> {
    let mut last = vec![usize::MAX; chunk.units() as usize];
    for (place, step) in steps.iter().enumerate() {
        if let PassOp::Compute { pass, units } = step.op
            && passes.contains(&pass)
        {
            last[units.start as usize..units.end as usize].fill(place);
        }
    }
    assert!(last.iter().all(|place| *place != usize::MAX), "a unit without a pass in {passes:?}");
    last
}
