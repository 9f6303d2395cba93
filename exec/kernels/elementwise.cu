// Sums, scalings, copies, conversions and activations, element by element.
#include "common.cuh"

#define FOR_EACH(i, count) for (index_t i = first_index(); i < (count); i += all_threads())

// y[row] += bias
KERNEL add_bias(index_t count, index_t columns, element* y, const element* bias) {
    FOR_EACH(i, count) put(&y[i], widen(y[i]) + widen(bias[i % columns]));
}
EXPORT(add_bias)

KERNEL add(index_t count, const element* a, const element* b, element* out) {
    FOR_EACH(i, count) put(&out[i], widen(a[i]) + widen(b[i]));
}
EXPORT(add)

// total += factor part
KERNEL accumulate(index_t count, float factor, element* total, const element* part) {
    FOR_EACH(i, count) put(&total[i], widen(total[i]) + factor * widen(part[i]));
}
EXPORT(accumulate)

// The same into FP32.
KERNEL accumulate_single(index_t count, float factor, float* total, const element* part) {
    FOR_EACH(i, count) total[i] += factor * widen(part[i]);
}
EXPORT(accumulate_single)

KERNEL scale(index_t count, float factor, element* values) {
    FOR_EACH(i, count) put(&values[i], widen(values[i]) * factor);
}
EXPORT(scale)

KERNEL copy_block(index_t rows, index_t columns, const element* from, index_t from_stride, element* to, index_t to_stride) {
    FOR_EACH(i, rows * columns) to[i / columns * to_stride + i % columns] = from[i / columns * from_stride + i % columns];
}
EXPORT(copy_block)

KERNEL round_to_element(index_t count, const float* from, element* to) {
    FOR_EACH(i, count) put(&to[i], from[i]);
}
EXPORT(round_to_element)

KERNEL widen_element(index_t count, const element* from, float* to) {
    FOR_EACH(i, count) to[i] = widen(from[i]);
}
EXPORT(widen_element)

// 1 / (1 + e^-x) and its complement, which would cancel as a difference from one.
struct Sigmoid {
    float value, complement;
};

INLINE Sigmoid sigmoid(float x) {
    float e = expf(-fabsf(x));
    float above = 1.0f / (1.0f + e), below = e * above;
    return x < 0.0f ? Sigmoid{below, above} : Sigmoid{above, below};
}

KERNEL swiglu_forward(index_t count, const element* gate, const element* up, element* out) {
    FOR_EACH(i, count) {
        float g = widen(gate[i]);
        put(&out[i], g * sigmoid(g).value * widen(up[i]));
    }
}
EXPORT(swiglu_forward)

// d_up = d_out silu(gate), d_gate = d_out up s (1 + g (1 - s))
KERNEL swiglu_backward(
    index_t count, const element* gate, const element* up, const element* d_out, element* d_gate, element* d_up) {
    FOR_EACH(i, count) {
        float g = widen(gate[i]), u = widen(up[i]), d = widen(d_out[i]);
        Sigmoid s = sigmoid(g);
        put(&d_up[i], d * (g * s.value));
        put(&d_gate[i], d * u * (s.value * (1.0f + g * s.complement)));
    }
}
EXPORT(swiglu_backward)

// Factor of an activation and its derivative: y = x gate, dx = dy (gate + x slope).
struct Gate {
    float gate, slope;
};

// x P(X <= x) of a standard normal X.
INLINE Gate gelu_exact(float x) {
    return {0.5f * erfcf(-0.70710678f * x), 0.39894228f * expf(-0.5f * x * x)};
}

// With a hyperbolic tangent, as (1 + tanh(u)) / 2 = sigmoid(2 u). The argument is held to where the gate still changes.
INLINE Gate gelu_tanh(float x) {
    const float cubic = 0.044715f, twice_root = 1.5957691f; // 2 sqrt(2 / pi)
    x = fminf(fmaxf(x, -20.0f), 20.0f);
    float square = x * x;
    Sigmoid s = sigmoid(twice_root * x * (1.0f + cubic * square));
    return {s.value, s.value * s.complement * twice_root * (1.0f + 3.0f * cubic * square)};
}

INLINE Gate gelu(int tanh, float x) {
    return tanh ? gelu_tanh(x) : gelu_exact(x);
}

KERNEL geglu_forward(index_t count, int tanh, const element* gate, const element* up, element* out) {
    FOR_EACH(i, count) {
        float g = widen(gate[i]);
        put(&out[i], g * gelu(tanh, g).gate * widen(up[i]));
    }
}
EXPORT(geglu_forward)

// d_up = d_out gelu(gate), d_gate = d_out up gelu'(gate)
KERNEL geglu_backward(
    index_t count, int tanh, const element* gate, const element* up, const element* d_out, element* d_gate, element* d_up) {
    FOR_EACH(i, count) {
        float g = widen(gate[i]), u = widen(up[i]), d = widen(d_out[i]);
        Gate of = gelu(tanh, g);
        put(&d_up[i], d * (g * of.gate));
        put(&d_gate[i], d * u * (of.gate + g * of.slope));
    }
}
EXPORT(geglu_backward)

KERNEL activation_forward(index_t count, int tanh, const element* x, element* y) {
    FOR_EACH(i, count) {
        float value = widen(x[i]);
        put(&y[i], value * gelu(tanh, value).gate);
    }
}
EXPORT(activation_forward)

KERNEL activation_backward(index_t count, int tanh, const element* x, const element* dy, element* dx) {
    FOR_EACH(i, count) {
        float value = widen(x[i]);
        Gate g = gelu(tanh, value);
        put(&dx[i], widen(dy[i]) * (g.gate + value * g.slope));
    }
}
EXPORT(activation_backward)
