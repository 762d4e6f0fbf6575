// SPDX-License-Identifier: Apache-2.0
// May this fetch be refused with that status? Judged by what the program itself knows: its views,
// its budgets and the faults that were injected.
#include "tests/simulation/model.h"

namespace stepwell::simulation {

std::string Model::justify(const ModelFetch &fetch, const Status &status) const
{
    const FetchAsked &asked = fetch.asked;
    const std::string said =
        format_text("refused with %d \"%s\"", status.code(), status.sentence());
    if (status.ok()) return said + ", which is success";
    if (status.sentence()[0] == '\0') return said + " without a sentence";
    if (!fetch.cancelled.ok() && status.code() == fetch.cancelled.code()) return "";
    const bool hint = (asked.flags & kFetchPrefetch) != 0;
    if (hint && status.code() == STW_ERROR_CANCELLED) return "";  // its tensor went

    bool hurt = machine_.write_faults > 0;
    bool failed = false;
    bool unreadable = false;
    bool exists = false;
    bool overtaken = false;  // a hint for room, of which another fetch or an update has the tensor
    bool twice = false;
    bool invalid = false;
    for (size_t i = 0; i < asked.requests.size(); i++) {
        const Request &request = asked.requests[i];
        const ModelTensor &tensor = tensors.at(request.tensor);
        hurt = hurt || machine_.hurt(tensor.pack);
        failed = failed || tensor.contents == Contents::kFailed || tensor.missed;
        const bool reads = request.access == Access::kRead ||
                           (request.access == Access::kReadWrite && asked.claim == 0);
        unreadable = unreadable || (reads && !tensor.readable());
        exists = exists ||
                 (request.access == Access::kWriteEmpty && tensor.contents != Contents::kEmpty);
        const bool used =
            tensor.writers + tensor.readers > 0 || !tensor.claims.empty() || tensor.fetches > 0;
        overtaken = overtaken || (hint && request.access == Access::kWriteEmpty && used);
        if (request.place != kAnyCpuPlace) {
            invalid = invalid || request.place >= config_.places.size() ||
                      config_.places[request.place].tier == Tier::kNvme ||
                      config_.places[request.place].blocks == 0 ||
                      (tensor.spec.policy.allowed & (1u << request.place)) == 0;
        }
        for (size_t j = 0; j < i; j++) {
            const Request &other = asked.requests[j];
            const ModelTensor &second = tensors.at(other.tensor);
            twice = twice || (other.tensor == request.tensor &&
                              (other.access != Access::kRead || request.access != Access::kRead));
            // One block has one writer's place.
            twice = twice || (second.pack == tensor.pack && other.place != request.place);
        }
    }
    switch (status.code()) {
    case STW_ERROR_EMPTY: return unreadable ? "" : said + " but the contents are there";
    case STW_ERROR_EXISTS:
        return exists || overtaken ? "" : said + " but the tensor is empty and nobody uses it";
    case STW_ERROR_SYNC: return failed ? "" : said + " but the tensor has not failed";
    case STW_ERROR_INVALID: return invalid ? "" : said + " but the request is good";
    case STW_ERROR_TIMEOUT:
        return asked.deadline <= machine_.now() ? "" : said + " before the deadline";
    case STW_ERROR_BUSY:
        return (asked.flags & kFetchTry) != 0 || twice ? "" : said + " without cause";
    case STW_ERROR_IO:
    case STW_ERROR_CHECKSUM: return hurt || failed ? "" : said + " but no fault was injected there";
    case STW_ERROR_DEVICE: return hurt || failed ? "" : said + " but no fault was injected there";
    case STW_ERROR_BUDGET: {
        const std::string why = justify_budget(asked);
        return why.empty() ? why : said + ": " + why;
    }
    default: return said;
    }
}

bool Model::place_is_short(const FetchAsked &asked, PlaceId place, bool agreed) const
{
    std::set<std::pair<PackId, uint64_t>> blocks;
    uint64_t longest = 0;
    for (const Request &request : asked.requests) {
        const ModelTensor &tensor = tensors.at(request.tensor);
        // Where a tensor is at home, it keeps its slots while it is worked on elsewhere.
        const bool home = machine_.core.is_promised_at(request.tensor, place);
        if ((request.place != place && !home) || tensor.spec.agreed != agreed) continue;
        const uint64_t begin = tensor.pack_offset + request.byte_begin;
        const uint64_t first = begin / kBlockBytes;
        const uint64_t last = (begin + request.byte_count - 1) / kBlockBytes;
        for (uint64_t index = first; index <= last; index++) blocks.insert({tensor.pack, index});
        longest = std::max(longest, last - first + 1);
    }
    if (blocks.empty()) return false;
    const PlaceConfig &config = config_.places[place];
    const PlaceUsage usage = machine_.core.usage(place);
    const uint64_t capacity =
        agreed ? config.whole_blocks : usage.budget_blocks - config.whole_blocks;
    uint64_t others = machine_.pinned_slots(place);
    for (const auto &[pack, index] : blocks) {
        const Slot slot = machine_.slot_of(place, pack, index);
        if (slot != kNoSlot && machine_.pinned(place, slot)) others--;
    }
    if (blocks.size() + others > capacity) return true;
    // Promised room cannot be lent where nothing lies behind it.
    if (blocks.size() + others + usage.promised_blocks > capacity) return true;
    // Runs of slots: what is pinned in between, or gathered, is not moved aside.
    const bool stays = machine_.pinned_slots(place) > 0 || config.whole_blocks > 0;
    return !config.maps && longest > 1 && stays;
}

std::string Model::justify_budget(const FetchAsked &asked) const
{
    if (machine_.write_faults > 0) return "";            // what could not be written back stays
    if ((asked.flags & kFetchPrefetch) != 0) return "";  // a hint takes no room that is in use
    for (const Request &request : asked.requests) {
        if (request.place == kAnyCpuPlace) return "";
    }
    for (PlaceId place = 0; place < config_.places.size(); place++) {
        if (config_.places[place].tier == Tier::kNvme) continue;
        if (place_is_short(asked, place, false) || place_is_short(asked, place, true)) return "";
    }
    return "the room is there by arithmetic";
}

}  // namespace stepwell::simulation
