// SPDX-License-Identifier: Apache-2.0
// A list of const tables; nothing is registered at start-up. The dynamic loader keeps the list of
// loaded modules.
#include "drivers/registry.h"

#include "drivers/aio/aio.h"
#include "drivers/common/edge.h"
#include "drivers/cpu/cpu.h"
#include "drivers/fault/fault.h"
#include "drivers/host/host.h"
#include "drivers/modules/module.h"
#include "drivers/modules/table.h"
#include "drivers/posix/posix.h"

#include <cinttypes>
#include <iterator>
#include <string>

#include <unistd.h>

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

// Checks the beginning that all kinds of table have, reading no further than the table's size.
// `ops_out`: the table at the size of this build.
template <class Ops>
stw_status read_table(const Ops *table, Ops *ops_out, stw_driver_error *error_out)
{
    if (table == nullptr) return fail(error_out, STW_ERROR_INVALID, {}, "A driver has no table.");
    if (table->abi != STW_DRIVER_ABI)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A driver was built for driver ABI %u, and this build has ABI %d.", table->abi,
                    STW_DRIVER_ABI);
    if (!has_bytes_enough(*table))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "A driver has a table of %u bytes; of driver ABI %d it has at least %u, up to "
                    "the operation 'close', and whole members behind them. Set struct_size to the "
                    "size of the table.",
                    table->struct_size, STW_DRIVER_ABI, TableLimits<Ops>::kBytesMin);
    *ops_out = operations_in_full(*table);
    if (ops_out->name == nullptr || ops_out->name[0] == '\0')
        return fail(error_out, STW_ERROR_INVALID, {}, "A driver has no name.");
    const uint64_t unknown = ops_out->capabilities & ~TableLimits<Ops>::kCapabilities;
    if (unknown != 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces capabilities that this build does not know: "
                    "0x%" PRIx64 ".",
                    ops_out->name, unknown);
    return STW_OK;
}

stw_status missing(const char *name, stw_driver_error *error_out)
{
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' lacks an operation that every driver must have.", name);
}

// The tables of storage and memory have the same group.
template <class Ops>
stw_status check_shrink(const Ops &ops, bool announced, stw_driver_error *error_out)
{
    const int present = (ops.give_back != nullptr) + (ops.take_back != nullptr);
    if (present == (announced ? 2 : 0)) return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' %s CAN_SHRINK and has %d of its 2 operations.", ops.name,
                announced ? "announces" : "does not announce", present);
}

// A group of several operations and its bit: all of them, or none.
stw_status check_group(const stw_memory_ops &ops, uint64_t bit, const char *bit_name, int present,
                       int all, stw_driver_error *error_out)
{
    const bool announced = (ops.capabilities & bit) != 0;
    if (present == (announced ? all : 0)) return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' %s %s and has %d of its %d operations.", ops.name,
                announced ? "announces" : "does not announce", bit_name, present, all);
}

// A group of one operation and its bit.
template <class Ops>
stw_status check_one(const Ops &ops, uint64_t bit, const char *bit_name, bool present,
                     stw_driver_error *error_out)
{
    const bool announced = (ops.capabilities & bit) != 0;
    if (present == announced) return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {}, "The driver '%s' %s %s and %s its operation.",
                ops.name, announced ? "announces" : "does not announce", bit_name,
                present ? "has" : "lacks");
}

// The differences between the kinds of driver.
template <class Ops> struct Kind;
template <> struct Kind<stw_storage_ops> {
    static constexpr const char *kName = "storage";
    static constexpr auto &kBuiltIn = kStorageDrivers;
    static const stw_storage_ops *of(const Module &module) { return module.storage(); }
};
template <> struct Kind<stw_memory_ops> {
    static constexpr const char *kName = "memory";
    static constexpr auto &kBuiltIn = kMemoryDrivers;
    static const stw_memory_ops *of(const Module &module) { return module.memory(); }
};

template <> struct Kind<stw_collective_ops> {
    static constexpr const char *kName = "collective";
    static constexpr std::span<const stw_collective_ops *const> kBuiltIn = {};
    static const stw_collective_ops *of(const Module &module) { return module.collective(); }
};

// A driver with another name than the requested one would have that other name in logs and reports.
template <class Ops>
stw_status check_name(const Ops *ops, const std::string &name, const std::string &path,
                      stw_driver_error *error_out)
{
    if (storage_driver(ops->name) != nullptr || memory_driver(ops->name) != nullptr)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The module '%s' calls its driver '%s', which is one that is built in; give it "
                    "another name.",
                    path.c_str(), ops->name);
    if (!is_module_name(ops->name) || (name != ops->name && name != path))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The module '%s' calls its driver '%.64s'; a driver has the name of its file, "
                    "libstepwell-<name>.so: at most 31 letters, digits, '-' and '_'.",
                    path.c_str(), ops->name);
    return STW_OK;
}

