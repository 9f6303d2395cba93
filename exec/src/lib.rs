//! trainyard-exec
pub mod data;
pub mod kernels;
pub mod runtime;
pub mod state;
