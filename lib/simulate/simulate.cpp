// SPDX-License-Identifier: Apache-2.0
#include "lib/simulate/simulate.h"

#include <algorithm>

namespace stepwell::simulate {
namespace {

// The first fills caches and is learned from; the second begins with updates, and is learned too;
// the third is the first with prefetches made for it; the fourth is measured.
constexpr uint32_t kSteps = 4;
constexpr uint32_t kStepsAfterMiss = 3;  // of these the last is as fast as one without a miss

// Of rank 0, in one or more steps.
struct Measured {
    double step_s = 0;
    std::array<double, kCauses> stall_s = {};
    std::vector<double> link_bytes;

    void add(const Measured &other, double times)
    {
        step_s += times * other.step_s;
        for (uint32_t cause = 0; cause < kCauses; ++cause)
            stall_s[cause] += times * other.stall_s[cause];
        link_bytes.resize(other.link_bytes.size());
        for (size_t i = 0; i < link_bytes.size(); ++i) link_bytes[i] += times * other.link_bytes[i];
    }
};

Measured measured(const StepResult &step)
{
    Measured all;
    all.step_s = static_cast<double>(step.step_ns) / kNsPerSecond;
    for (uint32_t cause = 0; cause < kCauses; ++cause)
        all.stall_s[cause] = static_cast<double>(step.stall_ns[cause]) / kNsPerSecond;
    all.link_bytes = step.link_bytes;
    return all;
}

// What a miss costs: the steps after one, less as many without. The step that misses ends with the
// verdict, so it is the next one that waits for updates made again.
Result<Measured> miss_cost(const Machine &machine, const Layout &layout, const Model &model,
                           Schedule schedule, const Measured &hit)
{
    schedule.missed_step = kSteps - 2;
    const Program program =
        write_program(layout, model, machine, schedule, kSteps - 1 + kStepsAfterMiss);
    const WorldOptions folded;
    World world(machine, layout, program, folded);
    STW_TRY(world.run());
    Measured cost;
    for (uint32_t step = kSteps - 1; step < kSteps - 1 + kStepsAfterMiss; ++step) {
        cost.add(measured(world.result(0).steps[step]), 1);
        cost.add(hit, -1);
    }
    return cost;
}

void add_links(const Measured &step, const Machine &machine, uint32_t ranks, Answer *answer)
{
    for (size_t i = 0; i < machine.links.size(); ++i) {
        const Link &link = machine.links[i];
        LinkLoad load;
        load.name = link.name;
        load.bytes = step.link_bytes[i];
        const uint32_t sharers =
            std::min(machine.sharers(link.per), std::min(ranks, machine.gpus_per_node));
        const double carries = link.bytes_per_s * link.stripes * answer->step_s;
        load.busy = load.bytes * sharers / carries;
        answer->links.push_back(load);
    }
}

// What is counted as FLOP of a step.
std::string convention_of(const Model &model)
{
    if (!model.is_transformer)
        return model.recomputes ? "4 times the forward pass, 1 of them recomputed"
                                : "3 times the forward pass";
    std::string text = model.recomputes ? "8 " : "6 ";
    text += model.transformer.experts > 1 ? "an active parameter" : "a parameter";
    text += model.recomputes ? " and token, 2 of them recomputed" : " and token";
    if (model.transformer.lora_rank > 0) text += ", of frozen ones 2 less";
    return text + "; attention's scores are not counted";
}

void add_times(const World &world, const Measured &step, const Model &model, const Options &options,
               Answer *answer)
{
    const RankResult &rank = world.result(0);
    answer->step_s = step.step_s;
    answer->gathers = rank.steps.back().gathers;
    answer->stall_s = step.stall_s;
    answer->flops_per_gpu = model.step_flops() / answer->step_s;
    answer->useful_flops_per_gpu = model.useful_flops() / answer->step_s;
    answer->flop_convention = convention_of(model);
    for (PlaceId place = 0; place < kSimulatedPlaces; ++place)
        answer->peak_bytes[place] = rank.peak_blocks[place] * answer->block_bytes;
    for (uint32_t i = 0; i < (options.folded ? 1 : answer->ranks); ++i)
        answer->rank_step_ns.push_back(world.result(i).steps.back().step_ns);
}

// The machine with only that many GPUs: complete nodes, or a part of one.
Machine part_of(const Machine &machine, uint32_t ranks)
{
    Machine part = machine;
    part.nodes = std::max(1u, (ranks + machine.gpus_per_node - 1) / machine.gpus_per_node);
    if (ranks >= machine.gpus_per_node) return part;
    // GPUs that are used have all of a link that they share with unused ones.
    part.gpus_per_switch = std::min(machine.gpus_per_switch, ranks);
    part.gpus_per_socket = std::min(machine.gpus_per_socket, ranks);
    part.gpus_per_node = ranks;
    return part;
}

}  // namespace

Result<Answer> simulate(const Model &given, const Machine &machine, const Options &options)
{
    Model model = given;
    if (options.schedule.exposed_update) model.update = Update::kExposed;
    const uint32_t ranks = options.ranks == 0 ? machine.gpus() : options.ranks;
    if (ranks > machine.gpus()) {
        return Status::error(STW_ERROR_INVALID,
                             "%u ranks are more than the machine has GPUs, which is %u", ranks,
                             machine.gpus());
    }
    if (ranks > machine.gpus_per_node && ranks % machine.gpus_per_node != 0) {
        return Status::error(
            STW_ERROR_INVALID,
            "%u ranks are no whole nodes: beyond one node's %u GPUs it has to be a "
            "multiple of them",
            ranks, machine.gpus_per_node);
    }
    const Machine used = part_of(machine, ranks);
    const Budgets budgets = options.has_budgets ? options.budgets : budgets_of(used);
    // A search over budgets does not need the explanation of why one is too small.
    Result<Layout> made = options.has_budgets
                              ? lay_out(model, used, ranks, budgets, options.blocks_max)
                              : lay_out_told(model, used, ranks, budgets, options.blocks_max);
    if (!made.ok()) return std::move(made.status());
    const Layout &layout = made.value();
    const Program program = write_program(layout, model, used, options.schedule, kSteps);
    WorldOptions world_options;
    world_options.folded = options.folded;
    world_options.slowness = options.slowness;
    World world(used, layout, program, world_options);
    STW_TRY(world.run());
    Answer answer;
    Measured step = measured(world.result(0).steps.back());
    answer.hit_step_s = step.step_s;
    for (const Tile &tile : layout.tiles)
        if (tile.kept != residency::kNone) answer.speculated += tile.parameters;
    if (answer.speculated > 0 && model.miss_rate > 0) {
        Result<Measured> cost = miss_cost(used, layout, model, options.schedule, step);
        if (!cost.ok()) return std::move(cost.status());
        answer.miss_step_s = step.step_s + cost.value().step_s;
        step.add(cost.value(), model.miss_rate);
    }
    answer.ranks = ranks;
    answer.parameters = model.parameters();
    answer.compute_s = static_cast<double>(program.compute_ns) / kNsPerSecond;
    answer.bound = bound_of(layout, model, used);
    answer.budgets = budgets;
    answer.block_bytes = layout.block_bytes;
    answer.tensors = layout.specs.size();
    answer.events = world.events();
    std::copy(std::begin(layout.rest_bytes), std::end(layout.rest_bytes), answer.rest_bytes);
    add_times(world, step, model, options, &answer);
    add_links(step, used, ranks, &answer);
    if (options.largest) {
        const uint64_t layers = layers_max(model, used, ranks, budgets, options.blocks_max);
        answer.parameters_max = layers == 0 ? 0 : with_layers(model, layers).parameters();
    }
    return answer;
}

}  // namespace stepwell::simulate
