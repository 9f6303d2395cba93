// Causal attention with grouped queries, in tiles that never leave the chip; built for heads of at most HEAD elements.
//
// Forward keeps a running maximum and sum per query (Milakov and Gimelshein, 2018; Dao et al., 2022). Backward recomputes the
// probabilities from the saved log-sum-exp, once for the gradient of queries (a block per tile of queries) and once for those
// of keys and values (a block per tile of keys), so that every sum has one owner: no atomic additions, the same bits in every
// run. BF16 products run on tensor cores with FP32 sums; FP32 products are true FP32.
//
// A block has four warps, each with 16 rows of a tile of 64. A warp holds 16 x 8 pieces of a result, of which lane l has
// the elements (l / 4, 2 (l % 4)), (l / 4, 2 (l % 4) + 1) and the same eight rows below: the layout of `mma.m16n8`.
#include "common.cuh"

#define WARPS 4
#define ROWS (WARPS * 16)
#ifdef ELEMENT_BF16
#define FORWARD_KEYS 64
#define BACKWARD_COLUMNS (HEAD > 64 ? 16 : 32)
#define PADDING 8
#else
#define FORWARD_KEYS 32
#define BACKWARD_COLUMNS 16
#define PADDING 4
#endif
// Distance of rows in shared memory: 16 bytes more than a row, so that the rows of a piece lie in different banks.
#define STRIDE (HEAD + PADDING)

struct Shape {
    index_t queries, first_query, keys, first_key, query_heads, key_heads, dim, window;
    float scale;
    const unsigned* starts; // where the document of each query begins; null where each sequence is one document
};
#define SHAPE_PARAMETERS \
    index_t queries, index_t first_query, index_t keys, index_t first_key, index_t query_heads, index_t key_heads, index_t dim, index_t window, float scale, const unsigned* starts
#define SHAPE(sequence) \
    {queries, first_query, keys, first_key, query_heads, key_heads, dim, window, scale, starts ? starts + sequence * queries : starts}

// The keys that a query sees are begin..end; of no query does begin lie before that of an earlier one.
INLINE index_t end_of(const Shape& s, index_t query) {
    index_t end = s.first_query + query + 1 - s.first_key;
    return end < 0 ? 0 : end < s.keys ? end : s.keys;
}
INLINE index_t begin_of(const Shape& s, index_t query) {
    index_t begin = s.first_query + query + 1 - s.window - s.first_key;
    if (begin < 0) begin = 0;
    if (!s.starts || query >= s.queries) return begin;
    index_t start = (index_t)s.starts[query] - s.first_key;
    return begin < start ? start : begin;
}

// Copies `count` rows of a head into shared memory; what lies beyond `valid` rows or the head's elements becomes zero.
INLINE void load_rows(element* to, const element* from, index_t distance, int count, index_t valid, int dim) {
    for (int i = threadIdx.x; i < count * HEAD; i += WARPS * 32) {
        int row = i / HEAD, column = i % HEAD;
        element value;
        if (row < valid && column < dim) value = from[row * distance + column];
        else put(&value, 0.0f);
        to[row * STRIDE + column] = value;
    }
}

#ifdef ELEMENT_BF16
typedef unsigned __attribute__((may_alias)) word;

// Two values of which the second lies `step` behind the first; neighbours are one word.
INLINE unsigned pair(const bf16* first, int step) {
    if (step == 1) return *(const word*)first;
    return (unsigned)first->bits | (unsigned)first[step].bits << 16;
}

#ifndef TRAINYARD_SHIM
// c += a b for 16 x 16 and 16 x 8 BF16 in the layout of the PTX instruction.
INLINE void tensor_core(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
        : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
}
#endif

// c += a b^T for a warp's 16 x 8 piece: element (row, k) of a is a[row * a_row + k], element (n, k) of b is
// b[n * b_row + k * b_step].
template <int DEPTH>
INLINE void multiply(float (&c)[4], const bf16* a, int a_row, const bf16* b, int b_row, int b_step) {
    int group = threadIdx.x % 32 / 4, two = threadIdx.x % 4 * 2;
    const bf16 *a0 = a + group * a_row + two, *a8 = a0 + 8 * a_row, *bn = b + group * b_row + two * b_step;
#pragma unroll
    for (int k = 0; k < DEPTH; k += 16) {
        const unsigned of_a[4] = {
            pair(a0 + k, 1), pair(a8 + k, 1), pair(a0 + k + 8, 1), pair(a8 + k + 8, 1)};
        const unsigned of_b[2] = {pair(bn + k * b_step, b_step), pair(bn + (k + 8) * b_step, b_step)};
        tensor_core(c, of_a, of_b);
    }
}
#else
template <int DEPTH>
INLINE void multiply(float (&c)[4], const float* a, int a_row, const float* b, int b_row, int b_step) {
    int group = threadIdx.x % 32 / 4, two = threadIdx.x % 4 * 2;
    const float *a0 = a + group * a_row, *a8 = a0 + 8 * a_row, *b0 = b + two * b_row, *b1 = b0 + b_row;
#pragma unroll 4
    for (int k = 0; k < DEPTH; ++k) {
        float left = a0[k], below = a8[k], right = b0[k * b_step], beside = b1[k * b_step];
        c[0] += left * right;
        c[1] += left * beside;
        c[2] += below * right;
        c[3] += below * beside;
    }
}
#endif

