// SPDX-License-Identifier: Apache-2.0
// CLI11 finds the words; those it does not know are told here, beside those that are known.
#include "options.h"

#include "text.h"

#include <CLI/CLI.hpp>

namespace stepwell::cli {

namespace {

constexpr const char *kKnown = "it knows info, tune, bench, report, version, --version and --help";
constexpr const char *kInfoKnows = "it knows --json and --help, and takes directories";
constexpr const char *kTuneKnows =
    "it knows --output, --seconds, --size, --json and --help, and takes directories";
constexpr const char *kBenchKnows =
    "it knows --seconds, --size, --json and --help, and takes one directory";
constexpr const char *kReportKnows = "it knows --output and --help, and takes one report";
constexpr const char *kVersionKnows = "it knows --help alone";
constexpr double kSecondsMin = 1;
constexpr double kSecondsMax = 3600;
constexpr uint64_t kBytesMin = 32 << 20;
constexpr uint64_t kBytesMax = uint64_t{64} << 30;

std::string unknown(const std::string &who, const std::vector<std::string> &words,
                    const char *known)
{
    return who + " does not know '" + printable(words.front()) + "'; " + known + ".";
}

// "256m"; nothing for what is no size.
std::optional<uint64_t> parse_size(std::string text)
{
    uint64_t unit = 1;
    const std::string units = "kmg";
    const size_t at = text.empty() ? std::string::npos : units.find(text.back());
    if (at != std::string::npos) {
        unit = uint64_t{1} << (10 * (at + 1));
        text.pop_back();
    }
    const std::optional<uint64_t> number = parse_number(text);
    uint64_t bytes = 0;
    if (!number || __builtin_mul_overflow(*number, unit, &bytes)) return std::nullopt;
    return bytes;
}

struct Words {
    std::string seconds;
    std::string size;
};

// "" or what is wrong with the values of flags.
std::string take_values(const std::string &who, const Words &words, Options *options)
{
    if (!words.seconds.empty()) {
        char *end = nullptr;
        options->seconds = std::strtod(words.seconds.c_str(), &end);
        if (*end != '\0' || !(options->seconds >= kSecondsMin && options->seconds <= kSecondsMax))
            return who + " takes --seconds from 1 to 3600, not '" + printable(words.seconds) + "'.";
    }
    if (!words.size.empty()) {
        const std::optional<uint64_t> bytes = parse_size(words.size);
        if (!bytes || *bytes < kBytesMin || *bytes > kBytesMax)
            return who + " takes a --size from 32m to 64g, not '" + printable(words.size) + "'.";
        options->bytes = *bytes;
    }
    return "";
}

// "" or what is wrong with the number of directories.
std::string check_paths(const Options &options)
{
    const size_t count = options.paths.size();
    if (options.command == Command::kTune && count == 0)
        return "stepwell tune needs a directory; give those an nvme tier will be in.";
    if (options.command == Command::kTune && count > 8)
        return "stepwell tune takes 8 directories at most, as a runtime does.";
    if (options.command == Command::kBench && count != 1)
        return "stepwell bench needs one directory, on the drive to be measured.";
    if (options.command == Command::kReport && count != 1)
        return "stepwell report needs one report, a file that stw_report_write has written.";
    return "";
}

}  // namespace

Parsed parse_options(int argc, const char *const *argv)
{
    Parsed parsed;
    Options &options = parsed.options;
    Words words;
    CLI::App app("Stepwell keeps tensors in device memory, host memory or on NVMe.", "stepwell");
    app.allow_extras();
    app.require_subcommand(0, 1);  // then a directory may be called "version"
    bool asks_version = false;
    app.add_flag("--version", asks_version, "As the command version");
    CLI::App *info = app.add_subcommand(
        "info", "The machine, the drivers that work on it, and every limit that matters with the "
                "command that lifts it");
    info->add_option("DIRECTORY", options.paths, "directories that an nvme tier could be in")
        ->type_name("");
    CLI::App *tune = app.add_subcommand(
        "tune", "Measure directories and memory, and write the machine profile that the library "
                "reads by itself");
    tune->add_option("DIRECTORY", options.paths, "directories that an nvme tier will be in, 1 to 8")
        ->type_name("");
    tune->add_option("--output", options.output, "where the profile goes, not to the usual file")
        ->type_name("FILE");
    CLI::App *bench = app.add_subcommand(
        "bench", "What the library reaches in a directory, beside what the drive gives");
    bench->add_option("DIRECTORY", options.paths, "one directory, on the drive")->type_name("");
    CLI::App *report = app.add_subcommand(
        "report", "A report that stw_report_write has written, as a page that needs nothing else");
    report->add_option("REPORT", options.paths, "the report, JSON")->type_name("");
    report
        ->add_option("-o,--output", options.output,
                     "the page; else the report's name with .html; -: standard output")
        ->type_name("FILE");
    for (CLI::App *measures : {tune, bench}) {
        measures->add_option("--seconds", words.seconds, "how long, about: 1 to 3600")
            ->type_name("N");
        measures->add_option("--size", words.size, "bytes written there at a time: 32m to 64g")
            ->type_name("BYTES");
    }
    for (CLI::App *shows : {info, tune, bench})
        shows->add_flag("--json", options.json, "the same as JSON");
    CLI::App *version = app.add_subcommand("version", "The version of the library and its ABI");
    const struct {
        CLI::App *app;
        Command command;
        const char *known;
    } commands[] = {{info, Command::kInfo, kInfoKnows},
                    {tune, Command::kTune, kTuneKnows},
                    {bench, Command::kBench, kBenchKnows},
                    {report, Command::kReport, kReportKnows},
                    {version, Command::kVersion, kVersionKnows}};
    for (const auto &command : commands) command.app->allow_extras();
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp &) {
        parsed.text = app.help();
        return parsed;
    } catch (const CLI::ParseError &error) {
        parsed.error = std::string(error.what()) + ".";
        return parsed;
    }
    parsed.error = app.remaining().empty()
                       ? std::string("stepwell needs a command; ") + kKnown + "."
                       : unknown("stepwell", app.remaining(), kKnown);
    if (!app.remaining().empty()) return parsed;
    if (asks_version) options.command = Command::kVersion, parsed.error.clear();
    for (const auto &command : commands) {
        if (!command.app->parsed()) continue;
        const std::string who = "stepwell " + command.app->get_name();
        options.command = command.command;
        parsed.error = command.app->remaining().empty()
                           ? take_values(who, words, &options)
                           : unknown(who, command.app->remaining(), command.known);
    }
    if (parsed.error.empty()) parsed.error = check_paths(options);
    return parsed;
}

}  // namespace stepwell::cli
