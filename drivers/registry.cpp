// SPDX-License-Identifier: Apache-2.0
// A list of const tables; nothing is registered at start-up.
#include "drivers/registry.h"

#include "drivers/aio/aio.h"
#include "drivers/common/edge.h"
#include "drivers/cpu/cpu.h"
#include "drivers/fault/fault.h"
#include "drivers/host/host.h"
#include "drivers/posix/posix.h"

#include <cinttypes>
#include <iterator>

namespace stepwell::drivers {

namespace {

constexpr const stw_storage_ops *kStorageDrivers[] = {&kAioStorage, &kPosixStorage, &kFaultStorage};
constexpr const stw_memory_ops *kMemoryDrivers[] = {&kCpuMemory, &kCpuDiscreteMemory, &kHostMemory};

template <class Ops> const Ops *find(std::span<const Ops *const> drivers, const char *name)
{
    if (name == nullptr) return nullptr;
    for (const Ops *ops : drivers)
        if (std::strcmp(ops->name, name) == 0) return check(ops, nullptr) == STW_OK ? ops : nullptr;
    return nullptr;
}

// What both kinds of table begin with. A table of another size has operations in other places.
template <class Ops>
stw_status check_head(const Ops *ops, uint64_t known, stw_driver_error *error_out)
{
    if (ops == nullptr) return fail(error_out, STW_ERROR_INVALID, {}, "A driver has no table.");
    if (ops->struct_size < sizeof(Ops) || ops->abi != STW_DRIVER_ABI)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A driver was built for driver ABI %u with a table of %u bytes; this build has "
                    "ABI %d and %zu bytes.",
                    ops->abi, ops->struct_size, STW_DRIVER_ABI, sizeof(Ops));
    if (ops->name == nullptr || ops->name[0] == '\0')
        return fail(error_out, STW_ERROR_INVALID, {}, "A driver has no name.");
    if ((ops->capabilities & ~known) != 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces capabilities that this build does not know: "
                    "0x%" PRIx64 ".",
                    ops->name, ops->capabilities & ~known);
    return STW_OK;
}

stw_status missing(const char *name, stw_driver_error *error_out)
{
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' lacks an operation that every driver must have.", name);
}

// The group is the same in both kinds of table.
template <class Ops>
stw_status check_shrink(const Ops *ops, bool announced, stw_driver_error *error_out)
{
    const int present = (ops->give_back != nullptr) + (ops->take_back != nullptr);
    if (present == (announced ? 2 : 0)) return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' %s CAN_SHRINK and has %d of its 2 operations.", ops->name,
                announced ? "announces" : "does not announce", present);
}

}  // namespace

std::span<const stw_storage_ops *const> storage_drivers()
{
    return kStorageDrivers;
}

std::span<const stw_memory_ops *const> memory_drivers()
{
    return kMemoryDrivers;
}

const stw_storage_ops *storage_driver(const char *name)
{
    return find(storage_drivers(), name);
}

const stw_memory_ops *memory_driver(const char *name)
{
    return find(memory_drivers(), name);
}

stw_status check(const stw_storage_ops *ops, stw_driver_error *error_out)
{
    constexpr uint64_t kKnown = STW_STORAGE_CAN_WRAP | STW_STORAGE_CAN_SHRINK;
    if (const stw_status status = check_head(ops, kKnown, error_out)) return status;
    const bool complete = ops->open != nullptr && ops->info != nullptr && ops->submit != nullptr &&
                          ops->poll != nullptr && ops->wake != nullptr && ops->flush != nullptr &&
                          ops->close != nullptr;
    if (!complete) return missing(ops->name, error_out);
    return check_shrink(ops, (ops->capabilities & STW_STORAGE_CAN_SHRINK) != 0, error_out);
}

stw_status check(const stw_memory_ops *ops, stw_driver_error *error_out)
{
    constexpr uint64_t kKnown =
        STW_MEMORY_HOST_ACCESS | STW_MEMORY_CAN_MAP | STW_MEMORY_STREAMS | STW_MEMORY_CAN_SHRINK;
    if (const stw_status status = check_head(ops, kKnown, error_out)) return status;
    if (ops->open == nullptr || ops->info == nullptr || ops->copy == nullptr ||
        ops->zero == nullptr || ops->close == nullptr)
        return missing(ops->name, error_out);
    const int present = (ops->reserve_address != nullptr) + (ops->release_address != nullptr) +
                        (ops->map != nullptr) + (ops->home != nullptr);
    const bool announced = (ops->capabilities & STW_MEMORY_CAN_MAP) != 0;
    if (present == (announced ? 4 : 0))
        return check_shrink(ops, (ops->capabilities & STW_MEMORY_CAN_SHRINK) != 0, error_out);
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' %s STW_MEMORY_CAN_MAP and has %d of its 4 operations.", ops->name,
                announced ? "announces" : "does not announce", present);
}

}  // namespace stepwell::drivers
