// SPDX-License-Identifier: Apache-2.0
// ranks.fetch_whole, ranks.peak and ranks.fairness: bytes that rest on the ranks' drives.
#define OMPI_SKIP_MPICXX  1
#define MPICH_SKIP_MPICXX 1
#include "ranks.h"

#include <mpi.h>

#include <algorithm>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>

namespace bench {

namespace {

constexpr uint64_t kBlock = STW_BLOCK_2M;

uint64_t blocks_of(uint64_t bytes)
{
    return (bytes + kBlock - 1) / kBlock * kBlock;
}

// The way without shards: a tensor is on one rank's drive, that rank reads it whole, all get it.
class Owners {
public:
    Owners(const Job &job, stw_runtime *runtime, uint64_t count, uint64_t bytes)
        : job_(job),
          count_(count),
          memory_(bytes / sizeof(float)),
          shelf_(runtime, "owned", (count + job.size() - 1 - job.rank()) / job.size(),
                 memory_.size(), STW_PARTITION_LOCAL)
    {
        shelf_.fill();
    }

    // Seconds until every rank has had every tensor; each owner begins to read `ahead` tensors,
    // his own and others', before the one that is sent.
    double read(uint64_t ahead)
    {
        shelf_.all_out();
        return job_.together([&] {
            std::deque<stw_operation *> asked;
            for (uint64_t next = 0, done = 0; done < count_; ++done) {
                for (; next < count_ && next < done + ahead; ++next)
                    if (owner_of(next) == job_.rank())
                        asked.push_back(shelf_.ask(next / job_.size()));
                if (owner_of(done) != job_.rank()) {
                    send(done, memory_.data());
                    continue;
                }
                stw_view view = Shelf::collect(asked.front());
                asked.pop_front();
                send(done, view.pointer);
                give(&view);
            }
        });
    }

private:
    [[nodiscard]] uint32_t owner_of(uint64_t index) const
    {
        return static_cast<uint32_t>(index % job_.size());
    }
    void send(uint64_t index, void *memory) const
    {
        MPI_Bcast(memory, static_cast<int>(memory_.size()), MPI_FLOAT,
                  static_cast<int>(owner_of(index)), MPI_COMM_WORLD);
    }

