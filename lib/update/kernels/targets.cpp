// SPDX-License-Identifier: Apache-2.0
// Finds out once which of the compiled instruction sets the processor has. Any thread: all threads
// that look at the same time find the same.
#include "lib/update/kernels/dispatch.h"

#include <hwy/detect_targets.h>

#include <cpuid.h>

#include <atomic>

namespace stepwell::kernels {
namespace {

constexpr uint32_t kUnknown = kSlots;
// Zero-cost start: a constant, no constructor at load time.
constinit std::atomic<uint32_t> chosen{kUnknown};

// fp16 conversion, which not every compiler's list of features has.
bool machine_has_f16c()
{
    unsigned eax = 0;
    unsigned ebx = 0;
    unsigned ecx = 0;
    unsigned edx = 0;
    return __get_cpuid(1, &eax, &ebx, &ecx, &edx) != 0 && (ecx & bit_F16C) != 0;
}

// The features that Highway tells the compiler to use, and the operating system's consent.
bool machine_has_avx2()
{
    return machine_has_f16c() && __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") &&
           __builtin_cpu_supports("bmi") && __builtin_cpu_supports("bmi2") &&
           __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
}

bool machine_has_avx3()
{
    return machine_has_avx2() && __builtin_cpu_supports("avx512f") &&
           __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512dq") &&
           __builtin_cpu_supports("avx512bw");
}

bool usable(Slot slot)
{
    switch (slot) {
    case kSlotAvx3: return (HWY_TARGETS & HWY_AVX3) != 0 && machine_has_avx3();
    case kSlotAvx2: return (HWY_TARGETS & HWY_AVX2) != 0 && machine_has_avx2();
    case kSlotSse4:
        return (HWY_TARGETS & HWY_SSE4) != 0 && __builtin_cpu_supports("sse4.2") &&
               __builtin_cpu_supports("aes") && __builtin_cpu_supports("pclmul");
    case kSlotSsse3: return (HWY_TARGETS & HWY_SSSE3) != 0 && __builtin_cpu_supports("ssse3");
    default: return true;
    }
}

const char *name_of(Slot slot)
{
    static constexpr const char *kNames[kSlots] = {"AVX3", "AVX2", "SSE4", "SSSE3", "baseline"};
    return kNames[slot];
}

// The index-th usable slot, best first; kSlots when there are fewer.
uint32_t slot_at(uint32_t index)
{
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        if (usable(static_cast<Slot>(slot)) && index-- == 0) return slot;
    }
    return kSlots;
}

}  // namespace

Slot chosen_slot()
{
    uint32_t slot = chosen.load(std::memory_order_relaxed);
    if (slot == kUnknown) [[unlikely]] {
        slot = slot_at(0);
        chosen.store(slot, std::memory_order_relaxed);
    }
    return static_cast<Slot>(slot);
}

uint32_t target_count()
{
    uint32_t count = 0;
    while (slot_at(count) != kSlots) ++count;
    return count;
}

const char *target_name(uint32_t index)
{
    const uint32_t slot = slot_at(index);
    return slot == kSlots ? "" : name_of(static_cast<Slot>(slot));
}

bool force_target_for_test(uint32_t index)
{
    const uint32_t slot = slot_at(index);
    if (slot == kSlots) return false;
    chosen.store(slot, std::memory_order_relaxed);
    return true;
}

}  // namespace stepwell::kernels
