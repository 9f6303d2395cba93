//! Matrix products.

use super::{Element, Slice};

/// `c = alpha op(a) op(b) + beta c`, row-major, where `op` is the transpose or nothing: `op(a)` is `[m, k]`, `op(b)`
/// `[k, n]`, `c` `[m, n]`.
///
/// `a` and `b` have one element, FP32 or BF16; `c` has that element or FP32 (weight gradients of BF16 products). Sums are
/// FP32, and FP32 products are true FP32 (not TF32).
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Product {
    /// Rows of `op(a)` and `c`.
    pub m: usize,
    /// Columns of `op(b)` and `c`.
    pub n: usize,
    /// Columns of `op(a)`, rows of `op(b)`.
    pub k: usize,
    /// First operand, stored as `[m, k]`, or `[k, m]` if transposed.
    pub a: Slice,
    /// Whether `a` is read transposed.
    pub transpose_a: bool,
    /// Second operand, stored as `[k, n]`, or `[n, k]` if transposed.
    pub b: Slice,
    /// Whether `b` is read transposed.
    pub transpose_b: bool,
    /// Factor on the product.
    pub alpha: f32,
    /// Factor on what `c` holds; with zero, `c` may hold anything.
    pub beta: f32,
    /// Output.
    pub c: Slice,
}

impl Product {
    /// `y = x w^T`: `x` of `[tokens, inputs]`, `w` of `[outputs, inputs]`, `y` of `[tokens, outputs]`. With `add` the
    /// product is added to what `y` holds.
    #[must_use]
    pub fn forward(tokens: usize, inputs: usize, outputs: usize, x: Slice, w: Slice, add: bool, y: Slice) -> Self {
        let (m, n, k) = (tokens, outputs, inputs);
        let beta = f32::from(u8::from(add));
        Self { m, n, k, a: x, transpose_a: false, b: w, transpose_b: true, alpha: 1.0, beta, c: y }
    }

    /// `dx = dy w`, or `dx += dy w`: the input gradient of [`forward`](Self::forward).
    #[must_use]
    pub fn input_gradient(
        tokens: usize,
        inputs: usize,
        outputs: usize,
        dy: Slice,
        w: Slice,
        add: bool,
        dx: Slice,
    ) -> Self {
        let (m, n, k) = (tokens, inputs, outputs);
        let beta = f32::from(u8::from(add));
        Self { m, n, k, a: dy, transpose_a: false, b: w, transpose_b: false, alpha: 1.0, beta, c: dx }
    }

    /// `dw += dy^T x`: the weight gradient of [`forward`](Self::forward), into FP32.
    #[must_use]
    pub fn weight_gradient(tokens: usize, inputs: usize, outputs: usize, x: Slice, dy: Slice, dw: Slice) -> Self {
        let (m, n, k) = (outputs, inputs, tokens);
        Self { m, n, k, a: dy, transpose_a: true, b: x, transpose_b: false, alpha: 1.0, beta: 1.0, c: dw }
    }

    /// Asserts that sizes and elements fit.
    ///
    /// # Panics
    /// If they do not, or the output overlaps an operand.
    pub fn assert_sound(&self) {
        let Self { m, n, k, a, b, c, .. } = *self;
        assert_eq!((a.length, b.length, c.length), (m * k, k * n, m * n), "{self:?}: a slice has another size");
        let real = |element| matches!(element, Element::F32 | Element::Bf16);
        assert!(real(a.element) && a.element == b.element, "{self:?}: operands of two elements");
        assert!(c.element == a.element || c.element == Element::F32, "{self:?}: output of another element");
        assert!(!c.overlaps(a) && !c.overlaps(b), "{self:?}: the output overlaps an operand");
    }
}
