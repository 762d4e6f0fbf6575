// SPDX-License-Identifier: Apache-2.0
// memory.h at the boundary.
#include "lib/api/check.h"
#include "lib/memory/slabs.h"

#include <bit>
#include <cinttypes>

using namespace stepwell;
using namespace stepwell::api;

stw_status stw_host_alloc(stw_runtime *runtime, uint64_t bytes, uint64_t align_bytes,
                          uint32_t flags, void **pointer_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!pointer_out) return Status::error(STW_ERROR_INVALID, "pointer_out is null");
        STW_TRY(check_flags(flags, STW_HOST_ZERO, "flags"));
        if (bytes == 0) return Status::error(STW_ERROR_INVALID, "bytes is 0");
        const uint64_t align = align_bytes == 0 ? memory::Slabs::kSlotBytesMin : align_bytes;
        if (!std::has_single_bit(align) || align > runtime->body->machine.block_bytes) {
            return Status::error(STW_ERROR_INVALID,
                                 "align_bytes is %" PRIu64 "; it is a power of two up to the "
                                 "block size, %" PRIu64 ", or 0 for 64",
                                 align_bytes, runtime->body->machine.block_bytes);
        }
        Result<void *> taken = runtime->body->machine.take_scratch(bytes, align);
        if (!taken.ok()) return std::move(taken.status());
        if ((flags & STW_HOST_ZERO) != 0) std::memset(taken.value(), 0, bytes);
        *pointer_out = taken.value();
        return {};
    });
}

stw_status stw_host_free(stw_runtime *runtime, void *pointer)
{
    if (enter_deferred(runtime)) {
        const stw_status status =
            guard([&] { return runtime->body->machine.give_scratch(pointer); });
        leave_deferred(runtime);
        return status;
    }
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        return runtime->body->machine.give_scratch(pointer);
    });
}
