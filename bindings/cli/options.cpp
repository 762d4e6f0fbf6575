// SPDX-License-Identifier: Apache-2.0
// CLI11 finds the words; those it does not know are told here, beside those that are known.
#include "options.h"

#include "text.h"

#include <algorithm>

#include <CLI/CLI.hpp>

namespace stepwell::cli {

namespace {

constexpr const char *kKnown =
    "it knows info, tune, bench, report, top, simulate, estimate, version, "
    "--version and --help";
constexpr const char *kInfoKnows = "it knows --json and --help, and takes directories";
constexpr const char *kTuneKnows =
    "it knows --output, --seconds, --size, --json and --help, and takes directories";
constexpr const char *kBenchKnows =
    "it knows --seconds, --size, --json and --help, and takes one directory";
constexpr const char *kReportKnows = "it knows --output and --help, and takes one report";
constexpr const char *kTopKnows =
    "it knows --once, --json and --help, and takes the number of a process";
constexpr const char *kSimulateKnows =
    "it knows --ranks, --sweep, --output, --exposed-update, --no-overlap, --gpu-memory, "
    "--gpu-flops, --optimizer, --tokens, --activations, --json and --help, and takes a model and a "
    "machine";
constexpr const char *kEstimateKnows =
    "it knows --ranks, --exposed-update, --no-overlap, --gpu-memory, --gpu-flops, --optimizer, "
    "--tokens, --activations, --json and --help, and takes a model and a machine";
constexpr const char *kVersionKnows = "it knows --help alone";
constexpr uint64_t kRanksMax = 1'000'000'000;
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

// "" or what is wrong; a pid_t is what the kernel takes.
std::string take_process(Options *options)
{
    const auto number = options->paths.size() == 1 ? parse_number(options->paths[0]) : std::nullopt;
    if (!number || *number == 0 || *number > INT32_MAX)
        return "stepwell top needs the number of one process, as ps shows it.";
    options->process = *number;
    return "";
}

struct Words {
    std::string seconds;
    std::string size;
    std::string ranks;
    // An empty word is one that was given.
    std::vector<const CLI::Option *> ranks_options;
    const CLI::Option *sweep_option = nullptr;
};

void add_simulate(CLI::App *app, Words *words, Options *options)
{
    SimulateOptions &simulate = options->simulate;
    app->add_option(
        "MODEL", simulate.model,
        "a model file, the name of an example, or a checkpoint: a file of safetensors, or "
        "a directory of them");
    app->add_option("MACHINE", simulate.machine,
                    "a machine file, the name of an example, a profile of tune, or this-host");
    words->ranks_options.push_back(
        app->add_option("--ranks", words->ranks, "of the machine's GPUs so many, not all"));
    app->add_flag("--exposed-update", simulate.exposed_update,
                  "the optimizer between two steps, whatever the model says");
    app->add_flag("--no-overlap", simulate.no_overlap,
                  "nothing is fetched, gathered or summed beside the computation");
    app->add_option("--gpu-memory", simulate.gpu_memory, "with a profile: 24GB");
    app->add_option("--gpu-flops", simulate.gpu_flops, "with a profile: 150TFLOPS");
    app->add_option("--optimizer", simulate.optimizer,
                    "of a checkpoint: adamw, momentum, adagrad, sgd");
    app->add_option("--tokens", simulate.tokens, "of a checkpoint: in a step, on a GPU; 2048");
    app->add_option("--activations", simulate.activations,
                    "of a checkpoint: what a step saves for backward, 4GB; 0");
    app->add_flag("--json", simulate.json, "the same as JSON");
}

// "" or what is wrong.
std::string check_simulate(const std::string &who, bool estimates, const Words &words,
                           Options *options)
{
    SimulateOptions &simulate = options->simulate;
    if (estimates && simulate.machine.empty()) simulate.machine = "this-host";
    if (simulate.model.empty() || simulate.machine.empty())
        return who + " needs a model" + (estimates ? "" : " and a machine") +
               "; give a file, or the name of an example.";
    if (std::any_of(words.ranks_options.begin(), words.ranks_options.end(),
                    [](const CLI::Option *option) { return option->count() > 0; })) {
        const std::optional<uint64_t> ranks = parse_number(words.ranks);
        if (!ranks || *ranks < 1 || *ranks > kRanksMax)
            return who + " takes --ranks from 1 on, not '" + printable(words.ranks) + "'.";
        simulate.ranks = static_cast<uint32_t>(*ranks);
    }
    if (estimates) return "";
    simulate.plot = options->output;
    const bool sweeps = words.sweep_option->count() > 0;
    const std::string why = sweeps ? why_no_sweep(simulate.sweep) : "";
    if (!why.empty()) return who + ": " + why + ".";
    if (!simulate.plot.empty() && simulate.sweep.empty())
        return who + " plots a sweep; --output needs --sweep.";
    return "";
}

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

// "" or what is wrong with what the command was given.
std::string check_command(const Words &words, Options *options)
{
    const std::string why = check_paths(*options);
    if (!why.empty()) return why;
    if (options->command == Command::kTop) return take_process(options);
    if (options->command == Command::kSimulate)
        return check_simulate("stepwell simulate", false, words, options);
    if (options->command == Command::kEstimate)
        return check_simulate("stepwell estimate", true, words, options);
    return "";
}

struct Subcommand {
    CLI::App *app;
    Command command;
    const char *known;
};
using Subcommands = std::vector<Subcommand>;

CLI::App *add_json(CLI::App *app, Options *options)
{
    app->add_flag("--json", options->json, "the same as JSON");
    return app;
}

// Of this machine.
void add_measuring(CLI::App *app, Words *words, Options *options, Subcommands *all)
{
    CLI::App *info = app->add_subcommand(
        "info", "The machine, the drivers that work on it, and every limit that matters with the "
                "command that lifts it");
    info->add_option("DIRECTORY", options->paths, "directories that an nvme tier could be in")
        ->type_name("");
    CLI::App *tune = app->add_subcommand(
        "tune", "Measure directories and memory, and write the machine profile that the library "
                "reads by itself");
    tune->add_option("DIRECTORY", options->paths,
                     "directories that an nvme tier will be in, 1 to 8")
        ->type_name("");
    tune->add_option("--output", options->output, "where the profile goes, not to the usual file")
        ->type_name("FILE");
    CLI::App *bench = app->add_subcommand(
        "bench", "What the library reaches in a directory, beside what the drive gives");
    bench->add_option("DIRECTORY", options->paths, "one directory, on the drive")->type_name("");
    for (CLI::App *measures : {tune, bench}) {
        measures->add_option("--seconds", words->seconds, "how long, about: 1 to 3600")
            ->type_name("N");
        measures->add_option("--size", words->size, "bytes written there at a time: 32m to 64g")
            ->type_name("BYTES");
    }
    all->push_back({add_json(info, options), Command::kInfo, kInfoKnows});
    all->push_back({add_json(tune, options), Command::kTune, kTuneKnows});
    all->push_back({add_json(bench, options), Command::kBench, kBenchKnows});
}

// Of programs that ran or run.
void add_watching(CLI::App *app, Options *options, Subcommands *all)
{
    CLI::App *report = app->add_subcommand(
        "report", "A report that stw_report_write has written, as a page that needs nothing else");
    report->add_option("REPORT", options->paths, "the report, JSON")->type_name("");
    report
        ->add_option("-o,--output", options->output,
                     "the page; else the report's name with .html; -: standard output")
        ->type_name("FILE");
    CLI::App *top = app->add_subcommand(
        "top", "What a running process does with its tiers, once a second, until it ends");
    top->add_option("PID", options->paths, "the number of the process")->type_name("");
    top->add_flag("--once", options->once, "show it once and end");
    all->push_back({report, Command::kReport, kReportKnows});
    all->push_back({add_json(top, options), Command::kTop, kTopKnows});
}

// Of machines that may not be at hand.
void add_simulating(CLI::App *app, Words *words, Options *options, Subcommands *all)
{
    CLI::App *simulate = app->add_subcommand(
        "simulate", "How fast a model would train on a machine, by the scheduler itself in virtual "
                    "time");
    words->sweep_option = simulate
                              ->add_option("--sweep", options->simulate.sweep,
                                           "a table over params=0.5T,1T,... or ranks=64,128,...")
                              ->type_name("KEY=VALUES");
    simulate->add_option("-o,--output", options->output, "a file for the sweep as a plot, SVG")
        ->type_name("FILE");
    CLI::App *estimate = app->add_subcommand(
        "estimate", "The bytes of a model, the smallest budgets to train it at all and without "
                    "stall, and the time of a step");
    for (CLI::App *asks : {simulate, estimate}) add_simulate(asks, words, options);
    all->push_back({simulate, Command::kSimulate, kSimulateKnows});
    all->push_back({estimate, Command::kEstimate, kEstimateKnows});
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
    Subcommands commands;
    add_measuring(&app, &words, &options, &commands);
    add_watching(&app, &options, &commands);
    add_simulating(&app, &words, &options, &commands);
    commands.push_back({app.add_subcommand("version", "The version of the library and its ABI"),
                        Command::kVersion, kVersionKnows});
    for (const Subcommand &command : commands) command.app->allow_extras();
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
    for (const Subcommand &command : commands) {
        if (!command.app->parsed()) continue;
        const std::string who = "stepwell " + command.app->get_name();
        options.command = command.command;
        parsed.error = command.app->remaining().empty()
                           ? take_values(who, words, &options)
                           : unknown(who, command.app->remaining(), command.known);
    }
    if (parsed.error.empty()) parsed.error = check_command(words, &options);
    return parsed;
}

}  // namespace stepwell::cli
