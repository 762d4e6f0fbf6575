// SPDX-License-Identifier: Apache-2.0
// The reference model: views and bytes. Refusals are judged in justify.cpp.
#include "tests/simulation/model.h"

namespace stepwell::simulation {

void Model::create(TensorId id, const TensorSpec &spec)
{
    ModelTensor &tensor = tensors[id];
    if (tensor.alive) journal_.fail("create returned tensor %u, which is alive", id);
    tensor = {};
    tensor.alive = true;
    tensor.spec = spec;
    tensor.pack = machine_.core.pack_of(id);
    tensor.pack_offset = machine_.core.pack_offset(id);
    tensor.newest.resize((spec.bytes + kPieceBytes - 1) / kPieceBytes);
    tensor.forget_contents(spec.reads_zero ? Contents::kValid : Contents::kEmpty);
    if (tensor.pack_offset % spec.align_bytes != 0) {
        journal_.fail("tensor %u lies at %llu of its pack, aligned to %llu", id,
                      (unsigned long long)tensor.pack_offset, (unsigned long long)spec.align_bytes);
    }
    bool shares = false;
    for (const auto &[other_id, other] : tensors) {
        if (other_id == id || !other.alive || other.pack != tensor.pack) continue;
        shares = true;
        if (other.pack_offset < tensor.pack_offset + spec.bytes &&
            tensor.pack_offset < other.pack_offset + other.spec.bytes) {
            journal_.fail("tensors %u and %u overlap in pack %u", id, other_id, tensor.pack);
        }
    }
    machine_.take_pack(tensor.pack, shares);
}

void Model::locate(ModelView &view, const Grant &grant)
{
    const Request &request = view.request;
    const ModelTensor &tensor = tensors[request.tensor];
    const uint64_t begin = tensor.pack_offset + request.byte_begin;
    const uint64_t first = begin / kBlockBytes;
    const uint64_t last = (begin + request.byte_count - 1) / kBlockBytes;
    view.first_offset = begin % kBlockBytes;
    // An update works in the arena, where aliases are the program's.
    const bool in_arena = aliases_ && tensor.spec.guarded && is_exclusive(view.claim);
    const bool maps = config_.places[request.place].maps && !in_arena;
    if (!maps && (grant.slot == kNoSlot || grant.slot_offset != view.first_offset)) {
        journal_.fail("tensor %u is granted at slot %u + %llu, expected offset %llu",
                      request.tensor, grant.slot, (unsigned long long)grant.slot_offset,
                      (unsigned long long)view.first_offset);
        return;
    }
    const uint64_t pack_blocks = machine_.core.pack_blocks(request.tensor);
    const uint64_t from = view.by_gate ? 0 : first;
    const uint64_t to = view.by_gate ? pack_blocks - 1 : last;
    for (uint64_t index = from; index <= to; index++) {
        const Slot slot = maps ? machine_.slot_of(request.place, tensor.pack, index)
                               : static_cast<Slot>(grant.slot + index - first);
        if (slot >= config_.places[request.place].blocks) {
            journal_.fail("tensor %u: block %llu of its view at place %u has no slot",
                          request.tensor, (unsigned long long)index, request.place);
            return;
        }
        if (!maps) machine_.learn(request.place, tensor.pack, index, slot);
        if (in_arena && machine_.is_away(request.place, slot)) {
            journal_.fail(
                "slot %u of place %u is granted in the arena, and its memory is at an address",
                slot, request.place);
        }
        view.pinned.push_back(slot);
        if (index >= first && index <= last) view.slots.push_back(slot);
    }
}

void Model::check_exclusion(const ModelView &view)
{
    const Request &request = view.request;
    const ModelTensor &tensor = tensors[request.tensor];
    if (!tensor.alive) {
        journal_.fail("a view of tensor %u, which is destroyed", request.tensor);
    }
    if (tensor.writers > 0 || (request.access != Access::kRead && tensor.readers > 0)) {
        journal_.fail("tensor %u: a %s view beside %u readers and %u writers", request.tensor,
                      request.access == Access::kRead ? "read" : "write", tensor.readers,
                      tensor.writers);
    }
    const bool reads = request.access == Access::kRead;
    for (const auto &[claim, last_before] : tensor.claims) {
        if (view.claim == claim) break;
        if (view.fetch <= last_before && view.claim == 0) continue;
        if (view.claim == 0 && reads && !is_exclusive(claim)) continue;
        if (view.lent && reads && view.fetch <= tensor.lent_to) break;
        journal_.fail("tensor %u: a view although claim %llu has it", request.tensor,
                      (unsigned long long)claim);
    }
    const bool fills = request.access == Access::kReadWrite && view.claim != 0 &&
                       tensor.contents == Contents::kEmpty;
    const bool writes =
        request.access == Access::kWrite ||
        (request.access == Access::kWriteEmpty && tensor.contents == Contents::kEmpty);
    if (!fills && !writes && !tensor.readable()) {
        journal_.fail("tensor %u: a view of contents in state %d%s", request.tensor,
                      static_cast<int>(tensor.contents),
                      tensor.missed ? " that an update missed" : "");
    }
}

std::unique_ptr<ModelView> Model::open(const Request &request, const Grant &grant, bool by_gate,
                                       ClaimId claim, FetchId fetch, bool lent)
{
    auto view = std::make_unique<ModelView>();
    view->request = request;
    view->by_gate = by_gate;
    view->claim = claim;
    view->fetch = fetch;
    view->lent = lent;
    check_exclusion(*view);
    const bool any = request.place == kAnyCpuPlace;
    if (!any && grant.place != request.place) {
        journal_.fail("asked for place %u, granted at %u", request.place, grant.place);
    }
    const bool kept = grant.place < config_.places.size() && is_nvme(grant.place);
    const bool may = kept && claim != 0 && request.access == Access::kRead;
    if (grant.place >= config_.places.size() || (kept && !may) ||
        (any && !config_.places[grant.place].cpu_access)) {
        journal_.fail("granted at place %u, where no view can be", grant.place);
    }
    if (journal_.failed()) return view;
    if (kept) {
        tensors[request.tensor].readers++;
        check_kept(*view, "when granted");
        return view;
    }
    view->request.place = grant.place;
    if (request.access == Access::kWriteEmpty) view->request.access = Access::kWrite;
    locate(*view, grant);
    if (journal_.failed()) return view;
    const bool write = request.access != Access::kRead;
    if (write) keep_older(*view);
    machine_.pin(grant.place, view->pinned, write);
    ModelTensor &tensor = tensors[request.tensor];
    (write ? tensor.writers : tensor.readers)++;
    if (view->request.access != Access::kWrite) check_bytes(*view, "when granted");
    if (write) view->written.assign(pieces_end(request) - pieces_begin(request), kAnything);
    if (view->request.access == Access::kWrite) {
        for (uint64_t piece = pieces_begin(request); piece < pieces_end(request); piece++) {
            piece_of(*view, piece) = machine_.memories.garbage();
        }
    }
    return view;
}

// With the grant: nothing was written yet.
void Model::keep_older(const ModelView &view)
{
    constexpr uint64_t kPieces = kBlockBytes / kPieceBytes;
    ModelTensor &tensor = tensors[view.request.tensor];
    if (tensor.older == kNone) return;
    ModelTensor &older = tensors[tensor.older];
    const uint64_t last = (view.request.byte_begin + view.request.byte_count - 1) / kBlockBytes;
    for (uint64_t block = view.request.byte_begin / kBlockBytes; block <= last; block++) {
        if (!tensor.kept.insert(block).second) continue;
        older.contents = Contents::kValid;
        const uint64_t end = std::min<uint64_t>((block + 1) * kPieces, tensor.newest.size());
        for (uint64_t piece = block * kPieces; piece < end; piece++) {
            older.newest[piece] = tensor.newest[piece];
        }
    }
}

// Nobody looks at it there: it has to be there, and to stay until it is released.
void Model::check_kept(const ModelView &view, const char *when)
{
    const ModelTensor &tensor = tensors[view.request.tensor];
    for (uint64_t piece = pieces_begin(view.request); piece < pieces_end(view.request); piece++) {
        const uint64_t offset = tensor.pack_offset + piece * kPieceBytes;
        const Image *image = machine_.stored(tensor.pack, offset / kBlockBytes);
        if (tensor.newest[piece] == kAnything) continue;
        if (image && (*image)[offset % kBlockBytes / kPieceBytes] == tensor.newest[piece]) continue;
        journal_.fail("tensor %u, piece %llu is not at nvme %s, where it is held",
                      view.request.tensor, (unsigned long long)piece, when);
        return;
    }
}

Stamp &Model::piece_of(const ModelView &view, uint64_t piece)
{
    const uint64_t offset = view.first_offset + piece * kPieceBytes - view.request.byte_begin;
    Image &image = machine_.memories.slot(view.request.place, view.slots.at(offset / kBlockBytes));
    return image[offset % kBlockBytes / kPieceBytes];
}

void Model::scribble(ModelView &view, uint64_t piece)
{
    const Stamp stamp = machine_.memories.fresh();
    piece_of(view, piece) = stamp;
    view.written[piece - pieces_begin(view.request)] = stamp;
}

void Model::check_bytes(const ModelView &view, const char *when)
{
    const ModelTensor &tensor = tensors[view.request.tensor];
    const uint64_t first = pieces_begin(view.request);
    for (uint64_t piece = first; piece < pieces_end(view.request); piece++) {
        Stamp expected = tensor.newest[piece];
        if (!view.written.empty() && view.written[piece - first] != kAnything) {
            expected = view.written[piece - first];
        }
        if (expected == kAnything) continue;
        const Stamp found = piece_of(view, piece);
        if (found == expected) continue;
        journal_.fail("tensor %u, piece %llu at place %u slot %u: stamp %x %s, newest is %x",
                      view.request.tensor, (unsigned long long)piece, view.request.place,
                      view.slots[0], found, when, expected);
        return;
    }
}

void Model::close(ModelView &view, End end)
{
    ModelTensor &tensor = tensors[view.request.tensor];
    if (is_nvme(view.request.place)) {
        check_kept(view, "when released");
        tensor.readers--;
        return;
    }
    const bool write = view.request.access != Access::kRead;
    const uint64_t first = pieces_begin(view.request);
    if (end == End::kGood && view.request.access == Access::kWrite) {
        for (uint64_t piece = first; piece < pieces_end(view.request); piece++) {
            if (view.written[piece - first] == kAnything) scribble(view, piece);
        }
    }
    if (view.request.access != Access::kWrite || end == End::kGood) {
        check_bytes(view, "when released");
    }
    machine_.unpin(view.request.place, view.pinned, write);
    (write ? tensor.writers : tensor.readers)--;
    if (end != End::kGood || !write) return;
    // Part of a failed tensor does not heal the rest.
    const bool whole = view.request.byte_count == tensor.spec.bytes;
    if (tensor.contents == Contents::kEmpty || whole) tensor.contents = Contents::kValid;
    if (whole) tensor.missed = false;
    for (size_t i = 0; i < view.written.size(); i++) {
        if (view.written[i] != kAnything) tensor.newest[first + i] = view.written[i];
    }
}

void Model::settle(TensorId id)
{
    ModelTensor &tensor = tensors[id];
    const Contents now = machine_.core.contents(id);
    bool alone = true;
    for (const auto &[other, neighbour] : tensors) {
        if (other != id && neighbour.alive && neighbour.pack == tensor.pack) alone = false;
    }
    // In a block that others use there are no zeros to be had for one of them.
    const bool zeros = tensor.spec.reads_zero && now == Contents::kValid;
    const bool empty = now == Contents::kEmpty && !(tensor.spec.reads_zero && alone);
    if (!zeros && !empty) {
        journal_.fail("tensor %u has contents in state %d after they died", id,
                      static_cast<int>(now));
    }
    tensor.forget_contents(now);
}

void Model::check_tensor(TensorId id)
{
    ModelTensor &tensor = tensors[id];
    if (!tensor.alive || tensor.writers > 0) return;
    const Contents contents = machine_.core.contents(id);
    if (contents != tensor.contents) {
        if (contents == Contents::kFailed && machine_.hurt(tensor.pack)) {
            tensor.contents = Contents::kFailed;
            return;
        }
        journal_.fail("tensor %u has contents in state %d, expected %d", id,
                      static_cast<int>(contents), static_cast<int>(tensor.contents));
        return;
    }
    if (contents != Contents::kValid) return;
    const uint32_t residence = machine_.core.residence(id);
    for (PlaceId place = 0; place < config_.places.size(); place++) {
        if ((residence & (1u << place)) == 0) continue;
        const bool nvme = config_.places[place].tier == Tier::kNvme;
        for (uint64_t piece = 0; piece < tensor.newest.size(); piece++) {
            if (tensor.newest[piece] == kAnything) continue;
            const uint64_t offset = tensor.pack_offset + piece * kPieceBytes;
            const uint64_t index = offset / kBlockBytes;
            const Slot slot = nvme ? 0 : machine_.slot_of(place, tensor.pack, index);
            if (!nvme && slot != kNoSlot && machine_.moving_in(place, slot)) continue;
            const Image *image = nvme              ? machine_.stored(tensor.pack, index)
                                 : slot == kNoSlot ? nullptr
                                                   : &machine_.memories.slot(place, slot);
            if (image && (*image)[offset % kBlockBytes / kPieceBytes] == tensor.newest[piece]) {
                continue;
            }
            journal_.fail("tensor %u is said to be resident at place %u, piece %llu is not there",
                          id, place, (unsigned long long)piece);
            return;
        }
    }
}

}  // namespace stepwell::simulation
