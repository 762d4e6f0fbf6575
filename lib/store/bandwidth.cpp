// SPDX-License-Identifier: Apache-2.0
// Bandwidth by samples of enough bytes or enough time. Their bytes and times are added up with
// weights, and divided: an average of rates would count a short burst like the long time before it.
// A sample has the weight of the requests in flight: with few of them it says little of what the
// drive can do. Weights decay.
#include "lib/store/bandwidth.h"

namespace stepwell::store {

namespace {

// A sample is long against one request and short against a training step.
constexpr uint64_t kSampleBytes = 16ull << 20;
constexpr uint64_t kSampleNs = 20'000'000;
constexpr uint64_t kSampleNsMin = 4'000'000;
// Completions come in bunches: a sample ends with its requests, unless it is that much longer.
constexpr uint64_t kUnderWay = 4;
constexpr double kKept = 15.0 / 16;              // of the weight of earlier samples, at each one
constexpr double kExpectedNs = 3.0 * kSampleNs;  // so long an expectation counts as a sample

}  // namespace

void BandwidthMeter::expect(uint64_t bytes_per_s)
{
    mean_ns_ = kExpectedNs;
    mean_bytes_ = static_cast<double>(bytes_per_s) * kExpectedNs * 1e-9;
    bytes_per_s_ = bytes_per_s;
}

// Threads read the clock before they take the lock, so a later call may bring an earlier time.
void BandwidthMeter::advance(uint64_t now_ns)
{
    if (now_ns <= since_ns_) return;
    busy_ns_ += now_ns - since_ns_;
    sample_.request_ns += static_cast<double>(in_flight_ * (now_ns - since_ns_));
    since_ns_ = now_ns;
}

void BandwidthMeter::begin(uint64_t now_ns)
{
    if (in_flight_ == 0) {
        since_ns_ = now_ns;
    } else {
        advance(now_ns);
    }
    ++in_flight_;
}

void BandwidthMeter::end(uint64_t bytes, uint64_t now_ns)
{
    if (in_flight_ == 0) return;
    advance(now_ns);
    --in_flight_;
    bytes_ += bytes;
    sample();
}

void BandwidthMeter::sample()
{
    const uint64_t busy_ns = busy_ns_ - sample_.begin_busy_ns;
    const uint64_t bytes = bytes_ - sample_.begin_bytes;
    const uint64_t least = in_flight_ > 0 ? kUnderWay : 1;
    if (busy_ns < kSampleNsMin || bytes == 0) return;
    if (bytes < least * kSampleBytes && busy_ns < least * kSampleNs) return;
    const double weight = sample_.request_ns / static_cast<double>(busy_ns);
    mean_ns_ = mean_ns_ * kKept + weight * static_cast<double>(busy_ns);
    mean_bytes_ = mean_bytes_ * kKept + weight * static_cast<double>(bytes);
    bytes_per_s_ = static_cast<uint64_t>(mean_bytes_ * 1e9 / mean_ns_);
    sample_ = {busy_ns_, bytes_, 0};
}

uint64_t BandwidthMeter::busy_ns(uint64_t now_ns) const
{
    const bool running = in_flight_ > 0 && now_ns > since_ns_;
    return busy_ns_ + (running ? now_ns - since_ns_ : 0);
}

}  // namespace stepwell::store
