// SPDX-License-Identifier: Apache-2.0
// Other orders of a step that compute the same: what a program could do instead. Only the order
// changes, and the tensors that each micro-batch then needs of its own. Whoever writes a tensor
// stays before whoever reads it; sums into gradients alone may come in another order.
// Pure; one thread.
#pragma once

#include "lib/schedule/trace/step.h"

#include <optional>

namespace stepwell::schedule {

struct Order {
    Step step;
    // As before; behind them those that are written anew by each micro-batch, once for each more.
    std::vector<residency::TensorSpec> specs;
    uint32_t times = 0;  // micro-batches; or parameters that are updated
    uint32_t parts = 0;  // of a micro-batch, each of which runs for all of them: layers, say
};

// All micro-batches of a part together, where the step runs one micro-batch after the other.
std::optional<Order> group_micro_batches(const std::vector<residency::TensorSpec> &specs,
                                         const Step &step);
// The optimizer begins with what it ends with now.
std::optional<Order> reverse_update(const std::vector<residency::TensorSpec> &specs,
                                    const Step &step);

}  // namespace stepwell::schedule
