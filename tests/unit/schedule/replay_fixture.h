// SPDX-License-Identifier: Apache-2.0
// A machine of a device and a disk, tensors of whole blocks, and steps written as a few words.
#pragma once

#include "lib/residency/core.h"
#include "lib/schedule/replay/replay.h"
#include "tests/unit/schedule/time.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace stepwell::schedule {

constexpr residency::PlaceId kDevice = 0;
constexpr residency::PlaceId kDisk = 1;
constexpr uint64_t kBlock = 4096;
constexpr uint64_t kBlockNs = 4096;  // at 1 GB/s
constexpr size_t kIn = 0;            // links
constexpr size_t kOut = 1;

inline Machine machine_of(uint32_t device_blocks, uint32_t disk_blocks = 64)
{
    Machine machine;
    machine.config.block_bytes = kBlock;
    machine.config.tensors_max = 4096;
    residency::PlaceConfig device;
    device.tier = residency::Tier::kDevice;
    device.blocks = device_blocks;
    device.maps = device.cpu_access = true;
    residency::PlaceConfig disk;
    disk.tier = residency::Tier::kNvme;
    disk.blocks = disk_blocks;
    machine.config.places = {device, disk};
    machine.links.resize(2);
    machine.links[kIn].from = kDisk;
    machine.links[kIn].to = kDevice;
    machine.links[kOut].from = kDevice;
    machine.links[kOut].to = kDisk;
    for (Link &link : machine.links) link.bytes_per_s = 1e9;
    return machine;
}

inline std::vector<residency::TensorSpec> tensors_of(const std::vector<uint32_t> &blocks)
{
    std::vector<residency::TensorSpec> specs;
    for (const uint32_t count : blocks) {
        specs.emplace_back();
        specs.back().name = "t" + std::to_string(specs.size() - 1);
        specs.back().bytes = count * kBlock;
    }
    return specs;
}

// A fetch and its release.
inline void use(Step &step, residency::TensorId tensor, uint64_t compute_ns = 0,
                residency::Access access = residency::Access::kRead, Lane lane = Lane::kProgram)
{
    Event event;
    event.tensor = tensor;
    event.access = access;
    event.lane = lane;
    step.push_back(event);
    event.act = Act::kRelease;
    event.compute_ns = compute_ns;  // while it has the view
    step.push_back(event);
}

class ReplayTest : public testing::Test {
protected:
    void open(const Machine &machine, const std::vector<uint32_t> &tensor_blocks)
    {
        machine_ = machine;
        Result<std::unique_ptr<Replay>> made = Replay::open(machine_, tensors_of(tensor_blocks));
        ASSERT_TRUE(made.ok()) << made.status().sentence();
        replay_ = made.take();
    }
    StepResult run(const Step &step)
    {
        Status filled = replay_->fill_what_is_read(step);
        EXPECT_TRUE(filled.ok()) << filled.sentence();
        Result<StepResult> done = replay_->step(step);
        EXPECT_TRUE(done.ok()) << done.status().sentence();
        EXPECT_EQ(replay_->core().check(), "");
        return done.ok() ? done.take() : StepResult();
    }
    std::string refusal(const Step &step)
    {
        Result<StepResult> done = replay_->step(step);
        EXPECT_FALSE(done.ok());
        return done.ok() ? "" : done.status().sentence();
    }

    Machine machine_;
    std::unique_ptr<Replay> replay_;
};

}  // namespace stepwell::schedule
