// SPDX-License-Identifier: Apache-2.0
// Addresses and pages of all devices. The addresses that users see are never accessible: touching
// one from the host crashes, as it would with a device. The double works through a second range of
// the same size, the alias, in which pages of one memory file are mapped.
//
// File offsets are never used twice, so they name physical memory for as long as anybody may ask
// what touched it.
#pragma once

#include <cstdint>
#include <map>

namespace stepwell::cuda_double {

inline constexpr uint64_t kPageBytes = 4096;

class Space {
public:
    Space() = default;
    Space(const Space &) = delete;
    Space &operator=(const Space &) = delete;
    ~Space();

    // Room for several times that memory. False where the system refuses it.
    bool open(uint64_t memory_bytes);
    bool contains(uint64_t address) const { return address - base_ < bytes_; }
    // A host address is its own alias.
    void *alias(uint64_t address) const;

    // Addresses: at `wish` if that is free, else anywhere; 0: there are none left.
    uint64_t take(uint64_t bytes, uint64_t alignment, uint64_t wish);
    void give(uint64_t address) { taken_.erase(address); }

    // Pages: an offset in the file; they hold zeros.
    uint64_t make_pages(uint64_t bytes);
    void drop_pages(uint64_t offset, uint64_t bytes);

    bool show(uint64_t address, uint64_t offset, uint64_t bytes);
    void hide(uint64_t address, uint64_t bytes);

private:
    bool is_free(uint64_t address, uint64_t bytes) const;
    uint64_t find(uint64_t from, uint64_t bytes, uint64_t alignment) const;

    uint64_t base_ = 0;
    uint64_t alias_base_ = 0;
    uint64_t bytes_ = 0;
    uint64_t cursor_ = 0;  // addresses are reused late, so that a stale one is noticed
    uint64_t file_end_ = 0;
    int file_ = -1;
    std::map<uint64_t, uint64_t> taken_;  // address to bytes
};

}  // namespace stepwell::cuda_double
