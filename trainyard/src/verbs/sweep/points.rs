//! Which points a sweep has: a grid, a draw, or a list, each a value for each key.

use ir::Problem;
use toml::{Table, Value};

/// More values of one key than a grid is ever meant to have.
const MOST_VALUES: u64 = 1_000_000;
/// More points than are ever waited for.
const MOST_POINTS: u64 = 1_000_000_000;

/// A key and the values that it takes.
#[derive(Clone, PartialEq, Debug)]
pub struct Vary {
    /// The key as written, such as `plan.tensor`.
    pub key: String,
    values: Values,
}

#[derive(Clone, PartialEq, Debug)]
enum Values {
    Listed(Vec<Value>),
    /// All whole numbers from the first to the second.
    Integers(i64, i64),
    /// All numbers from the first to the second.
    Reals(f64, f64),
}

impl std::str::FromStr for Vary {
    type Err = Problem;

    /// `plan.tensor=1,2,4`, `training.global_batch=256..1024:256`, `plan.pipeline=1..16:x2` or, for draws,
    /// `training.expert_imbalance=1.0..1.5`. Values are written as in a scenario; words need no quotes.
    fn from_str(text: &str) -> Result<Self, Problem> {
        let wrong = |message: String| {
            Problem::new(format!("--vary {text}"), message)
                .hint("such as plan.tensor=1,2,4 or training.global_batch=256..1024:256")
        };
        let (key, values) = text.split_once('=').ok_or_else(|| wrong("has no values".to_owned()))?;
        path(key.trim()).map_err(&wrong)?;
        let values = match range(values.trim()) {
            Some(values) => values.map_err(&wrong)?,
            None => Values::Listed(pieces(values).iter().map(|piece| value(piece)).collect()),
        };
        if matches!(&values, Values::Listed(listed) if listed.is_empty()) {
            return Err(wrong("has no values".to_owned()));
        }
        Ok(Self { key: key.trim().to_owned(), values })
    }
}

/// The names that a key goes through: `links."my link".latency` is three.
pub(super) fn path(key: &str) -> Result<Vec<String>, String> {
    let mut table: Table = toml::from_str(&format!("{key} = 0")).map_err(|_| format!("`{key}` is not a key"))?;
    let mut names = Vec::new();
    loop {
        let Some((name, value)) = table.into_iter().next() else { return Err(format!("`{key}` is not a key")) };
        names.push(name);
        match value {
            Value::Table(inner) => table = inner,
            _ => return Ok(names),
        }
    }
}

/// The pieces between commas that stand outside quotes and brackets.
fn pieces(text: &str) -> Vec<String> {
    let (mut depth, mut quote, mut piece, mut all) = (0, None, String::new(), Vec::new());
    for character in text.chars() {
        match (character, quote) {
            ('"' | '\'', None) => quote = Some(character),
            (c, Some(open)) if c == open => quote = None,
            ('[' | '{', None) => depth += 1,
            (']' | '}', None) => depth -= 1,
            (',', None) if depth == 0 => {
                all.push(std::mem::take(&mut piece).trim().to_owned());
                continue;
            }
            _ => {}
        }
        piece.push(character);
    }
    all.push(piece.trim().to_owned());
    all.retain(|piece| !piece.is_empty());
    all
}

/// A value as a scenario writes it, or a word without its quotes.
fn value(text: &str) -> Value {
    let written = toml::from_str::<Table>(&format!("v = {text}")).ok().and_then(|mut table| table.remove("v"));
    written.unwrap_or_else(|| Value::String(text.to_owned()))
}

/// `lo..hi`, `lo..hi:step` or `lo..hi:xfactor`; `None` if it is no range at all.
fn range(text: &str) -> Option<Result<Values, String>> {
    let (low, rest) = text.split_once("..")?;
    let (high, step) = rest.split_once(':').map_or((rest, None), |(high, step)| (high, Some(step.trim())));
    let (low, high) = (value(low.trim()), value(high.trim()));
    let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    let (Some(from), Some(to)) = (number(&low), number(&high)) else { return None };
    if !(from.is_finite() && to.is_finite() && from <= to) {
        return Some(Err(format!("{text} is not a range from low to high")));
    }
    let whole = low.as_integer().zip(high.as_integer());
    Some(match (step, whole) {
        (None, Some((low, high))) => Ok(Values::Integers(low, high)),
        (None, None) => Ok(Values::Reals(from, to)),
        (Some(step), _) => match step.strip_prefix('x') {
            Some(factor) => value(factor).as_integer().zip(whole).map_or_else(
                || Err(format!("x{factor} multiplies whole numbers only")),
                |(factor, (low, high))| multiplied(low, high, factor),
            ),
            None => added(&low, &high, &value(step), whole),
        },
    })
}

