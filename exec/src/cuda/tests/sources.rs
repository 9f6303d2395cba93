//! The sources are right CUDA for every generation of GPUs, and nothing of them spills.

use super::skip;
use crate::cuda::compiler::{Architecture, compile};
use crate::cuda::probe;
use crate::cuda::source::Module;

/// A100, H100, B200.
const GENERATIONS: [Architecture; 3] =
    [Architecture { major: 8, minor: 0 }, Architecture { major: 9, minor: 0 }, Architecture { major: 10, minor: 0 }];

#[test]
fn every_kernel_compiles_for_every_generation_and_spills_nothing() {
    // Without a driver, the compiler alone is asked for.
    if !probe().compiler.is_ready() {
        return skip("every_kernel_compiles_for_every_generation_and_spills_nothing", &probe().compiler.to_string());
    }
    for module in Module::all() {
        for of in GENERATIONS {
            let (image, log) = compile(module, of, &["--ptxas-options=-v"]).unwrap_or_else(|error| panic!("{error}"));
            assert!(image.starts_with(b"\x7fELF"), "{module:?}: device code");
            let kernels = module.source.text().matches("\nEXPORT(").count();
            let frames: Vec<&str> = log.lines().filter(|line| line.contains("spill stores")).collect();
            assert_eq!(frames.len(), kernels, "{module:?} for {of:?}: a line per kernel in\n{log}");
            let spilled = frames
                .iter()
                .any(|line| !line.contains("0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads"));
            assert!(!spilled, "{module:?} for {of:?} spills registers:\n{log}");
        }
    }
}

#[test]
fn what_does_not_compile_says_why() {
    if !probe().compiler.is_ready() {
        return skip("what_does_not_compile_says_why", &probe().compiler.to_string());
    }
    let module = Module::all()[0];
    let error =
        compile(module, GENERATIONS[0], &["-Dqueries=+"]).map(drop).expect_err("a definition that breaks the source");
    assert!(error.cause.contains("error"), "{error}");
    let error = compile(module, Architecture { major: 1, minor: 0 }, &[]).map(drop).expect_err("a GPU of 2006");
    assert!(error.to_string().contains("sm_10") && error.hint.is_some(), "{error}");
}
