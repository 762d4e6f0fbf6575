// SPDX-License-Identifier: Apache-2.0
// Gates: opens and closes the gates of tensors, keeps the count of open and draining gates in their
// packs, and says what is pinned. Owns the note that a pin in a gate was seen.
#pragma once

#include "lib/residency/addresses.h"

namespace stepwell::residency {

class Gates {
public:
    Gates(const Places &places, TensorTable &tensors, const BlockTable &blocks, PackTable &packs,
          const Addresses &addresses)
        : places_(places), tensors_(tensors), blocks_(blocks), packs_(packs), addresses_(addresses)
    {
    }

    void update(TensorId tensor, PlaceId place);
    uint32_t close(TensorId tensor, PlaceId place);  // returns the pins that are left
    bool try_close_all(BlockId block, PlaceId place);
    [[nodiscard]] bool lies_whole(TensorId tensor, PlaceId place) const;

    [[nodiscard]] static bool uses_gates(const Pack &pack, PlaceId place)
    {
        return pack.gates_open[place] + pack.gates_draining[place] > 0;
    }
    [[nodiscard]] bool is_pinned(BlockId block, PlaceId place) const;
    [[nodiscard]] bool is_pinned_by_gates(const Pack &pack, PlaceId place) const
    {
        return uses_gates(pack, place) && has_pins(pack, place);
    }
    [[nodiscard]] bool has_pins(const Pack &pack, PlaceId place) const;
    // Since forget_seen_pins() a pin in a gate was seen. Such pins end without an event.
    [[nodiscard]] bool pins_seen() const { return pins_seen_; }
    void forget_seen_pins() { pins_seen_ = false; }

private:
    void open(TensorId tensor, PlaceId place);
    bool try_close(TensorId tensor, PlaceId place);
    void note_draining(TensorId tensor, PlaceId place, bool draining);

    const Places &places_;
    TensorTable &tensors_;
    const BlockTable &blocks_;
    PackTable &packs_;
    const Addresses &addresses_;
    mutable bool pins_seen_ = false;
};

}  // namespace stepwell::residency
