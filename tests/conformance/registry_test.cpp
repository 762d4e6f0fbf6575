// SPDX-License-Identifier: Apache-2.0
// The list of drivers, and the check that a table must pass.
#include "tests/conformance/support.h"

#include <cstddef>

namespace conformance {
namespace {

using namespace stepwell::drivers;

std::string refusal(const stw_storage_ops &ops)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    return check(&ops, &error) == STW_ERROR_INVALID ? error.sentence : "";
}

std::string refusal(const stw_memory_ops &ops)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    return check(&ops, &error) == STW_ERROR_INVALID ? error.sentence : "";
}

std::string refusal(const stw_collective_ops &ops)
{
    stw_driver_error error = STW_DRIVER_ERROR_INIT;
    return check(&ops, &error) == STW_ERROR_INVALID ? error.sentence : "";
}

template <class Ops> void expect_refused(const Ops &ops, const char *words)
{
    const std::string said = refusal(ops);
    EXPECT_NE(said.find(words), std::string::npos) << "'" << words << "' is not in: " << said;
}

// Complete, and never called.
stw_collective_ops collective_table()
{
    return {
        .struct_size = sizeof(stw_collective_ops),
        .abi = STW_DRIVER_ABI,
        .name = "ranks",
        .capabilities = STW_COLLECTIVE_HOST | STW_COLLECTIVE_CAN_SPLIT |
                        STW_COLLECTIVE_NAMES_MISSING | STW_COLLECTIVE_CAN_ABORT,
        .open = [](auto...) { return stw_status{STW_OK}; },
        .info = [](auto...) {},
        .exchange = [](auto...) { return stw_status{STW_OK}; },
        .all_gather = [](auto...) { return stw_status{STW_OK}; },
        .reduce_scatter = [](auto...) { return stw_status{STW_OK}; },
        .all_reduce = [](auto...) { return stw_status{STW_OK}; },
        .poll = [](auto...) { return stw_status{STW_OK}; },
        .close = [](auto...) { return stw_status{STW_OK}; },
        .split = [](auto...) { return stw_status{STW_OK}; },
        .missing = [](auto...) { return uint32_t{0}; },
        .abort = [](auto...) { return stw_status{STW_OK}; },
        .register_memory = nullptr,
        .unregister_memory = nullptr,
    };
}

TEST(Registry, EveryListedDriverIsFoundByItsNameAndHonest)
{
    EXPECT_EQ(storage_drivers().size(), 3u);
    EXPECT_EQ(memory_drivers().size(), 3u);
    for (const stw_storage_ops *ops : storage_drivers()) {
        EXPECT_EQ(check(ops, nullptr), STW_OK) << ops->name;
        EXPECT_EQ(storage_driver(ops->name), ops);
    }
    for (const stw_memory_ops *ops : memory_drivers()) {
        EXPECT_EQ(check(ops, nullptr), STW_OK) << ops->name;
        EXPECT_EQ(memory_driver(ops->name), ops);
    }
    EXPECT_EQ(storage_driver("cpu"), nullptr);
    EXPECT_EQ(memory_driver("cuda"), nullptr);
    EXPECT_EQ(memory_driver(nullptr), nullptr);
}

TEST(Registry, LyingTableIsRefused)
{
    stw_memory_ops memory = *memory_driver("cpu");
    memory.home = nullptr;
    expect_refused(memory, "has 3 of its 4");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_CAN_MAP;
    expect_refused(memory, "announces STW_MEMORY_CAN_MAP");
    memory.capabilities = STW_MEMORY_STREAMS | STW_MEMORY_CAN_SHRINK;
    expect_refused(memory, "announces STW_MEMORY_STREAMS and has 0 of its 8");
    memory.capabilities = STW_MEMORY_UPDATES | STW_MEMORY_CAN_SHRINK;
    expect_refused(memory, "announces STW_MEMORY_UPDATES and has 0 of its 6");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_CAN_ALIAS;
    expect_refused(memory, "announces STW_MEMORY_CAN_ALIAS and has 0 of its 3");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_MAY_SHARE;
    expect_refused(memory, "announces STW_MEMORY_MAY_SHARE and lacks");
    memory.shares_host = [](const stw_memory_options *, uint32_t *) -> stw_status {
        return STW_OK;
    };
    expect_refused(memory, "without streams");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_CAN_FORGET;
    expect_refused(memory, "announces STW_MEMORY_CAN_FORGET and lacks");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_SAYS_WHY;
    expect_refused(memory, "announces STW_MEMORY_SAYS_WHY and has 0 of its 2");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_COPIES_OTHERS;
    expect_refused(memory, "announces STW_MEMORY_COPIES_OTHERS and lacks");
    memory.check_memory = [](stw_memory *, const void *, uint64_t,
                             stw_driver_error *) -> stw_status { return STW_OK; };
    expect_refused(memory, "the copies are ordered by its marks");
    memory = *memory_driver("cpu");
    memory.map_as = nullptr;
    expect_refused(memory, "announces STW_MEMORY_CAN_PROTECT and lacks");
    memory = *memory_driver("host");
    memory.capabilities |= STW_MEMORY_CAN_PROTECT;
    memory.map_as = memory_driver("cpu")->map_as;
    expect_refused(memory, "without STW_MEMORY_CAN_MAP");
    memory = *memory_driver("cpu");
    memory.capabilities &= ~uint64_t{STW_MEMORY_CAN_MAP};
    expect_refused(memory, "does not announce");
    memory = *memory_driver("host");
    memory.take_back = nullptr;
    expect_refused(memory, "has 1 of its 2");
    memory = *memory_driver("cpu");
    memory.capabilities |= uint64_t{1} << 63;
    expect_refused(memory, "0x8000000000000000");
    memory = *memory_driver("cpu");
    memory.copy = nullptr;
    EXPECT_NE(refusal(memory), "");
}

