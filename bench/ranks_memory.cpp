// SPDX-License-Identifier: Apache-2.0
// ranks.all_gather, ranks.reduce_scatter, ranks.small, ranks.small_reduce: resident shards.
#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include "ranks.h"

#include <mpi.h>
#include <sys/mman.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>

namespace bench {

namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kSizes[] = {16 * kMiB, 32 * kMiB, 64 * kMiB};  // of wholes
constexpr uint64_t kMemoryBlock = STW_BLOCK_2M;

// Memory of plain MPI, with huge pages like the library's own.
class Buffer {
public:
    explicit Buffer(uint64_t bytes)
        : memory_(static_cast<float *>(std::aligned_alloc(kMemoryBlock, bytes)))
    {
        if (!memory_) give_up("no memory for the reference");
        (void)madvise(memory_.get(), bytes, MADV_HUGEPAGE);
        std::memset(memory_.get(), 0, bytes);
    }
    [[nodiscard]] float *data() const { return memory_.get(); }

private:
    struct Free {
        void operator()(float *memory) const { std::free(memory); }
    };
    std::unique_ptr<float, Free> memory_;
};

stw_runtime *open_in_memory(const Job &job, uint64_t device_bytes, uint64_t whole_bytes,
                            uint32_t block_bytes = STW_BLOCK_2M)
{
    Budgets budgets;
    budgets.device_bytes = device_bytes;
    budgets.group = job.group();
    budgets.whole_bytes = whole_bytes;
    budgets.block_bytes = block_bytes;
    budgets.thread_count = 1;
    return open_runtime(budgets);
}

void tell(const Job &job, const char *what, uint64_t bytes, double seconds, double reference,
          double other)
{
    if (!job.speaks()) return;
    std::printf("{\"what\": \"%s\", \"ranks\": %" PRIu32 ", \"bytes\": %" PRIu64
                ", \"seconds\": %.9f, \"mpi_seconds\": %.9f, \"before_seconds\": %.9f}\n",
                what, job.size(), bytes, seconds, reference, other);
    std::fflush(stdout);
}

// Both, the other one first every second time; `before` is not measured.
template <class Before, class Ours, class Theirs>
void in_turn(const Job &job, const char *what, uint64_t bytes, uint64_t rounds,
             const Before &before, const Ours &ours, const Theirs &theirs)
{
    constexpr uint64_t kWarmUps = 2;
    for (uint64_t round = 0; round < rounds + kWarmUps; ++round) {
        const double prepared = job.together(before);
        double seconds[2] = {};
        for (const uint64_t turn : {round, round + 1})
            seconds[turn % 2] = turn % 2 == 0 ? job.together(ours) : job.together(theirs);
        if (round >= kWarmUps) tell(job, what, bytes, seconds[0], seconds[1], prepared);
    }
}

}  // namespace

void measure_all_gather(Job &job, const RanksOptions &options)
{
    for (const uint64_t bytes : kSizes) {
        stw_runtime *runtime = open_in_memory(job, 2 * bytes + 64 * kMemoryBlock, bytes);
        const uint64_t elements = bytes / sizeof(float);
        stw_tensor *tensor = create_part(runtime, "w", STW_ROLE_PARAM, elements, STW_TIER_DEVICE,
                                         STW_PARTITION_SHARDED);
        const uint64_t mine = elements / job.size();
        const Buffer shard(mine * sizeof(float));
        const Buffer whole(bytes);
        float salt = 0;
        // A write makes the gathered whole old.
        const auto write = [&] {
            ++salt;
            stw_view view = take(runtime, tensor, STW_WRITE, STW_SHARD);
            std::fill_n(static_cast<float *>(view.pointer), view.element_count, salt);
            give(&view);
            std::fill_n(shard.data(), mine, salt);
        };
        const auto ours = [&] {
            stw_view view = take(runtime, tensor, STW_READ, STW_WHOLE);
            const auto *values = static_cast<const float *>(view.pointer);
            if (values[0] != salt || values[elements - 1] != salt) give_up("gathered old bytes");
            give(&view);
        };
        const auto theirs = [&] {
            MPI_Allgather(shard.data(), static_cast<int>(mine), MPI_FLOAT, whole.data(),
                          static_cast<int>(mine), MPI_FLOAT, MPI_COMM_WORLD);
        };
        in_turn(job, "all_gather", bytes, options.rounds, write, ours, theirs);
        must(stw_tensor_destroy(&tensor, 1), "stw_tensor_destroy");
        close_runtime(runtime);
    }
}