template <int PIECES>
INLINE void clear(float (&c)[PIECES][4]) {
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
        for (int i = 0; i < 4; ++i) c[piece][i] = 0.0f;
}

// Row and column of the i-th element of a lane's piece.
INLINE int row_of(int i) { return threadIdx.x % 32 / 4 + i / 2 * 8; }
INLINE int column_of(int i) { return threadIdx.x % 4 * 2 + i % 2; }

// Pieces of a warp to its rows of a tile in shared memory, rounded to the element.
template <int PIECES>
INLINE void share(element* rows, const float (&c)[PIECES][4]) {
#pragma unroll
    for (int piece = 0; piece < PIECES; ++piece)
#pragma unroll
        for (int i = 0; i < 4; ++i) put(&rows[row_of(i) * (PIECES * 8 + PADDING) + piece * 8 + column_of(i)], c[piece][i]);
}

// Pieces of HEAD columns, times a factor for each of a lane's two rows, to a head's rows in global memory.
INLINE void store_rows(
    element* to, index_t distance, index_t valid, int dim, const float (&c)[HEAD / 8][4], const float (&factors)[2], bool add) {
#pragma unroll
    for (int piece = 0; piece < HEAD / 8; ++piece)
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            int row = row_of(i), column = piece * 8 + column_of(i);
            if (row < valid && column < dim) put(&to[row * distance + column], c[piece][i] * factors[i / 2], add);
        }
}

KERNEL __launch_bounds__(WARPS * 32) attention_forward(
    SHAPE_PARAMETERS, const element* q, const element* k, const element* v, element* out, float* lse) {
    DYNAMIC_SHARED(memory);
    element* shared_q = (element*)memory;
    element* shared_k = shared_q + ROWS * STRIDE;
    element* shared_v = shared_k + FORWARD_KEYS * STRIDE;
    int warp = threadIdx.x / 32;
    element* mine = shared_v + FORWARD_KEYS * STRIDE + warp * 16 * (FORWARD_KEYS + PADDING);
    index_t tiles = (queries + ROWS - 1) / ROWS;
    // The last tiles see the most keys, so they come first.
    index_t first = (tiles - 1 - blockIdx.x % tiles) * ROWS, head = blockIdx.x / tiles % query_heads, sequence = blockIdx.x / tiles / query_heads;
    const Shape shape = SHAPE(sequence);
    index_t key_head = head / (query_heads / key_heads);
    index_t first_row = (sequence * queries + first) * query_heads + head, distance = query_heads * dim;
    const element* keys_of_head = k + (sequence * keys * key_heads + key_head) * dim;
    const element* values_of_head = v + (sequence * keys * key_heads + key_head) * dim;
    load_rows(shared_q, q + first_row * dim, distance, ROWS, queries - first, (int)dim);

    float result[HEAD / 8][4], largest[2] = {NEGATIVE_INFINITY, NEGATIVE_INFINITY}, sums[2] = {0.0f, 0.0f};
    clear(result);
    const index_t begins[2] = {begin_of(shape, first + warp * 16 + row_of(0)), begin_of(shape, first + warp * 16 + row_of(2))};
    index_t last = first + ROWS < queries ? first + ROWS - 1 : queries - 1, end = end_of(shape, last);
    for (index_t key = begin_of(shape, first) / FORWARD_KEYS * FORWARD_KEYS; key < end; key += FORWARD_KEYS) {
        __syncthreads(); // the tile before has been used
        load_rows(shared_k, keys_of_head + key * key_heads * dim, key_heads * dim, FORWARD_KEYS, keys - key, (int)dim);
        load_rows(shared_v, values_of_head + key * key_heads * dim, key_heads * dim, FORWARD_KEYS, keys - key, (int)dim);
        __syncthreads();
        float scores[FORWARD_KEYS / 8][4], tops[2] = {largest[0], largest[1]};
        clear(scores);
#pragma unroll
        for (int piece = 0; piece < FORWARD_KEYS / 8; ++piece) {
            multiply<HEAD>(scores[piece], shared_q + warp * 16 * STRIDE, STRIDE, shared_k + piece * 8 * STRIDE, STRIDE, 1);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                index_t query = first + warp * 16 + row_of(i), column = key + piece * 8 + column_of(i);
                bool seen = column >= begins[i / 2] && column < end_of(shape, query);
                scores[piece][i] = seen ? scores[piece][i] * scale : NEGATIVE_INFINITY;
                tops[i / 2] = fmaxf(tops[i / 2], scores[piece][i]);
            }
        }
        float shifts[2], corrections[2];
#pragma unroll
        for (int i = 0; i < 2; ++i) {
            for (int step = 1; step < 4; step *= 2) tops[i] = fmaxf(tops[i], __shfl_xor_sync(0xffffffffu, tops[i], step));
            shifts[i] = tops[i] == NEGATIVE_INFINITY ? 0.0f : tops[i];
            corrections[i] = expf(largest[i] - shifts[i]);
            largest[i] = tops[i];
            sums[i] *= corrections[i];
        }
#pragma unroll
        for (int piece = 0; piece < FORWARD_KEYS / 8; ++piece)
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                scores[piece][i] = expf(scores[piece][i] - shifts[i / 2]);
                sums[i / 2] += scores[piece][i];
            }
        share(mine, scores);
        __syncwarp();
