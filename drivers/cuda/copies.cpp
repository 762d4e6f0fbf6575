// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/copies.h"

#include <algorithm>

namespace stepwell::drivers::cuda {

namespace {

constexpr uint32_t kAtOnce = 64;  // copies of one call

}  // namespace

Copies::~Copies()
{
    for (const Lane *lane : {&in_, &out_})
        if (lane->stream != nullptr) context_.api().stream_destroy(lane->stream);
}

int Copies::open()
{
    int error = kSuccess;
    for (Lane *lane : {&in_, &out_})
        if (error == kSuccess)
            error = context_.api().stream_create(&lane->stream, kStreamNonBlocking);
    // A batch names host memory by device addresses, which may differ from the host's.
    int same = 0;
    const BatchApi &batch = context_.library().batch;
    const int asked = context_.api().device_attribute(&same, kHostPointers, context_.device());
    batches_.store((batch.copies || batch.copies_v2) && asked == kSuccess && same != 0);
    return error;
}

template <class Enqueue> int Copies::run(Lane &lane, uint64_t *mark_out, Enqueue &&enqueue)
{
    const MutexLock lock(lane.mutex);
    int error = enqueue(lane.stream);
    if (error != kSuccess) return error;
    // Without a mark no caller could wait for the copy, so it is waited for here.
    error = marks_.make_own(lane.stream, mark_out);
    if (error != kSuccess) context_.api().stream_synchronize(lane.stream);
    return error;
}

int Copies::up(Address to, const void *from, uint64_t bytes, uint64_t *mark_out)
{
    return run(in_, mark_out, [&](StreamHandle stream) {
        return context_.api().copy_to_device(to, from, bytes, stream);
    });
}

int Copies::down(void *to, Address from, uint64_t bytes, uint64_t *mark_out)
{
    return run(out_, mark_out, [&](StreamHandle stream) {
        return context_.api().copy_to_host(to, from, bytes, stream);
    });
}

int Copies::inside(Address to, Address from, uint64_t bytes, uint64_t *mark_out)
{
    return run(in_, mark_out, [&](StreamHandle stream) {
        return context_.api().copy_inside(to, from, bytes, stream);
    });
}

int Copies::zero(Address to, uint64_t bytes, uint64_t *mark_out)
{
    return run(in_, mark_out,
               [&](StreamHandle stream) { return context_.api().set_bytes(to, 0, bytes, stream); });
}

int Copies::several(bool up, const stw_memory_copy *copies, uint32_t n, uint64_t *mark_out)
{
    Lane &lane = up ? in_ : out_;
    const int error = run(lane, mark_out, [&](StreamHandle stream) {
        int failed = kSuccess;
        for (uint32_t at = 0; at < n && failed == kSuccess; at += kAtOnce)
            failed = enqueue(up, stream, copies + at, std::min(n - at, kAtOnce));
        return failed;
    });
    if (error != kSuccess) context_.api().stream_synchronize(lane.stream);
    return error;
}

// A driver that exports the call may still refuse it for this memory, with either code. It is not
// asked again then; copies that the failed batch did make are made twice, in order.
int Copies::enqueue(bool up, StreamHandle stream, const stw_memory_copy *copies, uint32_t n)
{
    const BatchApi &api = context_.library().batch;
    if (n == 1 || !batches_.load(std::memory_order_relaxed))
        return one_by_one(up, stream, copies, n);
    Address to[kAtOnce];
    Address from[kAtOnce];
    size_t bytes[kAtOnce];
    for (uint32_t i = 0; i < n; ++i) {
        to[i] = reinterpret_cast<Address>(copies[i].destination);
        from[i] = reinterpret_cast<Address>(copies[i].source);
        bytes[i] = copies[i].bytes;
    }
    CopyAttributes attributes = {kSourceInStreamOrder, {}, {}, 0};
    size_t first = 0;
    size_t failed = 0;
    const int error = api.copies_v2
                          ? api.copies_v2(to, from, bytes, n, &attributes, &first, 1, stream)
                          : api.copies(to, from, bytes, n, &attributes, &first, 1, &failed, stream);
    if (error != kNotSupported && error != kInvalidValue) return error;
    batches_.store(false);
    if (error == kInvalidValue) (void)context_.library().failed(error);
    return one_by_one(up, stream, copies, n);
}

int Copies::one_by_one(bool up, StreamHandle stream, const stw_memory_copy *copies,
                       uint32_t n) const
{
    const Api &api = context_.api();
    int error = kSuccess;
    for (uint32_t i = 0; i < n && error == kSuccess; ++i) {
        const stw_memory_copy &copy = copies[i];
        const auto to = reinterpret_cast<Address>(copy.destination);
        const auto from = reinterpret_cast<Address>(copy.source);
        error = up ? api.copy_to_device(to, copy.source, copy.bytes, stream)
                   : api.copy_to_host(copy.destination, from, copy.bytes, stream);
    }
    return error;
}

int Copies::after(uint64_t mark, uint32_t copies)
{
    for (Lane *lane : {&in_, &out_}) {
        const uint32_t its = lane == &in_ ? STW_COPIES_IN : STW_COPIES_OUT;
        if ((copies & its) == 0) continue;
        const MutexLock lock(lane->mutex);
        if (const int error = marks_.wait(lane->stream, mark)) return error;
    }
    return kSuccess;
}

int Copies::set(Fence &fence)
{
    const Api &api = context_.api();
    const std::array<Lane *, 2> lanes = {&in_, &out_};
    for (size_t i = 0; i < lanes.size(); ++i) {
        const MutexLock lock(lanes[i]->mutex);
        EventHandle &event = fence.events_[i];
        if (const int error = api.event_create(&event, kEventDisableTiming)) return error;
        if (const int error = api.event_record(event, lanes[i]->stream)) return error;
    }
    return kSuccess;
}

Copies::Fence::~Fence()
{
    for (const EventHandle event : events_)
        if (event != nullptr) context_.api().event_destroy(event);
}

int Copies::Fence::passed() const
{
    for (const EventHandle event : events_)
        if (const int error = context_.api().event_query(event)) return error;
    return kSuccess;
}

}  // namespace stepwell::drivers::cuda
