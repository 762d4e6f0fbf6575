// SPDX-License-Identifier: Apache-2.0
// The interface that maps blocks at the addresses that programs know: the core decides when, the
// shell does it at once, under its lock. Without one, a mapped block stays mapped until its slot is
// used again, and a touch of it without a view is undefined.
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
