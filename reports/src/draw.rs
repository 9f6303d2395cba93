//! Pictures: a scene of boxes and words that is written as SVG or PNG, and charts by plotters.
//!
//! Everything that knows plotters, or how SVG is spelt, is below this module. Pictures need neither a network, a script,
//! nor a font of the machine: PNG text uses the embedded subset of DejaVu Sans, SVG text the viewer's sans-serif.

pub(crate) mod bars;
pub(crate) mod charts;
mod font;
pub(crate) mod palette;
pub(crate) mod plot;
mod png;
pub(crate) mod scale;
pub(crate) mod scene;
pub(crate) mod timeline;
