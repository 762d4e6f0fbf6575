// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/paper.h"

namespace stepwell::simulate::paper {
namespace {

double tokens(const Shape &shape)
{
    return static_cast<double>(shape.batch) * static_cast<double>(shape.sequence);
}

// Elements of one block for each token: 16 of the hidden size, and two scores for each head.
double block_elements(const Shape &shape)
{
    return 16 * static_cast<double>(shape.hidden) +
           2 * static_cast<double>(shape.heads) * static_cast<double>(shape.sequence);
}

}  // namespace

double parameters(const Shape &shape)
{
    const double hidden = static_cast<double>(shape.hidden);
    return 12 * static_cast<double>(shape.layers) * hidden * hidden;
}

double state_bytes(const Shape &shape)
{
    return kStateBytes * parameters(shape);
}

double activation_bytes(const Shape &shape)
{
    return 2 * tokens(shape) * block_elements(shape) * static_cast<double>(shape.layers);
}

double checkpoint_bytes(const Shape &shape)
{
    return 2 * tokens(shape) * static_cast<double>(shape.hidden) *
           static_cast<double>(shape.layers) / static_cast<double>(shape.blocks_per_checkpoint);
}

double operator_bytes(const Shape &shape)
{
    const double hidden = static_cast<double>(shape.hidden);
    return 16 * hidden * hidden;  // hidden x 4 hidden, parameter and gradient, in half precision
}

double activation_working_bytes(const Shape &shape)
{
    return tokens(shape) * static_cast<double>(shape.blocks_per_checkpoint) * block_elements(shape);
}

double step_flops(const Shape &shape)
{
    return 8 * tokens(shape) * parameters(shape);
}

double intensity_of_parameters(const Shape &shape)
{
    return tokens(shape);
}

double intensity_of_states(const Shape &shape)
{
    return tokens(shape) / 4;
}

double intensity_of_checkpoints(const Shape &shape)
{
    return 24 * static_cast<double>(shape.hidden) *
           static_cast<double>(shape.blocks_per_checkpoint);
}

double efficiency(double intensity, double bytes_per_s, double peak_flops_per_s)
{
    return intensity * bytes_per_s / (intensity * bytes_per_s + peak_flops_per_s);
}

double hiding_bytes_per_s(double intensity, double peak_flops_per_s)
{
    return peak_flops_per_s / intensity;
}

}  // namespace stepwell::simulate::paper
