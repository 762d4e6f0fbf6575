// SPDX-License-Identifier: Apache-2.0
// Advice: what another order of a step would move, judged by replays of both. Pure; one thread.
#pragma once

#include "lib/schedule/advice/reorder.h"
#include "lib/schedule/plan/choose.h"

namespace stepwell::schedule {

// Of one step.
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
    uint32_t micro_batches = 0;  // that are grouped; 0: none are
    uint32_t parts = 0;          // of each
    uint32_t visits = 0;         // of the update that is reversed; 0: it is not
};

// What a replay of the step has to go through: fetches and blocks. It takes about a microsecond for
// each, and each policy is five steps.
uint64_t replay_work(const Machine &machine, const std::vector<residency::TensorSpec> &specs,
                     const Step &step);
// So much is replayed for each order; what has more is replayed in larger blocks, and refused where
// that does not help.
constexpr uint64_t kReplayWork = 100'000;
constexpr uint64_t kReplayWorkMax = 4 * kReplayWork;

// What saves most first; none where the present order is the best. Each order is judged by the
// policy that is best for it, of as many as the work allows. LIMIT where the step is too large;
// else an error says why the machine cannot go through it.
Result<std::vector<Advice>> advise(const Machine &machine,
                                   const std::vector<residency::TensorSpec> &specs,
                                   const Step &step);

}  // namespace stepwell::schedule
