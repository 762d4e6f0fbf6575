// SPDX-License-Identifier: Apache-2.0
// What the runtime keeps of a victim policy of the program. Under the runtime's lock; the policy
// itself is called by a thread of its own, with no lock held.
#pragma once

#include "lib/residency/core.h"
#include "lib/support/thread_annotations.h"

#include <stepwell/victim.h>

#include <array>
#include <pthread.h>

namespace stepwell {

// The first version of stw_victim.
constexpr uint32_t kVictimBytesMin = 56;

// What one scoring works on; kept, so that a program at rest allocates nothing.
struct VictimTable {
    struct Named {
        residency::TensorId id;
        uint64_t serial;  // of the handle: numbers are used again
    };
    std::vector<residency::Candidate> found;  // of one part
    std::vector<Named> named;
    std::vector<char> victims;  // stride by the caller's build
    std::vector<double> answers;
    std::vector<residency::Score> scores;
};

struct Scoring {
    stw_victim_policy policy{};  // rank is null: none
    uint64_t turn = 0;           // +1 per policy: what an older one answers is void
    uint32_t due = 0;            // a bit per place
    uint32_t changers = 0;       // that wait for the call under way; no other begins
    bool calling = false;
    bool stopping = false;
    bool started = false;
    bool told_nan = false;  // of this policy
    pthread_t thread{};
    Condition wake;
    residency::Instant not_before = 0;
    std::array<uint64_t, residency::kPlacesMax> evictions{};  // when scored last
    std::array<uint64_t, residency::kPlacesMax> calls{};
    std::array<uint64_t, residency::kPlacesMax> scored{};
    uint64_t unscored = 0;  // answers that were no numbers
    VictimTable table;
};

}  // namespace stepwell
