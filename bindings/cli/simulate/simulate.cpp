// SPDX-License-Identifier: Apache-2.0
#include "simulate.h"

#include "checkpoint.h"
#include "files.h"
#include "sweep.h"

#include "machine_profile.h"
#include "text.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>

namespace stepwell::cli {
namespace {

using simulate::Machine;
using simulate::Model;

constexpr const char *kThisHost = "this-host";
constexpr size_t kPointsMax = 64;
constexpr double kRanksMax = 1e9;
constexpr double kTokensMax = 1e9;
constexpr double kActivationsMax = 1e15;

struct Sweep {
    std::string key;
    std::vector<std::string> labels;
    std::vector<double> values;
};

// What is wrong is in `why`.
Sweep parse_sweep(const std::string &text, std::string *why)
{
    Sweep sweep;
    std::string_view rest = text;
    sweep.key = next_part(&rest, '=');
    if (sweep.key != "params" && sweep.key != "ranks") {
        *why = "--sweep takes params=... or ranks=..., not '" + printable(text) + "'";
        return sweep;
    }
    while (!rest.empty() && why->empty()) {
        const std::string label(trimmed(next_part(&rest, ',')));
        double value = 0;
        if (!parse_quantity(label, Unit::kCount, &value, why)) break;
        const bool whole = sweep.key == "params" || value == std::floor(value);
        const double most = sweep.key == "params" ? kParametersMax : kRanksMax;
        if (!(value >= 1 && value <= most && whole)) {
            *why = "'" + printable(label) + "' is no number of " +
                   (sweep.key == "params" ? "parameters" : "ranks") + " from 1 to " +
                   quantity_text(most, Unit::kCount);
        }
        sweep.labels.push_back(label);
        sweep.values.push_back(value);
    }
    if (why->empty() && sweep.values.empty()) *why = "there is no value behind --sweep";
    if (sweep.values.size() > kPointsMax) *why = "--sweep takes 64 values at most";
    return sweep;
}

// Of the files there; empty where the folder is not.
std::string names_in(const std::filesystem::path &folder)
{
    std::error_code ignored;
    std::vector<std::string> names;
    for (std::filesystem::directory_iterator at(folder, ignored), end; at != end;
         at.increment(ignored))
        if (at->path().extension() == ".json") names.push_back(at->path().stem());
    std::sort(names.begin(), names.end());
    std::string list;
    for (const std::string &name : names) list += (list.empty() ? "" : ", ") + printable(name);
    return list;
}

// As it is given; else by its name, where examples are installed: beside the command.
std::string found_file(const std::string &name, const std::string &kind)
{
    std::error_code ignored;
    if (name.find('/') != std::string::npos || is_there(name)) return name;
    const auto program = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
    const std::filesystem::path place = program / STEPWELL_DATA_FROM_PROGRAM / (kind + "s");
    for (const char *ending : {"", ".json"})
        if (is_there(place / (name + ending))) return place / (name + ending);
    const std::string names = names_in(place);
    const std::string hint = names.empty() ? "and no examples are installed beside this command"
                                           : "and the examples are " + names;
    throw Refused("There is no " + kind + " file '" + printable(name) + "' here, " + hint +
                  "; give the path of a file.");
}

Model model_of(const SimulateOptions &options)
{
    if (!is_checkpoint(options.model)) return read_model(found_file(options.model, "model"));
    CheckpointUse use;
    use.optimizer = options.optimizer;
    std::string why;
    double value = 0;
    if (!parse_quantity(options.tokens, Unit::kCount, &value, &why) || value < 1 ||
        value > kTokensMax)
        throw Refused("--tokens takes a number from 1 to 1e9, not '" + printable(options.tokens) +
                      "'.");
    use.tokens = value;
    if (!parse_quantity(options.activations, Unit::kBytes, &value, &why) || value > kActivationsMax)
        throw Refused("--activations takes bytes, such as 2GB, not '" +
                      printable(options.activations) + "'.");
    use.activation_bytes = rounded(value);
    return read_checkpoint(options.model, use);
}

Machine machine_of(const SimulateOptions &options)
{
    if (options.machine == kThisHost) {
        const std::string profile = profile_path_usual();
        if (!is_there(profile))
            throw Refused("There is no profile of this host; 'stepwell tune DIRECTORY' writes it.");
        return read_profile(profile, options.gpu_memory, options.gpu_flops);
    }
    const std::string file = found_file(options.machine, "machine");
    const Located root = read_located(file);
    if (is_profile(root)) return read_profile(file, options.gpu_memory, options.gpu_flops);
    if (!options.gpu_memory.empty() || !options.gpu_flops.empty())
        throw Refused("--gpu-memory and --gpu-flops are for a profile of 'stepwell tune'; '" +
                      printable(file) + "' says both itself.");
    return parse_machine(root, file);
}

simulate::Options engine_options(const SimulateOptions &options)
{
    simulate::Options engine;
    engine.ranks = options.ranks;
    engine.schedule.exposed_update = options.exposed_update;
    engine.schedule.overlap = !options.no_overlap;
    return engine;
}

// The library's sentences have no capital and no full stop.
std::string sentence(Status &status)
{
    std::string text = status.sentence();
    if (!text.empty()) text[0] = static_cast<char>(std::toupper(text[0]));
    return text + ".";
}

Point point_of(const Model &model, const Machine &machine, const simulate::Options &options)
{
    Point point;
    Result<simulate::Answer> made = simulate::simulate(model, machine, options);
    if (made.ok())
        point.answer = made.take();
    else
        point.refused = sentence(made.status());
    return point;
}

std::vector<Point> swept(const Model &model, const Machine &machine, const Sweep &sweep,
                         simulate::Options options, const SimulateProgress &progress)
{
    std::vector<Point> points;
    options.largest = false;
    for (size_t i = 0; i < sweep.values.size(); ++i) {
        progress(sweep.key + "=" + sweep.labels[i],
                 static_cast<double>(i) / static_cast<double>(sweep.values.size()));
        Point point;
        if (sweep.key == "ranks") {
            options.ranks = static_cast<uint32_t>(sweep.values[i]);
            point = point_of(model, machine, options);
        } else {
            Result<Model> made = simulate::scaled(model, sweep.values[i]);
            if (made.ok())
                point = point_of(made.value(), machine, options);
            else
                point.refused = sentence(made.status());
        }
        point.value = sweep.values[i];
        point.label = sweep.labels[i];
        points.push_back(std::move(point));
    }
    return points;
}

void write_plot(const std::string &file, const std::string &text)
{
    std::ofstream stream(file, std::ios::trunc);
    stream << text;
    stream.close();
    if (!stream) throw Refused("The plot cannot be written to '" + printable(file) + "'.");
}

}  // namespace

std::string why_no_sweep(const std::string &sweep)
{
    std::string why;
    parse_sweep(sweep, &why);
    return why;
}

Simulated run_simulate(const SimulateOptions &options, const SimulateProgress &progress)
{
    const Model model = model_of(options);
    const Machine machine = machine_of(options);
    const simulate::Options engine = engine_options(options);
    if (options.sweep.empty()) {
        const Point point = point_of(model, machine, engine);
        if (!point.refused.empty()) throw Refused(point.refused);
        return {options.json ? points_json(model.name, machine, {point})
                             : answer_text(model.name, machine, point.answer),
                true};
    }
    std::string why;
    const Sweep sweep = parse_sweep(options.sweep, &why);
    const std::vector<Point> points = swept(model, machine, sweep, engine, progress);
    if (!options.plot.empty())
        write_plot(options.plot, sweep_svg(model.name + " on " + machine.name, sweep.key, points));
    const bool answers = std::any_of(points.begin(), points.end(),
                                     [](const Point &point) { return point.refused.empty(); });
    return {options.json ? points_json(model.name, machine, points) : sweep_text(sweep.key, points),
            answers};
}

std::string run_estimate(const SimulateOptions &options)
{
    const Model model = model_of(options);
    const Machine machine = machine_of(options);
    Result<simulate::Estimate> made = simulate::estimate(model, machine, engine_options(options));
    if (!made.ok()) throw Refused(sentence(made.status()));
    return options.json ? estimate_json(model.name, machine, made.value())
                        : estimate_text(model.name, machine, made.value());
}

}  // namespace stepwell::cli
