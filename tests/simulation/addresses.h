// SPDX-License-Identifier: Apache-2.0
// Addresses: what the program can see of its tensors while it holds no view, in a run with aliases.
// A table of what the core shows and hides; it stops what no driver could do, and now and then has
// no mapping left. What may be there is judged by the program, which knows its views.
#pragma once

#include "lib/residency/aliases.h"
#include "tests/simulation/machine.h"

namespace stepwell::simulation {

class Addresses final : public Aliases {
public:
    struct Shown {
        PackId pack = kNone;
        uint32_t index = 0;
        bool writable = false;
    };
    using Table = std::map<std::pair<PlaceId, Slot>, Shown>;

    Addresses(Machine &machine, Random &random, Journal &journal)
        : machine_(machine), random_(random), journal_(journal)
    {
    }

    bool show(PlaceId place, Slot slot, PackId pack, uint32_t index, bool writable) override;
    void hide(PlaceId place, Slot slot) override;

    [[nodiscard]] const Table &table() const { return table_; }
    // One for each time that there was no mapping.
    bool take_refusal() { return refusals_ > 0 && refusals_-- > 0; }
    // Null where the slot is in the arena.
    [[nodiscard]] const Shown *at(PlaceId place, Slot slot) const;

    uint32_t refusals_percent = 0;  // of what comes to its address
    // The number of views that accesses without a view left open. Nobody uses their pointers, so
    // their blocks may be hidden.
    std::map<std::pair<PlaceId, Slot>, uint32_t> touched;
    Table hidden;  // in this event

private:
    uint64_t refusals_ = 0;
    void check_unused(const char *what, PlaceId place, Slot slot);

    Machine &machine_;
    Random &random_;
    Journal &journal_;
    Table table_;
};

}  // namespace stepwell::simulation
