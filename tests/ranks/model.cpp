// SPDX-License-Identifier: Apache-2.0
// Views and bytes of the model. Refusals are judged in justify.cpp.
#include "tests/ranks/model.h"

namespace stepwell::ranks {
namespace {

uint64_t pieces_of(uint64_t bytes)
{
    return (bytes + kPieceBytes - 1) / kPieceBytes;
}

}  // namespace

void Model::create(TensorId id, const TensorSpec &spec)
{
    if (id >= tensors.size()) tensors.resize(id + 1);
    ModelTensor &tensor = tensors[id];
    if (tensor.alive) journal_.fail("create returned tensor %u, which is alive", id);
    tensor = {};
    tensor.alive = true;
    tensor.spec = spec;
    tensor.contents = core_.contents(id);
    tensor.pack = core_.pack_of(id);
    tensor.pack_blocks = core_.pack_blocks(id);
    tensor.pack_offset = core_.pack_offset(id);
    tensor.newest.assign(pieces_of(spec.bytes), tensor.readable() ? kZeros : kAnything);
    if (tensor.readable() != spec.reads_zero || tensor.pack_offset % kPieceBytes != 0) {
        journal_.fail("tensor %u begins in state %d, at %llu", id,
                      static_cast<int>(tensor.contents),
                      static_cast<unsigned long long>(tensor.pack_offset));
    }
}

void Model::die(PackId pack)
{
    if (pack >= deaths_.size()) deaths_.resize(pack + 1);
    ++deaths_[pack];
}

void Model::destroy(TensorId id)
{
    die(tensors[id].pack);
    tensors[id].alive = false;
}

void Model::locate(View &view, const Grant &grant)
{
    const Request &request = view.request;
    const ModelTensor &tensor = tensors[request.tensor];
    const uint64_t begin = tensor.pack_offset + request.byte_begin;
    view.first = static_cast<uint32_t>(begin / kBlockBytes);
    const uint64_t last = (begin + request.byte_count - 1) / kBlockBytes;
    view.count = static_cast<uint32_t>(last - view.first + 1);
    const bool maps = config_.places[request.place].maps;
    const uint64_t offset = begin % kBlockBytes;
    if (!maps && (grant.slot == kNoSlot || grant.slot_offset != offset)) {
        journal_.fail("tensor %u is granted at slot %u + %llu, expected + %llu", request.tensor,
                      grant.slot, static_cast<unsigned long long>(grant.slot_offset),
                      static_cast<unsigned long long>(offset));
        return;
    }
    // A gate pins all that moves with the tensor.
    const uint32_t from = view.by_gate ? 0 : view.first;
    view.pinned = view.by_gate ? core_.pack_blocks(request.tensor) : view.count;
    for (uint32_t i = 0; i < view.pinned; ++i) {
        const uint32_t index = from + i;
        const Slot slot = maps ? memory_.slot_of(request.place, tensor.pack, index)
                               : static_cast<Slot>(grant.slot + index - view.first);
        if (slot >= config_.places[request.place].blocks) {
            journal_.fail("tensor %u: block %u of its view at place %u has no slot", request.tensor,
                          index, request.place);
            return;
        }
        if (!maps) memory_.learn(request.place, tensor.pack, index, slot);
        view.pinned_slots[i] = slot;
        if (index >= view.first && index <= last) view.slots[index - view.first] = slot;
    }
}

void Model::check_exclusion(const View &view)
{
    const Request &request = view.request;
    const ModelTensor &tensor = tensors[request.tensor];
    if (!tensor.alive || tensor.writers > 0 || (view.writes() && tensor.readers > 0)) {
        journal_.fail("tensor %u: a view to %s beside %u readers and %u writers%s", request.tensor,
                      view.writes() ? "write" : "read", tensor.readers, tensor.writers,
                      tensor.alive ? "" : ", destroyed");
    }
    for (const auto &[claim, last_before] : tensor.claims) {
        if (view.claim == claim) break;
        if (view.claim == 0 && view.fetch <= last_before) continue;
        journal_.fail("tensor %u: a view although an update has it", request.tensor);
    }
    const bool fills = view.claim != 0 && tensor.contents == Contents::kEmpty;
    const bool needs = request.access != Access::kWrite && !(view.writes() && fills);
    if (needs && !tensor.readable()) {
        journal_.fail("tensor %u: a view of contents in state %d", request.tensor,
                      static_cast<int>(tensor.contents));
    }
}

View Model::open(const Request &request, const Grant &grant, const FetchAsked *asked, FetchId fetch)
{
    View view;
    view.request = request;
    view.fetch = fetch;
    view.by_gate = grant.by_gate;
    view.claim = asked ? asked->claim : 0;
    view.internal = asked && (asked->flags & kFetchInternal) != 0;
    check_exclusion(view);
    const bool any = request.place == kAnyCpuPlace;
    if ((!any && grant.place != request.place) || grant.place >= kNvme ||
        (any && !config_.places[grant.place].cpu_access)) {
        journal_.fail("asked for place %u, granted at %u", request.place, grant.place);
    }
    if (journal_.failed()) return view;
    view.request.place = grant.place;
    locate(view, grant);
    if (journal_.failed()) return view;
    memory_.pin(grant.place, view.pinned_slots.data(), view.pinned, view.writes());
    ModelTensor &tensor = tensors[request.tensor];
    ++(view.writes() ? tensor.writers : tensor.readers);
    if (view.request.access != Access::kWrite) check_bytes(view, "when granted");
    return view;
}

Stamp &Model::piece(const View &view, uint64_t piece)
{
    const uint64_t offset =
        tensors[view.request.tensor].pack_offset + piece * kPieceBytes - view.first * kBlockBytes;
    Image &image = memory_.at(view.request.place, view.slots[offset / kBlockBytes]);
    return image[offset % kBlockBytes / kPieceBytes];
}

void Model::check_bytes(const View &view, const char *when)
{
    const Request &request = view.request;
    const ModelTensor &tensor = tensors[request.tensor];
    const uint64_t first = request.byte_begin / kPieceBytes;
    const uint64_t end = pieces_of(request.byte_begin + request.byte_count);
    for (uint64_t at = first; at < end; ++at) {
        const Stamp found = piece(view, at);
        if (tensor.newest[at] == kAnything || found == tensor.newest[at]) continue;
        journal_.fail("tensor %u, piece %llu at place %u: stamp %x %s, newest is %x",
                      request.tensor, static_cast<unsigned long long>(at), request.place, found,
                      when, tensor.newest[at]);
        return;
    }
}

void Model::close(const View &view, Stamp stamp, bool dead)
{
    const Request &request = view.request;
    ModelTensor &tensor = tensors[request.tensor];
    if (request.access != Access::kWrite) check_bytes(view, "when released");
    const uint64_t first = request.byte_begin / kPieceBytes;
    const uint64_t end = pieces_of(request.byte_begin + request.byte_count);
    for (uint64_t at = first; view.writes() && at < end; ++at) piece(view, at) = stamp;
    memory_.unpin(request.place, view.pinned_slots.data(), view.pinned, view.writes());
    --(view.writes() ? tensor.writers : tensor.readers);
    if (dead || !view.writes()) return;
    const bool whole = request.byte_begin == 0 && request.byte_count == tensor.spec.bytes;
    // Part of what has failed does not heal the rest.
    if (tensor.contents == Contents::kEmpty || whole) tensor.contents = Contents::kValid;
    for (uint64_t at = first; at < end; ++at) tensor.newest[at] = stamp;
}

void Model::settle(TensorId id)
{
    ModelTensor &tensor = tensors[id];
    die(tensor.pack);
    const Contents now = core_.contents(id);
    bool alone = true;
    for (TensorId other = 0; other < tensors.size(); ++other) {
        alone &= other == id || !tensors[other].alive || tensors[other].pack != tensor.pack;
    }
    // In a block that others use there are no zeros to be had for one of them.
    const bool zeros = tensor.spec.reads_zero && now == Contents::kValid;
    const bool empty = now == Contents::kEmpty && !(tensor.spec.reads_zero && alone);
    if (!zeros && !empty) {
        journal_.fail("tensor %u is in state %d after its contents died", id,
                      static_cast<int>(now));
    }
    tensor.contents = now;
    tensor.newest.assign(tensor.newest.size(), zeros ? kZeros : kAnything);
}

void Model::check_tensor(TensorId id)
{
    const ModelTensor &tensor = tensors[id];
    if (!tensor.alive || tensor.writers > 0) return;
    if (core_.contents(id) != tensor.contents) {
        journal_.fail("tensor %u is in state %d, expected %d", id,
                      static_cast<int>(core_.contents(id)), static_cast<int>(tensor.contents));
    }
    if (!tensor.readable()) return;
    const uint32_t residence = core_.residence(id);
    for (PlaceId place = 0; place < kPlaces; ++place) {
        if ((residence >> place & 1) == 0) continue;
        for (uint64_t at = 0; at < tensor.newest.size(); ++at) {
            if (tensor.newest[at] == kAnything) continue;
            const uint64_t offset = tensor.pack_offset + at * kPieceBytes;
            const auto index = static_cast<uint32_t>(offset / kBlockBytes);
            const Slot slot = place == kNvme ? kNoSlot : memory_.slot_of(place, tensor.pack, index);
            // On its way to another slot of the place.
            if (slot != kNoSlot && memory_.is_target(place, slot)) continue;
            const Image *image = place == kNvme    ? memory_.stored(tensor.pack, index)
                                 : slot == kNoSlot ? nullptr
                                                   : &memory_.at(place, slot);
            if (image && (*image)[offset % kBlockBytes / kPieceBytes] == tensor.newest[at])
                continue;
            journal_.fail("tensor %u is said to be at place %u, its piece %llu is not", id, place,
                          static_cast<unsigned long long>(at));
            return;
        }
    }
}

}  // namespace stepwell::ranks
