// SPDX-License-Identifier: Apache-2.0
// Helpers of the bench programs. One thread.
#include "measure.h"

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>

namespace bench {

double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double median(std::vector<double> values)
{
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    if (values.size() % 2 == 1) return values[middle];
    return (values[middle - 1] + values[middle]) / 2;
}

void give_up(const std::string &sentence)
{
    std::fprintf(stderr, "bench: %s\n", sentence.c_str());
    std::exit(2);
}

void must(stw_status status, const char *call)
{
    if (status >= STW_OK) return;
    give_up(std::string(call) + ": " + stw_status_string(status) + ": " + stw_last_error());
}

Arguments::Arguments(int count, char **words) : words_(words + 1, words + count)
{
    if (words_.size() % 2 != 0) give_up("arguments are --name value pairs");
}

std::string Arguments::text(const std::string &name, const std::string &otherwise) const
{
    for (size_t i = 0; i + 1 < words_.size(); i += 2)
        if (words_[i] == "--" + name) return words_[i + 1];
    return otherwise;
}

uint64_t Arguments::number(const std::string &name, uint64_t otherwise) const
{
    const std::string word = text(name, "");
    if (word.empty()) return otherwise;
    char *end = nullptr;
    uint64_t value = std::strtoull(word.c_str(), &end, 10);
    const std::string suffix = end;
    if (suffix == "k")
        value <<= 10;
    else if (suffix == "m")
        value <<= 20;
    else if (suffix == "g")
        value <<= 30;
    else if (!suffix.empty())
        give_up("--" + name + " " + word + " is not a size");
    return value;
}

namespace {

// With a device that has streams: copies of what is not registered are another thing than what is
// measured, and registering takes locks of the driver.
void wait_registered(stw_runtime *runtime)
{
    stw_tier_stats stats = STW_TIER_STATS_INIT;
    for (;;) {
        if (stw_tier_stats_get(runtime, STW_TIER_HOST, 0, &stats) != STW_OK)
            return;  // no such tier
        if (stats.registering_bytes == 0) break;
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    if (stats.refused_slabs == 0) return;
    give_up("the driver registers " + std::to_string(stats.registered_bytes >> 20) + " MiB of " +
            std::to_string(stats.budget_bytes >> 20) +
            " MiB of the host tier, so that copies are slower than they can be; look at ulimit -l");
}

}  // namespace

stw_runtime *open_runtime(const Budgets &budgets)
{
    stw_runtime *runtime = nullptr;
    must(try_open_runtime(budgets, &runtime), "stw_runtime_open");
    wait_registered(runtime);
    return runtime;
}

stw_status try_open_runtime(const Budgets &budgets, stw_runtime **runtime_out)
{
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.driver = budgets.device_driver.c_str();
    if (!budgets.device_driver_options.empty())
        device.driver_options = budgets.device_driver_options.c_str();
    device.budget_bytes = budgets.device_bytes;
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = budgets.nvme_path.c_str();
    nvme.budget_bytes = budgets.nvme_bytes;
    nvme.request_bytes = budgets.nvme_request_bytes;
    nvme.queue_depth = budgets.nvme_queue_depth;
    nvme.driver = budgets.nvme_driver.empty() ? nullptr : budgets.nvme_driver.c_str();
    nvme.driver_options = budgets.nvme_driver_options.c_str();

    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.devices = &device;
    options.device_count = budgets.device_bytes > 0 ? 1 : 0;
    options.nvme = &nvme;
    options.nvme_count = budgets.nvme_bytes > 0 ? 1 : 0;
    options.host_bytes = budgets.host_bytes;
    options.thread_count = budgets.thread_count;
    options.profile_path = budgets.profile_path.c_str();
    options.group = budgets.group;
    options.whole_bytes = budgets.whole_bytes;
    options.block_bytes = budgets.block_bytes;
    options.log = [](void *, uint32_t, const char *topic, const char *line) {
        std::fprintf(stderr, "bench: %s: %s\n", topic, line);
    };
    return stw_runtime_open(&options, runtime_out);
}

void close_runtime(stw_runtime *runtime)
{
    must(stw_runtime_close(runtime, 0, 0), "stw_runtime_close");
}

stw_tensor *create_tensor(stw_runtime *runtime, const char *name, uint32_t role, uint64_t elements,
                          uint32_t home, uint32_t dtype)
{
    stw_policy policy = STW_POLICY_INIT;
    policy.home = home;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name;
    spec.role = role;
    spec.dtype = dtype;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    spec.policy = home == STW_TIER_DEFAULT ? nullptr : &policy;
    stw_tensor *tensor = nullptr;
    must(stw_tensor_create(runtime, &spec, 1, &tensor), "stw_tensor_create");
    return tensor;
}

stw_fetch_request request_of(stw_tensor *tensor, uint32_t access, uint32_t tier)
{
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensor;
    request.access = access;
    request.tier = tier;
    return request;
}

void add_to_optimizer(stw_optimizer *optimizer, stw_tensor *parameter, stw_tensor *gradient)
{
    stw_optimizer_entry entry = STW_OPTIMIZER_ENTRY_INIT;
    entry.parameter = parameter;
    entry.gradient = gradient;
    must(stw_optimizer_add(optimizer, &entry, 1), "stw_optimizer_add");
}

uint64_t link_bytes(stw_runtime *runtime, uint32_t link)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    must(stw_link_stats_get(runtime, link, 0, &stats), "stw_link_stats_get");
    return stats.bytes;
}

}  // namespace bench
