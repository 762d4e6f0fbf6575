// SPDX-License-Identifier: Apache-2.0
// The entry points of NCCL that the group driver calls, and the one that makes unique ids.
#include "drivers/nccl/api.h"
#include "tests/cuda/double/entry.h"
#include "tests/nccl/double/communicator.h"
#include "tests/nccl/double/control.h"
#include "tests/nccl/double/options.h"
#include "tests/nccl/double/sums.h"

#include <cstdio>
#include <cstring>

#include <sched.h>
#include <sys/random.h>

#define STW_EXPORT extern "C" __attribute__((visibility("default")))

namespace stepwell::nccl_double {
namespace {

using namespace stepwell::drivers;

// Never destroyed: streams may still have work when the process ends.
struct State {
    Options options = options_of_environment();
    Counts counts{options.failures};
    std::mutex lock;
    std::map<void *, std::shared_ptr<Communicator>> comms;
    uint64_t in_registered = 0;
    uint64_t left_registered = 0;
};

State &state()
{
    static State *made = new State;
    return *made;
}

std::shared_ptr<Communicator> find(void *comm)
{
    const auto found = state().comms.find(comm);
    return found != state().comms.end() ? found->second : nullptr;
}

// Under the lock: `body` with the communicator that is named, where the call is not to fail.
template <class Body> int enter(const char *function, void *handle, Body &&body)
{
    State &all = state();
    const std::lock_guard lock(all.lock);
    if (const int code = all.counts.count(function)) return code;
    const std::shared_ptr<Communicator> comm = find(handle);
    return comm != nullptr ? body(*comm) : int{kNcclInvalidArgument};
}

int drop(const char *function, void *handle, bool aborts)
{
    return enter(function, handle, [&](Communicator &comm) -> int {
        if (!aborts && !comm.quiet()) return kNcclInvalidUsage;
        // An abort ends what is registered as well; any other end comes behind that.
        if (aborts)
            comm.abort();
        else
            state().left_registered += comm.registered();
        state().comms.erase(handle);
        return kNcclSuccess;
    });
}

std::string name_of(const NcclUniqueId &id)
{
    std::string name = "/stepwell-nccl-";
    for (int i = 0; i < 16; ++i) {
        char hex[3];
        std::snprintf(hex, sizeof hex, "%02x", static_cast<unsigned char>(id.internal[i]));
        name += hex;
    }
    return name;
}

// Its memory is that of its device, and so is the context that the calls are made in.
int collect(const char *function, Asked asked, void *handle)
{
    return enter(function, handle, [&](Communicator &comm) -> int {
        int device = -1;
        if (cuda_double::cuCtxGetDevice(&device) != 0 || device != comm.device())
            return kNcclInvalidUsage;
        const uint64_t bytes = asked.count * bytes_of_type(asked.type);
        const bool sums = asked.kind != Kind::kAllGather;
        if (bytes_of_type(asked.type) == 0 || (sums && !can_sum(asked.type)))
            return kNcclInvalidArgument;
        const uint64_t all = bytes * static_cast<uint64_t>(comm.ranks());
        const uint64_t from = asked.kind == Kind::kReduceScatter ? all : bytes;
        const uint64_t to = asked.kind == Kind::kAllGather ? all : bytes;
        asked.registered = comm.covers(asked.from, from) && comm.covers(asked.to, to);
        if (asked.registered) ++state().in_registered;
        return comm.start(asked);
    });
}

uint64_t address(const void *pointer)
{
    return reinterpret_cast<uint64_t>(pointer);
}

// NCCL knows of a range what its first byte belongs to, and reaches the rest at addresses that
// are those of another memory.
bool is_one_allocation(uint64_t begin, uint64_t bytes)
{
    using cuda_double::cuPointerGetAttribute;
    uint64_t start = 0;
    size_t size = 0;
    return cuPointerGetAttribute(&start, cuda_double::kPointerRangeStart, begin) == 0 &&
           cuPointerGetAttribute(&size, cuda_double::kPointerRangeSize, begin) == 0 &&
           begin + bytes <= start + size;
}

}  // namespace

STW_EXPORT int ncclGetVersion(int *version_out)
{
    *version_out = state().options.version;
    return kNcclSuccess;
}

STW_EXPORT int ncclGetUniqueId(NcclUniqueId *id_out)
{
    const ssize_t got = getrandom(id_out, sizeof *id_out, 0);
    return got == static_cast<ssize_t>(sizeof *id_out) ? kNcclSuccess : kNcclSystemError;
}

STW_EXPORT const char *ncclGetErrorString(int result)
{
    switch (result) {
    case kNcclSuccess: return "no error";
    case kNcclUnhandledCudaError: return "unhandled cuda error";
    case kNcclSystemError: return "unhandled system error";
    case kNcclInvalidArgument: return "invalid argument";
    case kNcclInvalidUsage: return "invalid usage";
    case kNcclRemoteError: return "remote process exited or there was a network error";
    case kNcclInProgress: return "NCCL operation in progress";
    default: return "internal error";
    }
}

STW_EXPORT const char *ncclGetLastError(ncclComm_t handle)
{
    const std::lock_guard lock(state().lock);
    const std::shared_ptr<Communicator> comm = find(handle);
    return comm != nullptr ? comm->last_error() : "";
}

STW_EXPORT int ncclCommInitRankConfig(ncclComm_t *comm_out, int ranks, NcclUniqueId id, int rank,
                                      const NcclConfig *config)
{
    State &all = state();
    std::unique_lock lock(all.lock);
    *comm_out = nullptr;
    if (const int code = all.counts.count("ncclCommInitRankConfig")) return code;
    int device = -1;
    if (cuda_double::cuCtxGetDevice(&device) != 0) return kNcclUnhandledCudaError;
    const bool known = config->size == sizeof *config && config->magic == kNcclMagic;
    if (!known || ranks < 1 || ranks > kRanksMax || rank < 0 || rank >= ranks)
        return kNcclInvalidArgument;
    std::shared_ptr<Segment> segment = Segment::open(name_of(id), ranks);
    if (segment == nullptr) return kNcclSystemError;
    if (segment->rank(rank).process.load() != 0) return kNcclInvalidUsage;  // there is one already
    const auto comm =
        std::make_shared<Communicator>(std::move(segment), rank, device, all.options.init,
                                       all.options.launch, all.options.notices);
    all.comms[comm.get()] = comm;
    *comm_out = reinterpret_cast<ncclComm_t>(comm.get());
    if (config->blocking == 0) return kNcclInProgress;
    int result = kNcclInProgress;
    while ((result = comm->state()) == kNcclInProgress) {
        lock.unlock();
        sched_yield();
        lock.lock();
    }
    return result;
}

STW_EXPORT int ncclCommCount(ncclComm_t handle, int *count_out)
{
    return enter("ncclCommCount", handle, [&](Communicator &comm) -> int {
        *count_out = comm.ranks();
        return kNcclSuccess;
    });
}

STW_EXPORT int ncclCommUserRank(ncclComm_t handle, int *rank_out)
{
    return enter("ncclCommUserRank", handle, [&](Communicator &comm) -> int {
        *rank_out = comm.rank();
        return kNcclSuccess;
    });
}

STW_EXPORT int ncclCommCuDevice(ncclComm_t handle, int *device_out)
{
    return enter("ncclCommCuDevice", handle, [&](Communicator &comm) -> int {
        *device_out = comm.device();
        return kNcclSuccess;
    });
}

STW_EXPORT int ncclCommGetAsyncError(ncclComm_t handle, int *result_out)
{
    const std::lock_guard lock(state().lock);
    const std::shared_ptr<Communicator> comm = find(handle);
    if (comm == nullptr) return kNcclInvalidArgument;
    if (const int code = state().counts.count("ncclCommGetAsyncError")) comm->fail(code);
    *result_out = comm->state();
    return kNcclSuccess;
}

STW_EXPORT int ncclCommFinalize(ncclComm_t handle)
{
    return enter("ncclCommFinalize", handle, [&](Communicator &comm) -> int {
        if (!comm.joined()) return kNcclInvalidUsage;
        return comm.quiet() ? kNcclSuccess : kNcclInProgress;
    });
}

STW_EXPORT int ncclCommDestroy(ncclComm_t handle)
{
    return drop("ncclCommDestroy", handle, false);
}

STW_EXPORT int ncclCommAbort(ncclComm_t handle)
{
    return drop("ncclCommAbort", handle, true);
}

STW_EXPORT int ncclCommRegister(ncclComm_t handle, void *memory, size_t bytes, void **registered)
{
    return enter("ncclCommRegister", handle, [&](Communicator &comm) -> int {
        if (!comm.joined() || memory == nullptr || bytes == 0) return kNcclInvalidArgument;
        if (!is_one_allocation(address(memory), bytes)) return kNcclInvalidUsage;
        *registered = comm.add(address(memory), bytes);
        return kNcclSuccess;
    });
}

STW_EXPORT int ncclCommDeregister(ncclComm_t handle, void *registered)
{
    return enter("ncclCommDeregister", handle, [&](Communicator &comm) -> int {
        return comm.remove(registered) ? kNcclSuccess : kNcclInvalidArgument;
    });
}

STW_EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, ncclComm_t comm,
                             void *stream)
{
    return collect("ncclAllGather",
                   {Kind::kAllGather, address(from), address(to), count, type, stream}, comm);
}

STW_EXPORT int ncclReduceScatter(const void *from, void *to, size_t count, int type, int operation,
                                 ncclComm_t comm, void *stream)
{
    if (operation != kNcclSum) return kNcclInvalidArgument;
    return collect("ncclReduceScatter",
                   {Kind::kReduceScatter, address(from), address(to), count, type, stream}, comm);
}

STW_EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int operation,
                             ncclComm_t comm, void *stream)
{
    if (operation != kNcclSum) return kNcclInvalidArgument;
    return collect("ncclAllReduce",
                   {Kind::kAllReduce, address(from), address(to), count, type, stream}, comm);
}

STW_EXPORT uint64_t stw_nccl_double_calls(const char *function)
{
    const std::lock_guard lock(state().lock);
    return state().counts.of(function);
}

STW_EXPORT uint64_t stw_nccl_double_in_registered(void)
{
    const std::lock_guard lock(state().lock);
    return state().in_registered;
}

STW_EXPORT uint64_t stw_nccl_double_leaks(void)
{
    const std::lock_guard lock(state().lock);
    return state().comms.size() + state().left_registered;
}

}  // namespace stepwell::nccl_double
