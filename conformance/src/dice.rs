//! Seeded random numbers, whose seed is printed when a test fails.

/// The environment variable that reruns one seed of every swarm: `TRAINYARD_SEED=17 cargo test …`.
pub const SEED_VARIABLE: &str = "TRAINYARD_SEED";
/// The environment variable that makes every swarm so large: `TRAINYARD_SEEDS=10000 cargo test …`.
pub const COUNT_VARIABLE: &str = "TRAINYARD_SEEDS";
/// The environment variable that makes long swarms whole, as `.ci/run` does: `TRAINYARD_LONG_TESTS=1 cargo test …`.
pub const LONG_VARIABLE: &str = "TRAINYARD_LONG_TESTS";

/// SplitMix64 (Steele, Lea and Flood 2014): every seed is a good one, zero included.
#[derive(Debug)]
pub struct Dice {
    state: u64,
}

impl Dice {
    /// Of a seed.
    #[must_use]
    pub const fn new(seed: u64) -> Self {
        Self { state: seed }
    }
    /// The next number.
    pub const fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
    /// A number in `low..=high`; the bias of the remainder is of no matter to a test.
    ///
    /// # Panics
    /// If `low` is above `high`.
    pub fn within(&mut self, low: u32, high: u32) -> u32 {
        let range = u64::from(high) - u64::from(low) + 1;
        low + u32::try_from(self.next() % range).expect("under a u32")
    }
    /// An index into `length` things.
    ///
    /// # Panics
    /// If there are none.
    pub fn index(&mut self, length: usize) -> usize {
        usize::try_from(self.next() % length as u64).expect("under a usize")
    }
    /// One of these.
    ///
    /// # Panics
    /// If there are none.
    pub fn pick<T: Clone>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())].clone()
    }
    /// True in `percent` of 100.
    pub const fn chance(&mut self, percent: u64) -> bool {
        self.next() % 100 < percent
    }
    /// Puts things in a random order.
    pub fn shuffle<T>(&mut self, things: &mut [T]) {
        for end in (2..=things.len()).rev() {
            things.swap(end - 1, self.index(end));
        }
    }
}

/// Runs `case` on seeds `0..count` (or as many as [`COUNT_VARIABLE`] says), or on the one that [`SEED_VARIABLE`] names;
/// says which seed failed.
///
/// # Panics
/// If a variable is set to something that is not a number, and if a case does.
pub fn for_each_seed(count: u64, mut case: impl FnMut(u64)) {
    let number = |name| std::env::var(name).ok().map(|text: String| text.parse::<u64>().expect("seeds are numbers"));
    let (wanted, count) = (number(SEED_VARIABLE), number(COUNT_VARIABLE).unwrap_or(count));
    for seed in wanted.map_or(0..count, |seed| seed..seed + 1) {
        let _announced = Announced(seed);
        case(seed);
    }
}

/// As [`for_each_seed`] for cases that train: every fifth seed, or all of them where [`LONG_VARIABLE`] is set.
///
/// # Panics
/// As [`for_each_seed`].
pub fn for_each_long_seed(count: u64, mut case: impl FnMut(u64)) {
    let whole = [LONG_VARIABLE, SEED_VARIABLE, COUNT_VARIABLE].iter().any(|name| std::env::var_os(name).is_some());
    for_each_seed(count, |seed| {
        if whole || seed % 5 == 0 {
            case(seed);
        }
    });
}

struct Announced(u64);

impl Drop for Announced {
    #[expect(clippy::print_stderr, reason = "a failing test names the seed that repeats it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {0}; {SEED_VARIABLE}={0} runs it alone", self.0);
        }
    }
}
