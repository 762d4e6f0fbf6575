// SPDX-License-Identifier: Apache-2.0
#include "cuda_drive.h"

#include <deque>

namespace bench {
namespace {

constexpr uint32_t kAhead = 6;

}  // namespace

Drive::Drive(const stepwell::gpu::DriverCalls &calls, const DriveSetup &setup)
    : calls_(calls), piece_(setup.piece)
{
    Budgets budgets;
    budgets.device_driver = setup.module;
    budgets.device_bytes = 16 * piece_;
    budgets.host_bytes = 16 * piece_;
    budgets.nvme_path = setup.directory;
    budgets.nvme_bytes = setup.bytes + setup.bytes / 16 + (uint64_t{64} << 20);
    runtime_ = open_runtime(budgets);
    calls_.must(calls_.stream_create(&stream_, 1), "cuStreamCreate");
    const std::vector<float> ones(piece_ / sizeof(float), 1.0F);
    for (uint64_t at = 0; at < setup.bytes; at += piece_) {
        tensors_.push_back(
            create_tensor(runtime_, nullptr, STW_ROLE_OPTIMIZER_STATE, ones.size(), STW_TIER_NVME));
        must(stw_tensor_write(tensors_.back(), ones.data(), nullptr), "stw_tensor_write");
    }
}

Drive::~Drive()
{
    must(stw_stream_forget(runtime_, stream_), "stw_stream_forget");
    calls_.stream_destroy(stream_);
    must(stw_tensor_destroy(tensors_.data(), static_cast<uint32_t>(tensors_.size())),
         "stw_tensor_destroy");
    close_runtime(runtime_);
}

void Drive::everything_out()
{
    for (const uint32_t tier : {STW_TIER_DEVICE, STW_TIER_HOST})
        must(stw_evict(runtime_, nullptr, 0, tier, 0, 0), "stw_evict");
}

double Drive::read(uint32_t tier)
{
    everything_out();
    void *const consumer = tier == STW_TIER_DEVICE ? stream_ : STW_STREAM_HOST;
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    options.stream = consumer;
    std::deque<stw_operation *> asked;
    const double begin = now_s();
    for (size_t next = 0, done = 0; done < tensors_.size(); ++done) {
        for (; next < tensors_.size() && next < done + kAhead; ++next) {
            const auto request = request_of(tensors_[next], STW_READ, tier);
            must(stw_fetch_async(runtime_, &options, &request, 1, &asked.emplace_back()),
                 "stw_fetch_async");
        }
        stw_status status = STW_PENDING;
        while (status == STW_PENDING) status = stw_operation_wait(asked.front(), 1'000'000'000);
        must(status, "stw_operation_wait");
        stw_view view;
        must(stw_fetch_collect(asked.front(), consumer, &view, 1), "stw_fetch_collect");
        must(stw_operation_free(asked.front()), "stw_operation_free");
        asked.pop_front();
        must(stw_release(&view, 1, consumer, 0), "stw_release");
    }
    calls_.must(calls_.stream_synchronize(stream_), "cuStreamSynchronize");
    return now_s() - begin;
}

}  // namespace bench
