// SPDX-License-Identifier: Apache-2.0
// The command line.
#include "options.h"

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

Parsed parse(std::vector<const char *> words)
{
    words.insert(words.begin(), "stepwell");
    return parse_options(static_cast<int>(words.size()), words.data());
}

TEST(CommandLine, InfoTakesDirectoriesAndJson)
{
    const Parsed parsed = parse({"info", "/a", "--json", "/b"});
    EXPECT_EQ(parsed.error, "");
    EXPECT_EQ(parsed.options.command, Command::kInfo);
    EXPECT_TRUE(parsed.options.json);
    EXPECT_EQ(parsed.options.paths, (std::vector<std::string>{"/a", "/b"}));
    EXPECT_EQ(parse({"info", "--", "--json"}).options.paths, std::vector<std::string>{"--json"});
    EXPECT_EQ(parse({"info", "version", "info"}).options.paths,
              (std::vector<std::string>{"version", "info"}));
}

TEST(CommandLine, WhatIsNotKnownIsToldBesideWhatIs)
{
    EXPECT_EQ(parse({"fly"}).error, "stepwell does not know 'fly'; it knows info, tune, bench, "
                                    "report, top, simulate, estimate, version, "
                                    "--version and --help.");
    EXPECT_EQ(parse({"info", "--fast"}).error,
              "stepwell info does not know '--fast'; it knows --json and --help, and takes "
              "directories.");
    EXPECT_EQ(parse({"version", "now"}).error,
              "stepwell version does not know 'now'; it knows --help alone.");
    EXPECT_EQ(parse({}).error,
              "stepwell needs a command; it knows info, tune, bench, report, top, simulate, "
              "estimate, version, --version and --help.");
    EXPECT_EQ(parse({"tune", "/a", "--fast"}).error,
              "stepwell tune does not know '--fast'; it knows --output, --seconds, --size, --json "
              "and --help, and takes directories.");
    EXPECT_EQ(parse({"bench", "/a", "--output", "f"}).error,
              "stepwell bench does not know '--output'; it knows --seconds, --size, --json and "
              "--help, and takes one directory.");
    EXPECT_NE(parse({"--json"}).error, "");
    EXPECT_NE(parse({"info", "--json=maybe"}).error, "");
}

TEST(CommandLine, TuneTakesDirectoriesAFileATimeAndASize)
{
    const Parsed parsed =
        parse({"tune", "/a", "/b", "--output", "f", "--seconds", "2.5", "--size", "64m"});
    EXPECT_EQ(parsed.error, "");
    EXPECT_EQ(parsed.options.command, Command::kTune);
    EXPECT_EQ(parsed.options.paths, (std::vector<std::string>{"/a", "/b"}));
    EXPECT_EQ(parsed.options.output, "f");
    EXPECT_EQ(parsed.options.seconds, 2.5);
    EXPECT_EQ(parsed.options.bytes, 64u << 20);
    EXPECT_EQ(parse({"tune", "/a"}).options.seconds, 0);
    EXPECT_EQ(parse({"tune", "--size=1g", "/a"}).options.bytes, 1u << 30);
    EXPECT_EQ(parse({"bench", "/a"}).options.command, Command::kBench);
}

TEST(CommandLine, TimesAndSizesAreChecked)
{
    for (const char *seconds : {"0", "-1", "4000", "nan", "ten", "5s", "1e99"})
        EXPECT_EQ(parse({"tune", "/a", "--seconds", seconds}).error,
                  std::string("stepwell tune takes --seconds from 1 to 3600, not '") + seconds +
                      "'.");
    for (const char *size : {"0", "1m", "65g", "-64m", "64M", "1.5g", "99999999999999999999g", "k"})
        EXPECT_EQ(parse({"bench", "/a", "--size", size}).error,
                  std::string("stepwell bench takes a --size from 32m to 64g, not '") + size +
                      "'.");
    EXPECT_NE(parse({"tune"}).error, "");
    EXPECT_NE(parse({"tune", "1", "2", "3", "4", "5", "6", "7", "8", "9"}).error, "");
    EXPECT_NE(parse({"bench"}).error, "");
    EXPECT_NE(parse({"bench", "/a", "/b"}).error, "");
}

