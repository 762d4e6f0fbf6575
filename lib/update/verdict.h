// SPDX-License-Identifier: Apache-2.0
// The parts of a step's verdict: on several ranks each has that of its shards, and all need the
// complete one. The update layer publishes its part and is given the result; it does not know how
// the parts are combined.
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

// One step's. Outlives the step, or is retracted first.
class Agreement {
public:
    // This rank's part, once. Called with the pipeline's leaf lock held: it only queues.
    virtual void publish(const Verdict &mine) = 0;
    // A step was begun that will publish.
    bool adopted = false;

protected:
    ~Agreement() = default;
};

}  // namespace stepwell::update
