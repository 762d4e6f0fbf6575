// SPDX-License-Identifier: Apache-2.0
// What of the host tier is registered with whom, by the addresses alone: the memory is not there.
#include "lib/memory/host_pins.h"

#include <map>
#include <mutex>
#include <string>

#include <gtest/gtest.h>

namespace stepwell::memory {
namespace {

constexpr uint64_t kBlock = 2 << 20;
constexpr uint64_t kSlab = 64 << 20;

// A driver that writes down what is registered; the second is another driver's table.
struct Pinned {
    std::mutex mutex;
    std::map<uint64_t, uint64_t> ranges;  // bytes by address
    std::vector<uint64_t> sizes;          // in order
    uint64_t refuse_from = UINT64_MAX;    // the call, from 0
    uint64_t refuse_each = UINT64_MAX;    // of so many calls the last
    uint64_t refuse_above = UINT64_MAX;   // bytes
    uint64_t calls = 0;
    uint64_t waited = 0;  // the last mark
    bool overlapped = false;
};

Pinned *of(stw_memory *memory)
{
    return reinterpret_cast<Pinned *>(memory);
}

stw_status pin(stw_memory *memory, void *base, uint64_t bytes, stw_driver_error *error_out)
{
    Pinned &pinned = *of(memory);
    const std::lock_guard<std::mutex> lock(pinned.mutex);
    const uint64_t call = pinned.calls++;
    if (call >= pinned.refuse_from || call % pinned.refuse_each == pinned.refuse_each - 1 ||
        bytes > pinned.refuse_above) {
        std::snprintf(error_out->sentence, sizeof error_out->sentence, "There is no more.");
        return STW_ERROR_MEMORY;
    }
    const auto begin = reinterpret_cast<uint64_t>(base);
    for (const auto &[other, size] : pinned.ranges)
        pinned.overlapped |= begin < other + size && other < begin + bytes;
    pinned.ranges[begin] = bytes;
    pinned.sizes.push_back(bytes);
    return STW_OK;
}

void unpin(stw_memory *memory, void *base, uint64_t bytes)
{
    Pinned &pinned = *of(memory);
    const std::lock_guard<std::mutex> lock(pinned.mutex);
    EXPECT_EQ(pinned.ranges[reinterpret_cast<uint64_t>(base)], bytes);
    pinned.ranges.erase(reinterpret_cast<uint64_t>(base));
}

stw_status wait(stw_memory *memory, uint64_t mark)
{
    of(memory)->waited = mark;
    return STW_OK;
}

class HostPinsTest : public testing::Test {
protected:
    HostPinsTest()
    {
        ops_.name = other_ops_.name = "fake";
        for (stw_memory_ops *ops : {&ops_, &other_ops_})
            ops->pin_host = pin, ops->unpin_host = unpin, ops->wait = wait;
        options_.base = reinterpret_cast<char *>(kBase);
        options_.bytes = 2 * kSlab + 20 * kBlock;
        options_.block_bytes = kBlock;
        options_.staging_bytes = 8 * kBlock;
        options_.scratch_bytes = 4 * kBlock;
        options_.log = &log_;
        options_.now_ns = [] { return uint64_t{0}; };
    }
    HostPins::Device device(uint32_t number, const stw_memory_ops *ops, Pinned *pinned)
    {
        return {ops, reinterpret_cast<stw_memory *>(pinned), number};
    }
    static void settle(const HostPins &pins)
    {
        while (pins.stats().open_bytes > 0) std::this_thread::yield();
    }
    static bool covers(Pinned &pinned, uint32_t block)
    {
        const uint64_t address = kBase + block * kBlock;
        const std::lock_guard<std::mutex> lock(pinned.mutex);
        for (const auto &[begin, bytes] : pinned.ranges)
            if (address >= begin && address < begin + bytes) return true;
        return false;
    }

    static constexpr uint64_t kBase = uint64_t{1} << 40;
    stw_memory_ops ops_ = {};
    stw_memory_ops other_ops_ = {};
    std::string lines_;
    observe::Log log_{[this] {
        observe::LogOptions options;
        options.level = STW_LOG_WARNING;
        options.user = &lines_;
        options.callback = [](void *user, uint32_t, const char *, const char *line) {
            *static_cast<std::string *>(user) += std::string(line) + "\n";
        };
        options.lines_per_window = 100;
        options.now_ns = [](void *) { return uint64_t{0}; };
        return options;
    }()};
    HostPins::Options options_;
    Pinned pinned_;
    Pinned other_;
};

TEST_F(HostPinsTest, SlabsEndWhereTensorsScratchAndStagingDo)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    HostPins pins(options_);
    settle(pins);
    const std::vector<uint64_t> wanted = {8 * kBlock, 4 * kBlock, kSlab, kSlab, 8 * kBlock};
    EXPECT_EQ(pinned_.sizes, wanted);
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    EXPECT_EQ(lines_, "");
}

TEST_F(HostPinsTest, AllGoesWithTheObject)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    {
        HostPins pins(options_);
        settle(pins);
    }
    EXPECT_TRUE(pinned_.ranges.empty());
}