#pragma unroll
        for (int piece = 0; piece < HEAD / 8; ++piece) {
#pragma unroll
            for (int i = 0; i < 4; ++i) result[piece][i] *= corrections[i / 2];
            multiply<FORWARD_KEYS>(result[piece], mine, FORWARD_KEYS + PADDING, shared_v + piece * 8, 1, STRIDE);
        }
    }
    float factors[2];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        for (int step = 1; step < 4; step *= 2) sums[i] += __shfl_xor_sync(0xffffffffu, sums[i], step);
        factors[i] = sums[i] == 0.0f ? 0.0f : 1.0f / sums[i];
        index_t row = warp * 16 + row_of(2 * i);
        if (threadIdx.x % 4 == 0 && first + row < queries)
            lse[first_row + row * query_heads] = sums[i] == 0.0f ? NEGATIVE_INFINITY : largest[i] + logf(sums[i]);
    }
    store_rows(out + (first_row + warp * 16 * query_heads) * dim, distance, queries - first - warp * 16, (int)dim, result, factors, false);
}
EXPORT(attention_forward)

// A warp per query and head: delta = d_out . out
KERNEL attention_delta(index_t rows, index_t dim, const element* out, const element* d_out, float* delta) {
    index_t row = first_index() / 32;
    if (row >= rows) return;
    float sum = 0.0f;
    for (index_t i = threadIdx.x % 32; i < dim; i += 32) sum += widen(out[row * dim + i]) * widen(d_out[row * dim + i]);
    sum = warp_sum(sum);
    if (threadIdx.x % 32 == 0) delta[row] = sum;
}
EXPORT(attention_delta)

