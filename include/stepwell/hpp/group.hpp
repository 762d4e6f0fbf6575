// SPDX-License-Identifier: Apache-2.0
//
// stepwell/hpp/group.hpp: groups of ranks, destroyed with their owner.
#ifndef STEPWELL_HPP_GROUP_HPP
#define STEPWELL_HPP_GROUP_HPP

#include <stepwell/hpp/owner.hpp>

#include <cstdint>

namespace stw {

namespace detail {

struct DestroyGroup {
    stw_status operator()(stw_group *group) const noexcept { return stw_group_destroy(group); }
};

}  // namespace detail

/// Ranks over which tensors are sharded. An empty one is this process alone, like a null stw_group.
/// It must outlive the runtime that was opened with it: declare it before.
class Group : public detail::Owner<stw_group, detail::DestroyGroup> {
public:
    using Owner::Owner;
    /// COLLECTIVE. Blocks until all ranks joined. Errors: as stw_group_create().
    static Result<Group> create(const stw_group_options &options)
    {
        stw_group *group = nullptr;
        const stw_status code = stw_group_create(&options, &group);
        if (code < 0) return Result<Group>(code);
        return Group(group);
    }
    /// This process alone.
    static Result<Group> self()
    {
        const stw_group_options options = STW_GROUP_OPTIONS_INIT;
        return create(options);
    }
    /// MPI_Comm_c2f(comm), or 0: MPI_COMM_WORLD. flags: STW_GROUP_CALLER_THREAD.
    static Result<Group> over_mpi(int32_t comm = 0, uint32_t flags = 0, uint64_t timeout_ns = 0)
    {
        stw_group_options options = STW_GROUP_OPTIONS_INIT;
        options.driver = STW_GROUP_MPI;
        options.mpi_comm = comm;
        options.flags = flags;
        options.timeout_ns = timeout_ns;
        return create(options);
    }
    /// The bytes of the ncclUniqueId that one rank made and sent to all; this rank's device.
    static Result<Group> over_nccl(const void *unique_id, uint64_t unique_id_bytes, uint32_t rank,
                                   uint32_t size, int32_t device_ordinal = 0,
                                   uint64_t timeout_ns = 0)
    {
        stw_group_options options = STW_GROUP_OPTIONS_INIT;
        options.driver = STW_GROUP_NCCL;
        options.unique_id = unique_id;
        options.unique_id_bytes = unique_id_bytes;
        options.rank = rank;
        options.size = size;
        options.device_ordinal = device_ordinal;
        options.timeout_ns = timeout_ns;
        return create(options);
    }
    /// An ncclComm_t, borrowed until the end of the group.
    static Result<Group> over_nccl(void *communicator, uint64_t timeout_ns = 0)
    {
        stw_group_options options = STW_GROUP_OPTIONS_INIT;
        options.driver = STW_GROUP_NCCL;
        options.nccl_comm = communicator;
        options.timeout_ns = timeout_ns;
        return create(options);
    }
    /// The program's own collectives. `ops` is copied, `user` borrowed until the end of the group;
    /// no exception may leave them.
    static Result<Group> over(const stw_group_ops &ops, void *user, uint32_t rank, uint32_t size,
                              uint32_t flags = 0, uint64_t timeout_ns = 0)
    {
        stw_group_options options = STW_GROUP_OPTIONS_INIT;
        options.driver = STW_GROUP_CALLBACKS;
        options.ops = &ops;
        options.ops_user = user;
        options.rank = rank;
        options.size = size;
        options.flags = flags;
        options.timeout_ns = timeout_ns;
        return create(options);
    }
    /// COLLECTIVE. Ranks of one colour make a group, in order of key, then of rank; empty for those
    /// with colour -1. Errors: as stw_group_split().
    Result<Group> split(int32_t colour, uint32_t key = 0)
    {
        stw_group *part = nullptr;
        const stw_status code = stw_group_split(get(), colour, key, &part);
        if (code < 0) return Result<Group>(code);
        return Group(part);
    }
    /// Never block.
    Result<uint32_t> rank() const
    {
        uint32_t rank = 0;
        const stw_status code = stw_group_rank(get(), &rank, nullptr);
        if (code < 0) return Result<uint32_t>(code);
        return rank;
    }
    Result<uint32_t> size() const
    {
        uint32_t size = 1;
        const stw_status code = stw_group_rank(get(), nullptr, &size);
        if (code < 0) return Result<uint32_t>(code);
        return size;
    }
    /// BUSY while a runtime uses it; then it is still owned.
    Status destroy() { return Status(close_now()); }
};

}  // namespace stw

#endif  // STEPWELL_HPP_GROUP_HPP
