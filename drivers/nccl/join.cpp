// SPDX-License-Identifier: Apache-2.0
// How a group gets its communicator: made together with the other ranks, or lent by the program.
#include "drivers/nccl/group.h"

#include "drivers/common/mutex.h"

#include <cinttypes>
#include <cstring>

#include <sched.h>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kTimeoutDefaultNs = 300'000'000'000;

}  // namespace

stw_status NcclGroup::open(const stw_collective_options &options,
                           std::unique_ptr<NcclGroup> *group_out, stw_driver_error *error_out)
{
    std::unique_ptr<NcclGroup> group(new NcclGroup);
    if (const stw_status status = load_libraries(&group->libraries_, error_out)) return status;
    int ordinal = options.device_ordinal;
    if (options.communicator != nullptr)
        if (const stw_status status = group->borrow(options, &ordinal, error_out)) return status;
    auto device = std::make_unique<Device>(group->libraries_);
    if (const stw_status status = device->open(ordinal, error_out)) return status;
    group->device_ = std::move(device);
    const Device::Scope scope(*group->device_);
    if (!group->borrowed_)
        if (const stw_status status = group->join(options, error_out)) return status;
    const stw_status room = group->device_->take_room(kSlots * group->slot_bytes(), error_out);
    if (room != STW_OK) {
        if (!group->borrowed_) group->libraries_.nccl.comm_abort(group->comm_);
        return room;
    }
    *group_out = std::move(group);
    return STW_OK;
}

// NCCL gives no information about a communicator that is still being made.
stw_status NcclGroup::borrow(const stw_collective_options &options, int *ordinal_out,
                             stw_driver_error *error_out)
{
    const NcclApi &nccl = libraries_.nccl;
    const uint64_t timeout_ns = options.timeout_ns == 0 ? kTimeoutDefaultNs : options.timeout_ns;
    comm_ = static_cast<ncclComm_t>(options.communicator);
    borrowed_ = true;
    int rank = 0, size = 0;
    int result = wait_until_made(timeout_ns);
    if (result == kNcclInProgress)
        return fail(error_out, STW_ERROR_TIMEOUT, {},
                    "The communicator that the program lent was not made within %.1f s; look at "
                    "the output of the other ranks.",
                    static_cast<double>(timeout_ns) / 1e9);
    if (result == kNcclSuccess) result = nccl.comm_user_rank(comm_, &rank);
    if (result == kNcclSuccess) result = nccl.comm_count(comm_, &size);
    if (result == kNcclSuccess) result = nccl.comm_device(comm_, ordinal_out);
    if (result != kNcclSuccess)
        return fail(error_out, nccl_status(result), {},
                    "The communicator that the program lent cannot be used: %s. Lend one that was "
                    "neither destroyed nor aborted, and keep it until the group is destroyed.",
                    libraries_.nccl_text(comm_, result).c_str());
    rank_ = static_cast<uint32_t>(rank);
    size_ = static_cast<uint32_t>(size);
    const bool told = options.rank != 0 || options.size != 0;
    if (told && (options.rank != rank_ || options.size != size_))
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The communicator that the program lent is rank %" PRIu32 " of %" PRIu32
                    ", and the options say rank %" PRIu32 " of %" PRIu32
                    "; say what it is, or 0 and 0.",
                    rank_, size_, options.rank, options.size);
    if (options.device_ordinal != 0 && options.device_ordinal != *ordinal_out)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The communicator that the program lent is on device %d, and the options say "
                    "%" PRId32 "; say what it is, or 0.",
                    *ordinal_out, options.device_ordinal);
    return STW_OK;
}

stw_status NcclGroup::join(const stw_collective_options &options, stw_driver_error *error_out)
{
    NcclUniqueId id = {};
    if (options.unique_id == nullptr || options.unique_id_bytes != sizeof id)
        return fail(
            error_out, STW_ERROR_INVALID, {},
            "NCCL joins ranks by a communicator or by the %zu bytes of an ncclUniqueId, and "
            "%" PRIu64 " were given; make one by ncclGetUniqueId on one rank and send it "
            "to all.",
            sizeof id, options.unique_id != nullptr ? options.unique_id_bytes : 0);
    if (options.size == 0 || options.rank >= options.size || options.size > INT32_MAX)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "Rank %" PRIu32 " of %" PRIu32 " ranks is none; ranks count from 0.",
                    options.rank, options.size);
    std::memcpy(&id, options.unique_id, sizeof id);
    rank_ = options.rank;
    size_ = options.size;
    NcclConfig config = {sizeof config, kNcclMagic, kNcclVersionMin, 0};
    const int result = libraries_.nccl.comm_init_rank_config(&comm_, static_cast<int>(size_), id,
                                                             static_cast<int>(rank_), &config);
    if (result != kNcclSuccess && result != kNcclInProgress)
        return fail(error_out, nccl_status(result), {}, "NCCL refused rank %" PRIu32 ": %s.", rank_,
                    libraries_.nccl_text(comm_, result).c_str());
    return wait_until_joined(options.timeout_ns == 0 ? kTimeoutDefaultNs : options.timeout_ns,
                             error_out);
}

// NCCL's state of the communicator at the end: in progress if the time has passed.
int NcclGroup::wait_until_made(uint64_t timeout_ns)
{
    const Deadline deadline = Deadline::after(timeout_ns);
    int result = kNcclInProgress;
    do {
        const int asked = libraries_.nccl.comm_get_async_error(comm_, &result);
        if (asked != kNcclSuccess) result = asked;
        if (result != kNcclInProgress) break;
        sched_yield();
    } while (!deadline.passed());
    return result;
}

stw_status NcclGroup::wait_until_joined(uint64_t timeout_ns, stw_driver_error *error_out)
{
    const int result = wait_until_made(timeout_ns);
    if (result == kNcclSuccess) return STW_OK;
    const std::string text = libraries_.nccl_text(comm_, result);
    libraries_.nccl.comm_abort(comm_);
    if (result == kNcclInProgress)
        return fail(error_out, STW_ERROR_TIMEOUT, {},
                    "Not all %" PRIu32 " ranks joined NCCL's communicator within %.1f s; each of "
                    "them opens the group with the same unique id, at about the same time.",
                    size_, static_cast<double>(timeout_ns) / 1e9);
    return fail(error_out, nccl_status(result), {}, "NCCL could not join rank %" PRIu32 ": %s.",
                rank_, text.c_str());
}

}  // namespace stepwell::drivers
