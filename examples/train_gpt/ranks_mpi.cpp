// SPDX-License-Identifier: Apache-2.0
//
// The ranks of an MPI job. MPI's life is this program's: begun before the group, ended after it.
// Stepwell calls MPI from a thread of its own, on a communicator of its own.

#include "ranks.h"

#include "must.h"

#include <vector>

#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

namespace train_gpt {

Ranks::Ranks(bool wanted, const std::string &module)
{
    if (!wanted) return;
    // MPI's default error handler ends the job with a sentence, which is what must() would do.
    int level = MPI_THREAD_SINGLE;
    MPI_Init_thread(nullptr, nullptr, MPI_THREAD_MULTIPLE, &level);
    began_ = true;
    if (level < MPI_THREAD_MULTIPLE)
        give_up("this MPI was built without MPI_THREAD_MULTIPLE, and this program calls it from "
                "more than one thread; take an MPI with threads");
    stw_group_options options = STW_GROUP_OPTIONS_INIT;
    options.driver = STW_GROUP_MPI;
    options.module = module.empty() ? nullptr : module.c_str();
    must(stw_group_create(&options, &group_));
    must(stw_group_rank(group_, &rank_, &size_));
}

Ranks::~Ranks()
{
    if (!began_) return;
    // A rank that leaves the group while others still use it would end theirs.
    MPI_Barrier(MPI_COMM_WORLD);
    must(stw_group_destroy(group_));
    MPI_Finalize();
}

double Ranks::sum(double value) const
{
    if (size_ == 1) return value;
    std::vector<double> values(size_);
    MPI_Allgather(&value, 1, MPI_DOUBLE, values.data(), 1, MPI_DOUBLE, MPI_COMM_WORLD);
    double all = 0.0;
    for (const double one : values) all += one;
    return all;
}

}  // namespace train_gpt
