// SPDX-License-Identifier: Apache-2.0
#include "drivers/mpi/join.h"

#include "drivers/common/mutex.h"

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <memory>
#include <thread>

namespace stepwell::drivers {

namespace {

constexpr uint32_t kSpins = 1000;  // before a wait sleeps
constexpr std::chrono::microseconds kSleep(50);

// A collective call that has started cannot be cancelled: memory that MPI may still write to is
// never freed.
struct Joining {
    MPI_Comm comm = MPI_COMM_NULL;
    MPI_Request request = MPI_REQUEST_NULL;
    Joining *next = nullptr;
};
constinit std::atomic<Joining *> abandoned{nullptr};

void abandon(std::unique_ptr<Joining> joining)
{
    joining->next = abandoned.load();
    while (!abandoned.compare_exchange_weak(joining->next, joining.get())) {}
    static_cast<void>(joining.release());
}

std::string library_version()
{
    char text[MPI_MAX_LIBRARY_VERSION_STRING] = "";
    int length = 0;
    if (MPI_Get_library_version(text, &length) != MPI_SUCCESS) return "MPI";
    const std::string whole = text;
    return whole.substr(0, whole.find_first_of(",\n"));
}

stw_status find_communicator(int32_t handle, MPI_Comm *comm_out, stw_driver_error *error_out)
{
    MPI_Comm comm = handle == 0 ? MPI_COMM_WORLD : MPI_Comm_f2c(handle);
    // Some MPI libraries return a null communicator for a handle that is not valid any more.
    if (comm == MPI_COMM_NULL || comm == MPI_Comm{})
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The handle %" PRId32 " names no communicator of MPI's, or one that was freed; "
                    "give MPI_Comm_c2f of one that lives, or 0 for MPI_COMM_WORLD.",
                    handle);
    int inter = 0;
    MPI_Comm_test_inter(comm, &inter);
    if (inter != 0)
        return fail(error_out, STW_ERROR_INVALID, {},
                    "The communicator of handle %" PRId32 " is an intercommunicator, and a group "
                    "needs one set of ranks; merge it with MPI_Intercomm_merge.",
                    handle);
    *comm_out = comm;
    return STW_OK;
}

}  // namespace

const char *MpiThreads::name() const
{
    switch (provided) {
    case MPI_THREAD_SINGLE: return "MPI_THREAD_SINGLE";
    case MPI_THREAD_FUNNELED: return "MPI_THREAD_FUNNELED";
    case MPI_THREAD_SERIALIZED: return "MPI_THREAD_SERIALIZED";
    default: return "MPI_THREAD_MULTIPLE";
    }
}

stw_status look_at_mpi(MpiThreads *threads_out, stw_driver_error *error_out)
{
    int begun = 0, over = 0, main_thread = 0;
    MPI_Initialized(&begun);
    MPI_Finalized(&over);
    if (begun == 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "MPI is not initialised in this process (the driver is linked to %s); call "
                    "MPI_Init_thread with MPI_THREAD_MULTIPLE before, in a program that is linked "
                    "to the same MPI and started with its mpirun or srun.",
                    library_version().c_str());
    if (over != 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "MPI_Finalize was called in this process, and MPI does not begin again; make "
                    "groups before it.");
    MPI_Query_thread(&threads_out->provided);
    MPI_Is_thread_main(&main_thread);
    const bool main_alone = threads_out->provided < MPI_THREAD_SERIALIZED;
    if (main_alone && main_thread == 0)
        return fail(error_out, STW_ERROR_UNSUPPORTED, {},
                    "MPI was initialised with %s, so only the thread that did it may use MPI, and "
                    "this is another one; call MPI_Init_thread with MPI_THREAD_MULTIPLE.",
                    threads_out->name());
    return STW_OK;
}

stw_status wait_for(MPI_Request *request, uint64_t timeout_ns, int *code_out)
{
    const Deadline deadline = Deadline::after(timeout_ns);
    for (uint32_t tries = 0;; ++tries) {
        int done = 0;
        *code_out = MPI_Test(request, &done, MPI_STATUS_IGNORE);
        if (*code_out != MPI_SUCCESS || done != 0) return STW_OK;
        if (deadline.passed()) return STW_PENDING;
        if (tries < kSpins)
            std::this_thread::yield();
        else
            std::this_thread::sleep_for(kSleep);
    }
}

stw_status duplicate(int32_t handle, uint64_t timeout_ns, MPI_Comm *comm_out,
                     stw_driver_error *error_out)
{
    MPI_Comm lent = MPI_COMM_NULL;
    if (const stw_status status = find_communicator(handle, &lent, error_out)) return status;
    auto joining = std::make_unique<Joining>();
    int code = MPI_Comm_idup(lent, &joining->comm, &joining->request);
    stw_status status = STW_OK;
    if (code == MPI_SUCCESS) status = wait_for(&joining->request, timeout_ns, &code);
    if (status == STW_PENDING) {
        abandon(std::move(joining));
        return fail(error_out, STW_ERROR_TIMEOUT, {},
                    "Not all %" PRIu32 " ranks of the communicator joined the group within %.1f s; "
                    "each of them makes it, at about the same time. The communicator of the "
                    "program is not to be used for a group again.",
                    ranks_of(lent).size,
                    static_cast<double>(timeout_ns) / static_cast<double>(kSecond));
    }
    if (code != MPI_SUCCESS)
        return fail(error_out, mpi_status(code), {},
                    "The communicator of handle %" PRId32 " could not be duplicated: %s.", handle,
                    mpi_text(code).c_str());
    MPI_Comm_set_errhandler(joining->comm, MPI_ERRORS_RETURN);
    *comm_out = joining->comm;
    return STW_OK;
}

Ranks ranks_of(MPI_Comm comm)
{
    int rank = 0, size = 1;
    MPI_Comm_rank(comm, &rank);
    MPI_Comm_size(comm, &size);
    return {comm, static_cast<uint32_t>(rank), static_cast<uint32_t>(size)};
}

}  // namespace stepwell::drivers
