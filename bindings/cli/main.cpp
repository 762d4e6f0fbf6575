// SPDX-License-Identifier: Apache-2.0
// The command `stepwell`. Exit status: 0; 1 when a directory cannot have a tier or the output
// cannot be written; 2 for a wrong command line.
#include "info.h"
#include "options.h"

#include <stepwell/stepwell.h>

#include <cstdio>
#include <cstdlib>
#include <exception>

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
    const std::vector<std::string> errors = info.errors();
    for (const std::string &error : errors)
        std::fprintf(stderr, "stepwell info: %s\n", error.c_str());
    return printed && errors.empty() ? EXIT_SUCCESS : kExitFailed;
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
