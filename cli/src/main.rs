//! The `trainyard` command: arguments in, progress and words out, nothing else.
//!
//! Results go to standard output, progress and errors to standard error. Exit codes are in [`exit`].

// The only crate that prints; standard output and error go through anstream, which drops colours where they are not wanted.

mod ablation;
mod answer;
mod arguments;
mod exchanged;
mod exit;
mod launched;
mod measured;
mod meter;
mod placed;
mod show;
mod tables;
mod trained;
mod verbs;

use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use clap::Parser as _;

fn main() -> ExitCode {
    let arguments = arguments::Arguments::parse();
    let interrupt = Arc::new(AtomicBool::new(false));
    let flag = Arc::clone(&interrupt);
    // The first Ctrl-C asks to stop, the second does not ask. Without a handler the signal still ends the program.
    // One rank of many is ended by its coordinator, or by the signal.
    let alone = matches!(arguments.verb, arguments::Verb::Worker { .. });
    let handler = if alone {
        Ok(())
    } else {
        ctrlc::set_handler(move || {
            if flag.swap(true, Ordering::Relaxed) {
                std::process::exit(i32::from(exit::INTERRUPTED));
            }
        })
    };
    if let Err(error) = handler {
        anstream::eprintln!("note: Ctrl-C will end the program at once: {error}");
    }
    ExitCode::from(verbs::run(&arguments, &interrupt))
}
