//! The row of a key, or what stands in for it.

use super::{Stack, StackConstants, StackKey, StackRow, Stacks};

/// Rows of a key from which on more of them weigh no more: a factor is known to a few per cent by then.
const FULL_WEIGHT_ROWS: f64 = 6.0;
/// How far, as a logarithm, a key counts in full from what other stacks show: what lies beyond (early software on a new
/// device) says little of its class, and weighs less by the square of its distance.
const FARTHEST: f64 = 0.35;
/// Rows from which on a key's constants beside its factor were fitted.
const ROWS_OF_ALL_CONSTANTS: u32 = 8;
/// Weight of what other stacks of the generation show, against one well-known key of the class itself.
const SHRINKAGE: f64 = 0.4;

impl Stacks {
    /// What a class is declared to do, before anything was fitted: see [`super::ClassRow`].
    #[must_use]
    pub fn base(&self, key: &StackKey) -> StackConstants {
        let declared = self.class.iter().find(|row| row.class == key.class).map(|row| row.constants);
        let sync = if key.experts { self.expert_sync.of(key.graphs) } else { 0.0 };
        StackConstants { expert_sync_us: sync, ..declared.unwrap_or_default() }
    }

    /// What is known of a stack: the row of the key itself; else the keys of its class on its device generation, their
    /// factor drawn towards what other classes have on that generation; else the other classes there; else its class on
    /// other generations; else everything. What was given up is named in the notes and widens the spread. Always
    /// answers: an empty catalog gives what the class is declared to do, with the widest spread.
    ///
    /// The factor is the exponential of `(sum w x + k y) / (sum w + k)`: `x` the logarithms of the pooled keys' factors,
    /// `w` their rows over 6, at most 1, `y` the mean over the generation's other classes (else over the class on other
    /// generations), `k` 0.4; an `x` at a distance `d` of more than 0.35 from `y` counts as at that distance, with `(0.35/d)^2`
    /// of its weight.
    #[must_use]
    pub fn resolve(&self, key: &StackKey) -> Stack {
        if let Some(row) = self.stack.iter().find(|row| row.key() == *key) {
            return self.of_row(key, row);
        }
        let of = |holds: &dyn Fn(&StackRow) -> bool| self.stack.iter().filter(|row| holds(row)).collect::<Vec<_>>();
        let cell = of(&|row| row.class == key.class && row.generation == key.generation);
        let beside = of(&|row| row.class != key.class && row.generation == key.generation);
        let elsewhere = of(&|row| row.class == key.class && row.generation != key.generation);
        let all = of(&|_| true);
        let pools = [&cell, &beside, &elsewhere, &all];
        let Some(pool) = pools.into_iter().find(|pool| !pool.is_empty()) else {
            return Stack {
                constants: self.base(key),
                spread: self.widening.unknown,
                terms: self.spread,
                notes: vec!["no stack of any class is calibrated".to_owned()],
                ..Stack::default()
            };
        };
        let prior =
            if cell.is_empty() { None } else { centre(&by_class(&beside)).or_else(|| centre(&by_class(&elsewhere))) };
        let factor = libm::exp(drawn(pool, prior));
        let constants = StackConstants { compute_factor: factor, ..self.others(key, pool) };
        let steps = self.steps(pool, key);
        let spread = self.unknown_spread(key, pool, &steps);
        self.answer(key, pool, constants, spread, &steps)
    }

    /// What is known of a job of a table: as [`Stacks::resolve`], but where the key's row rests on that very table, what
    /// machines of one stack differ by does not count.
    #[must_use]
    pub fn resolve_in(&self, key: &StackKey, table: &str) -> Stack {
        let own = |row: &&StackRow| row.key() == *key && row.tables.iter().any(|of| of == table);
        match self.stack.iter().find(own) {
            Some(row) => self.of_own_row(key, row),
            None => self.resolve(key),
        }
    }