TEST_F(HostPinsTest, DevicesOfOneDriverAreRegisteredWithOnce)
{
    options_.devices = {device(0, &ops_, &pinned_), device(1, &ops_, &other_)};
    HostPins pins(options_);
    settle(pins);
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    EXPECT_TRUE(other_.ranges.empty());
}

TEST_F(HostPinsTest, EachDriverRegistersForItself)
{
    options_.devices = {device(0, &ops_, &pinned_), device(1, &other_ops_, &other_)};
    other_.refuse_from = 3;
    HostPins pins(options_);
    settle(pins);
    EXPECT_EQ(pinned_.ranges.size(), 5u);
    EXPECT_EQ(other_.ranges.size(), 3u);
    EXPECT_EQ(pins.stats().refused, 2u);
    EXPECT_EQ(pins.stats().bytes, 2 * options_.bytes - kSlab - 8 * kBlock);
    EXPECT_EQ(pins.remark(0), "");
    EXPECT_NE(pins.remark(1).find("There is no more."), std::string::npos) << pins.remark(1);
}

// Of each slab halves down to 2 MiB are asked for, and that once more in the end.
TEST_F(HostPinsTest, WhatIsRefusedIsSaidOnceWithTheShareThatIsRegistered)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    pinned_.refuse_from = 2;
    HostPins pins(options_);
    settle(pins);
    pins.stop();
    EXPECT_EQ(pinned_.calls, 2u + (6 + 6 + 4) + 3);
    EXPECT_EQ(pins.stats().refused, 3u);
    EXPECT_EQ(pins.stats().bytes, 12 * kBlock);
    EXPECT_EQ(lines_, pins.remark(0) + "\n");
    EXPECT_NE(lines_.find("25165824 of 176160768 bytes of the host tier (14.3 %)"), lines_.npos)
        << lines_;
    EXPECT_NE(lines_.find("There is no more."), lines_.npos) << lines_;
}

// As when a budget has shrunk and grows, and the limit is another one by then.
TEST_F(HostPinsTest, WhatWasRefusedIsAskedForAgainWhenItsMemoryComesBack)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    pinned_.refuse_from = 2;
    HostPins pins(options_);
    settle(pins);
    for (uint32_t round = 0; round < 2; ++round) {
        pins.gone(0, 40);
        pins.back(0, 40);
        settle(pins);
        EXPECT_EQ(pins.stats().refused, 3u);
    }
    {
        const std::lock_guard<std::mutex> lock(pinned_.mutex);
        pinned_.refuse_from = UINT64_MAX;
    }
    pins.gone(0, 72);
    pins.back(0, 72);
    settle(pins);
    pins.stop();
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    EXPECT_EQ(pins.stats().refused, 0u);
    EXPECT_EQ(pins.remark(0), "");
    EXPECT_EQ(lines_.find('\n'), lines_.size() - 1) << lines_;  // one warning
}

TEST_F(HostPinsTest, ADriverThatRefusesLargePiecesGetsSmallerOnes)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    pinned_.refuse_above = 5 * kBlock;
    HostPins pins(options_);
    settle(pins);
    pins.stop();
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    EXPECT_EQ(pins.stats().refused, 0u);
    EXPECT_FALSE(pinned_.overlapped);
    EXPECT_EQ(lines_, "");
}

TEST_F(HostPinsTest, WhatIsRefusedNowAndThenIsRegisteredInTheEnd)
{
    for (const uint64_t each : {2, 3, 5}) {
        SCOPED_TRACE(each);
        Pinned pinned;
        options_.devices = {device(0, &ops_, &pinned)};
        pinned.refuse_each = each;
        HostPins pins(options_);
        settle(pins);
        pins.stop();
        EXPECT_EQ(pins.stats().bytes, options_.bytes);
        EXPECT_EQ(lines_, "");
    }
}

