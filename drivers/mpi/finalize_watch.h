// SPDX-License-Identifier: Apache-2.0
// Notices that the program ends MPI while a group exists: MPI_Finalize first deletes the attributes
// of MPI_COMM_SELF, which calls this class. Every call of MPI is made with the lock held, so no
// call is in progress while MPI ends.
#pragma once

#include "drivers/common/mutex.h"
#include "drivers/mpi/calls.h"

namespace stepwell::drivers {

class FinalizeWatch {
public:
    // The lock belongs to the group and outlives the watch.
    explicit FinalizeWatch(Mutex &mutex) : mutex_(mutex) {}
    FinalizeWatch(const FinalizeWatch &) = delete;
    FinalizeWatch &operator=(const FinalizeWatch &) = delete;
    // Not under the lock: MPI has locks of its own around the call.
    ~FinalizeWatch();

    // A code of MPI. The object stays where it is from now on.
    int begin();
    // Under the lock.
    bool finalized() const { return finalized_; }

private:
    static int on_delete(MPI_Comm comm, int key, void *value, void *extra);

    Mutex &mutex_;
    bool finalized_ = false;
    int key_ = MPI_KEYVAL_INVALID;
};

}  // namespace stepwell::drivers
