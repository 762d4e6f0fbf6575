// SPDX-License-Identifier: Apache-2.0
// How fast something is while it works: bytes per time with at least one request in flight,
// smoothed over samples. Pure arithmetic: the same calls give the same figures. The caller's lock.
#pragma once

#include <cstdint>

namespace stepwell::store {

class BandwidthMeter {
public:
    void begin(uint64_t now_ns);
    // One request that had begun is over; bytes it moved, 0 if it failed.
    void end(uint64_t bytes, uint64_t now_ns);

    // What is known from elsewhere: the figure until samples correct it.
    void expect(uint64_t bytes_per_s);

    // 0 until the first sample is complete, where nothing was expected.
    [[nodiscard]] uint64_t bytes_per_s() const { return bytes_per_s_; }
    [[nodiscard]] uint64_t bytes() const { return bytes_; }
    [[nodiscard]] uint64_t busy_ns(uint64_t now_ns) const;

private:
    struct Sample {
        uint64_t begin_busy_ns = 0;
        uint64_t begin_bytes = 0;
        double request_ns = 0;  // time of all requests together
    };

    void advance(uint64_t now_ns);
    void sample();

    uint64_t in_flight_ = 0;
    uint64_t since_ns_ = 0;  // while in_flight_ > 0
    uint64_t busy_ns_ = 0;
    uint64_t bytes_ = 0;
    Sample sample_;       // the present one
    double mean_ns_ = 0;  // of the samples, weighted
    double mean_bytes_ = 0;
    uint64_t bytes_per_s_ = 0;
};

}  // namespace stepwell::store
