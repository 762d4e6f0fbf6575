// SPDX-License-Identifier: Apache-2.0
#include "tests/cuda/double/control.h"

#include "tests/cuda/double/driver.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace stepwell::cuda_double {
namespace {

// What a control call works with: the driver's state under its lock, and the calling thread.
struct Control {
    Control() : driver(Driver::get()), lock(driver.lock), state(driver.state()) {}

    // nullptr: there is no such stream, or no context for a default one.
    Stream *stream(void *handle)
    {
        const auto value = reinterpret_cast<uintptr_t>(handle);
        if (value > kStreamPerThread) return state.scheduler.find(handle);
        Thread &thread = Thread::current(state.generation);
        if (thread.context() == nullptr) return nullptr;
        Call call{state, thread, lock, Entry::kCount, thread.context()};
        Stream *found = nullptr;
        find_stream(call, handle, &found);
        return found;
    }

    Driver &driver;
    std::unique_lock<std::mutex> lock;
    State &state;
};

void write_lines(const std::vector<std::string> &lines, char *text_out, size_t capacity)
{
    if (text_out == nullptr || capacity == 0) return;
    std::string all;
    for (const std::string &line : lines) all += line + "\n";
    std::snprintf(text_out, capacity, "%s", all.c_str());
}

std::vector<Touch> touches_of(const stw_double_range *ranges, uint32_t count)
{
    std::vector<Touch> touches;
    for (uint32_t i = 0; i < count; ++i)
        if (ranges[i].bytes > 0)
            touches.push_back({ranges[i].address, ranges[i].bytes, ranges[i].writes != 0});
    return touches;
}

}  // namespace
}  // namespace stepwell::cuda_double

using namespace stepwell::cuda_double;

