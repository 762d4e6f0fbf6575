// SPDX-License-Identifier: Apache-2.0
// Who puts blocks at the addresses that programs know, as an interface: the core decides when, the
// shell does it at once, under its lock. Where a core has none, a block that is mapped stays where
// it is until its slot is used again, and a touch of it without a view is undefined.
#pragma once

#include "lib/residency/types.h"

namespace stepwell::residency {

class Aliases {
public:
    virtual ~Aliases() = default;
    // The block in the slot, number `index` of its pack, can be read at the pack's address, and
    // written if said so; from where it is, or with another access. False: no mapping is left.
    virtual bool show(PlaceId place, Slot slot, PackId pack, uint32_t index, bool writable) = 0;
    // It is in the arena, and any touch of the address faults.
    virtual void hide(PlaceId place, Slot slot) = 0;
};

}  // namespace stepwell::residency
