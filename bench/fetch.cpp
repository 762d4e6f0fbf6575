// SPDX-License-Identifier: Apache-2.0
// fetch.hit, fetch.threads and fetch.scale: what fetch and release cost when nothing has to move;
// and, without a figure of its own, what they cost each in a call that names many.
//
// usage: fetch --mode hit|many|locked|threads|scale [--rounds N]
// Prints one JSON line a round.
#include "measure.h"

#include <pthread.h>
#include <sched.h>

#include <atomic>
#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <thread>

namespace {

using bench::must;

constexpr uint64_t kTensorElements = 262144;  // 1 MiB
constexpr uint64_t kPairs = 2'000'000;
constexpr uint64_t kDeviceBytes = uint64_t{256} << 20;

// Give the tensor contents, at the device tier.
void fill(stw_runtime *runtime, stw_tensor *tensor)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    const stw_fetch_request request = bench::request_of(tensor, STW_WRITE, STW_TIER_DEVICE);
    stw_view view;
    must(stw_fetch(runtime, &options, &request, 1, &view), "stw_fetch");
    std::memset(view.pointer, 1, view.bytes);
    must(stw_release(&view, 1, STW_STREAM_HOST, 0), "stw_release");
}

// Seconds for `pairs` fetches and releases of a resident tensor.
double hit_seconds(stw_runtime *runtime, stw_tensor *tensor, uint64_t pairs)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    const stw_fetch_request request = bench::request_of(tensor, STW_READ, STW_TIER_DEVICE);
    stw_view view;
    stw_status worst = STW_OK;
    const double begin = bench::now_s();
    for (uint64_t i = 0; i < pairs; ++i) {
        const stw_status fetched = stw_fetch(runtime, &options, &request, 1, &view);
        if (fetched < STW_OK) must(fetched, "stw_fetch");
        worst |= stw_release(&view, 1, STW_STREAM_HOST, 0);
    }
    const double seconds = bench::now_s() - begin;
    must(worst, "stw_release");
    return seconds;
}

void measure_hit(stw_runtime *runtime, uint64_t rounds)
{
    stw_tensor *tensor =
        bench::create_tensor(runtime, "hit", STW_ROLE_PARAM, kTensorElements, STW_TIER_DEVICE);
    fill(runtime, tensor);
    hit_seconds(runtime, tensor, kPairs / 10);
    for (uint64_t i = 0; i < rounds; ++i)
        std::printf("{\"what\": \"hit\", \"ns\": %.3f}\n",
                    hit_seconds(runtime, tensor, kPairs) * 1e9 / kPairs);
    must(stw_tensor_destroy(&tensor, 1), "stw_tensor_destroy");
}

constexpr uint32_t kManyTensors = 1000;

// `locked`: one of the call writes, so that all of it takes the lock; the fetch alone is timed.
void measure_many(stw_runtime *runtime, uint64_t rounds, bool locked)
{
    constexpr uint32_t kCalls = 200;
    std::vector<stw_tensor *> tensors;
    std::vector<stw_fetch_request> requests;
    std::vector<stw_view> views(kManyTensors);
    for (uint32_t i = 0; i < kManyTensors; ++i) {
        tensors.push_back(
            bench::create_tensor(runtime, nullptr, STW_ROLE_PARAM, 256, STW_TIER_DEVICE));
        fill(runtime, tensors.back());
        requests.push_back(bench::request_of(tensors.back(), STW_READ, STW_TIER_DEVICE));
    }
    if (locked) requests.back().access = STW_READ_WRITE;
    for (uint64_t round = 0; round <= rounds; ++round) {  // the first one opens the gates
        double seconds = 0.0;
        for (uint32_t i = 0; i < kCalls; ++i) {
            const double begin = bench::now_s();
            must(stw_fetch(runtime, nullptr, requests.data(), kManyTensors, views.data()),
                 "stw_fetch");
            if (locked) seconds += bench::now_s() - begin;
            must(stw_release(views.data(), kManyTensors, STW_STREAM_HOST, 0), "stw_release");
            if (!locked) seconds += bench::now_s() - begin;
        }
        if (round == 0) continue;
        std::printf("{\"what\": \"%s\", \"ns\": %.3f}\n", locked ? "locked" : "many",
                    seconds * 1e9 / kCalls / kManyTensors);
    }
    must(stw_tensor_destroy(tensors.data(), kManyTensors), "stw_tensor_destroy");
}

void stay_on(uint32_t core)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    CPU_SET(core, &set);
    // Where the core is not ours, the kernel's choice will do.
    (void)pthread_setaffinity_np(pthread_self(), sizeof set, &set);
}

// Pairs per second of threads on cores [first, first + threads) together, each on a tensor of its
// own, over a time in which all of them are at work.
double rate_of(stw_runtime *runtime, const std::vector<stw_tensor *> &tensors, uint32_t first,
               uint32_t threads)
{
    constexpr uint64_t kBatch = kPairs / 1000;
    constexpr double kWindowSeconds = 0.25;
    std::atomic<uint32_t> ready{0};
    std::atomic<bool> stop{false};
    std::vector<double> rates(threads);
    std::vector<std::thread> workers;
    for (uint32_t i = 0; i < threads; ++i)
        workers.emplace_back([&, i] {
            stay_on(first + i);
            hit_seconds(runtime, tensors[first + i], kPairs / 100);
            ready.fetch_add(1);
            while (ready.load() < threads) {}
            const double begin = bench::now_s();
            uint64_t pairs = 0;
            for (; !stop.load(std::memory_order_relaxed); pairs += kBatch)
                hit_seconds(runtime, tensors[first + i], kBatch);
            rates[i] = static_cast<double>(pairs) / (bench::now_s() - begin);
        });
    while (ready.load() < threads) std::this_thread::yield();
    const double begin = bench::now_s();
    while (bench::now_s() - begin < kWindowSeconds)
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    stop.store(true);
    double total = 0;
    for (uint32_t i = 0; i < threads; ++i) {
        workers[i].join();
        total += rates[i];
    }
    return total;
}

