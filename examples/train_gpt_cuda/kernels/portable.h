// SPDX-License-Identifier: Apache-2.0
//
// What lets one source be a kernel of a GPU and, for tests, a function of the processor. A kernel
// is written in phases: between two barriers each thread of a thread block runs the same lambda.

#ifndef TRAIN_GPT_CUDA_PORTABLE_H
#define TRAIN_GPT_CUDA_PORTABLE_H

#include <cstdint>

#ifdef __CUDACC__
#define GPT_CODE   __device__ __forceinline__
#define GPT_UNROLL _Pragma("unroll")
#else
#include <cmath>
#include <cstring>
#define GPT_CODE inline
#define GPT_UNROLL
#endif

namespace train_gpt::gpu {

struct alignas(16) Four {
    float at[4];
};

template <class T> GPT_CODE T *global(uint64_t address)
{
    return reinterpret_cast<T *>(address);
}

// The address is a multiple of 16.
GPT_CODE Four load_four(const float *from)
{
    return *reinterpret_cast<const Four *>(from);
}
GPT_CODE void store_four(float *to, const Four &four)
{
    *reinterpret_cast<Four *>(to) = four;
}
GPT_CODE bool is_whole(const void *address)
{
    return reinterpret_cast<uintptr_t>(address) % sizeof(Four) == 0;
}

#ifdef __CUDACC__

GPT_CODE float exponential(float x)
{
    return expf(x);
}
GPT_CODE float logarithm(float x)
{
    return logf(x);
}
GPT_CODE float square_root(float x)
{
    return sqrtf(x);
}

// The threads that share memory and meet at barriers, as each of them sees it.
class ThreadBlock {
public:
    GPT_CODE uint32_t index() const { return blockIdx.x; }
    GPT_CODE uint32_t count() const { return gridDim.x; }
    template <class Body> GPT_CODE void each_thread(const Body &body) const { body(threadIdx.x); }
    GPT_CODE void barrier() const { __syncthreads(); }
    template <class T> GPT_CODE T &shared() const
    {
        __shared__ T memory;
        return memory;
    }
};

// What a thread keeps from one phase to the next: its registers.
template <class T, uint32_t threads> class PerThread {
public:
    GPT_CODE T &operator[](uint32_t) { return value_; }

private:
    T value_ = {};
};

#else

inline float exponential(float x)
{
    return std::exp(x);
}
inline float logarithm(float x)
{
    return std::log(x);
}
inline float square_root(float x)
{
    return std::sqrt(x);
}

// The processor runs the threads of a phase one after another.
template <class T, uint32_t threads> class PerThread {
public:
    T &operator[](uint32_t thread) { return values_[thread]; }

private:
    T values_[threads] = {};
};

#endif

}  // namespace train_gpt::gpu

#endif
