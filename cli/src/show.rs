//! Words on the terminal. Colours are dropped where they are not wanted (`NO_COLOR`, pipes).

use std::fmt::Write as _;

use owo_colors::OwoColorize as _;
use trainyard::Error;

/// Prints to standard output. A reader that went away is no error of ours.
pub(crate) fn out(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stdout().lock(), "{text}");
}

/// Prints a note beside the result.
pub(crate) fn note(text: &str) {
    use std::io::Write as _;
    let _ = writeln!(anstream::stderr().lock(), "{} {text}", "note:".yellow());
}

/// Prints an error with its source lines.
pub(crate) fn error(error: &Error) {
    use std::io::Write as _;
    let mut text = String::new();
    for (index, line) in error.to_string().lines().enumerate() {
        // The lines of an excerpt and of a hint are indented; what stands at the margin is a problem of its own.
        let indented = line.starts_with(' ');
        if index > 0 && !indented {
            text.push('\n');
        }
        let _ = if !indented {
            writeln!(text, "{} {}", "error:".red().bold(), line.bold())
        } else if line.trim_start().starts_with("hint:") {
            writeln!(text, "{}", line.cyan())
        } else if line.trim_start_matches([' ', '|']).chars().all(|c| c == '^') && line.contains('^') {
            writeln!(text, "{}", line.red())
        } else {
            writeln!(text, "{line}")
        };
    }
    let _ = write!(anstream::stderr().lock(), "{text}");
}
