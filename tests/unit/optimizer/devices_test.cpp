// SPDX-License-Identifier: Apache-2.0
// Updates on a device: where they are done, that it is begun and not waited for, and that the norm
// and all bytes have the bits of the host. That updates have is in update_test.cpp, on both sides.
#include "model.h"

namespace stepwell::update::test {
namespace {

// Runs of the scan lie in two blocks where a pack begins 256 bytes into one.
std::vector<Entry> add_parameters(World &world)
{
    std::vector<Entry> entries;
    for (const Shape &shape : {Shape{50000, STW_BF16, STW_BF16, 0},
                               {9000, STW_F32, STW_F32, 256},
                               {777, STW_F16, STW_F16, 512},
                               {30000, STW_F32, STW_F16, 1024}}) {
        entries.push_back(world.add(shape));
    }
    return entries;
}

double norm_of(uint64_t seed, bool on_device, World **world_out = nullptr)
{
    Conditions conditions;
    conditions.seed = seed;
    conditions.threads = 1 + seed % 3;
    static std::unique_ptr<World> world;
    world = std::make_unique<World>(conditions);
    for (const Entry &entry : add_parameters(*world)) {
        if (on_device) world->move_home(entry);
    }
    StepOptions options;
    options.clip_norm = 0.5;
    options.wants_verdict = true;
    StepResult result;
    EXPECT_TRUE(world->step_and_wait(options, &result).ok());
    EXPECT_LT(result.clip_coefficient, 1.0);
    if (world_out) *world_out = world.get();
    EXPECT_EQ(world->devices.started() > 0, on_device);
    const double norm = result.norm;
    if (!world_out) world.reset();
    return norm;
}

TEST(DeviceUpdate, TheNormHasTheBitsOfTheHost)
{
    for (uint64_t seed = 1; seed <= 6; ++seed) {
        World *world = nullptr;
        const double host = norm_of(seed, false);
        EXPECT_EQ(host, norm_of(seed, true, &world));
        for (auto &[parameter, mirror] : world->mirrors) EXPECT_FALSE(mirror.values.empty());
    }
}

// With one thread no scan is waited for before the others have begun.
TEST(DeviceUpdate, ScansAreBegunBeforeOneIsWaitedFor)
{
    Conditions conditions;
    conditions.threads = 1;
    conditions.tier_threads = 0;
    conditions.device_window_blocks = 60;
    World world(conditions);
    const Entry entry = world.add({200000, STW_F32, STW_F32, 0});
    world.move_home(entry);
    StepOptions options;
    options.clip_norm = 0.5;
    ASSERT_TRUE(world.step_and_wait(options).ok());
    EXPECT_GT(world.devices.scans_peak(), 10u);
    EXPECT_LE(world.devices.scans_peak(), uint32_t{STW_SCANS_MAX});
}

TEST(DeviceUpdate, WindowsOfTwoPlacesDoNotHoldUpEachOther)
{
    Conditions conditions;
    conditions.window_blocks = 8;
    conditions.device_window_blocks = 8;
    World world(conditions);
    const Entry here = world.add({60000, STW_F32, STW_F32, 0});
    const Entry there = world.add({60000, STW_F32, STW_F32, 0});
    world.move_home(there);
    world.tiers.open_view(here.parameter);
    ASSERT_TRUE(world.optimizer->step({}, nullptr).ok());
    while (world.tiers.claimed(there.parameter)) std::this_thread::yield();
    EXPECT_TRUE(world.tiers.claimed(here.parameter));
    world.tiers.close_view(here.parameter);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    EXPECT_LE(world.tiers.pinned_peak_bytes(), 16 * kBlockBytes);
    const PipelineStats stats = world.pipeline->stats();
    EXPECT_EQ(stats.device_bytes * 2, stats.read_bytes);
}

TEST(DeviceUpdate, ThatDoesNotBeginFailsItsTensorAlone)
{
    World world({});
    const Entry first = world.add({3000, STW_F32, STW_F32, 0});
    const Entry second = world.add({3000, STW_BF16, STW_F32, 0});
    world.move_home(first);
    world.devices.fail_start();
    EXPECT_EQ(world.step_and_wait().code(), STW_ERROR_DEVICE);
    EXPECT_EQ(world.tiers.failed(first.parameter), STW_ERROR_DEVICE);
    EXPECT_EQ(world.tiers.failed(first.states[1]), STW_ERROR_DEVICE);
    ASSERT_EQ(world.failures.size(), 1u);
    EXPECT_EQ(world.failures[0].tensor, first.parameter);
    world.expect_update(second, STW_HYPER_INIT, 1, 1.0);
    world.expect_same(second);
}

TEST(DeviceUpdate, AScanWithoutResultsStopsTheStep)
{
    World world({});
    const Entry first = world.add({90000, STW_F32, STW_F32, 0});
    const Entry second = world.add({3000, STW_F32, STW_F32, 0});
    world.move_home(first);
    world.devices.fail_scan();
    StepOptions options;
    options.clip_norm = 1.0;
    options.wants_verdict = true;
    EXPECT_EQ(world.optimizer->step(options, nullptr).code(), STW_ERROR_DEVICE);
    ASSERT_TRUE(world.optimizer->wait(UINT64_MAX).ok());
    world.expect_same(first);
    world.expect_same(second);
    // And the next one goes on where this one began.
    StepResult result;
    ASSERT_TRUE(world.step_and_wait(options, &result).ok());
    EXPECT_EQ(result.updated, 2u);
}

TEST(DeviceUpdate, CustomUpdatesStayOnTheHost)
{
    stw_custom_update custom{};
    custom.struct_size = sizeof custom;
    custom.update = [](void *, const stw_update_chunk *work) -> stw_status {
        for (uint64_t i = 0; i < work->element_count; ++i) work->master[i] = 7.0F;
        return STW_OK;
    };
    Conditions conditions;
    conditions.algorithm = STW_OPTIMIZER_CUSTOM;
    conditions.custom = &custom;
    World world(conditions);
    const Entry entry = world.add({3000, STW_F32, STW_F32, 0});
    world.move_home(entry);
    ASSERT_TRUE(world.step_and_wait().ok());
    EXPECT_EQ(world.devices.started(), 0u);
}

}  // namespace
}  // namespace stepwell::update::test
