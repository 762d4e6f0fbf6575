// SPDX-License-Identifier: Apache-2.0
// The state of the program's victim policy. Under the runtime's lock; the policy itself is called
// by a separate thread with no lock held.
#pragma once

#include "lib/residency/types.h"
#include "lib/support/thread_annotations.h"

#include <stepwell/victim.h>

#include <array>
#include <thread>

namespace stepwell {

// The first version of stw_victim.
constexpr uint32_t kVictimBytesMin = 56;

// The tables of one scoring; kept, so that later ones allocate nothing.
struct VictimTable {
    struct Named {
        residency::TensorId id;
        uint64_t serial;  // of the handle: ids are reused
    };
    std::vector<residency::Candidate> found;  // of one part
    std::vector<Named> named;
    std::vector<char> victims;  // the stride is that of the caller's build
    std::vector<double> answers;
    std::vector<residency::Score> scores;
};

struct Scoring {
    stw_victim_policy policy{};  // rank is null: no policy
    uint64_t turn = 0;           // incremented by each policy: older answers are ignored
    uint32_t due = 0;            // a bit for each place
    uint32_t changers = 0;       // waiting for the call under way; no other call begins
    bool calling = false;
    bool stopping = false;
    bool started = false;
    bool told_nan = false;  // the warning was logged for this policy
    std::thread thread;
    Condition wake;
    residency::Instant not_before = 0;
    std::array<uint64_t, residency::kPlacesMax> evictions{};  // at the last scoring
    std::array<uint64_t, residency::kPlacesMax> calls{};
    std::array<uint64_t, residency::kPlacesMax> scored{};
    uint64_t unscored = 0;  // answers that were not numbers
    VictimTable table;
};

}  // namespace stepwell
