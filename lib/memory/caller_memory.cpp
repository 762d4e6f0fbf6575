// SPDX-License-Identifier: Apache-2.0
#include "lib/memory/caller_memory.h"

#include <stepwell/types.h>

#include "lib/memory/driver_error.h"

#include <cstring>
#include <new>

namespace stepwell::memory {

Result<CallerMemory> CallerMemory::make(const TierSet &tiers, const Place &place,
                                        const void *pointer, uint64_t bytes)
{
    CallerMemory made;
    made.place_ = tiers.host();
    if (place.tier != STW_TIER_DEVICE) return made;
    const residency::PlaceId found = tiers.place_of(place.tier, place.device);
    if (found == residency::kNoPlace) {
        return Status::error(STW_ERROR_INVALID,
                             "options has tier device and device %u, and the runtime has no such "
                             "device: pass the memory of one that it has, or of the host",
                             place.device);
    }
    const Tier &at = tiers[found];
    const bool needs_stream = place.stream != STW_STREAM_SYNCED;
    if (!at.streams && at.cpu_access) {  // the CPU is the device
        if (place.stream == STW_STREAM_HOST || !needs_stream) return made;
        return Status::error(STW_ERROR_INVALID,
                             "options.stream is %p, and device %u has no streams: pass "
                             "STW_STREAM_HOST",
                             place.stream, at.device);
    }
    made.device_ = &at;
    made.place_ = found;
    if (!at.streams || (at.ops->capabilities & STW_MEMORY_COPIES_OTHERS) == 0) {
        return Status::error(STW_ERROR_UNSUPPORTED,
                             "the memory driver '%s' of device %u copies no memory of programs: "
                             "pass memory of the host, or fetch a view at the device",
                             at.ops->name, at.device);
    }
    if (place.stream == STW_STREAM_HOST) {
        return Status::error(STW_ERROR_INVALID,
                             "no stream is given, and device %u has streams: pass the one that "
                             "uses the memory, STW_STREAM_LEGACY where frameworks say 0, or "
                             "STW_STREAM_SYNCED",
                             at.device);
    }
    if (bytes > 0) {
        stw_driver_error error = STW_DRIVER_ERROR_INIT;
        const stw_status code = at.ops->check_memory(at.memory, pointer, bytes, &error);
        if (code < 0) return from_driver(code, error, "the caller's memory is not usable");
    }
    if (needs_stream) {
        Result<uint64_t> mark = at.streams->mark_now(place.stream);
        if (!mark.ok()) return std::move(mark.status());
        made.mark_ = mark.value();
        made.marked_ = true;
    }
    return made;
}

Status CallerMemory::status_of(stw_status code) const
{
    if (code >= 0) return {};
    return Status::error(code, "a copy of the caller's memory at device %u failed: %s",
                         device_->device,
                         driver_reason(device_->ops, device_->memory, code).c_str());
}

Status CallerMemory::await() const
{
    return marked_ ? status_of(device_->ops->wait(device_->memory, mark_)) : Status();
}

Status CallerMemory::copy(void *to, const void *from, uint64_t bytes) const
{
    if (!on_device()) {
        std::memcpy(to, from, bytes);
        return {};
    }
    STW_TRY(await());
    return status_of(device_->ops->copy(device_->memory, to, from, bytes));
}

Status OnHost::bring(const void *from, uint64_t bytes, const void **here_out)
{
    *here_out = from;
    if (!memory_.on_device()) return {};
    if (size_ < bytes) {
        room_.reset(new (std::nothrow) char[bytes]);
        size_ = room_ ? bytes : 0;
    }
    if (!room_) {
        return Status::error(STW_ERROR_MEMORY,
                             "no memory for %llu bytes between the caller's device and the CPU",
                             static_cast<unsigned long long>(bytes));
    }
    *here_out = room_.get();
    return memory_.copy(room_.get(), from, bytes);
}

}  // namespace stepwell::memory
