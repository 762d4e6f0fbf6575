// SPDX-License-Identifier: Apache-2.0
// Gates: when readers may pass without the core, and what their pins keep in place.
#include "lib/residency/gates.h"

#include <algorithm>

namespace stepwell::residency {

// The whole tensor is valid at the place, in contiguous slots unless the place maps.
bool Gates::lies_whole(TensorId id, PlaceId place) const
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = packs_.blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    const Slot slot = blocks_.replica(first + range.first, place).slot;
    for (uint32_t index = range.first; index < range.second; ++index) {
        const Replica &here = blocks_.replica(first + index, place);
        const Block &block = blocks_[first + index];
        if (!here.valid || here.filling || here.doomed) return false;
        if (addresses_.guards(first + index, place) && !here.is_mapped()) return false;
        if (block.writers > 0 && block.writer_place != place) return false;
        if (!places_[place].maps && here.slot != slot + (index - range.first)) return false;
    }
    return true;
}

// Opens the gate if readers may pin without the core, else closes it. Called at a grant and at the
// end of exclusive use; for bytes that merely arrived, the first fetch opens it.
void Gates::update(TensorId id, PlaceId place)
{
    const Tensor &tensor = tensors_[id];
    if (places_.is_nvme(place) || !places_.exists(place)) return;
    const bool free = tensor.alive && tensor.contents == Contents::kValid && tensor.cause.ok() &&
                      !tensor.writer && !tensor.bars(0, false) && tensor.waiting == 0;
    if (free && lies_whole(id, place)) {
        const Grant here = packs_.location(id, place);
        tensors_.door(id, place).offset.store(here.slot * places_.block_bytes() + here.slot_offset,
                                              std::memory_order_relaxed);
        open(id, place);
    } else {
        close(id, place);
    }
}

void Gates::open(TensorId id, PlaceId place)
{
    Gate &it = tensors_.gate(id, place);
    if (it.is_open()) return;
    note_draining(id, place, false);
    ++packs_[tensors_[id].pack].gates_open[place];
    it.open();
}

uint32_t Gates::close(TensorId id, PlaceId place)
{
    if (places_.is_nvme(place) || !places_.exists(place)) return 0;
    Gate &it = tensors_.gate(id, place);
    if (it.is_open()) --packs_[tensors_[id].pack].gates_open[place];
    const uint32_t pins = it.close();
    note_draining(id, place, pins > 0);
    return pins;
}

// Only if nothing is pinned in it.
bool Gates::try_close(TensorId id, PlaceId place)
{
    Gate &it = tensors_.gate(id, place);
    const bool was_open = it.is_open();
    if (!it.try_close_idle()) return false;
    if (was_open) --packs_[tensors_[id].pack].gates_open[place];
    note_draining(id, place, false);
    return true;
}

void Gates::note_draining(TensorId id, PlaceId place, bool draining)
{
    Tensor &tensor = tensors_[id];
    const uint32_t bit = 1u << place;
    if (((tensor.draining & bit) != 0) == draining) return;
    tensor.draining ^= bit;
    uint32_t &count = packs_[tensor.pack].gates_draining[place];
    draining ? ++count : --count;
}

// False if something is pinned in a gate; then the gates stay as they were.
bool Gates::try_close_all(BlockId block, PlaceId place)
{
    if (places_.is_nvme(place)) return true;
    const Pack &pack = packs_[blocks_[block].pack];
    if (!uses_gates(pack, place)) return true;
    const std::vector<TensorId> &tensors = pack.tensors;
    for (size_t i = 0; i < tensors.size(); ++i) {
        if (try_close(tensors[i], place)) continue;
        for (size_t j = 0; j < i; ++j) update(tensors[j], place);
        return false;
    }
    return true;
}

bool Gates::is_pinned(BlockId block, PlaceId place) const
{
    const Replica &here = blocks_.replica(block, place);
    if (here.pins > 0) return true;
    if (places_.is_nvme(place)) return false;
    return is_pinned_by_gates(packs_[blocks_[block].pack], place);
}

bool Gates::has_pins(const Pack &pack, PlaceId place) const
{
    const bool pinned =
        std::any_of(pack.tensors.begin(), pack.tensors.end(),
                    [&](const TensorId at) { return tensors_.door(at, place).gate.pins() > 0; });
    pins_seen_ |= pinned;
    return pinned;
}

}  // namespace stepwell::residency