TEST(Registry, CollectiveTableThatLiesIsRefused)
{
    stw_collective_ops ops = collective_table();
    EXPECT_EQ(check(&ops, nullptr), STW_OK);
    ops.split = nullptr;
    expect_refused(ops, "announces STW_COLLECTIVE_CAN_SPLIT and lacks");
    ops = collective_table();
    ops.missing = nullptr;
    expect_refused(ops, "announces STW_COLLECTIVE_NAMES_MISSING");
    ops = collective_table();
    ops.capabilities &= ~uint64_t{STW_COLLECTIVE_CAN_ABORT};
    expect_refused(ops, "does not announce STW_COLLECTIVE_CAN_ABORT and has");
    ops = collective_table();
    ops.capabilities &= ~uint64_t{STW_COLLECTIVE_HOST};
    expect_refused(ops, "takes no memory");
    ops.capabilities |= STW_COLLECTIVE_DEVICE;
    EXPECT_EQ(refusal(ops), "");
    ops.exchange = nullptr;
    expect_refused(ops, "lacks an operation");
    ops = collective_table();
    ops.capabilities |= uint64_t{1} << 40;
    expect_refused(ops, "0x10000000000");
    ops = collective_table();
    ops.abi = STW_DRIVER_ABI + 1;
    expect_refused(ops, "ABI 1");
}

TEST(Registry, CollectiveTableMayEndAtClose)
{
    stw_collective_ops ops = collective_table();
    ops.struct_size = offsetof(stw_collective_ops, split);
    expect_refused(ops, "announces STW_COLLECTIVE_CAN_SPLIT and lacks");
    ops.capabilities = STW_COLLECTIVE_HOST;
    EXPECT_EQ(check(&ops, nullptr), STW_OK);
    ops.struct_size = offsetof(stw_collective_ops, close);
    expect_refused(ops, "at least 88, up to the operation 'close'");
}

TEST(Registry, TableOfAnotherAbiIsRefused)
{
    stw_storage_ops storage = *storage_driver("aio");
    EXPECT_EQ(refusal(storage), "");
    storage.abi = STW_DRIVER_ABI + 1;
    expect_refused(storage, "ABI 1");
    storage = *storage_driver("aio");
    storage.wake = nullptr;
    expect_refused(storage, "aio");
    storage = *storage_driver("aio");
    storage.name = "";
    EXPECT_NE(refusal(storage), "");
    EXPECT_EQ(check(static_cast<const stw_storage_ops *>(nullptr), nullptr), STW_ERROR_INVALID);
}

// What lies behind its end is not read, so it lacks what it announces there.
TEST(Registry, TableThatEndsEarlierHasNoMoreOperations)
{
    stw_storage_ops storage = *storage_driver("aio");
    storage.struct_size = offsetof(stw_storage_ops, give_back);
    expect_refused(storage, "announces CAN_SHRINK and has 0 of its 2");
    storage.capabilities &= ~uint64_t{STW_STORAGE_CAN_SHRINK};
    EXPECT_EQ(check(&storage, nullptr), STW_OK);
    stw_memory_ops memory = *memory_driver("cpu");
    memory.struct_size = offsetof(stw_memory_ops, map_as);
    expect_refused(memory, "announces STW_MEMORY_CAN_PROTECT and lacks");
    memory.capabilities &= ~uint64_t{STW_MEMORY_CAN_PROTECT};
    EXPECT_EQ(check(&memory, nullptr), STW_OK);
    memory.struct_size = offsetof(stw_memory_ops, take_back);
    expect_refused(memory, "has 1 of its 2");
    memory.struct_size = offsetof(stw_memory_ops, give_back);
    memory.capabilities &= ~uint64_t{STW_MEMORY_CAN_SHRINK};
    EXPECT_EQ(check(&memory, nullptr), STW_OK);
    memory.struct_size = offsetof(stw_memory_ops, home);
    expect_refused(memory, "has 3 of its 4");
    memory.struct_size = offsetof(stw_memory_ops, reserve_address);
    memory.capabilities = STW_MEMORY_HOST_ACCESS;
    EXPECT_EQ(check(&memory, nullptr), STW_OK);
}

TEST(Registry, TableWithoutWhatEveryTableHasIsRefused)
{
    stw_storage_ops storage = *storage_driver("aio");
    storage.struct_size = offsetof(stw_storage_ops, close);
    expect_refused(storage, "at least 80, up to the operation 'close'");
    storage.struct_size = 0;
    expect_refused(storage, "a table of 0 bytes");
    storage.struct_size = sizeof storage - 4;
    expect_refused(storage, "whole members");
    stw_memory_ops memory = *memory_driver("cpu");
    memory.struct_size = offsetof(stw_memory_ops, close);
    expect_refused(memory, "at least 64, up to the operation 'close'");
}

// A bit that must not be overlooked comes with another ABI; in a table that ends where ours does,
// one that is not known announces nothing.
TEST(Registry, TableThatGoesOnMayAnnounceWhatComesThere)
{
    struct {
        stw_memory_ops ops;
        void *later[2];
    } memory = {*memory_driver("host"), {nullptr, nullptr}};
    memory.ops.capabilities |= uint64_t{1} << 40;
    expect_refused(memory.ops, "0x10000000000");
    memory.ops.struct_size = sizeof memory;
    EXPECT_EQ(check(&memory.ops, nullptr), STW_OK);
    memory.ops.copy = nullptr;
    expect_refused(memory.ops, "lacks an operation");
}

}  // namespace
}  // namespace conformance
