// SPDX-License-Identifier: Apache-2.0
// What the bench programs share: a clock, medians, --name value arguments, and how they give up.
// They see the public API only, print one JSON object a line on stdout, and leave interleaving
// with the reference, ratios and spreads to bench/bench.py.
#pragma once

#include <stepwell/stepwell.h>

#include <cstdint>
#include <string>
#include <vector>

namespace bench {

double now_s();
double median(std::vector<double> values);

// Ends the program with the library's sentence when a call failed.
void must(stw_status status, const char *call);
[[noreturn]] void give_up(const std::string &sentence);

// --name value pairs. Sizes take the suffixes k, m, g (powers of 1024).
class Arguments {
public:
    Arguments(int count, char **words);
    [[nodiscard]] std::string text(const std::string &name, const std::string &otherwise) const;
    [[nodiscard]] uint64_t number(const std::string &name, uint64_t otherwise) const;

private:
    std::vector<std::string> words_;
};

// The budgets of one runtime, closed with it. A budget of 0: no such tier.
struct Budgets {
    uint64_t device_bytes = 0;
    std::string device_driver = "cpu";
    std::string device_driver_options;
    uint64_t host_bytes = 0;
    uint64_t nvme_bytes = 0;
    std::string nvme_path;
    std::string profile_path;         // a machine profile; "": none, and no probe
    uint32_t nvme_request_bytes = 0;  // 0: the library's choice, as is a depth of 0
    uint32_t nvme_queue_depth = 0;
    uint32_t thread_count = 0;
    std::string nvme_driver;  // "": the library's choice
    std::string nvme_driver_options;
    stw_group *group = nullptr;  // outlives the runtime
    uint64_t whole_bytes = 0;    // of the device's, with a group
    uint32_t block_bytes = 0;
};
stw_runtime *open_runtime(const Budgets &budgets);
stw_status try_open_runtime(const Budgets &budgets, stw_runtime **runtime_out);
void close_runtime(stw_runtime *runtime);

stw_tensor *create_tensor(stw_runtime *runtime, const char *name, uint32_t role, uint64_t elements,
                          uint32_t home, uint32_t dtype = STW_F32);
stw_fetch_request request_of(stw_tensor *tensor, uint32_t access, uint32_t tier);
void add_to_optimizer(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient);
// Moved since open, over STW_LINK_*.
uint64_t link_bytes(stw_runtime *runtime, uint32_t link);

}  // namespace bench
