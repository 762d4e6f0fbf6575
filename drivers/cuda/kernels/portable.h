// SPDX-License-Identifier: Apache-2.0
// Lets one source be a kernel of a GPU and, for tests, a function of the processor. The two differ
// only here: how bits are reinterpreted, how memory is accessed, and what runs the threads.
#pragma once

#include <cstdint>

#ifdef __CUDACC__
#define STW_CODE   __device__ __forceinline__
#define STW_UNROLL _Pragma("unroll")
#else
#include <bit>
#include <cmath>
#include <cstring>
#define STW_CODE inline
#define STW_UNROLL
#endif

namespace stepwell::drivers::cuda {

#ifdef __CUDACC__

using Words2 = uint2;
using Words4 = uint4;

STW_CODE uint32_t bits_of(float value)
{
    return __float_as_uint(value);
}

STW_CODE float float_of(uint32_t bits)
{
    return __uint_as_float(bits);
}

STW_CODE double double_of(uint64_t bits)
{
    return __longlong_as_double(static_cast<long long>(bits));
}

STW_CODE float absolute(float value)
{
    return fabsf(value);
}

STW_CODE float square_root(float value)
{
    return sqrtf(value);  // to nearest, by -prec-sqrt=true
}

// The compiler detects that an argument's address is in global memory. With
// __cvta_global_to_generic nvcc 13.0 does not terminate.
template <class T> STW_CODE T *global(uint64_t address)
{
    return reinterpret_cast<T *>(address);
}

template <class Word> STW_CODE Word load_word(const void *from)
{
    return *static_cast<const Word *>(from);
}

STW_CODE void store_word(void *to, uint16_t word)
{
    *static_cast<uint16_t *>(to) = word;
}

STW_CODE void store_word(void *to, uint32_t word)
{
    *static_cast<uint32_t *>(to) = word;
}

// The compiler makes four stores of an assignment, and a stronger one than needed of __stwb.
STW_CODE void store_word(void *to, Words2 word)
{
    asm volatile("st.global.v2.u32 [%0], {%1, %2};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y)
                 : "memory");
}

STW_CODE void store_word(void *to, Words4 word)
{
    asm volatile("st.global.v4.u32 [%0], {%1, %2, %3, %4};"
                 :
                 : "l"(__cvta_generic_to_global(to)), "r"(word.x), "r"(word.y), "r"(word.z),
                   "r"(word.w)
                 : "memory");
}

// The threads that share memory and meet at barriers, as seen by each of them.
class ThreadBlock {
public:
    STW_CODE uint32_t index() const { return blockIdx.x; }
    STW_CODE uint32_t count() const { return gridDim.x; }
    STW_CODE uint32_t threads() const { return blockDim.x; }
    // The phase between two barriers: `body` runs for each thread. Data that outlives a phase and
    // differs between threads must be in shared memory.
    template <class Body> STW_CODE void each_thread(const Body &body) const { body(threadIdx.x); }
    STW_CODE void barrier() const { __syncthreads(); }
    template <class T> STW_CODE T &shared() const
    {
        __shared__ T memory;
        return memory;
    }
};

#else

struct alignas(8) Words2 {
    uint32_t x, y;
};
struct alignas(16) Words4 {
    uint32_t x, y, z, w;
};

inline uint32_t bits_of(float value)
{
    return std::bit_cast<uint32_t>(value);
}

inline float float_of(uint32_t bits)
{
    return std::bit_cast<float>(bits);
}

inline double double_of(uint64_t bits)
{
    return std::bit_cast<double>(bits);
}

inline float absolute(float value)
{
    return std::fabs(value);
}

inline float square_root(float value)
{
    return std::sqrt(value);
}

template <class T> T *global(uint64_t address)
{
    return reinterpret_cast<T *>(static_cast<uintptr_t>(address));
}

// Like a GPU, refuses an address that is not a multiple of the word's size.
inline void require_alignment(const void *address, uint64_t bytes)
{
    if (reinterpret_cast<uintptr_t>(address) % bytes != 0) __builtin_trap();
}

template <class Word> Word load_word(const void *from)
{
    require_alignment(from, sizeof(Word));
    Word word;
    std::memcpy(&word, from, sizeof(word));
    return word;
}

template <class Word> void store_word(void *to, Word word)
{
    require_alignment(to, sizeof(Word));
    std::memcpy(to, &word, sizeof(word));
}

#endif

}  // namespace stepwell::drivers::cuda