extern "C" {

int stw_double_reset(const char *given)
{
    if (given == nullptr) given = std::getenv("STW_CUDA_DOUBLE");
    const std::optional<Options> options = parse_options(given != nullptr ? given : "");
    return options && Driver::get().reset(*options) ? 0 : -1;
}

uint64_t stw_double_calls(const char *name)
{
    Control control;
    const auto &calls = control.state.calls;
    if (name == nullptr) {
        uint64_t sum = 0;
        for (const uint64_t each : calls) sum += each;
        return sum;
    }
    const Entry entry = entry_by_name(name);
    return entry != Entry::kCount ? calls[static_cast<size_t>(entry)] : UINT64_MAX;
}

void stw_double_calls_reset(void)
{
    Control control;
    control.state.calls.fill(0);
}

uint64_t stw_double_pageable_copies(void)
{
    Control control;
    return control.state.pageable_copies;
}

uint64_t stw_double_implicit_waits(void)
{
    Control control;
    return control.state.implicit_waits;
}

uint32_t stw_double_violations(void)
{
    Control control;
    return static_cast<uint32_t>(control.state.report.count());
}

int stw_double_violation(uint32_t index, char *text_out, size_t capacity)
{
    Control control;
    const auto &violations = control.state.report.violations();
    if (index >= violations.size()) return 0;
    if (text_out != nullptr && capacity > 0)
        std::snprintf(text_out, capacity, "%s", violations[index].sentence.c_str());
    return violations[index].kind;
}

uint32_t stw_double_take_violations(char *text_out, size_t capacity)
{
    Control control;
    const auto count = static_cast<uint32_t>(control.state.report.count());
    std::vector<std::string> lines;
    for (Violation &violation : control.state.report.take())
        lines.push_back(std::move(violation.sentence));
    write_lines(lines, text_out, capacity);
    return count;
}

uint32_t stw_double_leaks(char *text_out, size_t capacity)
{
    Control control;
    const std::vector<std::string> lines = leaks(control.state, control.driver.threads);
    write_lines(lines, text_out, capacity);
    return static_cast<uint32_t>(lines.size());
}

int stw_double_hold_calls(const char *name, int hold)
{
    const Entry entry = entry_by_name(name);
    if (entry == Entry::kCount) return -1;
    Control control;
    control.driver.held[static_cast<size_t>(entry)] = hold != 0;
    control.driver.entered.notify_all();
    return 0;
}

int stw_double_fail(const char *name, uint64_t nth, int code)
{
    const Entry entry = entry_by_name(name);
    if (entry == Entry::kCount) return -1;
    Control control;
    control.state.failures.add({entry, nth, code});
    return 0;
}

void stw_double_break(int device, int code)
{
    Control control;
    if (device < 0 || static_cast<uint64_t>(device) >= kDevicesMax) return;
    break_context(control.state, control.state.contexts[static_cast<size_t>(device)], code);
}

void stw_double_hold(void *handle)
{
    Control control;
    Stream *stream = control.stream(handle);
    if (stream != nullptr) stream->held = true;
}

void stw_double_let_go(void *handle, uint64_t operations)
{
    Control control;
    Stream *stream = control.stream(handle);
    if (stream == nullptr) return;
    stream->held = operations != 0;
    stream->let_go = operations != 0 ? stream->let_go + operations : 0;
    control.state.scheduler.changed();
}

void stw_double_capture(void *handle, int captures)
{
    Control control;
    Stream *stream = control.stream(handle);
    if (stream == nullptr) return;
    stream->captures = captures != 0;
    stream->captured_by = &Thread::current(control.state.generation);
}

void stw_double_hold_all(int hold)
{
    Control control;
    control.state.scheduler.hold_all(hold != 0);
}

uint32_t stw_double_streams(void **streams, uint32_t capacity)
{
    Control control;
    uint32_t count = 0;
    control.state.scheduler.each([&](Stream &stream) {
        if (stream.destroyed || stream.is_default) return;
        if (count < capacity) streams[count] = stream.handle;
        ++count;
    });
    return count;
}

uint64_t stw_double_pending(void *handle)
{
    Control control;
    if (handle == nullptr) return control.state.scheduler.pending();
    const Stream *stream = control.stream(handle);
    return stream != nullptr ? stream->queue.size() : 0;
}

void stw_double_drain(void)
{
    Control control;
    control.state.scheduler.drain(control.lock);
}

int stw_double_consume(void *handle, const char *name, const stw_double_range *ranges,
                       uint32_t count, void (*work)(void *user, stw_double_alias_of alias),
                       void *user)
{
    return stw_double_consume_when(handle, name, ranges, count, work, nullptr, user);
}

int stw_double_consume_when(void *handle, const char *name, const stw_double_range *ranges,
                            uint32_t count, void (*work)(void *user, stw_double_alias_of alias),
                            int (*ready)(void *user), void *user)
{
    Control control;
    Stream *stream = control.stream(handle);
    if (stream == nullptr || stream->destroyed) return kInvalidHandle;
    if (stream->context->sticky != 0) return stream->context->sticky;
    Request request;
    request.what = name;
    request.kernel = true;
    request.touches = touches_of(ranges, count);
    request.work = {Engine::kCompute, bytes_of(request.touches),
                    control.state.timing.costs().kernel_ns};
    if (work != nullptr) request.run = [work, user] { work(user, stw_double_alias); };
    if (ready != nullptr) request.ready = [ready, user] { return ready(user) != 0; };
    control.state.scheduler.submit(*stream, std::move(request));
    return kSuccess;
}

int stw_double_touch(void *handle, const char *name, const stw_double_range *ranges, uint32_t count)
{
    Control control;
    Stream *stream = control.stream(handle);
    if (stream == nullptr || stream->destroyed) return kInvalidHandle;
    if (stream->context->sticky != 0) return stream->context->sticky;
    Request request;
    request.what = name;
    request.kernel = true;
    request.touches = touches_of(ranges, count);
    control.state.scheduler.submit(*stream, std::move(request));
    return kSuccess;
}

int stw_double_compute(void *handle, uint64_t ns)
{
    Control control;
    Stream *stream = control.stream(handle);
    if (stream == nullptr || stream->destroyed) return kInvalidHandle;
    if (stream->context->sticky != 0) return stream->context->sticky;
    Request request;
    request.what = "stw_double_compute";
    request.work = {Engine::kCompute, 0, ns};
    control.state.scheduler.submit(*stream, std::move(request));
    return kSuccess;
}

uint64_t stw_double_time(void)
{
    Control control;
    return control.state.timing.now();
}

uint64_t stw_double_settle(void)
{
    Control control;
    return control.state.timing.settle();
}

int stw_double_engine_totals(int device, int engine, stw_double_engine *totals_out)
{
    if (device < 0 || device >= static_cast<int>(kDevicesMax) || engine < 0 ||
        engine >= static_cast<int>(kEngines))
        return -1;
    Control control;
    const EngineTotals &totals = control.state.timing.totals(device, static_cast<Engine>(engine));
    *totals_out = {totals.operations, totals.bytes, totals.busy_ns};
    return 0;
}

int stw_double_comes_after(void *handle, void *other_handle)
{
    Control control;
    const Stream *stream = control.stream(handle);
    const Stream *other = control.stream(other_handle);
    if (stream == nullptr || other == nullptr || other->last == nullptr) return 1;
    Clock clock = stream->clock;
    clock.join(control.state.tracker.host());
    return clock.covers(other->last->epoch) ? 1 : 0;
}

uint64_t stw_double_blocked(void)
{
    Control control;
    return control.state.scheduler.blocked();
}

// Without the lock: kernels call it for each address while others make calls.
void *stw_double_alias(uint64_t address)
{
    return Driver::get().state().memory.space().alias(address);
}

void stw_double_host_reads(uint64_t address, uint64_t bytes)
{
    Control control;
    control.state.tracker.host_touch({address, bytes, false}, "The host");
}

void stw_double_host_writes(uint64_t address, uint64_t bytes)
{
    Control control;
    control.state.tracker.host_touch({address, bytes, true}, "The host");
}

}  // extern "C"