// dq = scale ds k, with ds = p (d_out v^T - delta); a block per tile of queries.
KERNEL __launch_bounds__(WARPS * 32) attention_backward_queries(
    SHAPE_PARAMETERS, int add, const element* q, const element* k, const element* v, const float* lse, const float* delta,
    const element* d_out, element* dq) {
    DYNAMIC_SHARED(memory);
    element* shared_q = (element*)memory;
    element* shared_d = shared_q + ROWS * STRIDE;
    element* shared_k = shared_d + ROWS * STRIDE;
    element* shared_v = shared_k + BACKWARD_COLUMNS * STRIDE;
    int warp = threadIdx.x / 32;
    element* mine = shared_v + BACKWARD_COLUMNS * STRIDE + warp * 16 * (BACKWARD_COLUMNS + PADDING);
    index_t tiles = (queries + ROWS - 1) / ROWS;
    index_t first = (tiles - 1 - blockIdx.x % tiles) * ROWS, head = blockIdx.x / tiles % query_heads, sequence = blockIdx.x / tiles / query_heads;
    const Shape shape = SHAPE(sequence);
    index_t key_head = head / (query_heads / key_heads);
    index_t first_row = (sequence * queries + first) * query_heads + head, distance = query_heads * dim;
    index_t of_keys = (sequence * keys * key_heads + key_head) * dim;
    load_rows(shared_q, q + first_row * dim, distance, ROWS, queries - first, (int)dim);
    load_rows(shared_d, d_out + first_row * dim, distance, ROWS, queries - first, (int)dim);
    float sums[2], deltas[2], result[HEAD / 8][4];
    clear(result);
#pragma unroll
    for (int i = 0; i < 2; ++i) {
        index_t row = warp * 16 + row_of(2 * i);
        sums[i] = first + row < queries ? lse[first_row + row * query_heads] : 0.0f;
        deltas[i] = first + row < queries ? delta[first_row + row * query_heads] : 0.0f;
    }
    const index_t begins[2] = {begin_of(shape, first + warp * 16 + row_of(0)), begin_of(shape, first + warp * 16 + row_of(2))};
    index_t last = first + ROWS < queries ? first + ROWS - 1 : queries - 1, end = end_of(shape, last);
    for (index_t key = begin_of(shape, first) / BACKWARD_COLUMNS * BACKWARD_COLUMNS; key < end; key += BACKWARD_COLUMNS) {
        __syncthreads(); // the tile before has been used
        load_rows(shared_k, k + of_keys + key * key_heads * dim, key_heads * dim, BACKWARD_COLUMNS, keys - key, (int)dim);
        load_rows(shared_v, v + of_keys + key * key_heads * dim, key_heads * dim, BACKWARD_COLUMNS, keys - key, (int)dim);
        __syncthreads();
        float scores[BACKWARD_COLUMNS / 8][4], d_scores[BACKWARD_COLUMNS / 8][4];
        clear(scores);
        clear(d_scores);
#pragma unroll
        for (int piece = 0; piece < BACKWARD_COLUMNS / 8; ++piece) {
            multiply<HEAD>(scores[piece], shared_q + warp * 16 * STRIDE, STRIDE, shared_k + piece * 8 * STRIDE, STRIDE, 1);
            multiply<HEAD>(d_scores[piece], shared_d + warp * 16 * STRIDE, STRIDE, shared_v + piece * 8 * STRIDE, STRIDE, 1);
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                index_t query = first + warp * 16 + row_of(i), column = key + piece * 8 + column_of(i);
                bool seen = query < queries && column >= begins[i / 2] && column < end_of(shape, query);
                float p = seen ? expf(scores[piece][i] * scale - sums[i / 2]) : 0.0f;
                d_scores[piece][i] = p * (d_scores[piece][i] - deltas[i / 2]);
            }
        }
        share(mine, d_scores);
        __syncwarp();
#pragma unroll
        for (int piece = 0; piece < HEAD / 8; ++piece)
            multiply<BACKWARD_COLUMNS>(result[piece], mine, BACKWARD_COLUMNS + PADDING, shared_k + piece * 8, 1, STRIDE);
    }
    const float factors[2] = {scale, scale};
    store_rows(dq + (first_row + warp * 16 * query_heads) * dim, distance, queries - first - warp * 16, (int)dim, result, factors, add);
}
EXPORT(attention_backward_queries)

