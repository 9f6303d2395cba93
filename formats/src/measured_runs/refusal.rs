//! Why a row is not used, by name.

use super::run::MeasuredRun;

/// A row that is not used, with every reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// The row's name; empty if it has none.
    pub row_id: String,
    /// Its line in the file, counted from 1; the heading is line 1.
    pub line: u64,
    /// Every reason, at least one.
    pub faults: Vec<Fault>,
}

/// One reason.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Fault {
    /// Its kind.
    pub reason: Reason,
    /// The column concerned.
    pub column: &'static str,
    /// What is wrong, as a sentence without a full stop.
    pub message: String,
}

/// Kinds of reasons why a row is not used.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Reason {
    /// The line has another number of cells than the heading.
    Malformed,
    /// A number that is needed is not there, and the others do not give it.
    Hole,
    /// A cell that should hold a number holds something else, or a unit with it.
    NotANumber,
    /// Zero, negative, not finite, or beyond anything built.
    OutOfRange,
    /// Two figures of the row cannot both be right.
    Contradiction,
    /// A step faster than the device's dense peak allows, or so slow that its unit must be wrong.
    Implausible,
    /// The same measurement as another row.
    Duplicate,
    /// Neither a step time nor a memory figure.
    NoMeasurement,
    /// A word that is not understood.
    UnknownWord,
    /// Not the training of all parameters of a language model.
    OtherTask,
    /// A number format that is not priced.
    NumberFormat,
    /// Devices of several kinds, or layers of several shapes that are not stated.
    MixedParts,
    /// A model that is not modelled.
    OtherModel,
    /// A device that is not in the catalog.
    UnknownDevice,
}

impl Reason {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::Malformed,
        Self::Hole,
        Self::NotANumber,
        Self::OutOfRange,
        Self::Contradiction,
        Self::Implausible,
        Self::Duplicate,
        Self::NoMeasurement,
        Self::UnknownWord,
        Self::OtherTask,
        Self::NumberFormat,
        Self::MixedParts,
        Self::OtherModel,
        Self::UnknownDevice,
    ];
    /// Its name in results.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Malformed => "malformed",
            Self::Hole => "hole",
            Self::NotANumber => "not-a-number",
            Self::OutOfRange => "out-of-range",
            Self::Contradiction => "contradiction",
            Self::Implausible => "implausible",
            Self::Duplicate => "duplicate",
            Self::NoMeasurement => "no-measurement",
            Self::UnknownWord => "unknown-word",
            Self::OtherTask => "other-task",
            Self::NumberFormat => "number-format",
            Self::MixedParts => "mixed-parts",
            Self::OtherModel => "other-model",
            Self::UnknownDevice => "unknown-device",
        }
    }
    /// Whether the row may be right and only lies outside of what is modelled.
    #[must_use]
    pub const fn is_outside_the_model(self) -> bool {
        matches!(self, Self::OtherTask | Self::NumberFormat | Self::MixedParts | Self::OtherModel | Self::UnknownDevice)
    }
}

impl Fault {
    /// A fault of `column`.
    pub fn new(reason: Reason, column: &'static str, message: impl Into<String>) -> Self {
        Self { reason, column, message: message.into() }
    }
}

impl Refusal {
    /// The kind of its first reason. What lies outside of the model comes first: what such a row leaves open matters less.
    ///
    /// # Panics
    /// If it has no reason, which is a bug.
    #[must_use]
    pub fn reason(&self) -> Reason {
        let outside = self.faults.iter().find(|fault| fault.reason.is_outside_the_model());
        outside
            .or(self.faults.first())
            .unwrap_or_else(|| panic!("row {} is refused without a reason", self.row_id))
            .reason
    }
}

impl std::fmt::Display for Fault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} ({}: {})", self.reason.name(), self.column, self.message)
    }
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (index, fault) in self.faults.iter().enumerate() {
            write!(f, "{}{fault}", if index == 0 { "" } else { "; " })?;
        }
        Ok(())
    }
}

/// A second row of the same name.
pub(super) fn repeated(run: &MeasuredRun) -> Refusal {
    let message = format!("`{}` names an earlier row of this table", run.row_id);
    let faults = vec![Fault::new(Reason::Duplicate, "row_id", message)];
    Refusal { row_id: run.row_id.clone(), line: run.line, faults }
}
