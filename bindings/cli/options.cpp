// SPDX-License-Identifier: Apache-2.0
// CLI11 finds the words; those it does not know are told here, beside those that are known.
#include "options.h"

#include "text.h"

#include <CLI/CLI.hpp>

namespace stepwell::cli {

namespace {

constexpr const char *kKnown = "it knows info and version, and --help";
constexpr const char *kInfoKnows = "it knows --json and --help, and takes directories";
constexpr const char *kVersionKnows = "it knows --help alone";

std::string unknown(const std::string &who, const std::vector<std::string> &words,
                    const char *known)
{
    return who + " does not know '" + printable(words.front()) + "'; " + known + ".";
}

}  // namespace

Parsed parse_options(int argc, const char *const *argv)
{
    Parsed parsed;
    Options &options = parsed.options;
    CLI::App app("Stepwell keeps tensors in device memory, host memory or on NVMe.", "stepwell");
    app.allow_extras();
    app.require_subcommand(0, 1);  // then a directory may be called "version"
    CLI::App *info = app.add_subcommand(
        "info", "The machine, the drivers that work on it, and every limit that matters with the "
                "command that lifts it");
    info->add_option("DIRECTORY", options.paths, "directories that an nvme tier could be in");
    info->add_flag("--json", options.json, "the same as JSON");
    CLI::App *version = app.add_subcommand("version", "The version of the library and its ABI");
    for (CLI::App *command : {info, version}) command->allow_extras();
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp &) {
        parsed.text = app.help();
        return parsed;
    } catch (const CLI::ParseError &error) {
        parsed.error = std::string(error.what()) + ".";
        return parsed;
    }
    if (!app.remaining().empty())
        parsed.error = unknown("stepwell", app.remaining(), kKnown);
    else if (!info->remaining().empty())
        parsed.error = unknown("stepwell info", info->remaining(), kInfoKnows);
    else if (!version->remaining().empty())
        parsed.error = unknown("stepwell version", version->remaining(), kVersionKnows);
    else if (info->parsed())
        options.command = Command::kInfo;
    else if (version->parsed())
        options.command = Command::kVersion;
    else
        parsed.error = std::string("stepwell needs a command; ") + kKnown + ".";
    return parsed;
}

}  // namespace stepwell::cli
