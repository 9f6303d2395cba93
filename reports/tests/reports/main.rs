//! Reports of hand-made programs whose numbers are known beforehand.

mod comparison;
mod exports;
mod metrics;
mod pages;
mod support;
