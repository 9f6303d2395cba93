mod cpu;
pub(crate) mod suite;
