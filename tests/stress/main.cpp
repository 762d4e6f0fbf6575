// SPDX-License-Identifier: Apache-2.0
// Random programs of several threads over the public API with small budgets, real files and
// injected faults. Every tensor's bytes follow from its history, so a stale, torn or mixed byte is
// found where it is read. STW_SEED replays one seed: the program of each thread is the same again,
// their interleaving is not.
// usage: stress [--seeds N] [--operations N] [--setup NAME] [--directory DIR] [--seconds N]
//               [--wait-ms N]
// --seconds: further seeds, for so long. --wait-ms: what a call may take at most, 20 s where this
// is not given: on an idle machine 1000 is enough.
#include "actor.h"
#include "trouble.h"

#include <chrono>
#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>

namespace {

using stress::Actor;
using stress::Setup;
using stress::World;

constexpr char kSlow[] = "inner=aio;delay_read=0.05:2000000;delay_write=0.05:2000000;"
                         "read_short=0.05;write_short=0.05;submit_partial=0.05";
constexpr char kBroken[] = "inner=aio;delay_read=0.02:1000000;read_short=0.03;write_short=0.03;"
                           "read_eio=0.01;write_eio=0.01";
constexpr char kRot[] = "inner=posix;delay_write=0.02:1000000;flip_read=0.01;torn_write=0.004;"
                        "lost_write=0.004;misdirect=0.002";

// Device only: nothing can leave, so all of it must fit.
constexpr Setup kSetups[] = {
    {"cpu", "cpu", 20, 12, 600, nullptr, false, 0, nullptr},
    {"cpu-discrete", "cpu-discrete", 20, 22, 600, nullptr, false, 0, nullptr},
    {"host", nullptr, 0, 24, 600, nullptr, false, 0, nullptr},
    {"device", "cpu", 400, 0, 0, nullptr, false, 0, nullptr},
    {"cpu-slow", "cpu", 20, 12, 600, kSlow, false, 0, nullptr},
    {"discrete-slow", "cpu-discrete", 20, 22, 600, kSlow, false, 0, nullptr},
    {"cpu-broken", "cpu", 20, 12, 600, kBroken, true, 0, nullptr},
    {"discrete-broken", "cpu-discrete", 20, 22, 600, kBroken, true, 0, nullptr},
    {"host-rot", nullptr, 0, 24, 600, kRot, true, 0, nullptr},
    {"discrete-kept", "cpu-discrete", 20, 22, 1200, kSlow, false, 0, "stress"},
    {"touched", "cpu", 96, 24, 1200, nullptr, false, 12, nullptr},
    {"touched-slow", "cpu", 96, 0, 1200, kSlow, false, 12, nullptr},
    {"touched-kept", "cpu", 96, 24, 1600, nullptr, false, 12, "stress"},
};

struct Options {
    uint64_t seeds = 3;
    uint64_t operations = 300;
    const char *setup = nullptr;
    const char *directory = ".";
    uint64_t seconds = 0;
    uint64_t wait_ms = 20000;
};

bool parse(int count, char **words, Options *options_out)
{
    for (int i = 1; i + 1 < count; i += 2) {
        const char *value = words[i + 1];
        if (!std::strcmp(words[i], "--seeds")) {
            options_out->seeds = std::strtoull(value, nullptr, 0);
        } else if (!std::strcmp(words[i], "--operations")) {
            options_out->operations = std::strtoull(value, nullptr, 0);
        } else if (!std::strcmp(words[i], "--setup")) {
            options_out->setup = value;
        } else if (!std::strcmp(words[i], "--directory")) {
            options_out->directory = value;
        } else if (!std::strcmp(words[i], "--seconds")) {
            options_out->seconds = std::strtoull(value, nullptr, 0);
        } else if (!std::strcmp(words[i], "--wait-ms")) {
            options_out->wait_ms = std::strtoull(value, nullptr, 0);
        } else {
            return false;
        }
    }
    return count % 2 == 1;
}

void run(const Setup &setup, const Options &options, uint64_t seed)
{
    const auto begin = std::chrono::steady_clock::now();
    World world(setup, options.directory, seed, 2 + seed % 3, options.wait_ms * 1000000);
    std::vector<std::unique_ptr<Actor>> actors;
    for (uint32_t i = 0; i <= world.actors; ++i)
        actors.push_back(std::make_unique<Actor>(world, i));
    for (uint32_t i = 0; i < world.actors; ++i) actors[i]->settle();
    std::atomic<uint32_t> running{world.actors};
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < world.actors; ++i) {
        threads.emplace_back([&, i] {
            actors[i]->run(options.operations);
            running.fetch_sub(1);
            world.wake_clerk();
        });
    }
    std::vector<pthread_t> handles;
    for (std::thread &thread : threads) handles.push_back(thread.native_handle());
    stress::Trouble trouble(world, std::move(handles));
    // The clerk: without it, a writer could wait for a view that nobody holds any more.
    World::Parcel parcel;
    while (world.wait_parcel(&parcel, running)) actors[world.actors]->open_parcel(parcel);
    trouble.end();
    for (std::thread &thread : threads) thread.join();
    world.finish();
    const std::chrono::duration<double> took = std::chrono::steady_clock::now() - begin;
    const stress::Counters &counters = world.counters;
    std::printf("  %-16s seed %" PRIu64 ": %" PRIu64 " operations of %u threads, %" PRIu64
                " views, %" PRIu64 " touches, %" PRIu64 " updates, %" PRIu64 " commits, %" PRIu64
                " budgets, %" PRIu64 " interrupts; busy %" PRIu64 ", budget %" PRIu64
                ", empty %" PRIu64 ", cancelled %" PRIu64 ", failed %" PRIu64
                "; %.2f s, the slowest call %.3f s\n",
                setup.name, seed, counters.operations.load(), world.actors, counters.views.load(),
                counters.touches.load(), counters.updates.load(), counters.commits.load(),
                counters.budgets.load(), counters.interrupted.load(), counters.busy.load(),
                counters.budget.load(), counters.empty.load(), counters.cancelled.load(),
                counters.failed.load(), took.count(),
                static_cast<double>(counters.slowest_ns.load()) / 1e9);
    std::fflush(stdout);
}

}  // namespace

int main(int count, char **words)
{
    Options options;
    if (!parse(count, words, &options)) {
        std::fprintf(stderr, "usage: stress [--seeds N] [--operations N] [--setup NAME] "
                             "[--directory DIR] [--seconds N] [--wait-ms N]\n");
        return 2;
    }
    const char *given = std::getenv("STW_SEED");
    const uint64_t first =
        given ? std::strtoull(given, nullptr, 0) : std::random_device{}() % 1000000;
    const uint64_t seeds = given ? 1 : options.seeds;
    std::printf("stress: STW_SEED=%" PRIu64 ", %" PRIu64 " seeds\n", first, seeds);
    bool known = false;
    const uint64_t end = World::now_ns() + options.seconds * 1000000000;
    stress::take_signals();
    for (uint64_t seed = first; seed < first + seeds || World::now_ns() < end; ++seed) {
        for (const Setup &setup : kSetups) {
            if (options.setup && std::strcmp(options.setup, setup.name) != 0) continue;
            known = true;
            run(setup, options, seed);
        }
    }
    if (!known) std::fprintf(stderr, "stress: there is no setup '%s'\n", options.setup);
    return known ? 0 : 2;
}
