// SPDX-License-Identifier: Apache-2.0
// What a step's verdict is made of: on several ranks each has its shards' part of it, and all need
// the whole. The update layer gives its part away and is told the rest; who brings the parts
// together is not its affair.
#pragma once

#include "lib/support/status.h"

#include <cstdint>

namespace stepwell::update {

struct Verdict {
    Status status;           // why a gradient could not be read
    double sum = 0.0;        // of squares, unscaled
    double maximum = 0.0;    // of magnitudes
    uint64_t nonfinite = 0;  // elements
};

// One step's. Outlives the step, or whoever asked for it withdraws first.
class Agreement {
public:
    // This rank's part, once. Called with the pipeline's leaf lock held: it only queues.
    virtual void tell(const Verdict &mine) = 0;
    // A step was begun that will tell.
    bool adopted = false;

protected:
    ~Agreement() = default;
};

}  // namespace stepwell::update
