// SPDX-License-Identifier: Apache-2.0
#include "drivers/mpi/group.h"

#include "drivers/mpi/sum.h"

#include <algorithm>
#include <cinttypes>
#include <climits>
#include <cstring>

#include <sched.h>

namespace stepwell::drivers {

namespace {

constexpr uint64_t kTimeoutDefaultNs = 300 * kSecond;
// Operations in flight of one group: each has its own tags, below the smallest bound that MPI
// guarantees, 32767. An exchange has the tag after those of a reduction.
constexpr int kTagsOfWork = 8;
constexpr uint64_t kWorksMax = 32768 / kTagsOfWork;
constexpr size_t kWorksReady = 8;  // that need no allocation
static_assert(Reducer::kTags < kTagsOfWork);

constexpr const char *kFinalized =
    "MPI_Finalize was called before the group was closed, so what was in flight is lost; destroy "
    "groups before MPI_Finalize.";

int first_tag(uint64_t id)
{
    return static_cast<int>(id % kWorksMax) * kTagsOfWork;
}

uint64_t or_default(uint64_t timeout_ns)
{
    return timeout_ns == 0 ? kTimeoutDefaultNs : timeout_ns;
}

// A datatype of `bytes` bytes, which may be more than an int can count.
int make_type(uint64_t bytes, MPI_Datatype *type_out)
{
    constexpr int kUnit = 1 << 20;
    MPI_Datatype unit = MPI_DATATYPE_NULL;
    if (const int code = MPI_Type_contiguous(kUnit, MPI_BYTE, &unit)) return code;
    int lengths[2] = {static_cast<int>(bytes / kUnit), static_cast<int>(bytes % kUnit)};
    MPI_Aint places[2] = {0, static_cast<MPI_Aint>(bytes - bytes % kUnit)};
    MPI_Datatype types[2] = {unit, MPI_BYTE};
    int code = MPI_Type_create_struct(2, lengths, places, types, type_out);
    MPI_Type_free(&unit);
    if (code == MPI_SUCCESS) code = MPI_Type_commit(type_out);
    return code;
}

}  // namespace

stw_status Group::open(const stw_services *services, const stw_collective_options &options,
                       std::unique_ptr<Group> *group_out, stw_driver_error *error_out)
{
    if (options.communicator != nullptr || options.unique_id != nullptr)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The driver 'mpi' takes a communicator of MPI's by its Fortran handle alone "
                    "(MPI_Comm_c2f), and no unique id.");
    MpiThreads threads;
    if (const stw_status status = look_at_mpi(&threads, error_out)) return status;
    std::unique_ptr<Group> group(new Group(Services(services), threads));
    MPI_Comm comm = MPI_COMM_NULL;
    if (const stw_status status =
            duplicate(options.mpi_comm, or_default(options.timeout_ns), &comm, error_out))
        return status;
    if (const stw_status status = group->adopt(comm, error_out)) return status;
    *group_out = std::move(group);
    return STW_OK;
}

void Group::take_memory()
{
    const MutexLock lock(mutex_);
    reducer_.open(ranks_);
    works_.resize(kWorksReady);
    for (Work &work : works_) work.requests.reserve(2 * size_t{ranks_.size});
}

// The group owns the communicator from here on, also a group that could not be opened.
stw_status Group::adopt(MPI_Comm comm, stw_driver_error *error_out)
{
    ranks_ = ranks_of(comm);
    const stw_status status = guard_open(error_out, [&]() -> stw_status {
        take_memory();
        const int code = watch_.begin();
        if (code == MPI_SUCCESS) return STW_OK;
        return fail(error_out, mpi_status(code), {}, "MPI gave no attribute to a group: %s.",
                    mpi_text(code).c_str());
    });
    if (status != STW_OK) MPI_Comm_free(&ranks_.comm);
    return status;
}

void Group::info(stw_collective_info *info_out) const
{
    stw_collective_info info = {};
    info.rank = ranks_.rank;
    info.size = ranks_.size;
    info.caller_thread = threads_.caller_thread() ? 1 : 0;
    if (threads_.caller_thread())
        copy_text(info.remark, sizeof info.remark,
                  std::string("MPI was initialised with ") + threads_.name() +
                      ", so collectives go on inside calls of the program alone; call "
                      "MPI_Init_thread with MPI_THREAD_MULTIPLE to overlap them.");
    give_info(info, info_out);
}

Group::Work *Group::start(Kind kind, stw_status *status_out)
{
    *status_out = watch_.finalized() ? stw_status{STW_ERROR_CLOSED} : mpi_status(broken_);
    if (*status_out != STW_OK) return nullptr;
    Work *free = find(0);
    if (free == nullptr) {
        *status_out = works_.size() < kWorksMax ? STW_OK : STW_ERROR_LIMIT;
        if (*status_out != STW_OK) return nullptr;
        free = &works_.emplace_back();
        free->requests.reserve(2 * size_t{ranks_.size});
    }
    free->id = ++started_;
    free->kind = kind;
    free->over = false;
    free->error = MPI_SUCCESS;
    return free;
}

