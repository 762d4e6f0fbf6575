// SPDX-License-Identifier: Apache-2.0
// What the shell and the reports ask of the core, and check(): every invariant in one place.
#include "lib/residency/core.h"
#include "lib/support/assert.h"
#include "lib/support/growth.h"

#include <algorithm>

namespace stepwell::residency {

const TensorSpec &Core::spec(TensorId id) const
{
    return tensors_[id].spec;
}
Contents Core::contents(TensorId id) const
{
    return tensors_[id].contents;
}
uint64_t Core::version(TensorId id) const
{
    return tensors_[id].version;
}
uint32_t Core::pack_blocks(TensorId id) const
{
    return packs_[tensors_[id].pack].blocks;
}
uint64_t Core::pack_offset(TensorId id) const
{
    return tensors_[id].offset;
}
TensorBlocks Core::blocks_of(TensorId id) const
{
    const Tensor &tensor = tensors_[id];
    const Pack &pack = packs_[tensor.pack];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    return {pack.first + range.first, range.second - range.first,
            tensor.offset - range.first * config_.block_bytes, pack.shared};
}

PackId Core::pack_of(TensorId id) const
{
    return tensors_[id].pack;
}
uint32_t Core::waiting_fetches() const
{
    return static_cast<uint32_t>(queue_.size());
}
uint32_t Core::transfers_in_flight() const
{
    return static_cast<uint32_t>(flights_.size());
}

void Core::set_victim_policy(const VictimPolicy *policy)
{
    victims_ = policy ? policy : &recency_only_;
    has_plan_ = victims_->plans();
    order_anew();
}

uint32_t Core::residence(TensorId id) const
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    const BlockId first = packs_[tensor.pack].first;
    uint32_t mask = 0;
    for (PlaceId place = 0; place < places(); ++place) {
        bool all = true;
        for (BlockId block = first + range.first; block < first + range.second; ++block) {
            const Replica &here = replica(block, place);
            all &= here.valid && !here.doomed;
        }
        if (all) mask |= 1u << place;
    }
    return mask;
}

uint64_t Core::missing_bytes(const Request &request) const
{
    const Tensor &tensor = tensors_[request.tensor];
    const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
    const uint64_t begin = tensor.offset + request.byte_begin;
    const uint64_t end = begin + request.byte_count;
    uint64_t missing = 0;
    for (uint32_t index = range.first; index < range.second; ++index) {
        const Replica &here = replica(packs_[tensor.pack].first + index, request.place);
        if (here.valid && !here.doomed) continue;
        const uint64_t block_begin = index * config_.block_bytes;
        missing += std::min(end, block_begin + config_.block_bytes) - std::max(begin, block_begin);
    }
    return missing;
}

Grant Core::location(TensorId id, PlaceId place) const
{
    const Tensor &tensor = tensors_[id];
    const BlockRange range = blocks_of(tensor, 0, tensor.spec.bytes);
    Grant grant;
    grant.place = place;
    grant.slot = replica(packs_[tensor.pack].first + range.first, place).slot;
    grant.slot_offset = tensor.offset - range.first * config_.block_bytes;
    return grant;
}

SlotRun Core::run_of(BlockId block, PlaceId place) const
{
    const Pack &pack = packs_[blocks_[block].pack];
    const auto follows = [&](BlockId next, BlockId behind) {
        const Slot slot = replica(behind, place).slot;
        return slot != kNoSlot && replica(next, place).slot == slot + 1;
    };
    BlockId first = block;
    BlockId last = block;
    while (first > pack.first && follows(first, first - 1)) --first;
    while (last + 1 < pack.first + pack.blocks && follows(last + 1, last)) ++last;
    return {first - pack.first, replica(first, place).slot, last - first + 1};
}

bool Core::are_quiet(PlaceId place, Slot first, uint32_t count, TensorId own) const
{
    const Arena &arena = arenas_[place];
    for (Slot slot = first; slot < std::min(first + count, arena.slots()); ++slot) {
        const BlockId owner = arena.owner(slot);
        if (owner == kNone) continue;
        const PackId pack = blocks_[owner].pack;
        if (pack != tensors_[own].pack) {
            if (is_pinned(owner, place)) return false;
            continue;
        }
        uint32_t pins = replica(owner, place).pins;
        for (const TensorId at : packs_[pack].tensors) pins += door(at, place).gate.pins();
        if (pins > 1) return false;
    }
    return true;
}

