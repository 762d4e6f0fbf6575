// SPDX-License-Identifier: Apache-2.0
// The interface through which the engine orders copies with the work of consumers, in memories with
// STW_MEMORY_STREAMS. It is here and not where it is implemented because the engine's tests have
// implementations of their own.
#pragma once

#include "lib/residency/types.h"
#include "lib/support/status.h"

#include <cstdint>

namespace stepwell::transfer {

struct Job;

// On engine threads, several at once, no lock held; nothing here may call the engine.
class CopyOrdering {
public:
    CopyOrdering() = default;
    CopyOrdering(const CopyOrdering &) = delete;
    CopyOrdering &operator=(const CopyOrdering &) = delete;
    virtual ~CopyOrdering() = default;

    // Called before a copy into the memory or, without `into`, out of it, which reads the bytes or,
    // with `writes`, writes them. An error fails the job.
    virtual Status before(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                          bool into) = 0;
    // Whether `before` would make such copies wait for work on streams that they do not wait for
    // yet.
    virtual bool waits(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                       bool into) = 0;
    // Called around the start of copies between the memory and the host. `mark`: recorded after
    // them; null: none was started, or they are over.
    virtual void hold(uint32_t memory, bool into) = 0;
    virtual void let_go(uint32_t memory, bool into, const uint64_t *mark) = 0;
    // Between the two: the driver needs no buffer of its own for this block of host memory.
    virtual bool registered(const void *pointer) = 0;
    // Nor for the block before it, so that one copy can have both.
    virtual bool joined(const void *pointer) = 0;
    // A copy to these bytes is enqueued, with the driver's mark after it. The result is for
    // `arrived`.
    virtual uint64_t started(uint32_t memory, const void *pointer, uint64_t bytes,
                             uint64_t mark) = 0;
    // Maps the block's slot at the tensor's own address (Job::alias). The block's copy is done or
    // enqueued. Called before `ordered`. An error fails the job.
    virtual Status map_alias(const Job &job) = 0;
    // After `started`: work that is ordered after the mark may use the bytes. The completion comes
    // later.
    virtual void ordered(residency::TransferId transfer) = 0;
    // The bytes have arrived.
    virtual void arrived(uint32_t memory, const void *pointer, uint64_t bytes, uint64_t number) = 0;
    // As `before`, for storage in memory that it accesses: returns when earlier work is over.
    // Called on a thread that does nothing else. An error fails the job.
    virtual Status await(uint32_t memory, const void *pointer, uint64_t bytes, bool writes) = 0;
};

}  // namespace stepwell::transfer
