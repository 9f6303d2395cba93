// Cross entropy over a vocabulary that may be divided, and the softmax of rows. A block per row.
#include "common.cuh"

// Largest logit, sum of exponentials, and the target's logit (or minus infinity): [3, tokens].
KERNEL loss_statistics(
    index_t tokens, index_t first, index_t valid, index_t columns, const element* logits, const unsigned* targets,
    float* statistics) {
    const element* row = logits + blockIdx.x * columns;
    float largest = NEGATIVE_INFINITY;
    for (index_t i = threadIdx.x; i < valid; i += THREADS) largest = fmaxf(largest, widen(row[i]));
    largest = block_maximum(largest);
    float sum = 0.0f;
    for (index_t i = threadIdx.x; i < valid; i += THREADS) {
        float logit = widen(row[i]);
        // A difference of two infinities would not be a number.
        sum += logit == NEGATIVE_INFINITY ? 0.0f : expf(logit - largest);
    }
    sum = block_sum(sum);
    if (threadIdx.x == 0) {
        index_t column = (index_t)targets[blockIdx.x] - first;
        statistics[blockIdx.x] = largest;
        statistics[tokens + blockIdx.x] = sum;
        statistics[2 * tokens + blockIdx.x] = column >= 0 && column < valid ? widen(row[column]) : NEGATIVE_INFINITY;
    }
}
EXPORT(loss_statistics)

// Statistics of all ranks, [ranks, 3, tokens], to losses and log-sum-exps.
KERNEL loss_combine(
    index_t tokens, index_t ranks, const float* statistics, const unsigned* targets, float* losses, float* lse) {
    for (index_t token = first_index(); token < tokens; token += all_threads()) {
        float largest = NEGATIVE_INFINITY, target = NEGATIVE_INFINITY;
        for (index_t rank = 0; rank < ranks; ++rank) {
            largest = fmaxf(largest, statistics[rank * 3 * tokens + token]);
            target = fmaxf(target, statistics[(rank * 3 + 2) * tokens + token]);
        }
        double sum = 0.0;
        for (index_t rank = 0; rank < ranks; ++rank) {
            float part = statistics[(rank * 3 + 1) * tokens + token];
            if (part != 0.0f) sum += (double)part * exp((double)statistics[rank * 3 * tokens + token] - (double)largest);
        }
        double log_sum = log(sum);
        lse[token] = (float)((double)largest + log_sum);
        losses[token] = targets[token] == 0xffffffffu ? 0.0f : (float)((double)largest - (double)target + log_sum);
    }
}
EXPORT(loss_combine)

// Logits become scale (exp(logit - lse) - [target]), in place.
KERNEL loss_backward(
    index_t first, index_t valid, index_t columns, float scale, const unsigned* targets, const float* lse, element* logits) {
    element* row = logits + blockIdx.x * columns;
    unsigned target = targets[blockIdx.x];
    bool ignored = target == 0xffffffffu;
    for (index_t i = threadIdx.x; i < columns; i += THREADS) {
        if (ignored || i >= valid) put(&row[i], 0.0f);
        else put(&row[i], scale * expf(widen(row[i]) - lse[blockIdx.x]) - (i == (index_t)target - first ? scale : 0.0f));
    }
}
EXPORT(loss_backward)

// In place, FP32.
KERNEL softmax(index_t columns, float* values) {
    float* row = values + blockIdx.x * columns;
    float largest = NEGATIVE_INFINITY, sum = 0.0f;
    for (index_t i = threadIdx.x; i < columns; i += THREADS) largest = fmaxf(largest, row[i]);
    largest = block_maximum(largest);
    for (index_t i = threadIdx.x; i < columns; i += THREADS) sum += row[i] = expf(row[i] - largest);
    sum = block_sum(sum);
    for (index_t i = threadIdx.x; i < columns; i += THREADS) row[i] /= sum;
}
EXPORT(softmax)
