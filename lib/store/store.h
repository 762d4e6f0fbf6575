// SPDX-License-Identifier: Apache-2.0
// The nvme tier: physical slots over one or more storage paths, which block lies in which slot, and
// the checksum of every block, kept outside it. Opens the drivers and their superblocks, and sends
// no block itself: the transfer engine asks here for the place of a block, seals it before a write
// and verifies it after a read. A slot that a generation keeps is not overwritten: the block gets
// another slot. The generations themselves are in generations.h. Must not know queues, tensors or
// tiers other than its own.
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

// The place of a block, and the checksum of its bytes. A copy, valid from begin_* to end_*.
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
    // Bytes of a path with that many blocks, its superblock included.
    static uint64_t path_bytes(uint64_t blocks, uint64_t block_bytes);
    // Blocks that fit into that many bytes split over `paths` paths, superblocks paid.
    static uint64_t blocks_in(uint64_t bytes, uint64_t block_bytes, uint32_t paths);

    // Opens every driver, writes each superblock and reads it back. Blocks.
    static Result<std::unique_ptr<Store>> open(const StoreOptions &options);
    ~Store();
    Store(const Store &) = delete;
    Store &operator=(const Store &) = delete;
    // TIMEOUT: paths with requests in flight stay open; call it again.
    Status close(uint64_t wait_ns);

    // The place to write `bytes` of the block to: its slot, a new one at its first write. The block
    // cannot be read until end_write reports that it was written. BUDGET: no slot is free.
    Result<Placement> begin_write(BlockId block, uint64_t bytes);
    // The place to read the block from. INTERNAL: it was not written, or not completely.
    Result<Placement> begin_read(BlockId block);
    // The sum of the bytes about to be written, bound to store, block, slot and generation.
    void seal(Placement &placement, const void *data) const;
    // The sum of the bytes that were read; right when equal to placement.sum.
    [[nodiscard]] uint64_t sum(const Placement &placement, const void *data) const;
    void end_write(const Placement &placement, bool written);
    void end_read(const Placement &placement);
    // The block's slot may be reused once no read or write uses it and no generation keeps it.
    void forget(BlockId block);
    // The block's slot is the heir's, which has none; nobody reads or writes it.
    void hand_over(BlockId block, BlockId heir);

    // ---- what generations keep -----------------------------------------------------------------
    // The block's slot as it is written now belongs to the set as well. INTERNAL: it is not there,
    // or being written.
    Result<Placement> keep(BlockId block, uint32_t set);
    // Empties the set; slots that no block and no other set needs become free.
    void drop(uint32_t set);
    // Before any other use of the store: adds a slot with the contents that a manifest names to the
    // set. FORMAT: there is no such slot, or another manifest contradicts.
    Status load(const Placement &found, uint32_t set);
    void loaded();  // after the last load: slots that no set keeps are free
    // Gives the block a kept slot. EXISTS: the slot belongs to another block.
    Status adopt(BlockId block, const Placement &found);
    // Puts all completed writes of each path, in order, on stable storage. SYNC. Blocks.
    Status flush();

    // Live budgets: takes `slots` free slots out of use and gives their space back to the file
    // systems. BUSY: too few are free yet; UNSUPPORTED: a path cannot give space back; nothing has
    // changed then. One call of shrink and grow at a time. Blocks.
    Status shrink(uint64_t slots);
    // Takes that many back into use. NO_SPACE, and nothing has changed. Blocks.
    Status grow(uint64_t slots);
    [[nodiscard]] uint64_t resting_slots() const;  // out of use

    // Allocates the index for block ids below `ids`, so that begin_write does not allocate.
    void reserve_ids(uint64_t ids);
    [[nodiscard]] uint64_t growth_bytes(uint64_t ids) const;  // that reserve_ids() would add
    [[nodiscard]] bool holds(BlockId block) const;

    // Before any other use of the store: the requests that are best for a path, and its bandwidth,
    // which striping uses until it has measured its own (0: unknown).
    void set_requests(uint32_t path, const Requests &reads, const Requests &writes);
    void expect_bandwidth(uint32_t path, uint64_t bytes_per_s);

    // Requests of the path in flight, reported by their sender: the input of striping.
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
    // Why it is slower than possible, and why its fallback is used; "" if neither.
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
    // The host memory of an nvme block: this, an entry in a free list and one in index_.
    struct Slot {
        uint64_t sum = 0;
        BlockId block = residency::kNone;      // the block that has it now
        BlockId sealed_as = residency::kNone;  // the block that had it when it was written
        uint32_t bytes = 0;
        uint32_t generation = 0;
        uint16_t users = 0;    // begun and not ended
        uint8_t kept = 0;      // a bit for each set
        bool written = false;  // sum and bytes are those of its contents
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
