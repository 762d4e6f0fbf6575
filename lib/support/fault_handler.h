// SPDX-License-Identifier: Apache-2.0
// Faults of threads on addresses that somebody watches: the thread sleeps in a handler of SIGSEGV
// until the watcher has answered, and touches the memory again or gets the signal as if there were
// no watch. Other faults go to the handler that was there before.
// The handler takes no lock and no memory; whoever answers runs on threads of its own.
#pragma once

#include "lib/support/status.h"

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <memory>

namespace stepwell {

// Of a thread that sleeps until it is answered; lies on its stack.
struct MemoryFault {
    uintptr_t address = 0;
    bool writes = false;  // where the processor says so; else a second fault on what can be read
    pid_t thread = 0;     // as gettid() has it
    uintptr_t instruction = 0;  // 0: the processor's is not known here
    uint64_t registers = 0;     // a hash of these and of the instruction's address
    char sentence[768] = {};    // why not, for what may be the last words of the process
    MemoryFault *next = nullptr;
    std::atomic<uint32_t> answer{0};
};

class FaultWatch {
public:
    // Whether the processor tells writes from reads.
#if defined(__x86_64__)
    static constexpr bool kSaysWrites = true;
#else
    static constexpr bool kSaysWrites = false;
#endif

    // Installs the handler with the first one. LIMIT: there are too many, or no descriptor is left.
    static Result<std::unique_ptr<FaultWatch>> open();
    // Nobody is in take() any more. The handler goes with the last one, if it is still ours.
    ~FaultWatch();
    FaultWatch(const FaultWatch &) = delete;
    FaultWatch &operator=(const FaultWatch &) = delete;

    // Faults there are this watch's from now on. One range, that grows.
    void cover(const void *begin, uint64_t bytes);
    // Blocks for the next one; null: the watch has ended, and all that came before was taken.
    MemoryFault *take();
    static void answer(MemoryFault *fault, bool served);
    // Later faults are not this watch's; `takers` calls of take() return null.
    void end(uint32_t takers);

private:
    struct Slot;
    explicit FaultWatch(Slot *slot) : slot_(slot) {}
    friend struct FaultHandler;

    Slot *const slot_;
};

}  // namespace stepwell