void measure_threads(stw_runtime *runtime, uint64_t rounds)
{
    std::vector<stw_tensor *> tensors;
    for (const char *name : {"first", "second"}) {
        tensors.push_back(
            bench::create_tensor(runtime, name, STW_ROLE_PARAM, kTensorElements, STW_TIER_DEVICE));
        fill(runtime, tensors.back());
    }
    for (uint64_t i = 0; i < rounds; ++i) {
        // Cores differ: one thread is the mean of one on each.
        const double on_first = rate_of(runtime, tensors, 0, 1);
        const double two = rate_of(runtime, tensors, 0, 2);
        const double one = (on_first + rate_of(runtime, tensors, 1, 1)) / 2;
        std::printf("{\"what\": \"threads\", \"one_per_s\": %.1f, \"two_per_s\": %.1f}\n", one,
                    two);
    }
    must(stw_tensor_destroy(tensors.data(), 2), "stw_tensor_destroy");
}

// ------------------------------------------------------------------------------------- scale --

constexpr uint64_t kSmallElements = 256;  // 1 KiB: 2,048 of them share a block
constexpr uint64_t kScaleTensors = 100'000;

// ns per tensor of each part of a tensor's life.
struct Life {
    double create = 0;
    double first = 0;  // the first write, which takes its room
    double hit = 0;
    double destroy = 0;
};

double sweep(stw_runtime *runtime, const std::vector<stw_tensor *> &tensors, uint32_t access)
{
    stw_fetch_options options = STW_FETCH_OPTIONS_INIT;
    const double begin = bench::now_s();
    for (stw_tensor *tensor : tensors) {
        const stw_fetch_request request = bench::request_of(tensor, access, STW_TIER_DEVICE);
        stw_view view;
        must(stw_fetch(runtime, &options, &request, 1, &view), "stw_fetch");
        // One word: the rest would measure memory, of which the many tensors have more.
        if (access == STW_WRITE) *static_cast<float *>(view.pointer) = 1.0F;
        must(stw_release(&view, 1, STW_STREAM_HOST, 0), "stw_release");
    }
    return bench::now_s() - begin;
}

// Live `count` tensors at once, as often as it takes to make kScaleTensors lives.
Life live(stw_runtime *runtime, uint64_t count)
{
    stw_tensor_spec spec = STW_TENSOR_SPEC_INIT;
    spec.role = STW_ROLE_PARAM;
    spec.dtype = STW_F32;
    spec.dimensions = 1;
    spec.shape[0] = kSmallElements;
    const std::vector<stw_tensor_spec> specs(count, spec);
    std::vector<stw_tensor *> tensors(count);
    const auto n = static_cast<uint32_t>(count);

    Life life;
    for (uint64_t lived = 0; lived < kScaleTensors; lived += count) {
        const double begin = bench::now_s();
        must(stw_tensor_create(runtime, specs.data(), n, tensors.data()), "stw_tensor_create");
        life.create += bench::now_s() - begin;
        life.first += sweep(runtime, tensors, STW_WRITE);
        life.hit += sweep(runtime, tensors, STW_READ);
        const double end = bench::now_s();
        must(stw_tensor_destroy(tensors.data(), n), "stw_tensor_destroy");
        life.destroy += bench::now_s() - end;
    }
    for (double *part : {&life.create, &life.first, &life.hit, &life.destroy})
        *part *= 1e9 / kScaleTensors;
    return life;
}

void measure_scale(stw_runtime *runtime, uint64_t rounds)
{
    for (const uint64_t count : {kScaleTensors, uint64_t{1000}}) live(runtime, count);
    for (uint64_t i = 0; i < rounds; ++i)
        for (const uint64_t count : {uint64_t{1000}, kScaleTensors}) {
            const Life life = live(runtime, count);
            std::printf("{\"what\": \"scale\", \"tensors\": %" PRIu64
                        ", \"create_ns\": %.1f, \"first_ns\": %.1f, \"hit_ns\": %.1f, "
                        "\"destroy_ns\": %.1f}\n",
                        count, life.create, life.first, life.hit, life.destroy);
        }
}

}  // namespace

int main(int argc, char **argv)
{
    const bench::Arguments arguments(argc, argv);
    const std::string mode = arguments.text("mode", "hit");
    const uint64_t rounds = arguments.number("rounds", 7);
    bench::Budgets budgets;
    budgets.device_bytes = kDeviceBytes;
    stw_runtime *runtime = bench::open_runtime(budgets);
    if (mode == "hit")
        measure_hit(runtime, rounds);
    else if (mode == "many" || mode == "locked")
        measure_many(runtime, rounds, mode == "locked");
    else if (mode == "threads")
        measure_threads(runtime, rounds);
    else if (mode == "scale")
        measure_scale(runtime, rounds);
    else
        bench::give_up("no such mode: " + mode);
    bench::close_runtime(runtime);
    return 0;
}
