// SPDX-License-Identifier: Apache-2.0
// How a range is asked of the core, how large its views and private buffers are, and how its
// elements are copied.
#include "lib/memory/caller_memory.h"
#include "lib/runtime/dispatch/snapshot.h"
#include "lib/runtime/dispatch/waiter.h"
#include "lib/runtime/handles/views.h"
#include "lib/update/kernels/kernels.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <new>

namespace stepwell {

residency::Access access_of(uint32_t access)
{
    switch (access) {
    case STW_WRITE: return residency::Access::kWrite;
    case STW_READ_WRITE: return residency::Access::kReadWrite;
    case STW_REDUCE: return residency::Access::kWriteEmpty;
    default: return residency::Access::kRead;
    }
}

// READ_WRITE for a conversion, so that its buffer keeps no other replica.
residency::Access buffer_access(uint32_t access)
{
    return access == STW_READ ? residency::Access::kReadWrite : residency::Access::kWrite;
}

uint64_t view_bytes(const RequestedRange &range)
{
    if (range.dtype == 0) return range.byte_count;
    return range.element_count * (stw_dtype_bits(range.dtype) / 8);
}

uint64_t sum_bytes(const RequestedRange &range)
{
    if (range.access != STW_REDUCE) return view_bytes(range);
    const uint64_t size = stw_dtype_bits(range.dtype ? range.dtype : range.tensor->dtype) / 8;
    return sum_elements(*range.tensor, range.access, range.element_count) * size;
}

bool may_sum_in_place(const RequestedRange &range)
{
    return range.access == STW_REDUCE && range.byte_count == range.tensor->bytes &&
           range.dtype == 0 && !range.tensor->sharding;
}

bool is_converted(const RequestedRange &range)
{
    return range.access == STW_READ && range.dtype != 0;
}

bool needs_copies(const FetchPlan &plan)
{
    return !plan.copied.empty() ||
           std::any_of(plan.ranges.begin(), plan.ranges.end(), is_converted);
}

void copy_elements(void *to, uint32_t dtype, const void *from, const stw_tensor &tensor,
                   uint64_t count)
{
    if (dtype == 0 || dtype == tensor.dtype) {
        std::memcpy(to, from, count * (tensor.element_bits / 8));
    } else {
        kernels::convert(to, dtype, from, tensor.dtype, count);
    }
}

Status give_elements(const memory::CallerMemory *caller, void *to, uint32_t dtype, const void *from,
                     const stw_tensor &tensor, uint64_t count)
{
    if (!caller || !caller->on_device()) {
        copy_elements(to, dtype, from, tensor, count);
        return {};
    }
    const uint64_t from_size = tensor.element_bits / 8;
    if (dtype == 0 || dtype == tensor.dtype) return caller->copy(to, from, count * from_size);
    const uint64_t bytes = count * (stw_dtype_bits(dtype) / 8);
    const std::unique_ptr<char[]> converted(new (std::nothrow) char[bytes]);
    if (!converted) {
        return Status::error(STW_ERROR_MEMORY, "no memory to convert %s of %s",
                             bytes_text(bytes).c_str(), tensor_text(tensor.name).c_str());
    }
    copy_elements(converted.get(), dtype, from, tensor, count);
    return caller->copy(to, converted.get(), bytes);
}

uint64_t buffer_bytes(const ViewSlot &view)
{
    const stw_tensor *tensor = view.tensor;
    const uint64_t elements = view.byte_count / (tensor->element_bits / 8);
    const uint32_t dtype = view.dtype;
    return sum_elements(*tensor, view.access, elements) *
           (dtype == 0 ? tensor->element_bits / 8 : stw_dtype_bits(dtype) / 8);
}

// A complete buffer that is summed over ranks has the padding of their parts.
uint64_t sum_elements(const stw_tensor &tensor, uint32_t access, uint64_t elements)
{
    const bool pads =
        access == STW_REDUCE && tensor.sharding && elements == tensor.sharding->elements();
    return pads ? tensor.sharding->padded_elements() : elements;
}

Status cancelled()
{
    return Status::error(STW_ERROR_CANCELLED, "the operation was cancelled");
}

Status elements_outside(const stw_tensor &tensor, uint64_t begin, uint64_t count, uint64_t first,
                        uint64_t elements)
{
    const auto number = [](uint64_t value) { return static_cast<unsigned long long>(value); };
    const char *name = tensor.name.c_str();
    const bool all = !tensor.sharding || elements == tensor.sharding->elements();
    if (all) {
        return Status::error(
            STW_ERROR_INVALID, "elements [%llu, +%llu) are not inside %s of %llu elements",
            number(begin), number(count), tensor_text(name).c_str(), number(elements));
    }
    return Status::error(STW_ERROR_INVALID,
                         "elements [%llu, +%llu) are not inside this rank's shard of %s, "
                         "elements [%llu, +%llu)",
                         number(begin), number(count), tensor_text(name).c_str(), number(first),
                         number(elements));
}

}  // namespace stepwell
