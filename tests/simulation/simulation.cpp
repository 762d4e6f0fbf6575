// SPDX-License-Identifier: Apache-2.0
// A run by its options, and once more with its journal when it failed.
#include "tests/simulation/simulation.h"

#include "tests/simulation/program.h"

namespace stepwell::simulation {

Outcome run_program(const Options &options)
{
    Random random(options.seed);
    Journal journal(options.keep_journal);
    Program program(options, random, journal);
    Outcome outcome;
    for (; outcome.step < options.steps_max && !journal.failed(); outcome.step++) program.step();
    if (!journal.failed()) program.finish();
    program.count(outcome);
    outcome.failure = journal.failure();
    if (options.keep_journal) outcome.journal = journal.text();
    return outcome;
}

std::string run(const Options &options, Outcome (*program)(const Options &))
{
    const Outcome outcome = program(options);
    if (outcome.failure.empty()) return "";
    Options again = options;
    again.keep_journal = true;
    const Outcome second = program(again);
    return format_text("step %llu: ", static_cast<unsigned long long>(outcome.step)) +
           outcome.failure + "\n" + second.journal;
}

}  // namespace stepwell::simulation
