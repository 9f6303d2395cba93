// AdamW on FP32 master weights, the gradients' norm, and the search for what is not finite.
#include "common.cuh"

// Factors are computed on the host in FP64 and rounded once; `factor` and `rounded` may be null.
KERNEL adamw(
    index_t count, float keep, float new1, float old2, float new2, float negative_step, float root_correction2, float epsilon,
    const float* factor, float* master, const float* gradients, float* first, float* second, bf16* rounded) {
    float clip = factor ? *factor : 1.0f;
    for (index_t i = first_index(); i < count; i += all_threads()) {
        float g = gradients[i] * clip, m = first[i], v = second[i];
        m += new1 * (g - m);
        v = v * old2 + new2 * g * g;
        float w = master[i] * keep + negative_step * m / (sqrtf(v) / root_correction2 + epsilon);
        first[i] = m;
        second[i] = v;
        master[i] = w;
        if (rounded) put(&rounded[i], w);
    }
}
EXPORT(adamw)

// Sums of squares in FP64, one per block.
KERNEL squared_norm_parts(index_t count, const float* values, double* parts) {
    double sum = 0.0;
    for (index_t i = first_index(); i < count; i += all_threads()) sum += (double)values[i] * (double)values[i];
    sum = block_sum(sum);
    if (threadIdx.x == 0) parts[blockIdx.x] = sum;
}
EXPORT(squared_norm_parts)

// One block: sum += parts.
KERNEL add_squared_norm(int count, const double* parts, double* sum) {
    double mine = 0.0;
    for (int i = threadIdx.x; i < count; i += THREADS) mine += parts[i];
    mine = block_sum(mine);
    if (threadIdx.x == 0) *sum += mine;
}
EXPORT(add_squared_norm)

KERNEL clip_factor(double largest, const double* squared_norm, float* factor) {
    double ratio = largest / (sqrt(*squared_norm) + 1e-6);
    *factor = (float)(ratio < 1.0 ? ratio : 1.0);
}
EXPORT(clip_factor)

// flag = min(flag, label) if any value is infinite or not a number.
KERNEL check_finite(index_t count, unsigned label, const element* values, unsigned* flag) {
    bool odd = false;
    for (index_t i = first_index(); i < count; i += all_threads())
        odd |= (__float_as_uint(widen(values[i])) & 0x7f800000u) == 0x7f800000u;
    if (odd) atomicMin(flag, label);
}
EXPORT(check_finite)
