// SPDX-License-Identifier: Apache-2.0
// The memory that the library has on one device: blocks at a range of addresses that never moves.
// If the device can place memory at chosen addresses, each block has its own handle, so that its
// memory can be decommitted and recommitted; a permanent arena has as few handles as possible.
// Otherwise the arena is one permanent allocation. On a device that shares the host's memory it is
// host memory. Inside a Scope; any thread, several at once for different blocks.
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
    ~Arena();  // no work uses it any more

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
    // Its memory can be mapped at other addresses too.
    bool is_mapped() const { return reserved_ != 0; }
    // In large handles, if they can be mapped at other addresses; nothing is given back.
    bool is_permanent() const { return pieces_ != Pieces::kBlocks && is_mapped(); }
    bool stays() const { return !shared_ && (pieces_ != Pieces::kBlocks || reserved_ == 0); }
    bool is_one_handle() const { return pieces_ == Pieces::kOne && stays(); }
    // The blocks of one handle, which are mapped together.
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

    // Waits, a second at most, for the copies that were started and for the work that they are
    // ordered after. TIMEOUT: nothing has changed.
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
