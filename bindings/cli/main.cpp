// SPDX-License-Identifier: Apache-2.0
// The command `stepwell`. Exit status: 0; 1 when a directory cannot have a tier, something could
// not be measured, a model cannot be trained, or the output cannot be written; 2 for a wrong
// command line.
#include "bench.h"
#include "info.h"
#include "machine_profile.h"
#include "options.h"
#include "report_page.h"
#include "simulate/located_json.h"
#include "text.h"
#include "top.h"
#include "tune_text.h"
#include "whole_file.h"

#include <stepwell/stepwell.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <filesystem>

namespace {

using namespace stepwell::cli;

constexpr int kExitFailed = 1;
constexpr int kExitUsage = 2;

bool print(const std::string &text)
{
    const bool whole = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
    if (std::fflush(stdout) == 0 && whole) return true;
    std::fprintf(stderr, "stepwell: the output could not be written.\n");
    return false;
}

int run_info(const Options &options)
{
    // hwloc tells its troubles with firmware on stderr; they are not the reader's.
    setenv("HWLOC_HIDE_ERRORS", "2", 0);
    const Info info = gather_info(options.paths, "");
    const bool printed = print(options.json ? info_json(info) : info_text(info));
    return printed && info.errors().empty() ? EXIT_SUCCESS : kExitFailed;
}

// All that can be refused is, before a second is spent on measuring.
int run_tune(const Options &options)
{
    setenv("HWLOC_HIDE_ERRORS", "2", 0);
    TuneOptions wanted;
    if (options.seconds > 0) wanted.seconds = options.seconds;
    if (options.bytes > 0) wanted.bytes = options.bytes;
    const std::vector<Mount> mounts = read_mounts("");
    bool refused = false;
    for (const std::string &path : options.paths) {
        wanted.directories.push_back(look_at_directory(path, mounts, ""));
        const std::string why = why_not_tuned(wanted.directories.back(), wanted.bytes);
        if (!why.empty()) std::fprintf(stderr, "stepwell tune: %s\n", why.c_str());
        refused = refused || !why.empty();
    }
    const std::string file = options.output.empty() ? profile_path_usual() : options.output;
    const std::string why =
        file.empty() ? "Neither XDG_CONFIG_HOME nor HOME says where a profile could be; name a "
                       "file with --output."
                     : why_not_written(file, options.output.empty());
    if (!why.empty()) std::fprintf(stderr, "stepwell tune: %s\n", why.c_str());
    if (refused || !why.empty()) return kExitFailed;
    Tuned tuned;
    {
        ProgressLine line(stderr);
        tuned =
            tune(wanted, [&](const std::string &what, double share) { line.show(what, share); });
    }
    for (const std::string &line : cut_short(tuned))
        std::fprintf(stderr, "stepwell tune: %s\n", line.c_str());
    const std::string profile = profile_json(tuned, read_text(file));
    const std::string unwritten = write_profile(file, profile);
    if (!unwritten.empty()) {
        std::fprintf(stderr, "stepwell tune: %s\n", unwritten.c_str());
        return kExitFailed;
    }
    std::fprintf(stderr, "stepwell tune: the profile is in '%s'.\n", printable(file).c_str());
    return print(options.json ? profile : tuned_text(tuned)) ? EXIT_SUCCESS : kExitFailed;
}

int run_bench_command(const Options &options)
{
    BenchOptions wanted;
    if (options.seconds > 0) wanted.seconds = options.seconds;
    if (options.bytes > 0) wanted.bytes = options.bytes;
    wanted.directory = look_at_directory(options.paths.front(), read_mounts(""), "");
    // The raw file and the tier are there at once.
    const std::string why = why_not_tuned(wanted.directory, 2 * wanted.bytes);
    if (!why.empty()) {
        std::fprintf(stderr, "stepwell bench: %s\n", why.c_str());
        return kExitFailed;
    }
    std::vector<BenchRow> rows;
    {
        ProgressLine line(stderr);
        rows = run_bench(wanted,
                         [&](const std::string &what, double share) { line.show(what, share); });
    }
    return print(options.json ? bench_json(rows) : bench_text(rows)) ? EXIT_SUCCESS : kExitFailed;
}

int run_report(const Options &options)
{
    const std::string &from = options.paths.front();
    const std::string to = options.output.empty() ? page_path_of(from) : options.output;
    std::string error;
    const std::string text = read_report_file(from, &error);
    const std::string runtime = error.empty() ? check_report(from, text, &error) : "";
    std::error_code unknown;
    if (error.empty() && std::filesystem::equivalent(from, to, unknown))
        error = "The page would take the place of the report '" + printable(from) +
                "'; name another file with --output.";
    if (!error.empty()) {
        std::fprintf(stderr, "stepwell report: %s\n", error.c_str());
        return kExitFailed;
    }
    const std::string page = report_page(text, runtime);
    if (to == "-") return print(page) ? EXIT_SUCCESS : kExitFailed;
    if (const int cause = write_whole(to, page, 0600)) {
        std::fprintf(stderr,
                     "stepwell report: The page cannot be written to '%s': %s; name "
                     "another file with --output.\n",
                     printable(to).c_str(), std::strerror(cause));
        return kExitFailed;
    }
    return print(to + "\n") ? EXIT_SUCCESS : kExitFailed;
}

int run_simulate_command(const Options &options)
{
    const bool estimates = options.command == Command::kEstimate;
    try {
        Simulated done;
        {
            ProgressLine line(stderr);
            const auto show = [&](const std::string &what, double share) {
                line.show(what, share);
            };
            done = estimates ? Simulated{run_estimate(options.simulate), true}
                             : run_simulate(options.simulate, show);
        }
        if (!print(done.text)) return kExitFailed;
        if (done.answers) return EXIT_SUCCESS;
        std::fputs("stepwell simulate: No point of the sweep can be; the table says of each why.\n",
                   stderr);
        return kExitFailed;
    } catch (const Refused &refused) {
        const char *const who = estimates ? "estimate" : "simulate";
        std::fprintf(stderr, "stepwell %s: %s\n", who, refused.what());
        return kExitFailed;
    }
}

int run(int argc, char **argv)
{
    const Parsed parsed = parse_options(argc, argv);
    if (!parsed.error.empty()) {
        std::fprintf(stderr, "%s\n", parsed.error.c_str());
        return kExitUsage;
    }
    if (!parsed.text.empty()) return print(parsed.text) ? EXIT_SUCCESS : kExitFailed;
    if (parsed.options.command == Command::kInfo) return run_info(parsed.options);
    if (parsed.options.command == Command::kTune) return run_tune(parsed.options);
    if (parsed.options.command == Command::kBench) return run_bench_command(parsed.options);
    if (parsed.options.command == Command::kReport) return run_report(parsed.options);
    if (parsed.options.command == Command::kTop) {
        const TopOptions top{parsed.options.process, parsed.options.once, parsed.options.json};
        return run_top(top, stdout, stderr);
    }
    if (parsed.options.command == Command::kSimulate ||
        parsed.options.command == Command::kEstimate)
        return run_simulate_command(parsed.options);
    const std::string version = std::string("stepwell ") + stw_version_string() + ", ABI " +
                                std::to_string(stw_abi_version()) + "\n";
    return print(version) ? EXIT_SUCCESS : kExitFailed;
}

}  // namespace

int main(int argc, char **argv)
try {
    return run(argc, argv);
} catch (const std::exception &error) {
    std::fprintf(stderr, "stepwell: %s\n", error.what());
    return kExitFailed;
}
