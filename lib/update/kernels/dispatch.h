// SPDX-License-Identifier: Apache-2.0
// Which of the compiled instruction sets runs. Highway compiles a kernel once per target; its own
// dispatcher lives in a shared library that ours must not need, so the choice is made here. Any
// thread. Include after Highway, outside of the per-target part.
#pragma once

#include "lib/update/kernels/kernels.h"

namespace stepwell::kernels {

// Slots of a dispatch table, best first; the last is what every machine can run.
enum Slot : uint32_t { kSlotAvx3, kSlotAvx2, kSlotSse4, kSlotSsse3, kSlotBaseline, kSlots };
static_assert(kSlots == kTargetsMax);

// The slot in force; found out at the first call, forced by tests.
Slot chosen_slot();

template <class Function> struct Dispatch {
    Function *slots[kSlots];

    // A slot without code (below the compiler's baseline) is below what chosen_slot() returns.
    Function &chosen() const { return *slots[chosen_slot()]; }
};

}  // namespace stepwell::kernels

// The table of a kernel, in the namespace that encloses its HWY_NAMESPACE versions.
#define STEPWELL_DISPATCH(kernel)                                                                  \
    constexpr ::stepwell::kernels::Dispatch<decltype(HWY_STATIC_DISPATCH(kernel))>                 \
        kernel##_dispatch                                                                          \
    {                                                                                              \
        {                                                                                          \
            HWY_CHOOSE_AVX3(kernel), HWY_CHOOSE_AVX2(kernel), HWY_CHOOSE_SSE4(kernel),             \
                HWY_CHOOSE_SSSE3(kernel), HWY_CHOOSE_FALLBACK(kernel)                              \
        }                                                                                          \
    }
