// SPDX-License-Identifier: Apache-2.0
// The memory of one device that is ours: blocks at a range of addresses that never moves. Where the
// device can place memory at addresses, each block has a handle of its own, so that the memory
// behind it can go back and come again, or, where it is to be permanent, there are as few handles
// as can be; else all of it is one allocation that stays. Of a device that shares the host's memory
// it is that.
// Inside a Scope; any thread, several at once for different blocks.
#pragma once

#include <stepwell/driver.h>

#include "drivers/common/mutex.h"
#include "drivers/cuda/copies.h"
#include "drivers/cuda/shared.h"

#include <memory>
#include <string>
#include <vector>

namespace stepwell::drivers::cuda {

class Arena {
public:
    Arena(const Context &context, Copies &copies) : context_(context), copies_(copies) {}
    Arena(const Arena &) = delete;
    Arena &operator=(const Arena &) = delete;
    ~Arena();  // nothing uses it any more

    int open(uint64_t bytes, uint64_t block_bytes, Pieces pieces);  // CUDA's error
    stw_status open_shared(const stw_memory_options &options, int node,
                           stw_driver_error *error_out);

    Address base() const { return base_; }
    bool contains(const void *pointer) const
    {
        return reinterpret_cast<Address>(pointer) - base_ < bytes_;
    }
    uint64_t bytes() const { return bytes_; }
    uint64_t block_bytes() const { return block_bytes_; }
    bool in_range(uint32_t first, uint32_t count) const;
    // Its memory can be seen at other addresses too.
    bool is_mapped() const { return reserved_ != 0; }
    // In large handles, where they can be seen at other addresses; nothing is given back.
    bool is_permanent() const { return pieces_ != Pieces::kBlocks && is_mapped(); }
    bool stays() const { return !shared_ && (pieces_ != Pieces::kBlocks || reserved_ == 0); }
    bool is_one_handle() const { return pieces_ == Pieces::kOne && stays(); }
    // The blocks of one handle: they are mapped together.
    struct Piece {
        uint32_t first = 0;
        uint32_t blocks = 1;
    };
    Piece piece_of(uint32_t block) const;
    // 0: no memory, or not the first block of a piece.
    MemoryHandle handle(uint32_t block);
    uint64_t largest_piece() const;  // bytes
    int allow(Address address, uint64_t bytes) const;
    bool huge_pages() const { return shared_ && shared_->huge_pages(); }
    const std::string &remark() const { return remark_; }
    void add_remark(const std::string &sentence) { add_sentence(&remark_, sentence); }

    // Waits for the copies that were begun and what they come behind, a second at most: TIMEOUT,
    // and nothing has changed.
    stw_status give_back(uint32_t first, uint32_t count);
    stw_status take_back(uint32_t first, uint32_t count, stw_driver_error *error_out);

private:
    const MappingApi &mapping() const { return context_.library().mapping; }
    bool can_map();
    int open_plain();
    int open_mapped();
    int create(uint64_t bytes, MemoryHandle *handle_out);
    int open_pieces() STW_REQUIRES(mutex_);
    int back(uint32_t block) STW_REQUIRES(mutex_);
    int unback(uint32_t block) STW_REQUIRES(mutex_);
    Address address_of(uint32_t block) const { return base_ + block * block_bytes_; }
    stw_status await_copies();

    const Context &context_;
    Copies &copies_;
    MemoryProperties properties_;
    std::string remark_;
    uint64_t bytes_ = 0;
    uint64_t block_bytes_ = 0;
    Pieces pieces_ = Pieces::kBlocks;
    std::unique_ptr<SharedArena> shared_;
    Address allocated_ = 0;  // of cuMemAlloc
    Address reserved_ = 0;   // of cuMemAddressReserve
    Address base_ = 0;
    Mutex mutex_;
    std::vector<MemoryHandle> handles_ STW_GUARDED_BY(mutex_);  // by block, or first of a piece
};

}  // namespace stepwell::drivers::cuda