fn multiplied(low: i64, high: i64, factor: i64) -> Result<Values, String> {
    if factor < 2 || low < 1 {
        return Err(format!("{low} times {factor} again and again does not grow"));
    }
    let next = |n: &i64| n.checked_mul(factor).filter(|n| *n <= high);
    Ok(Values::Listed(std::iter::successors(Some(low), next).map(Value::Integer).collect()))
}

fn added(low: &Value, high: &Value, step: &Value, whole: Option<(i64, i64)>) -> Result<Values, String> {
    if let (Some((low, high)), Some(step)) = (whole, step.as_integer()) {
        let count = if step > 0 { (i128::from(high) - i128::from(low)) / i128::from(step) + 1 } else { 0 };
        return count_of(count as f64).map(|count| {
            Values::Listed(
                (0..count).map(|i| Value::Integer(low + step * i64::try_from(i).unwrap_or(i64::MAX))).collect(),
            )
        });
    }
    let number = |value: &Value| value.as_float().or_else(|| value.as_integer().map(|n| n as f64));
    let (Some(low), Some(high), Some(step)) = (number(low), number(high), number(step)) else {
        return Err(format!("`{step}` is not a step"));
    };
    // A step that ends within a millionth of the high end reaches it.
    let count = if step > 0.0 { ((high - low) / step + 1e-6).floor() + 1.0 } else { 0.0 };
    count_of(count).map(|count| Values::Listed((0..count).map(|i| Value::Float(low + step * i as f64)).collect()))
}

#[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, reason = "between 1 and a million")]
fn count_of(count: f64) -> Result<u64, String> {
    if (1.0..=MOST_VALUES as f64).contains(&count) {
        Ok(count as u64)
    } else {
        Err(format!("the step gives {count} values, not 1 to {MOST_VALUES}"))
    }
}

/// The points of a sweep. The value of each key is a function of the point's number, whatever was asked before.
#[derive(Clone, PartialEq, Debug)]
pub(super) struct Points {
    pub(super) keys: Vec<String>,
    kind: Kind,
}

#[derive(Clone, PartialEq, Debug)]
enum Kind {
    /// Every combination; the last key changes first.
    Grid(Vec<Vec<Value>>),
    /// So many independent draws from a seed.
    Random(Vec<Values>, u64, u64),
    /// A row for each point; `None` leaves the scenario as it is.
    List(Vec<Vec<Option<Value>>>),
}

impl Points {
    /// Every combination of the values, or so many draws with a seed.
    pub(super) fn vary(vary: &[Vary], random: Option<(u64, u64)>) -> Result<Self, Vec<Problem>> {
        let keys: Vec<String> = vary.iter().map(|vary| vary.key.clone()).collect();
        let mut problems = repeated(&keys);
        let kind = if let Some((count, seed)) = random {
            Kind::Random(vary.iter().map(|vary| vary.values.clone()).collect(), count, seed)
        } else {
            let mut lists = Vec::new();
            for Vary { key, values } in vary {
                match values.listed() {
                    Ok(list) => lists.push(list),
                    Err(message) => problems.push(
                        Problem::new(format!("--vary {key}"), message)
                            .hint("give a step, as in 1.0..2.0:0.1, or --random"),
                    ),
                }
            }
            Kind::Grid(lists)
        };
        let points = Self { keys, kind };
        if problems.is_empty() && !(1..=MOST_POINTS).contains(&points.len()) {
            let message = format!("{} points are not between 1 and {MOST_POINTS}", points.len());
            problems.push(Problem::new("sweep", message));
        }
        if problems.is_empty() { Ok(points) } else { Err(problems) }
    }

    /// The rows of a CSV file, whose headings are keys; an empty cell leaves the key as the scenario has it.
    pub(super) fn list(file: &str, text: &str) -> Result<Self, Vec<Problem>> {
        let mut reader = csv::ReaderBuilder::new().trim(csv::Trim::All).from_reader(text.as_bytes());
        let fault = |error: csv::Error| vec![Problem::new(file, error.to_string())];
        let keys: Vec<String> = reader.headers().map_err(fault)?.iter().map(str::to_owned).collect();
        let mut problems = repeated(&keys);
        for key in &keys {
            problems.extend(path(key).err().map(|message| Problem::new(file, message)));
        }
        let mut rows = Vec::new();
        for record in reader.records() {
            let cell = |cell: &str| (!cell.is_empty()).then(|| value(cell));
            rows.push(record.map_err(fault)?.iter().map(cell).collect::<Vec<_>>());
        }
        if rows.is_empty() {
            problems.push(Problem::new(file, "has no rows").hint("headings are keys, each row is a point"));
        }
        if problems.is_empty() { Ok(Self { keys, kind: Kind::List(rows) }) } else { Err(problems) }
    }

