// SPDX-License-Identifier: Apache-2.0
// The nvme tier: physical slots over one or more storage paths, which block lies in which slot, and
// the checksum of every block, kept outside it. Opens the drivers and their superblocks; sends no
// block itself: whoever moves bytes asks here where, seals before a write, verifies after a read.
// What a generation keeps is not written over: the block gets another slot. Which generations there
// are is not known here (generations.h). Must not know queues, tensors or tiers other than its own.
#pragma once

#include <stepwell/driver.h>

#include "lib/residency/types.h"
#include "lib/store/bandwidth.h"
#include "lib/store/storage_path.h"
#include "lib/support/status.h"
#include "lib/support/thread_annotations.h"

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace stepwell::store {

using residency::BlockId;

constexpr uint32_t kPathsMax = 64;
constexpr uint32_t kSlotsMax = UINT32_MAX - 1;  // over all paths

// Sets of slots that are kept, by number: a generation's region.
constexpr uint32_t kKeepsMax = 8;

// Where a block lies, and what its bytes must sum to. A copy: valid from begin_* to end_*.
struct Placement {
    uint32_t path = 0;
    uint32_t slot = 0;                     // of that path
    BlockId sealed_as = residency::kNone;  // the block's number when it was written
    uint32_t generation = 0;               // how often the slot was written
    uint64_t bytes = 0;                    // in use
    uint64_t sum = 0;
    uint64_t offset = 0;  // of the slot in the path
};

struct PathStats {
    uint64_t slots = 0;
    uint64_t used_slots = 0;
    uint64_t bytes_per_s = 0;  // measured; 0: nothing yet
};

// THREADS. seal, sum and the questions about paths: any thread, no lock. begin_*, end_*, forget,
// path_*, stats: any thread, under the store's own short lock. open and close: one thread, nothing
// else running. A storage handle is used by one thread at a time, by its driver's rules.
constexpr uint32_t kNowhere = UINT32_MAX;  // no slot, no path

class Store {
public:
    // Bytes a path takes for that many blocks, its superblock included.
    static uint64_t path_bytes(uint64_t blocks, uint64_t block_bytes);
    // Blocks that fit into that many bytes split over `paths` paths, superblocks paid.
    static uint64_t blocks_in(uint64_t bytes, uint64_t block_bytes, uint32_t paths);

    // Opens every driver, writes each superblock and reads it back. Blocks.
    static Result<std::unique_ptr<Store>> open(const StoreOptions &options);
    ~Store();
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;
    // TIMEOUT leaves what still has requests in flight open; call it again.
    Status close(uint64_t wait_ns);

    // Where to write `bytes` of the block: its slot, a new one at its first write. The block is
    // unreadable until end_write says that it was written. BUDGET: no slot is free.
    Result<Placement> begin_write(BlockId block, uint64_t bytes);
    // Where to read the block. INTERNAL: it was not written, or not completely.
    Result<Placement> begin_read(BlockId block);
    // The sum of the bytes about to be written, bound to store, block, slot and generation.
    void seal(Placement &placement, const void *data) const;
    // The sum of the bytes that were read; right when equal to placement.sum.
    [[nodiscard]] uint64_t sum(const Placement &placement, const void *data) const;
    void end_write(const Placement &placement, bool written);
    void end_read(const Placement &placement);
    // The block's slot may be reused, once nobody reads or writes it any more and nothing keeps it.
    void forget(BlockId block);

    // ---- what generations keep -----------------------------------------------------------------
    // The block's slot as it is written now belongs to the set as well. INTERNAL: it is not there,
    // or being written.
    Result<Placement> keep(BlockId block, uint32_t set);
    // Nothing belongs to the set any more; what nobody else needs is free.
    void drop(uint32_t set);
    // Before anybody else uses the store: what a manifest says lies in a slot belongs to the set.
    // FORMAT: there is no such slot, or another manifest says otherwise.
    Status load(const Placement &found, uint32_t set);
    void loaded();  // the last of them: what nothing keeps is free
    // The block's bytes are those of a slot that is kept. EXISTS: they are another block's.
    Status adopt(BlockId block, const Placement &found);
    // Of each path, in their order: what completed so far is on stable storage. SYNC. Blocks.
    Status flush();

    // Live budgets: takes `slots` free slots out of use and gives their space back to the file
    // systems. BUSY when too few are free yet, UNSUPPORTED when a path cannot; nothing has changed
    // then. One call of these two at a time. Blocks.
    Status shrink(uint64_t slots);
    // Takes that many back into use. NO_SPACE, and nothing has changed. Blocks.
    Status grow(uint64_t slots);
    [[nodiscard]] uint64_t resting_slots() const;  // out of use

    // Room for block ids below that, so that begin_write does not allocate.
    void reserve_ids(uint64_t ids);
    [[nodiscard]] uint64_t growth_bytes(uint64_t ids) const;  // that reserve_ids() would add
    [[nodiscard]] bool holds(BlockId block) const;

    // Before anybody else uses the store: what a path is known to do best, and how fast it is,
    // which striping goes by until it has a figure of its own (0: not known).
    void set_requests(uint32_t path, const Requests &reads, const Requests &writes);
    void expect_bandwidth(uint32_t path, uint64_t bytes_per_s);

    // What striping goes by: requests of the path in flight, told by whoever sends them.
    void path_begin(uint32_t path, uint64_t now_ns);
    void path_end(uint32_t path, uint64_t bytes, uint64_t now_ns);

    [[nodiscard]] uint32_t paths() const { return static_cast<uint32_t>(paths_.size()); }
    [[nodiscard]] const stw_storage_ops &ops(uint32_t path) const { return *paths_[path].ops; }
    [[nodiscard]] stw_storage *storage(uint32_t path) const { return paths_[path].storage; }
    [[nodiscard]] const stw_storage_info &info(uint32_t path) const { return paths_[path].info; }
    [[nodiscard]] const std::string &name(uint32_t path) const { return paths_[path].name; }
    [[nodiscard]] const Requests &requests(uint32_t path, bool reads) const
    {
        return reads ? paths_[path].reads : paths_[path].writes;
    }
    // Why it is slower than it could be, and why its fallback was taken; "" if not.
    [[nodiscard]] const std::string &remark(uint32_t path) const { return paths_[path].remark; }
    [[nodiscard]] const Superblock &superblock(uint32_t path) const
    {
        return paths_[path].superblock;
    }
    [[nodiscard]] uint64_t block_bytes() const { return block_bytes_; }
    [[nodiscard]] const Uuid &uuid() const { return uuid_; }
    [[nodiscard]] bool stays() const { return stays_; }
    [[nodiscard]] PathStats path_stats(uint32_t path) const;
    [[nodiscard]] uint64_t used_slots() const;
    [[nodiscard]] uint64_t reserved_bytes() const;  // on all paths, superblocks included
    [[nodiscard]] uint64_t metadata_bytes() const;  // of the index

private:
    // What an nvme block costs in host memory: this, a place in a free list and one in index_.
    struct Slot {
        uint64_t sum = 0;
        BlockId block = residency::kNone;      // whose it is now
        BlockId sealed_as = residency::kNone;  // whose it was when it was written
        uint32_t bytes = 0;
        uint32_t generation = 0;
        uint16_t users = 0;    // begun and not ended
        uint8_t kept = 0;      // a bit for each set
        bool written = false;  // sum and bytes are of what is there
        bool writing = false;

        [[nodiscard]] bool is_free() const
        {
            return block == residency::kNone && users == 0 && kept == 0;
        }
    };
    struct Striping {
        std::vector<uint32_t> free;     // slots of the path, lowest on top
        std::vector<uint32_t> resting;  // out of use, without space behind them
        BandwidthMeter meter;
        int64_t credit = 0;
    };

    Store() = default;
    Status open_all(const StoreOptions &options, const std::vector<uint64_t> &blocks);
    Status open_path(const StoreOptions &options, uint32_t index, uint64_t blocks);
    void remove_files(const StoreOptions &options);
    uint32_t choose_path() STW_REQUIRES(mutex_);
    Result<uint32_t> slot_to_write(BlockId block) STW_REQUIRES(mutex_);
    void leave(uint32_t at) STW_REQUIRES(mutex_);
    bool rest(uint64_t slots, std::vector<uint32_t> *rested);
    void wake(const std::vector<uint32_t> &slots);
    Status take_space(const std::vector<uint32_t> &slots);
    void give_back(uint32_t at) STW_REQUIRES(mutex_);
    Status find_slot(const Placement &found, uint32_t *at_out) const STW_REQUIRES(mutex_);
    Placement placement(uint32_t at) const STW_REQUIRES(mutex_);
    uint32_t path_of(uint32_t at) const;
    uint64_t seed(const Placement &placement) const;

    std::vector<StoragePath> paths_;
    uint64_t block_bytes_ = 0;
    Uuid uuid_{};
    bool stays_ = false;

    mutable Mutex mutex_;
    std::vector<Slot> slots_ STW_GUARDED_BY(mutex_);
    std::vector<uint32_t> index_ STW_GUARDED_BY(mutex_);  // block id to place in slots_
    std::vector<Striping> striping_ STW_GUARDED_BY(mutex_);
};

}  // namespace stepwell::store
