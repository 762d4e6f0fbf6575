// SPDX-License-Identifier: Apache-2.0
#include "drivers/nccl/group.h"

#include "drivers/common/mutex.h"

#include <algorithm>
#include <cinttypes>
#include <cstring>

#include <sched.h>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kAbortedNs = 2'000'000'000;  // aborted work has ended by then
void *const kStreamSynced = reinterpret_cast<void *>(intptr_t{-1});  // STW_STREAM_SYNCED

}  // namespace

NcclGroup::~NcclGroup()
{
    if (device_ == nullptr) return;
    const Device::Scope scope(*device_);
    for (const Work &work : works_)
        if (work.event != nullptr) libraries_.cuda.event_destroy(work.event);
}

void NcclGroup::info(stw_collective_info *info_out) const
{
    stw_collective_info info = {};
    info.rank = rank_;
    info.size = size_;
    info.stream = device_->stream();
    copy_text(info.remark, sizeof info.remark,
              "NCCL " + libraries_.version_text() +
                  " adds in the order of its algorithm, in the dtype itself: sums repeat on the "
                  "same machines with the same number of ranks, and differ from MPI's.");
    give_info(info, info_out);
}

NcclGroup::Work *NcclGroup::find(uint64_t id)
{
    const auto at =
        std::find_if(works_.begin(), works_.end(), [id](const Work &one) { return one.id == id; });
    return at == works_.end() ? nullptr : &*at;
}

stw_status NcclGroup::start(const Work &asked, uint64_t *work_out)
{
    // After an error poll returns the error, with its sentence.
    if (aborted_ && !error_.any()) return STW_ERROR_CLOSED;
    Work work = asked;
    const Device::Scope scope(*device_);
    if (libraries_.cuda.event_create(&work.event, kCudaEventDisableTiming) != kCudaSuccess)
        return STW_ERROR_DEVICE;
    if (work.stream == nullptr || work.stream == kStreamSynced) work.stream = device_->stream();
    work.id = ++started_;
    work.state = State::kQueued;
    works_.push_back(work);
    *work_out = work.id;
    advance_all();
    return STW_OK;
}

stw_status NcclGroup::exchange(const void *record, void *records, uint32_t bytes,
                               uint64_t *work_out)
{
    if (bytes > STW_EXCHANGE_BYTES_MAX) return STW_ERROR_INVALID;
    return start({.kind = Kind::kExchange, .from = record, .to = records, .count = bytes},
                 work_out);
}

stw_status NcclGroup::all_gather(const void *shard, void *whole, uint64_t shard_bytes, void *stream,
                                 uint64_t *work_out)
{
    return start({.kind = Kind::kAllGather,
                  .from = shard,
                  .to = whole,
                  .count = shard_bytes,
                  .type = kNcclInt8,
                  .stream = stream},
                 work_out);
}

stw_status NcclGroup::reduction(Work asked, uint32_t dtype, uint64_t *work_out)
{
    // STW_F32, STW_F16, STW_BF16, STW_F64 are 1 to 4.
    constexpr int kTypes[] = {kNcclFloat32, kNcclFloat16, kNcclBfloat16, kNcclFloat64};
    if (dtype < 1 || dtype > 4) return STW_ERROR_INVALID;
    asked.type = kTypes[dtype - 1];
    return start(asked, work_out);
}

stw_status NcclGroup::reduce_scatter(const void *whole, void *shard, uint64_t shard_elements,
                                     uint32_t dtype, void *stream, uint64_t *work_out)
{
    return reduction({.kind = Kind::kReduceScatter,
                      .from = whole,
                      .to = shard,
                      .count = shard_elements,
                      .stream = stream},
                     dtype, work_out);
}

stw_status NcclGroup::all_reduce(void *data, uint64_t elements, uint32_t dtype, void *stream,
                                 uint64_t *work_out)
{
    return reduction(
        {.kind = Kind::kAllReduce, .from = data, .to = data, .count = elements, .stream = stream},
        dtype, work_out);
}

int NcclGroup::call(const Work &work)
{
    const NcclApi &nccl = libraries_.nccl;
    switch (work.kind) {
    case Kind::kExchange: return launch_exchange(work);
    case Kind::kAllGather:
        return nccl.all_gather(work.from, work.to, work.count, work.type, comm_, work.stream);
    case Kind::kReduceScatter:
        return nccl.reduce_scatter(work.from, work.to, work.count, work.type, kNcclSum, comm_,
                                   work.stream);
    case Kind::kAllReduce:
        return nccl.all_reduce(work.from, work.to, work.count, work.type, kNcclSum, comm_,
                               work.stream);
    }
    return kNcclInvalidArgument;
}