Group::Work *Group::find(uint64_t id)
{
    const auto at = std::find_if(works_.begin(), works_.end(),
                                 [id](const Work &work) { return work.id == id; });
    return at == works_.end() ? nullptr : &*at;
}

stw_status Group::exchange(const void *record, void *records, uint32_t bytes, uint64_t *work_out)
{
    if (bytes > STW_EXCHANGE_BYTES_MAX) return STW_ERROR_INVALID;
    const MutexLock lock(mutex_);
    stw_status status = STW_OK;
    Work *work = start(Kind::kExchange, &status);
    if (work == nullptr) return status;
    *work_out = work->id;
    char *all = static_cast<char *>(records);
    if (bytes == 0) return STW_OK;
    std::memmove(all + uint64_t{ranks_.rank} * bytes, record, bytes);
    const int tag = first_tag(work->id) + Reducer::kTags;
    for (uint32_t step = 1; step < ranks_.size; ++step) {
        const uint32_t from = (ranks_.rank + ranks_.size - step) % ranks_.size;
        work->requests.receive(ranks_, all + uint64_t{from} * bytes, bytes, from, tag);
    }
    for (uint32_t step = 1; step < ranks_.size; ++step)
        work->requests.send(ranks_, record, bytes, (ranks_.rank + step) % ranks_.size, tag);
    return STW_OK;
}

stw_status Group::all_gather(const void *shard, void *whole, uint64_t shard_bytes,
                             uint64_t *work_out)
{
    if (shard_bytes > uint64_t{INT64_MAX} / ranks_.size) return STW_ERROR_INVALID;
    const MutexLock lock(mutex_);
    stw_status status = STW_OK;
    Work *work = start(Kind::kAllGather, &status);
    if (work == nullptr) return status;
    *work_out = work->id;
    if (shard_bytes > 0) gather(*work, shard, whole, shard_bytes);
    return STW_OK;
}

void Group::gather(Work &work, const void *shard, void *whole, uint64_t shard_bytes)
{
    int count = static_cast<int>(shard_bytes);
    MPI_Datatype type = MPI_BYTE;
    if (shard_bytes > INT_MAX) {
        work.error = make_type(shard_bytes, &work.type);
        if (work.error != MPI_SUCCESS) return;
        count = 1;
        type = work.type;
    }
    const bool in_place = static_cast<const char *>(whole) + ranks_.rank * shard_bytes == shard;
    work.requests.add([&](MPI_Request *request) {
        return MPI_Iallgather(in_place ? MPI_IN_PLACE : shard, count, type, whole, count, type,
                              ranks_.comm, request);
    });
}

stw_status Group::reduce_scatter(const void *whole, void *shard, uint64_t shard_elements,
                                 uint32_t dtype, uint64_t *work_out)
{
    return start_reduction({.from = static_cast<const char *>(whole),
                            .to = static_cast<char *>(shard),
                            .elements = shard_elements,
                            .dtype = dtype},
                           work_out);
}

stw_status Group::all_reduce(void *data, uint64_t elements, uint32_t dtype, uint64_t *work_out)
{
    return start_reduction({.from = static_cast<const char *>(data),
                            .to = static_cast<char *>(data),
                            .elements = elements,
                            .dtype = dtype,
                            .to_all = true},
                           work_out);
}

stw_status Group::start_reduction(const Reduction &reduction, uint64_t *work_out)
{
    const uint64_t element_bytes = summed_element_bytes(reduction.dtype);
    if (element_bytes == 0 ||
        reduction.elements > uint64_t{INT64_MAX} / element_bytes / ranks_.size)
        return STW_ERROR_INVALID;
    const MutexLock lock(mutex_);
    stw_status status = STW_OK;
    Work *work = start(Kind::kReduce, &status);
    if (work == nullptr) return status;
    *work_out = work->id;
    work->reduction = reduction;
    work->reduction.tag = first_tag(work->id);
    begin_next_reduction();
    return STW_OK;
}

// Reductions run one at a time in the order of their starts, which is the same on all ranks: they
// share the scratch memory.
void Group::begin_next_reduction()
{
    if (reducing_ != 0) return;
    Work *next = nullptr;
    for (Work &work : works_)
        if (work.kind == Kind::kReduce && !work.over && (next == nullptr || work.id < next->id))
            next = &work;
    if (next == nullptr) return;
    reducing_ = next->id;
    reducer_.begin(next->reduction);
}

void Group::advance(Work &work)
{
    if (work.kind == Kind::kNone || work.over) return;
    if (work.kind == Kind::kReduce) {
        if (reducing_ != work.id || !reducer_.advance()) return;
        work.error = reducer_.error();
        reducing_ = 0;
    } else {
        if (work.error == MPI_SUCCESS && !work.requests.advance()) return;
        if (work.error == MPI_SUCCESS) work.error = work.requests.error();
    }
    work.over = true;
    if (work.error != MPI_SUCCESS && broken_ == MPI_SUCCESS) broken_ = work.error;
}

void Group::advance_all()
{
    for (Work &work : works_) advance(work);
    if (broken_ == MPI_SUCCESS) begin_next_reduction();
}