// `name` as requested: the driver's name or the path itself.
template <class Ops>
stw_status load_driver(const std::string &name, const std::string &path, const Ops **ops_out,
                       stw_driver_error *error_out)
{
    Module module;
    if (const stw_status status = Module::load(path, &module, error_out)) return status;
    const Ops *ops = Kind<Ops>::of(module);
    if (ops == nullptr)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {}, "The module '%s' has no %s driver.",
                    path.c_str(), Kind<Ops>::kName);
    if (const stw_status status = check(ops, error_out)) return status;
    if (const stw_status status = check_name(ops, name, path, error_out)) return status;
    *ops_out = keep_in_full(ops);
    module.keep();
    return STW_OK;
}

template <class Ops>
stw_status unknown_name(const char *name, const std::string &path, stw_driver_error *error_out)
{
    std::string known;
    for (const Ops *ops : Kind<Ops>::kBuiltIn)
        known += (known.empty() ? "built in are \"" : ", \"") + std::string(ops->name) + "\"";
    return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                "there is no %s driver '%.64s' in this build and no module '%s'; %s",
                Kind<Ops>::kName, name, path.c_str(),
                known.empty() ? "none is built in" : known.c_str());
}

template <class Ops>
stw_status find_any(const char *name, const Ops **ops_out, stw_driver_error *error_out,
                    const char *directory)
{
    for (const Ops *ops : Kind<Ops>::kBuiltIn) {
        if (std::strcmp(ops->name, name) != 0) continue;
        if (const stw_status status = check(ops, error_out)) return status;
        *ops_out = ops;
        return STW_OK;
    }
    return guard_open(error_out, [&] {
        if (std::strchr(name, '/') != nullptr) return load_driver(name, name, ops_out, error_out);
        const std::string path =
            module_path(directory != nullptr ? directory : module_directory(), name);
        const stw_status status = is_module_name(name) ? load_driver(name, path, ops_out, error_out)
                                                       : stw_status{STW_ERROR_NOT_FOUND};
        return status == STW_ERROR_NOT_FOUND ? unknown_name<Ops>(name, path, error_out) : status;
    });
}

stw_status check_protect(const stw_memory_ops &ops, stw_driver_error *error_out)
{
    if (const stw_status status = check_one(ops, STW_MEMORY_CAN_PROTECT, "STW_MEMORY_CAN_PROTECT",
                                            ops.map_as != nullptr, error_out))
        return status;
    constexpr uint64_t kProtects = STW_MEMORY_CAN_MAP | STW_MEMORY_HOST_ACCESS;
    if (ops.map_as != nullptr && (ops.capabilities & kProtects) != kProtects)
        return fail(
            error_out, STW_ERROR_INVALID, {},
            "The driver '%s' announces STW_MEMORY_CAN_PROTECT without STW_MEMORY_CAN_MAP "
            "and STW_MEMORY_HOST_ACCESS: what the CPU may do at an address is limited where "
            "it can be there.",
            ops.name);
    return STW_OK;
}

}  // namespace

stw_status find_driver(const char *name, const stw_storage_ops **ops_out,
                       stw_driver_error *error_out, const char *directory)
{
    return find_any(name, ops_out, error_out, directory);
}

stw_status find_driver(const char *name, const stw_memory_ops **ops_out,
                       stw_driver_error *error_out, const char *directory)
{
    return find_any(name, ops_out, error_out, directory);
}

stw_status find_driver(const char *name, const stw_collective_ops **ops_out,
                       stw_driver_error *error_out, const char *directory)
{
    return find_any(name, ops_out, error_out, directory);
}

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

stw_status check(const stw_storage_ops *table, stw_driver_error *error_out)
{
    stw_storage_ops ops = {};
    if (const stw_status status = read_table(table, &ops, error_out)) return status;
    const bool complete = ops.open != nullptr && ops.info != nullptr && ops.submit != nullptr &&
                          ops.poll != nullptr && ops.wake != nullptr && ops.flush != nullptr &&
                          ops.close != nullptr;
    if (!complete) return missing(ops.name, error_out);
    return check_shrink(ops, (ops.capabilities & STW_STORAGE_CAN_SHRINK) != 0, error_out);
}

