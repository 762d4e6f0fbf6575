// SPDX-License-Identifier: Apache-2.0
// RoomTable: the room that upcoming uses need at each place, counted once for all uses of a tensor
// there. Pure; one thread at a time.
#pragma once

#include "lib/residency/core.h"

#include <array>
#include <cstdint>
#include <unordered_map>

namespace stepwell::schedule {

class RoomTable {
public:
    struct Room {  // of a tensor at a place, for all its near and far uses
        uint32_t uses = 0;
        uint64_t bytes = 0;
    };

    // Adds a use of that many bytes. Null: no room. Rooms never move.
    [[nodiscard]] Room *take(const residency::Core &core, residency::TensorId tensor,
                             residency::PlaceId place, uint64_t bytes);
    // Ends a use.
    void give(Room &room, residency::TensorId tensor, residency::PlaceId place);
    // Whether the tensor has room for a use there.
    [[nodiscard]] bool has(residency::TensorId tensor, residency::PlaceId place) const;

    // Largest size of the table.
    [[nodiscard]] static uint64_t metadata_bytes_max(uint64_t uses_max);

private:
    [[nodiscard]] static uint64_t key_of(residency::TensorId tensor, residency::PlaceId place)
    {
        return uint64_t{tensor} * residency::kPlacesMax + place;
    }

    std::unordered_map<uint64_t, Room> rooms_;             // by key_of
    std::array<uint64_t, residency::kPlacesMax> taken_{};  // bytes
};

}  // namespace stepwell::schedule
