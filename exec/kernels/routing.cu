// Choosing experts, ordering choices by expert, and moving rows of tokens to and from them.
#include "common.cuh"

// A warp per token. The next best is the best of those that come after the last one in the order of falling scores, then
// rising numbers.
KERNEL choose_experts(
    index_t tokens, int experts, int active, int normalised, const float* scores, unsigned* chosen, float* weights) {
    index_t token = first_index() / 32;
    if (token >= tokens) return;
    const float* row = scores + token * experts;
    float last = -NEGATIVE_INFINITY, sum = 0.0f;
    int last_expert = -1;
    for (int choice = 0; choice < active; ++choice) {
        float best = NEGATIVE_INFINITY;
        int expert = experts;
        for (int i = threadIdx.x % 32; i < experts; i += 32) {
            bool after = row[i] < last || (row[i] == last && i > last_expert);
            if (after && (expert == experts || row[i] > best)) {
                best = row[i];
                expert = i;
            }
        }
        for (int distance = 16; distance > 0; distance /= 2) {
            float other = __shfl_xor_sync(0xffffffffu, best, distance);
            int other_expert = __shfl_xor_sync(0xffffffffu, expert, distance);
            if (other_expert < experts && (expert == experts || other > best || (other == best && other_expert < expert))) {
                best = other;
                expert = other_expert;
            }
        }
        last = best;
        last_expert = expert;
        sum += best;
        if (threadIdx.x % 32 == 0) {
            chosen[token * active + choice] = (unsigned)expert;
            weights[token * active + choice] = best;
        }
    }
    if (normalised && threadIdx.x % 32 == 0)
        for (int choice = 0; choice < active; ++choice) weights[token * active + choice] /= sum;
}
EXPORT(choose_experts)

// One block: a stable counting sort, a thread per expert.
KERNEL order_by_expert(int choices, int experts, const unsigned* chosen, unsigned* order, unsigned* places, unsigned* counts) {
    for (int expert = threadIdx.x; expert < experts; expert += THREADS) {
        unsigned count = 0;
        for (int choice = 0; choice < choices; ++choice) count += chosen[choice] == (unsigned)expert;
        counts[expert] = count;
    }
    __syncthreads();
    for (int expert = threadIdx.x; expert < experts; expert += THREADS) {
        unsigned place = 0;
        for (int before = 0; before < expert; ++before) place += counts[before];
        for (int choice = 0; choice < choices; ++choice)
            if (chosen[choice] == (unsigned)expert) {
                order[place] = (unsigned)choice;
                places[choice] = place++;
            }
    }
}
EXPORT(order_by_expert)

// A block per row: to[i] = factors[indices[i]] from[indices[i] / share]
KERNEL gather_rows(
    index_t width, unsigned share, const unsigned* indices, const float* factors, const element* from, element* to) {
    unsigned index = indices[blockIdx.x];
    float factor = factors ? factors[index] : 1.0f;
    const element* row = from + (index_t)(index / share) * width;
    for (index_t i = threadIdx.x; i < width; i += THREADS) put(&to[blockIdx.x * width + i], widen(row[i]) * factor);
}
EXPORT(gather_rows)

// A block per token: out[t] = sum over j of factors[t, j] rows[places[t, j]]
KERNEL combine_rows(index_t width, int share, const unsigned* places, const float* factors, const element* rows, element* out) {
    index_t first = (index_t)blockIdx.x * share;
    for (index_t i = threadIdx.x; i < width; i += THREADS) {
        float sum = 0.0f;
        for (int j = 0; j < share; ++j)
            sum += (factors ? factors[first + j] : 1.0f) * widen(rows[(index_t)places[first + j] * width + i]);
        put(&out[blockIdx.x * width + i], sum);
    }
}
EXPORT(combine_rows)

// A warp per choice: products[c] = a[c / share] . rows[places[c]]
KERNEL row_products(
    index_t choices, index_t width, int share, const unsigned* places, const element* a, const element* rows, float* products) {
    index_t choice = first_index() / 32;
    if (choice >= choices) return;
    const element *left = a + choice / share * width, *right = rows + (index_t)places[choice] * width;
    float sum = 0.0f;
    for (index_t i = threadIdx.x % 32; i < width; i += 32) sum += widen(left[i]) * widen(right[i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) products[choice] = sum;
}
EXPORT(row_products)
