// SPDX-License-Identifier: Apache-2.0
// Budgets that change in the middle of everything, by the steps that the shell takes: what is in
// force never changes while a shrink is on its way, and what fails leaves the budget of before.
#include "tests/simulation/program.h"

namespace stepwell::simulation {

void Program::change_budget()
{
    if (shrinking_ != kNoPlace) return go_on_shrinking();
    const auto place = static_cast<PlaceId>(random_.below(setup_.config.places.size()));
    const uint32_t slots = machine_.core.slots(place);
    if (slots == 0) return;
    const auto before = static_cast<uint32_t>(machine_.core.usage(place).budget_blocks);
    const auto after = random_.chance(40) ? slots : static_cast<uint32_t>(random_.below(slots + 1));
    if (after >= before) {
        journal_.line("place %u grows from %u to %u blocks", place, before, after);
        for (const Slot slot : machine_.core.make_backed(place, after - before)) {
            machine_.make_backed(place, slot);
        }
        machine_.core.set_budget(place, after, out_);
        execute();
        return;
    }
    const Status status = machine_.core.may_shrink(place, after);
    const uint64_t promised =
        machine_.core.usage(place).promised_blocks + setup_.config.places[place].whole_blocks;
    if (status.ok() != (after >= promised)) {
        journal_.fail("place %u may shrink to %u with %llu promised: %d", place, after,
                      (unsigned long long)promised, status.code());
    }
    if (!status.ok()) return;
    shrinking_ = place;
    shrinks_from_ = before;
    shrinks_to_ = after;
    go_on_shrinking();
}

void Program::go_on_shrinking()
{
    const uint64_t left = machine_.core.shrink(shrinking_, shrinks_to_, out_);
    journal_.line("place %u shrinks to %u blocks, %llu to go", shrinking_, shrinks_to_,
                  (unsigned long long)left);
    execute();
    if (journal_.failed()) return;
    if (left == 0) {
        end_shrinking(shrinks_to_);
    } else if (machine_.idle() || random_.chance(20)) {
        end_shrinking(shrinks_from_);
    }
}

void Program::end_shrinking(uint32_t blocks)
{
    journal_.line("place %u has %u blocks", shrinking_, blocks);
    machine_.core.set_budget(shrinking_, blocks, out_);
    execute();
    const uint32_t some = random_.chance(50) ? 1 : UINT32_MAX;
    for (;;) {
        const std::vector<Slot> slots = machine_.core.make_bare(shrinking_, some);
        if (slots.empty()) break;
        for (const Slot slot : slots) machine_.make_bare(shrinking_, slot);
    }
    shrinking_ = kNoPlace;
}

}  // namespace stepwell::simulation
