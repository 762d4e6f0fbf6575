// SPDX-License-Identifier: Apache-2.0
// What the engine asks of whoever orders copies with the work of consumers, in memories with
// STW_MEMORY_STREAMS. Here and not where it is implemented: the engine is tested with others.
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

    // Bytes are about to be read or, with `writes`, written, by a copy into the memory or, without
    // `into`, out of it. An error fails the job.
    virtual Status before(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                          bool into) = 0;
    // Whether `before` would make such copies wait for work on streams, which they do not yet.
    virtual bool waits(uint32_t memory, const void *pointer, uint64_t bytes, bool writes,
                       bool into) = 0;
    // Around what starts copies between the memory and the host. `mark`: behind them; null: none
    // was started, or they are over.
    virtual void hold(uint32_t memory, bool into) = 0;
    virtual void let_go(uint32_t memory, bool into, const uint64_t *mark) = 0;
    // Between the two: this block of the host's memory needs no buffer of the driver's.
    virtual bool registered(const void *pointer) = 0;
    // And so does the block before it, in one copy with this one.
    virtual bool joined(const void *pointer) = 0;
    // A copy to there is enqueued, with the driver's mark behind it. The answer is for `arrived`.
    virtual uint64_t started(uint32_t memory, const void *pointer, uint64_t bytes,
                             uint64_t mark) = 0;
    // Maps the block's slot at the tensor's own address (Job::alias). The block's copy is done or
    // enqueued. Called before `ordered`. An error fails the job.
    virtual Status map_alias(const Job &job) = 0;
    // After `started`: who comes behind the mark may use the bytes. The completion comes later.
    virtual void ordered(residency::TransferId transfer) = 0;
    // The bytes are there.
    virtual void arrived(uint32_t memory, const void *pointer, uint64_t bytes, uint64_t number) = 0;
    // As `before`, for storage in memory that it reaches: returns when what comes before is over.
    // On a thread that does nothing else. An error fails the job.
    virtual Status await(uint32_t memory, const void *pointer, uint64_t bytes, bool writes) = 0;
};

}  // namespace stepwell::transfer
