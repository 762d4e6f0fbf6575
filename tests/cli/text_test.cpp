// SPDX-License-Identifier: Apache-2.0
// Numbers and words of small files.
#include "text.h"

#include <gtest/gtest.h>

namespace stepwell::cli {
namespace {

TEST(Text, ASizeIsToldInItsLargestUnit)
{
    EXPECT_EQ(bytes_text(0), "0 bytes");
    EXPECT_EQ(bytes_text(1023), "1023 bytes");
    EXPECT_EQ(bytes_text(8 << 20), "8 MiB");
    EXPECT_EQ(bytes_text((1 << 20) - 1), "1 MiB");
    EXPECT_EQ(bytes_text(uint64_t{3} << 29), "1.5 GiB");
    EXPECT_EQ(bytes_text(kNoLimit - 1), "16 EiB");
    EXPECT_EQ(bytes_text(kNoLimit), "unlimited");
}

TEST(Text, AListOfNumbersIsCounted)
{
    EXPECT_EQ(count_list("0-3,8,10-11\n"), 7u);
    EXPECT_EQ(count_list("0"), 1u);
    EXPECT_EQ(count_list(""), 0u);
    EXPECT_EQ(count_list("3-1,x"), 0u);
}

TEST(Text, TheChosenWordStandsInBrackets)
{
    EXPECT_EQ(chosen_word("always [madvise] never\n"), "madvise");
    EXPECT_EQ(chosen_word("none\n"), "none");
    EXPECT_EQ(chosen_word(""), "");
    EXPECT_EQ(chosen_word("[never"), "[never");
}

TEST(Text, ANumberIsAllOfItsText)
{
    EXPECT_EQ(parse_number("18446744073709551615"), UINT64_MAX);
    EXPECT_FALSE(parse_number("18446744073709551616"));
    EXPECT_FALSE(parse_number("1x"));
    EXPECT_FALSE(parse_number("-1"));
    EXPECT_FALSE(parse_number(""));
}

TEST(Text, AWordOfAShellIsQuotedWhereItMustBe)
{
    EXPECT_EQ(shell_word("/data/a-b_1"), "/data/a-b_1");
    EXPECT_EQ(shell_word("a b"), "'a b'");
    EXPECT_EQ(shell_word("it's"), "'it'\\''s'");
    EXPECT_EQ(shell_word(""), "''");
}

TEST(Text, ControlCharactersOfANameAreNotPrinted)
{
    EXPECT_EQ(printable("a\x1b[2Jb\n"), "a?[2Jb?");
}

}  // namespace
}  // namespace stepwell::cli
