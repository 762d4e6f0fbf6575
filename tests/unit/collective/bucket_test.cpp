// SPDX-License-Identifier: Apache-2.0
// Claims about buckets, against a model that gathers bytes.
#include "lib/collective/bucket.h"

#include <gtest/gtest.h>

#include <set>

namespace stepwell::collective {
namespace {

using Bytes = std::vector<uint8_t>;

BucketTensor tensor(uint64_t whole_bytes, uint32_t ranks, uint32_t kind = 0)
{
    return {whole_bytes, (whole_bytes + ranks - 1) / ranks, kind};
}

uint8_t byte_of(uint32_t tensor, uint64_t at)
{
    return static_cast<uint8_t>(1 + (tensor * 37 + at * 11 + at / 251) % 255);
}

// What an engine would leave of one bucket: in rank order the bytes that each rank sends.
Bytes gathered(const Buckets &buckets, const Bucket &bucket,
               const std::vector<BucketTensor> &tensors, uint32_t ranks)
{
    Bytes all;
    for (uint32_t rank = 0; rank < ranks; ++rank) {
        Bytes sent(bucket.rank_bytes);
        for (uint32_t i = bucket.first; i < bucket.first + bucket.count; ++i) {
            const uint32_t at = buckets.members[i];
            for (uint64_t k = 0; k < tensors[at].shard_bytes; ++k) {
                uint8_t &byte = sent.at(buckets.offsets[at] + k);
                EXPECT_EQ(byte, 0) << "two tensors overlap";
                const uint64_t in_whole = rank * tensors[at].shard_bytes + k;
                byte = in_whole < tensors[at].whole_bytes ? byte_of(at, in_whole) : 255;
            }
        }
        all.insert(all.end(), sent.begin(), sent.end());
    }
    return all;
}

void expect_whole(const std::vector<BucketTensor> &tensors, uint32_t ranks, uint64_t bucket_bytes)
{
    const Buckets buckets = cut_buckets(tensors, ranks, bucket_bytes);
    std::vector<Bytes> wholes;
    for (const BucketTensor &at : tensors) wholes.emplace_back(at.whole_bytes);
    uint32_t members = 0;
    for (const Bucket &bucket : buckets.list) {
        ASSERT_EQ(bucket.first, members);
        ASSERT_GT(bucket.count, 0u);
        members += bucket.count;
        ASSERT_TRUE(bucket.count == 1 || bucket.rank_bytes * ranks <= bucket_bytes);
        const Bytes bytes = gathered(buckets, bucket, tensors, ranks);
        for (const BucketCopy &copy : bucket_copies(buckets, bucket, tensors, ranks)) {
            ASSERT_GT(copy.bytes, 0u);
            ASSERT_TRUE(!bucket.direct() || copy.bucket_offset == copy.whole_offset);
            for (uint64_t k = 0; k < copy.bytes; ++k) {
                uint8_t &byte = wholes.at(copy.tensor).at(copy.whole_offset + k);
                ASSERT_EQ(byte, 0) << "written twice";
                byte = bytes.at(copy.bucket_offset + k);
            }
        }
    }
    for (uint32_t i = 0; i < tensors.size(); ++i) {
        for (uint64_t k = 0; k < tensors[i].whole_bytes; ++k) {
            ASSERT_EQ(wholes[i][k], byte_of(i, k)) << "tensor " << i << ", byte " << k;
        }
    }
    ASSERT_EQ(std::set(buckets.members.begin(), buckets.members.end()).size(), members);
}

// Each list of up to four tensors of these sizes, kinds 0 and 1 in turn.
TEST(Buckets, BringEachByteToItsWholeOnce)
{
    const uint64_t sizes[] = {0, 1, 63, 64, 130, 500};
    const size_t n = std::size(sizes);
    for (uint32_t ranks = 1; ranks <= 4; ++ranks) {
        for (const uint64_t bucket_bytes : {0u, 1u, 2048u, 8192u, 9000u, 1u << 20}) {
            for (size_t code = 0; code < n * n * n * n; ++code) {
                std::vector<BucketTensor> tensors;
                for (size_t rest = code, i = 0; i < 4; rest /= n, ++i) {
                    if (sizes[rest % n] != 0 || i % 2 == 0) {
                        tensors.push_back(tensor(sizes[rest % n], ranks, code % 2 * (i % 2)));
                    }
                }
                SCOPED_TRACE(testing::Message() << "ranks " << ranks << ", bucket of "
                                                << bucket_bytes << ", list " << code);
                ASSERT_NO_FATAL_FAILURE(expect_whole(tensors, ranks, bucket_bytes));
            }
        }
    }
}

TEST(Buckets, TensorsOfEachRankAreAlignedAndSideBySide)
{
    const std::vector<BucketTensor> tensors = {{100, 50, 0}, {2, 1, 0}, {256, 128, 0}};
    const Buckets buckets = cut_buckets(tensors, 2, 1 << 20);
    ASSERT_EQ(buckets.list.size(), 1u);
    EXPECT_EQ(buckets.list[0].rank_bytes, 256u);
    EXPECT_EQ(buckets.offsets, (std::vector<uint64_t>{0, 64, 128}));
}

TEST(Buckets, ALargeTensorIsAloneAndEndsNoBucket)
{
    const std::vector<BucketTensor> tensors = {
        {64, 32, 0}, {1 << 20, 1 << 19, 0}, {64, 32, 0}, {1 << 20, 1 << 19, 0}, {64, 32, 0}};
    const Buckets buckets = cut_buckets(tensors, 2, 1 << 20);
    ASSERT_EQ(buckets.list.size(), 3u);
    EXPECT_EQ(buckets.members, (std::vector<uint32_t>{0, 2, 4, 1, 3}));
    EXPECT_FALSE(buckets.list[0].direct());
    EXPECT_TRUE(buckets.list[1].direct());
    EXPECT_EQ(buckets.list[1].rank_bytes, 1u << 19);
}

TEST(Buckets, OneOfAKindIsGatheredWhereItBelongs)
{
    const Buckets buckets = cut_buckets({{100, 50, 1}, {100, 50, 2}}, 2, 1 << 20);
    ASSERT_EQ(buckets.list.size(), 2u);
    for (const Bucket &bucket : buckets.list) {
        EXPECT_TRUE(bucket.direct());
        EXPECT_EQ(bucket.rank_bytes, 50u);
    }
}

TEST(Buckets, TensorsOfNoBytesNeedNoCollective)
{
    EXPECT_TRUE(cut_buckets({{0, 0, 0}, {0, 0, 0}}, 4, kBucketBytes).list.empty());
    EXPECT_TRUE(cut_buckets({}, 4, kBucketBytes).list.empty());
}

TEST(Buckets, SmallTensorsNeedTwentyTimesFewerCollectives)
{
    for (const uint32_t ranks : {2u, 8u, 64u, 1024u}) {
        // The largest that are small, and a mixture down to a byte.
        const uint64_t largest = kBucketBytes / kSmallShare / ranks;
        std::vector<BucketTensor> alike(10'000, BucketTensor{largest * ranks, largest, 0});
        std::vector<BucketTensor> mixed;
        for (uint64_t i = 0; i < 10'000; ++i) mixed.push_back(tensor(1 + i * 7919 % 50'000, ranks));
        for (const auto &tensors : {alike, mixed}) {
            const Buckets buckets = cut_buckets(tensors, ranks, kBucketBytes);
            EXPECT_LE(buckets.list.size() * 20, tensors.size()) << ranks;
            EXPECT_EQ(buckets.members.size(), tensors.size());
            for (const Bucket &bucket : buckets.list) {
                EXPECT_LE(bucket.rank_bytes * ranks, kBucketBytes);
            }
        }
    }
}

// A bucket ends only where the next one of its kind does not fit.
TEST(Buckets, AreFilled)
{
    std::vector<BucketTensor> tensors;
    for (uint64_t i = 0; i < 3000; ++i) tensors.push_back(tensor(1 + i * 31 % 900, 3));
    const uint64_t bucket_bytes = 100'000;
    const Buckets buckets = cut_buckets(tensors, 3, bucket_bytes);
    ASSERT_GT(buckets.list.size(), 2u);
    for (size_t i = 0; i + 1 < buckets.list.size(); ++i) {
        const BucketTensor &next = tensors[buckets.members[buckets.list[i + 1].first]];
        const uint64_t more = (next.shard_bytes + 63) / 64 * 64;
        EXPECT_GT((buckets.list[i].rank_bytes + more) * 3, bucket_bytes);
    }
}

}  // namespace
}  // namespace stepwell::collective
