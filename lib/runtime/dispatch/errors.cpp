// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/dispatch/errors.h"

#include "lib/residency/core.h"
#include "lib/runtime/dispatch/dispatcher.h"
#include "lib/runtime/handles/table.h"

#include <utility>

namespace stepwell {

void BackgroundErrors::add(residency::TensorId tensor, const Status &status)
{
    Status named = status;
    if (const stw_tensor *handle = handles_.at(tensor)) {
        ErrorDetail &detail = named.mutable_detail();
        detail.tensor = handle->name;
        detail.sentence = format_text("work in the background on %s failed: %s",
                                      tensor_text(detail.tensor).c_str(), detail.sentence.c_str());
    }
    dispatch_.say(STW_LOG_ERROR, "background", named.sentence());
    if (first_.ok()) first_ = named;
    by_tensor_.try_emplace(tensor, std::move(named));
    count_.fetch_add(1, std::memory_order_relaxed);
}

const Status *BackgroundErrors::find(residency::TensorId tensor) const
{
    const auto found = by_tensor_.find(tensor);
    return found == by_tensor_.end() ? nullptr : &found->second;
}

Status BackgroundErrors::of(residency::TensorId tensor)
{
    if (!any()) return {};
    MutexLock lock(dispatch_.mutex());
    const Status *found = find(tensor);
    return found ? *found : Status();
}

Status BackgroundErrors::first()
{
    MutexLock lock(dispatch_.mutex());
    return first_;
}

void BackgroundErrors::clear()
{
    // Who waits for room that failed writes took gets on.
    dispatch_.act([this](residency::Core &core, residency::Commands &out)
                      STW_REQUIRES(runtime_lock) {
                          first_ = Status();
                          by_tensor_.clear();
                          count_.store(0, std::memory_order_relaxed);
                          core.forgive(out);
                      });
}

}  // namespace stepwell
