//! Random cases for tests: one small generator, seeded by number, whose seed is printed on failure.

/// Runs `case` once per seed in `0..seeds`.
pub(crate) fn for_each_seed(seeds: u64, case: impl Fn(&mut Dice)) {
    for seed in 0..seeds {
        case(&mut Dice::new(seed));
    }
}

/// Splitmix64: every seed is a good one, zero included.
#[derive(Debug)]
pub(crate) struct Dice {
    seed: u64,
    state: u64,
}

impl Dice {
    pub(crate) fn new(seed: u64) -> Self {
        Self { seed, state: seed }
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number in `0..end`; the bias of the remainder is of no matter to a test.
    pub(crate) fn below(&mut self, end: u64) -> u64 {
        self.next() % end
    }

    /// A number in `low..=high`.
    pub(crate) fn within(&mut self, low: u64, high: u64) -> u64 {
        low + self.below(high - low + 1)
    }

    /// A number in `0..end`, to index with.
    pub(crate) fn index(&mut self, end: usize) -> usize {
        usize::try_from(self.below(end as u64)).unwrap()
    }

    /// A number in `low..=high`, for counts.
    pub(crate) fn count(&mut self, low: u32, high: u32) -> u32 {
        u32::try_from(self.within(low.into(), high.into())).unwrap()
    }

    /// True once in `n`.
    pub(crate) fn one_in(&mut self, n: u64) -> bool {
        self.below(n) == 0
    }

    pub(crate) fn shuffle<T>(&mut self, items: &mut [T]) {
        for end in (2..=items.len()).rev() {
            items.swap(end - 1, self.index(end));
        }
    }
}

impl Drop for Dice {
    #[expect(clippy::print_stderr, reason = "a failing test names the seed that repeats it")]
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("failed with seed {}", self.seed);
        }
    }
}
