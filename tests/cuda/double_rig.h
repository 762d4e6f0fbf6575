// SPDX-License-Identifier: Apache-2.0
// What the tests of the double share: a fresh double with a current context, and an end at which
// nothing may be left over and every violation must have been expected.
#pragma once

#include "tests/cuda/double/control.h"
#include "tests/cuda/double/entry.h"

#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace stepwell::cuda_double {

inline std::string violation_text(uint32_t index)
{
    char text[1024] = "";
    stw_double_violation(index, text, sizeof text);
    return text;
}

class DoubleTest : public ::testing::Test {
protected:
    void SetUp() override { begin("seed=1"); }

    void begin(const std::string &options)
    {
        ASSERT_EQ(stw_double_reset(options.c_str()), 0) << options;
        ASSERT_EQ(cuInit(0), kSuccess);
        ASSERT_EQ(cuDevicePrimaryCtxRetain(&context, 0), kSuccess);
        ASSERT_EQ(cuCtxSetCurrent(context), kSuccess);
    }

    void TearDown() override
    {
        stw_double_hold_all(0);
        stw_double_drain();
        for (uint32_t i = 0; i < stw_double_violations(); ++i) ADD_FAILURE() << violation_text(i);
        if (context != nullptr) {
            EXPECT_EQ(cuDevicePrimaryCtxRelease_v2(0), kSuccess);
        }
        char text[4096] = "";
        EXPECT_EQ(stw_double_leaks(text, sizeof text), 0u) << text;
        stw_double_reset("");
    }

    // Exactly one violation since the last look, of this kind, with these words in it.
    void expect_violation(int kind, const std::vector<std::string> &words = {})
    {
        EXPECT_EQ(stw_double_violations(), 1u);
        for (uint32_t i = 1; i < stw_double_violations(); ++i) ADD_FAILURE() << violation_text(i);
        const std::string text = violation_text(0);
        EXPECT_EQ(stw_double_violation(0, nullptr, 0), kind) << text;
        for (const std::string &word : words) EXPECT_NE(text.find(word), text.npos) << text;
        stw_double_take_violations(nullptr, 0);
    }

    static void *stream(unsigned flags = kStreamNonBlocking)
    {
        void *made = nullptr;
        EXPECT_EQ(cuStreamCreate(&made, flags), kSuccess);
        return made;
    }
    static void *event()
    {
        void *made = nullptr;
        EXPECT_EQ(cuEventCreate(&made, kEventDisableTiming), kSuccess);
        return made;
    }
    static Address device(size_t bytes)
    {
        Address made = 0;
        EXPECT_EQ(cuMemAlloc_v2(&made, bytes), kSuccess);
        return made;
    }
    static unsigned char *pinned(size_t bytes)
    {
        void *made = nullptr;
        EXPECT_EQ(cuMemHostAlloc(&made, bytes, 0), kSuccess);
        return static_cast<unsigned char *>(made);
    }
    static unsigned char *bytes(Address address)
    {
        return static_cast<unsigned char *>(stw_double_alias(address));
    }

    void *context = nullptr;
};

}  // namespace stepwell::cuda_double
