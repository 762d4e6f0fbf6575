// SPDX-License-Identifier: Apache-2.0
// The machine and the tensors of a seed.
#include "tests/ranks/setup.h"

#include <algorithm>

namespace stepwell::ranks {
namespace {

constexpr double kGigabyte = 1.0;  // per second, in bytes per ns

uint32_t blocks_of(uint64_t bytes)
{
    return static_cast<uint32_t>((bytes + kBlockBytes - 1) / kBlockBytes);
}

Policy choose_policy(const Setup &setup, Random &random)
{
    Policy policy;
    for (PlaceId place = 0; place < kPlaces; ++place) {
        if (setup.config.places[place].blocks > 0) policy.allowed |= 1u << place;
    }
    const PlaceId far = (policy.allowed >> kNvme & 1) != 0 ? kNvme : kHost;
    policy.home = far;
    if (random.chance(25) && (policy.allowed >> kHost & 1) != 0) policy.home = kHost;
    if (random.chance(10)) policy.home = kDevice;
    if (random.chance(30)) policy.retention = static_cast<Retention>(random.between(1, 2));
    policy.priority = static_cast<int32_t>(random.below(3));
    return policy;
}

TensorPlan choose_tensor(const Setup &setup, Random &random, uint32_t number)
{
    TensorPlan plan;
    TensorSpec &spec = plan.spec;
    spec.name = format_text("t%u", number);
    spec.policy = choose_policy(setup, random);
    spec.role = static_cast<uint32_t>(random.below(3));
    spec.align_bytes = kPieceBytes;
    const uint64_t kind = random.below(10);
    if (kind < 2) {
        spec.bytes = random.between(1, 2) * kPieceBytes;  // shares its block with others
        spec.policy.retention = Retention::kDefault;
        spec.policy.priority = 0;
        spec.neighbour = random.below(2);
    } else {
        const uint64_t blocks = kind < 5 ? 1 : random.between(1, 5);
        spec.bytes = blocks * kBlockBytes;
        if (random.chance(30)) spec.bytes -= random.between(1, 2) * kPieceBytes;
    }
    spec.reads_zero = random.chance(15);
    plan.passing = random.chance(15);
    plan.written = !plan.passing && !random.chance(10);
    return plan;
}

void choose_places(Random &random, Config *config)
{
    config->block_bytes = kBlockBytes;
    config->tensors_max = 96;
    config->writebacks_max = static_cast<uint32_t>(random.between(1, 8));
    const bool has_nvme = random.chance(85);
    const bool has_host = !has_nvme || random.chance(75);
    PlaceConfig device;
    device.tier = Tier::kDevice;
    device.blocks =
        static_cast<uint32_t>(random.chance(70) ? random.between(12, 32) : random.between(40, 90));
    device.maps = random.chance(60);
    device.cpu_access = !has_host || random.chance(20);
    PlaceConfig host;
    host.tier = Tier::kHost;
    host.blocks = has_host ? static_cast<uint32_t>(random.between(8, 40)) : 0;
    host.cpu_access = true;
    host.maps = random.chance(30);
    PlaceConfig nvme;
    nvme.tier = Tier::kNvme;
    nvme.blocks = has_nvme ? 1 : 0;  // set when the tensors are known
    config->places = {device, host, nvme};
}

void choose_links(Random &random, Setup *setup)
{
    const auto some = [&](double least, uint64_t times) {
        return (least + static_cast<double>(random.below(times * 10)) / 10) * kGigabyte;
    };
    const std::array<uint32_t, 3> sharers{1, 2, setup->ranks};
    const uint32_t disk = sharers[random.below(3)];
    const uint32_t bus = sharers[random.below(2)];
    setup->links[kDiskRead] = {some(2, 5), random.between(20, 120) * 1000, 4, disk};
    setup->links[kDiskWrite] = {some(1, 4), random.between(20, 120) * 1000, 4, disk};
    setup->links[kToDevice] = {some(8, 20), random.between(2, 20) * 1000, 2, bus};
    setup->links[kFromDevice] = {some(8, 20), random.between(2, 20) * 1000, 2, bus};
    for (LinkSetup &link : setup->links) link.depth = static_cast<uint32_t>(random.between(1, 6));
}

// What policies that plan are computed for: one rank's view of it.
void describe_machine(Setup *setup)
{
    setup->machine.config = setup->config;
    const auto add = [&](PlaceId from, PlaceId to, LinkKind kind) {
        if (setup->config.places[from].blocks == 0 || setup->config.places[to].blocks == 0) return;
        const LinkSetup &link = setup->links[kind];
        schedule::Link one;
        one.from = from;
        one.to = to;
        one.bytes_per_s = link.bytes_per_ns * 1e9;
        one.latency_ns = link.latency_ns;
        setup->machine.links.push_back(one);
    };
    add(kNvme, kHost, kDiskRead);
    add(kNvme, kDevice, kDiskRead);
    add(kHost, kNvme, kDiskWrite);
    add(kDevice, kNvme, kDiskWrite);
    add(kHost, kDevice, kToDevice);
    add(kDevice, kHost, kFromDevice);
}

}  // namespace

Setup choose_setup(const Options &options, Random &random)
{
    Setup setup;
    setup.ranks = static_cast<uint32_t>(random.between(2, kRanksMax));
    const bool halves = setup.ranks % 2 == 0 && setup.ranks > 2 && random.chance(50);
    setup.group_ranks = halves ? setup.ranks / 2 : setup.ranks;
    choose_places(random, &setup.config);
    choose_links(random, &setup);
    const uint64_t tensors = random.between(6, 22);
    uint32_t blocks = 0;
    for (uint32_t i = 0; i < tensors; ++i) {
        setup.tensors.push_back(choose_tensor(setup, random, i));
        blocks += blocks_of(setup.tensors.back().spec.bytes);
    }
    // Room for all in the farthest place: as much as is promised, and not always more.
    PlaceConfig &nvme = setup.config.places[kNvme];
    PlaceConfig &host = setup.config.places[kHost];
    const auto spare = static_cast<uint32_t>(random.below(12));
    if (nvme.blocks > 0) nvme.blocks = blocks + spare;
    if (nvme.blocks == 0) host.blocks = std::max(host.blocks, blocks + spare);
    const bool faults = options.faults && random.chance(85);
    setup.faults_max = faults ? static_cast<uint32_t>(random.between(2, 160)) : 0;
    setup.fault_gap_us = static_cast<uint32_t>(random.between(300, 6000));
    setup.loader_gap_us = static_cast<uint32_t>(random.between(30, 400));
    describe_machine(&setup);
    write_program(options, random, &setup);
    return setup;
}

std::string describe(const Setup &setup)
{
    std::string text = format_text("%u ranks in groups of %u; ", setup.ranks, setup.group_ranks);
    static const char *const kNames[] = {"device", "host", "nvme"};
    for (PlaceId place = 0; place < kPlaces; ++place) {
        const PlaceConfig &at = setup.config.places[place];
        text += format_text("%s %u blocks%s%s, ", kNames[place], at.blocks, at.maps ? " maps" : "",
                            at.cpu_access ? " cpu" : "");
    }
    static const char *const kLinks[] = {"disk read", "disk write", "to device", "from device"};
    for (uint32_t kind = 0; kind < kLinkKinds; ++kind) {
        const LinkSetup &link = setup.links[kind];
        text += format_text("%s %.1f GB/s for %u ranks, ", kLinks[kind], link.bytes_per_ns,
                            link.sharers);
    }
    return text + format_text("%zu tensors, %zu operations, %u faults, one each %u us",
                              setup.tensors.size(), setup.program.size(), setup.faults_max,
                              setup.fault_gap_us);
}

}  // namespace stepwell::ranks
