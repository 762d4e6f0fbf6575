// SPDX-License-Identifier: Apache-2.0
// Tables of other releases with the same ABI. The table of an older release ends before some
// operations of this build, the table of a newer one extends beyond them. Each is read as far as
// both know it, and passed to callers at the size of this build with missing operations as NULL, so
// callers need not check the size of a table.
#pragma once

#include <stepwell/driver.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <memory>

namespace stepwell::drivers {

template <class Ops> struct TableLimits;
// Up to `close`, the last mandatory operation: no release of this ABI had a shorter table.
template <> struct TableLimits<stw_storage_ops> {
    static constexpr uint32_t kBytesMin = offsetof(stw_storage_ops, close) + sizeof(void *);
    static constexpr uint64_t kCapabilities = STW_STORAGE_CAN_WRAP | STW_STORAGE_IN_MEMORY |
                                              STW_STORAGE_CAN_SHRINK | STW_STORAGE_CAN_KEEP;
};
template <> struct TableLimits<stw_memory_ops> {
    static constexpr uint32_t kBytesMin = offsetof(stw_memory_ops, close) + sizeof(void *);
    static constexpr uint64_t kCapabilities =
        STW_MEMORY_HOST_ACCESS | STW_MEMORY_CAN_MAP | STW_MEMORY_STREAMS | STW_MEMORY_CAN_SHRINK |
        STW_MEMORY_UPDATES | STW_MEMORY_CAN_BATCH | STW_MEMORY_CAN_ALIAS | STW_MEMORY_MAY_SHARE |
        STW_MEMORY_CAN_FORGET | STW_MEMORY_SAYS_WHY | STW_MEMORY_CAN_PROTECT |
        STW_MEMORY_COPIES_OTHERS;
};
template <> struct TableLimits<stw_collective_ops> {
    static constexpr uint32_t kBytesMin = offsetof(stw_collective_ops, close) + sizeof(void *);
    static constexpr uint64_t kCapabilities =
        STW_COLLECTIVE_HOST | STW_COLLECTIVE_DEVICE | STW_COLLECTIVE_CAN_SPLIT |
        STW_COLLECTIVE_NAMES_MISSING | STW_COLLECTIVE_CAN_ABORT | STW_COLLECTIVE_CAN_REGISTER;
};
// The kinds of driver of the first release.
template <> struct TableLimits<stw_driver_module> {
    static constexpr uint32_t kBytesMin = offsetof(stw_driver_module, memory) + sizeof(void *);
};

// Whether the size ends after a member, and no earlier than in the first release.
template <class Table> bool has_bytes_enough(const Table &table)
{
    return table.struct_size >= TableLimits<Table>::kBytesMin &&
           table.struct_size % alignof(Table) == 0;
}

// For a table that is long enough.
template <class Table> Table in_full(const Table &table)
{
    Table full = {};
    std::memcpy(&full, &table, std::min<size_t>(table.struct_size, sizeof full));
    full.struct_size = sizeof full;
    return full;
}

// The same for the table of a driver. A longer table announces groups that this build cannot call.
template <class Ops> Ops operations_in_full(const Ops &table)
{
    Ops full = in_full(table);
    if (table.struct_size > sizeof full) full.capabilities &= TableLimits<Ops>::kCapabilities;
    return full;
}

// The table itself if it has the size of this build, else a full copy, made once and kept for the
// life of the process, like the module of the table. Any thread. Throws bad_alloc.
template <class Ops> const Ops *keep_in_full(const Ops *table)
{
    struct Kept {
        const Ops *table;
        Ops full;
        const Kept *next;
    };
    static constinit std::atomic<const Kept *> first{nullptr};
    if (table->struct_size == sizeof *table) return table;
    auto made = std::make_unique<Kept>(Kept{table, operations_in_full(*table), nullptr});
    const Kept *seen = first.load();
    do {
        for (const Kept *one = seen; one != nullptr; one = one->next)
            if (one->table == table) return &one->full;
        made->next = seen;
    } while (!first.compare_exchange_weak(seen, made.get()));
    return &made.release()->full;
}

}  // namespace stepwell::drivers