// dv = p^T d_out and dk = scale ds^T q; a block per tile of keys, over the heads that share them in order.
KERNEL __launch_bounds__(WARPS * 32) attention_backward_keys(
    SHAPE_PARAMETERS, int add, const element* q, const element* k, const element* v, const float* lse, const float* delta,
    const element* d_out, element* dk, element* dv) {
    DYNAMIC_SHARED(memory);
    element* shared_k = (element*)memory;
    element* shared_v = shared_k + ROWS * STRIDE;
    element* shared_q = shared_v + ROWS * STRIDE;
    element* shared_d = shared_q + BACKWARD_COLUMNS * STRIDE;
    int warp = threadIdx.x / 32;
    element* mine = shared_d + BACKWARD_COLUMNS * STRIDE + warp * 16 * (BACKWARD_COLUMNS + PADDING);
    index_t tiles = (keys + ROWS - 1) / ROWS, share_of_heads = query_heads / key_heads;
    index_t first = blockIdx.x % tiles * ROWS, key_head = blockIdx.x / tiles % key_heads, sequence = blockIdx.x / tiles / key_heads;
    const Shape shape = SHAPE(sequence);
    index_t of_keys = ((sequence * keys + first) * key_heads + key_head) * dim, distance = query_heads * dim;
    load_rows(shared_k, k + of_keys, key_heads * dim, ROWS, keys - first, (int)dim);
    load_rows(shared_v, v + of_keys, key_heads * dim, ROWS, keys - first, (int)dim);
    float of_key[HEAD / 8][4], of_value[HEAD / 8][4];
    clear(of_key);
    clear(of_value);
    // Of each query of the other tile: the first key of this one that it sees, and what its forward pass left.
    __shared__ int begins[BACKWARD_COLUMNS];
    __shared__ float sums[BACKWARD_COLUMNS], deltas[BACKWARD_COLUMNS];
    // The queries that see a key of this tile: from the first key's own position to the last that the window allows.
    index_t from = first_key + first - first_query, until = from + ROWS - 1 + window;
    from = from < 0 ? 0 : from / BACKWARD_COLUMNS * BACKWARD_COLUMNS;
    until = until < queries ? until : queries;
    for (index_t head = key_head * share_of_heads; head < (key_head + 1) * share_of_heads; ++head)
        for (index_t query = from; query < until; query += BACKWARD_COLUMNS) {
            index_t row = (sequence * queries + query) * query_heads + head;
            __syncthreads(); // the tile before has been used
            load_rows(shared_q, q + row * dim, distance, BACKWARD_COLUMNS, queries - query, (int)dim);
            load_rows(shared_d, d_out + row * dim, distance, BACKWARD_COLUMNS, queries - query, (int)dim);
            if (threadIdx.x < BACKWARD_COLUMNS) {
                index_t at = query + threadIdx.x, begin = begin_of(shape, at) - first;
                bool real = at < queries;
                begins[threadIdx.x] = real && begin < ROWS ? (int)begin : ROWS;
                sums[threadIdx.x] = real ? lse[row + threadIdx.x * query_heads] : 0.0f;
                deltas[threadIdx.x] = real ? delta[row + threadIdx.x * query_heads] : 0.0f;
            }
            __syncthreads();
            // The key at the position of the tile's first query, as far as it lies near this tile.
            index_t own = first_query + query - first_key - first;
            int last_seen = own < ROWS ? (int)own : ROWS;
            float p[BACKWARD_COLUMNS / 8][4], ds[BACKWARD_COLUMNS / 8][4];
            clear(p);
            clear(ds);
#pragma unroll
            for (int piece = 0; piece < BACKWARD_COLUMNS / 8; ++piece) {
                multiply<HEAD>(p[piece], shared_k + warp * 16 * STRIDE, STRIDE, shared_q + piece * 8 * STRIDE, STRIDE, 1);
                multiply<HEAD>(ds[piece], shared_v + warp * 16 * STRIDE, STRIDE, shared_d + piece * 8 * STRIDE, STRIDE, 1);
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    int column = piece * 8 + column_of(i), key = warp * 16 + row_of(i);
                    bool seen = key >= begins[column] && key <= last_seen + column;
                    p[piece][i] = seen ? expf(p[piece][i] * scale - sums[column]) : 0.0f;
                    ds[piece][i] = seen ? p[piece][i] * (ds[piece][i] - deltas[column]) : 0.0f;
                }
            }
            share(mine, p);
            __syncwarp();
#pragma unroll
            for (int piece = 0; piece < HEAD / 8; ++piece)
                multiply<BACKWARD_COLUMNS>(of_value[piece], mine, BACKWARD_COLUMNS + PADDING, shared_d + piece * 8, 1, STRIDE);
            __syncwarp();
            share(mine, ds);
            __syncwarp();
#pragma unroll
            for (int piece = 0; piece < HEAD / 8; ++piece)
                multiply<BACKWARD_COLUMNS>(of_key[piece], mine, BACKWARD_COLUMNS + PADDING, shared_q + piece * 8, 1, STRIDE);
        }
    const float of_scores[2] = {scale, scale}, one[2] = {1.0f, 1.0f};
    index_t start = of_keys + warp * 16 * key_heads * dim, valid = keys - first - warp * 16;
    store_rows(dk + start, key_heads * dim, valid, (int)dim, of_key, of_scores, add);
    store_rows(dv + start, key_heads * dim, valid, (int)dim, of_value, one, add);
}
EXPORT(attention_backward_keys)

// A warp per query and head: joins two disjoint sets of keys in FP32 `out` and `lse`.
KERNEL attention_merge(index_t rows, index_t dim, float* out, float* lse, const element* part_out, const float* part_lse) {
    index_t row = first_index() / 32;
    if (row >= rows) return;
    float mine = lse[row], other = part_lse[row], largest = fmaxf(mine, other);
    __syncwarp(); // read by all before one lane writes
    if (largest == NEGATIVE_INFINITY) return;
    float total = largest + logf(expf(mine - largest) + expf(other - largest));
    float kept = expf(mine - total), added = expf(other - total);
    for (index_t i = threadIdx.x % 32; i < dim; i += 32) out[row * dim + i] = out[row * dim + i] * kept + widen(part_out[row * dim + i]) * added;
    if (threadIdx.x % 32 == 0) lse[row] = total;
}
EXPORT(attention_merge)
