// SPDX-License-Identifier: Apache-2.0
// The formulas of the ZeRO-Infinity paper (arXiv 2104.07857, sections 3 and 4): what a transformer
// needs, and how busy a GPU is if transfers are not overlapped. Pure.
#pragma once

#include <cstdint>

namespace stepwell::simulate::paper {

struct Shape {
    uint64_t layers = 0;
    uint64_t hidden = 0;
    uint64_t heads = 0;
    uint64_t batch = 0;
    uint64_t sequence = 0;
    uint64_t blocks_per_checkpoint = 1;
};

constexpr double kStateBytes = 20;        // for each parameter, with gradients and optimizer states
constexpr double kPeakFlopsPerS = 70e12;  // of a V100, as in the paper's figures

double parameters(const Shape &shape);
double state_bytes(const Shape &shape);
double activation_bytes(const Shape &shape);  // all, without checkpoints
double checkpoint_bytes(const Shape &shape);
double operator_bytes(const Shape &shape);            // parameters and gradients of the largest
double activation_working_bytes(const Shape &shape);  // between two checkpoints
double step_flops(const Shape &shape);                // including recomputation

// Arithmetic intensity: FLOP for each byte moved.
double intensity_of_parameters(const Shape &shape);  // and gradients
double intensity_of_states(const Shape &shape);      // of the optimizer
double intensity_of_checkpoints(const Shape &shape);
// The share of time in which the GPU computes; bandwidths are per GPU.
double efficiency(double intensity, double bytes_per_s, double peak_flops_per_s = kPeakFlopsPerS);
// The bandwidth from which the transfer is hidden by computation.
double hiding_bytes_per_s(double intensity, double peak_flops_per_s = kPeakFlopsPerS);

}  // namespace stepwell::simulate::paper
