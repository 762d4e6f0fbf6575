// SPDX-License-Identifier: Apache-2.0
// The state of a runtime with a durable store: its generations, and those tensors of the resumed
// one that the program has not created yet.
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
    std::vector<store::GenerationInfo> infos;  // kept generations, the newest first
    bool commits = false;                      // a commit is under way

    // From the resumed generation, until the next commit.
    struct Entry {
        store::StoredTensor tensor;
        bool taken = false;
        bool told = false;  // the warning that it is left out was logged
    };
    struct Count {
        uint64_t count = 0;
        bool taken = false;
        bool told = false;
    };
    std::map<std::string, Entry, std::less<>> tensors;
    std::map<std::string, Count, std::less<>> counts;
    std::vector<store::Placement> blocks;
    std::vector<residency::PackId> packs;  // of shared blocks, by block; kNone: none yet
    std::unordered_map<residency::PackId, uint32_t> blocks_of_packs;  // the reverse

    // Slots that generations keep of tensors that do not exist, for which no room is reserved: of
    // those in the resumed generation until they are created, and of destroyed ones until the
    // generations that contain them are dropped.
    struct Gone {
        uint64_t blocks = 0;
        uint64_t until = 0;                         // until this generation is committed
        residency::PackId pack = residency::kNone;  // a pack frozen since; kNone: it does not exist
    };
    std::map<std::string, uint64_t, std::less<>> not_made;
    std::vector<Gone> gone;
    std::unordered_map<residency::PackId, uint64_t> packs_kept;  // slots kept, at most
};

struct Durable {
    std::string name;                                 // as the program gave it
    std::unique_ptr<store::Generations> generations;  // used by commits, one at a time
    uint32_t ranks = 1;                               // of all groups
    bool unused = false;                              // the store has no commits
    DurableTensors tensors STW_GUARDED_BY(runtime_lock);
};

// A commit under way.
struct CommitWork {
    std::vector<stw_tensor *> tensors;  // durable; under the claim, so they live
    residency::ClaimId claim = 0;
    std::string label;
    std::string metadata;
    std::unordered_set<residency::TensorId> stale;  // masters older than their parameters
    Status cause;                                   // why this rank cannot take part
    bool complete = false;                          // fails if a resumed tensor is left out
    uint32_t left_out = 0;
    residency::Instant begin = 0;
    residency::Instant deadline = residency::kNever;
    bool done STW_GUARDED_BY(runtime_lock) = false;  // after that the rest belongs to the caller
    Status status;
    uint64_t generation = 0;
};

}  // namespace stepwell
