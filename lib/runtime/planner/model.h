// SPDX-License-Identifier: Apache-2.0
// What a replay needs of a runtime: the tensors of a phase's step, the step, and the machine with
// the room that is left for them. A copy: whoever has it holds no lock.
#pragma once

#include "lib/schedule/replay/machine.h"
#include "lib/schedule/trace/step.h"

namespace stepwell {

struct StepModel {
    std::vector<residency::TensorSpec> specs;  // numbered from 0, as the step names them
    std::vector<residency::TensorId> ids;      // of these in the core; kNone: it is gone since
    schedule::Step step;                       // as completed() makes it
    schedule::Machine machine;
};

}  // namespace stepwell