stw_status check(const stw_memory_ops *table, stw_driver_error *error_out)
{
    stw_memory_ops ops = {};
    if (const stw_status status = read_table(table, &ops, error_out)) return status;
    if (ops.open == nullptr || ops.info == nullptr || ops.copy == nullptr || ops.zero == nullptr ||
        ops.close == nullptr)
        return missing(ops.name, error_out);
    const int maps = (ops.reserve_address != nullptr) + (ops.release_address != nullptr) +
                     (ops.map != nullptr) + (ops.home != nullptr);
    if (const stw_status status =
            check_group(ops, STW_MEMORY_CAN_MAP, "STW_MEMORY_CAN_MAP", maps, 4, error_out))
        return status;
    const int streams = (ops.check_stream != nullptr) + (ops.mark != nullptr) +
                        (ops.copies_after != nullptr) + (ops.stream_after != nullptr) +
                        (ops.pin_host != nullptr) + (ops.unpin_host != nullptr) +
                        (ops.copy_start != nullptr) + (ops.wait != nullptr);
    if (const stw_status status =
            check_group(ops, STW_MEMORY_STREAMS, "STW_MEMORY_STREAMS", streams, 8, error_out))
        return status;
    const int updates = (ops.update_stream != nullptr) + (ops.update_start != nullptr) +
                        (ops.scan_start != nullptr) + (ops.scan_end != nullptr) +
                        (ops.accumulate_start != nullptr) + (ops.zero_start != nullptr);
    if (const stw_status status =
            check_group(ops, STW_MEMORY_UPDATES, "STW_MEMORY_UPDATES", updates, 6, error_out))
        return status;
    if (updates > 0 && streams == 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces STW_MEMORY_UPDATES without STW_MEMORY_STREAMS, by "
                    "which they are ordered.",
                    ops.name);
    if (const stw_status status = check_one(ops, STW_MEMORY_CAN_BATCH, "STW_MEMORY_CAN_BATCH",
                                            ops.copies_start != nullptr, error_out))
        return status;
    if ((ops.capabilities & STW_MEMORY_CAN_BATCH) != 0 && streams == 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces STW_MEMORY_CAN_BATCH and not STW_MEMORY_STREAMS, "
                    "whose marks it needs.",
                    ops.name);
    const int aliases = (ops.reserve_alias != nullptr) + (ops.map_alias != nullptr) +
                        (ops.release_alias != nullptr);
    if (const stw_status status =
            check_group(ops, STW_MEMORY_CAN_ALIAS, "STW_MEMORY_CAN_ALIAS", aliases, 3, error_out))
        return status;
    if (const stw_status status = check_one(ops, STW_MEMORY_MAY_SHARE, "STW_MEMORY_MAY_SHARE",
                                            ops.shares_host != nullptr, error_out))
        return status;
    if ((ops.capabilities & STW_MEMORY_MAY_SHARE) != 0 && streams == 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces STW_MEMORY_MAY_SHARE and not STW_MEMORY_STREAMS; "
                    "memory without streams is the CPU's, or it is not.",
                    ops.name);
    if (const stw_status status = check_one(ops, STW_MEMORY_CAN_FORGET, "STW_MEMORY_CAN_FORGET",
                                            ops.forget_stream != nullptr, error_out))
        return status;
    const int says = (ops.why != nullptr) + (ops.next_failure != nullptr);
    if (const stw_status status =
            check_group(ops, STW_MEMORY_SAYS_WHY, "STW_MEMORY_SAYS_WHY", says, 2, error_out))
        return status;
    if (const stw_status status =
            check_one(ops, STW_MEMORY_COPIES_OTHERS, "STW_MEMORY_COPIES_OTHERS",
                      ops.check_memory != nullptr, error_out))
        return status;
    if (ops.check_memory != nullptr && streams == 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces STW_MEMORY_COPIES_OTHERS and not "
                    "STW_MEMORY_STREAMS, and the copies are ordered by its marks.",
                    ops.name);
    if (const stw_status status = check_protect(ops, error_out)) return status;
    return check_shrink(ops, (ops.capabilities & STW_MEMORY_CAN_SHRINK) != 0, error_out);
}

stw_status check(const stw_collective_ops *table, stw_driver_error *error_out)
{
    stw_collective_ops ops = {};
    if (const stw_status status = read_table(table, &ops, error_out)) return status;
    const bool complete = ops.open != nullptr && ops.info != nullptr && ops.exchange != nullptr &&
                          ops.all_gather != nullptr && ops.reduce_scatter != nullptr &&
                          ops.all_reduce != nullptr && ops.poll != nullptr && ops.close != nullptr;
    if (!complete) return missing(ops.name, error_out);
    if ((ops.capabilities & (STW_COLLECTIVE_HOST | STW_COLLECTIVE_DEVICE)) == 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver '%s' announces neither STW_COLLECTIVE_HOST nor "
                    "STW_COLLECTIVE_DEVICE, so it takes no memory at all.",
                    ops.name);
    if (const stw_status status =
            check_one(ops, STW_COLLECTIVE_CAN_SPLIT, "STW_COLLECTIVE_CAN_SPLIT",
                      ops.split != nullptr, error_out))
        return status;
    if (const stw_status status =
            check_one(ops, STW_COLLECTIVE_NAMES_MISSING, "STW_COLLECTIVE_NAMES_MISSING",
                      ops.missing != nullptr, error_out))
        return status;
    if (const stw_status status =
            check_one(ops, STW_COLLECTIVE_CAN_ABORT, "STW_COLLECTIVE_CAN_ABORT",
                      ops.abort != nullptr, error_out))
        return status;
    const int registers = (ops.register_memory != nullptr) + (ops.unregister_memory != nullptr);
    const bool announced = (ops.capabilities & STW_COLLECTIVE_CAN_REGISTER) != 0;
    if (registers == (announced ? 2 : 0)) return STW_OK;
    return fail(error_out, STW_ERROR_INVALID, {},
                "The driver '%s' %s STW_COLLECTIVE_CAN_REGISTER and has %d of its 2 operations.",
                ops.name, announced ? "announces" : "does not announce", registers);
}

}  // namespace stepwell::drivers
