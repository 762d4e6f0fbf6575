// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/timing.h"

#include <algorithm>
#include <atomic>
#include <iterator>

namespace stepwell::cuda_double {
namespace {

// Gaps before the earliest of so many are filled no more.
constexpr size_t kIntervalsMax = 4096;

struct ThreadTime {
    uint64_t number = 0;
    uint64_t ns = 0;
};
thread_local ThreadTime thread_time;

std::atomic<uint64_t> timings_made = 0;

uint64_t at_rate(uint64_t bytes, uint64_t mb_per_s)
{
    return mb_per_s == 0 ? 0 : bytes * 1000 / mb_per_s;
}

}  // namespace

Timing::Timing(const Options &options) : costs_(options.costs), number_(++timings_made) {}

uint64_t Timing::now()
{
    if (thread_time.number != number_) thread_time = {number_, 0};
    thread_time.ns = std::max(thread_time.ns, floor_ns_);
    return thread_time.ns;
}

void Timing::not_before(uint64_t ns)
{
    thread_time.ns = std::max(now(), ns);
    last_ns_ = std::max(last_ns_, thread_time.ns);
}

void Timing::spend(uint64_t ns)
{
    not_before(now() + ns);
}

void Timing::registers(uint64_t bytes)
{
    spend(at_rate(bytes, costs_.register_mb_per_s));
}

void Timing::call(Entry entry)
{
    switch (entry) {
    case Entry::cuMemcpyAsync:
    case Entry::cuMemcpyHtoDAsync_v2:
    case Entry::cuMemcpyDtoHAsync_v2:
    case Entry::cuMemcpyDtoDAsync_v2:
    case Entry::cuMemcpyBatchAsync:
    case Entry::cuMemcpyBatchAsync_v2: return spend(costs_.copy_call_ns);
    case Entry::cuMemsetD8Async:
    case Entry::cuMemsetD32Async:
    case Entry::cuLaunchHostFunc:
    case Entry::cuLaunchKernel: return spend(costs_.launch_call_ns);
    case Entry::cuEventRecord:
    case Entry::cuEventQuery:
    case Entry::cuStreamWaitEvent: return spend(costs_.event_call_ns);
    case Entry::cuMemCreate: return spend(costs_.create_ns);
    case Entry::cuMemMap: return spend(costs_.map_ns);
    default: return;
    }
}

uint64_t Timing::settle()
{
    floor_ns_ = std::max(floor_ns_, last_ns_);
    return now();
}

uint64_t Timing::duration(const Work &work) const
{
    switch (work.engine) {
    case Engine::kUp: return work.ns + at_rate(work.bytes, costs_.up_mb_per_s);
    case Engine::kDown: return work.ns + at_rate(work.bytes, costs_.down_mb_per_s);
    case Engine::kCompute: return work.ns + at_rate(work.bytes, costs_.device_mb_per_s);
    case Engine::kNone: break;
    }
    return work.ns;
}

Times Timing::place(int device, const Work &work, uint64_t ready_ns)
{
    const uint64_t ns = duration(work);
    uint64_t begin = std::max(now(), ready_ns);
    if (work.engine != Engine::kNone) {
        Channel &channel = devices_[static_cast<size_t>(device)][static_cast<size_t>(work.engine)];
        begin = take(channel, begin, ns);
        ++channel.totals.operations;
        channel.totals.bytes += work.bytes;
        channel.totals.busy_ns += ns;
    }
    last_ns_ = std::max(last_ns_, begin + ns);
    return {begin, begin + ns};
}

// The first gap from there on that is long enough.
uint64_t Timing::take(Channel &channel, uint64_t ready_ns, uint64_t ns)
{
    if (ns == 0) return ready_ns;
    auto &busy = channel.busy;
    uint64_t begin = ready_ns;
    auto next = busy.upper_bound(begin);
    if (next != busy.begin()) begin = std::max(begin, std::prev(next)->second);
    for (; next != busy.end() && next->first < begin + ns; ++next)
        begin = std::max(begin, next->second);
    uint64_t end = begin + ns;
    if (next != busy.end() && next->first == end) {
        end = next->second;
        next = busy.erase(next);
    }
    if (next != busy.begin() && std::prev(next)->second == begin)
        std::prev(next)->second = end;
    else
        busy.emplace_hint(next, begin, end);
    if (busy.size() > kIntervalsMax) busy.erase(busy.begin());
    return begin;
}

}  // namespace stepwell::cuda_double
