// SPDX-License-Identifier: Apache-2.0
// The suite of collective drivers: every rank runs all of it, in the same order. A program of its
// own for each engine says how a group is opened there.
#pragma once

#include <stepwell/driver.h>

#include <chrono>
#include <string>

#include <gtest/gtest.h>

namespace conformance::ranks {

// What the engine's program gives.
extern const stw_collective_ops *driver;
stw_status open_group(stw_collective **group_out, stw_driver_error *error_out);
// All ranks have called it when it returns; not through the driver.
void meet();

inline constexpr uint64_t kWaitNs = 20'000'000'000;

// One group for each test, of all ranks.
class Ranks : public testing::Test {
protected:
    stw_collective *group_ = nullptr;
    stw_driver_error error_ = STW_DRIVER_ERROR_INIT;
    uint32_t rank_ = 0;
    uint32_t size_ = 0;

    void SetUp() override;
    void TearDown() override;
    // The end of a work, which comes or the test fails.
    static stw_status wait(stw_collective *group, uint64_t work, stw_driver_error *error_out);
    stw_status wait(uint64_t work) { return wait(group_, work, &error_); }
    bool has(uint64_t capability) const { return (driver->capabilities & capability) != 0; }
};

}  // namespace conformance::ranks