    /// The row of a key for a job on another machine, unless it rests on tables of which nothing is known but the row: those
    /// of whoever asks.
    fn of_row(&self, key: &StackKey, row: &StackRow) -> Stack {
        let published = |table: &String| self.cold.iter().any(|group| group.table == *table);
        if !row.tables.iter().all(published) {
            return self.of_own_row(key, row);
        }
        let between = super::cold::spread(&self.cold, &key.generation).unwrap_or(0.0);
        self.answer(key, &[row], row.constants, row.spread.max(between), &[])
    }

    fn of_own_row(&self, key: &StackKey, row: &StackRow) -> Stack {
        let answer = self.answer(key, &[row], row.constants, row.spread, &[]);
        // Few rows tell a factor, and nothing of links and hosts.
        let fitted = row.rows >= ROWS_OF_ALL_CONSTANTS;
        Stack { terms: if fitted { self.spread.of_fitted() } else { self.spread }, ..answer }
    }

    /// The spread of a key that has no row: what predictions from other tables were off by ([`super::ColdGroup`]), and more
    /// where no row is of the class. A catalog that has no such groups knows how much its rows differ, and what was given up.
    fn unknown_spread(&self, key: &StackKey, pool: &[&StackRow], steps: &[(String, f64)]) -> f64 {
        if let Some(cold) = super::cold::spread(&self.cold, &key.generation) {
            let known = self.stack.iter().any(|row| row.class == key.class);
            let class = if known { 0.0 } else { self.widening.class };
            return (cold * cold + class * class).sqrt();
        }
        let widening: f64 = steps.iter().map(|(_, step)| step * step).sum();
        (within_and_between(pool) + widening).sqrt()
    }

    fn answer(
        &self,
        key: &StackKey,
        rows: &[&StackRow],
        constants: StackConstants,
        spread: f64,
        steps: &[(String, f64)],
    ) -> Stack {
        let mut tables: Vec<String> = rows.iter().flat_map(|row| row.tables.iter().cloned()).collect();
        tables.sort_unstable();
        tables.dedup();
        Stack {
            constants,
            spread,
            terms: self.spread,
            rows: rows.iter().map(|row| row.rows).fold(0, u32::saturating_add),
            tables,
            notes: notes(self, steps, rows, key),
        }
    }

    /// All constants but the factor: what the class is declared to do, and the pool's median of what was fitted.
    fn others(&self, key: &StackKey, pool: &[&StackRow]) -> StackConstants {
        let base = self.base(key);
        let known: Vec<&&StackRow> = pool.iter().filter(|row| row.rows >= ROWS_OF_ALL_CONSTANTS).collect();
        let of = |part: fn(&StackConstants) -> f64| {
            median(known.iter().map(|row| part(&row.constants)).collect()).unwrap_or_else(|| part(&base))
        };
        StackConstants {
            launch_us: median(known.iter().filter_map(|row| row.constants.launch_us).collect()).or(base.launch_us),
            message_sync_us: of(|c| c.message_sync_us),
            iteration_us: of(|c| c.iteration_us),
            network_efficiency: of(|c| c.network_efficiency),
            ..base
        }
    }

    /// What was given up: in words, with what it widens by. A part on which all rows happen to agree with the key was not.
    fn steps(&self, rows: &[&StackRow], key: &StackKey) -> Vec<(String, f64)> {
        let mut steps = Vec::new();
        let mut step = |same: &dyn Fn(&StackRow) -> bool, words: String, widening: f64| {
            if !rows.iter().all(|row| same(row)) {
                steps.push((words, widening));
            }
        };
        let w = &self.widening;
        let release = key.release.as_deref().unwrap_or("not stated");
        step(&|row| row.release == key.release, format!("release line {release}"), w.release);
        let graphs = format!("CUDA graphs: {}", key.graphs.name());
        step(&|row| row.graphs == key.graphs, graphs, w.graphs);
        let precision = key.precision.name().to_owned();
        let models = format!("{} models", model(key.experts));
        step(&|row| row.experts == key.experts, models, w.experts);
        step(&|row| row.precision == key.precision, precision, w.precision);
        let generation = format!("device generation {}", key.generation);
        step(&|row| row.generation == key.generation, generation, w.generation);
        step(&|row| row.class == key.class, format!("stack class {}", key.class), w.class);
        steps
    }
}

