// SPDX-License-Identifier: Apache-2.0
// What a replay needs: the tensors of a phase's step, the step, and the machine with the room left
// for them. A copy, used without a lock.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

namespace stepwell {

struct StepModel {
    std::vector<residency::TensorSpec> specs;  // by the numbers that the step uses, from 0
    std::vector<residency::TensorId> ids;      // their ids in the core; kNone: destroyed since
    schedule::Step step;                       // made by completed()
    schedule::Machine machine;
    uint32_t enqueued = 0;  // places where releases are ahead of the device, a bit each
};

}  // namespace stepwell
