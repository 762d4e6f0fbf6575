// SPDX-License-Identifier: Apache-2.0
// First fit over an ordered map of holes.
#include "drivers/cpu/address_space.h"

namespace stepwell::drivers {

AddressSpace::AddressSpace(uint64_t bytes)
{
    if (bytes > 0) free_.emplace(0, bytes);
}

std::optional<uint64_t> AddressSpace::reserve(uint64_t bytes)
{
    for (auto hole = free_.begin(); hole != free_.end(); ++hole) {
        if (hole->second < bytes) continue;
        const uint64_t offset = hole->first;
        reserved_.emplace(offset, bytes);  // first: if it throws, nothing has changed
        if (hole->second == bytes) {
            free_.erase(hole);
        } else {
            auto node = free_.extract(hole);  // moves the node: no memory is asked for
            node.key() = offset + bytes;
            node.mapped() -= bytes;
            free_.insert(std::move(node));
        }
        return offset;
    }
    return std::nullopt;
}

bool AddressSpace::release(uint64_t offset, uint64_t bytes)
{
    if (!has(offset, bytes)) return false;
    auto node = reserved_.extract(offset);  // becomes the hole
    auto after = free_.lower_bound(offset);
    if (after != free_.end() && after->first == offset + bytes) {
        node.mapped() += after->second;
        after = free_.erase(after);
    }
    if (after != free_.begin()) {
        const auto before = std::prev(after);
        if (before->first + before->second == offset) {
            before->second += node.mapped();
            return true;
        }
    }
    free_.insert(std::move(node));
    return true;
}

bool AddressSpace::has(uint64_t offset, uint64_t bytes) const
{
    const auto found = reserved_.find(offset);
    return found != reserved_.end() && found->second == bytes;
}

bool AddressSpace::is_reserved(uint64_t offset, uint64_t bytes) const
{
    auto after = reserved_.upper_bound(offset);
    if (after == reserved_.begin()) return false;
    const auto owner = std::prev(after);
    return offset + bytes <= owner->first + owner->second;
}

}  // namespace stepwell::drivers
