// SPDX-License-Identifier: Apache-2.0
#include "lib/schedule/lookahead/room_table.h"

#include <utility>

namespace stepwell::schedule {
namespace {

using residency::PlaceId;

constexpr size_t kRoomsKept = 256;     // entries kept for tensors without upcoming uses
constexpr uint64_t kReserveShare = 8;  // of a place, left for unforeseen uses
constexpr uint64_t kNode = 5 * sizeof(void *) + 16;

}  // namespace

RoomTable::Room *RoomTable::take(const residency::Core &core, residency::TensorId tensor,
                                 PlaceId place, uint64_t bytes)
{
    const uint64_t budget = core.budget_bytes(place);
    const auto found = rooms_.find(key_of(tensor, place));
    Room *room = found == rooms_.end() ? nullptr : &found->second;
    const uint64_t counted = room ? room->bytes : 0;
    const uint64_t more = bytes > counted ? bytes - counted : 0;
    // A tensor larger than the shared part gets room only alone.
    const uint64_t reserve = budget / core.block_bytes() / kReserveShare * core.block_bytes();
    const bool fits = taken_[place] + more <= budget - reserve;
    if (more > 0 && !fits && taken_[place] > 0) return nullptr;
    if (!room) room = &rooms_[key_of(tensor, place)];
    ++room->uses;
    room->bytes += more;
    taken_[place] += more;
    return room;
}

void RoomTable::give(Room &room, residency::TensorId tensor, PlaceId place)
{
    if (--room.uses > 0) return;
    taken_[place] -= std::exchange(room.bytes, 0);
    if (rooms_.size() > kRoomsKept) rooms_.erase(key_of(tensor, place));
}

bool RoomTable::has(residency::TensorId tensor, PlaceId place) const
{
    const auto room = rooms_.find(key_of(tensor, place));
    return room != rooms_.end() && room->second.uses > 0;
}

uint64_t RoomTable::metadata_bytes_max(uint64_t uses_max)
{
    return (uses_max + kRoomsKept) * (sizeof(Room) + kNode);
}

}  // namespace stepwell::schedule
