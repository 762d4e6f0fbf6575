// SPDX-License-Identifier: Apache-2.0
//
// Reads the command line with CLI11 and says what to do about a wrong one.

#include "options.h"

#include <CLI/CLI.hpp>
#include <cctype>
#include <cmath>
#include <cstdlib>
#include <iterator>
#include <limits>
#include <string_view>
#include <utility>

#ifndef TRAIN_GPT_DEFAULT_TEXT
#define TRAIN_GPT_DEFAULT_TEXT "examples/data/kjv-genesis-to-deuteronomy.txt"
#endif

namespace train_gpt {

namespace {

struct Unit {
    const char *name;
    double bytes;
};
constexpr Unit kUnits[] = {{"", 1},         {"B", 1},        {"KB", 1e3},
                           {"MB", 1e6},     {"GB", 1e9},     {"KIB", 0x1p10},
                           {"MIB", 0x1p20}, {"GIB", 0x1p30}, {"TIB", 0x1p40}};

CLI::Option *add_size(CLI::App &app, const char *name, uint64_t &to, const char *help)
{
    const auto read = [&to](const std::string &text) {
        const std::string wrong = parse_bytes(text, &to);
        if (!wrong.empty()) throw CLI::ValidationError(wrong);
    };
    return app.add_option_function<std::string>(name, read, help)->type_name("SIZE");
}

// CLI11's checks of numbers take nan, and spell their limits with all digits.
CLI::Validator finite(const std::string &what, double least)
{
    const auto check = [what, least](const std::string &text) -> std::string {
        double value = 0;
        const bool is_number = CLI::detail::lexical_cast(text, value) && std::isfinite(value);
        return is_number && value >= least ? "" : "'" + text + "' is no " + what;
    };
    return {check, "", ""};
}

void add_tier_options(CLI::App &app, Options &options)
{
    add_size(app, "--device-bytes", options.device_bytes, "budget of the device tier (64MiB)");
    add_size(app, "--host-bytes", options.host_bytes, "budget of the host tier (64MiB)");
    add_size(app, "--nvme-bytes", options.nvme_bytes,
             "budget of the nvme tier, all directories together; by default what the states need");
    add_size(app, "--block-bytes", options.block_bytes,
             "what tensors move in: 64KiB, 512KiB or 2MiB");
    app.add_option("--device-driver", options.device_driver,
                   "Stepwell's driver of the device tier: a name, or a module's absolute path");
    app.add_option("--nvme", options.nvme, "directory for the nvme tier; may be repeated")
        ->allow_extra_args(false);
    app.add_option("--store", options.store,
                   "keep the states in files of this name in the directories of --nvme, and go on "
                   "with them where they are there already");
    app.add_option("--commit-every", options.commit_every,
                   "keep them after so many steps; by default at the end alone")
        ->needs("--store")
        ->check(CLI::Range(1, 1 << 20));
    app.add_flag("--in-memory", options.in_memory,
                 "the baseline: a device tier that holds everything, no host and no nvme tier");
    app.add_option_function<std::string>(
           "--activations",
           [&options](const std::string &text) {
               options.activations_in_stepwell = text == "stepwell";
           },
           "where the input of each block waits for backward: stepwell (default) or memory")
        ->check(CLI::IsMember({"stepwell", "memory"}));
}

void add_rank_options(CLI::App &app, Options &options)
{
    app.add_flag("--ranks", options.ranks,
                 "train on all ranks of the MPI job that mpirun started this program in: each has "
                 "these budgets, its part of the states and its part of every batch");
    app.add_option("--mpi-module", options.mpi_module,
                   "Stepwell's module for MPI, an absolute path; by default the one installed")
        ->needs("--ranks");
    add_size(app, "--whole-bytes", options.whole_bytes,
             "of the nearest tier's budget, for tensors gathered from all ranks; by default half")
        ->needs("--ranks");
}

void add_model_options(CLI::App &app, Options &options)
{
    const CLI::Range count(1, 1 << 20);
    app.add_option("--text", options.text, "file of bytes to train on")->capture_default_str();
    app.add_option("--steps", options.steps, "steps of the whole run: sets the learning rates")
        ->capture_default_str()
        ->check(count);
    app.add_option("--stop-after", options.stop_after, "end after so many of the steps")
        ->check(count);
    app.add_option("--seed", options.seed)->capture_default_str();
    app.add_option("--layers", options.layers)->capture_default_str()->check(count);
    app.add_option("--width", options.width)->capture_default_str()->check(count);
    app.add_option("--heads", options.heads)->capture_default_str()->check(count);
    app.add_option("--batch", options.batch)->capture_default_str()->check(count);
    app.add_option("--sequence", options.sequence)->capture_default_str()->check(count);
    app.add_option("--micro-batches", options.micro_batches,
                   "parts of a rank's part of --batch that are computed one after the other, their "
                   "gradients added")
        ->capture_default_str();
    app.add_option("--order", options.order,
                   "of micro-batches: horizontal (default), each through all layers before the "
                   "next one, or vertical, all of them through a layer before the next layer, "
                   "which reads parameters less often; the same losses")
        ->check(CLI::IsMember({"horizontal", "vertical"}));
    app.add_option("--threads", options.threads, "of the model's arithmetic and of the update")
        ->capture_default_str()
        ->check(CLI::Range(1, 256));
    app.add_option("--learning-rate", options.learning_rate, "the highest one")
        ->capture_default_str()
        ->check(finite("finite number above 0", std::numeric_limits<double>::denorm_min()));
    app.add_option("--clip", options.clip_norm, "largest norm of all gradients together")
        ->capture_default_str()
        ->check(finite("finite number above 0", std::numeric_limits<double>::denorm_min()));
    app.add_flag("--speculate", options.speculates,
                 "update in backward, and again where the clip is reached; the same losses");
}

void add_output_options(CLI::App &app, Options &options)
{
    app.add_option("--sample", options.sample_bytes, "write so many bytes of text at the end");
    app.add_option("--prompt", options.prompt, "what the sample starts with");
    app.add_option("--compute-seconds", options.compute_seconds,
                   "a step in memory, for the bound in the closing table")
        ->check(finite("finite number of seconds, 0 or more", 0));
    app.add_option("--losses", options.losses_path, "file for the losses, one hex float a line");
    app.add_option("--json", options.json_path, "file for the steps and the table");
    app.add_option("--timeline", options.timeline_path, "file for the runtime's timeline");
    app.add_option("--report", options.report_path, "file for the runtime's report");
    app.add_flag("--quiet", options.quiet, "no line per step");
}

// "" or what is wrong with options that are each right on their own.
std::string check_together(const Options &options)
{
    if (options.width % options.heads != 0)
        return "--width " + std::to_string(options.width) + " is not a multiple of --heads " +
               std::to_string(options.heads) + "; choose a width that the heads divide";
    if (options.micro_batches == 0)
        return "--micro-batches 0 leaves nothing to train on; give a number that divides --batch";
    if (options.batch % options.micro_batches != 0)
        return "--batch " + std::to_string(options.batch) +
               " is not a multiple of --micro-batches " + std::to_string(options.micro_batches) +
               "; each takes as many sequences";
    if (uint64_t{options.batch} * options.sequence > 1u << 20)
        return "--batch times --sequence is more than 1048576 tokens; choose smaller ones";
    if (options.layers > 1000 || options.width > 1u << 16)
        return "at most 1000 --layers and a --width of 65536";
    if (options.in_memory && (!options.nvme.empty() || options.host_bytes != 0))
        return "--in-memory is the device tier alone: leave out --nvme and --host-bytes";
    if (!options.store.empty() && options.nvme.empty())
        return "--store keeps files in a directory: add --nvme DIR";
    if (options.in_memory && options.ranks)
        return "--in-memory is the baseline of one rank: leave out --ranks";
    if (!options.in_memory && options.nvme.empty() && options.device_bytes == 0 &&
        options.host_bytes == 0)
        return "say where the states may live: --nvme DIR (an existing directory on the disk to "
               "use), or --device-bytes and --host-bytes, or --in-memory for the baseline";
    if (!options.in_memory && options.nvme.empty() && options.nvme_bytes != 0)
        return "--nvme-bytes needs a directory: add --nvme DIR";
    if (options.block_bytes != 0 && options.block_bytes != 65536 && options.block_bytes != 524288 &&
        options.block_bytes != 2097152)
        return "--block-bytes is 64KiB, 512KiB or 2MiB";
    const uint64_t block = options.block_bytes != 0 ? options.block_bytes : 2097152;
    for (const auto &[name, bytes] : {std::pair{"--device-bytes", options.device_bytes},
                                      std::pair{"--host-bytes", options.host_bytes}}) {
        if (bytes != 0 && bytes < block)
            return name + (" is " + std::to_string(bytes)) + " bytes, less than one block of " +
                   std::to_string(block) + "; give more, as in 64MiB";
    }
    if (options.sample_bytes != 0 && options.prompt.empty())
        return "--prompt is empty; the model needs at least one byte to go on from";
    return "";
}

}  // namespace

std::string parse_bytes(const std::string &text, uint64_t *bytes_out)
{
    const std::string wrong = "'" + text +
                              "' is not a size; write bytes, or a number with KiB, "
                              "MiB, GiB (or KB, MB, GB): 64MiB";
    size_t digits = 0;
    while (digits < text.size() &&
           (std::isdigit(static_cast<unsigned char>(text[digits])) != 0 || text[digits] == '.'))
        ++digits;
    const std::string numeral = text.substr(0, digits);
    char *end = nullptr;
    const double number = std::strtod(numeral.c_str(), &end);
    if (digits == 0 || *end != '\0') return wrong;
    std::string name;
    for (size_t i = text.find_first_not_of(' ', digits); i < text.size(); ++i)
        name += static_cast<char>(std::toupper(static_cast<unsigned char>(text[i])));
    for (const Unit &unit : kUnits) {
        if (name != unit.name) continue;
        const double bytes = number * unit.bytes;
        if (bytes >= 0x1p63)
            return "'" + text + "' is more than any memory; 64-bit sizes end at 8 EiB";
        *bytes_out = static_cast<uint64_t>(bytes);
        return "";
    }
    return wrong;
}

std::string in_own_words(std::string sentence)
{
    constexpr const char *kNames[][2] = {{"options.devices[0].budget_bytes", "--device-bytes"},
                                         {"options.host_bytes", "--host-bytes"},
                                         {"whole_bytes", "--whole-bytes"},
                                         {"a device's budget_bytes", "--device-bytes"},
                                         {"host_bytes", "--host-bytes"}};
    for (const auto &[theirs, ours] : kNames) {
        const std::string_view name = ours;
        size_t at = 0;
        while ((at = sentence.find(theirs, at)) != std::string::npos) {
            sentence.replace(at, std::string_view(theirs).size(), name);
            at += name.size();
        }
    }
    return sentence;
}

Parsed parse_options(int argc, char **argv, Options *options_out, int *exit_code_out)
{
    Options &options = *options_out;
    options.text = TRAIN_GPT_DEFAULT_TEXT;
    CLI::App app("Trains a GPT whose states may be larger than the memory it is given.",
                 "train_gpt");
    add_tier_options(app, options);
    add_rank_options(app, options);
    add_model_options(app, options);
    add_output_options(app, options);
    try {
        app.parse(argc, argv);
        if (app.count("--order") != 0 && app.count("--micro-batches") == 0)
            throw CLI::ValidationError(
                "--order is the order of several micro-batches: add --micro-batches N");
        const std::string wrong = check_together(options);
        if (!wrong.empty()) throw CLI::ValidationError(wrong);
    } catch (const CLI::ParseError &error) {
        *exit_code_out = app.exit(error) == 0 ? 0 : 2;
        return Parsed::kExit;
    }
    if (!options.in_memory && !options.nvme.empty()) {
        constexpr uint64_t kDefaultBytes = uint64_t{64} << 20;
        if (options.device_bytes == 0) options.device_bytes = kDefaultBytes;
        if (options.host_bytes == 0) options.host_bytes = kDefaultBytes;
    }
    return Parsed::kRun;
}

}  // namespace train_gpt