    const Job &job_;
    uint64_t count_;
    std::vector<float> memory_;
    Shelf shelf_;
};

constexpr uint64_t kAheadMax = 2;  // fetches that the library looks ahead

double read_wholes(const Job &job, stw_runtime *runtime, Shelf &shelf, uint64_t ahead)
{
    // What follows the last one of a pass is gathered ahead; written again it is old.
    shelf.fill(kAheadMax);
    const uint64_t before = link_bytes(runtime, STW_LINK_NVME_TO_DEVICE);
    const double seconds = job.together([&] {
        shelf.read(ahead, [&](uint64_t index, const stw_view &view) { shelf.check(index, view); });
    });
    const uint64_t bytes = link_bytes(runtime, STW_LINK_NVME_TO_DEVICE) - before;
    if (bytes < shelf.shard_bytes()) give_up("a part of the shards was not read from the drive");
    return seconds;
}

}  // namespace

void measure_fetch_whole(Job &job, const RanksOptions &options)
{
    const uint64_t count = options.disk_bytes * job.size() / options.tensor_bytes;
    const uint64_t views = (options.ahead + 1) * blocks_of(options.tensor_bytes);
    Budgets budgets = disk_budgets(options, 2 * views + 64 * kBlock, options.disk_bytes);
    budgets.whole_bytes = views;
    stw_runtime *alone = open_runtime(budgets);
    budgets.group = job.group();
    stw_runtime *runtime = open_runtime(budgets);
    {
        Shelf shelf(runtime, "sharded", count, options.tensor_bytes / sizeof(float),
                    STW_PARTITION_SHARDED);
        shelf.fill();
        Owners owners(job, alone, count, options.tensor_bytes);
        for (uint64_t round = 0; round < options.rounds; ++round) {
            const double whole = read_wholes(job, runtime, shelf, options.ahead);
            const double broadcast = owners.read(1);
            const double broadcast_ahead = owners.read(options.ahead);
            if (!job.speaks()) continue;
            std::printf("{\"what\": \"fetch_whole\", \"ranks\": %" PRIu32 ", \"bytes\": %" PRIu64
                        ", \"seconds\": %.6f, \"broadcast_seconds\": %.6f, "
                        "\"broadcast_ahead_seconds\": %.6f}\n",
                        job.size(), count * options.tensor_bytes, whole, broadcast,
                        broadcast_ahead);
            std::fflush(stdout);
        }
    }
    close_runtime(runtime);
    close_runtime(alone);
}

// ------------------------------------------------------------------------------------- peak -----

namespace {

// The device tier's most bytes while a whole is gathered from shards on the drives, over all ranks;
// 0: it cannot be in this budget. A runtime of its own, as a peak is one since open.
double peak_bytes(Job &job, const RanksOptions &options, uint64_t whole, uint64_t device_bytes)
{
    Budgets budgets = disk_budgets(options, device_bytes, whole);
    budgets.group = job.group();
    budgets.whole_bytes = whole;
    stw_runtime *runtime = nullptr;
    if (job.least(try_open_runtime(budgets, &runtime)) < 0) {
        if (runtime) close_runtime(runtime);
        return 0;
    }
    double peak = 0;
    {
        Shelf shelf(runtime, "peak", 1, whole / sizeof(float), STW_PARTITION_SHARDED);
        shelf.fill();
        stw_view view = Shelf::collect(shelf.ask(0));
        shelf.check(0, view);
        give(&view);
        stw_tier_stats stats = STW_TIER_STATS_INIT;
        must(stw_tier_stats_get(runtime, STW_TIER_DEVICE, 0, &stats), "stw_tier_stats_get");
        peak = job.most(static_cast<double>(stats.peak_bytes));
    }
    close_runtime(runtime);
    return peak;
}

}  // namespace

// In the least budget in which it goes, and in one with room to spare, where shards stay.
void measure_peak(Job &job, const RanksOptions &options)
{
    const uint64_t whole = blocks_of(options.tensor_bytes);
    uint64_t least = whole;
    double peak = 0;
    while (peak == 0) {
        least += kBlock;
        if (least > 2 * whole + 64 * kBlock) give_up("no budget takes a whole");
        peak = peak_bytes(job, options, whole, least);
    }
    const double roomy = peak_bytes(job, options, whole, 4 * whole + 64 * kBlock);
    if (job.speaks())
        std::printf("{\"what\": \"peak\", \"ranks\": %" PRIu32 ", \"bytes\": %" PRIu64
                    ", \"allowed_bytes\": %" PRIu64 ", \"budget_bytes\": %" PRIu64
                    ", \"peak_bytes\": %.0f, \"roomy_peak_bytes\": %.0f}\n",
                    job.size(), whole, whole + kBlock, least, peak, roomy);
}

// --------------------------------------------------------------------------------- fairness -----

namespace {

// Seconds of a pass over the shelf, by what was read of it while all ranks read.
double pass_seconds(const Job &job, Shelf &shelf, const RanksOptions &options)
{
    const double window = static_cast<double>(options.window_ms) / 1e3;
    uint64_t read = 0;
    job.meet();
    const double begin = now_s();
    double end = begin;
    while (end - begin < window) {
        shelf.all_out();
        shelf.read(options.ahead, [&](uint64_t, const stw_view &) {
            if (end - begin >= window) return;
            ++read;
            end = now_s();
        });
    }
    return (end - begin) * static_cast<double>(shelf.count()) / static_cast<double>(read);
}

}  // namespace

void measure_fairness(Job &job, const RanksOptions &options)
{
    const uint64_t count = options.disk_bytes / options.tensor_bytes;
    const uint64_t device = (options.ahead + 2) * blocks_of(options.tensor_bytes);
    RanksOptions unthrottled = options;
    unthrottled.rate = 0;
    Budgets budgets = disk_budgets(unthrottled, device + 32 * kBlock, options.disk_bytes);
    // Nobody asks the drive for more than its queue takes, and all could fill theirs.
    const bool eager = job.rank() == 0 && options.eager > 1;
    budgets.nvme_queue_depth = static_cast<uint32_t>(eager ? 8 * options.eager : 8);
    stw_runtime *alone = open_runtime(budgets);
    budgets.group = job.group();
    stw_runtime *shared = open_runtime(budgets);
    {
        const uint64_t elements = options.tensor_bytes / sizeof(float);
        Shelf mine(alone, "alone", count, elements, STW_PARTITION_LOCAL);
        Shelf ours(shared, "shared", count, elements, STW_PARTITION_LOCAL);
        mine.fill();
        ours.fill();
        for (uint64_t round = 0; round < options.rounds; ++round) {
            double seconds[2] = {};
            for (const uint64_t turn : {round, round + 1})
                seconds[turn % 2] = pass_seconds(job, turn % 2 == 0 ? ours : mine, options);
            const double most[2] = {job.most(seconds[0]), job.most(seconds[1])};
            const double least[2] = {job.least(seconds[0]), job.least(seconds[1])};
            if (!job.speaks()) continue;
            std::printf("{\"what\": \"fairness\", \"ranks\": %" PRIu32 ", \"eager\": %" PRIu64
                        ", \"slowest_s\": %.6f, \"fastest_s\": %.6f, "
                        "\"alone_slowest_s\": %.6f, \"alone_fastest_s\": %.6f}\n",
                        job.size(), options.eager, most[0], least[0], most[1], least[1]);
            std::fflush(stdout);
        }
    }
    close_runtime(shared);
    close_runtime(alone);
}

}  // namespace bench