const fn model(experts: bool) -> &'static str {
    if experts { "routed" } else { "dense" }
}

/// One sentence, if anything was given up; another one if the class's name looks like a slip.
fn notes(stacks: &Stacks, steps: &[(String, f64)], rows: &[&StackRow], key: &StackKey) -> Vec<String> {
    if steps.is_empty() {
        return Vec::new();
    }
    let missing: Vec<&str> = steps.iter().map(|(words, _)| words.as_str()).collect();
    let of = |part: &dyn Fn(&StackRow) -> String| {
        let mut names: Vec<String> = rows.iter().map(|row| part(row)).collect();
        names.sort_unstable();
        names.dedup();
        names.join(", ")
    };
    let mut notes = vec![format!(
        "no stack calibrated for {}: {} of {} on {} stand in",
        missing.join(", "),
        if rows.len() == 1 { "one row".to_owned() } else { format!("{} rows", rows.len()) },
        of(&|row| row.class.clone()),
        of(&|row| row.generation.clone()),
    )];
    // A class that is declared is no slip, though nothing was fitted for it.
    let declared = stacks.class.iter().any(|row| row.class == key.class);
    let classes = stacks.classes();
    if !declared && !classes.contains(&key.class.as_str()) {
        let nearest = classes.iter().min_by_key(|name| strsim::damerau_levenshtein(name, &key.class));
        if let Some(nearest) = nearest {
            notes.push(format!("no stack class is called `{}`; the nearest is `{nearest}`", key.class));
        }
    }
    notes
}

/// The logarithm of the pool's factor, drawn towards another one.
fn drawn(pool: &[&StackRow], towards: Option<f64>) -> f64 {
    let (mut sum, mut weight) = (0.0, 0.0);
    for row in pool {
        let own = libm::log(row.constants.compute_factor);
        let near = towards.map_or(own, |centre| own.clamp(centre - FARTHEST, centre + FARTHEST));
        let far = towards.map_or(1.0, |centre| (FARTHEST / (own - centre).abs()).min(1.0));
        let w = (f64::from(row.rows) / FULL_WEIGHT_ROWS).min(1.0) * far * far;
        sum += w * near;
        weight += w;
    }
    if let Some(towards) = towards {
        sum += SHRINKAGE * towards;
        weight += SHRINKAGE;
    }
    sum / weight
}

/// The logarithm of the factor of each class among rows.
fn by_class(rows: &[&StackRow]) -> Vec<f64> {
    let mut classes: Vec<&str> = rows.iter().map(|row| row.class.as_str()).collect();
    classes.sort_unstable();
    classes.dedup();
    let of = |class: &&str| rows.iter().filter(|row| row.class == *class).copied().collect::<Vec<_>>();
    classes.iter().map(|class| drawn(&of(class), None)).collect()
}

fn centre(logarithms: &[f64]) -> Option<f64> {
    (!logarithms.is_empty()).then(|| logarithms.iter().sum::<f64>() / logarithms.len() as f64)
}

/// The variance of a new member of these rows: the median of theirs, and that of the logarithms of their factors around a
/// centre that is itself known from as many rows.
fn within_and_between(rows: &[&StackRow]) -> f64 {
    let within = median(rows.iter().map(|row| row.spread * row.spread).collect()).expect("a level has a row");
    if rows.len() < 2 {
        return within;
    }
    let count = rows.len() as f64;
    let logs: Vec<f64> = rows.iter().map(|row| libm::log(row.constants.compute_factor)).collect();
    let mean = logs.iter().sum::<f64>() / count;
    let variance = logs.iter().map(|log| (log - mean) * (log - mean)).sum::<f64>() / (count - 1.0);
    within + variance * (1.0 + 1.0 / count)
}

/// The middle one, or the mean of the middle two.
fn median(mut values: Vec<f64>) -> Option<f64> {
    values.sort_by(f64::total_cmp);
    let middle = values.len() / 2;
    match values.len() {
        0 => None,
        odd if odd % 2 == 1 => Some(values[middle]),
        _ => Some(f64::midpoint(values[middle - 1], values[middle])),
    }
}
