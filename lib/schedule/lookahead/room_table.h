// SPDX-License-Identifier: Apache-2.0
// RoomTable: the room that uses ahead of a program take at places, each tensor's once for all of
// its uses there.
// Pure; one thread at a time.
#pragma once

#include "lib/residency/core.h"

#include <array>
#include <cstdint>
#include <unordered_map>

namespace stepwell::schedule {

class RoomTable {
public:
    struct Room {  // of a tensor at a place, for all its uses that are near or far
        uint32_t uses = 0;
        uint64_t bytes = 0;
    };

    // A use of the tensor takes so many bytes. Null: there is not so much. Rooms never move.
    [[nodiscard]] Room *take(const residency::Core &core, residency::TensorId tensor,
                             residency::PlaceId place, uint64_t bytes);
    // A use is over.
    void give(Room &room, residency::TensorId tensor, residency::PlaceId place);
    // Whether a use has taken room for the tensor there.
    [[nodiscard]] bool has(residency::TensorId tensor, residency::PlaceId place) const;

    // What the table may become.
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
