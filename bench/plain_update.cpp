// SPDX-License-Identifier: Apache-2.0
// The plain loop of update.memory; compiled with full optimisation so that the compiler vectorises
// it, and bound by memory. Its constants keep values near one, away from denormals.
#include "plain_update.h"

#include "measure.h"

#include <thread>

namespace bench {
namespace {

constexpr float kKeep = 0.9F;
constexpr float kTake = 0.1F;
constexpr float kRate = 1e-6F;

void pass(float *__restrict parameter, float *__restrict exp_avg, float *__restrict exp_avg_sq,
          const float *__restrict gradient, uint64_t elements)
{
    for (uint64_t i = 0; i < elements; ++i) {
        const float g = gradient[i];
        const float m = kKeep * exp_avg[i] + kTake * g;
        exp_avg[i] = m;
        exp_avg_sq[i] = kKeep * exp_avg_sq[i] + kTake * g;
        parameter[i] -= kRate * m;
    }
}

}  // namespace

double plain_update_seconds(const UpdateArrays &arrays, uint32_t threads)
{
    constexpr uint64_t kLine = 1024;
    const uint64_t part = (arrays.elements / threads + kLine - 1) / kLine * kLine;
    const double begin = now_s();
    std::vector<std::thread> workers;
    for (uint64_t at = 0; at < arrays.elements; at += part) {
        const uint64_t count = arrays.elements - at < part ? arrays.elements - at : part;
        workers.emplace_back(pass, arrays.parameter + at, arrays.exp_avg + at,
                             arrays.exp_avg_sq + at, arrays.gradient + at, count);
    }
    for (std::thread &worker : workers) worker.join();
    return now_s() - begin;
}

}  // namespace bench