TEST(CommandLine, SimulateTakesAModelAMachineAndASweep)
{
    const Parsed parsed = parse({"simulate", "m.json", "n.json", "--ranks", "64", "--no-overlap",
                                 "--sweep", "params=0.5T,1T", "-o", "p.svg", "--json"});
    EXPECT_EQ(parsed.error, "");
    EXPECT_EQ(parsed.options.command, Command::kSimulate);
    const SimulateOptions &simulate = parsed.options.simulate;
    EXPECT_EQ(simulate.model, "m.json");
    EXPECT_EQ(simulate.machine, "n.json");
    EXPECT_EQ(simulate.ranks, 64u);
    EXPECT_TRUE(simulate.no_overlap);
    EXPECT_FALSE(simulate.exposed_update);
    EXPECT_EQ(simulate.sweep, "params=0.5T,1T");
    EXPECT_EQ(simulate.plot, "p.svg");
    EXPECT_TRUE(simulate.json);
    const Parsed estimate = parse({"estimate", "m", "n", "--exposed-update", "--tokens", "1 K"});
    EXPECT_EQ(estimate.error, "");
    EXPECT_EQ(estimate.options.command, Command::kEstimate);
    EXPECT_TRUE(estimate.options.simulate.exposed_update);
    EXPECT_EQ(estimate.options.simulate.tokens, "1 K");
    EXPECT_EQ(parse({"estimate", "m"}).options.simulate.machine, "this-host");
}

TEST(CommandLine, WhatCannotBeSimulatedIsTold)
{
    EXPECT_EQ(parse({"simulate", "m"}).error,
              "stepwell simulate needs a model and a machine; give a file, or the name of an "
              "example.");
    EXPECT_EQ(parse({"estimate"}).error,
              "stepwell estimate needs a model; give a file, or the name of an example.");
    EXPECT_EQ(parse({"simulate", "m", "n", "--ranks", "0"}).error,
              "stepwell simulate takes --ranks from 1 on, not '0'.");
    EXPECT_EQ(parse({"simulate", "m", "n", "-o", "p.svg"}).error,
              "stepwell simulate plots a sweep; --output needs --sweep.");
    EXPECT_EQ(parse({"simulate", "m", "n", "--sweep", "layers=1"}).error,
              "stepwell simulate: --sweep takes params=... or ranks=..., not 'layers=1'.");
    for (const char *sweep : {"ranks=", "ranks=1.5", "params=x", "params=0", "ranks=-1"})
        EXPECT_NE(parse({"simulate", "m", "n", "--sweep", sweep}).error, "") << sweep;
    EXPECT_EQ(parse({"simulate", "m", "n", "--sweep", "ranks=1,0"}).error,
              "stepwell simulate: '0' is no number of ranks from 1 to 1 B.");
    EXPECT_EQ(parse({"simulate", "m", "n", "--sweep", ""}).error,
              "stepwell simulate: --sweep takes params=... or ranks=..., not ''.");
    EXPECT_EQ(parse({"estimate", "m", "n", "--ranks", ""}).error,
              "stepwell estimate takes --ranks from 1 on, not ''.");
    EXPECT_NE(parse({"estimate", "m", "n", "--sweep", "ranks=1"}).error, "");
}

TEST(CommandLine, HelpIsNoError)
{
    EXPECT_NE(parse({"--help"}).text.find("version"), std::string::npos);
    EXPECT_NE(parse({"info", "--help"}).text.find("--json"), std::string::npos);
    EXPECT_EQ(parse({"--help"}).error, "");
}

TEST(CommandLine, TopTakesOneProcess)
{
    const Parsed parsed = parse({"top", "123", "--once", "--json"});
    EXPECT_EQ(parsed.error, "");
    EXPECT_EQ(parsed.options.command, Command::kTop);
    EXPECT_EQ(parsed.options.process, 123u);
    EXPECT_TRUE(parsed.options.once);
    EXPECT_TRUE(parsed.options.json);
    for (const Parsed &wrong : {parse({"top"}), parse({"top", "1", "2"}), parse({"top", "0"}),
                                parse({"top", "init"}), parse({"top", "99999999999"})})
        EXPECT_EQ(wrong.error, "stepwell top needs the number of one process, as ps shows it.");
}

TEST(CommandLine, TheVersionIsACommandAndAFlag)
{
    for (const char *word : {"version", "--version"}) {
        EXPECT_EQ(parse({word}).error, "");
        EXPECT_EQ(parse({word}).options.command, Command::kVersion);
    }
}

}  // namespace
}  // namespace stepwell::cli
