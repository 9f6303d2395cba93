// Token and position embeddings, and rotary embedding.
#include "common.cuh"

// A block per token; rows that another rank holds are zeros.
KERNEL embedding_forward(
    index_t features, index_t first, index_t rows, const unsigned* tokens, const element* table, element* out) {
    index_t row = (index_t)tokens[blockIdx.x] - first;
    bool mine = row >= 0 && row < rows;
    for (index_t i = threadIdx.x; i < features; i += THREADS) {
        element* to = &out[blockIdx.x * features + i];
        if (mine) *to = table[row * features + i];
        else put(to, 0.0f);
    }
}
EXPORT(embedding_forward)

// A block per token. The first of equal tokens adds the gradients of all of them, in their order, so that there are no
// atomic additions and every run gives the same bits.
KERNEL embedding_backward(index_t count, index_t features, index_t first, index_t rows, const unsigned* tokens, const element* d_out, float* gradient) {
    __shared__ unsigned equal[THREADS / 32];
    index_t here = blockIdx.x, row = (index_t)tokens[here] - first;
    if (row < 0 || row >= rows) return;
    unsigned token = tokens[here];
    for (index_t start = 0; start < count; start += THREADS) {
        index_t other = start + threadIdx.x;
        unsigned mask = __ballot_sync(0xffffffffu, other < count && tokens[other] == token);
        if (threadIdx.x % 32 == 0) equal[threadIdx.x / 32] = mask;
        __syncthreads();
        for (int warp = 0; warp < THREADS / 32; ++warp)
            for (unsigned left = equal[warp]; left; left &= left - 1) {
                index_t match = start + warp * 32 + (__ffs(left) - 1);
                if (match < here) return; // another block's; every thread sees the same
                for (index_t i = threadIdx.x; i < features; i += THREADS)
                    gradient[row * features + i] += widen(d_out[match * features + i]);
            }
        __syncthreads();
    }
}
EXPORT(embedding_backward)

KERNEL positions_forward(index_t count, index_t features, index_t first, index_t sequence, const element* table, element* x) {
    for (index_t i = first_index(); i < count; i += all_threads()) {
        index_t position = first + i / features % sequence;
        put(&x[i], widen(x[i]) + widen(table[position * features + i % features]));
    }
}
EXPORT(positions_forward)

// A thread per element of the table's rows; sequences in order.
KERNEL positions_backward(
    index_t count, index_t features, index_t first, index_t sequence, const element* dx, float* gradient) {
    for (index_t i = first_index(); i < sequence * features && i < count; i += all_threads()) {
        float sum = gradient[first * features + i];
        for (index_t at = i; at < count; at += sequence * features) sum += widen(dx[at]);
        gradient[first * features + i] = sum;
    }
}
EXPORT(positions_backward)

// (a, b) becomes (a cos - b sin, b cos + a sin), with the sine's sign turned to undo it.
KERNEL rotate(
    index_t count, index_t pairs, index_t heads, index_t sequence, index_t first, float sign, const float* cosines,
    const float* sines, element* x) {
    for (index_t i = first_index(); i < count; i += all_threads()) {
        index_t pair = i % pairs, row = i / pairs;
        index_t angle = (first + row / heads % sequence) * pairs + pair;
        element *low = &x[row * 2 * pairs + pair], *high = low + pairs;
        float a = widen(*low), b = widen(*high), cosine = cosines[angle], sine = sign * sines[angle];
        put(low, a * cosine - b * sine);
        put(high, b * cosine + a * sine);
    }
}
EXPORT(rotate)
