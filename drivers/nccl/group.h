// SPDX-License-Identifier: Apache-2.0
// This process's end of a group over NCCL. The communicator does not block: a call that NCCL cannot
// finish at once stays in progress until NCCL reports it done, and the next call waits for that. An
// event on the stream then marks the end of the operation. Only poll progresses operations, all of
// them, in the order of their starts.
#pragma once

#include "drivers/common/edge.h"
#include "drivers/nccl/device.h"

#include <deque>
#include <map>
#include <memory>
#include <string>

namespace stepwell::drivers {

class NcclGroup {
public:
    static constexpr uint32_t kSlots = 4;  // exchanges that NCCL has at once

    static stw_status open(const stw_collective_options &options,
                           std::unique_ptr<NcclGroup> *group_out, stw_driver_error *error_out);
    NcclGroup(const NcclGroup &) = delete;
    NcclGroup &operator=(const NcclGroup &) = delete;
    ~NcclGroup();

    void info(stw_collective_info *info_out) const;
    stw_status exchange(const void *record, void *records, uint32_t bytes, uint64_t *work_out);
    stw_status all_gather(const void *shard, void *whole, uint64_t shard_bytes, void *stream,
                          uint64_t *work_out);
    stw_status reduce_scatter(const void *whole, void *shard, uint64_t shard_elements,
                              uint32_t dtype, void *stream, uint64_t *work_out);
    stw_status all_reduce(void *data, uint64_t elements, uint32_t dtype, void *stream,
                          uint64_t *work_out);
    stw_status register_memory(void *base, uint64_t bytes, stw_driver_error *error_out);
    void unregister_memory(void *base);
    stw_status poll(uint64_t id, stw_driver_error *error_out);
    stw_status abort();
    // TIMEOUT: not closed.
    stw_status close(uint64_t wait_ns);

private:
    enum class Kind { kExchange, kAllGather, kReduceScatter, kAllReduce };
    enum class State { kFree, kQueued, kLaunching, kRunning, kOver };
    struct Work {
        uint64_t id = 0;
        Kind kind = Kind::kExchange;
        State state = State::kFree;
        const void *from = nullptr;
        void *to = nullptr;
        uint64_t count = 0;
        int type = 0;
        void *stream = nullptr;
        void *event = nullptr;
        uint32_t slot = 0;  // of an exchange
    };
    // The first error ends the group.
    struct Error {
        int nccl = kNcclSuccess;
        int cuda = kCudaSuccess;
        std::string text;   // of NCCL's
        bool gone = false;  // a lent communicator that NCCL has already destroyed
        bool any() const { return nccl != kNcclSuccess || cuda != kCudaSuccess; }
    };

    NcclGroup() = default;
    stw_status join(const stw_collective_options &options, stw_driver_error *error_out);
    stw_status borrow(const stw_collective_options &options, int *ordinal_out,
                      stw_driver_error *error_out);
    int wait_until_made(uint64_t timeout_ns);
    stw_status wait_until_joined(uint64_t timeout_ns, stw_driver_error *error_out);
    stw_status start(const Work &asked, uint64_t *work_out);
    stw_status reduction(Work asked, uint32_t dtype, uint64_t *work_out);
    Work *find(uint64_t id);
    size_t slot_bytes() const { return size_t{STW_EXCHANGE_BYTES_MAX} * (size_ + 1); }
    int call(const Work &work);
    int launch_exchange(const Work &work);
    void launched(Work &work);
    int ask();
    void keep(int result);
    void advance(Work &work);
    void advance_all();
    bool at_work();
    bool is_quiet();
    stw_status wait_until_quiet(uint64_t wait_ns);
    void finish(Work &work);
    bool take_slot(Work &work);
    stw_status refuse(stw_driver_error *error_out) const;

    Libraries libraries_;
    std::unique_ptr<Device> device_;  // of libraries_
    ncclComm_t comm_ = nullptr;
    bool borrowed_ = false;
    bool aborted_ = false;
    uint32_t rank_ = 0;
    uint32_t size_ = 1;
    Error error_;
    std::deque<Work> works_;  // in the order of their starts
    uint64_t started_ = 0;
    uint32_t slots_taken_ = 0;             // a bit each
    std::map<void *, void *> registered_;  // NCCL's handles, by what was registered
};

}  // namespace stepwell::drivers
