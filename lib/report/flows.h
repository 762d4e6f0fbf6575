// SPDX-License-Identifier: Apache-2.0
// From what was recorded: when each thread of the program computed, and which transfer brought what
// it used there. Pure.
#pragma once

#include "lib/observe/timeline.h"

#include <cstdint>
#include <vector>

namespace stepwell::report {

// The spans to be drawn, in the order in which they begin: those of the snapshot, where instead of
// uses there are the times in which their threads computed (kUse, lane: thread), that is the steps
// without the thread's own waits.
std::vector<observe::Span> drawn_spans(const observe::TimelineSnapshot &snapshot);

// An arrow from a transfer to the computation that used what it brought first. Indices of the list
// above; times are inside the spans.
struct Flow {
    size_t from = 0;
    size_t to = 0;
    uint64_t from_ns = 0;
    uint64_t to_ns = 0;
};

// Of the transfers of a tensor on one link those before the last one have no arrow: the last let
// the use begin. Tensors that share a block are known by the first of them.
std::vector<Flow> flows_of(const observe::TimelineSnapshot &snapshot,
                           const std::vector<observe::Span> &drawn);

}  // namespace stepwell::report
