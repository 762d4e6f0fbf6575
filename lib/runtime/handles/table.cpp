// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/handles/table.h"

#include "lib/support/growth.h"

#include <utility>

namespace stepwell {

void HandleTable::reserve(size_t ids)
{
    grow_to_hold(by_id_, ids);
}

uint64_t HandleTable::growth_bytes(size_t ids) const
{
    return stepwell::growth_bytes(by_id_, ids);
}

void HandleTable::insert(stw_tensor *tensor)
{
    TensorNotes &notes = tensor->notes;
    notes.serial = ++made_;
    notes.previous = last_;
    (last_ ? last_->notes.next : first_) = tensor;
    last_ = tensor;
    if (tensor->id >= by_id_.size()) by_id_.resize(tensor->id + 1, nullptr);
    by_id_[tensor->id] = tensor;
    ++count_;
}

void HandleTable::erase(stw_tensor *tensor)
{
    stw_tensor *before = tensor->notes.previous;
    stw_tensor *after = tensor->notes.next;
    (before ? before->notes.next : first_) = after;
    (after ? after->notes.previous : last_) = before;
    by_id_[tensor->id] = nullptr;
    --count_;
}

stw_tensor *HandleTable::clear()
{
    last_ = nullptr;
    return std::exchange(first_, nullptr);
}

}  // namespace stepwell
