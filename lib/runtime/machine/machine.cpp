// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/machine/machine.h"

#include "lib/memory/scratch.h"
#include "lib/observe/timeline.h"
#include "lib/runtime/group/state.h"
#include "lib/runtime/machine/touches.h"
#include "lib/transfer/engine.h"
#include "lib/transfer/stream_ordering.h"
#include "lib/update/pipeline.h"

#include <utility>

namespace stepwell {

Machine::Machine(std::string runtime_name, stw_runtime *runtime_handle, uint64_t bytes_of_block,
                 uint32_t devices)
    : name(std::move(runtime_name)),
      handle(runtime_handle),
      block_bytes(bytes_of_block),
      tiers(devices)
{
}

Machine::~Machine() = default;

// After the blocks of tensors and before the staging, aligned like a block.
void Machine::open_scratch(uint64_t bytes)
{
    if (bytes == 0) return;
    const memory::Tier &host = tiers[tiers.host()];
    scratch = std::make_unique<memory::Scratch>(
        host.base + (host.info().bytes - staging_bytes - bytes), bytes);
}

Result<void *> Machine::take_scratch(uint64_t bytes, uint64_t align_bytes)
{
    if (scratch) return scratch->take(bytes, align_bytes);
    return Status::error(STW_ERROR_UNSUPPORTED,
                         "the runtime '%s' was opened without scratch memory; set "
                         "host_scratch_bytes, which is a part of host_bytes",
                         name.c_str());
}

uint64_t Machine::scratch_pieces() const
{
    return scratch ? scratch->usage().pieces : 0;
}

uint64_t Machine::kept_bytes() const
{
    return staging_bytes + (scratch ? scratch->usage().bytes : 0);
}

Status Machine::give_scratch(void *pointer)
{
    if (!pointer) return {};
    if (scratch) return scratch->give(pointer);
    return Status::error(STW_ERROR_INVALID,
                         "%p is no piece of stw_host_alloc: the runtime '%s' was opened without "
                         "scratch memory; nothing was freed",
                         pointer, name.c_str());
}

}  // namespace stepwell
