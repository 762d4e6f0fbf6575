// SPDX-License-Identifier: Apache-2.0
// The end of a stress run: all is quiet, nothing is left in the tiers, and what was committed is
// there again in another runtime.
#include "world.h"

#include <algorithm>
#include <cinttypes>
#include <unistd.h>

namespace stress {

// What the tensor has, when all is quiet.
void World::keep(stw_tensor *tensor, const std::string &name, uint64_t elements, uint32_t role,
                 uint32_t flags)
{
    Kept one{name, elements, role, flags | STW_TENSOR_DURABLE, {}};
    one.values.resize(elements);
    const stw_status status = stw_tensor_read(tensor, one.values.data(), nullptr);
    if (status == STW_ERROR_EMPTY) one.values.clear();
    if (status < 0 && status != STW_ERROR_EMPTY) fail("read: %s", stw_last_error());
    kept_.push_back(std::move(one));
}

void World::keep_owned(const Owned &owned, uint32_t role)
{
    const uint32_t flags = owned.address ? STW_TENSOR_OWN_BLOCKS : 0;
    keep(owned.tensor, owned.name, owned.elements, role, flags);
    const std::vector<float> &values = kept_.back().values;
    const auto expected = static_cast<float>(owned.floor.load());
    const auto differs = [expected](float value) { return value != expected; };
    if (std::any_of(values.begin(), values.end(), differs))
        fail("'%s' is not %g at the end", owned.name.c_str(), static_cast<double>(expected));
}

void World::keep_board(const Board &board)
{
    keep(board.tensor, board.name, board.elements, STW_ROLE_OTHER, STW_TENSOR_OWN_BLOCKS);
    const std::vector<float> &values = kept_.back().values;
    for (uint32_t part = 0; part < actors && !values.empty(); ++part) {
        const auto expected = static_cast<float>(board.parts[part].floor.load());
        for (uint64_t i = part_begin(board, part); i < part_begin(board, part + 1); ++i) {
            if (values[i] == expected) continue;
            fail("'%s'[%" PRIu64 "] of actor %u is %g at the end, not %g", board.name.c_str(), i,
                 part, static_cast<double>(values[i]), static_cast<double>(expected));
        }
    }
}

void World::commit_last()
{
    for (Board *board : boards) keep_board(*board);
    for (const Estate &estate : estates) {
        for (size_t i = 0; i < estate.plain.size(); ++i)
            keep_owned(*estate.plain[i], i == 0 ? STW_ROLE_CACHE : STW_ROLE_OTHER);
        for (const Owned *parameter : estate.parameters) keep_owned(*parameter, STW_ROLE_PARAM);
    }
    if (stw_commit(runtime, nullptr, nullptr) < 0) fail("the last commit: %s", stw_last_error());
}

// In a runtime of its own.
void World::check_generation()
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory_.c_str();
    nvme.budget_bytes = uint64_t{setup.nvme_blocks} * kBlockBytes;
    if (open_with(&nvme, STW_RUNTIME_RESUME) < 0) fail("resume: %s", stw_last_error());
    std::vector<float> values;
    for (const Kept &one : kept_) {
        stw_tensor *tensor = make_tensor(one.name, one.elements, one.role, one.flags);
        values.assign(one.elements, 0);
        const stw_status status = stw_tensor_read(tensor, values.data(), nullptr);
        if (status == STW_ERROR_EMPTY && one.values.empty()) continue;
        if (status < 0) fail("read of what was committed: %s", stw_last_error());
        if (values != one.values) fail("'%s' is not what was committed", one.name.c_str());
    }
    if (stw_runtime_close(runtime, 0, kWaitNs) < 0) fail("close: %s", stw_last_error());
    for (const char *end : {".0-of-1.stepwell", ".0-of-1.generations"})
        unlink((directory_ + "/" + store_ + end).c_str());
}

void World::finish()
{
    stw_status status = stw_runtime_drain(runtime, kWaitNs);
    if (status < 0 && !is_fault(status)) fail("drain: %s", stw_last_error());
    clear_errors();
    if (setup.store) commit_last();
    destroy_all();
    status = stw_runtime_drain(runtime, kWaitNs);
    if (status < 0 && !is_fault(status)) fail("drain at the end: %s", stw_last_error());
    check_budgets();
    check_empty();
    clear_errors();
    if (stw_runtime_close(runtime, 0, kWaitNs) < 0) fail("close: %s", stw_last_error());
    if (setup.store) check_generation();
    {
        std::lock_guard<std::mutex> lock(watch_mutex_);
        watch_ends_ = true;
    }
    watch_wakes_.notify_all();
    watchdog_.join();
}

void World::destroy_all()
{
    std::vector<stw_tensor *> tensors;
    for (Estate &estate : estates) {
        if (!estate.phase) continue;
        if (stw_phase_destroy(estate.phase) < 0) fail("phase: %s", stw_last_error());
        if (stw_optimizer_destroy(estate.optimizer) < 0) fail("optimizer: %s", stw_last_error());
        for (Owned *owned : estate.plain) tensors.push_back(owned->tensor);
        for (Owned *owned : estate.parameters) tensors.push_back(owned->tensor);
        for (stw_tensor *gradient : estate.gradients) tensors.push_back(gradient);
    }
    for (Shared *one : shared) tensors.push_back(one->tensor);
    for (Owned *sum : sums) tensors.push_back(sum->tensor);
    for (Board *board : boards) tensors.push_back(board->tensor);
    if (stw_tensor_destroy(tensors.data(), static_cast<uint32_t>(tensors.size())) < 0)
        fail("destroy: %s", stw_last_error());
}

void World::check_empty()
{
    const uint32_t tiers[] = {STW_TIER_DEVICE, STW_TIER_HOST, STW_TIER_NVME};
    for (const uint32_t tier : tiers) {
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        if (stw_tier_stats_get(runtime, tier, 0, &stats) < 0) continue;
        const bool keeps = setup.store && tier == STW_TIER_NVME;  // generations
        if ((stats.used_bytes != stats.staging_bytes && !keeps) || stats.open_views != 0 ||
            stats.pinned_bytes != 0 || stats.tensors != 0) {
            fail("at the end tier %u has %" PRIu64 " bytes (staging %" PRIu64
                 "), %u views, %" PRIu64 " pinned bytes, %" PRIu64 " tensors",
                 tier, stats.used_bytes, stats.staging_bytes, stats.open_views, stats.pinned_bytes,
                 stats.tensors);
        }
    }
}

}  // namespace stress
