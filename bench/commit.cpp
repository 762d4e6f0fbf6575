// SPDX-License-Identifier: Apache-2.0
// commit.rate and commit.unchanged: what a generation costs beside writing the same bytes away;
// commit.reader: how long a read beside it waits.
//
// usage: commit --dir DIR [--bytes N] [--rounds N]
// Each round prints one JSON line: seconds of an eviction of scratch that was written anew, of a
// commit of as many bytes that were written anew, of one in which nothing had changed, the longest
// read of them by another thread during a third, which wrote them anew, and the bytes that the
// first two wrote. All are in the host tier before, and on the drive after.
#include "measure.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <thread>

namespace {

using bench::must;

constexpr uint32_t kKept = 2;
constexpr uint32_t kWarmUp = kKept + 2;  // until commits write over slots that were written before

stw_runtime *open_kept(const std::string &directory, uint64_t bytes)
{
    stw_nvme_options nvme = STW_NVME_OPTIONS_INIT;
    nvme.path = directory.c_str();
    nvme.budget_bytes = (1 + kKept + 1) * bytes + (UINT64_C(64) << 20);
    stw_runtime_options options = STW_RUNTIME_OPTIONS_INIT;
    options.nvme = &nvme;
    options.nvme_count = 1;
    options.host_bytes = 2 * bytes + (UINT64_C(64) << 20);
    options.flags = STW_RUNTIME_NO_PROBE | STW_RUNTIME_OVERWRITE;
    options.store_name = "bench-commit";
    options.generations_kept = kKept;
    stw_runtime *runtime = nullptr;
    must(stw_runtime_open(&options, &runtime), "stw_runtime_open");
    return runtime;
}

// Home is the host tier: nothing is written away before it is asked for.
stw_tensor *create(stw_runtime *runtime, const char *name, uint64_t bytes, uint32_t flags)
{
    stw_policy policy = STW_POLICY_INIT;
    policy.home = STW_TIER_HOST;
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.flags = flags;
    spec.name = name;
    spec.role = STW_ROLE_PARAM;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = bytes / 4;
    spec.policy = &policy;
    stw_tensor *tensor = nullptr;
    must(stw_tensor_create(runtime, &spec, 1, &tensor), "stw_tensor_create");
    return tensor;
}

void write_anew(stw_runtime *runtime, stw_tensor *tensor, double value)
{
    must(stw_tensor_fill(tensor, value, nullptr), "stw_tensor_fill");
    must(stw_runtime_drain(runtime, 0), "stw_runtime_drain");
}

uint64_t written_bytes(stw_runtime *runtime)
{
    stw_link_stats stats = STW_LINK_STATS_INIT;
    must(stw_link_stats_get(runtime, STW_LINK_HOST_TO_NVME, 0, &stats), "stw_link_stats_get");
    return stats.bytes;
}

double commit_seconds(stw_runtime *runtime, uint64_t *bytes_out)
{
    const uint64_t before = written_bytes(runtime);
    const double begin = bench::now_s();
    must(stw_commit(runtime, nullptr, nullptr), "stw_commit");
    const double seconds = bench::now_s() - begin;
    *bytes_out = written_bytes(runtime) - before;
    return seconds;
}

double read_seconds(stw_runtime *runtime, stw_tensor *tensor)
{
    const stw_fetch_request request = bench::request_of(tensor, STW_READ, STW_TIER_HOST);
    stw_view view;
    const double begin = bench::now_s();
    must(stw_fetch(runtime, nullptr, &request, 1, &view), "stw_fetch");
    const double seconds = bench::now_s() - begin;
    must(stw_release(&view, 1, STW_STREAM_HOST, 0), "stw_release");
    return seconds;
}

// The longest read of another thread that begins during the commit.
double longest_read_seconds(stw_runtime *runtime, stw_tensor *tensor)
{
    std::atomic<bool> over{false};
    double longest = 0;
    std::thread reader([&] {
        while (!over) {
            longest = std::max(longest, read_seconds(runtime, tensor));
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
    });
    must(stw_commit(runtime, nullptr, nullptr), "stw_commit");
    over = true;
    reader.join();
    return longest;
}

double evict_seconds(stw_runtime *runtime, stw_tensor *tensor)
{
    const double begin = bench::now_s();
    must(stw_evict(runtime, &tensor, 1, STW_TIER_HOST, 0, 0), "stw_evict");
    return bench::now_s() - begin;
}

}  // namespace

int main(int count, char **words)
{
    const bench::Arguments arguments(count, words);
    const std::string directory = arguments.text("dir", ".");
    const uint64_t bytes = arguments.number("bytes", UINT64_C(1) << 30);
    const uint64_t rounds = arguments.number("rounds", 5);
    stw_runtime *runtime = open_kept(directory, bytes);
    stw_tensor *scratch = create(runtime, "scratch", bytes, 0);
    stw_tensor *kept = create(runtime, "kept", bytes, STW_TENSOR_DURABLE);
    for (uint64_t round = 0; round < kWarmUp + rounds; ++round) {
        uint64_t changed = 0;
        uint64_t unchanged = 0;
        write_anew(runtime, scratch, static_cast<double>(round));
        const double evict_s = evict_seconds(runtime, scratch);
        write_anew(runtime, kept, static_cast<double>(round));
        const double commit_s = commit_seconds(runtime, &changed);
        const double unchanged_s = commit_seconds(runtime, &unchanged);
        if (round < kWarmUp) continue;
        write_anew(runtime, kept, static_cast<double>(round) + 0.5);
        const double read_s = longest_read_seconds(runtime, kept);
        std::printf("{\"bytes\": %" PRIu64 ", \"evict_s\": %.6f, \"commit_s\": %.6f, "
                    "\"unchanged_s\": %.6f, \"read_s\": %.6f, \"commit_bytes\": %" PRIu64
                    ", \"unchanged_bytes\": %" PRIu64 "}\n",
                    bytes, evict_s, commit_s, unchanged_s, read_s, changed, unchanged);
        std::fflush(stdout);
    }
    bench::close_runtime(runtime);
    const std::string files = directory + "/bench-commit.0-of-1.";
    std::remove((files + "stepwell").c_str());
    std::remove((files + "generations").c_str());
    return 0;
}
