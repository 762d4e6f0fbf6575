// SPDX-License-Identifier: Apache-2.0
// The program's own dlsym is found before the C library's. It hands the functions of CUDA's driver
// out behind counters. All of them take at most eleven integers and pointers; those that were given
// are passed on, and for the others some words of the caller's stack, which nobody looks at.
#include "cuda_calls.h"

#include "measure.h"

#include <array>
#include <atomic>
#include <mutex>
#include <utility>

#include <dlfcn.h>

namespace bench {
namespace {

using Word = uintptr_t;
using Function = int (*)(Word, Word, Word, Word, Word, Word, Word, Word, Word, Word, Word);

constexpr size_t kFunctionsMax = 128;

std::atomic<uint64_t> calls;
std::mutex functions_mutex;
std::array<Function, kFunctionsMax> functions;  // those taken first, then null

template <size_t index>
int counted(Word a, Word b, Word c, Word d, Word e, Word f, Word g, Word h, Word i, Word j, Word k)
{
    calls.fetch_add(1, std::memory_order_relaxed);
    return functions[index](a, b, c, d, e, f, g, h, i, j, k);
}

template <size_t... index> constexpr auto all_counted(std::index_sequence<index...>)
{
    return std::array<Function, sizeof...(index)>{counted<index>...};
}
constexpr auto kCounted = all_counted(std::make_index_sequence<kFunctionsMax>());

void *behind_counter(void *function)
{
    const std::lock_guard lock(functions_mutex);
    for (size_t i = 0; i < kFunctionsMax; ++i) {
        if (functions[i] == nullptr) functions[i] = reinterpret_cast<Function>(function);
        if (functions[i] == reinterpret_cast<Function>(function))
            return reinterpret_cast<void *>(kCounted[i]);
    }
    give_up("more functions of CUDA are taken than can be counted");
}

}  // namespace

uint64_t cuda_calls()
{
    return calls.load(std::memory_order_relaxed);
}

}  // namespace bench

extern "C" __attribute__((visibility("default"))) void *dlsym(void *library, const char *name)
{
    static const auto real = reinterpret_cast<void *(*)(void *, const char *)>(
        dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
    void *function = real(library, name);
    void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == nullptr) return function;
    dlclose(driver);
    const bool counts = function != nullptr && library == driver;
    return counts ? bench::behind_counter(function) : function;
}
