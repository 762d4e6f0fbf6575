// SPDX-License-Identifier: Apache-2.0
// Bandwidth by samples of enough bytes or enough time, smoothed by a quarter.
#include "lib/store/bandwidth.h"

namespace stepwell::store {

namespace {

// A sample is long against one request and short against a training step.
constexpr uint64_t kSampleBytes = 16ull << 20;
constexpr uint64_t kSampleNs = 20'000'000;
// Completions come in bunches: the last ones of a bunch seem to take no time at all.
constexpr uint64_t kSampleNsMin = 4'000'000;

uint64_t rate(uint64_t bytes, uint64_t busy_ns)
{
    __extension__ using Wide = unsigned __int128;
    return static_cast<uint64_t>(Wide{bytes} * 1'000'000'000 / busy_ns);
}

}  // namespace

void BandwidthMeter::begin(uint64_t now_ns)
{
    if (in_flight_++ == 0) since_ns_ = now_ns;
}

void BandwidthMeter::end(uint64_t bytes, uint64_t now_ns)
{
    if (in_flight_ == 0) return;
    // Threads read the clock before they take the lock, so a later call may bring an earlier time.
    if (now_ns > since_ns_) {
        busy_ns_ += now_ns - since_ns_;
        since_ns_ = now_ns;
    }
    --in_flight_;
    bytes_ += bytes;
    sample();
}

void BandwidthMeter::sample()
{
    const uint64_t busy_ns = busy_ns_ - sampled_busy_ns_;
    const uint64_t bytes = bytes_ - sampled_bytes_;
    if (busy_ns < kSampleNsMin || bytes == 0) return;
    if (bytes < kSampleBytes && busy_ns < kSampleNs) return;
    const uint64_t now = rate(bytes, busy_ns);
    bytes_per_s_ = bytes_per_s_ == 0 ? now : bytes_per_s_ - bytes_per_s_ / 4 + now / 4;
    sampled_busy_ns_ = busy_ns_;
    sampled_bytes_ = bytes_;
}

uint64_t BandwidthMeter::busy_ns(uint64_t now_ns) const
{
    const bool running = in_flight_ > 0 && now_ns > since_ns_;
    return busy_ns_ + (running ? now_ns - since_ns_ : 0);
}

}  // namespace stepwell::store
