// SPDX-License-Identifier: Apache-2.0
#include "drivers/cuda/copies.h"

namespace stepwell::drivers::cuda {

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
    return error;
}

template <class Enqueue> int Copies::run(Lane &lane, uint64_t *mark_out, Enqueue &&enqueue)
{
    const MutexLock lock(lane.mutex);
    const int error = enqueue(lane.stream);
    return error == kSuccess ? marks_.make(lane.stream, mark_out) : error;
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

int Copies::after(uint64_t mark)
{
    for (Lane *lane : {&in_, &out_}) {
        const MutexLock lock(lane->mutex);
        if (const int error = marks_.wait(lane->stream, mark)) return error;
    }
    return kSuccess;
}

int Copies::mark(std::vector<uint64_t> *marks_out)
{
    for (Lane *lane : {&in_, &out_}) {
        const MutexLock lock(lane->mutex);
        uint64_t mark = 0;
        if (const int error = marks_.make(lane->stream, &mark)) return error;
        marks_out->push_back(mark);
    }
    return kSuccess;
}

}  // namespace stepwell::drivers::cuda
