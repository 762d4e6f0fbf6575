// SPDX-License-Identifier: Apache-2.0
// The end of a rank's run: nobody waits for nothing, what could not be written is written now, the
// newest bytes are all there, and nothing is left when everything is destroyed.
#include "tests/ranks/rank.h"

namespace stepwell::ranks {

bool Rank::is_through() const
{
    return program_ == State::kDone && jobs_.empty() && loader_done_ && pending_.empty() &&
           flights_.empty() && loaded_.empty() && shrinking_ == kNoPlace;
}

std::string Rank::describe() const
{
    static const char *const kStates[] = {"is ready", "computes", "fetches",
                                          "meets",    "waits",    "is over"};
    return format_text(
        "rank %u: the program %s at operation %zu of %zu, %zu updates (the lane %s), "
        "%zu fetches without an answer, %zu transfers under way, the loader has %zu "
        "views%s%s\n%s",
        number_, kStates[static_cast<int>(program_)], cursor_, setup_.program.size(), jobs_.size(),
        kStates[static_cast<int>(update_)], pending_.size(), flights_.size(), loaded_.size(),
        loader_sleeps_ != 0 ? " and sleeps" : "",
        shrinking_ != kNoPlace ? ", a budget shrinks" : "", core_.describe_waiting(8).c_str());
}

void Rank::begin_finish()
{
    finishing_ = true;
    pause_plan();
    for (PlaceId place = 0; place < kPlaces; ++place) {
        if (budget_[place] < core_.slots(place)) grow(place, core_.slots(place));
    }
    forgive();
    check_all();
    for (PlaceId place = 0; place < kPlaces && !journal_.failed(); ++place) {
        const PlaceUsage usage = core_.usage(place);
        if (usage.pinned_blocks == 0 && memory_.pinned(place) == 0) continue;
        journal_.fail("rank %u: place %u has %llu blocks pinned, no view is open", number_, place,
                      static_cast<unsigned long long>(usage.pinned_blocks));
    }
    if (core_.waiting_fetches() > 0) {
        journal_.fail("rank %u: %u fetches wait, nobody asked", number_, core_.waiting_fetches());
    }
}

bool Rank::write_back()
{
    ++told_;
    const uint64_t left = core_.write_back_all(out_);
    execute();
    return left == 0;
}

void Rank::read_back(bool *done)
{
    *done = false;
    while (!loaded_.empty()) {
        const View view = loaded_.back();
        loaded_.pop_back();
        give_back(view, schedule::Hint::kNone);
        execute();
    }
    for (; read_back_ < ids_.size(); ++read_back_) {
        const TensorId id = ids_[read_back_];
        if (id == kNone || !model_.tensors[id].readable()) continue;
        // With nothing else under way there must be room, and with all disks healed the bytes.
        FetchAsked asked;
        Request request;
        request.tensor = id;
        request.place = kDevice;
        request.byte_count = model_.tensors[id].spec.bytes;
        asked.requests.push_back(request);
        ask(Who::kReadBack, asked);
        ++read_back_;
        const uint64_t refusals = world_.counts.refusals;
        execute();
        if (world_.counts.refusals == refusals) return;
        journal_.fail("rank %u: tensor %u is valid and cannot be read", number_, id);
        return;
    }
    *done = true;
}

void Rank::destroy_all()
{
    for (uint32_t index = 0; index < ids_.size() && !journal_.failed(); ++index) {
        destroy(index);
        execute();
        if (ids_[index] != kNone) journal_.fail("rank %u: a tensor is left", number_);
    }
}

void Rank::check_empty()
{
    check_all();
    for (PlaceId place = 0; place < kPlaces && !journal_.failed(); ++place) {
        const PlaceUsage usage = core_.usage(place);
        if (usage.used_blocks + usage.promised_blocks + usage.dirty_blocks > 0) {
            journal_.fail("rank %u: place %u has %llu blocks used, %llu promised, and no tensor",
                          number_, place, static_cast<unsigned long long>(usage.used_blocks),
                          static_cast<unsigned long long>(usage.promised_blocks));
        }
        const PlannedBlocks &planned = usage.planned;
        if (planned.brought != planned.used + planned.wasted) {
            journal_.fail("rank %u: place %u: %llu blocks brought ahead, %llu used, %llu wasted",
                          number_, place, static_cast<unsigned long long>(planned.brought),
                          static_cast<unsigned long long>(planned.used),
                          static_cast<unsigned long long>(planned.wasted));
        }
    }
    if (memory_.stored_blocks() > 0) {
        journal_.fail("rank %u: %llu blocks are left on the disk", number_,
                      static_cast<unsigned long long>(memory_.stored_blocks()));
    }
}

}  // namespace stepwell::ranks
