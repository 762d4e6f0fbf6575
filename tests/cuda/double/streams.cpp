// SPDX-License-Identifier: Apache-2.0
// Entry points of streams and events.
#include "tests/cuda/double/control.h"
#include "tests/cuda/double/driver.h"

namespace stepwell::cuda_double {
namespace {

int create_stream(Call &call, void **stream_out, unsigned flags)
{
    if (stream_out == nullptr || (flags & ~kStreamNonBlocking) != 0) return kInvalidValue;
    *stream_out =
        call.scheduler().create(call.context, (flags & kStreamNonBlocking) == 0, false)->handle;
    return kSuccess;
}

// What is wrong with an event's time: never recorded, not timed, not there yet.
int time_of(const Event &event, uint64_t *time_out)
{
    if (!event.timed || event.record == nullptr) return kInvalidHandle;
    if (!event.record->ended) return kNotReady;
    *time_out = event.record->times.end_ns;
    return kSuccess;
}

void report_capture(Call &call, const Stream &stream)
{
    if (!stream.captures) return;
    call.state.report.add(STW_DOUBLE_CAPTURED,
                          text("%s was called for stream %llu, which records a graph.", call.name(),
                               static_cast<unsigned long long>(stream.number)));
}

int elapsed(Entry entry, float *milliseconds_out, void *start, void *end)
{
    return enter(entry, Needs::kContext, [&](Call &call) -> int {
        if (milliseconds_out == nullptr) return kInvalidValue;
        Event *events[2] = {};
        uint64_t times[2] = {};
        void *const handles[2] = {start, end};
        for (int i = 0; i < 2; ++i)
            if (const int result = find_event(call, handles[i], &events[i]); result != kSuccess)
                return result;
        for (int i = 0; i < 2; ++i)
            if (const int result = time_of(*events[i], &times[i]); result != kSuccess)
                return result;
        const auto ns = static_cast<int64_t>(times[1] - times[0]);
        *milliseconds_out = static_cast<float>(static_cast<double>(ns) / 1e6);
        return kSuccess;
    });
}

}  // namespace

extern "C" {

int cuStreamCreate(void **stream_out, unsigned flags)
{
    return enter(Entry::cuStreamCreate, Needs::kContext,
                 [&](Call &call) { return create_stream(call, stream_out, flags); });
}

int cuStreamCreateWithPriority(void **stream_out, unsigned flags, int)
{
    return enter(Entry::cuStreamCreateWithPriority, Needs::kContext,
                 [&](Call &call) { return create_stream(call, stream_out, flags); });
}

int cuStreamDestroy_v2(void *handle)
{
    return enter(Entry::cuStreamDestroy_v2, Needs::kContext, [&](Call &call) -> int {
        if (reinterpret_cast<uintptr_t>(handle) <= kStreamPerThread) return kInvalidHandle;
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        call.scheduler().destroy(stream);
        return kSuccess;
    });
}

int cuStreamQuery(void *handle)
{
    return enter(Entry::cuStreamQuery, Needs::kContext, [&](Call &call) -> int {
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        if (stream->captures) return break_captures(call, stream->context);
        if (!stream->queue.empty()) return kNotReady;
        call.tracker().host().join(stream->clock);
        if (stream->last != nullptr) call.state.timing.not_before(stream->last->times.end_ns);
        return kSuccess;
    });
}

int cuStreamSynchronize(void *handle)
{
    return enter(Entry::cuStreamSynchronize, Needs::kContext, [&](Call &call) -> int {
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        if (stream->captures) return break_captures(call, stream->context);
        if (stream->last == nullptr) return kSuccess;
        call.scheduler().wait(call.lock, stream->last);
        return stream->context->sticky;
    });
}

int cuStreamWaitEvent(void *handle, void *event_handle, unsigned flags)
{
    return enter(Entry::cuStreamWaitEvent, Needs::kContext, [&](Call &call) -> int {
        Stream *stream = nullptr;
        Event *event = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        if (const int result = find_event(call, event_handle, &event); result != kSuccess)
            return result;
        if (flags > 1) return kInvalidValue;
        report_capture(call, *stream);
        if (event->record != nullptr)
            call.scheduler().wait_event(*stream, event->record, call.name());
        return kSuccess;
    });
}

int cuStreamIsCapturing(void *handle, int *status_out)
{
    return enter(Entry::cuStreamIsCapturing, Needs::kContext, [&](Call &call) -> int {
        if (status_out == nullptr) return kInvalidValue;
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        *status_out = stream->captures ? 1 : 0;
        bool implicit = false;
        call.scheduler().each([&](const Stream &other) {
            implicit |= other.captures && other.blocking && other.context == stream->context;
        });
        return stream == call.context->legacy && implicit ? kCaptureImplicit : kSuccess;
    });
}

int cuStreamGetId(void *handle, unsigned long long *id_out)
{
    return enter(Entry::cuStreamGetId, Needs::kContext, [&](Call &call) -> int {
        if (id_out == nullptr) return kInvalidValue;
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        *id_out = stream->number;
        return kSuccess;
    });
}

int cuThreadExchangeStreamCaptureMode(int *mode)
{
    return enter(Entry::cuThreadExchangeStreamCaptureMode, Needs::kInit, [&](Call &call) -> int {
        if (mode == nullptr || *mode < kCaptureModeGlobal || *mode > kCaptureModeRelaxed)
            return kInvalidValue;
        std::swap(call.thread.capture_mode, *mode);
        return kSuccess;
    });
}

int cuStreamGetCtx(void *handle, void **context_out)
{
    return enter(Entry::cuStreamGetCtx, Needs::kContext, [&](Call &call) -> int {
        if (context_out == nullptr) return kInvalidValue;
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        *context_out = stream->context;
        return kSuccess;
    });
}

int cuStreamGetDevice(void *handle, int *device_out)
{
    return enter(Entry::cuStreamGetDevice, Needs::kContext, [&](Call &call) -> int {
        if (device_out == nullptr) return kInvalidValue;
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        *device_out = stream->context->device;
        return kSuccess;
    });
}

int cuEventCreate(void **event_out, unsigned flags)
{
    return enter(Entry::cuEventCreate, Needs::kContext, [&](Call &call) -> int {
        if (event_out == nullptr || flags > 7) return kInvalidValue;
        auto event = std::make_unique<Event>();
        event->context = call.context;
        event->timed = (flags & kEventDisableTiming) == 0;
        *event_out = event.get();
        call.state.events[*event_out] = std::move(event);
        return kSuccess;
    });
}

int cuEventRecord(void *event_handle, void *handle)
{
    return enter(Entry::cuEventRecord, Needs::kContext, [&](Call &call) -> int {
        Stream *stream = nullptr;
        Event *event = nullptr;
        if (const int result = find_event(call, event_handle, &event); result != kSuccess)
            return result;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        if (event->context != stream->context) {
            call.state.report.add(STW_DOUBLE_WRONG_CONTEXT,
                                  text("cuEventRecord was given an event of device %d and stream "
                                       "%llu of device %d; both must be of one context.",
                                       event->context->device,
                                       static_cast<unsigned long long>(stream->number),
                                       stream->context->device));
            return kInvalidHandle;
        }
        report_capture(call, *stream);
        Request request{call.name()};
        request.work.ns = call.state.timing.costs().event_ns;
        event->record = call.scheduler().submit(*stream, std::move(request));
        return kSuccess;
    });
}

int cuEventQuery(void *handle)
{
    return enter(Entry::cuEventQuery, Needs::kInit, [&](Call &call) -> int {
        Event *event = nullptr;
        if (const int result = find_event(call, handle, &event); result != kSuccess) return result;
        if (event->record == nullptr) return kSuccess;
        if (!event->record->ended) return kNotReady;
        call.tracker().host().join(event->record->clock);
        call.state.timing.not_before(event->record->times.end_ns);
        return kSuccess;
    });
}

int cuEventSynchronize(void *handle)
{
    return enter(Entry::cuEventSynchronize, Needs::kContext, [&](Call &call) -> int {
        Event *event = nullptr;
        if (const int result = find_event(call, handle, &event); result != kSuccess) return result;
        if (event->record == nullptr) return kSuccess;
        // Another thread may record it anew meanwhile.
        const OperationPtr record = event->record;
        call.scheduler().wait(call.lock, record);
        return event->context->sticky;
    });
}

int cuEventElapsedTime(float *milliseconds_out, void *start, void *end)
{
    return elapsed(Entry::cuEventElapsedTime, milliseconds_out, start, end);
}

int cuEventElapsedTime_v2(float *milliseconds_out, void *start, void *end)
{
    return elapsed(Entry::cuEventElapsedTime_v2, milliseconds_out, start, end);
}

int cuEventDestroy_v2(void *handle)
{
    return enter(Entry::cuEventDestroy_v2, Needs::kContext, [&](Call &call) -> int {
        Event *event = nullptr;
        if (const int result = find_event(call, handle, &event); result != kSuccess) return result;
        event->destroyed = true;
        event->record = nullptr;
        return kSuccess;
    });
}

int cuLaunchHostFunc(void *handle, HostFunction function, void *user)
{
    return enter(Entry::cuLaunchHostFunc, Needs::kContext, [&](Call &call) -> int {
        if (function == nullptr) return kInvalidValue;
        Stream *stream = nullptr;
        if (const int result = find_stream(call, handle, &stream); result != kSuccess)
            return result;
        Request request;
        request.what = call.name();
        request.run = [function, user] { function(user); };
        request.tells_host = true;
        call.scheduler().submit(*stream, std::move(request));
        return kSuccess;
    });
}

}  // extern "C"

}  // namespace stepwell::cuda_double
