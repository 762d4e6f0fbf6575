// SPDX-License-Identifier: Apache-2.0
// An assertion that fails ends the runtime whose thread it failed on, and no other.
#include "lib/support/assert.h"

#include <gtest/gtest.h>
#include <stepwell/stepwell.h>

#include <cstring>
#include <string>

namespace stepwell {
namespace {

stw_runtime *open_small(const char *name)
{
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    stw_device_options device = STW_DEVICE_OPTIONS_INIT;
    device.budget_bytes = 64 * 65536;
    options.devices = &device;
    options.device_count = 1;
    options.block_bytes = 65536;
    options.name = name;
    options.flags = STW_RUNTIME_NO_PROBE;
    stw_runtime *runtime = nullptr;
    EXPECT_EQ(stw_runtime_open(&options, &runtime), STW_OK) << stw_last_error();
    return runtime;
}

stw_tensor *filled(stw_runtime *runtime)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = 1024;
    stw_tensor *tensor = nullptr;
    EXPECT_EQ(stw_tensor_create(runtime, &spec, 1, &tensor), STW_OK) << stw_last_error();
    EXPECT_EQ(stw_tensor_fill(tensor, 1.0, nullptr), STW_OK) << stw_last_error();
    return tensor;
}

// On a thread of the runtime that the operation is of.
void fail(void *, stw_operation *, stw_status)
{
    STW_ASSERT(std::strlen("") == 1);
}

TEST(Assertions, OneRuntimeEndsAndOthersGoOn)
{
    stw_runtime *const ends = open_small("ends");
    stw_runtime *const goes_on = open_small("goes on");
    stw_tensor *const its = filled(ends);
    stw_tensor *const others = filled(goes_on);
    stw_fetch_request request = STW_FETCH_REQUEST_INIT;
    request.tensor = its;
    request.access = STW_READ;
    stw_operation *operation = nullptr;
    ASSERT_EQ(stw_fetch_async(ends, nullptr, &request, 1, &operation), STW_OK) << stw_last_error();
    ASSERT_EQ(stw_operation_on_done(operation, fail, nullptr), STW_OK) << stw_last_error();
    // Until the callback has returned, the operation is its own.
    stw_status status = STW_OK;
    for (int i = 0; status != STW_ERROR_INTERNAL && i < 1 << 20; ++i)
        status = stw_tensor_fill(its, 2.0, nullptr);
    EXPECT_EQ(status, STW_ERROR_INTERNAL);
    const std::string words = stw_last_error();
    EXPECT_NE(words.find("in the runtime 'ends'"), std::string::npos) << words;
    EXPECT_NE(words.find("assertions_test.cpp"), std::string::npos) << words;
    EXPECT_EQ(stw_tensor_fill(others, 2.0, nullptr), STW_OK) << stw_last_error();
    EXPECT_EQ(stw_runtime_drain(goes_on, 0), STW_OK) << stw_last_error();
    EXPECT_EQ(stw_runtime_close(goes_on, 0, 0), STW_OK) << stw_last_error();
    EXPECT_EQ(stw_runtime_close(ends, 0, 0), STW_ERROR_INTERNAL);
    stw_runtime *const later = open_small("later");
    EXPECT_EQ(stw_tensor_fill(filled(later), 1.0, nullptr), STW_OK) << stw_last_error();
    EXPECT_EQ(stw_runtime_close(later, 0, 0), STW_OK) << stw_last_error();
    EXPECT_EQ(assertion_failures(nullptr, 0), 0u);
}

}  // namespace
}  // namespace stepwell
