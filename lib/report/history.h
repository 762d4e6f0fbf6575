// SPDX-License-Identifier: Apache-2.0
// "history" of the report: the newest steps one by one, for whom the program waited, bytes per tier
// over time, and what moved on each link in the last steps. Pure: snapshots in, JSON out.
#pragma once

#include "lib/observe/step_history.h"
#include "lib/observe/timeline.h"
#include "lib/report/json.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::report {

constexpr uint32_t kStepsDrawn = 6;         // at most, with every transfer
constexpr uint32_t kOlderWindows = 3;       // at most, of phases without a step among those
constexpr uint32_t kSpansDrawn = 12000;     // at most, of all lanes of a window
constexpr uint32_t kSamplesDrawn = 2000;    // at most, of a tier
constexpr uint64_t kSpanGapNs = 1'000'000;  // transfers of a tensor nearer than that are one span

// By the number of the tensor. A number is used again, so what began before belongs to another.
struct TensorName {
    std::string name;
    uint64_t created_ns = 0;
};

struct HistoryData {
    uint64_t origin_ns = 0;  // time 0 of the report: when the runtime was opened
    std::vector<observe::StepRecord> steps;
    uint64_t steps_total = 0;
    observe::StallLedger stalls;
    std::vector<TensorName> tensors;
    observe::TimelineSnapshot timeline;
};

// An object's value; call after key().
void write_history(JsonWriter &json, const HistoryData &data);

// "" for the library's own, and for what has no name any more.
std::string_view name_of(const std::vector<TensorName> &tensors, const observe::Span &span);

}  // namespace stepwell::report