// A slot has this rank's record, then room for those of all.
int NcclGroup::launch_exchange(const Work &work)
{
    const size_t at = work.slot * slot_bytes();
    const CudaAddress own = device_->on_device() + at;
    std::memcpy(device_->on_host() + at, work.from, work.count);
    error_.cuda =
        libraries_.cuda.copy_to_device(own, device_->on_host() + at, work.count, device_->stream());
    if (error_.cuda != kCudaSuccess) return kNcclSuccess;
    // CUDA's addresses of device memory are numbers in one header and pointers in the other.
    const auto *from = reinterpret_cast<const void *>(own);
    auto *to = reinterpret_cast<void *>(own + STW_EXCHANGE_BYTES_MAX);
    return libraries_.nccl.all_gather(from, to, work.count, kNcclInt8, comm_, device_->stream());
}

bool NcclGroup::take_slot(Work &work)
{
    for (uint32_t slot = 0; slot < kSlots; ++slot) {
        if ((slots_taken_ & (1u << slot)) != 0) continue;
        slots_taken_ |= 1u << slot;
        work.slot = slot;
        return true;
    }
    return false;
}

// NCCL has enqueued it on the stream; later work on the stream runs after it.
void NcclGroup::launched(Work &work)
{
    const size_t at = work.slot * slot_bytes() + STW_EXCHANGE_BYTES_MAX;
    if (work.kind == Kind::kExchange)
        error_.cuda =
            libraries_.cuda.copy_to_host(device_->on_host() + at, device_->on_device() + at,
                                         work.count * size_, device_->stream());
    if (error_.cuda == kCudaSuccess)
        error_.cuda = libraries_.cuda.event_record(work.event, work.stream);
    work.state = State::kRunning;
}

void NcclGroup::finish(Work &work)
{
    work.state = State::kOver;
    if (work.kind != Kind::kExchange) return;
    const size_t at = work.slot * slot_bytes() + STW_EXCHANGE_BYTES_MAX;
    std::memcpy(work.to, device_->on_host() + at, work.count * size_);
    slots_taken_ &= ~(1u << work.slot);
}

// NCCL's present state of the communicator; an error is kept.
int NcclGroup::ask()
{
    int result = kNcclSuccess;
    const int asked = libraries_.nccl.comm_get_async_error(comm_, &result);
    if (asked != kNcclSuccess) {
        result = asked;
        error_.gone = borrowed_;
    }
    keep(result);
    return result;
}

// With NCCL's text for the error, which is not available after an abort.
void NcclGroup::keep(int result)
{
    if (result == kNcclSuccess || result == kNcclInProgress) return;
    error_.nccl = result;
    error_.text = libraries_.nccl_text(comm_, result);
}

void NcclGroup::advance(Work &work)
{
    int result = kNcclSuccess;
    if (work.state == State::kQueued) {
        if (work.count == 0) {
            work.state = State::kOver;
            return;
        }
        if (work.kind == Kind::kExchange && !take_slot(work)) return;
        result = call(work);
        work.state = State::kLaunching;
        if (result != kNcclSuccess && result != kNcclInProgress) (void)ask();
        keep(result);
    } else if (work.state == State::kLaunching) {
        result = ask();
    }
    if (error_.any()) return;
    if (work.state == State::kLaunching && result == kNcclSuccess) launched(work);
    if (work.state != State::kRunning || error_.any()) return;
    const int event = libraries_.cuda.event_query(work.event);
    if (event != kCudaSuccess && event != kCudaNotReady) error_.cuda = event;
    if (event != kCudaSuccess) return;
    // Work that an error or an abort interrupts ends on the stream as well.
    (void)ask();
    if (!error_.any()) finish(work);
}

// An operation that is not launched yet delays those after it: NCCL takes one call after another.
void NcclGroup::advance_all()
{
    for (Work &work : works_) {
        if (error_.any() || aborted_) return;
        if (work.state == State::kOver) continue;
        advance(work);
        if (work.state == State::kQueued || work.state == State::kLaunching) return;
    }
    if (!error_.any()) (void)ask();
}

stw_status NcclGroup::refuse(stw_driver_error *error_out) const
{
    if (aborted_ && !error_.any())
        return fail(error_out, STW_ERROR_CLOSED, {}, "The group was aborted; make another one.");
    if (error_.cuda != kCudaSuccess)
        return fail(error_out, STW_ERROR_DEVICE, {},
                    "The device failed under a collective of rank %" PRIu32 ": %s.", rank_,
                    libraries_.cuda_text(error_.cuda).c_str());
    if (error_.gone)
        return fail(error_out, STW_ERROR_CLOSED, {},
                    "The communicator that the program lent to rank %" PRIu32 " of %" PRIu32
                    " was destroyed or aborted under the group; keep it until the group is "
                    "destroyed, and make another group over another one.",
                    rank_, size_);
    return fail(error_out, nccl_status(error_.nccl), {},
                "NCCL failed under a collective of rank %" PRIu32 " of %" PRIu32
                ": %s. The group cannot be used any more; look at the other ranks' output.",
                rank_, size_, error_.text.c_str());
}

