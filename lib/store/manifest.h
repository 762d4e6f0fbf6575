// SPDX-License-Identifier: Apache-2.0
// The manifest: what one generation of one rank is made of. Encoding, decoding and every check of a
// field; the bytes come from a disk, so nothing in them is believed. Pure: bytes in, structure or
// sentence out. Must not know drivers, files or the runtime.
//
// LAYOUT, little endian, format version 2; version 1 has no region. All of it is under one
// checksum, so what was written in part is no manifest.
//
//    offset  bytes  field
//         0      8  magic "STWGEN\r\n"
//         8      4  format version
//        12      4  tensors of the generation before that were not made again
//        16      8  bytes of the manifest, this header and the checksum included
//        24     16  UUID of the store
//        40      8  number of the generation
//        48      8  its token
//        56      8  nanoseconds since 1970 when it was taken
//        64      4  generations that were kept beside it: number and token, 16 bytes each
//        68      4  blocks: path, slot, number when written, writes of the slot, bytes (4 each),
//                   sum (8)
//        72      4  tensors: bytes (8), offset in its blocks (8), flags (4), count of blocks (4)
//                   and their indexes (4 each), name, words
//        76      4  counts: a count (8) and its name
//        80      8  region of the file for which it was written
//        88         kept, blocks, tensors, counts; label and the program's metadata. Text is its
//                   length (4) and its bytes
//       end      8  XXH3-64 of all bytes before
#pragma once

#include "lib/store/store.h"
#include "lib/support/status.h"

#include <cstdint>
#include <string>
#include <vector>

namespace stepwell::store {

constexpr uint64_t kManifestHeaderBytes = 80;  // of version 1
constexpr uint64_t kAnyRegion = UINT64_MAX;
constexpr uint32_t kNoBlock = UINT32_MAX;

// Which generation: a number that grows, and what tells two attempts at one number apart.
struct GenerationId {
    uint64_t number = 0;
    uint64_t token = 0;
    bool operator==(const GenerationId &) const = default;
    auto operator<=>(const GenerationId &) const = default;
};

struct StoredTensor {
    enum Flags : uint32_t {
        kHasContents = 1,
        kShares = 2  // its block with others
    };
    std::string name;
    std::string words;  // dtype, shape and partition: whoever finds it wants the same
    uint64_t bytes = 0;
    uint64_t offset = 0;  // in its first block
    uint32_t flags = 0;
    std::vector<uint32_t> blocks;  // of Manifest::blocks; kNoBlock: zeros
    bool operator==(const StoredTensor &) const = default;
};

struct StoredCount {
    std::string name;
    uint64_t count = 0;
    bool operator==(const StoredCount &) const = default;
};

struct Manifest {
    GenerationId id;
    uint64_t region = kAnyRegion;    // kAnyRegion: in version 1, which does not say
    std::vector<GenerationId> kept;  // the newest first, without itself
    uint64_t time_unix_ns = 0;
    uint32_t left_out = 0;  // tensors of the generation before that were not made again
    std::string label;
    std::string metadata;
    std::vector<Placement> blocks;
    std::vector<StoredTensor> tensors;
    std::vector<StoredCount> counts;
};

std::vector<uint8_t> encode(const Manifest &manifest, const Uuid &uuid);
// What the header alone says: the bytes of the manifest that begins there; 0: none does.
uint64_t manifest_bytes(const uint8_t *header, uint64_t most);
// Whether it begins as one of that store, whatever became of the rest.
bool is_of_store(const uint8_t *header, const Uuid &uuid);
// Of the bytes in that region. FORMAT, with what is wrong; `name` is the file in the sentence.
Result<Manifest> decode_manifest(const uint8_t *bytes, uint64_t size, const Uuid &uuid,
                                 uint64_t region, const char *name);

// Of a tensor in a manifest.
uint64_t stored_bytes(size_t name, size_t words, uint64_t blocks);

}  // namespace stepwell::store
