// SPDX-License-Identifier: Apache-2.0
// What ranks make of each other's records: the same on all, and in words that name who differs.
#include "lib/collective/agreement.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

namespace stepwell::collective {
namespace {

using testing::HasSubstr;

std::vector<Record> ranks_of(Kind kind, const char *name, uint32_t ranks = 3)
{
    Record record = make_record(kind, name);
    record.sequence = 7;
    record.bytes = 400;
    record.spec = 11;
    set_text(record, "f32 [100]");
    return std::vector<Record>(ranks, record);
}

Status told(const std::vector<Record> &ranks, uint32_t self = 0)
{
    return compare(ranks.data(), static_cast<uint32_t>(ranks.size()), self);
}

TEST(Agreement, RanksThatDoTheSameAgree)
{
    EXPECT_TRUE(told(ranks_of(Kind::kGather, "w")).ok());
    EXPECT_TRUE(told(ranks_of(Kind::kVerdict, "adam", 1)).ok());
}

TEST(Agreement, AnotherCallIsNamedOnBothRanks)
{
    std::vector<Record> ranks = ranks_of(Kind::kGather, "w");
    ranks[2] = make_record(Kind::kReduce, "g");
    ranks[2].sequence = 7;
    for (uint32_t self = 0; self < 3; ++self) {
        const Status status = told(ranks, self);
        EXPECT_EQ(status.code(), STW_ERROR_ORDER);
        EXPECT_STREQ(status.sentence(),
                     "ranks called in different order: as collective 7 rank 0 gathers 'w', and as "
                     "collective 7 rank 2 reduces 'g'; make the same calls in the same order on "
                     "all ranks");
        EXPECT_EQ(status.detail()->rank, self == 2 ? 0 : 2);
    }
}

TEST(Agreement, ACallMoreOrLessIsAnotherOrder)
{
    std::vector<Record> ranks = ranks_of(Kind::kGather, "w");
    ranks[1].sequence = 8;
    EXPECT_EQ(told(ranks).code(), STW_ERROR_ORDER);
    EXPECT_THAT(told(ranks).sentence(), HasSubstr("as collective 8 rank 1 gathers 'w'"));
}

TEST(Agreement, OfSeveralTensorsEachCounts)
{
    std::vector<Record> ranks = ranks_of(Kind::kGather, "w");
    ranks[1].names = hash_name(ranks[1].names, "another");
    set_text(ranks[1], "f32 [100], the last 'another'");
    EXPECT_EQ(told(ranks).code(), STW_ERROR_ORDER);
    EXPECT_THAT(told(ranks).sentence(), HasSubstr("'w', which is f32 [100] on rank 0 and f32 [100]"
                                                  ", the last 'another' on rank 1"));
}

TEST(Agreement, WhoCannotIsToldBeforeWhatDiffers)
{
    std::vector<Record> ranks = ranks_of(Kind::kGather, "w");
    set_status(ranks[1], Status::error(STW_ERROR_IO, "the disk is gone"));
    ranks[2].spec = 12;
    const Status status = told(ranks);
    EXPECT_EQ(status.code(), STW_ERROR_IO);
    EXPECT_EQ(status.detail()->rank, 1);
    EXPECT_EQ(status.detail()->tensor, "w");
    EXPECT_THAT(status.sentence(), HasSubstr("rank 1 cannot take part"));
    EXPECT_THAT(status.sentence(), HasSubstr("he disk is gone"));
}

TEST(Agreement, AnotherShapeOrShardIsNamedWithBoth)
{
    for (const bool spec : {false, true}) {
        std::vector<Record> ranks = ranks_of(Kind::kGather, "w");
        ranks[2].spec += spec;
        ranks[2].bytes += !spec;
        set_text(ranks[2], "f32 [101]");
        EXPECT_EQ(told(ranks).code(), STW_ERROR_MISMATCH);
        EXPECT_STREQ(told(ranks).sentence(), "'w' is f32 [100] on rank 0 and f32 [101] on rank 2; "
                                             "create it alike on all ranks");
    }
}

TEST(Agreement, AnotherWayToStepIsNoFaultOfItsCreation)
{
    std::vector<Record> ranks = ranks_of(Kind::kVerdict, "adam", 2);
    set_text(ranks[0], "clip_norm 1");
    set_text(ranks[1], "clip_norm 100");
    ranks[1].spec = 12;
    EXPECT_EQ(told(ranks).code(), STW_ERROR_MISMATCH);
    EXPECT_STREQ(told(ranks).sentence(),
                 "optimizer 'adam' steps with clip_norm 1 on rank 0 and with clip_norm 100 on "
                 "rank 1; give it the same parameters, groups, hyper-parameters and options on "
                 "all ranks");
}

TEST(Agreement, ANameEndsWhereItEnds)
{
    EXPECT_NE(hash_name(hash_name(0, "ab"), "c"), hash_name(hash_name(0, "a"), "bc"));
    EXPECT_NE(hash_name(hash_name(0, "a"), "b"), hash_name(hash_name(0, "b"), "a"));
    EXPECT_NE(hash_name(0, ""), 0u);
    EXPECT_EQ(hash_name(hash_name(5, "ab"), "c"), hash_name(hash_name(5, "ab"), "c"));
}

TEST(Agreement, WhatIsTooLongForARecordIsCut)
{
    Record record = make_record(Kind::kGather, std::string(1000, 'n'));
    set_text(record, std::string(1000, 't'));
    EXPECT_EQ(std::string(record.name), std::string(sizeof record.name - 1, 'n'));
    EXPECT_EQ(std::string(record.text), std::string(sizeof record.text - 1, 't'));
}

}  // namespace
}  // namespace stepwell::collective
