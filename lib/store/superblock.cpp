// SPDX-License-Identifier: Apache-2.0
// Superblock fields to bytes and back; a field that makes no sense is refused by name.
#include "lib/store/superblock.h"

#include "lib/store/checksum.h"

#include <cstring>

namespace stepwell::store {

namespace {

constexpr uint8_t kSuperblockMagic[8] = {'S', 'T', 'W', 'E', 'L', 'L', '\r', '\n'};
constexpr uint64_t kZerosAt = 80;
constexpr uint64_t kSumAt = kSuperblockBytes - 8;

template <class T> void put(uint8_t *at, T value)
{
    for (size_t i = 0; i < sizeof(T); ++i) at[i] = static_cast<uint8_t>(value >> (8 * i));
}

template <class T> T get(const uint8_t *at)
{
    T value = 0;
    for (size_t i = 0; i < sizeof(T); ++i)
        value |= static_cast<T>(static_cast<T>(at[i]) << (8 * i));
    return value;
}

Status refuse(const char *name, const char *field, uint64_t found, const char *wanted)
{
    return Status::error(STW_ERROR_FORMAT,
                         "The superblock of '%s' is damaged or foreign: %s is %llu, not %s.", name,
                         field, static_cast<unsigned long long>(found), wanted);
}

Status check_frame(const uint8_t *bytes, const char *name)
{
    if (std::memcmp(bytes, kSuperblockMagic, sizeof kSuperblockMagic) != 0) {
        return Status::error(STW_ERROR_FORMAT, "'%s' holds no Stepwell store: no magic.", name);
    }
    const auto version = get<uint32_t>(bytes + 8);
    if (version != kFormatVersion) {
        return Status::error(STW_ERROR_FORMAT,
                             "'%s' has format version %u; this build reads version %u.", name,
                             version, kFormatVersion);
    }
    const auto found = get<uint64_t>(bytes + kSumAt);
    const uint64_t expected = checksum(bytes, kSumAt, 0);
    if (found != expected) {
        return Status::error(STW_ERROR_FORMAT,
                             "The superblock of '%s' is damaged: it says checksum %016llx, its "
                             "bytes sum to %016llx.",
                             name, static_cast<unsigned long long>(found),
                             static_cast<unsigned long long>(expected));
    }
    const auto size = get<uint32_t>(bytes + 12);
    if (size != kSuperblockBytes) return refuse(name, "its size", size, "4096");
    const auto kind = get<uint32_t>(bytes + 76);
    if (kind != kChecksumXxh3) return refuse(name, "the kind of checksums", kind, "1");
    for (uint64_t i = kZerosAt; i < kSumAt; ++i) {
        if (bytes[i] != 0) return refuse(name, "a reserved byte", bytes[i], "0");
    }
    return {};
}

Status check_fields(const Superblock &superblock, uint64_t path_bytes, const char *name)
{
    const uint64_t block_bytes = superblock.block_bytes;
    if (block_bytes == 0 || (block_bytes & (block_bytes - 1)) != 0) {
        return refuse(name, "the block size", block_bytes, "a power of two");
    }
    if (superblock.slots_offset != kReservedBytes) {
        return refuse(name, "the offset of slot 0", superblock.slots_offset, "1048576");
    }
    if (superblock.path_count == 0) return refuse(name, "the number of paths", 0, "1 or more");
    if (superblock.path_index >= superblock.path_count) {
        return refuse(name, "the path's index", superblock.path_index, "below the number of paths");
    }
    if (path_bytes < kReservedBytes || superblock.slots == 0 ||
        superblock.slots > (path_bytes - kReservedBytes) / block_bytes) {
        return refuse(name, "the number of slots", superblock.slots, "what the path has room for");
    }
    if (superblock.total_slots < superblock.slots ||
        (superblock.path_count == 1 && superblock.total_slots != superblock.slots)) {
        return refuse(name, "the number of slots of all paths", superblock.total_slots,
                      "the sum over the paths");
    }
    if ((superblock.flags & ~kFlagScratch) != 0) {
        return refuse(name, "the flags word", superblock.flags, "made of known bits");
    }
    return {};
}

}  // namespace

void encode(const Superblock &superblock, uint8_t *out)
{
    std::memset(out, 0, kSuperblockBytes);
    std::memcpy(out, kSuperblockMagic, sizeof kSuperblockMagic);
    put<uint32_t>(out + 8, kFormatVersion);
    put<uint32_t>(out + 12, kSuperblockBytes);
    std::memcpy(out + 16, superblock.uuid.data(), superblock.uuid.size());
    put<uint64_t>(out + 32, superblock.block_bytes);
    put<uint64_t>(out + 40, superblock.slots);
    put<uint64_t>(out + 48, superblock.slots_offset);
    put<uint32_t>(out + 56, superblock.path_index);
    put<uint32_t>(out + 60, superblock.path_count);
    put<uint64_t>(out + 64, superblock.total_slots);
    put<uint32_t>(out + 72, superblock.flags);
    put<uint32_t>(out + 76, kChecksumXxh3);
    put<uint64_t>(out + kSumAt, checksum(out, kSumAt, 0));
}

Result<Superblock> decode(const uint8_t *bytes, uint64_t path_bytes, const char *name)
{
    STW_TRY(check_frame(bytes, name));
    Superblock superblock;
    std::memcpy(superblock.uuid.data(), bytes + 16, superblock.uuid.size());
    superblock.block_bytes = get<uint64_t>(bytes + 32);
    superblock.slots = get<uint64_t>(bytes + 40);
    superblock.slots_offset = get<uint64_t>(bytes + 48);
    superblock.path_index = get<uint32_t>(bytes + 56);
    superblock.path_count = get<uint32_t>(bytes + 60);
    superblock.total_slots = get<uint64_t>(bytes + 64);
    superblock.flags = get<uint32_t>(bytes + 72);
    STW_TRY(check_fields(superblock, path_bytes, name));
    return superblock;
}

}  // namespace stepwell::store
