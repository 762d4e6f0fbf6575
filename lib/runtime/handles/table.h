// SPDX-License-Identifier: Apache-2.0
// The handles of all tensors of a runtime, by id and in the order of creation.
#pragma once

#include "lib/runtime/handles/handles.h"
#include "lib/runtime/handles/lock.h"

#include <cstdint>
#include <vector>

namespace stepwell {

class HandleTable {
public:
    // Null: no such tensor, or one of the library's own.
    [[nodiscard]] stw_tensor *at(residency::TensorId id) const STW_REQUIRES(runtime_lock)
    {
        return id < by_id_.size() ? by_id_[id] : nullptr;
    }
    // The oldest; the next one is in its notes.
    [[nodiscard]] stw_tensor *first() const STW_REQUIRES(runtime_lock) { return first_; }
    [[nodiscard]] uint64_t count() const STW_REQUIRES(runtime_lock) { return count_; }
    [[nodiscard]] size_t ids() const STW_REQUIRES(runtime_lock) { return by_id_.size(); }

    // After this insert() allocates nothing.
    void reserve(size_t ids) STW_REQUIRES(runtime_lock);
    void insert(stw_tensor *tensor) STW_REQUIRES(runtime_lock);
    void erase(stw_tensor *tensor) STW_REQUIRES(runtime_lock);
    // At close. Returns the oldest.
    stw_tensor *clear() STW_REQUIRES(runtime_lock);

    [[nodiscard]] uint64_t metadata_bytes() const STW_REQUIRES(runtime_lock)
    {
        return by_id_.capacity() * sizeof(stw_tensor *);
    }
    // Bytes by which the table grows to hold that many ids.
    [[nodiscard]] uint64_t growth_bytes(size_t ids) const STW_REQUIRES(runtime_lock);

private:
    std::vector<stw_tensor *> by_id_ STW_GUARDED_BY(runtime_lock);
    stw_tensor *first_ STW_GUARDED_BY(runtime_lock) = nullptr;
    stw_tensor *last_ STW_GUARDED_BY(runtime_lock) = nullptr;
    uint64_t made_ STW_GUARDED_BY(runtime_lock) = 0;
    uint64_t count_ STW_GUARDED_BY(runtime_lock) = 0;
};

}  // namespace stepwell
