// SPDX-License-Identifier: Apache-2.0
// ranks.*: tensors over the ranks of an MPI job, beside the same bytes by plain MPI.
//
// usage: mpirun -np N ranks --mode
//        fetch_whole|peak|fairness|all_gather|reduce_scatter|small|small_reduce
//        [--module FILE] [--dir DIR] [--rounds N] [--tensor-bytes N] [--disk-bytes N] [--rate N]
//        [--inner DRIVER] [--ahead N] [--window-ms N] [--eager N] [--tensors N] [--call N]
// Rank 0 prints one JSON line a round.
#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include "ranks.h"

#include <mpi.h>

namespace bench {

namespace {

double reduced(double mine, MPI_Op operation)
{
    double all = 0;
    MPI_Allreduce(&mine, &all, 1, MPI_DOUBLE, operation, MPI_COMM_WORLD);
    return all;
}

}  // namespace

Job::Job(int *count, char ***words)
{
    int level = 0;
    MPI_Init_thread(count, words, MPI_THREAD_MULTIPLE, &level);
    if (level < MPI_THREAD_MULTIPLE) give_up("this MPI has no MPI_THREAD_MULTIPLE");
    int rank = 0;
    int size = 0;
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &size);
    rank_ = static_cast<uint32_t>(rank);
    size_ = static_cast<uint32_t>(size);
}

void Job::join(const std::string &module)
{
    stw_group_options options = STW_GROUP_OPTIONS_INIT;
    options.driver = STW_GROUP_MPI;
    options.module = module.empty() ? nullptr : module.c_str();
    must(stw_group_create(&options, &group_), "stw_group_create");
}

Job::~Job()
{
    if (group_) must(stw_group_destroy(group_), "stw_group_destroy");
    MPI_Finalize();
}

void Job::meet() const
{
    MPI_Barrier(MPI_COMM_WORLD);
}

double Job::most(double mine) const
{
    return reduced(mine, MPI_MAX);
}

double Job::least(double mine) const
{
    return reduced(mine, MPI_MIN);
}

double Job::sum(double mine) const
{
    return reduced(mine, MPI_SUM);
}

double Job::together(const std::function<void()> &body) const
{
    meet();
    const double begin = now_s();
    body();
    return most(now_s() - begin);
}

}  // namespace bench

int main(int argc, char **argv)
{
    bench::Job job(&argc, &argv);
    const bench::Arguments arguments(argc, argv);
    const std::string mode = arguments.text("mode", "all_gather");
    bench::RanksOptions options;
    options.directory = arguments.text("dir", ".");
    options.inner = arguments.text("inner", "posix");
    options.rounds = arguments.number("rounds", 7);
    options.tensor_bytes = arguments.number("tensor-bytes", uint64_t{16} << 20);
    options.disk_bytes = arguments.number("disk-bytes", uint64_t{256} << 20);
    options.rate = arguments.number("rate", 200'000'000);
    options.ahead = arguments.number("ahead", 4);
    options.window_ms = arguments.number("window-ms", 3000);
    options.eager = arguments.number("eager", 1);
    options.tensors = arguments.number("tensors", 10'000);
    options.call = arguments.number("call", 100);
    job.join(arguments.text("module", ""));
    if (mode == "fetch_whole")
        measure_fetch_whole(job, options);
    else if (mode == "peak")
        measure_peak(job, options);
    else if (mode == "fairness")
        measure_fairness(job, options);
    else if (mode == "all_gather")
        measure_all_gather(job, options);
    else if (mode == "reduce_scatter")
        measure_reduce_scatter(job, options);
    else if (mode == "small")
        measure_small(job, options);
    else if (mode == "small_reduce")
        measure_small_reduce(job, options);
    else
        bench::give_up("no such mode: " + mode);
    return 0;
}
