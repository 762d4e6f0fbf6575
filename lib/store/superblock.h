// SPDX-License-Identifier: Apache-2.0
// The superblock: what the first bytes of every path say about it. Encoding, decoding and every
// check of a field. Pure: bytes in, structure or sentence out. Must not know drivers or slots.
//
// LAYOUT, little endian, format version 1, 4096 bytes at offset 0 of a path:
//
//    offset  bytes  field
//         0      8  magic "STWELL\r\n"; the line end finds transfers that were made as text
//         8      4  format version
//        12      4  bytes of the superblock: 4096
//        16     16  UUID of the store, the same on all its paths
//        32      8  bytes of a block
//        40      8  slots of this path
//        48      8  offset of slot 0; slot i is at that + i x bytes of a block
//        56      4  index of this path
//        60      4  number of paths of the store
//        64      8  slots of all paths
//        72      4  flags: 1 scratch (ends with the process; nothing in it is to be recovered)
//        76      4  kind of the checksums: 1 XXH3-64
//        80   4008  zero
//      4088      8  XXH3-64 of the 4088 bytes before
//
// The rest of the first 1 MiB of a path is reserved: slots stay aligned to what file systems and
// drives stripe by.
#pragma once

#include "lib/support/status.h"

#include <array>
#include <cstdint>

namespace stepwell::store {

using Uuid = std::array<uint8_t, 16>;

constexpr uint32_t kFormatVersion = 1;
constexpr uint64_t kSuperblockBytes = 4096;
constexpr uint64_t kReservedBytes = 1ull << 20;  // before slot 0
constexpr uint32_t kFlagScratch = 1;

struct Superblock {
    Uuid uuid{};
    uint64_t block_bytes = 0;
    uint64_t slots = 0;
    uint64_t slots_offset = kReservedBytes;
    uint32_t path_index = 0;
    uint32_t path_count = 0;
    uint64_t total_slots = 0;
    uint32_t flags = kFlagScratch;
    bool operator==(const Superblock &) const = default;
};

// `out` has kSuperblockBytes.
void encode(const Superblock &superblock, uint8_t *out);
// FORMAT, with the field and its value; `name` is the path in the sentence. `path_bytes` is what
// the path really has.
Result<Superblock> decode(const uint8_t *bytes, uint64_t path_bytes, const char *name);

}  // namespace stepwell::store
