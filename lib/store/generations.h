// SPDX-License-Identifier: Apache-2.0
// The generations of a store that stays: which there are, how one more is taken, and which a crash
// has left. A file beside the first path's has a region for each manifest that is kept and one
// more; nothing points at a region, so no pointer can be torn: a manifest counts if its checksum
// holds.
// Flushes and small requests only, in the thread that calls; one thread at a time. Must not know
// tensors beyond their entries in a manifest, nor ranks: who has to agree does so between prepare()
// and its end.
//
// THE RULE. A manifest that may be on the disk keeps its slots until it is known to be erased, or
// to be older than what can be resumed: that are as many as are kept, of those that all ranks have.
#pragma once

#include "lib/store/manifest.h"
#include "lib/store/store.h"
#include "lib/support/status.h"

#include <stepwell/driver.h>

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stepwell::store {

constexpr uint32_t kGenerationsMax = kKeepsMax - 1;  // kept at once
constexpr uint64_t kMetadataBytesMax = 1ull << 20;   // of the program, in a generation

struct GenerationsOptions {
    const stw_services *services = nullptr;  // borrowed until they are gone, as the store
    Stay stay = Stay::kCreate;               // not kScratch
    std::string name;                        // of the file
    std::string driver_options;              // of the first path
    uint32_t kept = 2;                       // 1 to kGenerationsMax
    uint64_t timeout_ns = 30'000'000'000;    // of a manifest that is read or written
};

// What is known of one without its tensors.
struct GenerationInfo {
    GenerationId id;
    uint64_t time_unix_ns = 0;
    uint64_t tensors = 0;
    uint64_t bytes = 0;
    uint32_t left_out = 0;
    std::string label;
    std::string metadata;
};

// What can be resumed, the newest first: of those that all ranks have found as many as are kept. An
// older one may be found as well; it was dropped where the newest was committed.
std::vector<GenerationId> resumable(const std::vector<std::vector<GenerationId>> &found,
                                    uint32_t kept);

class Generations {
public:
    // Bytes of the file, for a store of so many slots; and of them for one manifest.
    static uint64_t file_bytes(uint64_t slots, uint32_t kept);
    static uint64_t region_bytes(uint64_t slots);

    // By the driver of the store's first path, in its directory. With kOpen NOT_FOUND where the
    // file is of a store that is no more. Blocks.
    static Result<std::unique_ptr<Generations>> open(const GenerationsOptions &options,
                                                     Store &store);
    ~Generations();
    Generations(const Generations &) = delete;
    Generations &operator=(const Generations &) = delete;
    Status close(uint64_t wait_ns);

    // ---- reopening -----------------------------------------------------------------------------
    // Those that are whole on this disk, the newest first. Others may not have the newest.
    [[nodiscard]] std::vector<GenerationId> found() const;
    // Goes on with one of the resumable. What is newer, and what is not resumable, is erased first,
    // so that it cannot be found again when its slots are others'. Then the store has its slots,
    // and those of the older ones. FORMAT, IO, SYNC. Blocks.
    Result<Manifest> resume(const GenerationId &id, const std::vector<GenerationId> &resumable);
    // Slots that what was resumed keeps, by the tensor that has them; those of several count once.
    [[nodiscard]] const std::map<std::string, uint64_t> &slots_by_tensor() const
    {
        return slots_by_tensor_;
    }
    // Why a region that holds something is not among those found; "" if there is none. One that was
    // being written when the power went looks as one that has rotted.
    [[nodiscard]] const std::string &damage() const { return damage_; }

    // ---- one more ------------------------------------------------------------------------------
    // The number that the next one has.
    [[nodiscard]] uint64_t next_number() const;
    // The set in which the store is to keep its blocks. SYNC, or why no more can be taken.
    Result<uint32_t> begin();
    // Flushes the blocks, then writes the manifest and flushes that. `kept` is filled in here.
    // After an error the attempt is to be refused. LIMIT, IO, SYNC, TIMEOUT. Blocks.
    Status prepare(Manifest manifest);
    // All that have to have prepared have: it is the newest, and the oldest goes where there are
    // more than are kept.
    void commit();
    // Somebody has not: it is erased and its slots are free. Where it cannot be erased they stay,
    // and no more can be taken. Blocks.
    Status refuse();
    // Nobody knows whether all have. Both this one and the one before stay; no more can be taken.
    // Blocks.
    void doubt(const Status &why);

    // Why no more can be taken until the store is opened again; OK: they can. What was undecided
    // or could not be erased keeps its slots, so that blocks that change may find none.
    [[nodiscard]] const Status &stuck() const { return stuck_; }
    [[nodiscard]] uint32_t kept_max() const { return kept_; }
    // The newest first.
    [[nodiscard]] const std::vector<GenerationInfo> &infos() const { return infos_; }
    // What a manifest has room for.
    [[nodiscard]] uint64_t manifest_bytes_max() const { return region_bytes_; }
    [[nodiscard]] uint64_t bytes() const;  // of the file

private:
    struct Region {
        GenerationId id;
        std::vector<GenerationId> kept;
        bool whole = false;  // a manifest is there, as far as is known
    };

    Generations(const GenerationsOptions &options, Store &store);
    Status open_file(bool finds);
    Status write_header();
    Status read_header();
    Status look_at(uint32_t region);
    void count_slots(const Manifest &manifest);
    Result<Manifest> read(uint32_t region);
    Status erase(const std::vector<uint32_t> &regions);
    Status flush();
    [[nodiscard]] uint64_t offset_of(uint32_t region) const;
    [[nodiscard]] uint32_t region_of(const GenerationId &id) const;
    void drop_oldest();
    [[nodiscard]] bool is_kept(uint32_t region) const;

    const GenerationsOptions options_;
    Store &store_;
    const std::string path_;
    const stw_storage_ops &ops_;
    stw_storage *storage_ = nullptr;
    uint32_t kept_ = 0;
    uint64_t region_bytes_ = 0;
    std::vector<Region> regions_;
    std::vector<GenerationInfo> infos_;
    std::map<std::string, uint64_t> slots_by_tensor_;
    std::set<std::pair<uint32_t, uint32_t>> slots_counted_;  // path and slot
    std::string damage_;
    GenerationInfo attempt_;
    uint32_t attempt_region_ = UINT32_MAX;
    bool attempt_written_ = false;  // some of it may be on the disk
    Status stuck_;                  // why no more can be taken
};

}  // namespace stepwell::store
