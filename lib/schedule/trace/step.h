// SPDX-License-Identifier: Apache-2.0
// One step of a phase as data: what the program fetches and releases, in order, and its compute
// time in between. Recorded, declared or made by a simulation; replayed in virtual time.
#pragma once

#include "lib/residency/types.h"

#include <cstdint>
#include <vector>

namespace stepwell::schedule {

enum class Act : uint8_t { kFetch, kRelease, kDiscard };
enum class Hint : uint8_t { kNone, kFar, kNear, kDiscard };  // given with a release

// The lanes run concurrently, each in its own order.
enum class Lane : uint8_t { kProgram = 0, kUpdate = 1 };
constexpr size_t kLanes = 2;

struct Event {
    Act act = Act::kFetch;
    Lane lane = Lane::kProgram;
    residency::Access access = residency::Access::kRead;
    Hint hint = Hint::kNone;
    residency::PlaceId place = residency::kNoPlace;  // or kAnyCpuPlace
    bool with_next = false;  // of a fetch: the next event belongs to the same call, all or nothing
    residency::TensorId tensor = residency::kNone;
    uint64_t byte_begin = 0;  // of the tensor
    uint64_t byte_count = 0;
    uint64_t compute_ns = 0;  // of the lane just before this, without waits
};

using Step = std::vector<Event>;

}  // namespace stepwell::schedule
