// SPDX-License-Identifier: Apache-2.0
// Budgets of a rank that change in the middle of everything, by the steps of runtime/budgets.cpp:
// what is in force never changes while a shrink is on its way, and one that cannot end in its time
// leaves the budget of before.
#include "tests/ranks/rank.h"

#include <algorithm>

namespace stepwell::ranks {

void Rank::change_budget()
{
    if (shrinking_ != kNoPlace || finishing_) return;
    const auto place = static_cast<PlaceId>(random_.below(kPlaces));
    const uint32_t slots = core_.slots(place);
    const uint32_t before = budget_[place];
    if (slots == 0) return;
    if (before < slots && random_.chance(50)) {
        grow(place, static_cast<uint32_t>(random_.between(before + 1, slots)));
        return;
    }
    const auto after = static_cast<uint32_t>(random_.between(std::min(before, 3u), before));
    ++told_;
    const Status status = core_.may_shrink(place, after);
    const uint64_t promised = core_.usage(place).promised_blocks;
    if (status.ok() != (after >= promised) || (!status.ok() && status.sentence()[0] == '\0')) {
        journal_.fail("rank %u: place %u may shrink to %u with %llu promised: %d", number_, place,
                      after, static_cast<unsigned long long>(promised), status.code());
    }
    if (!status.ok() || after == before) return;
    pause_plan();
    shrinking_ = model_.shrinking = place;
    shrinks_to_ = model_.shrinks_to = after;
    model_.shrinks_from = before;
    ++shrink_number_;
    for (Pending &at : pending_) at.in_shrink = true;
    const Instant waits = random_.between(100, 30000) * 1000;
    world_.wake(world_.now() + waits, Wake::kBudget, number_, shrink_number_);
    go_on_shrinking();
}

void Rank::grow(PlaceId place, uint32_t blocks)
{
    journal_.line("rank %u: place %u grows from %u to %u blocks", number_, place, budget_[place],
                  blocks);
    budget_[place] = blocks;
    const uint32_t backed = core_.backed_slots(place);
    const uint32_t more = blocks - std::min(blocks, backed);
    for (const Slot slot : core_.make_backed(place, more)) memory_.make_backed(place, slot);
    ++told_;
    core_.set_budget(place, blocks, out_);
    for (Pending &at : pending_) at.in_shrink = true;
    execute();
}

void Rank::go_on_shrinking()
{
    ++told_;
    const uint64_t left = core_.shrink(shrinking_, shrinks_to_, out_);
    execute();
    if (left == 0 || world_.planted.now(Plant::kMemoryBeforeRoom)) {
        end_shrinking(true);
    } else if (flights_.empty() && !core_.has_claims()) {
        const Status why = core_.shrink_refusal(shrinking_, shrinks_to_);
        if (why.code() != STW_ERROR_BUDGET || why.sentence()[0] == '\0') {
            journal_.fail("rank %u: a shrink is refused with %d", number_, why.code());
        }
        end_shrinking(false);
    }
}

void Rank::end_shrinking(bool good)
{
    const PlaceId place = std::exchange(shrinking_, kNoPlace);
    model_.shrinking = kNoPlace;
    const uint32_t blocks = good ? shrinks_to_ : budget_[place];
    journal_.line("rank %u: place %u has %u blocks, %s", number_, place, blocks,
                  good ? "as wished" : "as before");
    ++(good ? world_.counts.shrinks : world_.counts.shrinks_undone);
    ++told_;
    const bool forgets = !good && world_.planted.now(Plant::kBudgetNotTakenBack);
    if (!forgets) core_.set_budget(place, blocks, out_);
    budget_[place] = blocks;
    for (Pending &at : pending_) at.in_shrink = true;
    execute();
    for (;;) {
        const std::vector<Slot> slots = core_.make_bare(place, 16);
        if (slots.empty()) break;
        for (const Slot slot : slots) memory_.make_bare(place, slot);
    }
    if (core_.usage(place).budget_blocks != blocks) {
        journal_.fail("rank %u: place %u is to have %u blocks, the core says %llu", number_, place,
                      blocks, static_cast<unsigned long long>(core_.usage(place).budget_blocks));
    }
    plan_due_ = true;
}

}  // namespace stepwell::ranks
