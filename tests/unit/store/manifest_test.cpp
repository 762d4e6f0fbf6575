// SPDX-License-Identifier: Apache-2.0
// Claims about the bytes of a manifest: they come back as they went, and nothing in them is
// believed that is damaged, torn, another store's or larger than what is there.
#include "lib/store/manifest.h"

#include "lib/store/checksum.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>

namespace stepwell::store {
namespace {

using Bytes = std::vector<uint8_t>;

// Offsets of the layout in manifest.h.
constexpr uint64_t kVersionAt = 8;
constexpr uint64_t kLeftOutAt = 12;
constexpr uint64_t kSizeAt = 16;
constexpr uint64_t kUuidAt = 24;
constexpr uint64_t kKeptAt = 64;
constexpr uint64_t kBlocksAt = 68;
constexpr uint64_t kTensorsAt = 72;
constexpr uint64_t kCountsAt = 76;
constexpr uint64_t kSumBytes = 8;
constexpr uint64_t kKeptBytes = 16;
constexpr uint64_t kBlockBytes = 28;
constexpr uint64_t kTensorBytes = 32;
constexpr uint64_t kCountBytes = 12;
constexpr uint64_t kTensorFlags = 16;  // in a tensor
constexpr uint64_t kTensorCount = 20;
constexpr uint64_t kTensorBlocks = 24;
constexpr uint64_t kRegion = 3;  // where it is read

Uuid uuid()
{
    Uuid made{};
    for (uint8_t i = 0; i < 16; ++i) made[i] = static_cast<uint8_t>(i + 1);
    return made;
}

Placement block(uint32_t nth)
{
    Placement place;
    place.path = nth % 2;
    place.slot = 10 + nth;
    place.sealed_as = 1000 + nth;
    place.generation = UINT32_MAX - nth;
    place.bytes = 4096 - nth;
    place.sum = 0x0123456789abcdefull * (nth + 1);
    return place;
}

Manifest sample()
{
    Manifest manifest;
    manifest.id = {7, 0xfedcba9876543210ull};
    manifest.kept = {{6, 61}, {4, 41}};
    manifest.time_unix_ns = 1'700'000'000'000'000'001ull;
    manifest.left_out = 5;
    manifest.label = "epoch 3";
    manifest.metadata = std::string("step\0 42\n", 9);
    for (uint32_t i = 0; i < 3; ++i) manifest.blocks.push_back(block(i));
    StoredTensor whole{
        "layer.weight",  "f32 [4, 256], replicated", 8192, 0, StoredTensor::kHasContents,
        {0, kNoBlock, 1}};
    StoredTensor small{"b", "", 64, 128, StoredTensor::kHasContents | StoredTensor::kShares, {2}};
    StoredTensor empty{"nothing yet", "f16 [0]", 0, 0, 0, {}};
    manifest.tensors = {whole, small, empty};
    manifest.counts = {{"adam", 42}, {"", UINT64_MAX}};
    return manifest;
}

uint64_t blocks_at()
{
    return kManifestHeaderBytes + sample().kept.size() * kKeptBytes;
}

uint64_t tensors_at()
{
    return blocks_at() + sample().blocks.size() * kBlockBytes;
}

uint64_t counts_at()
{
    uint64_t at = tensors_at();
    for (const StoredTensor &tensor : sample().tensors) {
        at += stored_bytes(tensor.name.size(), tensor.words.size(), tensor.blocks.size());
    }
    return at;
}

void put(Bytes &bytes, uint64_t at, uint64_t value, uint32_t size)
{
    for (uint32_t i = 0; i < size; ++i) bytes[at + i] = static_cast<uint8_t>(value >> (8 * i));
}

uint64_t get(const Bytes &bytes, uint64_t at, uint32_t size)
{
    uint64_t value = 0;
    for (uint32_t i = 0; i < size; ++i) value |= uint64_t{bytes[at + i]} << (8 * i);
    return value;
}

// The size and a checksum that is right, so that what else is wrong has to be found.
void seal(Bytes &bytes)
{
    put(bytes, kSizeAt, bytes.size(), 8);
    put(bytes, bytes.size() - kSumBytes, checksum(bytes.data(), bytes.size() - kSumBytes, 0), 8);
}

Status read(const Bytes &bytes)
{
    // A copy of just that size: what is read past its end is found by a sanitizer.
    const auto exact = std::make_unique<uint8_t[]>(bytes.size());
    if (!bytes.empty()) std::memcpy(exact.get(), bytes.data(), bytes.size());
    Result<Manifest> result =
        decode_manifest(exact.get(), bytes.size(), uuid(), kRegion, "/disk/gen");
    return result.ok() ? Status() : result.status();
}

// A field of another value under a checksum that is right.
Status with(uint64_t at, uint64_t value, uint32_t size)
{
    Bytes bytes = encode(sample(), uuid());
    put(bytes, at, value, size);
    put(bytes, bytes.size() - kSumBytes, checksum(bytes.data(), bytes.size() - kSumBytes, 0), 8);
    return read(bytes);
}

void expect_refused(const Status &status, const char *why)
{
    EXPECT_EQ(status.code(), STW_ERROR_FORMAT) << why;
    EXPECT_NE(std::strstr(status.sentence(), "'/disk/gen'"), nullptr) << status.sentence();
    EXPECT_NE(std::strstr(status.sentence(), why), nullptr) << status.sentence();
}

void expect_same(const Manifest &left, const Manifest &right)
{
    EXPECT_EQ(left.id, right.id);
    EXPECT_EQ(left.kept, right.kept);
    EXPECT_EQ(left.time_unix_ns, right.time_unix_ns);
    EXPECT_EQ(left.left_out, right.left_out);
    EXPECT_EQ(left.label, right.label);
    EXPECT_EQ(left.metadata, right.metadata);
    EXPECT_EQ(left.tensors, right.tensors);
    EXPECT_EQ(left.counts, right.counts);
    ASSERT_EQ(left.blocks.size(), right.blocks.size());
    for (size_t i = 0; i < left.blocks.size(); ++i) {
        EXPECT_EQ(left.blocks[i].path, right.blocks[i].path) << i;
        EXPECT_EQ(left.blocks[i].slot, right.blocks[i].slot) << i;
        EXPECT_EQ(left.blocks[i].sealed_as, right.blocks[i].sealed_as) << i;
        EXPECT_EQ(left.blocks[i].generation, right.blocks[i].generation) << i;
        EXPECT_EQ(left.blocks[i].bytes, right.blocks[i].bytes) << i;
        EXPECT_EQ(left.blocks[i].sum, right.blocks[i].sum) << i;
    }
}

TEST(Manifest, RoundTripKeepsEveryField)
{
    const Bytes bytes = encode(sample(), uuid());
    Result<Manifest> found =
        decode_manifest(bytes.data(), bytes.size(), uuid(), kRegion, "/disk/gen");
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    expect_same(found.value(), sample());
    EXPECT_EQ(encode(found.value(), uuid()), bytes);
}

TEST(Manifest, AnEmptyOneIsItsHeaderTwoTextsAndItsSum)
{
    const Bytes bytes = encode(Manifest(), uuid());
    EXPECT_EQ(bytes.size(), kManifestHeaderBytes + 4 + 4 + kSumBytes);
    Result<Manifest> found =
        decode_manifest(bytes.data(), bytes.size(), uuid(), kRegion, "/disk/gen");
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    expect_same(found.value(), Manifest());
}

TEST(Manifest, LayoutIsLittleEndianAtFixedOffsets)
{
    const Bytes bytes = encode(sample(), uuid());
    EXPECT_EQ(std::memcmp(bytes.data(), "STWGEN\r\n", 8), 0);
    EXPECT_EQ(get(bytes, kVersionAt, 4), 1u);
    EXPECT_EQ(get(bytes, kLeftOutAt, 4), 5u);
    EXPECT_EQ(get(bytes, kSizeAt, 8), bytes.size());
    EXPECT_EQ(std::memcmp(&bytes[kUuidAt], uuid().data(), 16), 0);
    EXPECT_EQ(get(bytes, 40, 8), sample().id.number);
    EXPECT_EQ(get(bytes, 48, 8), sample().id.token);
    EXPECT_EQ(get(bytes, 56, 8), sample().time_unix_ns);
    EXPECT_EQ(get(bytes, kKeptAt, 4), 2u);
    EXPECT_EQ(get(bytes, kBlocksAt, 4), 3u);
    EXPECT_EQ(get(bytes, kTensorsAt, 4), 3u);
    EXPECT_EQ(get(bytes, kCountsAt, 4), 2u);
    EXPECT_EQ(get(bytes, kManifestHeaderBytes + kKeptBytes, 8), 4u) << "the second that was kept";
    EXPECT_EQ(get(bytes, blocks_at() + kBlockBytes + 4, 4), 11u) << "the second block's slot";
    EXPECT_EQ(get(bytes, blocks_at() + kBlockBytes + 20, 8), block(1).sum);
    EXPECT_EQ(get(bytes, tensors_at() + kTensorCount, 4), 3u) << "the first tensor's blocks";
    EXPECT_EQ(get(bytes, counts_at(), 8), 42u);
    const uint64_t size = bytes.size() - kSumBytes;
    EXPECT_EQ(get(bytes, size, 8), checksum(bytes.data(), size, 0));
}

TEST(Manifest, StoredBytesAreWhatATensorAdds)
{
    Manifest manifest = sample();
    const size_t before = encode(manifest, uuid()).size();
    const StoredTensor more = sample().tensors[0];
    manifest.tensors.push_back(more);
    EXPECT_EQ(encode(manifest, uuid()).size() - before,
              stored_bytes(more.name.size(), more.words.size(), more.blocks.size()));
}

TEST(Manifest, TheHeaderSaysTheSizeOrThatNoneBegins)
{
    Bytes bytes = encode(sample(), uuid());
    const uint64_t size = bytes.size();
    EXPECT_EQ(manifest_bytes(bytes.data(), size), size);
    EXPECT_EQ(manifest_bytes(bytes.data(), size - 1), 0u) << "more than there is room for";
    put(bytes, kSizeAt, UINT64_MAX, 8);
    EXPECT_EQ(manifest_bytes(bytes.data(), 1 << 20), 0u);
    put(bytes, kSizeAt, kManifestHeaderBytes + kSumBytes - 1, 8);
    EXPECT_EQ(manifest_bytes(bytes.data(), 1 << 20), 0u) << "less than a header and a sum";
    put(bytes, kSizeAt, size, 8);
    bytes[3] ^= 1;
    EXPECT_EQ(manifest_bytes(bytes.data(), 1 << 20), 0u) << "another magic";
    const uint8_t zeros[kManifestHeaderBytes] = {};
    EXPECT_EQ(manifest_bytes(zeros, 1 << 20), 0u) << "erased";
}

// ------------------------------------------------------------------------------------- damage ----

TEST(Manifest, EveryFlippedBitIsRefused)
{
    const Bytes whole = encode(sample(), uuid());
    ASSERT_TRUE(read(whole).ok());
    for (uint64_t bit = 0; bit < whole.size() * 8; ++bit) {
        Bytes bytes = whole;
        bytes[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
        ASSERT_EQ(read(bytes).code(), STW_ERROR_FORMAT) << "bit " << bit;
    }
}

TEST(Manifest, EveryTruncationIsRefused)
{
    const Bytes whole = encode(sample(), uuid());
    for (uint64_t size = 0; size < whole.size(); ++size) {
        const Bytes bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
        ASSERT_EQ(read(bytes).code(), STW_ERROR_FORMAT) << size << " bytes";
    }
}

// The fields themselves end too early then, under a size and a sum that are right.
TEST(Manifest, EveryTruncationUnderARightChecksumIsRefused)
{
    const Bytes whole = encode(sample(), uuid());
    for (uint64_t size = kManifestHeaderBytes + kSumBytes; size < whole.size(); ++size) {
        Bytes bytes(whole.begin(), whole.begin() + static_cast<ptrdiff_t>(size));
        seal(bytes);
        ASSERT_EQ(read(bytes).code(), STW_ERROR_FORMAT) << size << " bytes";
    }
}

TEST(Manifest, BytesBehindItsEndAreRefused)
{
    Bytes bytes = encode(sample(), uuid());
    bytes.push_back(0);
    expect_refused(read(bytes), "says another size");
    seal(bytes);
    expect_refused(read(bytes), "bytes are left behind its end");
}

TEST(Manifest, AnotherVersionIsRefused)
{
    expect_refused(with(kVersionAt, 3, 4), "format version");
    expect_refused(with(kVersionAt, 0, 4), "format version");
}

TEST(Manifest, AnotherStoresIsRefused)
{
    for (uint64_t i = 0; i < 16; ++i) {
        expect_refused(with(kUuidAt + i, 0xff, 1), "it is another store's");
    }
}

// ---------------------------------------------------------------------------- fields that lie ----

// The sentence is that of the look before the lists: one that began to read would have another, and
// one that made room first would have none.
TEST(Manifest, ListsLongerThanTheirBytesAreRefusedBeforeTheyAreMade)
{
    const uint64_t left = encode(sample(), uuid()).size() - kManifestHeaderBytes - kSumBytes;
    const char *const why = "a list is longer than its bytes";
    for (const uint64_t at : {kKeptAt, kBlocksAt, kTensorsAt, kCountsAt}) {
        expect_refused(with(at, UINT32_MAX, 4), why);
        expect_refused(with(at, 1u << 31, 4), why);
    }
    expect_refused(with(kKeptAt, kKeepsMax + 1, 4), why);
    expect_refused(with(kBlocksAt, left / kBlockBytes + 1, 4), why);
    expect_refused(with(kTensorsAt, left / kTensorBytes + 1, 4), why);
    expect_refused(with(kCountsAt, left / kCountBytes + 1, 4), why);
}

TEST(Manifest, ListsOfAnotherLengthThatWouldFitAreRefusedAsWell)
{
    for (const uint64_t at : {kKeptAt, kBlocksAt, kTensorsAt, kCountsAt}) {
        const uint64_t right = get(encode(sample(), uuid()), at, 4);
        EXPECT_TRUE(with(at, right, 4).ok());
        EXPECT_EQ(with(at, right + 1, 4).code(), STW_ERROR_FORMAT) << "at " << at;
        EXPECT_EQ(with(at, right - 1, 4).code(), STW_ERROR_FORMAT) << "at " << at;
    }
}

TEST(Manifest, ATensorOfMoreBlocksThanBytesIsRefusedBeforeTheyAreMade)
{
    const char *const why = "a tensor has more blocks than there are bytes";
    const uint64_t at = tensors_at() + kTensorCount;
    expect_refused(with(at, UINT32_MAX, 4), why);
    const uint64_t left = encode(sample(), uuid()).size() - kSumBytes - (at + 4);
    expect_refused(with(at, left / 4 + 1, 4), why);
}

TEST(Manifest, ATextLongerThanWhatIsLeftIsRefused)
{
    const uint64_t size = encode(sample(), uuid()).size();
    const uint64_t metadata = size - kSumBytes - sample().metadata.size() - 4;
    const uint64_t name = tensors_at() + kTensorBlocks + 4 * sample().tensors[0].blocks.size();
    ASSERT_EQ(get(encode(sample(), uuid()), metadata, 4), sample().metadata.size());
    ASSERT_EQ(get(encode(sample(), uuid()), name, 4), sample().tensors[0].name.size());
    for (const uint64_t length : {uint64_t{UINT32_MAX}, sample().metadata.size() + 1}) {
        expect_refused(with(metadata, length, 4), "it ends in the middle of a field");
    }
    EXPECT_EQ(with(name, UINT32_MAX, 4).code(), STW_ERROR_FORMAT);
    EXPECT_EQ(with(counts_at() + 8, UINT32_MAX, 4).code(), STW_ERROR_FORMAT);
}

TEST(Manifest, ATensorThatNamesABlockThatIsNotThereIsRefused)
{
    const uint64_t at = tensors_at() + kTensorBlocks;
    EXPECT_TRUE(with(at, 2, 4).ok());
    EXPECT_TRUE(with(at, kNoBlock, 4).ok()) << "zeros";
    expect_refused(with(at, 3, 4), "a block that is not in it");
    expect_refused(with(at, kNoBlock - 1, 4), "a block that is not in it");
}

TEST(Manifest, UnknownFlagsAreRefused)
{
    const uint64_t at = tensors_at() + kTensorFlags;
    EXPECT_TRUE(with(at, StoredTensor::kHasContents | StoredTensor::kShares, 4).ok());
    for (uint32_t bit = 2; bit < 32; ++bit) {
        expect_refused(with(at, StoredTensor::kHasContents | 1u << bit, 4), "flags");
    }
}

TEST(Manifest, ATensorWithoutANameIsRefused)
{
    Manifest manifest = sample();
    manifest.tensors[1].name = "";
    expect_refused(read(encode(manifest, uuid())), "a tensor has no name");
}

TEST(Manifest, IsReadInItsOwnRegionAndRefusedInAnother)
{
    Manifest manifest = sample();
    manifest.region = kRegion;
    const Bytes bytes = encode(manifest, uuid());
    EXPECT_EQ(get(bytes, kVersionAt, 4), 2u);
    EXPECT_EQ(get(bytes, kManifestHeaderBytes, 8), kRegion);
    Result<Manifest> found =
        decode_manifest(bytes.data(), bytes.size(), uuid(), kRegion, "/disk/gen");
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    EXPECT_EQ(found.value().region, kRegion);
    expect_same(found.value(), manifest);
    EXPECT_EQ(encode(found.value(), uuid()), bytes);
    for (const uint64_t other : {uint64_t{1}, kRegion + 1, kAnyRegion}) {
        Bytes elsewhere = bytes;
        put(elsewhere, kManifestHeaderBytes, other, 8);
        seal(elsewhere);
        expect_refused(
            read(elsewhere),
            ("written for region " + std::to_string(other) + ", and lies in region 3").c_str());
    }
}

TEST(Manifest, OfVersionOneIsReadInAnyRegion)
{
    const Bytes bytes = encode(sample(), uuid());
    ASSERT_EQ(get(bytes, kVersionAt, 4), 1u);
    Result<Manifest> found = decode_manifest(bytes.data(), bytes.size(), uuid(), 0, "/disk/gen");
    ASSERT_TRUE(found.ok()) << found.status().sentence();
    EXPECT_EQ(found.value().region, kAnyRegion);
}

// Under a right checksum all checks are reached. What is taken nevertheless is a manifest: all that
// it says goes into bytes and comes back.
TEST(Manifest, MutationsNeverCrashAndWhatIsTakenIsWhole)
{
    std::mt19937_64 random(20);
    const Bytes whole = encode(sample(), uuid());
    uint32_t taken = 0;
    for (int round = 0; round < 2000; ++round) {
        Bytes bytes = whole;
        for (uint64_t changes = 1 + random() % 4; changes > 0; --changes) {
            const uint64_t at = random() % (bytes.size() - kSumBytes - 4);
            const uint32_t wide = 1u << (random() % 3);
            const uint64_t values[] = {random(), random() % 16, UINT64_MAX - random() % 4, 0};
            put(bytes, at, values[random() % 4], wide);
        }
        if (random() % 4 == 0) bytes.resize(88 + random() % (2 * bytes.size()));
        seal(bytes);
        Result<Manifest> found =
            decode_manifest(bytes.data(), bytes.size(), uuid(), kRegion, "/disk/gen");
        if (!found.ok()) {
            ASSERT_EQ(found.status().code(), STW_ERROR_FORMAT) << "round " << round;
            continue;
        }
        ++taken;
        EXPECT_EQ(encode(found.value(), uuid()), bytes) << "round " << round;
        for (const StoredTensor &tensor : found.value().tensors) {
            for (const uint32_t at : tensor.blocks) {
                EXPECT_TRUE(at == kNoBlock || at < found.value().blocks.size());
            }
        }
    }
    EXPECT_GT(taken, 100u) << "most of the fields are the program's own";
}

}  // namespace
}  // namespace stepwell::store
