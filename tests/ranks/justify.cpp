// SPDX-License-Identifier: Apache-2.0
// May this fetch be refused with that status? Judged by what the program itself knows: its views,
// its budgets and the faults that were injected.
#include "tests/ranks/model.h"

#include <algorithm>

namespace stepwell::ranks {

std::string Model::justify(const Asked &fetch, const Status &status) const
{
    const FetchAsked &asked = fetch.asked;
    const stw_status code = status.code();
    if (status.ok()) return "success";
    if (status.sentence()[0] == '\0') return "without a sentence";
    if (fetch.told != STW_OK && fetch.told == code) return "";
    const bool hint = (asked.flags & kFetchPrefetch) != 0;
    if (hint && code == STW_ERROR_CANCELLED) return "";  // its tensor went
    bool faulty = write_failed;
    bool unreadable = false;
    bool exists = false;
    bool overtaken = false;  // a hint for room, whose tensor others use
    bool cause = false;
    bool twice = false;
    for (size_t i = 0; i < asked.requests.size(); ++i) {
        const Request &request = asked.requests[i];
        const ModelTensor &tensor = tensors[request.tensor];
        faulty |= tensor.pack < hurt.size() && hurt[tensor.pack];
        unreadable |= request.access != Access::kWrite && !tensor.readable();
        exists |= request.access == Access::kWriteEmpty && tensor.contents != Contents::kEmpty;
        const bool used =
            tensor.writers + tensor.readers > 0 || !tensor.claims.empty() || tensor.fetches > 1;
        overtaken |= hint && request.access == Access::kWriteEmpty && used;
        cause |= tensor.contents == Contents::kFailed && tensor.cause == code;
        for (size_t j = 0; j < i; ++j) {
            const Request &other = asked.requests[j];
            const bool writes = request.access != Access::kRead || other.access != Access::kRead;
            const bool same = other.tensor == request.tensor;
            const bool beside =
                tensors[other.tensor].pack == tensor.pack && other.place != request.place;
            twice |= writes && (same || beside);
        }
    }
    if (cause) return "";
    switch (code) {
    case STW_ERROR_EMPTY: return unreadable ? "" : "but the contents are there";
    case STW_ERROR_EXISTS:
        return exists || overtaken ? "" : "but the tensor is empty and nobody uses it";
    case STW_ERROR_TIMEOUT: return asked.deadline <= journal_.now ? "" : "before the deadline";
    case STW_ERROR_BUSY: return (asked.flags & kFetchTry) != 0 || twice ? "" : "without cause";
    case STW_ERROR_IO:
    case STW_ERROR_DEVICE: return faulty ? "" : "but no fault was injected there";
    case STW_ERROR_BUDGET:
        if (is_undecided(asked)) return "but the budget is not decided that would refuse it";
        return fetch.in_shrink ? "" : justify_budget(asked);
    default: return "for no reason that is known";
    }
}

// It fits what the place has now, and not what it may have soon.
bool Model::is_undecided(const FetchAsked &asked) const
{
    if (shrinking == kNoPlace) return false;
    std::vector<std::pair<PackId, uint32_t>> counted;
    for (const Request &request : asked.requests) {
        if (request.place == kAnyCpuPlace) return false;
        if (request.place != shrinking) continue;
        const ModelTensor &tensor = tensors[request.tensor];
        const uint64_t begin = tensor.pack_offset + request.byte_begin;
        const auto last = static_cast<uint32_t>((begin + request.byte_count - 1) / kBlockBytes);
        for (auto index = static_cast<uint32_t>(begin / kBlockBytes); index <= last; ++index) {
            counted.push_back({tensor.pack, index});
        }
    }
    std::sort(counted.begin(), counted.end());
    counted.erase(std::unique(counted.begin(), counted.end()), counted.end());
    return counted.size() > shrinks_to && counted.size() <= shrinks_from;
}

// What is asked for, what other views pin and what is promised there do not fit together.
bool Model::is_short(const FetchAsked &asked, PlaceId place) const
{
    uint64_t wanted = 0;
    uint64_t others = memory_.pinned(place);
    uint32_t longest = 0;
    std::vector<std::pair<PackId, uint32_t>> counted;
    for (const Request &request : asked.requests) {
        const ModelTensor &tensor = tensors[request.tensor];
        if (request.place != place) continue;
        const uint64_t begin = tensor.pack_offset + request.byte_begin;
        const auto first = static_cast<uint32_t>(begin / kBlockBytes);
        const auto last = static_cast<uint32_t>((begin + request.byte_count - 1) / kBlockBytes);
        longest = std::max(longest, last - first + 1);
        for (uint32_t index = first; index <= last; ++index) {
            const std::pair<PackId, uint32_t> block{tensor.pack, index};
            if (std::find(counted.begin(), counted.end(), block) != counted.end()) continue;
            counted.push_back(block);
            ++wanted;
            const Slot slot = memory_.slot_of(place, tensor.pack, index);
            if (slot != kNoSlot && memory_.is_pinned(place, slot)) --others;
        }
    }
    if (wanted == 0) return false;
    const PlaceUsage usage = core_.usage(place);
    if (wanted + others + usage.promised_blocks > usage.budget_blocks) return true;
    // Runs of slots: what is pinned in between is not moved aside.
    return !config_.places[place].maps && longest > 1 && memory_.pinned(place) > 0;
}

std::string Model::justify_budget(const FetchAsked &asked) const
{
    if (write_failed) return "";                         // what could not be written back stays
    if ((asked.flags & kFetchPrefetch) != 0) return "";  // a hint takes no room that is in use
    for (const Request &request : asked.requests) {
        if (request.place == kAnyCpuPlace) return "";
    }
    for (PlaceId place = 0; place < kNvme; ++place) {
        if (is_short(asked, place)) return "";
    }
    return "but the room is there by arithmetic";
}

}  // namespace stepwell::ranks
