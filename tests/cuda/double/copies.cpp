// SPDX-License-Identifier: Apache-2.0
// Entry points that copy and fill. Host memory that is not registered is copied as CUDA does it:
// from there by way of a buffer that is filled during the call, and to there with the call waiting.
#include "tests/cuda/double/control.h"
#include "tests/cuda/double/driver.h"

#include <algorithm>
#include <cstring>

namespace stepwell::cuda_double {
namespace {

struct Copy {
    Address to = 0;
    Address from = 0;
    size_t bytes = 0;
    int source_order = kSourceInStreamOrder;
};

// What a copy does on the device, once its pageable ends are dealt with.
struct Plan {
    Request request;
    bool host_waits = false;
};

Place place_of(Call &call, Address address, size_t bytes)
{
    std::vector<Piece> pieces;
    return call.memory().resolve(address, bytes, &pieces);
}

std::function<void()> move_bytes(Space &space, const Copy &copy)
{
    return [to = space.alias(copy.to), from = space.alias(copy.from), bytes = copy.bytes] {
        std::memmove(to, from, bytes);
    };
}

// The source is read now: by the host as far as order goes.
std::function<void()> move_later(Call &call, const Copy &copy)
{
    call.tracker().host_touch({copy.from, copy.bytes, false}, call.name());
    const char *from = static_cast<const char *>(call.memory().space().alias(copy.from));
    auto staged = std::make_shared<std::vector<char>>(from, from + copy.bytes);
    return [to = call.memory().space().alias(copy.to), staged] {
        std::memcpy(to, staged->data(), staged->size());
    };
}

// Of several all are of the first one's engine.
void add_work(Call &call, const Copy &copy, Place to, Place from, Work &work)
{
    if (work.engine == Engine::kNone)
        work.engine = to != Place::kDevice     ? Engine::kDown
                      : from != Place::kDevice ? Engine::kUp
                                               : Engine::kCompute;
    work.bytes += copy.bytes;
    work.ns += call.state.timing.costs().copy_ns;
}

// Adds what it touches and returns what it does.
std::function<void()> plan_copy(Call &call, const Copy &copy, Plan &plan)
{
    std::vector<Touch> &touches = plan.request.touches;
    const Place to = place_of(call, copy.to, copy.bytes);
    const Place from = place_of(call, copy.from, copy.bytes);
    add_work(call, copy, to, from, plan.request.work);
    if (to == Place::kPageable)
        plan.host_waits = true;
    else
        touches.push_back({copy.to, copy.bytes, true});
    if (from == Place::kPageable && to == Place::kPageable)
        return move_bytes(call.memory().space(), copy);
    if (from == Place::kPageable) return move_later(call, copy);
    if (copy.source_order == kSourceDuringCall && from != Place::kNowhere)
        return move_later(call, copy);
    touches.push_back({copy.from, copy.bytes, false, copy.source_order == kSourceAnyOrder});
    return move_bytes(call.memory().space(), copy);
}

bool uses_pageable(Call &call, const Copy &copy)
{
    return place_of(call, copy.to, copy.bytes) == Place::kPageable ||
           place_of(call, copy.from, copy.bytes) == Place::kPageable;
}

int submit(Call &call, Stream &stream, Plan plan)
{
    plan.request.what = call.name();
    const OperationPtr operation = call.scheduler().submit(stream, std::move(plan.request));
    if (operation == nullptr) return kInvalidValue;
    if (!plan.host_waits) return kSuccess;
    call.scheduler().wait(call.lock, operation);
    return call.verdict();
}

int copy_async(Call &call, const Copy &copy, void *handle)
{
    Stream *stream = nullptr;
    if (const int result = find_stream(call, handle, &stream); result != kSuccess) return result;
    if (copy.bytes == 0) return kSuccess;
    if (uses_pageable(call, copy)) ++call.state.pageable_copies;
    Plan plan;
    plan.request.run = plan_copy(call, copy, plan);
    return submit(call, *stream, std::move(plan));
}

// Between devices, or on one, the host does not wait; from pageable memory it waits for what the
// stream did before, and not for the copy.
int copy_now(Call &call, const Copy &copy)
{
    Stream *stream = nullptr;
    if (const int result = find_stream(call, nullptr, &stream); result != kSuccess) return result;
    if (copy.bytes == 0) return kSuccess;
    const Place to = place_of(call, copy.to, copy.bytes);
    const Place from = place_of(call, copy.from, copy.bytes);
    Plan plan;
    if (from == Place::kPageable && to == Place::kDevice) {
        const OperationPtr before = call.scheduler().submit(*stream, {call.name()});
        call.scheduler().wait(call.lock, before);
    }
    plan.request.run = plan_copy(call, copy, plan);
    if (from == Place::kPinned || to == Place::kPinned) plan.host_waits = true;
    return submit(call, *stream, std::move(plan));
}

template <class Value>
int fill(Call &call, Address address, Value value, size_t count, void *handle)
{
    Stream *stream = nullptr;
    if (const int result = find_stream(call, handle, &stream); result != kSuccess) return result;
    if (address % sizeof(Value) != 0) return kInvalidValue;
    if (count == 0) return kSuccess;
    Plan plan;
    plan.request.touches.push_back({address, count * sizeof(Value), true});
    plan.request.work = {Engine::kCompute, count * sizeof(Value),
                         call.state.timing.costs().kernel_ns};
    void *to = call.memory().space().alias(address);
    plan.request.run = [to, value, count] { std::fill_n(static_cast<Value *>(to), count, value); };
    return submit(call, *stream, std::move(plan));
}

// ------------------------------------------------------------------------------------ batches --

struct Batch {
    const Address *to;
    const Address *from;
    const size_t *bytes;
    size_t count;
    const CopyAttributes *attributes;
    const size_t *first_copies;
    size_t attribute_count;
};

bool well_formed(const Batch &batch)
{
    if (batch.to == nullptr || batch.from == nullptr || batch.bytes == nullptr) return false;
    if (batch.attributes == nullptr || batch.first_copies == nullptr) return false;
    if (batch.count == 0 || batch.attribute_count == 0 || batch.attribute_count > batch.count)
        return false;
    if (batch.first_copies[0] != 0) return false;
    for (size_t i = 0; i < batch.attribute_count; ++i) {
        if (i > 0 && batch.first_copies[i] <= batch.first_copies[i - 1]) return false;
        if (batch.first_copies[i] >= batch.count) return false;
        const int order = batch.attributes[i].source_order;
        if (order < kSourceInStreamOrder || order > kSourceAnyOrder) return false;
    }
    return std::all_of(batch.bytes, batch.bytes + batch.count, [](size_t n) { return n > 0; });
}

std::vector<Copy> copies_of(const Batch &batch)
{
    std::vector<Copy> copies(batch.count);
    size_t attribute = 0;
    for (size_t i = 0; i < batch.count; ++i) {
        if (attribute + 1 < batch.attribute_count && batch.first_copies[attribute + 1] == i)
            ++attribute;
        copies[i] = {batch.to[i], batch.from[i], batch.bytes[i],
                     batch.attributes[attribute].source_order};
    }
    return copies;
}

bool takes_batch(Call &call, const Batch &batch)
{
    const Options &options = call.state.options;
    if (options.batch_max != 0 && batch.count > options.batch_max) return false;
    const auto given = options.attributes.find(kHostPointerForRegisteredMemory);
    const bool names_host = given == options.attributes.end() || given->second != 0;
    const auto refused = [&](Place place) {
        return place == Place::kPageable || (place == Place::kPinned && !names_host);
    };
    const std::vector<Copy> copies = copies_of(batch);
    return std::none_of(copies.begin(), copies.end(), [&](const Copy &copy) {
        return refused(place_of(call, copy.to, copy.bytes)) ||
               refused(place_of(call, copy.from, copy.bytes));
    });
}

// Copies of one batch have no order among themselves.
void report_overlaps(Call &call, std::vector<Touch> touches)
{
    std::sort(touches.begin(), touches.end(),
              [](const Touch &a, const Touch &b) { return a.address < b.address; });
    const Touch *widest = nullptr;        // reaches furthest of those before
    const Touch *widest_write = nullptr;  // of the writes
    const auto meets = [](const Touch *before, const Touch &touch) {
        return before != nullptr && before->address + before->bytes > touch.address;
    };
    const auto reaches = [](const Touch *a, const Touch &b) {
        return a != nullptr && a->address + a->bytes >= b.address + b.bytes;
    };
    for (const Touch &touch : touches) {
        if (meets(touch.writes ? widest : widest_write, touch))
            call.state.report.add(
                STW_DOUBLE_BATCH_OVERLAP,
                text("Two copies of one %s touch 0x%llx and one of them writes there; copies of a "
                     "batch have no order among themselves.",
                     call.name(), touch.address));
        if (!reaches(widest, touch)) widest = &touch;
        if (touch.writes && !reaches(widest_write, touch)) widest_write = &touch;
    }
}

int copy_batch(Call &call, const Batch &batch, void *handle)
{
    if (reinterpret_cast<uintptr_t>(handle) <= kStreamLegacy) return kInvalidValue;
    Stream *stream = nullptr;
    if (const int result = find_stream(call, handle, &stream); result != kSuccess) return result;
    if (!well_formed(batch)) return kInvalidValue;
    if (!takes_batch(call, batch)) return kInvalidValue;
    Plan plan;
    std::vector<std::function<void()>> moves;
    for (const Copy &copy : copies_of(batch)) {
        moves.push_back(plan_copy(call, copy, plan));
    }
    report_overlaps(call, plan.request.touches);
    plan.request.run = [moves = std::move(moves)] {
        for (const auto &move : moves) move();
    };
    return submit(call, *stream, std::move(plan));
}

}  // namespace

extern "C" {

int cuMemcpy(Address to, Address from, size_t bytes)
{
    return enter(Entry::cuMemcpy, Needs::kContext, [&](Call &call) {
        return copy_now(call, {to, from, bytes});
    });
}

int cuMemcpyAsync(Address to, Address from, size_t bytes, void *stream)
{
    return enter(Entry::cuMemcpyAsync, Needs::kContext, [&](Call &call) {
        return copy_async(call, {to, from, bytes}, stream);
    });
}

int cuMemcpyHtoDAsync_v2(Address to, const void *from, size_t bytes, void *stream)
{
    return enter(Entry::cuMemcpyHtoDAsync_v2, Needs::kContext, [&](Call &call) {
        return copy_async(call, {to, as_address(from), bytes}, stream);
    });
}

int cuMemcpyDtoHAsync_v2(void *to, Address from, size_t bytes, void *stream)
{
    return enter(Entry::cuMemcpyDtoHAsync_v2, Needs::kContext, [&](Call &call) {
        return copy_async(call, {as_address(to), from, bytes}, stream);
    });
}

int cuMemcpyDtoDAsync_v2(Address to, Address from, size_t bytes, void *stream)
{
    return enter(Entry::cuMemcpyDtoDAsync_v2, Needs::kContext, [&](Call &call) {
        return copy_async(call, {to, from, bytes}, stream);
    });
}

int cuMemcpyBatchAsync(Address *to, Address *from, size_t *bytes, size_t count,
                       CopyAttributes *attributes, size_t *first_copies, size_t attribute_count,
                       size_t *failed_out, void *stream)
{
    return enter(Entry::cuMemcpyBatchAsync, Needs::kContext, [&](Call &call) {
        const int result = copy_batch(
            call, {to, from, bytes, count, attributes, first_copies, attribute_count}, stream);
        // Which one it was is said only where it was one of them; this one checks all at once.
        if (result != kSuccess && failed_out != nullptr) *failed_out = SIZE_MAX;
        return result;
    });
}

int cuMemcpyBatchAsync_v2(Address *to, Address *from, size_t *bytes, size_t count,
                          CopyAttributes *attributes, size_t *first_copies, size_t attribute_count,
                          void *stream)
{
    return enter(Entry::cuMemcpyBatchAsync_v2, Needs::kContext, [&](Call &call) {
        return copy_batch(call, {to, from, bytes, count, attributes, first_copies, attribute_count},
                          stream);
    });
}

int cuMemsetD8_v2(Address address, unsigned char value, size_t bytes)
{
    return enter(Entry::cuMemsetD8_v2, Needs::kContext,
                 [&](Call &call) { return fill(call, address, value, bytes, nullptr); });
}

int cuMemsetD8Async(Address address, unsigned char value, size_t bytes, void *stream)
{
    return enter(Entry::cuMemsetD8Async, Needs::kContext,
                 [&](Call &call) { return fill(call, address, value, bytes, stream); });
}

int cuMemsetD32Async(Address address, unsigned value, size_t count, void *stream)
{
    return enter(Entry::cuMemsetD32Async, Needs::kContext,
                 [&](Call &call) { return fill(call, address, value, count, stream); });
}

}  // extern "C"

}  // namespace stepwell::cuda_double
