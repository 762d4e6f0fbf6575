// SPDX-License-Identifier: Apache-2.0
#include "tier.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <deque>

namespace stepwell::cli {

namespace {

constexpr uint64_t kSecondNs = 1'000'000'000;
constexpr uint64_t kTierBlockBytes = 2 << 20;
constexpr uint64_t kAhead = 12;  // tensors asked for, of 20 that the host tier holds

uint64_t link_bytes(stw_runtime *runtime, uint32_t link)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    must(stw_link_stats_get(runtime, link, 0, &stats));
    return stats.bytes;
}

}  // namespace

void must(stw_status status)
{
    if (status < STW_OK) throw Failed(stw_last_error());
}

double now_s()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

double median(std::vector<double> values)
{
    if (values.empty()) return 0;
    std::sort(values.begin(), values.end());
    const size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

Tier::Tier(const TierOptions &wanted)
{
    const uint64_t tensors = std::max<uint64_t>(1, wanted.bytes / kTensorBytes);
    std::vector<stw_nvme_options> nvme;
    // Blocks go to the faster drive first: each has room for more than its share.
    const uint64_t room = tensors * kTensorBytes + 8 * kTierBlockBytes;
    for (const std::string &directory : wanted.directories) {
        stw_nvme_options one = STW_NVME_OPTIONS_INIT;
        one.path = directory.c_str();
        one.budget_bytes = room;
        one.driver = wanted.setting.driver.empty() ? nullptr : wanted.setting.driver.c_str();
        one.request_bytes = wanted.setting.request_bytes;
        one.queue_depth = wanted.setting.queue_depth;
        nvme.push_back(one);
    }
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.name = "stepwell";
    options.nvme = nvme.data();
    options.nvme_count = static_cast<uint32_t>(nvme.size());
    options.host_bytes = kHostBytes;
    options.thread_count = 1;
    options.profile_path = wanted.usual_profile ? nullptr : wanted.profile_path.c_str();
    must(stw_runtime_open(&options, &runtime_));
    stw_policy policy = STW_POLICY_INIT;
    policy.home = STW_TIER_NVME;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.role = STW_ROLE_OPTIMIZER_STATE;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = kTensorBytes / sizeof(float);
    spec.policy = &policy;
    tensors_.resize(tensors);
    for (stw_tensor *&tensor : tensors_) {
        if (stw_tensor_create(runtime_, &spec, 1, &tensor) >= STW_OK) continue;
        const std::string why = stw_last_error();
        close();
        throw Failed(why);
    }
}

Tier::~Tier()
{
    close();
}

void Tier::close()
{
    if (runtime_) stw_runtime_close(runtime_, STW_CLOSE_DEFERRED, 10 * kSecondNs);
    runtime_ = nullptr;
}

Pass Tier::write(double seconds_most)
{
    return stream(STW_WRITE, seconds_most);
}

Pass Tier::read(double seconds_most)
{
    return stream(STW_READ, seconds_most);
}

Pass Tier::update(double seconds_most)
{
    return stream(STW_READ_WRITE, seconds_most);
}

void Tier::all_out()
{
    must(stw_evict(runtime_, nullptr, 0, STW_TIER_HOST, 0, 0));
}

Pass Tier::stream(uint32_t access, double seconds_most)
{
    const uint64_t count = access == STW_WRITE ? tensors_.size() : written_;
    all_out();
    const uint64_t read_before = link_bytes(runtime_, STW_LINK_NVME_TO_HOST);
    const uint64_t written_before = link_bytes(runtime_, STW_LINK_HOST_TO_NVME);
    const double begin = now_s();
    std::deque<stw_operation *> asked;
    uint64_t next = 0;
    for (uint64_t done = 0; done < count; ++done) {
        const bool goes_on = done == 0 || now_s() - begin < seconds_most;
        for (; goes_on && next < count && next < done + kAhead; ++next)
            asked.push_back(ask(next, access));
        if (asked.empty()) break;
        stw_view view = take(asked.front());
        asked.pop_front();
        if (access != STW_READ) std::memcpy(view.pointer, &done, sizeof done);
        must(stw_release(&view, 1, STW_STREAM_HOST, 0));
    }
    if (access != STW_READ) all_out();
    if (access == STW_WRITE) written_ = std::max(written_, next);
    Pass pass;
    pass.seconds = now_s() - begin;
    pass.read_bytes = link_bytes(runtime_, STW_LINK_NVME_TO_HOST) - read_before;
    pass.written_bytes = link_bytes(runtime_, STW_LINK_HOST_TO_NVME) - written_before;
    return pass;
}

stw_operation *Tier::ask(uint64_t index, uint32_t access)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = tensors_[index];
    request.access = access;
    request.tier = STW_TIER_HOST;
    stw_operation *operation = nullptr;
    must(stw_fetch_async(runtime_, &options, &request, 1, &operation));
    return operation;
}

stw_view Tier::take(stw_operation *operation)
{
    stw_view view{};
    stw_status status = STW_PENDING;
    while (status == STW_PENDING) status = stw_operation_wait(operation, kSecondNs);
    must(status);
    must(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1));
    must(stw_operation_free(operation));
    return view;
}

}  // namespace stepwell::cli
