// SPDX-License-Identifier: Apache-2.0
// What the double pretends to be, and which calls fail: the text that control.h describes.
#pragma once

#include "tests/cuda/double/entry.h"

#include <map>
#include <optional>
#include <string_view>
#include <vector>

namespace stepwell::cuda_double {

inline constexpr unsigned kDevicesMax = 8;
inline constexpr unsigned kAttributesMax = 512;

struct Failure {
    Entry entry = Entry::kCount;
    uint64_t nth = 0;  // call from now on; 0: every one
    int code = 0;
};

struct Options {
    uint64_t seed = 1;
    uint64_t delay_us = 20;
    uint64_t devices = 1;
    uint64_t memory = uint64_t{256} << 20;
    uint64_t driver = 13000;
    uint64_t unified = 0;
    uint64_t busy = 0;
    uint64_t register_max = 0;
    uint64_t batch_max = 0;
    uint64_t exit = 0;
    std::vector<Failure> failures;
    std::map<int, int> attributes;  // of every device, instead of the usual ones
};

// Nothing where the text is not understood.
std::optional<Options> parse_options(std::string_view text);

// Counts down to the calls that fail.
class FailurePlan {
public:
    void reset(std::vector<Failure> failures) { failures_ = std::move(failures); }
    void add(const Failure &failure) { failures_.push_back(failure); }
    // The code that this call is to return, or 0.
    int next(Entry entry);

private:
    std::vector<Failure> failures_;
};

}  // namespace stepwell::cuda_double
