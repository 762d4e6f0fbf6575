// SPDX-License-Identifier: Apache-2.0
// Knows when the program ends MPI under a group: MPI_Finalize deletes the attributes of
// MPI_COMM_SELF before anything else, and so calls us. Whoever calls MPI holds the lock, so that
// none of it is under way while MPI ends.
#pragma once

#include "drivers/common/mutex.h"
#include "drivers/mpi/calls.h"

namespace stepwell::drivers {

class FinalizeWatch {
public:
    // The lock is the group's, and outlives the watch.
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
