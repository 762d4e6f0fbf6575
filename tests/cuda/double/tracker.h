// SPDX-License-Identifier: Apache-2.0
// Judges each access: is the memory there, and is it ordered after whoever touched it before? Which
// order there is does not depend on when anything runs, so an operation is judged when it is
// enqueued. Called under the driver's lock.
#pragma once

#include "tests/cuda/double/memory.h"
#include "tests/cuda/double/order.h"
#include "tests/cuda/double/report.h"

namespace stepwell::cuda_double {

struct Touch {
    Address address = 0;
    uint64_t bytes = 0;
    bool writes = false;
    // Not before the call, but maybe before what the stream does before (a source in any order).
    bool any_time = false;
};

inline uint64_t bytes_of(const std::vector<Touch> &touches)
{
    uint64_t bytes = 0;
    for (const Touch &touch : touches) bytes += touch.bytes;
    return bytes;
}

class Tracker {
public:
    Tracker(Memory &memory, Report &report) : memory_(memory), report_(report) {}

    // What the host knows to have ended.
    Clock &host() { return host_; }

    // False where the memory is not there; that is reported too. `kernel_device`: -1 for a copy,
    // which goes through whatever device has the memory; a kernel needs access from its own.
    bool touch(const Touch &touch, const Epoch &self, const Clock &before, int kernel_device);
    // The host reads or writes, itself or by a call that copies at once.
    void host_touch(const Touch &touch, const char *what);
    // What lies at these addresses goes away. False where an operation may still be using it.
    bool gone(Address address, uint64_t bytes, const char *what);

private:
    bool accessible(const Piece &piece, const Touch &touch, const Epoch &self, int kernel_device);
    void settle_if_large();

    Memory &memory_;  // outlives this
    Report &report_;  // outlives this
    // By memory: two mappings of one handle are the same bytes.
    AccessMap accesses_;
    // By address, and all as reads: who used a mapping matters when that mapping goes, though the
    // memory stays and others use it through another one.
    AccessMap uses_;
    Clock host_;
    size_t settle_at_ = 256;
    std::vector<Piece> pieces_;  // of the touch at hand
};

// "cuMemcpyAsync #12 on stream 3".
std::string name(const Epoch &epoch);

}  // namespace stepwell::cuda_double
