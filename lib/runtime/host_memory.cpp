// SPDX-License-Identifier: Apache-2.0
// The part of the host tier's memory that is kept for the program: where it lies, who has none.
#include "lib/runtime/runtime.h"

namespace stepwell {

// Behind the blocks of tensors, before the staging: as aligned as blocks are.
void Runtime::open_scratch(uint64_t bytes)
{
    if (bytes == 0) return;
    const memory::Tier &host = tiers_[tiers_.host()];
    scratch_ = std::make_unique<memory::Scratch>(
        host.base + (host.info().bytes - staging_bytes_ - bytes), bytes);
}

Result<void *> Runtime::take_scratch(uint64_t bytes, uint64_t align_bytes)
{
    if (scratch_) return scratch_->take(bytes, align_bytes);
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "the runtime '%s' was opened without scratch memory; set "
                         "host_scratch_bytes, which is a part of host_bytes",
                         name_.c_str());
}

Status Runtime::give_scratch(void *pointer)
{
    if (!pointer) return {};
    if (scratch_) return scratch_->give(pointer);
    return Status::error(STW_ERROR_INVALID,
                         "%p is no piece of stw_host_alloc: the runtime '%s' was opened without "
                         "scratch memory; nothing was freed",
                         pointer, name_.c_str());
}

}  // namespace stepwell
