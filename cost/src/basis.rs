//! On what a duration rests.

/// On what a duration rests.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub enum Basis {
    /// Measured for just this.
    Measured,
    /// Between measured points, or from a fit of them.
    Interpolated,
    /// From a formula over known constants.
    Analytic,
    /// From constants that nothing was measured for.
    Assumed,
}
