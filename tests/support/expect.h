// SPDX-License-Identifier: Apache-2.0
// A call of the C API that has to succeed: where it does not, the library's sentence is printed.
#pragma once

#include <stepwell/stepwell.h>

#include <gtest/gtest.h>

#define EXPECT_OK(call) EXPECT_EQ(call, STW_OK) << stw_last_error()
#define ASSERT_OK(call) ASSERT_EQ(call, STW_OK) << stw_last_error()
