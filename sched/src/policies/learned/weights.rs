//! What training leaves: a network, and on what it was trained, as a text that is refused whole if a byte of it changed.
//!
//! ```text
//! trainyard-policy 1
//! features 1
//! widths 50 30 64 32 16
//! seed 7
//! searches 2400
//! evaluations 480000
//! nodes dgx-a100 dgx-h100
//! models gpt-13b llama-2-7b
//! parameters 5633
//! 0.0123 -0.25 ...
//! checksum 89abcdef
//! ```
//!
//! Numbers are rounded to 32 bits when they are written, and are exact from then on. The checksum is the CRC-32 of all bytes
//! before its line.

use ir::Problem;
use ir::problem::SourceSpan;

use super::features;
use super::network::{Network, Widths};

/// A trained network and where it comes from.
#[derive(Clone, PartialEq, Debug)]
pub struct Weights {
    network: Network,
    /// On what it was trained.
    pub origin: Origin,
}

/// On what weights were trained: whoever scores them keeps away from it.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Origin {
    /// The seed of all draws.
    pub seed: u64,
    /// Searches that it learned from.
    pub searches: u64,
    /// Evaluations of plans in all of them.
    pub evaluations: u64,
    /// Kinds of node of the clusters that were drawn from, by name, in order.
    pub nodes: Vec<String>,
    /// Models that were drawn from, by name, in order.
    pub models: Vec<String>,
}

/// The version of the format.
const VERSION: u32 = 1;
/// The first word of the format.
const MAGIC: &str = "trainyard-policy";
/// Numbers on a line.
const ACROSS: usize = 12;
/// More units than any network of this format has; with it no size leaves its type.
const WIDEST: usize = 4096;
/// What to do about a file that is damaged.
const AGAIN: &str = "copy the file again, or make it again with `trainyard train-policy`";

impl Weights {
    /// Weights with their numbers rounded as a file holds them.
    ///
    /// # Panics
    /// If a parameter is no finite number of 32 bits.
    #[must_use]
    pub fn new(network: Network, origin: Origin) -> Self {
        let widths = network.widths();
        let rounded: Vec<f64> = network.parameters().iter().map(|number| f64::from(narrow(*number))).collect();
        assert!(rounded.iter().all(|number| number.is_finite()), "training left numbers that are none");
        Self { network: Network::new(widths, rounded), origin }
    }
    /// The network.
    #[must_use]
    pub const fn network(&self) -> &Network {
        &self.network
    }
    /// As the text of a file.
    #[must_use]
    pub fn text(&self) -> String {
        let Widths { state, choice, trunk, rating, value } = self.network.widths();
        let Origin { seed, searches, evaluations, nodes, models } = &self.origin;
        let mut text = format!(
            "{MAGIC} {VERSION}\nfeatures {}\nwidths {state} {choice} {trunk} {rating} {value}\nseed {seed}\n\
             searches {searches}\nevaluations {evaluations}\nnodes {}\nmodels {}\nparameters {}\n",
            features::VERSION,
            nodes.join(" "),
            models.join(" "),
            self.network.parameters().len()
        );
        for line in self.network.parameters().chunks(ACROSS) {
            let words: Vec<String> = line.iter().map(|number| narrow(*number).to_string()).collect();
            text.push_str(&words.join(" "));
            text.push('\n');
        }
        let checksum = crc32fast::hash(text.as_bytes());
        text.push_str(&format!("checksum {checksum:08x}\n"));
        text
    }
    /// Reads a file's text.
    ///
    /// # Errors
    /// What is wrong with it, where, and what to do: another format or version, other features than this program's, a
    /// checksum that does not hold, a number that is none.
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        let mut lines = Lines { file, text, at: 0 };
        read(&mut lines).map_err(|problem| vec![problem])
    }
}

/// A number as a file holds it.
#[expect(clippy::cast_possible_truncation, reason = "rounding to the nearest is what is wanted")]
const fn narrow(number: f64) -> f32 {
    number as f32
}

/// The lines of a file and where they stand.
struct Lines<'t> {
    file: &'t str,
    text: &'t str,
    at: usize,
}

/// A line: its text, and where it begins.
type Line<'t> = (&'t str, usize);

