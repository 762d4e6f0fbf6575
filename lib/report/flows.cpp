// SPDX-License-Identifier: Apache-2.0
// A use is known as an interval: from the question to the grant of a fetch that missed, and of a
// hit from one moment at which the core heard of hits to the next. Its arrow ends in it, in the
// computation of its thread, and never before the transfer did.
#include "lib/report/flows.h"

#include <stepwell/observe.h>

#include <algorithm>
#include <map>

namespace stepwell::report {

namespace {

using observe::Span;
using observe::SpanKind;

bool begins_before(const Span &a, const Span &b)
{
    return a.start_ns < b.start_ns;
}

bool brings(const Span &span)
{
    return span.kind == SpanKind::kTransfer &&
           (span.lane == STW_LINK_NVME_TO_HOST || span.lane == STW_LINK_HOST_TO_DEVICE ||
            span.lane == STW_LINK_NVME_TO_DEVICE);
}

// The parts of [begin, end) in which the thread did not wait.
void add_computation(uint16_t thread, const std::vector<Span> &waits, uint64_t begin, uint64_t end,
                     std::vector<Span> *drawn)
{
    uint64_t at = begin;
    const auto add = [&](uint64_t until) {
        if (until > at) drawn->push_back({at, until, 0, 0, SpanKind::kUse, thread, 0});
    };
    for (const Span &wait : waits) {
        if (wait.end_ns <= at) continue;
        if (wait.start_ns >= end) break;
        add(wait.start_ns);
        at = wait.end_ns;
    }
    add(end);
}

// Inside of the span, before its end: that nanosecond belongs to what follows it.
uint64_t inside(const Span &span, uint64_t ns)
{
    const uint64_t last = span.end_ns > span.start_ns ? span.end_ns - 1 : span.start_ns;
    return std::clamp(ns, span.start_ns, last);
}

}  // namespace

std::vector<Span> drawn_spans(const observe::TimelineSnapshot &snapshot)
{
    std::vector<Span> drawn;
    std::vector<Span> steps;
    std::map<uint16_t, std::vector<Span>> waits;  // of each thread that used something
    for (const Span &span : snapshot.spans) {
        if (span.kind == SpanKind::kUse) {
            waits.try_emplace(span.lane);
        } else {
            drawn.push_back(span);
        }
        if (span.kind == SpanKind::kStep) steps.push_back(span);
    }
    for (const Span &span : snapshot.spans) {
        if (span.kind != SpanKind::kStall) continue;
        const auto thread = waits.find(static_cast<uint16_t>(span.detail));
        if (thread != waits.end()) thread->second.push_back(span);
    }
    std::stable_sort(steps.begin(), steps.end(), begins_before);
    for (auto &[thread, list] : waits) {
        std::stable_sort(list.begin(), list.end(), begins_before);
        uint64_t at = 0;  // steps of two phases may overlap
        for (const Span &step : steps) {
            if (step.end_ns <= at) continue;
            add_computation(thread, list, std::max(at, step.start_ns), step.end_ns, &drawn);
            at = step.end_ns;
        }
    }
    std::stable_sort(drawn.begin(), drawn.end(), begins_before);
    return drawn;
}

std::vector<Flow> flows_of(const observe::TimelineSnapshot &snapshot,
                           const std::vector<Span> &drawn)
{
    std::vector<size_t> arrivals;
    std::map<uint16_t, std::vector<size_t>> computations;  // of a thread, in order
    for (size_t i = 0; i < drawn.size(); ++i) {
        if (brings(drawn[i])) arrivals.push_back(i);
        if (drawn[i].kind == SpanKind::kUse) computations[drawn[i].lane].push_back(i);
    }
    std::stable_sort(arrivals.begin(), arrivals.end(),
                     [&](size_t a, size_t b) { return drawn[a].end_ns < drawn[b].end_ns; });
    std::vector<Span> uses;
    for (const Span &span : snapshot.spans) {
        if (span.kind == SpanKind::kUse) uses.push_back(span);
    }
    std::stable_sort(uses.begin(), uses.end(),
                     [](const Span &a, const Span &b) { return a.end_ns < b.end_ns; });

    std::vector<Flow> flows;
    std::map<uint32_t, std::map<uint16_t, size_t>> brought;  // by tensor and link: the last one
    size_t next = 0;
    for (const Span &use : uses) {
        for (; next < arrivals.size() && drawn[arrivals[next]].end_ns <= use.end_ns; ++next) {
            const Span &arrival = drawn[arrivals[next]];
            brought[observe::tensor_of(arrival)][arrival.lane] = arrivals[next];
        }
        const auto found = brought.find(observe::tensor_of(use));
        if (found == brought.end()) continue;
        // The last computation of the thread that began by then, or the one that the grant begins.
        const std::vector<size_t> &list = computations[use.lane];
        auto at = std::upper_bound(list.begin(), list.end(), use.end_ns,
                                   [&](uint64_t ns, size_t i) { return ns < drawn[i].start_ns; });
        if (at == list.begin()) continue;
        const size_t to = *--at;
        for (const auto &[link, from] : found->second) {
            const uint64_t from_ns = inside(drawn[from], drawn[from].end_ns);
            const uint64_t to_ns = inside(drawn[to], use.end_ns);
            if (to_ns >= from_ns && drawn[to].end_ns > use.start_ns) {
                flows.push_back({from, to, from_ns, to_ns});
            }
        }
        brought.erase(found);
    }
    return flows;
}

}  // namespace stepwell::report
