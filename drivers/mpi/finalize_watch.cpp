// SPDX-License-Identifier: Apache-2.0
#include "drivers/mpi/finalize_watch.h"

namespace stepwell::drivers {

int FinalizeWatch::begin()
{
    int code = MPI_Comm_create_keyval(MPI_COMM_NULL_COPY_FN, on_delete, &key_, nullptr);
    if (code != MPI_SUCCESS) return code;
    code = MPI_Comm_set_attr(MPI_COMM_SELF, key_, this);
    if (code != MPI_SUCCESS) MPI_Comm_free_keyval(&key_);
    return code;
}

FinalizeWatch::~FinalizeWatch()
{
    int over = 0;
    MPI_Finalized(&over);
    bool told = false;
    {
        const MutexLock lock(mutex_);
        told = finalized_;
    }
    if (key_ == MPI_KEYVAL_INVALID || over != 0 || told) return;
    MPI_Comm_delete_attr(MPI_COMM_SELF, key_);
    MPI_Comm_free_keyval(&key_);
}

int FinalizeWatch::on_delete(MPI_Comm, int, void *value, void *)
{
    auto *watch = static_cast<FinalizeWatch *>(value);
    const MutexLock lock(watch->mutex_);
    watch->finalized_ = true;
    return MPI_SUCCESS;
}

}  // namespace stepwell::drivers
