// SPDX-License-Identifier: Apache-2.0
// Whether this process's MPI can be used, and a communicator of our own from one that the program
// lends. The program initializes and finalizes MPI; the module never does.
#pragma once

#include "drivers/common/edge.h"
#include "drivers/mpi/requests.h"

namespace stepwell::drivers {

struct MpiThreads {
    int provided = MPI_THREAD_SINGLE;
    bool caller_thread() const { return provided != MPI_THREAD_MULTIPLE; }
    const char *name() const;
};

// UNSUPPORTED: MPI cannot be used; the sentence says what to do.
stw_status look_at_mpi(MpiThreads *threads_out, stw_driver_error *error_out);

// Waits for a request at most timeout_ns, polling. STW_PENDING: the time is up, and it is still in
// flight. Else `code_out` is MPI's.
stw_status wait_for(MPI_Request *request, uint64_t timeout_ns, int *code_out);

// A duplicate of MPI_Comm_f2c(handle), of MPI_COMM_WORLD for 0, whose errors are returned. Blocks
// until all ranks have called it. INVALID, TIMEOUT, PEER.
stw_status duplicate(int32_t handle, uint64_t timeout_ns, MPI_Comm *comm_out,
                     stw_driver_error *error_out);

// Rank and size of a communicator of the module.
Ranks ranks_of(MPI_Comm comm);

}  // namespace stepwell::drivers