BlockState Core::block_state(BlockId block, PlaceId place) const
{
    const Replica &here = replica(block, place);
    if (here.slot == kNoSlot) return BlockState::kAbsent;
    if (here.filling) return BlockState::kFilling;
    if (here.evicting) return BlockState::kDraining;
    if (!here.valid) return BlockState::kStale;
    for (PlaceId other = static_cast<PlaceId>(place + 1); other < places(); ++other) {
        if (replica(block, other).valid) return BlockState::kValid;
    }
    return is_nvme(place) ? BlockState::kValid : BlockState::kDirty;
}

PlaceUsage Core::usage(PlaceId place) const
{
    PlaceUsage usage;
    usage.budget_blocks = arenas_[place].budget();
    usage.used_blocks = arenas_[place].used();
    usage.peak_blocks = arenas_[place].peak();
    usage.promised_blocks = promised_[place];
    usage.evictions = evictions_[place];
    usage.planned = brought_[place];
    for (BlockId block = coldest_[place]; block != kNone; block = replica(block, place).hotter) {
        usage.pinned_blocks += is_pinned(block, place);
        usage.dirty_blocks += block_state(block, place) == BlockState::kDirty;
    }
    return usage;
}

uint64_t Core::metadata_bytes() const
{
    uint64_t bytes = tensors_.bytes() + doors_.size() * kDoorsChunk * sizeof(Doors) +
                     packs_.bytes() + free_tensors_.capacity() * sizeof(TensorId) +
                     free_packs_.capacity() * sizeof(PackId) + blocks_.capacity() * sizeof(Block) +
                     replicas_.capacity() * sizeof(Replica);
    for (PlaceId place = 0; place < places(); ++place) bytes += arenas_[place].metadata_bytes();
    return bytes;
}

uint64_t Core::metadata_growth(const TensorSpec &spec) const
{
    uint64_t bytes = 0;
    if (free_tensors_.empty()) {
        bytes += tensors_.growth_bytes() + growth_bytes(free_tensors_, tensors_.size() + 1);
        if (tensors_.size() % kDoorsChunk == 0) bytes += kDoorsChunk * sizeof(Doors);
    }
    if (free_packs_.empty()) {
        bytes += packs_.growth_bytes() + growth_bytes(free_packs_, packs_.size() + 1);
    }
    const uint64_t block = config_.block_bytes;
    const uint64_t blocks = std::min<uint64_t>((spec.bytes + block - 1) / block, kNone);
    if (!free_blocks_.has(static_cast<uint32_t>(blocks))) {
        bytes += growth_bytes(blocks_, blocks_.size() + blocks);
        bytes += growth_bytes(replicas_, (blocks_.size() + blocks) * places());
    }
    return bytes;
}

// Every block has its room promised in some tier.
uint64_t Core::metadata_bytes_max() const
{
    uint64_t blocks = 0;
    for (PlaceId place = 0; place < places(); ++place) blocks += arenas_[place].slots();
    const uint64_t tensors = config_.tensors_max;
    const uint64_t packs = std::min(blocks, tensors);
    return Table<Tensor>::bytes_max(tensors) + (tensors + kDoorsChunk) * sizeof(Doors) +
           Table<Pack>::bytes_max(packs) + grown_capacity(tensors, tensors + 1) * sizeof(TensorId) +
           grown_capacity(packs, packs + 1) * sizeof(PackId) +
           grown_capacity(blocks, blocks + 1) * sizeof(Block) +
           grown_capacity(blocks * places(), blocks * places() + 1) * sizeof(Replica);
}

std::vector<FetchId> Core::stuck_fetches() const
{
    std::vector<FetchId> stuck;
    for (const auto &[key, fetch] : queue_) {
        if (fetch->stuck) stuck.push_back(fetch->id);
    }
    std::sort(stuck.begin(), stuck.end());
    return stuck;
}

bool Core::is_awaited(TensorId tensor, FetchId number) const
{
    const auto names_it = [tensor](const Request &request) { return request.tensor == tensor; };
    return std::any_of(queue_.begin(), queue_.end(), [&](const Queued &queued) {
        const FetchAsked &wanted = queued.fetch->asked;
        return queued.fetch->id > number && (wanted.flags & kFetchPrefetch) == 0 &&
               std::any_of(wanted.requests.begin(), wanted.requests.end(), names_it);
    });
}

bool Core::waits_for_locks(FetchId id) const
{
    const auto found = fetches_.find(id);
    return found != fetches_.end() && found->second.lacks == Lacks::kLocks;
}

