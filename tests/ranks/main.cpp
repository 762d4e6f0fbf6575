// SPDX-License-Identifier: Apache-2.0
// Runs seeds until one fails:
//   ranks-simulation [--seeds N] [--first N | --of-the-day] [--seed N] [--verbose] [--steps N]
//                    [--check-every N] [--twice N] [--no-faults] [--plant NAME | --plants]
// Status 0: all passed, 1: a seed failed, 2: wrong arguments. A seed and a build are one run: the
// line that reports a failure has the command that replays it. --twice runs each Nth seed again and
// compares the hashes of what happened. --plants plants each bug in turn, and each must be found.
#include "tests/ranks/support.h"
#include "tests/seed_of_the_day.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

namespace stepwell::ranks {
namespace {

constexpr uint64_t kSeedsOfPlant = 600;  // the rarest is found by one in a few hundred

struct Named {
    const char *name;
    Plant plant;
};
constexpr Named kPlants[] = {
    {"lost-completion", Plant::kLostCompletion},
    {"failure-is-good", Plant::kFailureIsGood},
    {"early-completion", Plant::kEarlyCompletion},
    {"collective-without-one", Plant::kCollectiveWithoutOne},
    {"memory-before-room", Plant::kMemoryBeforeRoom},
    {"forgotten-pin", Plant::kForgottenPin},
    {"forgotten-deadline", Plant::kForgottenDeadline},
    {"leaked-view", Plant::kLeakedView},
    {"forgotten-forget", Plant::kForgottenForget},
    {"forgotten-hint", Plant::kForgottenHint},
    {"budget-not-taken-back", Plant::kBudgetNotTakenBack},
    {"wrong-bytes", Plant::kWrongBytes},
};

struct Command {
    Options options;
    uint64_t first = 1;
    uint64_t count = 500;
    uint64_t twice = 0;
    bool plants = false;
};

bool number_behind(int *at, int argc, char **argv, const char *name, uint64_t *out)
{
    if (std::strcmp(argv[*at], name) != 0 || *at + 1 >= argc) return false;
    *out = std::strtoull(argv[++*at], nullptr, 10);
    return true;
}

bool read_plant(const char *name, Plant *out)
{
    for (const Named &at : kPlants) {
        if (std::strcmp(at.name, name) != 0) continue;
        *out = at.plant;
        return true;
    }
    return false;
}

bool read(int argc, char **argv, Command *command)
{
    Options &options = command->options;
    for (int i = 1; i < argc; ++i) {
        uint64_t value = 0;
        if (number_behind(&i, argc, argv, "--seeds", &command->count)) continue;
        if (number_behind(&i, argc, argv, "--first", &command->first)) continue;
        if (number_behind(&i, argc, argv, "--twice", &command->twice)) continue;
        if (number_behind(&i, argc, argv, "--seed", &command->first)) {
            command->count = 1;
        } else if (number_behind(&i, argc, argv, "--steps", &value)) {
            options.steps = static_cast<uint32_t>(value);
        } else if (number_behind(&i, argc, argv, "--check-every", &value)) {
            options.check_every = static_cast<uint32_t>(value);
        } else if (std::strcmp(argv[i], "--of-the-day") == 0) {
            command->first = seed_of_the_day();
        } else if (std::strcmp(argv[i], "--verbose") == 0) {
            options.verbose = true;
        } else if (std::strcmp(argv[i], "--no-faults") == 0) {
            options.faults = false;
        } else if (std::strcmp(argv[i], "--plants") == 0) {
            command->plants = true;
        } else if (std::strcmp(argv[i], "--plant") == 0 && i + 1 < argc) {
            if (!read_plant(argv[++i], &options.plant)) return false;
        } else {
            return false;
        }
    }
    return true;
}

std::string replay_of(const char *program, const Options &options)
{
    std::string text = format_text("%s --seed %llu --steps %u --check-every %u --verbose", program,
                                   number(options.seed), options.steps, options.check_every);
    if (!options.faults) text += " --no-faults";
    for (const Named &at : kPlants) {
        if (at.plant == options.plant) text += format_text(" --plant %s", at.name);
    }
    return text;
}

double processor_seconds()
{
    return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
}

void report(const Counts &all, uint64_t seeds, uint64_t hash, double seconds)
{
    std::printf(
        "passed %llu seeds: %llu events that a core was told, %llu transfers, %llu checks of all\n"
        "  %llu fetches granted, %llu hits, %llu refused (%llu at their deadline), %llu hints\n"
        "  %llu collectives, %llu updates, %llu faults, %llu transfers failed, %llu budgets shrunk,"
        " %llu taken back, %llu deadlocks broken\n"
        "  hash %016llx, %.2f s of processor time, %.0f events/s\n",
        number(seeds), number(all.events), number(all.transfers), number(all.checks),
        number(all.grants), number(all.hits), number(all.refusals), number(all.timeouts),
        number(all.hints), number(all.collectives), number(all.updates), number(all.faults),
        number(all.failed_transfers), number(all.shrinks), number(all.shrinks_undone),
        number(all.deadlocks), number(hash), seconds, static_cast<double>(all.events) / seconds);
}

int run_seeds(const char *program, const Command &command)
{
    Counts all;
    uint64_t hash = 0;
    const double begin = processor_seconds();
    for (uint64_t seed = command.first; seed < command.first + command.count; ++seed) {
        Options options = command.options;
        options.seed = seed;
        Outcome outcome = run(options);
        all.add(outcome.counts);
        hash = (hash ^ outcome.hash) * 0x9e3779b97f4a7c15ull;
        if (outcome.failure.empty() && command.twice > 0 && seed % command.twice == 0) {
            const Outcome again = run(options);
            if (again.hash != outcome.hash || again.ended != outcome.ended) {
                outcome.failure = format_text("the same seed was two runs: hash %016llx at %llu ns "
                                              "and %016llx at %llu ns",
                                              number(outcome.hash), number(outcome.ended),
                                              number(again.hash), number(again.ended));
            }
        }
        if (outcome.failure.empty()) continue;
        std::printf("failed by seed %llu after %llu events: %s\nreplay: %s\n", number(seed),
                    number(outcome.counts.events), outcome.failure.c_str(),
                    replay_of(program, options).c_str());
        return 1;
    }
    report(all, command.count, hash, processor_seconds() - begin);
    // A run in which nothing happens proves nothing.
    const bool idle = command.count >= 100 && command.options.faults &&
                      (all.events < 500 * command.count || all.faults == 0 || all.deadlocks == 0 ||
                       all.failed_transfers == 0 || all.shrinks == 0 || all.shrinks_undone == 0 ||
                       all.timeouts == 0 || all.collectives == 0 || all.hits == 0);
    if (idle) std::printf("failed: some of this never happened\n");
    return idle ? 1 : 0;
}

int run_plants(const Command &command)
{
    int status = 0;
    for (const Named &at : kPlants) {
        bool found = false;
        for (uint64_t seed = 1; seed <= kSeedsOfPlant && !found; ++seed) {
            Options options = command.options;
            options.seed = seed;
            options.plant = at.plant;
            const Outcome outcome = run(options);
            found = !outcome.failure.empty();
            if (!found) continue;
            std::printf("ok   %s: found by seed %llu: %s\n", at.name, number(seed),
                        outcome.failure.substr(0, 200).c_str());
        }
        if (found) continue;
        std::printf("FAIL %s: not found by %llu seeds\n", at.name, number(kSeedsOfPlant));
        status = 1;
    }
    return status;
}

}  // namespace
}  // namespace stepwell::ranks

int main(int argc, char **argv)
{
    using namespace stepwell::ranks;
    Command command;
    if (!read(argc, argv, &command)) {
        std::fprintf(stderr,
                     "usage: %s [--seeds N] [--first N | --of-the-day] [--seed N] [--verbose] "
                     "[--steps N] [--check-every N] [--twice N] [--no-faults] "
                     "[--plant NAME | --plants]\n",
                     argv[0]);
        return 2;
    }
    return command.plants ? run_plants(command) : run_seeds(argv[0], command);
}
