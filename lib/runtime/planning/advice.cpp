// SPDX-License-Identifier: Apache-2.0
// Advice of another order, in words and numbers. Replays a model of the phase in the calling
// thread with no lock held; lib/schedule knows the orders, and which are worth advising.
#include "lib/runtime/planning/models.h"

#include "lib/runtime/machine/meters.h"
#include "lib/runtime/plan_thread/model.h"
#include "lib/runtime/recording/grounds.h"
#include "lib/runtime/recording/phase.h"
#include "lib/schedule/advice/advice.h"

#include <algorithm>
#include <cstring>

namespace stepwell {
namespace {

using schedule::Advice;
using schedule::AdviceKind;

uint32_t kind_of(AdviceKind kind)
{
    switch (kind) {
    case AdviceKind::kGroup: return STW_PLAN_ADVICE_GROUP_MICRO_BATCHES;
    case AdviceKind::kReverse: return STW_PLAN_ADVICE_REVERSE_UPDATE;
    case AdviceKind::kBoth: break;
    }
    return STW_PLAN_ADVICE_GROUP_MICRO_BATCHES | STW_PLAN_ADVICE_REVERSE_UPDATE;
}

std::string group_text(const Advice &advice)
{
    return format_text("run each layer for all %u micro-batches before the next layer, forward and "
                       "backward (it is one micro-batch after the other now)",
                       advice.micro_batches);
}

std::string reverse_text(const Advice &advice)
{
    return format_text("update the %u parameters in the reverse of their order now, so that the "
                       "optimizer begins with what is still near",
                       advice.visits);
}

std::string seconds_text(uint64_t ns)
{
    return format_text("%.3g s", static_cast<double>(ns) / 1e9);
}

std::string text_of(const Advice &advice)
{
    std::string text;
    if (advice.kind != AdviceKind::kReverse) text = group_text(advice);
    if (advice.kind == AdviceKind::kBoth) text += ", and ";
    if (advice.kind != AdviceKind::kGroup) text += reverse_text(advice);
    const auto moved = [](const schedule::OrderCost &cost) {
        const uint64_t copied = cost.host_to_device_bytes + cost.device_to_host_bytes;
        std::string words = format_text("reads %s from nvme and writes %s",
                                        bytes_text(cost.nvme_read_bytes).c_str(),
                                        bytes_text(cost.nvme_write_bytes).c_str());
        if (copied > 0) words += format_text(", copies %s", bytes_text(copied).c_str());
        return words + format_text(", %s", seconds_text(cost.step_ns).c_str());
    };
    return text + format_text(": a step then %s; now it %s", moved(advice.then).c_str(),
                              moved(advice.now).c_str());
}

void put(const Advice &advice, stw_plan_advice *out)
{
    out->kind = kind_of(advice.kind);
    out->micro_batches = advice.micro_batches;
    out->parameters = advice.visits;
    out->now_nvme_read_bytes = advice.now.nvme_read_bytes;
    out->now_nvme_write_bytes = advice.now.nvme_write_bytes;
    out->now_host_to_device_bytes = advice.now.host_to_device_bytes;
    out->now_device_to_host_bytes = advice.now.device_to_host_bytes;
    out->now_step_ns = advice.now.step_ns;
    out->then_nvme_read_bytes = advice.then.nvme_read_bytes;
    out->then_nvme_write_bytes = advice.then.nvme_write_bytes;
    out->then_host_to_device_bytes = advice.then.host_to_device_bytes;
    out->then_device_to_host_bytes = advice.then.device_to_host_bytes;
    out->then_step_ns = advice.then.step_ns;
    const std::string text = text_of(advice);
    std::memcpy(out->text, text.c_str(), std::min(text.size(), sizeof out->text - 1));
}

}  // namespace

Status StepModels::advise(const stw_phase *phase, stw_plan_advice *advice_out, uint32_t capacity,
                          uint32_t *count_out) const
{
    Result<StepModel> taken = take_model(phase->index);
    if (!taken.ok()) return std::move(taken.status());
    const StepModel &model = taken.value();
    Result<std::vector<Advice>> advised = schedule::advise(model.machine, model.specs, model.step);
    if (!advised.ok()) {
        if (advised.status().code() == STW_ERROR_LIMIT) return std::move(advised.status());
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the last step cannot be replayed, so there is no advice for it: %s",
                             advised.status().sentence());
    }
    const std::vector<Advice> &advices = advised.value();
    for (size_t i = 0; i < std::min<size_t>(capacity, advices.size()); ++i) {
        stw_plan_advice advice = STW_PLAN_ADVICE_INIT;
        put(advices[i], &advice);
        advice.struct_size = std::min<uint32_t>(advice_out->struct_size, sizeof advice);
        char *to = reinterpret_cast<char *>(advice_out) + i * size_t{advice_out->struct_size};
        // struct_size is not written: it is the stride of the caller's array.
        constexpr size_t kSizeBytes = sizeof advice.struct_size;
        std::memcpy(to + kSizeBytes, reinterpret_cast<const char *>(&advice) + kSizeBytes,
                    advice.struct_size - kSizeBytes);
    }
    *count_out = static_cast<uint32_t>(advices.size());
    return {};
}

}  // namespace stepwell
