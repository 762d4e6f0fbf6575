// SPDX-License-Identifier: Apache-2.0
// What `stepwell info` says of a GPU: that of one across a bus, and of one that shares the host's
// memory.
#include "tests/cuda/runtime_rig.h"

#include "bindings/cli/drivers.h"

namespace stepwell {
namespace {

cli::Driver driver_on(const std::string &options)
{
    const Module module;
    EXPECT_EQ(stw_double_reset(options.c_str()), 0);
    std::vector<cli::Driver> found = cli::find_modules(module.directory());
    EXPECT_EQ(found.size(), 1u);
    return found.empty() ? cli::Driver() : found.front();
}

TEST(CudaInfo, AGpuAcrossABusSaysWhatRegisteringTakes)
{
    const cli::Driver driver = driver_on("seed=1");
    EXPECT_EQ(driver.name + " " + driver.kind + " " + driver.used_for, "cuda memory device tier");
    EXPECT_EQ(driver.works, true) << driver.reason;
    EXPECT_EQ(driver.unified, false);
    ASSERT_TRUE(driver.register_ns_per_gib);
    EXPECT_GT(*driver.register_ns_per_gib, 0u);
}

TEST(CudaInfo, AGpuThatSharesTheHostsMemorySaysSo)
{
    const cli::Driver driver = driver_on("seed=1,unified=1");
    EXPECT_EQ(driver.works, true) << driver.reason;
    EXPECT_EQ(driver.unified, true);
}

TEST(CudaInfo, WithoutAGpuTheReasonIsThere)
{
    const cli::Driver driver = driver_on("devices=0");
    EXPECT_EQ(driver.works, false);
    EXPECT_NE(driver.reason.find("CUDA_ERROR_NO_DEVICE"), std::string::npos) << driver.reason;
}

}  // namespace
}  // namespace stepwell
