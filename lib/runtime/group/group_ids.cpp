// SPDX-License-Identifier: Apache-2.0
#include "lib/runtime/group/group_ids.h"

namespace stepwell {
namespace {

constexpr char kCallbacks = 'c';
constexpr char kLent = 'n';
constexpr char kUniqueId = 'u';

void append(std::string *id, const void *bytes, size_t count)
{
    id->append(static_cast<const char *>(bytes), count);
}

template <class Value> void append(std::string *id, const Value &value)
{
    append(id, &value, sizeof value);
}

// Includes the rank: ranks may be threads of one process and share everything else.
std::string id_of(const stw_group_options &options, uint64_t epoch)
{
    std::string id;
    if (options.driver == STW_GROUP_CALLBACKS) {
        id = kCallbacks;
        append(&id, options.ops->all_gather);
        append(&id, options.ops_user);
    } else if (options.driver == STW_GROUP_NCCL && options.nccl_comm) {
        id = kLent;
        append(&id, options.nccl_comm);
    } else if (options.driver == STW_GROUP_NCCL) {
        id = kUniqueId;
        append(&id, options.unique_id, options.unique_id_bytes);
    }
    if (id.empty()) return id;
    if (id[0] != kLent) append(&id, options.rank);
    append(&id, epoch);
    return id;
}

Status refusal(char kind, uint32_t rank)
{
    switch (kind) {
    case kCallbacks:
        return Status::error(STW_ERROR_BUSY,
                             "options.ops with options.ops_user already serve a group of this "
                             "process as rank %u: collectives of the two would be taken for each "
                             "other's; lend each group a context of its own, or destroy the other "
                             "first",
                             rank);
    case kLent:
        return Status::error(STW_ERROR_BUSY,
                             "options.nccl_comm is lent to another group of this process: "
                             "collectives of the two would be taken for each other's; lend it a "
                             "communicator of its own, or destroy the other first");
    default:
        return Status::error(STW_ERROR_BUSY,
                             "options.unique_id has made a group of this process before, as rank "
                             "%u, and is good for one; have rank 0 make another with "
                             "ncclGetUniqueId, and send that",
                             rank);
    }
}

}  // namespace

Result<std::string> GroupIds::take(const stw_group_options &options, uint64_t epoch)
{
    std::string id = id_of(options, epoch);
    if (id.empty()) return id;
    MutexLock lock(mutex_);
    if (taken_.insert(id).second) return id;
    return refusal(id[0], options.rank);
}

void GroupIds::give(const std::string &id, bool was_made)
{
    if (id.empty() || (was_made && id[0] == kUniqueId)) return;
    MutexLock lock(mutex_);
    taken_.erase(id);
}

}  // namespace stepwell
