//! torchtitan's configuration (TOML, 2024 to 2025), in and out.
//!
//! Strict: a key is read, or known to change neither what is trained nor how long it takes, or refused by name. What is
//! left out has torchtitan's default, which the report names. Models are flavours of families, known to the catalog.

mod names;
mod read;
mod split;
#[cfg(test)]
mod tests;
mod write;

pub(crate) use read::{Run, read};
pub use write::overrides;

/// The family and the flavour under which torchtitan has a model of the catalog, if it has it.
#[must_use]
pub fn flavour(catalog: &str) -> Option<(&'static str, &'static str)> {
    let found = names::FLAVOURS.iter().find(|(_, _, name)| *name == catalog);
    found.map(|(family, flavour, _)| (*family, *flavour))
}

/// Names of the catalog that torchtitan has flavours for.
pub fn known_models() -> impl Iterator<Item = &'static str> {
    names::FLAVOURS.iter().map(|(_, _, name)| *name)
}