impl<'t> Lines<'t> {
    fn next(&mut self, what: &str) -> Result<Line<'t>, Problem> {
        let start = self.at;
        let rest = &self.text[start..];
        let Some(length) = rest.find('\n') else {
            return Err(self.problem((rest, start), format!("ends where {what} should stand"), AGAIN));
        };
        self.at = start + length + 1;
        Ok((&rest[..length], start))
    }
    /// The words of a line behind its key.
    fn words(&mut self, key: &str) -> Result<(Vec<&'t str>, Line<'t>), Problem> {
        let line = self.next(&format!("`{key}`"))?;
        let mut words = line.0.split(' ').filter(|word| !word.is_empty());
        if words.next() != Some(key) {
            return Err(self.problem(line, format!("has `{}` where `{key}` should stand", short(line.0)), AGAIN));
        }
        Ok((words.collect(), line))
    }
    /// The whole numbers of a line behind its key, so many.
    fn numbers<const N: usize>(&mut self, key: &str) -> Result<[u64; N], Problem> {
        let (words, line) = self.words(key)?;
        let numbers: Option<Vec<u64>> = words.iter().map(|word| word.parse().ok()).collect();
        numbers.and_then(|numbers| numbers.try_into().ok()).ok_or_else(|| {
            let message = format!("has `{}`, and `{key}` is followed by {N} whole numbers", short(line.0));
            self.problem(line, message, AGAIN)
        })
    }
    fn problem(&self, (line, start): Line<'_>, message: impl Into<String>, hint: &str) -> Problem {
        let span = SourceSpan { file: self.file.to_owned(), range: start..start + line.len() };
        Problem::new("weights", message).at(span).hint(hint)
    }
}

fn short(line: &str) -> String {
    if line.chars().count() <= 40 { line.to_owned() } else { line.chars().take(40).chain("...".chars()).collect() }
}

fn read(lines: &mut Lines<'_>) -> Result<Weights, Problem> {
    head(lines)?;
    let [state, choice, trunk, rating, value] =
        lines.numbers::<5>("widths")?.map(|width| usize::try_from(width).unwrap_or(usize::MAX));
    let widths = Widths { state, choice, trunk, rating, value };
    let whole = (lines.text, 0);
    let expect = (features::STATE, features::CHOICE);
    if (state, choice) != expect {
        let message =
            format!("is for {state} and {choice} features, and this program knows {} and {}", expect.0, expect.1);
        return Err(lines.problem(whole, message, "train with this version of the program"));
    }
    if [trunk, rating, value].iter().any(|width| !(1..=WIDEST).contains(width)) {
        return Err(lines.problem(whole, format!("has layers of 1 to {WIDEST} units only"), AGAIN));
    }
    let [seed] = lines.numbers("seed")?;
    let [searches] = lines.numbers("searches")?;
    let [evaluations] = lines.numbers("evaluations")?;
    let names = |words: Vec<&str>| words.into_iter().map(str::to_owned).collect();
    let nodes = names(lines.words("nodes")?.0);
    let models = names(lines.words("models")?.0);
    let parameters = parameters(lines, widths)?;
    let origin = Origin { seed, searches, evaluations, nodes, models };
    Ok(Weights { network: Network::new(widths, parameters), origin })
}

/// The first two lines, and the checksum before anything else is believed.
fn head(lines: &mut Lines<'_>) -> Result<(), Problem> {
    let line = lines.next("the first line")?;
    let Some(version) = line.0.strip_prefix(MAGIC).and_then(|rest| rest.strip_prefix(' ')) else {
        let message =
            format!("begins with `{}` and not with `{MAGIC}`: it holds no weights of a policy", short(line.0));
        return Err(lines.problem(line, message, "name a file that `trainyard train-policy` wrote"));
    };
    if version.parse() != Ok(VERSION) {
        let message =
            format!("has version `{}` of the format, and this program reads version {VERSION}", short(version));
        return Err(lines.problem(line, message, "train with this version of the program"));
    }
    let body = lines.text.trim_end_matches('\n');
    let start = body.rfind('\n').map_or(0, |at| at + 1);
    let last = (&body[start..], start);
    let Some(written) = last.0.strip_prefix("checksum ") else {
        return Err(lines.problem(last, "does not end with its checksum: a part of the file is missing", AGAIN));
    };
    let checksum = format!("{:08x}", crc32fast::hash(&lines.text.as_bytes()[..start]));
    if written != checksum {
        let message = format!("is damaged: its checksum is {checksum}, and it says {}", short(written));
        return Err(lines.problem(last, message, AGAIN));
    }
    let [version] = lines.numbers("features")?;
    if version != u64::from(features::VERSION) {
        let message = format!(
            "was trained on version {version} of the features, and this program computes version {}",
            features::VERSION
        );
        return Err(lines.problem(line, message, "train with this version of the program"));
    }
    Ok(())
}

fn parameters(lines: &mut Lines<'_>, widths: Widths) -> Result<Vec<f64>, Problem> {
    let [count] = lines.numbers("parameters")?;
    if count != widths.parameters() as u64 {
        let message = format!("holds {count} parameters, and its widths make {}", widths.parameters());
        return Err(lines.problem((lines.text, 0), message, AGAIN));
    }
    let mut parameters = Vec::with_capacity(widths.parameters());
    while parameters.len() < widths.parameters() {
        let line = lines.next("a parameter")?;
        for word in line.0.split(' ') {
            match word.parse::<f32>() {
                Ok(number) if number.is_finite() => parameters.push(f64::from(number)),
                _ => return Err(lines.problem(line, format!("has `{}` for a number", short(word)), AGAIN)),
            }
        }
    }
    let (_, line) = lines.words("checksum")?;
    if parameters.len() > widths.parameters() {
        return Err(lines.problem(line, "comes after more numbers than there are parameters", AGAIN));
    }
    if !lines.text[lines.at..].trim().is_empty() {
        return Err(lines.problem(line, "is not the last line", AGAIN));
    }
    Ok(parameters)
}

