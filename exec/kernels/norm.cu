// RMSNorm and LayerNorm (with `mean`), and sums over rows. A block per row, or per 32 columns of some rows.
#include "common.cuh"

KERNEL norm_forward(
    index_t features, float epsilon, const element* x, const element* weight, const element* bias, element* y, float* mean,
    float* rstd) {
    const element* row = x + blockIdx.x * features;
    float center = 0.0f;
    if (mean) {
        float sum = 0.0f;
        for (index_t i = threadIdx.x; i < features; i += THREADS) sum += widen(row[i]);
        center = block_sum(sum) / features;
    }
    float squares = 0.0f;
    for (index_t i = threadIdx.x; i < features; i += THREADS) {
        float difference = widen(row[i]) - center;
        squares += difference * difference;
    }
    float factor = 1.0f / sqrtf(block_sum(squares) / features + epsilon);
    for (index_t i = threadIdx.x; i < features; i += THREADS) {
        float value = (widen(row[i]) - center) * factor * widen(weight[i]);
        put(&y[blockIdx.x * features + i], bias ? value + widen(bias[i]) : value);
    }
    if (threadIdx.x == 0) {
        if (mean) mean[blockIdx.x] = center;
        rstd[blockIdx.x] = factor;
    }
}
EXPORT(norm_forward)

// dx = rstd (w dy - mean(w dy) - x^ mean(w dy x^)), where an RMSNorm has no second term.
KERNEL norm_backward_input(
    index_t features, int add, const element* x, const element* weight, const float* mean, const float* rstd, const element* dy,
    element* dx) {
    index_t start = blockIdx.x * features;
    float center = mean ? mean[blockIdx.x] : 0.0f, factor = rstd[blockIdx.x];
    float offset = 0.0f, along = 0.0f;
    for (index_t i = threadIdx.x; i < features; i += THREADS) {
        float d = widen(weight[i]) * widen(dy[start + i]);
        offset += d;
        along += (widen(x[start + i]) - center) * factor * d;
    }
    along = block_sum(along) / features;
    offset = mean ? block_sum(offset) / features : 0.0f;
    for (index_t i = threadIdx.x; i < features; i += THREADS) {
        float d = widen(weight[i]) * widen(dy[start + i]);
        put(&dx[start + i], factor * (d - offset - (widen(x[start + i]) - center) * factor * along), add);
    }
}
EXPORT(norm_backward_input)

// Sum of `value` over the rows of the eight threads of a column; valid on the first of them.
INLINE float sum_of_column(float value) {
    __shared__ float values[THREADS];
    values[threadIdx.x] = value;
    __syncthreads();
    float total = 0.0f;
    if (threadIdx.x < 32)
        for (int part = 0; part < THREADS / 32; ++part) total += values[part * 32 + threadIdx.x];
    __syncthreads();
    return total;
}

// Parts of the weight gradients: blockIdx.x is 32 columns, blockIdx.y a stretch of rows. Parts are [gridDim.y, features].
KERNEL norm_weight_parts(
    index_t rows, index_t features, const element* x, const float* mean, const float* rstd, const element* dy, float* parts,
    float* bias_parts) {
    index_t column = (index_t)blockIdx.x * 32 + threadIdx.x % 32;
    index_t per_block = (rows + gridDim.y - 1) / gridDim.y;
    index_t first = blockIdx.y * per_block, end = first + per_block < rows ? first + per_block : rows;
    float sum = 0.0f, bias_sum = 0.0f;
    if (column < features)
        for (index_t row = first + threadIdx.x / 32; row < end; row += THREADS / 32) {
            float d = widen(dy[row * features + column]);
            sum += d * ((widen(x[row * features + column]) - (mean ? mean[row] : 0.0f)) * rstd[row]);
            bias_sum += d;
        }
    sum = sum_of_column(sum);
    if (bias_parts) bias_sum = sum_of_column(bias_sum);
    if (threadIdx.x < 32 && column < features) {
        parts[blockIdx.y * features + column] = sum;
        if (bias_parts) bias_parts[blockIdx.y * features + column] = bias_sum;
    }
}
EXPORT(norm_weight_parts)

// The same for a bias alone.
KERNEL bias_parts(index_t rows, index_t features, const element* dy, float* parts) {
    index_t column = (index_t)blockIdx.x * 32 + threadIdx.x % 32;
    index_t per_block = (rows + gridDim.y - 1) / gridDim.y;
    index_t first = blockIdx.y * per_block, end = first + per_block < rows ? first + per_block : rows;
    float sum = 0.0f;
    if (column < features)
        for (index_t row = first + threadIdx.x / 32; row < end; row += THREADS / 32) sum += widen(dy[row * features + column]);
    sum = sum_of_column(sum);
    if (threadIdx.x < 32 && column < features) parts[blockIdx.y * features + column] = sum;
}
EXPORT(bias_parts)

// gradient += parts, in their order.
KERNEL add_parts(index_t features, int count, const float* parts, float* gradient) {
    for (index_t i = first_index(); i < features; i += all_threads()) {
        float sum = 0.0f;
        for (int part = 0; part < count; ++part) sum += parts[part * features + i];
        gradient[i] += sum;
    }
}
EXPORT(add_parts)
