//! Writes a page of drawn numbers to standard output: `scoreboard`, `waterfall`, `sweep`, `diff`, `candidates` or `sizing`,
//! as HTML, as Markdown with `markdown` behind it, or one of its pictures with its file name, such as `errors.svg`, behind
//! it; `junit` is XML.
//!
//! `cargo run -p trainyard-reports --example sample_pages scoreboard > scoreboard.html`

use std::io::Write;

#[path = "../tests/plain/support.rs"]
mod support;

fn main() -> std::io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let what = arguments.first().map_or("scoreboard", String::as_str);
    let mut out = std::io::stdout().lock();
    if what == "junit" {
        return out.write_all(support::junit().xml().as_bytes());
    }
    let document = match what {
        "waterfall" => support::waterfall().document(),
        "sweep" => support::sweep_report(10_000).document(),
        "diff" => support::diff().document(),
        "candidates" => support::candidates().document(),
        "sizing" => support::sizing().document(),
        _ => support::scoreboard().document(),
    };
    let text = match arguments.get(1).map(String::as_str) {
        None => document.html(),
        Some("markdown") => document.markdown(),
        Some(file) => document.pictures().into_iter().find(|(name, _)| name == file).map_or_else(String::new, |p| p.1),
    };
    out.write_all(text.as_bytes())
}
