// SPDX-License-Identifier: Apache-2.0
// A program that runs seeds until one fails: for the planted bugs of tests/mutants, and by hand:
//   simulation-explore program|ranks|many FIRST COUNT [journal]
// Prints one line; status 0 when all seeds passed, 1 when one failed, 2 on wrong arguments. An
// assertion of the library that fails is a failure of the seed.
#include "lib/support/assert.h"
#include "tests/simulation/simulation.h"

#include <cstdio>
#include <cstdlib>
#include <cstring>

int main(int argc, char **argv)
{
    using namespace stepwell;
    using namespace stepwell::simulation;
    if (argc < 4 || (std::strcmp(argv[1], "program") != 0 && std::strcmp(argv[1], "ranks") != 0 &&
                     std::strcmp(argv[1], "many") != 0)) {
        std::fprintf(stderr, "usage: %s program|ranks|many FIRST COUNT [journal]\n", argv[0]);
        return 2;
    }
    const bool program = std::strcmp(argv[1], "program") == 0;
    const uint64_t first = std::strtoull(argv[2], nullptr, 10);
    const uint64_t count = std::strtoull(argv[3], nullptr, 10);
    uint64_t events = 0;
    for (uint64_t seed = first; seed < first + count; seed++) {
        Options options;
        options.seed = seed;
        options.keep_journal = argc > 4;
        const bool many = std::strcmp(argv[1], "many") == 0;
        Outcome outcome = program ? run_program(options)
                          : many  ? run_many_ranks(options)
                                  : run_ranks(options);
        events += outcome.events;
        char text[256];
        if (outcome.failure.empty() && assertion_failures(text, sizeof text) > 0) {
            outcome.failure = text;
        }
        if (outcome.failure.empty()) continue;
        std::printf("%sfailed by seed %llu after %llu events: %s\n", outcome.journal.c_str(),
                    static_cast<unsigned long long>(seed), static_cast<unsigned long long>(events),
                    outcome.failure.c_str());
        return 1;
    }
    std::printf("passed %llu seeds with %llu events\n", static_cast<unsigned long long>(count),
                static_cast<unsigned long long>(events));
    return 0;
}
