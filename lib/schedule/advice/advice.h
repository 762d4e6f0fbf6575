// SPDX-License-Identifier: Apache-2.0
// Advice: what another order of a step would move, judged by replays of both. Pure; one thread.
#pragma once

#include "lib/schedule/advice/reorder.h"
#include "lib/schedule/plan/choose.h"

namespace stepwell::schedule {

// The cost of a step.
struct OrderCost {
    uint64_t nvme_read_bytes = 0;
    uint64_t nvme_write_bytes = 0;
    uint64_t host_to_device_bytes = 0;
    uint64_t device_to_host_bytes = 0;
    uint64_t step_ns = 0;
    [[nodiscard]] uint64_t nvme_bytes() const { return nvme_read_bytes + nvme_write_bytes; }
    [[nodiscard]] uint64_t bytes() const
    {
        return nvme_bytes() + host_to_device_bytes + device_to_host_bytes;
    }
};

enum class AdviceKind : uint8_t { kGroup = 1, kReverse = 2, kBoth = 3 };

struct Advice {
    AdviceKind kind = AdviceKind::kGroup;
    OrderCost now;
    OrderCost then;
    uint32_t micro_batches = 0;  // grouped micro-batches; 0: not grouped
    uint32_t parts = 0;          // of each micro-batch
    uint32_t visits = 0;         // of the reversed update; 0: not reversed
};

// The work of a replay of the step: its fetches and blocks. A replay takes about a microsecond for
// each, and judging one policy replays five steps.
uint64_t replay_work(const Machine &machine, const std::vector<residency::TensorSpec> &specs,
                     const Step &step);
// The work aimed at for each order: larger steps are replayed in larger blocks, and refused if
// they exceed the maximum even so.
constexpr uint64_t kReplayWork = 100'000;
constexpr uint64_t kReplayWorkMax = 4 * kReplayWork;

// The orders that save most first; empty if the present order is the best. Each is judged with its
// best policy, of as many policies as the work allows. LIMIT if the step is too large; other
// errors say why the machine cannot run it.
Result<std::vector<Advice>> advise(const Machine &machine,
                                   const std::vector<residency::TensorSpec> &specs,
                                   const Step &step);

}  // namespace stepwell::schedule
