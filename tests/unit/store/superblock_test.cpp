// SPDX-License-Identifier: Apache-2.0
// Claims about the superblock's bytes.
#include "lib/store/superblock.h"

#include "lib/store/checksum.h"

#include <gtest/gtest.h>

#include <cstring>

namespace stepwell::store {
namespace {

constexpr uint64_t kPathBytes = kReservedBytes + 64 * 65536;

Superblock superblock_of()
{
    Superblock superblock;
    for (uint8_t i = 0; i < 16; ++i) superblock.uuid[i] = static_cast<uint8_t>(i + 1);
    superblock.block_bytes = 65536;
    superblock.slots = 64;
    superblock.path_index = 1;
    superblock.path_count = 3;
    superblock.total_slots = 192;
    return superblock;
}

struct SuperblockBytes {
    uint8_t bytes[kSuperblockBytes];
    SuperblockBytes() { encode(superblock_of(), bytes); }
    void put(uint64_t at, uint64_t value, uint32_t size)
    {
        for (uint32_t i = 0; i < size; ++i) bytes[at + i] = static_cast<uint8_t>(value >> (8 * i));
    }
    // A field of another value under a checksum that is right.
    Status with(uint64_t at, uint64_t value, uint32_t size)
    {
        put(at, value, size);
        put(4088, checksum(bytes, 4088, 0), 8);
        return read();
    }
    Status read()
    {
        Result<Superblock> result = decode(bytes, kPathBytes, "/disk");
        return result.ok() ? Status() : result.status();
    }
};

TEST(Superblock, RoundTripKeepsEveryField)
{
    SuperblockBytes image;
    Result<Superblock> result = decode(image.bytes, kPathBytes, "/disk");
    ASSERT_TRUE(result.ok()) << result.status().sentence();
    EXPECT_EQ(result.value(), superblock_of());
}

TEST(Superblock, LayoutIsLittleEndianAtFixedOffsets)
{
    const SuperblockBytes image;
    EXPECT_EQ(std::memcmp(image.bytes, "STWELL\r\n", 8), 0);
    EXPECT_EQ(image.bytes[8], kFormatVersion);
    EXPECT_EQ(image.bytes[16], 1);
    EXPECT_EQ(image.bytes[34], 1);  // 65536
    EXPECT_EQ(image.bytes[40], 64);
    EXPECT_EQ(image.bytes[56], 1);
    EXPECT_EQ(image.bytes[60], 3);
    EXPECT_EQ(image.bytes[64], 192);
}

TEST(Superblock, EveryFlippedBitIsFound)
{
    for (uint64_t bit = 0; bit < kSuperblockBytes * 8; ++bit) {
        SuperblockBytes image;
        image.bytes[bit / 8] = static_cast<uint8_t>(image.bytes[bit / 8] ^ (1u << (bit % 8)));
        ASSERT_EQ(image.read().code(), STW_ERROR_FORMAT) << "bit " << bit;
    }
}

TEST(Superblock, EachFieldThatMakesNoSenseIsRefusedByName)
{
    const struct {
        uint64_t at;
        uint64_t value;
        uint32_t size;
        const char *says;
    } cases[] = {
        {0, 'X', 1, "no magic"},
        {8, 2, 4, "format version 2"},
        {12, 512, 4, "its size"},
        {32, 65537, 8, "block size"},
        {32, 0, 8, "block size"},
        {40, 0, 8, "number of slots"},
        {40, 65, 8, "number of slots"},
        {40, UINT64_MAX, 8, "number of slots"},
        {48, 4096, 8, "offset of slot 0"},
        {56, 3, 4, "path's index"},
        {60, 0, 4, "number of paths"},
        {64, 63, 8, "slots of all paths"},
        {72, 2, 4, "flags"},
        {76, 2, 4, "kind of checksums"},
        {80, 1, 1, "reserved byte"},
        {4087, 1, 1, "reserved byte"},
    };
    for (const auto &field : cases) {
        SuperblockBytes image;
        const Status status = image.with(field.at, field.value, field.size);
        EXPECT_EQ(status.code(), STW_ERROR_FORMAT) << field.says;
        EXPECT_NE(std::strstr(status.sentence(), field.says), nullptr) << status.sentence();
        EXPECT_NE(std::strstr(status.sentence(), "/disk"), nullptr) << status.sentence();
    }
}

}  // namespace
}  // namespace stepwell::store
