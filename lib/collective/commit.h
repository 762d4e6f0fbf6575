// SPDX-License-Identifier: Apache-2.0
// One generation over all ranks: each writes its part, all give their answers to all, and it is one
// on each rank or on none. Says what a rank tells and does what follows from what it hears; how the
// records travel is the caller's, so a simulation runs the same. The caller's thread throughout.
//
//     begin() -> opening() =exchange=> opened() -> blocks to set(), prepare() -> ballot()
//             =exchange=> close()
#pragma once

#include "lib/collective/agreement.h"
#include "lib/store/generations.h"
#include "lib/support/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::collective {

// Everybody's records are here, whatever they say; else nobody knows what others have heard.
bool is_heard(const std::vector<Record> &records);

class Commit {
public:
    // `token`: random; that of rank 0 counts. `cause`: why this rank cannot take part.
    Commit(store::Generations &generations, std::string name, uint64_t token, Status cause);

    // What this rank tells first: its number, and whether it can.
    Record opening();
    // What all have told, and what agreeing on it came to. OK: write, and prepare.
    Status opened(Status agreed, const std::vector<Record> &ranks);
    // Where the store is to keep the blocks of this generation.
    [[nodiscard]] uint32_t set() const { return set_; }
    // All blocks are there, or why not. Blocks until this rank's part is on the disk.
    void prepare(Result<store::Manifest> manifest);
    // This rank's answer.
    Record ballot() const;
    // What became of it, the same on all ranks: OK, or why not. `heard`: of everybody, as it was
    // published; else it is undecided if this rank's part is there.
    Status close(Status agreed, bool heard);

    [[nodiscard]] const store::GenerationId &id() const { return id_; }

private:
    store::Generations &generations_;
    std::string name_;
    store::GenerationId id_;
    Status mine_;  // why this rank cannot, or has not
    uint32_t set_ = 0;
    bool begun_ = false;
    bool prepared_ = false;
};

// What a rank tells of the generations that it has found, at a reopening.
enum FilesThere : uint32_t { kNoFiles = 0, kSomeFiles = 1, kAllFiles = 2 };
struct FoundGenerations {
    uint32_t count = 0;
    uint16_t files = kNoFiles;  // FilesThere
    uint16_t damaged = 0;       // 1: a manifest is there that cannot be read
    store::GenerationId ids[store::kKeepsMax] = {};
};

FoundGenerations tell(const std::vector<store::GenerationId> &found, bool damaged = false);
// By what all ranks told no generation can ever have been committed, so nothing is lost if the
// store is made anew: there are no files, or all of them with no more than a first one that some
// rank never had. Where a file is missing, or a manifest damaged, nobody knows.
bool is_unused(const std::vector<FoundGenerations> &ranks);
// Of what all ranks told: what can be resumed, the newest first.
std::vector<store::GenerationId> hear(const std::vector<FoundGenerations> &ranks, uint32_t kept);
// The one that is asked for (0: the newest). NOT_FOUND, with what each rank has.
Result<store::GenerationId> choose(const std::vector<store::GenerationId> &resumable,
                                   uint64_t number, const std::vector<FoundGenerations> &ranks,
                                   const std::string &name);

}  // namespace stepwell::collective
