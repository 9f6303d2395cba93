//! Initial weights that are a function of (seed, tensor, element) and nothing else.
//!
//! Any shard of a tensor therefore has exactly the values of the whole tensor, whatever the degrees of the plan.
//! Source of the generator: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3" (2011), Philox4x32-10.

use super::narrow;

/// A random tensor: every element of it is determined.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RandomTensor {
    seed: u64,
    /// FNV-1a hash of the name.
    tensor: u64,
}

/// Part of a row-major matrix.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Block {
    /// Columns of the whole matrix.
    pub of_columns: usize,
    /// First row of the part.
    pub first_row: usize,
    /// Rows of the part.
    pub rows: usize,
    /// First column of the part.
    pub first_column: usize,
    /// Columns of the part.
    pub columns: usize,
}

impl RandomTensor {
    /// The tensor of that name under that seed.
    #[must_use]
    pub fn new(seed: u64, name: &str) -> Self {
        let fnv = |hash: u64, &byte: &u8| (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
        Self { seed, tensor: name.as_bytes().iter().fold(0xcbf2_9ce4_8422_2325, fnv) }
    }

    /// Normal deviates of mean zero for the elements `first..` of the flattened tensor (Box and Muller's method, whose
    /// functions come from `libm`, so that every machine draws the same bits; the largest magnitude is 6.66 standard
    /// deviations).
    pub fn fill_normal(&self, standard_deviation: f64, first: u64, out: &mut [f32]) {
        let mut index = first;
        let mut rest = out;
        while !rest.is_empty() {
            // A block of the generator makes four elements, of which the first may lie before `first`.
            let skip = usize::try_from(index % 4).expect("a small number");
            let (now, later) = rest.split_at_mut(rest.len().min(4 - skip));
            for (slot, deviate) in now.iter_mut().zip(self.four_normals(index / 4).into_iter().skip(skip)) {
                *slot = narrow(standard_deviation * deviate);
            }
            index += now.len() as u64;
            rest = later;
        }
    }

    /// [`fill_normal`](Self::fill_normal) for a block of a matrix; `out`: `[rows, columns]` of the block.
    ///
    /// # Panics
    /// If `out` has not the size of the block, or the block reaches beyond the matrix's columns.
    pub fn fill_normal_block(&self, standard_deviation: f64, block: Block, out: &mut [f32]) {
        assert!(block.first_column + block.columns <= block.of_columns, "block beyond the matrix");
        assert_eq!(out.len(), block.rows * block.columns, "output has not the size of the block");
        for row in 0..block.rows {
            let first = (block.first_row + row) as u64 * block.of_columns as u64 + block.first_column as u64;
            self.fill_normal(standard_deviation, first, &mut out[row * block.columns..][..block.columns]);
        }
    }

    fn four_normals(&self, block: u64) -> [f64; 4] {
        let ([a, b], [c, d]) = (halves(block), halves(self.tensor));
        let [a, b, c, d] = philox([a, b, c, d], halves(self.seed));
        let pair = |u: u32, v: u32| {
            let radius = (-2.0 * libm::log((f64::from(u) + 1.0) / 4_294_967_296.0)).sqrt();
            let (sine, cosine) = libm::sincos(f64::from(v) * (std::f64::consts::TAU / 4_294_967_296.0));
            (radius * cosine, radius * sine)
        };
        let ((a, b), (c, d)) = (pair(a, b), pair(c, d));
        [a, b, c, d]
    }
}

/// Low and high half.
fn halves(x: u64) -> [u32; 2] {
    [(x & 0xffff_ffff) as u32, (x >> 32) as u32]
}

/// Philox4x32 with ten rounds: the block of random words at a counter.
fn philox(mut counter: [u32; 4], mut key: [u32; 2]) -> [u32; 4] {
    for _ in 0..10 {
        let [low_0, high_0] = halves(0xd251_1f53 * u64::from(counter[0]));
        let [low_1, high_1] = halves(0xcd9e_8d57 * u64::from(counter[2]));
        counter = [high_1 ^ counter[1] ^ key[0], low_1, high_0 ^ counter[3] ^ key[1], low_0];
        key = [key[0].wrapping_add(0x9e37_79b9), key[1].wrapping_add(0xbb67_ae85)];
    }
    counter
}

#[cfg(test)]
mod tests {
    use super::super::testing::Cases;
    use super::*;

