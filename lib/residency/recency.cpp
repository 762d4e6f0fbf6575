// SPDX-License-Identifier: Apache-2.0
// The list of recency of each place: resident blocks from hottest to coldest, linked in place.
#include "lib/residency/core.h"
#include "lib/support/assert.h"

namespace stepwell::residency {

void Core::unlist(BlockId block, PlaceId place)
{
    Replica &here = replica(block, place);
    if (!here.listed) return;
    BlockId &above = here.hotter == kNone ? hottest_[place] : replica(here.hotter, place).colder;
    BlockId &below = here.colder == kNone ? coldest_[place] : replica(here.colder, place).hotter;
    above = here.colder;
    below = here.hotter;
    here.hotter = here.colder = kNone;
    here.listed = false;
    --listed_[place][packs_[blocks_[block].pack].agreed];
}

void Core::heat(BlockId block, PlaceId place)
{
    if (is_nvme(place) || hottest_[place] == block) return;
    unlist(block, place);
    Replica &here = replica(block, place);
    here.colder = hottest_[place];
    if (here.colder != kNone) replica(here.colder, place).hotter = block;
    hottest_[place] = block;
    if (coldest_[place] == kNone) coldest_[place] = block;
    here.listed = true;
    ++listed_[place][packs_[blocks_[block].pack].agreed];
}

void Core::cool(BlockId block, PlaceId place)
{
    if (is_nvme(place) || coldest_[place] == block) return;
    unlist(block, place);
    Replica &here = replica(block, place);
    here.hotter = coldest_[place];
    if (here.hotter != kNone) replica(here.hotter, place).colder = block;
    coldest_[place] = block;
    if (hottest_[place] == kNone) hottest_[place] = block;
    here.listed = true;
    ++listed_[place][packs_[blocks_[block].pack].agreed];
}

void Core::touch(TensorId id, PlaceId place)
{
    const Tensor &tensor = tensors_[id];
    if (!tensor.alive) return;
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    for (BlockId block = first + range.first; block < first + range.second; ++block) {
        Replica &here = replica(block, place);
        note_use(block, place);
        if (here.listed) heat(block, place);
    }
    look_at_plan(tensor.pack);
}

}  // namespace stepwell::residency
