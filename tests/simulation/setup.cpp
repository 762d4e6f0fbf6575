// SPDX-License-Identifier: Apache-2.0
// Choices made before a run.
#include "tests/simulation/setup.h"

namespace stepwell::simulation {
namespace {

uint32_t choose_blocks(Random &random)
{
    const uint64_t size = random.below(3);
    return static_cast<uint32_t>(size == 0   ? random.between(2, 5)
                                 : size == 1 ? random.between(6, 14)
                                             : random.between(24, 48));
}

Policy choose_policy(const Setup &setup, Random &random)
{
    Policy policy;
    policy.allowed = setup.all_places;
    if (random.chance(30)) {
        // Some places; where nothing lies behind them, one alone.
        const uint32_t some = static_cast<uint32_t>(random.next()) & setup.all_places;
        policy.allowed = some | (1u << setup.farthest);
        if ((policy.allowed & setup.viewable) == 0) policy.allowed = setup.all_places;
        if (random.chance(20)) policy.allowed = 1;
    }
    do {
        policy.home = static_cast<PlaceId>(random.below(setup.config.places.size()));
    } while ((policy.allowed & (1u << policy.home)) == 0);
    if (random.chance(40)) policy.retention = static_cast<Retention>(random.between(1, 3));
    policy.priority = static_cast<int32_t>(random.below(3));
    return policy;
}

}  // namespace

Setup choose_setup(const Options &options, Random &random)
{
    Setup setup;
    Config &config = setup.config;
    config.block_bytes = kBlockBytes;
    config.tensors_max = 64;
    config.writebacks_max = static_cast<uint32_t>(random.between(1, 8));
    const uint32_t devices = random.chance(25) ? 2 : 1;
    const bool maps = random.chance(50);
    for (uint32_t device = 0; device < devices; device++) {
        PlaceConfig place;
        place.tier = Tier::kDevice;
        place.device = device;
        place.blocks = choose_blocks(random);
        place.maps = place.cpu_access = maps;
        if (device == 0 && random.chance(30)) {
            place.whole_blocks = static_cast<uint32_t>(random.between(2, 5));
            place.blocks += place.whole_blocks;
        }
        config.places.push_back(place);
    }
    const bool has_nvme = random.chance(75);
    const bool has_host = !has_nvme || random.chance(65);
    PlaceConfig host;
    host.blocks = has_host ? choose_blocks(random) : 0;
    if (!has_nvme) host.blocks += 8;
    host.cpu_access = true;
    config.places.push_back(host);
    PlaceConfig nvme;
    nvme.tier = Tier::kNvme;
    nvme.blocks = has_nvme ? static_cast<uint32_t>(random.between(12, 100)) : 0;
    config.places.push_back(nvme);
    // Of numbers of their own, as aliases below.
    Random full(options.seed ^ 0x66756c6c);
    setup.full = full.chance(25);
    for (PlaceConfig &place : config.places) {
        if (!setup.full || place.blocks == 0) continue;
        place.blocks = place.whole_blocks + static_cast<uint32_t>(full.between(3, 9));
    }

    for (PlaceId place = 0; place < config.places.size(); place++) {
        const PlaceConfig &at = config.places[place];
        if (at.blocks == 0) continue;
        setup.all_places |= 1u << place;
        setup.farthest = place;
        if (at.tier == Tier::kNvme) continue;
        setup.viewable |= 1u << place;
        if (at.cpu_access) setup.cpu |= 1u << place;
    }
    for (int i = 0; i < 4; i++) setup.policies.push_back(choose_policy(setup, random));
    const uint32_t rate = random.chance(50) ? 0 : static_cast<uint32_t>(random.between(500, 40000));
    setup.faults.per_million =
        options.fault_per_million == kBySeed ? rate : options.fault_per_million;
    setup.faults.rot_per_million = setup.faults.per_million / 10;
    setup.faults.stall_percent = random.chance(30) ? 5 : 0;
    setup.faults.orders = random.chance(50);
    // Of their own numbers, so that the other runs of a seed stay what they were.
    setup.aliases = maps && config.places[0].whole_blocks == 0 && Random(~options.seed).chance(50);
    return setup;
}

TensorSpec choose_tensor(const Setup &setup, Random &random, uint32_t number)
{
    TensorSpec spec;
    spec.name = format_text("t%u", number);
    spec.policy = setup.policies[random.below(setup.policies.size())];
    spec.role = static_cast<uint32_t>(random.below(2));
    spec.neighbour = random.below(2);
    spec.align_bytes = 64u << random.below(4);
    spec.reads_zero = random.chance(20);
    spec.no_packing = random.chance(10);
    const uint64_t kind = random.below(10);
    if (kind < 5) {
        spec.bytes = random.between(1, 1500);
    } else if (kind < 7) {
        spec.bytes = kBlockBytes;
    } else {
        spec.bytes = random.between(kBlockBytes + 1, 6 * kBlockBytes);
        if (random.chance(30)) spec.bytes -= spec.bytes % kBlockBytes;
    }
    // Of an address that is fixed, as the shell has it.
    spec.no_packing |= setup.aliases && random.chance(60);
    spec.guarded = setup.aliases && random.chance(75);
    const uint32_t whole_blocks = setup.config.places[0].whole_blocks;
    if (whole_blocks > 0 && random.chance(15)) {
        spec.agreed = true;
        spec.reads_zero = false;
        spec.policy = {};
        spec.policy.home = 0;
        spec.policy.allowed = 1;
        spec.bytes = random.between(1, uint64_t{whole_blocks} * kBlockBytes);
    }
    return spec;
}

PlaceId choose_place(const Setup &setup, Random &random, const Policy &policy)
{
    const bool any = (setup.cpu & policy.allowed) != 0;
    if (any && random.chance(15)) return kAnyCpuPlace;
    while (true) {
        const PlaceId place = static_cast<PlaceId>(random.below(setup.config.places.size()));
        if ((setup.viewable & policy.allowed & (1u << place)) != 0) return place;
    }
}

std::string describe(const Setup &setup)
{
    std::string text;
    for (const PlaceConfig &place : setup.config.places) {
        static const char *const kNames[] = {"", "device", "host", "nvme"};
        text += format_text("%s %u blocks%s%s (whole %u), ", kNames[static_cast<int>(place.tier)],
                            place.blocks, place.maps ? " maps" : "", place.cpu_access ? " cpu" : "",
                            place.whole_blocks);
    }
    return text + format_text("%u faults per million%s", setup.faults.per_million,
                              setup.aliases ? ", aliases" : "");
}

}  // namespace stepwell::simulation
