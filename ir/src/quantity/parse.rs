//! Parsing.
/// Why a text is not a quantity.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct QuantityError;
