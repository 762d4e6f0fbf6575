// SPDX-License-Identifier: Apache-2.0
// Alternative orders of a step with the same results. Only the order changes, and the tensors that
// each micro-batch then needs for itself. Writers of a tensor stay before its readers; only sums
// into gradients may change their order. Pure; one thread.
#pragma once

#include "lib/schedule/trace/step.h"

#include <optional>

namespace stepwell::schedule {

struct Order {
    Step step;
    // The step's own, followed by a copy for each further micro-batch of those that each one
    // overwrites.
    std::vector<residency::TensorSpec> specs;
    uint32_t times = 0;  // micro-batches; or updated parameters
    uint32_t parts = 0;  // of a micro-batch, e.g. layers; each runs for all micro-batches
};

// Each part runs for all micro-batches, if the step runs one micro-batch after the other.
std::optional<Order> group_micro_batches(const std::vector<residency::TensorSpec> &specs,
                                         const Step &step);
// The optimizer updates in the reverse order.
std::optional<Order> reverse_update(const std::vector<residency::TensorSpec> &specs,
                                    const Step &step);

}  // namespace stepwell::schedule
