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
    EXPECT_EQ(parse({"fly"}).error,
              "stepwell does not know 'fly'; it knows info and version, and --help.");
    EXPECT_EQ(parse({"info", "--fast"}).error,
              "stepwell info does not know '--fast'; it knows --json and --help, and takes "
              "directories.");
    EXPECT_EQ(parse({"version", "now"}).error,
              "stepwell version does not know 'now'; it knows --help alone.");
    EXPECT_EQ(parse({}).error, "stepwell needs a command; it knows info and version, and --help.");
    EXPECT_NE(parse({"--json"}).error, "");
    EXPECT_NE(parse({"info", "--json=maybe"}).error, "");
}

TEST(CommandLine, HelpIsNoError)
{
    EXPECT_NE(parse({"--help"}).text.find("version"), std::string::npos);
    EXPECT_NE(parse({"info", "--help"}).text.find("--json"), std::string::npos);
    EXPECT_EQ(parse({"--help"}).error, "");
}

}  // namespace
}  // namespace stepwell::cli
