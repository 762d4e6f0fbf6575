// SPDX-License-Identifier: Apache-2.0
#include "ranks.h"

#include <algorithm>

namespace bench {

namespace {

constexpr uint64_t kStampElements = 262144;  // one is stamped and looked at in so many

float stamp_of(uint64_t tensor, uint64_t element)
{
    return static_cast<float>((tensor * 131 + element / kStampElements + 1) % 65521);
}

stw_tensor_info info_of(stw_tensor *tensor)
{
    stw_tensor_info info{};
    info.struct_size = sizeof info;
    must(stw_tensor_info_get(tensor, &info), "stw_tensor_info_get");
    return info;
}

}  // namespace

stw_tensor *create_part(stw_runtime *runtime, const std::string &name, uint32_t role,
                        uint64_t elements, uint32_t home, uint32_t partition)
{
    stw_policy policy = STW_POLICY_INIT;
    policy.home = home;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.name = name.c_str();
    spec.role = role;
    spec.dtype = STW_F32;
    spec.partition = partition;
    spec.dimensions = 1;
    spec.shape[0] = elements;
    spec.policy = &policy;
    stw_tensor *tensor = nullptr;
    must(stw_tensor_create(runtime, &spec, 1, &tensor), "stw_tensor_create");
    return tensor;
}

stw_view take(stw_runtime *runtime, stw_tensor *tensor, uint32_t access, uint32_t scope)
{
    stw_fetch_request request = request_of(tensor, access, STW_TIER_DEFAULT);
    request.scope = scope;
    stw_view view;
    must(stw_fetch(runtime, nullptr, &request, 1, &view), "stw_fetch");
    return view;
}

void give(stw_view *view, uint32_t flags)
{
    must(stw_release(view, 1, STW_STREAM_HOST, flags), "stw_release");
}

Budgets disk_budgets(const RanksOptions &options, uint64_t device_bytes, uint64_t nvme_bytes)
{
    Budgets budgets;
    budgets.device_bytes = device_bytes;
    budgets.nvme_path = options.directory;
    budgets.nvme_bytes = nvme_bytes + nvme_bytes / 16 + (uint64_t{64} << 20);
    budgets.thread_count = 1;
    if (options.rate > 0) {
        budgets.nvme_driver = "fault";
        budgets.nvme_driver_options =
            "inner=" + options.inner + ";throttle_bytes_per_s=" + std::to_string(options.rate);
    }
    return budgets;
}

Shelf::Shelf(stw_runtime *runtime, const std::string &name, uint64_t count, uint64_t elements,
             uint32_t partition)
    : runtime_(runtime)
{
    for (uint64_t i = 0; i < count; ++i)
        tensors_.push_back(create_part(runtime, name + std::to_string(i), STW_ROLE_PARAM, elements,
                                       STW_TIER_NVME, partition));
}

Shelf::~Shelf()
{
    stw_tensor_destroy(tensors_.data(), static_cast<uint32_t>(tensors_.size()));
}

// Piece by piece, so that the room beside the wholes may be small.
void Shelf::fill(uint64_t count)
{
    for (uint64_t i = 0; i < std::min<uint64_t>(count, tensors_.size()); ++i) {
        const stw_tensor_info info = info_of(tensors_[i]);
        const uint64_t end = info.shard_begin + info.shard_elements;
        for (uint64_t at = info.shard_begin; at < end;) {
            stw_fetch_request request = request_of(tensors_[i], STW_WRITE, STW_TIER_DEFAULT);
            request.scope = STW_SHARD;
            request.element_begin = at;
            request.element_count = std::min(kStampElements - at % kStampElements, end - at);
            stw_view view;
            must(stw_fetch(runtime_, nullptr, &request, 1, &view), "stw_fetch");
            *static_cast<float *>(view.pointer) = stamp_of(i, at);
            give(&view);
            at += request.element_count;
        }
    }
    all_out();
    must(stw_runtime_drain(runtime_, 0), "stw_runtime_drain");
}

void Shelf::all_out()
{
    must(stw_evict(runtime_, nullptr, 0, STW_TIER_DEVICE, 0, 0), "stw_evict");
}

stw_operation *Shelf::ask(uint64_t index)
{
    const stw_fetch_request request = request_of(tensors_[index], STW_READ, STW_TIER_DEFAULT);
    stw_operation *operation = nullptr;
    must(stw_fetch_async(runtime_, nullptr, &request, 1, &operation), "stw_fetch_async");
    return operation;
}

stw_view Shelf::collect(stw_operation *operation)
{
    stw_status status = STW_PENDING;
    while (status == STW_PENDING) status = stw_operation_wait(operation, 1'000'000'000);
    must(status, "stw_operation_wait");
    stw_view view;
    must(stw_fetch_collect(operation, STW_STREAM_HOST, &view, 1), "stw_fetch_collect");
    must(stw_operation_free(operation), "stw_operation_free");
    return view;
}

void Shelf::read(uint64_t ahead, const std::function<void(uint64_t, stw_view &)> &use)
{
    std::deque<stw_operation *> asked;
    for (uint64_t next = 0, done = 0; done < tensors_.size(); ++done) {
        for (; next < tensors_.size() && next < done + ahead; ++next) asked.push_back(ask(next));
        stw_view view = collect(asked.front());
        asked.pop_front();
        use(done, view);
        give(&view);
    }
}

uint64_t Shelf::shard_bytes() const
{
    uint64_t bytes = 0;
    for (stw_tensor *tensor : tensors_) bytes += info_of(tensor).shard_elements * sizeof(float);
    return bytes;
}

void Shelf::check(uint64_t index, const stw_view &view) const
{
    const auto *values = static_cast<const float *>(view.pointer);
    for (uint64_t at = 0; at < view.element_count; at += kStampElements)
        if (values[at] != stamp_of(index, at)) give_up("read other bytes than were written");
}

}  // namespace bench
