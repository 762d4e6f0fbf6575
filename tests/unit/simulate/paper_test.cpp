// SPDX-License-Identifier: Apache-2.0
// Figures 2 and 3 of arXiv 2104.07857, as printed there.
#include "lib/simulate/paper.h"

#include <cstdio>
#include <string>

#include <gtest/gtest.h>

namespace stepwell::simulate::paper {
namespace {

constexpr uint64_t kK = 1024;
constexpr double kGiB = 0x1p30;
constexpr double kTiB = 0x1p40;

// As the paper prints it: two digits behind the point, a half goes up.
std::string printed(double value)
{
    char text[32];
    std::snprintf(text, sizeof text, "%.2f", value + 1e-9);
    return text;
}

TEST(PaperArithmetic, EveryCellOfTheMemoryTableIsWhatIsPrinted)
{
    const struct {
        uint64_t layers, hidden, heads;
        const char *params, *states, *activations, *checkpoints, *op, *working;
    } rows[] = {
        {80, 10, 128, "0.10", "1.83", "2.03", "0.05", "1.56", "1.63"},
        {100, 20, 160, "0.50", "9.16", "3.91", "0.12", "6.25", "2.50"},
        {128, 25, 256, "1.01", "18.31", "7.13", "0.20", "9.77", "3.56"},
        {195, 64, 512, "10.05", "182.81", "24.38", "0.76", "64.00", "8.00"},
        {315, 160, 1024, "101.47", "1845.70", "88.59", "3.08", "400.00", "18.00"},
    };
    for (const auto &row : rows) {
        SCOPED_TRACE(row.params);
        Shape shape{row.layers, row.hidden * kK, row.heads, 32, 1024, 1};
        EXPECT_EQ(printed(parameters(shape) / 1e12), row.params);
        EXPECT_EQ(printed(state_bytes(shape) / kTiB), row.states);
        EXPECT_EQ(printed(activation_bytes(shape) / kTiB), row.activations);
        EXPECT_EQ(printed(checkpoint_bytes(shape) / kTiB), row.checkpoints);
        EXPECT_EQ(printed(operator_bytes(shape) / kGiB), row.op);
        shape.batch = 4;  // of one GPU
        EXPECT_EQ(printed(activation_working_bytes(shape) / kGiB), row.working);
    }
}

TEST(PaperArithmetic, TheCurvesOfEfficiencyGoThroughThePrintedPoints)
{
    Shape shape{100, 8 * kK, 128, 16, 1024, 1};
    EXPECT_NEAR(100 * efficiency(intensity_of_parameters(shape), 1e9), 18.97, 0.005);
    shape.batch = 1;
    EXPECT_NEAR(100 * efficiency(intensity_of_parameters(shape), 48e9), 41.3, 0.05);
    EXPECT_NEAR(100 * efficiency(intensity_of_parameters(shape), 96e9), 58.4, 0.05);
    const struct {
        uint64_t hidden;
        double gb_per_s, percent;
    } points[] = {{2, 1, 41.3}, {2, 3, 67.8}, {8, 1, 73.7}, {64, 1, 95.7}};
    for (const auto &point : points) {
        shape.hidden = point.hidden * kK;
        EXPECT_NEAR(100 * efficiency(intensity_of_checkpoints(shape), point.gb_per_s * 1e9),
                    point.percent, 0.05)
            << point.hidden << "K at " << point.gb_per_s;
    }
}

TEST(PaperArithmetic, WhatHidesATransferMovesNoFasterThanTheWorkNeeds)
{
    const Shape shape{100, 8 * kK, 128, 2, 1024, 1};
    // Section 4.2: 70 GB/s for parameters at batch 1, and four times that for states.
    const Shape one{100, 8 * kK, 128, 1, 1024, 1};
    EXPECT_NEAR(hiding_bytes_per_s(intensity_of_parameters(one)) / 1e9, 68.4, 0.1);
    EXPECT_EQ(hiding_bytes_per_s(intensity_of_states(shape)),
              4 * hiding_bytes_per_s(intensity_of_parameters(shape)));
    EXPECT_EQ(efficiency(100, hiding_bytes_per_s(100)), 0.5);
    // What moves in a step is what its work divided by the intensity says.
    const double bytes_of_states = 32 * parameters(shape);
    EXPECT_DOUBLE_EQ(step_flops(shape) / intensity_of_states(shape), bytes_of_states);
    EXPECT_DOUBLE_EQ(step_flops(shape) / intensity_of_parameters(shape), 8 * parameters(shape));
}

}  // namespace
}  // namespace stepwell::simulate::paper