    /// The known answers that come with the reference implementation, Random123.
    #[test]
    fn generator_gives_the_known_answers() {
        let ones = u32::MAX;
        let check = |counter, key, want| assert_eq!(philox(counter, key), want);
        check([0; 4], [0; 2], [0x6627_e8d5, 0xe169_c58d, 0xbc57_ac4c, 0x9b00_dbd8]);
        check([ones; 4], [ones; 2], [0x408f_276d, 0x41c8_3b0e, 0xa20b_c7c6, 0x6d54_51fd]);
        check(
            [0x243f_6a88, 0x85a3_08d3, 0x1319_8a2e, 0x0370_7344],
            [0xa409_3822, 0x299f_31d0],
            [0xd16c_fe09, 0x94fd_cceb, 0x5001_e420, 0x2412_6ea1],
        );
    }

    #[test]
    fn any_part_has_the_values_of_the_whole() {
        Cases::run(50, |cases| {
            let (rows, columns) = (cases.size(1, 9), cases.size(1, 13));
            let tensor = RandomTensor::new(7, "layers.3.attention.query");
            let mut whole = vec![f32::NAN; rows * columns];
            tensor.fill_normal(0.02, 0, &mut whole);

            let first = cases.size(0, whole.len());
            let mut tail = vec![f32::NAN; whole.len() - first];
            tensor.fill_normal(0.02, first as u64, &mut tail);
            assert_eq!(tail, whole[first..]);

            let (first_row, first_column) = (cases.size(0, rows), cases.size(0, columns));
            let (part_rows, part_columns) = (cases.size(0, rows - first_row), cases.size(0, columns - first_column));
            let mut part = vec![f32::NAN; part_rows * part_columns];
            let block = Block { of_columns: columns, first_row, rows: part_rows, first_column, columns: part_columns };
            tensor.fill_normal_block(0.02, block, &mut part);
            for (row, part) in part.chunks_exact(part_columns.max(1)).enumerate() {
                assert_eq!(part, &whole[(first_row + row) * columns + first_column..][..part_columns]);
            }
        });
    }

    /// Moments within five standard errors, and no correlation between neighbours, tensors or seeds.
    #[test]
    fn deviates_are_normal_and_independent() {
        let count = 200_000;
        let draw = |seed, name| {
            let mut out = vec![0.0; count];
            RandomTensor::new(seed, name).fill_normal(1.0, 0, &mut out);
            out.into_iter().map(f64::from).collect::<Vec<_>>()
        };
        let x = draw(1, "a");
        let mean = |function: &dyn Fn(f64) -> f64| x.iter().copied().map(function).sum::<f64>() / count as f64;
        let error = 5.0 / (count as f64).sqrt();
        assert!(mean(&|x| x).abs() < error);
        assert!((mean(&|x| x * x) - 1.0).abs() < error * 2f64.sqrt());
        assert!((mean(&|x| x.powi(4)) - 3.0).abs() < error * 96f64.sqrt());
        let within_one = mean(&|x| f64::from(u8::from(x.abs() < 1.0)));
        assert!((within_one - 0.682_689).abs() < error * 0.4655);
        let correlation = |a: &[f64], b: &[f64]| a.iter().zip(b).map(|(a, b)| a * b).sum::<f64>() / count as f64;
        for other in [&draw(1, "b"), &draw(2, "a"), &x[1..], &x[2..], &x[4..]] {
            assert!(correlation(&x, other).abs() < error);
        }
    }
}