    /// How many there are.
    pub(super) fn len(&self) -> u64 {
        match &self.kind {
            Kind::Grid(lists) => lists.iter().fold(1, |product: u64, list| product.saturating_mul(list.len() as u64)),
            Kind::Random(_, count, _) => *count,
            Kind::List(rows) => rows.len() as u64,
        }
    }

    /// The values of a point.
    pub(super) fn at(&self, index: u64) -> Vec<Option<Value>> {
        match &self.kind {
            Kind::Grid(lists) => {
                let mut rest = index;
                let mut values: Vec<Option<Value>> = Vec::with_capacity(lists.len());
                for list in lists.iter().rev() {
                    let length = list.len() as u64;
                    values.push(usize::try_from(rest % length).ok().map(|at| list[at].clone()));
                    rest /= length;
                }
                values.reverse();
                values
            }
            Kind::Random(axes, _, seed) => {
                let draw = |(key, values): (u64, &Values)| Some(values.draw(mixed(mixed(*seed ^ index) ^ mixed(!key))));
                (0..).zip(axes).map(draw).collect()
            }
            Kind::List(rows) => usize::try_from(index).ok().and_then(|at| rows.get(at)).cloned().unwrap_or_default(),
        }
    }

    /// Every value that a key takes and that is known before the points are made; an example of it for a draw.
    pub(super) fn known(&self, key: usize) -> Vec<Value> {
        match &self.kind {
            Kind::Grid(lists) => lists[key].clone(),
            Kind::Random(axes, ..) => match &axes[key] {
                Values::Listed(list) => list.clone(),
                Values::Integers(low, high) => vec![Value::Integer(*low), Value::Integer(*high)],
                Values::Reals(low, high) => vec![Value::Float(*low), Value::Float(*high)],
            },
            Kind::List(rows) => rows.iter().filter_map(|row| row[key].clone()).collect(),
        }
    }
}

impl Values {
    fn listed(&self) -> Result<Vec<Value>, String> {
        match self {
            Self::Listed(list) => Ok(list.clone()),
            Self::Integers(low, high) => {
                let count = count_of((i128::from(*high) - i128::from(*low) + 1) as f64)?;
                Ok((*low..).take(usize::try_from(count).unwrap_or(usize::MAX)).map(Value::Integer).collect())
            }
            Self::Reals(low, high) => Err(format!("a grid over {low}..{high} has no end of points")),
        }
    }

    /// A value from 64 random bits.
    fn draw(&self, bits: u64) -> Value {
        // 53 bits are what a number between 0 and 1 holds.
        let unit = (bits >> 11) as f64 / (1u64 << 53) as f64;
        let below = |count: u128| (u128::from(bits) * count) >> 64;
        match self {
            Self::Listed(list) => list[usize::try_from(below(list.len() as u128)).unwrap_or(0)].clone(),
            Self::Integers(low, high) => {
                let count = u128::try_from(i128::from(*high) - i128::from(*low) + 1).unwrap_or(1);
                Value::Integer(*low + i64::try_from(below(count)).unwrap_or(0))
            }
            Self::Reals(low, high) => Value::Float(low + (high - low) * unit),
        }
    }
}

