// The words of CUDA C that the kernels use, on a CPU: threads of a block are fibers of one thread of the host.
//
// A fiber runs until it meets the others (a barrier, a shuffle, a product of tensor cores) or ends. Who runs first is
// turned around by TRAINYARD_SHIM_REVERSE=1: a kernel that lacks a barrier then gives another result. A barrier that some
// threads miss ends the process with a message. Static and dynamic shared memory is one block's at a time; the dynamic part
// is filled with NaN before each block, and what lies behind it is checked after.
#pragma once

#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>
#include <vector>

#define __global__
#define __device__
#define __forceinline__ inline
#define __shared__ static
#define __launch_bounds__(threads)

struct Coordinates {
    unsigned x, y, z;
};

namespace shim {

static Coordinates thread_index, block_index, block_size, grid_size;

enum Waiting { NOT, FOR_WARP, FOR_BLOCK, DONE };

struct Fiber {
    void* stack_pointer;
    Waiting waiting;
    int parity;
    char* stack;
};

// What lanes of a warp show each other. Two sets in turn: nobody writes into the one that a slower lane still reads.
struct Warp {
    unsigned long long words[2][32][6];
};

const size_t STACK = 64 << 10, DYNAMIC = 256 << 10, GUARD = 4096;
static Fiber fibers[1024];
static Warp warps[32];
static void* scheduler;
static unsigned current;
static void (*body)(void*);
static void* body_argument;
alignas(64) static unsigned char dynamic[DYNAMIC + GUARD];

// Saves the registers that a callee keeps on the stack, and continues on another.
__attribute__((naked, noinline)) static void change(void** /* save */, void* /* load */) {
    asm volatile(
        "pushq %rbp\n pushq %rbx\n pushq %r12\n pushq %r13\n pushq %r14\n pushq %r15\n"
        "movq %rsp, (%rdi)\n movq %rsi, %rsp\n"
        "popq %r15\n popq %r14\n popq %r13\n popq %r12\n popq %rbx\n popq %rbp\n ret\n");
}

static void wait(Waiting what) {
    fibers[current].waiting = what;
    change(&fibers[current].stack_pointer, scheduler);
}

static void run_body() {
    body(body_argument);
    wait(DONE);
}

static void start(unsigned index) {
    Fiber& fiber = fibers[index];
    if (!fiber.stack) fiber.stack = (char*)malloc(STACK);
    void** top = (void**)(fiber.stack + STACK - 64);
    *--top = nullptr; // where a call's return address would be: keeps the stack aligned
    *--top = (void*)run_body;
    top -= 6;
    fiber.stack_pointer = top;
    fiber.waiting = NOT;
    fiber.parity = 0;
}

[[noreturn]] static void fail(const char* what) {
    fprintf(stderr, "block %u: %s\n", block_index.x, what);
    abort();
}

// Lets the fibers first..end go on if all of them wait for the same; says whether any did.
static bool release(unsigned first, unsigned end, Waiting what) {
    for (unsigned i = first; i < end; ++i)
        if (fibers[i].waiting != what) return false;
    for (unsigned i = first; i < end; ++i) fibers[i].waiting = NOT;
    return true;
}

static void run_block(unsigned threads, bool reverse) {
    for (unsigned i = 0; i < threads; ++i) start(i);
    for (;;) {
        bool ran = false, all_done = true;
        for (unsigned turn = 0; turn < threads; ++turn) {
            unsigned i = reverse ? threads - 1 - turn : turn;
            if (fibers[i].waiting == NOT) {
                current = i;
                thread_index = {i, 0, 0};
                change(&scheduler, fibers[i].stack_pointer);
                ran = true;
            }
            all_done &= fibers[i].waiting == DONE;
        }
        if (all_done) return;
        bool released = release(0, threads, FOR_BLOCK);
        for (unsigned first = 0; first < threads; first += 32)
            released |= release(first, first + 32 < threads ? first + 32 : threads, FOR_WARP);
        if (!ran && !released) fail("a barrier that some threads never reach");
    }
}

template <typename... A, size_t... I>
static void call(void (*kernel)(A...), void** arguments, std::index_sequence<I...>) {
    kernel(*(A*)arguments[I]...);
}

template <typename... A>
static constexpr int count(void (*)(A...)) {
    return sizeof...(A);
}

template <typename... A>
static void launch(void (*kernel)(A...), Coordinates grid, unsigned threads, unsigned shared, void** arguments) {
    struct Call {
        void (*kernel)(A...);
        void** arguments;
    } one = {kernel, arguments};
    body = [](void* argument) {
        Call* call_of = (Call*)argument;
        call(call_of->kernel, call_of->arguments, std::index_sequence_for<A...>());
    };
    body_argument = &one;
    if (threads > 1024 || shared > DYNAMIC) fail("more threads or shared memory than any device has");
    const char* order = getenv("TRAINYARD_SHIM_REVERSE");
    bool reverse = order && *order == '1';
    grid_size = grid;
    block_size = {threads, 1, 1};
    for (unsigned y = 0; y < grid.y; ++y)
        for (unsigned x = 0; x < grid.x; ++x) {
            block_index = {reverse ? grid.x - 1 - x : x, y, 0};
            memset(dynamic, 0xff, shared);
            memset(dynamic + shared, 0x5a, GUARD);
            run_block(threads, reverse);
            for (size_t i = 0; i < GUARD; ++i)
                if (dynamic[shared + i] != 0x5a) fail("shared memory was written beyond its end");
        }
}

// Shows `count` words to the warp and returns those of all lanes.
static unsigned long long (*meet(const unsigned long long* words, int count))[6] {
    unsigned index = current;
    Warp& warp = warps[index / 32];
    int parity = fibers[index].parity;
    fibers[index].parity = !parity;
    for (int i = 0; i < count; ++i) warp.words[parity][index % 32][i] = words[i];
    wait(FOR_WARP);
    return warp.words[parity];
}

} // namespace shim

