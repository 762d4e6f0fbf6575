// SPDX-License-Identifier: Apache-2.0
// What a runtime whose store stays has beyond one with scratch alone: the generations, and what the
// resumed one says of tensors that the program has not made yet.
#pragma once

#include "lib/runtime/handles/handles.h"
#include "lib/store/generations.h"

#include <map>
#include <memory>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

namespace stepwell {

struct DurableTensors {
    std::vector<store::GenerationInfo> infos;  // of the generations that are kept, the newest first
    bool commits = false;                      // somebody is in a commit

    // Of the generation that was resumed, until the next one is committed.
    struct Entry {
        store::StoredTensor tensor;
        bool taken = false;
        bool told = false;  // that it is left out
    };
    struct Count {
        uint64_t count = 0;
        bool taken = false;
        bool told = false;
    };
    std::map<std::string, Entry, std::less<>> tensors;
    std::map<std::string, Count, std::less<>> counts;
    std::vector<store::Placement> blocks;
    std::vector<residency::PackId> packs;  // by block, of those that tensors share; kNone: none yet
    std::unordered_map<residency::PackId, uint32_t> blocks_of_packs;  // the reverse

    // Slots that generations keep of tensors that are not there, which no promise covers: of those
    // in the resumed generation until they are made, and of those that went until the generations
    // that have them are dropped.
    struct Gone {
        uint64_t blocks = 0;
        uint64_t until = 0;                         // a generation of that number is committed
        residency::PackId pack = residency::kNone;  // what is frozen since; kNone: nothing is left
    };
    std::map<std::string, uint64_t, std::less<>> not_made;
    std::vector<Gone> gone;
    std::unordered_map<residency::PackId, uint64_t> packs_kept;  // and how many slots at most
};

struct Durable {
    std::string name;                                 // as the program gave it
    std::unique_ptr<store::Generations> generations;  // used by commits, one at a time
    uint32_t ranks = 1;                               // that have a part
    bool unused = false;                              // nothing was ever committed to what is there
    DurableTensors tensors STW_GUARDED_BY(runtime_lock);
};

// One commit on its way.
struct CommitWork {
    std::vector<stw_tensor *> tensors;  // durable; under the claim, so they live
    residency::ClaimId claim = 0;
    std::string label;
    std::string metadata;
    std::unordered_set<residency::TensorId> stale;  // masters older than their parameters
    Status cause;                                   // why this rank cannot take part
    bool complete = false;                          // nothing that was resumed may be left out
    uint32_t left_out = 0;
    residency::Instant deadline = residency::kNever;
    bool done STW_GUARDED_BY(runtime_lock) = false;  // after it the rest is the caller's
    Status status;
    uint64_t generation = 0;
};

}  // namespace stepwell
