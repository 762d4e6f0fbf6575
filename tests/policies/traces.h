// SPDX-License-Identifier: Apache-2.0
// Steps of training and serving, made from a seed: what policies are compared on. A shape says what
// kind of program it is, the seed its sizes and, where it is drawn, its order.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

#include <string>

namespace stepwell::schedule {

constexpr uint64_t kTraceBlockBytes = 1 << 20;

// splitmix64: distributions of the standard library differ between implementations.
class Draws {
public:
    explicit Draws(uint64_t seed) : state_(seed) {}
    uint64_t next()
    {
        uint64_t z = (state_ += 0x9e3779b97f4a7c15ull);
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
        z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
        return z ^ (z >> 31);
    }
    uint64_t below(uint64_t end) { return next() % end; }
    uint64_t between(uint64_t first, uint64_t last) { return first + below(last - first + 1); }
    double unit() { return static_cast<double>(next() >> 11) * 0x1p-53; }

private:
    uint64_t state_;
};

enum class Role : uint32_t { kParam, kGrad, kState, kActivation, kExpert };

struct Workload {
    std::string name;
    std::vector<residency::TensorSpec> tensors;
    std::vector<Step> steps;  // the same one again and again, or different ones
    bool repeats = true;
    [[nodiscard]] uint64_t blocks() const;  // of all tensors
};

// Forward and backward through the layers, parameters only.
Workload zigzag_trace(uint64_t seed);
// An optimizer that goes through parameters, gradients and states in one order.
Workload cyclic_trace(uint64_t seed);
// Micro-batches that sum into gradients, then an optimizer step.
Workload accumulation_trace(uint64_t seed);
// A training step, then an evaluation of several batches.
Workload alternation_trace(uint64_t seed);
// Tensors of very different sizes in a drawn order, read or written as drawn.
Workload mixed_trace(uint64_t seed);
// Each step needs some experts of each layer, by popularities that differ much and drift slowly.
Workload experts_trace(uint64_t seed, size_t steps);

// A device with so many percent of the trace's blocks, at least what its largest fetches need, and
// a disk that holds all.
Machine trace_machine(const Workload &trace, uint32_t percent);

}  // namespace stepwell::schedule
