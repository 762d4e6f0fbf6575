// SPDX-License-Identifier: Apache-2.0
// The options of the environment, and which calls they let fail.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::nccl_double {

struct Failure {
    std::string function;
    uint64_t nth = 0;
    int code = 0;
};

struct Options {
    int version = 22304;
    int init = 2;
    int launch = 1;
    bool notices = false;
    std::vector<Failure> failures;
};

// Aborts where they are not understood.
Options options_of_environment();

// Under the lock of the calls.
class Counts {
public:
    explicit Counts(std::vector<Failure> failures) : failures_(std::move(failures)) {}
    // 0, or what the call fails with.
    int count(const char *function);
    uint64_t of(std::string_view function) const;

private:
    std::map<std::string, uint64_t, std::less<>> calls_;
    std::vector<Failure> failures_;
};

}  // namespace stepwell::nccl_double