/// One step of SplitMix64 (Steele et al. 2014): well-mixed bits of a number.
const fn mixed(number: u64) -> u64 {
    let mut z = number.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn repeated(keys: &[String]) -> Vec<Problem> {
    let twice = keys.iter().enumerate().filter(|(index, key)| keys[..*index].contains(key));
    twice.map(|(_, key)| Problem::new(key.clone(), "is varied twice")).collect()
}

/// Sets a key of a scenario, making the tables around it.
pub(super) fn set(scenario: &mut Table, path: &[String], value: Value) -> Result<(), String> {
    let [parents @ .., last] = path else { unreachable!("a key has a name") };
    let mut table = scenario;
    for name in parents {
        let inner = table.entry(name.as_str()).or_insert_with(|| Value::Table(Table::new()));
        // `model = "NAME"` is `[model] name = "NAME"`.
        if let Value::String(word) = inner {
            let key = if name == "cluster" { "nodes" } else { "name" };
            *inner = Value::Table(Table::from_iter([(key.to_owned(), Value::String(std::mem::take(word)))]));
        }
        let Value::Table(inner) = inner else { return Err(format!("{name} is not a table")) };
        table = inner;
    }
    table.insert(last.clone(), value);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(vary: &str, expect: &[&str]) {
        let points = vary.parse::<Vary>().map_err(|problem| vec![problem]).and_then(|vary| Points::vary(&[vary], None));
        let shown: Vec<String> = match points {
            Ok(points) => (0..points.len()).map(|i| points.at(i)[0].clone().expect("a value").to_string()).collect(),
            Err(problems) => problems.iter().map(ToString::to_string).collect(),
        };
        assert_eq!(shown.len(), expect.len(), "{shown:?}");
        assert!(shown.iter().zip(expect).all(|(shown, expect)| shown.contains(expect)), "{vary}: {shown:?}");
    }

    #[test]
    fn values_are_read() {
        check("plan.tensor=1,2, 4", &["1", "2", "4"]);
        check("plan.zero=0..3", &["0", "1", "2", "3"]);
        check("a=4..16:4", &["4", "8", "12", "16"]);
        check("a=1..20:x2", &["1", "2", "4", "8", "16"]);
        check("a=0.5..0.8:0.1", &["0.5", "0.6", "0.7", "0.8"]);
        check("plan.schedule=1f1b,gpipe", &["\"1f1b\"", "\"gpipe\""]);
        check("cluster=4 x dgx-a100,\"8 x dgx-a100\"", &["\"4 x dgx-a100\"", "\"8 x dgx-a100\""]);
        check("plan.layers_per_stage=[6, 6],[5, 7]", &["[6, 6]", "[5, 7]"]);
        check("plan.overlap_gradients=true,false", &["true", "false"]);
        check("links.\"a.b\".latency=1us,2us", &["\"1us\"", "\"2us\""]);
        check("a", &["has no values"]);
        check("a=", &["has no values"]);
        check("a b=1", &["is not a key"]);
        check("a=4..1", &["not a range"]);
        check("a=1.0..2.0", &["no end of points"]);
        check("a=1..8:x1", &["does not grow"]);
        check("a=0..1:0", &["0 values"]);
        check("a=0.0..1.0:1e-12", &["values, not 1 to"]);
    }

    #[test]
    fn a_grid_has_every_combination_and_the_last_key_changes_first() {
        let vary: Vec<Vary> = ["a=1,2", "b=x,y,z"].iter().map(|text| text.parse().expect("values")).collect();
        let points = Points::vary(&vary, None).expect("a grid");
        let shown: Vec<String> = (0..points.len())
            .map(|index| points.at(index).into_iter().flatten().map(|v| v.to_string().replace('"', "")).collect())
            .collect();
        assert_eq!(shown, ["1x", "1y", "1z", "2x", "2y", "2z"]);
        let twice: Vec<Vary> = ["a=1", "a=2"].iter().map(|text| text.parse().expect("values")).collect();
        assert!(Points::vary(&twice, None).is_err());
    }

    #[test]
    fn draws_are_even_and_depend_on_seed_and_number_alone() {
        let vary: Vec<Vary> = ["a=0..9", "b=0.0..1.0"].iter().map(|text| text.parse().expect("values")).collect();
        let points = Points::vary(&vary, Some((10_000, 7))).expect("draws");
        let mut counts = [0u32; 10];
        let mut sum = 0.0;
        for index in 0..points.len() {
            let values = points.at(index);
            let digit = values[0].as_ref().and_then(Value::as_integer).expect("a digit");
            counts[usize::try_from(digit).expect("0 to 9")] += 1;
            sum += values[1].as_ref().and_then(Value::as_float).expect("a number");
        }
        assert!(counts.iter().all(|count| (850..1150).contains(count)), "{counts:?}");
        assert!((sum / 10_000.0 - 0.5).abs() < 0.02, "{sum}");
        assert_eq!(points.at(77), points.at(77));
        assert_ne!(points.at(77), Points::vary(&vary, Some((10_000, 8))).expect("draws").at(77));
    }

    #[test]
    fn lists_are_rows_of_a_file() {
        let points = Points::list("l.csv", "plan.tensor, plan.schedule\n2,1f1b\n,gpipe\n").expect("a list");
        assert_eq!(points.len(), 2);
        assert_eq!(points.at(0), [Some(Value::Integer(2)), Some(Value::String("1f1b".to_owned()))]);
        assert_eq!(points.at(1)[0], None);
        assert!(Points::list("l.csv", "a\n").is_err() && Points::list("l.csv", "a,a\n1,2\n").is_err());
        assert!(Points::list("l.csv", "a,b\n1\n").is_err());
    }

    #[test]
    fn keys_are_set_where_they_stand() {
        let mut table: Table = toml::from_str("model = \"m\"\n[plan]\ntensor = 1\n").expect("TOML");
        let mut put = |key: &str, value: Value| set(&mut table, &path(key).expect("a key"), value);
        put("plan.tensor", Value::Integer(2)).expect("set");
        put("model.layers", Value::Integer(3)).expect("set");
        put("training.optimizer.beta1", Value::Float(0.5)).expect("set");
        assert!(put("plan.tensor.x", Value::Integer(2)).is_err());
        let text = toml::to_string(&table).expect("plain");
        for part in ["tensor = 2", "[model]\nname = \"m\"\nlayers = 3", "[training.optimizer]\nbeta1 = 0.5"] {
            assert!(text.contains(part), "{text}");
        }
    }
}
