// SPDX-License-Identifier: Apache-2.0
// Counters of every link: bytes, hops, time in use, errors, measured bandwidth. Under a lock of
// their own, taken twice per hop of a whole block. Any thread.
#pragma once

#include "lib/store/bandwidth.h"
#include "lib/support/thread_annotations.h"
#include "lib/transfer/engine.h"

#include <array>

namespace stepwell::transfer {

class Links {
public:
    void begin(Link link, uint32_t memory, uint64_t now_ns);
    void end(Link link, uint32_t memory, uint64_t bytes, bool moved, uint64_t now_ns);
    void expect(Link link, uint32_t memory, uint64_t bytes_per_s);
    void retried(Link link, uint32_t memory);
    [[nodiscard]] LinkStats stats(Link link, uint32_t memory, uint64_t now_ns) const;

private:
    struct Entry {
        store::BandwidthMeter meter;
        uint64_t transfers = 0;
        uint64_t errors = 0;
        uint64_t retries = 0;
    };
    mutable Mutex mutex_;
    std::array<std::array<Entry, kMemoriesMax>, kLinks> entries_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell::transfer
