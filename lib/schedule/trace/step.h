// SPDX-License-Identifier: Apache-2.0
// One step of a phase as data: what the program fetches and releases, in its order, and how long it
// computes in between. Recorded, declared or made up by a simulation; replayed in virtual time.
#pragma once

#include "lib/residency/types.h"

#include <cstdint>
#include <vector>

namespace stepwell::schedule {

enum class Act : uint8_t { kFetch, kRelease, kDiscard };
enum class Hint : uint8_t { kNone, kFar, kNear, kDiscard };  // what a release says of the bytes

// Who does it: the lanes run beside each other, each in its own order.
enum class Lane : uint8_t { kProgram = 0, kUpdate = 1 };
constexpr size_t kLanes = 2;

struct Event {
    Act act = Act::kFetch;
    Lane lane = Lane::kProgram;
    residency::Access access = residency::Access::kRead;
    Hint hint = Hint::kNone;
    residency::PlaceId place = residency::kNoPlace;  // or kAnyCpuPlace
    bool with_next = false;  // of a fetch: the next event is of the same call, all or nothing
    residency::TensorId tensor = residency::kNone;
    uint64_t byte_begin = 0;  // of the tensor
    uint64_t byte_count = 0;
    uint64_t compute_ns = 0;  // the lane computed so long before this; waits are not in it
};

using Step = std::vector<Event>;

}  // namespace stepwell::schedule