#[cfg(test)]
mod tests {
    use rand::RngExt;

    use super::*;
    use crate::testing::random;

    fn drawn(seed: u64) -> Weights {
        let mut rng = random(seed);
        let mut width = || rng.random_range(1..20);
        let widths = Widths {
            state: features::STATE,
            choice: features::CHOICE,
            trunk: width(),
            rating: width(),
            value: width(),
        };
        let scale = libm::exp(rng.random_range(-30.0..30.0));
        let parameters = (0..widths.parameters()).map(|_| scale * rng.random_range(-1.0..1.0)).collect();
        let names = |count: u32| (0..count).map(|number| format!("name-{number}.5b")).collect();
        let origin = Origin {
            seed,
            searches: rng.random(),
            evaluations: rng.random(),
            nodes: names(rng.random_range(0..4)),
            models: names(rng.random_range(0..4)),
        };
        Weights::new(Network::new(widths, parameters), origin)
    }

    #[test]
    fn what_is_written_reads_back_to_the_bit() {
        for seed in 0..40 {
            let weights = drawn(seed);
            let read = Weights::parse(&weights.text(), "w").expect("its own text");
            assert_eq!(read, weights, "seed {seed}");
            assert_eq!(read.text(), weights.text(), "seed {seed}");
        }
    }

    /// Any one byte changed, and any part missing: an error with the file and what to do, never other weights.
    #[test]
    fn a_damaged_file_is_refused() {
        for seed in 0..200 {
            let text = drawn(seed % 5).text();
            let mut rng = random(seed);
            let mut bytes = text.clone().into_bytes();
            let at = rng.random_range(0..bytes.len());
            if seed % 2 == 0 {
                bytes[at] = b"0123456789 .-\nchx"[rng.random_range(0..17)];
            } else {
                bytes.truncate(at);
            }
            if bytes == text.as_bytes() || text.as_bytes()[..text.len() - 1] == bytes[..] {
                continue;
            }
            let damaged = String::from_utf8(bytes).expect("ASCII");
            let problems = Weights::parse(&damaged, "my.weights").expect_err("damaged");
            let problem = &problems[0];
            assert_eq!(problem.span.as_ref().expect("a place").file, "my.weights", "seed {seed}: {problem}");
            assert!(problem.span.as_ref().expect("a place").range.end <= damaged.len(), "seed {seed}");
            assert!(problem.hint.is_some(), "seed {seed}: {problem}");
        }
    }

    #[test]
    fn each_fault_has_its_words() {
        let weights = drawn(1);
        let sum = |text: String| {
            let body = text[..text.rfind("checksum").expect("a checksum")].to_owned();
            let checksum = crc32fast::hash(body.as_bytes());
            format!("{body}checksum {checksum:08x}\n")
        };
        let check = |change: &dyn Fn(String) -> String, expect: &str| {
            let problems = Weights::parse(&change(weights.text()), "w").expect_err(expect);
            let text = problems[0].to_string();
            assert!(text.contains(expect), "{expect}\n{text}");
        };
        check(&|_| "schema_version = 1\n".to_owned(), "it holds no weights of a policy");
        check(&|_| String::new(), "ends where the first line should stand");
        check(&|text| text.replacen("policy 1", "policy 2", 1), "this program reads version 1");
        check(&|text| text.replacen("seed 1", "seed 2", 1), "is damaged: its checksum is");
        check(&|text| text[..text.len() / 2].to_owned(), "a part of the file is missing");
        check(&|text| sum(text.replacen("features 1", "features 99", 1)), "was trained on version 99 of the features");
        check(&|text| sum(text.replacen("seed 1", "seed x", 1)), "`seed` is followed by 1 whole numbers");
        check(&|text| sum(text.replacen("seed 1", "sead 1", 1)), "where `seed` should stand");
        check(&|text| sum(text.replacen("parameters ", "parameters 1", 1)), "and its widths make");
        check(&|text| sum(text.replacen(&format!("widths {}", features::STATE), "widths 1", 1)), "this program knows");
        check(&|text| sum(text.replacen("\nchecksum", " inf\nchecksum", 1)), "has `inf` for a number");
        check(&|text| sum(text.replacen("\nchecksum", " 1\nchecksum", 1)), "more numbers than there are parameters");
    }
}
