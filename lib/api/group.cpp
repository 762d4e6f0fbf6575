// SPDX-License-Identifier: Apache-2.0
// group.h at the boundary.
#include "lib/api/check.h"
#include "lib/runtime/group/group_ids.h"
#include "lib/runtime/group/groups.h"

using namespace stepwell;
using namespace stepwell::api;

namespace {

GroupIds group_ids;

Status check_device(const stw_group_options &options)
{
    if (options.reserved) return Status::error(STW_ERROR_INVALID, "options.reserved is not 0");
    if (options.device_ordinal < 0) {
        return Status::error(STW_ERROR_INVALID,
                             "options.device_ordinal %d cannot be: the devices that CUDA shows to "
                             "this process count from 0",
                             options.device_ordinal);
    }
    if (options.device_ordinal > 0 && options.driver != STW_GROUP_NCCL) {
        return Status::error(STW_ERROR_INVALID,
                             "options.device_ordinal %d is for a group over NCCL; collectives of "
                             "this one touch no memory of a device, so leave it 0",
                             options.device_ordinal);
    }
    return {};
}

Status check_options(const stw_group_options &options)
{
    STW_TRY(check_flags(options.flags, STW_GROUP_CALLER_THREAD, "options.flags"));
    if (options.driver > STW_GROUP_CALLBACKS) {
        return Status::error(STW_ERROR_INVALID,
                             "options.driver %u is not known; it is one of STW_GROUP_*",
                             options.driver);
    }
    const bool told = options.driver == STW_GROUP_CALLBACKS ||
                      (options.driver == STW_GROUP_NCCL && !options.nccl_comm);
    if (told && (options.size == 0 || options.rank >= options.size)) {
        return Status::error(STW_ERROR_INVALID,
                             "options.rank %u of options.size %u ranks cannot be: ranks count from "
                             "0, and each process says which one it is",
                             options.rank, options.size);
    }
    if (options.driver == STW_GROUP_NCCL && !options.nccl_comm &&
        (!options.unique_id || options.unique_id_bytes == 0)) {
        return Status::error(STW_ERROR_INVALID,
                             "a group over NCCL needs options.nccl_comm, or the unique_id that "
                             "rank 0 made and sent to all ranks");
    }
    STW_TRY(check_device(options));
    if (options.driver != STW_GROUP_CALLBACKS) return {};
    stw_group_ops ops{};
    return take(&ops, options.ops, "options.ops");
}

Status give_handle(std::unique_ptr<collective::Group> body, stw_group **group_out)
{
    stw_group *group = group_pool.take();
    if (!group) return Status::error(STW_ERROR_LIMIT, "too many groups exist");
    group->body = std::move(body);
    group->fork_epoch.store(fork_epoch.load());
    *group_out = group;
    return {};
}

Status join(const stw_group_options &options, const std::string &id, stw_group **group_out)
{
    Result<std::unique_ptr<collective::Group>> opened = open_group(options);
    if (!opened.ok()) return std::move(opened.status());
    STW_TRY(give_handle(opened.take(), group_out));
    (*group_out)->id = id;
    return {};
}

}  // namespace

Status stepwell::api::enter(const stw_group *group)
{
    if (!group_pool.is_live(group)) {
        return Status::error(STW_ERROR_INVALID,
                             "the group handle is not alive: it is null, was destroyed, or never "
                             "was a handle");
    }
    if (group->fork_epoch.load() != fork_epoch.load()) {
        return Status::error(STW_ERROR_FORKED,
                             "this process is a fork of the one that joined the group; create one "
                             "of its own");
    }
    return {};
}

stw_status stw_group_create(const stw_group_options *from, stw_group **group_out)
{
    return guard([&]() -> Status {
        if (!group_out) return Status::error(STW_ERROR_INVALID, "group_out is null");
        stw_group_options options{};
        STW_TRY(take(&options, from, "options"));
        STW_TRY(check_options(options));
        watch_forks();
        Result<std::string> id = group_ids.take(options, fork_epoch.load());
        if (!id.ok()) return std::move(id.status());
        const Status status = join(options, id.value(), group_out);
        if (!status.ok()) group_ids.give(id.value(), false);
        return status;
    });
}

stw_status stw_group_split(stw_group *group, int32_t colour, uint32_t key, stw_group **group_out)
{
    return guard([&]() -> Status {
        STW_TRY(enter(group));
        if (!group_out) return Status::error(STW_ERROR_INVALID, "group_out is null");
        if (!group->body) {
            if (colour < 0) *group_out = nullptr;
            return colour < 0 ? Status() : give_handle(nullptr, group_out);
        }
        if (!group->body->take()) {
            return Status::error(STW_ERROR_BUSY,
                                 "the group is used by a runtime; split it before that is opened, "
                                 "or after it was closed");
        }
        Result<std::unique_ptr<collective::Group>> part = group->body->split(colour, key);
        group->body->give();
        if (!part.ok()) return std::move(part.status());
        if (part.value()) return give_handle(part.take(), group_out);
        *group_out = nullptr;
        return {};
    });
}

stw_status stw_group_destroy(stw_group *group)
{
    return guard([&]() -> Status {
        STW_TRY(enter(group));
        if (group->body && !group->body->take()) {
            return Status::error(STW_ERROR_BUSY,
                                 "the group is used by a runtime; close the runtime first");
        }
        group_pool.retire(group);
        group->body.reset();
        group_ids.give(std::exchange(group->id, {}), true);
        group_pool.give(group);
        return {};
    });
}

stw_status stw_group_rank(const stw_group *group, uint32_t *rank_out, uint32_t *size_out)
{
    return guard([&]() -> Status {
        if (group) STW_TRY(enter(group));
        const bool alone = !group || !group->body;
        if (rank_out) *rank_out = alone ? 0 : group->body->rank();
        if (size_out) *size_out = alone ? 1 : group->body->size();
        return {};
    });
}