bool Core::waits_for_room(FetchId id) const
{
    const auto found = fetches_.find(id);
    return found != fetches_.end() && found->second.lacks == Lacks::kRoom;
}

bool Core::waits_for_nvme(FetchId id) const
{
    const auto found = fetches_.find(id);
    if (found == fetches_.end()) return false;
    const auto moves = [&](const Target &target) {
        for (PlaceId place = 0; place < places(); ++place) {
            const Replica &far = replica(target.block, place);
            if (is_nvme(place) && (far.reads > 0 || far.filling)) return true;
        }
        return false;
    };
    const std::vector<Target> &targets = found->second.targets;
    return std::any_of(targets.begin(), targets.end(), moves);
}

bool Core::is_blocked(FetchId id) const
{
    const auto found = fetches_.find(id);
    return found != fetches_.end() && found->second.phase == Phase::kWait;
}

bool Core::in_use(TensorId id) const
{
    const Tensor &tensor = tensors_[id];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places(); ++place) {
        pins += door(id, place).gate.pins();
    }
    return tensor.readers > 0 || tensor.writer || pins > 0;
}

Status Core::fits(const std::vector<Request> &requests, const std::vector<Request> &buffers) const
{
    Fetch fetch;
    fetch.asked.requests = requests;
    fetch.asked.requests.insert(fetch.asked.requests.end(), buffers.begin(), buffers.end());
    for (PlaceId place = 0; place < places(); ++place) {
        std::vector<BlockId> blocks;
        for (const Request &request : requests) {
            if (request.place != place) continue;
            const Tensor &tensor = tensors_[request.tensor];
            const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
            for (uint32_t index = range.first; index < range.second; ++index) {
                blocks.push_back(packs_[tensor.pack].first + index);
            }
        }
        std::sort(blocks.begin(), blocks.end());
        blocks.erase(std::unique(blocks.begin(), blocks.end()), blocks.end());
        uint64_t needed = blocks.size();
        for (const Request &buffer : buffers) {
            if (buffer.place != place) continue;
            needed += (buffer.byte_count + config_.block_bytes - 1) / config_.block_bytes;
        }
        if (needed <= arenas_[place].budget()) continue;
        return budget_refusal(fetch, place,
                              static_cast<uint32_t>(std::min<uint64_t>(needed, UINT32_MAX)));
    }
    return {};
}

std::string Core::place_name(PlaceId place) const
{
    const PlaceConfig &config = config_.places[place];
    if (config.tier == Tier::kNvme) return "the nvme tier";
    if (config.tier == Tier::kHost) return "the host tier";
    return format_text("device %u", config.device);
}

// What keeps it from its locks; empty when nothing does.
std::string Core::describe_conflict(const Fetch &fetch) const
{
    if (fetch.lacks != Lacks::kLocks || fetch.places.empty()) return "";
    const Request &request = fetch.asked.requests[fetch.conflict];
    const Tensor &tensor = tensors_[request.tensor];
    uint32_t pins = 0;
    for (PlaceId place = 0; place < places(); ++place) {
        if (!is_nvme(place) && exists(place)) pins += door(request.tensor, place).gate.pins();
    }
    std::string text = format_text(" (%s: ", tensor_text(tensor.spec.name).c_str());
    if (tensor.claim() != 0 && tensor.claim() != fetch.asked.claim) {
        text +=
            format_text("%zu updates, sums or copies have it or are next; ", tensor.claims.size());
    }
    if (tensor.writer) text += "a view to write it is open; ";
    if (tensor.readers + pins > 0) {
        text += format_text("%u views to read it are open; ", tensor.readers + pins);
    }
    const PlaceId place = fetch.places[fetch.conflict];
    const BlockRange range = blocks_of(tensor, request.byte_begin, request.byte_count);
    for (uint32_t index = range.first; index < range.second; ++index) {
        const BlockId block = packs_[tensor.pack].first + index;
        const bool writes = request.access != Access::kRead;
        if (!block_in_the_way(blocks_[block], block, writes, place)) continue;
        text += "a tensor in the same block is in use at another tier; ";
        break;
    }
    text.resize(text.size() - 2);
    return text + ")";
}

