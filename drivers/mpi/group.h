// SPDX-License-Identifier: Apache-2.0
// This process's end of a group: its operations in flight. Each is started by one call, and only
// poll progresses them, all at once, so that no rank waits for an operation that another rank does
// not progress.
#pragma once

#include "drivers/mpi/finalize_watch.h"
#include "drivers/mpi/join.h"
#include "drivers/mpi/reducer.h"

#include <deque>
#include <memory>

namespace stepwell::drivers {

class Group {
public:
    static stw_status open(const stw_services *services, const stw_collective_options &options,
                           std::unique_ptr<Group> *group_out, stw_driver_error *error_out);
    Group(const Group &) = delete;
    Group &operator=(const Group &) = delete;
    ~Group() = default;

    void info(stw_collective_info *info_out) const;
    stw_status exchange(const void *record, void *records, uint32_t bytes, uint64_t *work_out);
    stw_status all_gather(const void *shard, void *whole, uint64_t shard_bytes, uint64_t *work_out);
    stw_status reduce_scatter(const void *whole, void *shard, uint64_t shard_elements,
                              uint32_t dtype, uint64_t *work_out);
    stw_status all_reduce(void *data, uint64_t elements, uint32_t dtype, uint64_t *work_out);
    stw_status poll(uint64_t id, stw_driver_error *error_out);
    uint32_t missing(uint64_t id, uint32_t *ranks_out, uint32_t capacity);
    stw_status split(int32_t colour, uint32_t key, uint64_t timeout_ns,
                     std::unique_ptr<Group> *group_out, stw_driver_error *error_out);
    // OK: no MPI resource is left. TIMEOUT: operations are in flight. Other errors: operations in
    // flight cannot be waited for, and MPI may still write to their memory.
    stw_status close(uint64_t wait_ns);

private:
    enum class Kind { kNone, kExchange, kAllGather, kReduce, kBarrier };
    struct Work {
        uint64_t id = 0;
        Kind kind = Kind::kNone;
        bool over = false;
        int error = MPI_SUCCESS;
        Requests requests;
        MPI_Datatype type = MPI_DATATYPE_NULL;  // for more bytes than an int can count
        Reduction reduction;
    };

    Group(const Services &services, const MpiThreads &threads)
        : services_(services), threads_(threads)
    {
    }
    void take_memory();
    stw_status adopt(MPI_Comm comm, stw_driver_error *error_out);
    stw_status meet(uint64_t timeout_ns, stw_driver_error *error_out);
    // nullptr: `status_out` says why no operation can be started.
    Work *start(Kind kind, stw_status *status_out) STW_REQUIRES(mutex_);
    stw_status start_reduction(const Reduction &reduction, uint64_t *work_out);
    Work *find(uint64_t id) STW_REQUIRES(mutex_);
    void gather(Work &work, const void *shard, void *whole, uint64_t shard_bytes)
        STW_REQUIRES(mutex_);
    void begin_next_reduction() STW_REQUIRES(mutex_);
    void advance(Work &work) STW_REQUIRES(mutex_);
    void advance_all() STW_REQUIRES(mutex_);
    void forget(Work &work) STW_REQUIRES(mutex_);
    bool in_flight() STW_REQUIRES(mutex_);

    const Services services_;
    const MpiThreads threads_;
    Ranks ranks_;
    Mutex mutex_;  // held around every call of MPI
    FinalizeWatch watch_{mutex_};
    std::deque<Work> works_ STW_GUARDED_BY(mutex_);
    Reducer reducer_ STW_GUARDED_BY(mutex_);
    uint64_t reducing_ STW_GUARDED_BY(mutex_) = 0;  // the work; 0: none
    uint64_t started_ STW_GUARDED_BY(mutex_) = 0;
    int broken_ STW_GUARDED_BY(mutex_) = MPI_SUCCESS;  // the first error
};

}  // namespace stepwell::drivers
