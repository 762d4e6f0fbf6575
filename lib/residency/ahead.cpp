// SPDX-License-Identifier: Apache-2.0
// What a plan asks of the core: what a fetch would have to move, whether there is room, and the
// write-back of what will not be needed for long while nothing else wants the disk.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

#include <algorithm>

namespace stepwell::residency {
namespace {

constexpr uint32_t kCleanedMax = 4;  // in flight at once, so that a read that comes waits for few
constexpr uint32_t kLookedAtMax = 256;
constexpr uint32_t kPlannedLookedAtMax = 2048;

}  // namespace

Lack Core::lack(const Request &request) const
{
    Lack lack;
    if (request.tensor >= tensors_.size() || !tensors_[request.tensor].alive) return lack;
    const Tensor &tensor = tensors_[request.tensor];
    if (request.byte_count == 0 || request.byte_begin + request.byte_count > tensor.spec.bytes) {
        return lack;
    }
    lack.place = request.place == kAnyCpuPlace ? choose_cpu_place(request) : request.place;
    if (lack.place == kNoPlace || !may_rest_at(request.tensor, lack.place)) return lack;
    lack.readable = tensor.contents == Contents::kValid && !tensor.spec.agreed;
    lack.busy = tensor.writer || !tensor.claims.empty();
    const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
    lack.room_bytes = (range.second - range.first) * config_.block_bytes;
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        const Replica &here = replica(block, lack.place);
        if ((here.valid && !here.doomed) || here.filling) continue;
        const PlaceId from = choose_source(block, lack.place, 0);
        if (from == kNoPlace) continue;
        lack.bytes += config_.block_bytes;
        lack.from[from] += config_.block_bytes;
    }
    return lack;
}

uint32_t Core::clean_ahead(PlaceId place, uint64_t beyond, Commands &out)
{
    const PlaceId last = static_cast<PlaceId>(places() - 1);
    if (!is_nvme(last) || !is_open(last) || place == last) return 0;
    const bool wanted = std::any_of(flights_.begin(), flights_.end(), [&](const auto &at) {
        const Transfer &transfer = at.second.transfer;
        const bool there = transfer.from == last || transfer.to == last;
        return there && transfer.urgency != Class::kIdle;
    });
    if (wanted) return 0;
    ++event_;
    const uint32_t most = std::min(kCleanedMax, config_.writebacks_max);
    if (has_plan_) return clean_planned_beyond(place, beyond, most, out);
    uint32_t started = 0;
    uint32_t looked_at = 0;
    for (BlockId block = coldest_[place]; block != kNone && write_backs_ < most;
         block = replica(block, place).hotter) {
        if (++looked_at > kLookedAtMax) break;
        // Cheap reasons first: the list is mostly of clean ones.
        if (!replica(block, place).valid || is_duplicate(block, place)) continue;
        if (next_use(block) <= beyond) continue;
        started += clean_early(block, place, out);
    }
    return started;
}

// In the order in which the plan lets them leave, whether they are cold or not.
uint32_t Core::clean_planned_beyond(PlaceId place, uint64_t beyond, uint32_t most, Commands &out)
{
    uint32_t started = 0;
    uint32_t looked_at = 0;
    for (const Rank &rank : ranked_[place]) {
        if (write_backs_ >= most || ++looked_at > kPlannedLookedAtMax) break;
        if (rank.worth > 0) continue;
        const Pack &pack = packs_[rank.pack];
        if (next_use(pack.first) <= beyond) continue;
        if (is_pinned_by_gates(pack, place)) continue;
        for (uint32_t index = find_end(rank.pack, place); index > 0; --index) {
            if (write_backs_ >= most) return started;
            ++looked_at;
            started += clean_early(pack.first + index - 1, place, out);
        }
    }
    return started;
}

// Somebody has the bytes that were brought ahead.
void Core::note_use(BlockId block, PlaceId place)
{
    Replica &here = replica(block, place);
    here.fresh = false;
    if (!here.planned) return;
    here.planned = false;
    ++brought_[place].used;
}

void Core::note_waste(BlockId block, PlaceId place)
{
    Replica &here = replica(block, place);
    if (!here.planned) return;
    here.planned = false;
    ++brought_[place].wasted;
}

}  // namespace stepwell::residency
