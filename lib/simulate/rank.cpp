// SPDX-License-Identifier: Apache-2.0
// A rank before its first step: its tiles, and everything that was trained before.
#include "lib/simulate/rank.h"

#include <algorithm>
#include <utility>

namespace stepwell::simulate {
namespace {

using residency::Access;

// If nothing is gathered ahead, only one tensor is gathered at a time.
uint64_t whole_blocks(const Layout &layout, const Program &program)
{
    const uint32_t tiles = program.ahead_max > 0 ? 1 : layout.tiles_ahead;
    return layout.whole_bytes / tiles / layout.block_bytes;
}

residency::Config config_of(const Layout &layout)
{
    residency::Config config;
    config.block_bytes = layout.block_bytes;
    config.room_farthest = true;  // the layout says where tensors live
    config.tensors_max = static_cast<uint32_t>(layout.specs.size()) + 1;
    const uint64_t device = layout.budgets.device_bytes - layout.working_bytes;
    const uint64_t bytes[] = {device, layout.budgets.host_bytes, layout.budgets.nvme_bytes};
    const residency::Tier tiers[] = {residency::Tier::kDevice, residency::Tier::kHost,
                                     residency::Tier::kNvme};
    for (PlaceId place = 0; place < kSimulatedPlaces; ++place) {
        residency::PlaceConfig at;
        at.tier = tiers[place];
        at.blocks = static_cast<uint32_t>(bytes[place] / layout.block_bytes);
        at.cpu_access = place == kHostPlace;
        at.maps = place != kNvmePlace;  // views need no runs of slots
        if (place == kDevicePlace && layout.gather_ranks > 1)
            at.whole_blocks = static_cast<uint32_t>(layout.whole_bytes / layout.block_bytes);
        config.places.push_back(at);
    }
    return config;
}

}  // namespace

World::Rank::Rank(World &world, uint32_t number, const Layout &layout, const Program &program)
    : world(world),
      number(number),
      core(config_of(layout)),
      ops{std::vector<bool>(program.ops.size()),
          std::vector<Instant>(number == 0 ? program.ops.size() : 0),
          std::vector<Instant>(number == 0 ? program.ops.size() : 0),
          std::vector<OpId>(number == 0 ? program.ops.size() : 0)},
      views(layout.specs.size()),
      gathers(core, kDevicePlace, whole_blocks(layout, program), 0, program.ahead_max),
      tiles(layout.tiles.size())
{
    loop.add(gathers);
    loop.add(*this);
    core.set_victim_policy(&trace);
    if (program.ahead_max > 0)
        lookahead = std::make_unique<schedule::Lookahead>(kHostPlace, kNvmePlace);
}

// Earlier training exists already, so filling takes no time.
Status World::fill(Rank &rank)
{
    for (const residency::TensorSpec &spec : layout_.specs) {
        Result<TensorId> made = rank.core.create(spec);
        if (!made.ok()) return std::move(made.status());
    }
    // Tensors at home at a place are evicted after those that pass through, however many blocks
    // stay there.
    for (const PlaceId place : {kDevicePlace, kHostPlace}) {
        std::vector<residency::Score> scores;
        for (TensorId tensor = 0; tensor < layout_.specs.size(); ++tensor)
            scores.push_back({tensor, layout_.specs[tensor].policy.home == place ? 1.0 : 0.0});
        rank.core.score(place, scores.data(), scores.size());
    }
    for (const TensorId tensor : layout_.filled) STW_TRY(fill_tensor(rank, tensor));
    return add_wholes(rank);
}

Status World::fill_tensor(Rank &rank, TensorId tensor)
{
    const PlaceId home = layout_.specs[tensor].policy.home;
    // By way of the device where the host is smaller than the tensor.
    const uint64_t blocks = layout_.budgets.host_bytes / layout_.block_bytes;
    const bool has_host = blocks * layout_.block_bytes >= layout_.specs[tensor].bytes;
    const Use use{tensor, Access::kWrite, std::min(home, has_host ? kHostPlace : kDevicePlace)};
    residency::FetchAsked asked;
    asked.requests.push_back({tensor, use.access, use.place, 0, layout_.specs[tensor].bytes});
    rank.core.fetch(asked, rank.out);
    STW_TRY(execute(rank));
    if (rank.filled.empty())
        return Status::error(STW_ERROR_BUDGET, "'%s' does not get through the host",
                             layout_.specs[tensor].name.c_str());
    const std::vector<residency::Grant> grants = std::exchange(rank.filled, {});
    residency::Release release;
    release.tensor = tensor;
    release.access = use.access;
    release.place = grants[0].place;
    release.byte_count = layout_.specs[tensor].bytes;
    release.far = true;
    rank.core.release(release, rank.out);
    STW_TRY(execute(rank));
    if (home == kNvmePlace) rank.core.evict(tensor, use.place, rank.out);
    return execute(rank);
}

}  // namespace stepwell::simulate