#define threadIdx shim::thread_index
#define blockIdx shim::block_index
#define blockDim shim::block_size
#define gridDim shim::grid_size
#define DYNAMIC_SHARED(name) unsigned char* name = shim::dynamic
#define EXPORT(name)                                                                                              \
    extern "C" int shim_count_##name() { return shim::count(name); }                                             \
    extern "C" void shim_##name(const unsigned* grid, unsigned threads, unsigned shared, void** arguments) {      \
        shim::launch(name, {grid[0], grid[1], grid[2]}, threads, shared, arguments);                             \
    }

static inline void __syncthreads() { shim::wait(shim::FOR_BLOCK); }
static inline void __syncwarp() { shim::wait(shim::FOR_WARP); }

template <typename T>
static inline T __shfl_xor_sync(unsigned, T value, int distance) {
    unsigned long long word = 0;
    memcpy(&word, &value, sizeof value);
    unsigned other = shim::current % 32 ^ distance;
    auto words = shim::meet(&word, 1);
    memcpy(&value, &words[other][0], sizeof value);
    return value;
}

static inline unsigned __ballot_sync(unsigned, bool vote) {
    unsigned long long word = vote;
    auto words = shim::meet(&word, 1);
    unsigned mask = 0;
    for (int lane = 0; lane < 32; ++lane) mask |= (unsigned)words[lane][0] << lane;
    return mask;
}

static inline int __ffs(unsigned bits) { return __builtin_ffs((int)bits); }
static inline unsigned atomicMin(unsigned* at, unsigned value) {
    unsigned old = *at;
    if (value < old) *at = value;
    return old;
}
static inline float __uint_as_float(unsigned bits) {
    float value;
    memcpy(&value, &bits, 4);
    return value;
}
static inline float __int_as_float(int bits) { return __uint_as_float((unsigned)bits); }
static inline unsigned __float_as_uint(float value) {
    unsigned bits;
    memcpy(&bits, &value, 4);
    return bits;
}

// `mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32`, by the fragment layouts of the PTX ISA: with g = lane / 4 and
// t = lane % 4, word r of a holds the elements (g + 8 (r % 2), 2 t + 8 (r / 2)) and the one to its right; word r of b holds
// (2 t + 8 r, g) and the one below.
static inline void tensor_core(float (&c)[4], const unsigned (&a)[4], const unsigned (&b)[2]) {
    const unsigned long long mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
    unsigned lane = shim::current % 32;
    auto words = shim::meet(mine, 6);
    auto half = [](unsigned long long word, int which) { return __uint_as_float((unsigned)(which ? word >> 16 : word) << 16); };
    for (int i = 0; i < 4; ++i) {
        int row = (int)lane / 4 + i / 2 * 8, column = (int)lane % 4 * 2 + i % 2;
        float sum = 0.0f;
        for (int k = 0; k < 16; ++k) {
            float left = half(words[row % 8 * 4 + k % 8 / 2][row / 8 + k / 8 * 2], k % 2);
            float right = half(words[column * 4 + k % 8 / 2][4 + k / 8], k % 2);
            sum += left * right;
        }
        c[i] += sum;
    }
}
