// SPDX-License-Identifier: Apache-2.0
// Runs seeds until one fails:
//   generations-simulation [--seeds N] [--first N | --of-the-day] [--seed N] [--ranks MIN MAX]
//                          [--verbose]
// Status 0: all passed, 1: a seed failed, 2: wrong arguments. A seed and a build are one run.
#include "tests/generations/world.h"
#include "tests/seed_of_the_day.h"

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char **argv)
{
    using namespace stepwell::generations;
    Options options;
    uint64_t first = 1;
    uint64_t count = 500;
    for (int i = 1; i < argc; ++i) {
        const auto number = [&] {
            return i + 1 < argc ? std::strtoull(argv[++i], nullptr, 10) : 0;
        };
        if (std::strcmp(argv[i], "--seeds") == 0) {
            count = number();
        } else if (std::strcmp(argv[i], "--first") == 0) {
            first = number();
        } else if (std::strcmp(argv[i], "--seed") == 0) {
            first = number();
            count = 1;
        } else if (std::strcmp(argv[i], "--of-the-day") == 0) {
            first = stepwell::seed_of_the_day();
        } else if (std::strcmp(argv[i], "--ranks") == 0) {
            options.ranks_min = static_cast<uint32_t>(number());
            options.ranks_max = static_cast<uint32_t>(number());
        } else if (std::strcmp(argv[i], "--verbose") == 0) {
            options.verbose = true;
        } else {
            std::fprintf(stderr, "generations-simulation does not know '%s'\n", argv[i]);
            return 2;
        }
    }
    if (options.ranks_min == 0 || options.ranks_max < options.ranks_min) return 2;
    uint64_t commits = 0;
    uint64_t crashes = 0;
    uint64_t doubts = 0;
    for (options.seed = first; options.seed < first + count; ++options.seed) {
        World world(options);
        const std::string failure = world.run();
        commits += world.commits();
        crashes += world.crashes();
        doubts += world.doubts();
        if (failure.empty()) continue;
        std::printf("failed by seed %" PRIu64 ": %s\n", options.seed, failure.c_str());
        std::printf("again: generations-simulation --ranks %u %u --seed %" PRIu64 " --verbose\n",
                    options.ranks_min, options.ranks_max, options.seed);
        return 1;
    }
    std::printf("%" PRIu64 " seeds: %" PRIu64 " parts committed, %" PRIu64 " undecided, %" PRIu64
                " restarts\n",
                count, commits, doubts, crashes);
    return commits > 0 && (crashes == 0 || doubts > 0 || count < 20) ? 0 : 1;
}
