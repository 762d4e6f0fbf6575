// SPDX-License-Identifier: Apache-2.0
// A short look at a path of an open store, before anything is stored in it: how fast it reads and
// writes, and with which requests. Writes into free slots, never the superblock. The opening
// thread; takes the time it is given and no more, but for a device that does not answer.
#pragma once

#include "lib/store/store.h"

namespace stepwell::store {

// The low half of the tags of its requests. Whoever polls the path later may meet one, where a
// device answered only after the probe had given it up.
constexpr uint32_t kProbeTag = UINT32_MAX;

struct Probed {
    Requests reads;
    Requests writes;
    uint64_t read_bytes_per_s = 0;
    uint64_t write_bytes_per_s = 0;
};

// Errors: IO, TIMEOUT, MEMORY, LIMIT (too slow or too small to tell); the store is as it was.
Result<Probed> probe(const Store &store, uint32_t path, const stw_services &services,
                     uint64_t time_ns);

}  // namespace stepwell::store
