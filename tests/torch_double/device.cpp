// SPDX-License-Identifier: Apache-2.0
#include "tests/torch_double/device.h"

#include "tests/torch_double/memory.h"
#include "tests/torch_double/work.h"

#include <c10/core/impl/DeviceGuardImplInterface.h>

#include <atomic>
#include <vector>

#include <pthread.h>

namespace stepwell::torch_double {
namespace {

// As many as PyTorch's pool of a CUDA device has; they come round.
constexpr int kPoolStreams = 32;

thread_local c10::StreamId current = 0;  // 0: the legacy stream

std::atomic<bool> forked{false};
const int watched = pthread_atfork(nullptr, nullptr, [] { forked = true; });

c10::Stream stream_of(c10::StreamId id)
{
    return c10::Stream(c10::Stream::UNSAFE, kDevice, id);
}

}  // namespace

bool is_forked()
{
    return forked;
}

void enter()
{
    TORCH_CHECK(!forked, "late: a process that was forked cannot use the device; to use it, start "
                         "processes by 'spawn'.");
    static void *const context = [] {
        void *made = nullptr;
        check(cuInit(0), "cuInit");
        check(cuDevicePrimaryCtxRetain(&made, 0), "cuDevicePrimaryCtxRetain");
        return made;
    }();
    thread_local bool entered = false;
    if (entered) return;
    entered = true;
    check(cuCtxSetCurrent(context), "cuCtxSetCurrent");
}

c10::StreamId current_stream()
{
    return current;
}

void *handle_of(c10::StreamId stream)
{
    static const std::vector<void *> pool = [] {
        std::vector<void *> made(kPoolStreams);
        for (void *&each : made) STW_LATE_CALL(cuStreamCreate, &each, kStreamNonBlocking);
        return made;
    }();
    return stream == 0 ? nullptr : pool.at(static_cast<size_t>(stream - 1));
}

Mark::Mark(c10::StreamId stream)
{
    STW_LATE_CALL(cuEventCreate, &event_, kEventDisableTiming);
    STW_LATE_CALL(cuEventRecord, event_, handle_of(stream));
}

Mark::~Mark()
{
    if (!forked) ask(cuEventDestroy_v2, event_);
}

bool Mark::is_over() const
{
    return ask(cuEventQuery, event_) == kSuccess;
}

namespace {

// What PyTorch asks of any device.
struct Guard final : c10::impl::DeviceGuardImplInterface {
    c10::DeviceType type() const override { return kDevice.type(); }
    c10::Device exchangeDevice(c10::Device) const override { return kDevice; }
    c10::Device getDevice() const override { return kDevice; }
    void setDevice(c10::Device) const override {}
    void uncheckedSetDevice(c10::Device) const noexcept override {}
    c10::DeviceIndex deviceCount() const noexcept override { return 1; }

    c10::Stream getStream(c10::Device) const override { return stream_of(current); }
    c10::Stream getDefaultStream(c10::Device) const override { return stream_of(0); }
    c10::Stream getNewStream(c10::Device, int) const override
    {
        static std::atomic<unsigned> next{0};
        return stream_of(1 + next++ % kPoolStreams);
    }
    c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override
    {
        return getNewStream(device, 0);
    }
    c10::Stream exchangeStream(c10::Stream stream) const override
    {
        return stream_of(std::exchange(current, stream.id()));
    }
    void *getStreamNativeHandle(const c10::Stream stream) const override
    {
        return handle_of(stream.id());
    }
    bool isStreamCapturing(const c10::Stream &stream) const override
    {
        int status = 0;
        STW_LATE_CALL(cuStreamIsCapturing, handle_of(stream.id()), &status);
        return status != 0;
    }
    bool queryStream(const c10::Stream &stream) const override
    {
        return ask(cuStreamQuery, handle_of(stream.id())) == kSuccess;
    }
    void synchronizeStream(const c10::Stream &stream) const override
    {
        STW_LATE_CALL(cuStreamSynchronize, handle_of(stream.id()));
        throw_failure();
    }
    void synchronizeDevice(const c10::DeviceIndex) const override
    {
        STW_LATE_CALL(cuCtxSynchronize);
        throw_failure();
    }

    void record(void **event, const c10::Stream &stream, const c10::DeviceIndex,
                const c10::EventFlag flag) const override
    {
        const bool timed = flag == c10::EventFlag::BACKEND_DEFAULT;
        if (*event == nullptr) STW_LATE_CALL(cuEventCreate, event, timed ? 0 : kEventDisableTiming);
        STW_LATE_CALL(cuEventRecord, *event, handle_of(stream.id()));
    }
    void destroyEvent(void *event, const c10::DeviceIndex) const noexcept override
    {
        if (event != nullptr && !forked) ask(cuEventDestroy_v2, event);
    }
    void block(void *event, const c10::Stream &stream) const override
    {
        if (event != nullptr) STW_LATE_CALL(cuStreamWaitEvent, handle_of(stream.id()), event, 0);
    }
    bool queryEvent(void *event) const override
    {
        return event == nullptr || ask(cuEventQuery, event) == kSuccess;
    }
    void synchronizeEvent(void *event) const override
    {
        if (event != nullptr) STW_LATE_CALL(cuEventSynchronize, event);
        throw_failure();
    }
    double elapsedTime(void *start, void *end, const c10::DeviceIndex) const override
    {
        float milliseconds = 0;
        STW_LATE_CALL(cuEventElapsedTime, &milliseconds, start, end);
        return milliseconds;
    }
    void recordDataPtrOnStream(const c10::DataPtr &data, const c10::Stream &stream) const override
    {
        DeviceMemory::get().recordStream(data, stream);
    }
};

C10_REGISTER_GUARD_IMPL(PrivateUse1, Guard)

}  // namespace
}  // namespace stepwell::torch_double
