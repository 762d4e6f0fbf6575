// SPDX-License-Identifier: Apache-2.0
// store.h at the boundary.
#include "lib/api/check.h"

#include <cinttypes>
#include <cstring>

using namespace stepwell;
using namespace stepwell::api;

stw_status stw_commit(stw_runtime *runtime, const stw_commit_options *options,
                      uint64_t *generation_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        stw_commit_options copy = STW_COMMIT_OPTIONS_INIT;
        if (options) STW_TRY(take(&copy, options, "options"));
        STW_TRY(check_flags(copy.flags, STW_COMMIT_COMPLETE, "options.flags"));
        if (copy.label && strnlen(copy.label, STW_LABEL_BYTES_MAX + 1) > STW_LABEL_BYTES_MAX) {
            return Status::error(STW_ERROR_INVALID, "options.label is longer than %d bytes",
                                 STW_LABEL_BYTES_MAX);
        }
        if (copy.metadata_bytes > STW_METADATA_BYTES_MAX) {
            return Status::error(STW_ERROR_LIMIT,
                                 "options.metadata_bytes is %" PRIu64 ", at most %d",
                                 copy.metadata_bytes, STW_METADATA_BYTES_MAX);
        }
        if (copy.metadata_bytes > 0 && !copy.metadata) {
            return Status::error(STW_ERROR_INVALID,
                                 "options.metadata is null and metadata_bytes is %" PRIu64,
                                 copy.metadata_bytes);
        }
        return runtime->body->durable.commits.commit(copy, generation_out);
    });
}

stw_status stw_generation_get(stw_runtime *runtime, uint64_t generation,
                              stw_generation_info *info_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        STW_TRY(check_output(info_out, 24, "info_out"));
        return runtime->body->durable.commits.generation_info(generation, info_out);
    });
}

stw_status stw_generation_metadata(stw_runtime *runtime, uint64_t generation, void *buffer,
                                   uint64_t capacity_bytes, uint64_t *bytes_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(runtime));
        if (!bytes_out) return Status::error(STW_ERROR_INVALID, "bytes_out is null");
        if (capacity_bytes > 0 && !buffer) {
            return Status::error(STW_ERROR_INVALID, "buffer is null and capacity_bytes is %" PRIu64,
                                 capacity_bytes);
        }
        return runtime->body->durable.commits.generation_metadata(generation, buffer,
                                                                  capacity_bytes, bytes_out);
    });
}