stw_status NcclGroup::register_memory(void *base, uint64_t bytes, stw_driver_error *error_out)
{
    if (libraries_.nccl.comm_register == nullptr || libraries_.nccl.comm_deregister == nullptr ||
        libraries_.nccl_version < kNcclRegisterMin)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "NCCL %s is not asked to register memory; 2.23 is the first that reaches it by "
                    "more than NVLink SHARP.",
                    libraries_.version_text().c_str());
    const Device::Scope scope(*device_);
    void *handle = nullptr;
    const int result = libraries_.nccl.comm_register(comm_, base, bytes, &handle);
    if (result != kNcclSuccess)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "NCCL did not register %s of device memory: %s.", bytes_text(bytes).c_str(),
                    libraries_.nccl_text(comm_, result).c_str());
    registered_[base] = handle;
    return STW_OK;
}

// The registrations of a destroyed communicator are gone as well.
void NcclGroup::unregister_memory(void *base)
{
    const auto found = registered_.find(base);
    if (found == registered_.end()) return;
    const Device::Scope scope(*device_);
    if (!aborted_ && !error_.gone) libraries_.nccl.comm_deregister(comm_, found->second);
    registered_.erase(found);
}

stw_status NcclGroup::poll(uint64_t id, stw_driver_error *error_out)
{
    Work *work = find(id);
    if (work == nullptr)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The group has no work %" PRIu64 " in flight; poll tells the end of each once.",
                    id);
    const Device::Scope scope(*device_);
    if (work->state != State::kOver) advance_all();
    const bool over = work->state == State::kOver;
    if (!over && ((!error_.any() && !aborted_) || !is_quiet())) return STW_PENDING;
    libraries_.cuda.event_destroy(work->event);
    std::erase_if(works_, [id](const Work &one) { return one.id == id; });
    return over ? stw_status{STW_OK} : refuse(error_out);
}

// After an error: no operation uses memory of the program or of the group any more. The program
// ends the operations of a lent communicator.
bool NcclGroup::is_quiet()
{
    if (!borrowed_ && !aborted_) {
        aborted_ = true;
        libraries_.nccl.comm_abort(comm_);
    }
    const auto runs = [this](const Work &work) {
        return work.state == State::kRunning &&
               libraries_.cuda.event_query(work.event) == kCudaNotReady;
    };
    return std::none_of(works_.begin(), works_.end(), runs) &&
           libraries_.cuda.stream_query(device_->stream()) != kCudaNotReady;
}

// TIMEOUT: an operation is still running.
stw_status NcclGroup::wait_until_quiet(uint64_t wait_ns)
{
    const Deadline deadline = Deadline::after(wait_ns);
    while (!is_quiet()) {
        if (deadline.passed()) return STW_ERROR_TIMEOUT;
        sched_yield();
    }
    return STW_OK;
}

// An abort frees the communicator, so a lent one is not aborted here: it is not used any more, and
// the program aborts it.
stw_status NcclGroup::abort()
{
    if (borrowed_) {
        aborted_ = true;
        return STW_ERROR_UNSUPPORTED;
    }
    const Device::Scope scope(*device_);
    return wait_until_quiet(kAbortedNs);
}

bool NcclGroup::at_work()
{
    const auto left = [this] {
        return std::any_of(works_.begin(), works_.end(),
                           [](const Work &work) { return work.state != State::kOver; });
    };
    if (left()) advance_all();
    return !aborted_ && !error_.any() && left();
}

stw_status NcclGroup::close(uint64_t wait_ns)
{
    const Deadline deadline = Deadline::after(wait_ns);
    const Device::Scope scope(*device_);
    while (at_work()) {
        if (deadline.passed()) return STW_ERROR_TIMEOUT;
        sched_yield();
    }
    if (borrowed_) return wait_until_quiet(wait_ns);
    int result =
        aborted_ || error_.any() ? int{kNcclInvalidUsage} : libraries_.nccl.comm_finalize(comm_);
    while (result == kNcclInProgress && !deadline.passed()) {
        libraries_.nccl.comm_get_async_error(comm_, &result);
        sched_yield();
    }
    if (result == kNcclSuccess) return nccl_status(libraries_.nccl.comm_destroy(comm_));
    return wait_until_quiet(std::max(wait_ns, kAbortedNs));
}

}  // namespace stepwell::drivers
