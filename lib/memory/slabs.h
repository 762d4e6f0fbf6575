// SPDX-License-Identifier: Apache-2.0
// Slabs: pieces of one fixed range of memory. Small ones are slots of a page, larger ones runs of
// pages, neither rounded up to a power of two. All it remembers lies outside the range, in a table
// made at once: nothing written past the end of a piece hurts it, and what is no piece is known.
// One thread at a time. Knows offsets alone, never touches the range.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

namespace stepwell::memory {

class Slabs {
public:
    static constexpr uint64_t kPageBytes = 4096;
    static constexpr uint64_t kSlotBytesMin = 64;  // what every piece is aligned to
    static constexpr uint64_t kNowhere = UINT64_MAX;

    // The range is aligned to `align_bytes` at least, as is what is asked of it.
    explicit Slabs(uint64_t bytes);

    // The offset of a piece, kNowhere when there is no room. align_bytes is a power of two.
    uint64_t take(uint64_t bytes, uint64_t align_bytes);
    // False, and nothing changes, when no piece begins there.
    bool give(uint64_t offset);

    [[nodiscard]] uint64_t used_bytes() const { return used_bytes_; }  // of pieces, rounded up
    [[nodiscard]] uint64_t pieces() const { return pieces_; }
    // Of one piece that would be found now.
    [[nodiscard]] uint64_t largest_bytes() const;
    [[nodiscard]] uint64_t metadata_bytes() const { return pages_.capacity() * sizeof(Page); }

private:
    enum class State : uint8_t { kInside, kFree, kRun, kSlab };
    static constexpr uint32_t kNone = UINT32_MAX;
    static constexpr uint32_t kClasses = 6;  // slots of 64, 128, ... 2048 bytes
    static constexpr uint32_t kBins = 32;    // free runs by the binary digits of their length

    struct Page {
        uint64_t slots = 0;     // of a slab: a bit per slot that is taken
        uint32_t length = 0;    // of a run: at its first page, of a free one at its last too
        uint32_t next = kNone;  // free runs of a bin, slabs of a class with slots left
        uint32_t previous = kNone;
        State state = State::kInside;
        uint8_t slab_class = 0;
    };

    void link(uint32_t *head, uint32_t page);
    void unlink(uint32_t *head, uint32_t page);
    static uint32_t bin_of(uint32_t length);
    void add_free(uint32_t first, uint32_t length);
    void remove_free(uint32_t first);
    [[nodiscard]] uint32_t find_run(uint32_t length, uint32_t align, uint32_t *at_out) const;
    uint32_t take_run(uint32_t length, uint32_t align);
    void give_run(uint32_t first);
    uint64_t take_slot(uint32_t slab_class);
    bool give_slot(uint32_t page, uint64_t within);

    std::vector<Page> pages_;
    std::array<uint32_t, kBins> free_;
    std::array<uint32_t, kClasses> slabs_;
    uint64_t used_bytes_ = 0;
    uint64_t pieces_ = 0;
};

}  // namespace stepwell::memory
