// SPDX-License-Identifier: Apache-2.0
// The violations that were found, as sentences. Called under the driver's lock.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::cuda_double {

__attribute__((format(printf, 1, 2))) std::string text(const char *format, ...);

struct Violation {
    int kind = 0;  // control.h
    std::string sentence;
};

class Report {
public:
    void add(int kind, std::string sentence);
    const std::vector<Violation> &violations() const { return violations_; }
    // More than are kept, when a program is wrong in every step.
    uint64_t count() const { return violations_.size() + dropped_; }
    std::vector<Violation> take();

private:
    std::vector<Violation> violations_;
    uint64_t dropped_ = 0;
};

}  // namespace stepwell::cuda_double
