// SPDX-License-Identifier: Apache-2.0
// The entry points as functions, for who links the double instead of loading it.
#pragma once

#include "tests/cuda/double/api.h"

namespace stepwell::cuda_double {

#define STW_DECLARE(name, since, parameters)                                                       \
    extern "C" __attribute__((visibility("default"))) int name parameters;
STW_CUDA_ENTRY_POINTS(STW_DECLARE)
#undef STW_DECLARE

enum class Entry : unsigned {
#define STW_ENUMERATE(name, since, parameters) name,
    STW_CUDA_ENTRY_POINTS(STW_ENUMERATE)
#undef STW_ENUMERATE
        kCount
};
inline constexpr unsigned kEntryCount = static_cast<unsigned>(Entry::kCount);

struct EntryPoint {
    const char *name;
    int since;  // version of CUDA
    void *function;
};
const EntryPoint &entry_point(Entry entry);
// kCount: there is none of that name.
Entry entry_by_name(const char *name);

}  // namespace stepwell::cuda_double