void measure_reduce_scatter(Job &job, const RanksOptions &options)
{
    for (const uint64_t bytes : kSizes) {
        stw_runtime *runtime = open_in_memory(job, 4 * bytes + 64 * kMemoryBlock, bytes);
        const uint64_t elements = bytes / sizeof(float);
        stw_tensor *tensor = create_part(runtime, "g", STW_ROLE_GRAD, elements, STW_TIER_DEVICE,
                                         STW_PARTITION_SHARDED);
        const uint64_t mine = elements / job.size();
        const Buffer sums(mine * sizeof(float));
        const Buffer whole(bytes);
        stw_view view;
        // The gradient is computed: zeros from the library, and what is added in.
        const auto compute = [&] {
            must(stw_tensor_discard(&tensor, 1), "stw_tensor_discard");
            view = take(runtime, tensor, STW_REDUCE, STW_WHOLE);
            std::fill_n(static_cast<float *>(view.pointer), elements, 1.0F);
            std::fill_n(whole.data(), elements, 1.0F);
        };
        const auto ours = [&] {
            give(&view);
            stw_view shard = take(runtime, tensor, STW_READ, STW_SHARD);
            const float *values = static_cast<const float *>(shard.pointer);
            if (values[0] != static_cast<float>(job.size())) give_up("a wrong sum");
            give(&shard);
        };
        const auto theirs = [&] {
            MPI_Reduce_scatter_block(whole.data(), sums.data(), static_cast<int>(mine), MPI_FLOAT,
                                     MPI_SUM, MPI_COMM_WORLD);
        };
        in_turn(job, "reduce_scatter", bytes, options.rounds, compute, ours, theirs);
        must(stw_tensor_destroy(&tensor, 1), "stw_tensor_destroy");
        close_runtime(runtime);
    }
}

// Tensors of one layer in a call, all of them once.
void measure_small(Job &job, const RanksOptions &options)
{
    constexpr uint64_t kElements = 1024;
    // A whole has a block and its addresses for itself.
    const uint64_t whole = options.call * STW_BLOCK_64K;
    stw_runtime *runtime = open_in_memory(job, whole + 128 * kMiB, whole, STW_BLOCK_64K);
    std::vector<stw_tensor *> tensors;
    for (uint64_t i = 0; i < options.tensors; ++i)
        tensors.push_back(create_part(runtime, "small" + std::to_string(i), STW_ROLE_PARAM,
                                      kElements, STW_TIER_DEVICE, STW_PARTITION_SHARDED));
    for (stw_tensor *tensor : tensors) {
        stw_view view = take(runtime, tensor, STW_WRITE, STW_SHARD);
        std::fill_n(static_cast<float *>(view.pointer), view.element_count, 1.0F);
        give(&view);
    }
    stw_link_stats stats = STW_LINK_STATS_INIT;
    const double seconds = job.together([&] {
        std::vector<stw_view> views(options.call);
        std::vector<stw_fetch_request> requests;
        for (uint64_t first = 0; first < tensors.size(); first += options.call) {
            const uint64_t end = std::min<uint64_t>(first + options.call, tensors.size());
            requests.clear();
            for (uint64_t i = first; i < end; ++i)
                requests.push_back(request_of(tensors[i], STW_READ, STW_TIER_DEFAULT));
            const auto n = static_cast<uint32_t>(requests.size());
            must(stw_fetch(runtime, nullptr, requests.data(), n, views.data()), "stw_fetch");
            must(stw_release(views.data(), n, STW_STREAM_HOST, 0), "stw_release");
        }
    });
    must(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &stats), "stw_link_stats_get");
    if (job.speaks())
        std::printf("{\"what\": \"small\", \"ranks\": %" PRIu32 ", \"tensors\": %" PRIu64
                    ", \"collectives\": %" PRIu64 ", \"seconds\": %.6f}\n",
                    job.size(), options.tensors, stats.transfers, seconds);
    must(stw_tensor_destroy(tensors.data(), static_cast<uint32_t>(tensors.size())),
         "stw_tensor_destroy");
    close_runtime(runtime);
}

// Gradients of one layer in a release, each layer waited for.
void measure_small_reduce(Job &job, const RanksOptions &options)
{
    constexpr uint64_t kElements = 1024;
    // What is summed has a block for itself, as its sum has.
    stw_runtime *runtime = open_in_memory(job, options.call * 3 * STW_BLOCK_64K + 192 * kMiB,
                                          16 * STW_BLOCK_64K, STW_BLOCK_64K);
    std::vector<stw_tensor *> tensors;
    for (uint64_t i = 0; i < options.tensors; ++i)
        tensors.push_back(create_part(runtime, "small" + std::to_string(i), STW_ROLE_GRAD,
                                      kElements, STW_TIER_DEVICE, STW_PARTITION_SHARDED));
    stw_link_stats stats = STW_LINK_STATS_INIT;
    const double seconds = job.together([&] {
        std::vector<stw_view> views(options.call);
        for (uint64_t first = 0; first < tensors.size(); first += options.call) {
            const uint64_t n = std::min<uint64_t>(options.call, tensors.size() - first);
            for (uint64_t i = 0; i < n; ++i) {
                views[i] = take(runtime, tensors[first + i], STW_REDUCE, STW_WHOLE);
                std::fill_n(static_cast<float *>(views[i].pointer), kElements, 1.0F);
            }
            must(stw_release(views.data(), static_cast<uint32_t>(n), STW_STREAM_HOST, 0),
                 "stw_release");
            must(stw_runtime_drain(runtime, 0), "stw_runtime_drain");
        }
    });
    must(stw_link_stats_get(runtime, STW_LINK_RANKS, 0, &stats), "stw_link_stats_get");
    if (job.speaks())
        std::printf("{\"what\": \"small_reduce\", \"ranks\": %" PRIu32 ", \"tensors\": %" PRIu64
                    ", \"collectives\": %" PRIu64 ", \"seconds\": %.6f}\n",
                    job.size(), options.tensors, stats.transfers, seconds);
    must(stw_tensor_destroy(tensors.data(), static_cast<uint32_t>(tensors.size())),
         "stw_tensor_destroy");
    close_runtime(runtime);
}

}  // namespace bench
