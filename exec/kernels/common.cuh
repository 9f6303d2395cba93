// What all kernels share: the element type, its conversions, sums over warps and blocks.
//
// Every source here is built for one element: FP32, or BF16 with -DELEMENT_BF16. Values are widened to FP32 when read and
// rounded once when written. No header of CUDA is needed, so that NVRTC builds them on a machine with only a driver's
// libraries; `shim/shim.h` gives the same words a meaning on a CPU, where the arithmetic is tested.
//
// Each kernel says EXPORT, by which the CPU's version can be called by name.
#pragma once

#ifdef TRAINYARD_SHIM
#include "shim.h"
#else
#define EXPORT(name)
#define DYNAMIC_SHARED(name) extern __shared__ __align__(16) unsigned char name[]
#endif

#define KERNEL extern "C" __global__ void
#define INLINE __device__ __forceinline__

typedef long long index_t;
#define NEGATIVE_INFINITY (-__int_as_float(0x7f800000))

// bfloat16 by its bits.
struct bf16 {
    unsigned short bits;
};

INLINE float widen(float value) { return value; }
INLINE float widen(bf16 value) { return __uint_as_float((unsigned)value.bits << 16); }

INLINE void put(float* to, float value) { *to = value; }

// Rounds to nearest, ties to even.
INLINE void put(bf16* to, float value) {
#ifdef TRAINYARD_SHIM
    unsigned bits = __float_as_uint(value);
    bool nan = (bits & 0x7fffffffu) > 0x7f800000u;
    to->bits = (unsigned short)((nan ? bits | 0x400000u : bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
#else
    asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(to->bits) : "f"(value));
#endif
}

#ifdef ELEMENT_BF16
typedef bf16 element;
#else
typedef float element;
#endif

INLINE void put(element* to, float value, bool add) { put(to, add ? widen(*to) + value : value); }

// Threads of blocks that work on rows, and of all that go over elements.
#define THREADS 256

// First element and step of a thread that goes over elements with all others.
INLINE index_t first_index() { return (index_t)blockIdx.x * blockDim.x + threadIdx.x; }
INLINE index_t all_threads() { return (index_t)gridDim.x * blockDim.x; }

template <typename T>
INLINE T warp_sum(T value) {
    for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
    return value;
}

INLINE float warp_maximum(float value) {
    for (int distance = 16; distance > 0; distance /= 2)
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, distance));
    return value;
}

// Sum over a block of THREADS, the same on every thread and in every run.
template <typename T>
INLINE T block_sum(T value) {
    __shared__ T of_warps[THREADS / 32];
    value = warp_sum(value);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    T total = 0;
    for (int warp = 0; warp < THREADS / 32; ++warp) total += of_warps[warp];
    __syncthreads();
    return total;
}

// Largest value of a block of THREADS; NaN is passed over.
INLINE float block_maximum(float value) {
    __shared__ float of_warps[THREADS / 32];
    value = warp_maximum(value);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
    __syncthreads();
    float largest = NEGATIVE_INFINITY;
    for (int warp = 0; warp < THREADS / 32; ++warp) largest = fmaxf(largest, of_warps[warp]);
    __syncthreads();
    return largest;
}
