// SPDX-License-Identifier: Apache-2.0
// How ranks share the bandwidth of a disk: each counts the bytes it asks the disk for, and none may
// be more than a lead ahead of the slowest that also wants some. Time is an argument: the same code
// runs on shared memory and in a simulation. Knows no disk and no clock.
#pragma once

#include <atomic>
#include <cstdint>

namespace stepwell::collective {

// One rank's count at one disk. Its rank alone writes it and the others only read, so there is no
// lock that a rank could die with, and none waits for another's answer.
struct alignas(64) FairLane {
    std::atomic<uint64_t> taken;     // bytes, on a scale that all lanes share
    std::atomic<uint64_t> asked_ns;  // when it last asked for some; 0: it wants none
};

struct FairLimits {
    // What is ahead has the disk busy until it may ask again, half a millisecond later: 2 ms at
    // 7 GB/s. Measured with four ranks that read 1 GiB each: with 8 MiB the slowest took 1.01 times
    // as long as the fastest, with 16 MiB 1.03, with 32 MiB 1.06, and all were as fast as without.
    uint64_t lead_bytes = 16ull << 20;
    // One that asked for nothing for so long holds up nobody: it is dead, stopped, or waits for
    // something else. Longer than a full queue takes on a slow disk.
    uint64_t lapse_ns = 500'000'000;
};

class FairShare {
public:
    // lanes[0..ranks) outlive it; `own` is this rank's.
    FairShare(FairLane *lanes, uint32_t ranks, uint32_t own, const FairLimits &limits);

    // True: `bytes` may go to the disk, and are counted. False: not yet; ask again in a moment.
    // Never false while no other rank wants any, nor for the slowest that does. One thread at a
    // time, as rest(). No system call.
    bool take(uint64_t bytes, uint64_t now_ns);
    // It wants none for now.
    void rest() { lanes_[own_].asked_ns.store(0, std::memory_order_release); }

private:
    [[nodiscard]] bool wants(const FairLane &lane, uint64_t now_ns) const;
    [[nodiscard]] uint64_t slowest_other(uint64_t now_ns) const;

    FairLane *lanes_;
    uint32_t ranks_;
    uint32_t own_;
    FairLimits limits_;
};

}  // namespace stepwell::collective