std::string Core::describe_waiting(size_t lines_max) const
{
    std::string text;
    for (const auto &[key, waiting] : queue_) {
        if (lines_max-- == 0) return text + "; ...";
        const Fetch &fetch = *waiting;
        text += format_text("%sfetch %llu", text.empty() ? "" : "; ",
                            static_cast<unsigned long long>(fetch.id));
        for (const Request &request : fetch.asked.requests) {
            text += &request == fetch.asked.requests.data() ? " of " : ", ";
            text += tensor_text(tensors_[request.tensor].spec.name);
        }
        text += (fetch.asked.flags & kFetchPrefetch) != 0   ? ", a hint,"
                : (fetch.asked.flags & kFetchInternal) != 0 ? ", the library's own,"
                                                            : "";
        text += fetch.lacks == Lacks::kRoom ? " waits for room" : " waits for its locks";
        text += describe_conflict(fetch);
    }
    return text;
}

std::string Core::check() const
{
    std::array<uint32_t, kPlacesMax> used{};
    std::array<uint32_t, kPlacesMax> coming{};
    decltype(listed_) listed{};
    std::vector<uint32_t> transfers(blocks_.size());
    for (const auto &[id, flight] : flights_) ++transfers[flight.transfer.block];
    for (BlockId block = 0; block < blocks_.size(); ++block) {
        const Block &at = blocks_[block];
        if (at.transfers != transfers[block]) return format_text("block %u: transfers", block);
        for (PlaceId place = 0; place < places(); ++place) {
            const Replica &here = replica(block, place);
            const bool slots = !is_nvme(place);
            const char *wrong = nullptr;
            if (here.slot == kNoSlot) {
                if (here.valid || here.filling || here.doomed || here.reads) wrong = "no slot";
                if (here.pins) wrong = "pinned without a slot";
                if (here.listed) wrong = "listed without a slot";
            } else {
                ++used[place];
                if (slots && arenas_[place].owner(here.slot) != block) wrong = "slot not its own";
                if (here.doomed && here.valid) wrong = "doomed and valid";
                if (here.evicting && !here.valid) wrong = "evicting without bytes";
            }
            coming[place] += here.evicting;
            if (here.listed) ++listed[place][packs_[at.pack].agreed];
            if (wrong) return format_text("block %u at place %u: %s", block, place, wrong);
        }
    }
    for (const auto &[id, flight] : flights_) {
        if (flight.transfer.kind == TransferKind::kRelocate) ++used[flight.transfer.to];
    }
    for (PlaceId place = 0; place < places(); ++place) {
        if (used[place] != arenas_[place].used()) return format_text("place %u: used", place);
        if (arenas_[place].too_many() > 0 && !is_shrinking(place)) {
            return format_text("place %u: budget", place);
        }
        if (const char *wrong = arenas_[place].check()) {
            return format_text("place %u: %s", place, wrong);
        }
        if (coming[place] != coming_[place]) return format_text("place %u: coming", place);
    }
    if (listed != listed_) return "the lists of recency: how many";
    if (std::string broken = check_ranks(); !broken.empty()) return broken;
    return check_tensors();
}

// What is counted per pack against the tensors themselves.
std::string Core::check_tensors() const
{
    for (PackId id = 0; id < packs_.size(); ++id) {
        const Pack &pack = packs_[id];
        Pack found;
        for (const TensorId at : pack.tensors) {
            const Tensor &tensor = tensors_[at];
            found.with_contents += tensor.contents != Contents::kEmpty;
            found.writing += (tensor.writer ? 1 : 0) + tensor.claim_users;
            for (PlaceId place = 0; place < places(); ++place) {
                const Gate &gate = door(at, place).gate;
                found.gates_open[place] += gate.is_open();
                found.gates_draining[place] += (tensor.draining >> place) & 1;
                if (!gate.is_open()) {
                    const bool marked = ((tensor.draining >> place) & 1) != 0;
                    if (gate.pins() > 0 && !marked) return format_text("tensor %u: drains", at);
                    continue;
                }
                if (!lies_whole(at, place)) {
                    return format_text("tensor %u: gate open, bytes gone", at);
                }
                if (tensor.writer) return format_text("tensor %u: gate open beside a writer", at);
            }
        }
        if (found.with_contents != pack.with_contents) return format_text("pack %u: contents", id);
        if (found.writing != pack.writing) return format_text("pack %u: writing", id);
        if (found.gates_open != pack.gates_open) return format_text("pack %u: open gates", id);
        if (found.gates_draining != pack.gates_draining) return format_text("pack %u: drains", id);
    }
    return "";
}

}  // namespace stepwell::residency
