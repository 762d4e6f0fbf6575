// SPDX-License-Identifier: Apache-2.0
#include "raw_drive.h"

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

TEST(RawDrive, APassMeasuresARequestHoweverLittleTimeThereIs)
{
    const RawDrive drive(".", 32 << 20);
    EXPECT_GT(drive.read(0), 0);
    EXPECT_GT(drive.write(0), 0);
}

}  // namespace
}  // namespace stepwell::cli