stw_status Group::poll(uint64_t id, stw_driver_error *error_out)
{
    const MutexLock lock(mutex_);
    Work *work = id == 0 ? nullptr : find(id);
    if (work == nullptr)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The group has no work %" PRIu64 " in flight; poll tells the end of each once.",
                    id);
    if (watch_.finalized()) {
        forget(*work);
        return fail(error_out, STW_ERROR_CLOSED, {}, "%s", kFinalized);
    }
    advance_all();
    if (!work->over && broken_ == MPI_SUCCESS) return STW_PENDING;
    const int code = work->over ? work->error : broken_;
    forget(*work);
    if (code == MPI_SUCCESS) return STW_OK;
    return fail(error_out, mpi_status(code), {},
                "MPI failed under a collective of rank %" PRIu32 " of %" PRIu32
                ": %s. The group cannot be used any more; look at the other ranks' output.",
                ranks_.rank, ranks_.size, mpi_text(code).c_str());
}

void Group::forget(Work &work)
{
    if (work.type != MPI_DATATYPE_NULL && !watch_.finalized()) MPI_Type_free(&work.type);
    work.type = MPI_DATATYPE_NULL;
    work.kind = Kind::kNone;
    work.id = 0;
}

uint32_t Group::missing(uint64_t id, uint32_t *ranks_out, uint32_t capacity)
{
    const MutexLock lock(mutex_);
    const Work *work = id == 0 ? nullptr : find(id);
    if (work == nullptr || work->kind != Kind::kExchange) return 0;
    return work->requests.missing(ranks_out, capacity);
}

bool Group::in_flight()
{
    advance_all();
    return std::any_of(works_.begin(), works_.end(),
                       [](const Work &work) { return work.kind != Kind::kNone && !work.over; });
}

// Waits for all ranks, with a timeout.
stw_status Group::meet(uint64_t timeout_ns, stw_driver_error *error_out)
{
    stw_status status = STW_OK;
    uint64_t id = 0;
    {
        const MutexLock lock(mutex_);
        Work *work = start(Kind::kBarrier, &status);
        if (work == nullptr)
            return fail(error_out, status, {}, "%s",
                        watch_.finalized() ? kFinalized : "The group cannot be used any more.");
        id = work->id;
        work->requests.add(
            [&](MPI_Request *request) { return MPI_Ibarrier(ranks_.comm, request); });
    }
    const Deadline deadline = Deadline::after(timeout_ns);
    while ((status = poll(id, error_out)) == STW_PENDING) {
        if (deadline.passed())
            return fail(error_out, STW_ERROR_TIMEOUT, {},
                        "Not all %" PRIu32 " ranks split the group within %.1f s; each of them "
                        "does, at about the same time. This group is not to be split again.",
                        ranks_.size, static_cast<double>(timeout_ns) / kSecond);
        sched_yield();
    }
    return status;
}

stw_status Group::split(int32_t colour, uint32_t key, uint64_t timeout_ns,
                        std::unique_ptr<Group> *group_out, stw_driver_error *error_out)
{
    if (colour < -1)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The colour %" PRId32 " is below -1, which is that of ranks in no group; give "
                    "one from 0 on.",
                    colour);
    std::unique_ptr<Group> group(new Group(services_, threads_));
    // MPI's split has no timeout. The ranks meet twice: a rank that gave up at the first barrier is
    // still counted there when the others arrive, but not at the second one. So no rank splits
    // alone.
    for (int meeting = 0; meeting < 2; ++meeting)
        if (const stw_status status = meet(or_default(timeout_ns), error_out)) return status;
    MPI_Comm comm = MPI_COMM_NULL;
    // The keys are unsigned here and signed in MPI: subtracting 2^31 from all of them keeps their
    // order.
    const int signed_key = static_cast<int>(int64_t{key} + INT_MIN);
    const int code =
        MPI_Comm_split(ranks_.comm, colour < 0 ? MPI_UNDEFINED : colour, signed_key, &comm);
    if (code != MPI_SUCCESS)
        return fail(error_out, mpi_status(code), {}, "MPI could not split the group: %s.",
                    mpi_text(code).c_str());
    if (comm == MPI_COMM_NULL) return STW_OK;
    MPI_Comm_set_errhandler(comm, MPI_ERRORS_RETURN);
    if (const stw_status status = group->adopt(comm, error_out)) return status;
    *group_out = std::move(group);
    return STW_OK;
}

stw_status Group::close(uint64_t wait_ns)
{
    const Deadline deadline = Deadline::after(wait_ns);
    while (true) {
        {
            const MutexLock lock(mutex_);
            if (watch_.finalized()) {
                services_.log(kLogWarning, "ranks", kFinalized);
                return STW_ERROR_CLOSED;
            }
            if (broken_ != MPI_SUCCESS) return mpi_status(broken_);
            if (!in_flight()) break;
        }
        if (deadline.passed()) return STW_ERROR_TIMEOUT;
        sched_yield();
    }
    // Not under the lock: freeing calls the delete functions of attributes that the program set on
    // its communicator.
    MPI_Comm_free(&ranks_.comm);
    return STW_OK;
}

}  // namespace stepwell::drivers