TEST_F(HostPinsTest, BlocksThatAProgramCopiesTogetherAreOneRegistration)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    HostPins pins(options_);
    settle(pins);
    EXPECT_TRUE(pins.are_joined(0, 32));
    EXPECT_FALSE(pins.are_joined(31, 2));
    const HostPins::Range all = pins.registered_with({31, 2});
    EXPECT_EQ(all.first, 0u);
    EXPECT_EQ(all.count, 64u);
    pins.join({31, 2}, {0, 63});  // something more would go for a moment
    EXPECT_FALSE(pins.are_joined(31, 2));
    pins.join({31, 2}, all);
    EXPECT_TRUE(pins.are_joined(0, 64));
    EXPECT_EQ(pinned_.ranges[kBase], 2 * kSlab);
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    const uint64_t calls = pinned_.calls;
    pins.join({31, 2}, all);
    EXPECT_EQ(pinned_.calls, calls);
    pins.gone(33, 1);  // and what is left comes back
    settle(pins);
    EXPECT_EQ(pins.stats().bytes, options_.bytes - kBlock);
    EXPECT_FALSE(covers(pinned_, 33));
    EXPECT_TRUE(covers(pinned_, 32) && covers(pinned_, 63));
    EXPECT_FALSE(pinned_.overlapped);
}

TEST_F(HostPinsTest, WhatCannotBeOneRegistrationIsSeveralAgain)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    pinned_.refuse_above = kSlab;
    HostPins pins(options_);
    settle(pins);
    pins.join({31, 2}, pins.registered_with({31, 2}));
    settle(pins);
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    const uint64_t calls = pinned_.calls;
    pins.join({31, 2}, pins.registered_with({31, 2}));  // it is asked once
    EXPECT_EQ(pinned_.calls, calls);
    EXPECT_EQ(lines_, "");
}

TEST_F(HostPinsTest, WhatGoesBackIsNotRegisteredAndItsNeighboursAre)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    HostPins pins(options_);
    settle(pins);
    pins.gone(5, 1);
    pins.gone(31, 2);
    settle(pins);
    EXPECT_EQ(pins.stats().bytes, options_.bytes - 3 * kBlock);
    for (const uint32_t block : {5u, 31u, 32u}) EXPECT_FALSE(covers(pinned_, block)) << block;
    for (const uint32_t block : {4u, 6u, 30u, 33u}) EXPECT_TRUE(covers(pinned_, block)) << block;
    pins.back(31, 2);
    pins.back(5, 1);
    settle(pins);
    EXPECT_EQ(pins.stats().bytes, options_.bytes);
    EXPECT_TRUE(covers(pinned_, 5));
    EXPECT_FALSE(pinned_.overlapped);
}

TEST_F(HostPinsTest, CopiesOfAllDevicesAreWaitedForBeforeARangeGoes)
{
    options_.devices = {device(0, &ops_, &pinned_), device(1, &ops_, &other_)};
    HostPins pins(options_);
    settle(pins);
    const uint64_t mark = 77;
    pins.begin(options_.devices[1].memory, true);
    pins.end(options_.devices[1].memory, true, &mark);
    EXPECT_EQ(other_.waited, 0u);
    pins.release(3, 1);
    EXPECT_EQ(other_.waited, 77u);
}

// A copy that crosses a border is refused, even where both sides are registered.
TEST_F(HostPinsTest, BlocksAreJoinedWhereTheyWereRegisteredAtOnce)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    HostPins pins(options_);
    settle(pins);
    pins.gone(5, 1);
    settle(pins);
    pins.back(5, 1);
    settle(pins);
    ASSERT_GT(pinned_.ranges.size(), 5u);
    for (uint64_t at = kBase; at < kBase + options_.bytes; at += kBlock)
        EXPECT_EQ(pins.is_joined(reinterpret_cast<void *>(at)), pinned_.ranges.count(at) == 0)
            << (at - kBase) / kBlock;
    pins.gone(20, 1);
    EXPECT_FALSE(pins.is_joined(reinterpret_cast<void *>(kBase + 20 * kBlock)));
    EXPECT_FALSE(pins.is_joined(reinterpret_cast<void *>(kBase + 21 * kBlock)));
}

TEST_F(HostPinsTest, NothingComesBackWhileItIsPaused)
{
    options_.devices = {device(0, &ops_, &pinned_)};
    HostPins pins(options_);
    settle(pins);
    {
        const HostPins::Pause pause(&pins);
        pins.release(0, 1);
        EXPECT_EQ(pins.stats().bytes, options_.bytes - kSlab);
        EXPECT_EQ(pinned_.calls, 5u);
    }
    settle(pins);
    EXPECT_EQ(pinned_.calls, 6u);
}

}  // namespace
}  // namespace stepwell::memory
