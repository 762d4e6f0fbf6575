// SPDX-License-Identifier: Apache-2.0
// A gradient that is measured while its writer still has it: the next step then knows its sums and
// need not bring its bytes back. Done for optimizers whose last step was waited for until its norm
// was known: the same thread would have waited for the same pass.
#pragma once

#include "lib/residency/types.h"
#include "lib/update/kernels/kernels.h"

#include <cstdint>
#include <vector>

namespace stepwell::update {

// Of the elements of a gradient.
struct ElementRange {
    uint64_t begin = 0;
    uint64_t count = 0;
};

// What a scan gives, of the parts of a parameter in their order.
struct Measurement {
    kernels::ScanResult scan;
    std::vector<double> sums;  // of squares, by part
};

// One pass over a gradient that lies in one piece; the bits of a step's own scan. Any thread.
Measurement measure(const void *gradient, uint32_t dtype, const std::vector<ElementRange> &parts);

// When to measure a parameter's gradient, and what came of it. Guarded by the pipeline's mutex.
class Measure {
public:
    // What has been measured before is void. Another `order` each time, from 1 on.
    void set_parts(std::vector<ElementRange> parts, uint64_t order);
    // A step begins: what is written from now on is for the one after it.
    void ask(bool wanted);
    [[nodiscard]] bool wanted() const { return wanted_; }
    // The gradient was written, to its last element: whether its writer is to measure it.
    [[nodiscard]] bool written();
    [[nodiscard]] const std::vector<ElementRange> &parts() const { return parts_; }
    [[nodiscard]] uint64_t order() const { return order_; }
    // Of the gradient as of that version.
    void take(Measurement measurement, uint64_t version);
    // Null where the gradient has changed since, or was not measured.
    [[nodiscard]] const Measurement *use(uint64_t version);

private:
    std::vector<ElementRange> parts_;
    uint64_t order_ = 0;
    bool wanted_ = false;
    uint32_t writes_ = 0;      // since the last step
    uint32_t last_write_ = 0;  // which it was between the two steps before
    uint32_t rests_ = 0;       // steps left without, after one that was in vain
    Measurement latest_;
    uint64_t version_ = 0;  // 0: nothing was taken
    bool fresh_ = false;    // and not used yet
};

}  // namespace stepwell::update
