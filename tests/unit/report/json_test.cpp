// SPDX-License-Identifier: Apache-2.0
// What our writer writes, another parser reads back as it was.
#include "lib/report/json.h"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <cmath>
#include <limits>
#include <string>

namespace stepwell::report {
namespace {

using nlohmann::json;

template <class Body> std::string written(uint32_t indent, Body &&body)
{
    std::string text;
    const auto append = [](void *user, std::string_view bytes) {
        static_cast<std::string *>(user)->append(bytes);
    };
    JsonWriter writer({append, &text}, indent);
    body(writer);
    return text;
}

std::string string_text(std::string_view text)
{
    return written(0, [&](JsonWriter &writer) { writer.string(text); });
}

TEST(Json, NestsAndSeparates)
{
    const auto body = [](JsonWriter &writer) {
        writer.begin_object();
        writer.member("a", uint64_t{1});
        writer.key("empty");
        writer.begin_object();
        writer.end_object();
        writer.key("list");
        writer.begin_array();
        writer.boolean(true);
        writer.null();
        writer.begin_array();
        writer.end_array();
        writer.begin_object();
        writer.member("b", "c");
        writer.end_object();
        writer.end_array();
        writer.member("last", -3);
        writer.end_object();
    };
    const std::string line = written(0, body);
    EXPECT_EQ(line, R"({"a":1,"empty":{},"list":[true,null,[],{"b":"c"}],"last":-3})");
    EXPECT_EQ(json::parse(written(2, body)), json::parse(line));
    EXPECT_NE(written(2, body).find("\n  \"a\": 1,\n"), std::string::npos);
}

TEST(Json, CompactListsAreOneLineAndTheRestIsNot)
{
    const std::string text = written(2, [](JsonWriter &writer) {
        writer.begin_object();
        writer.key("list");
        writer.compact(true);
        writer.begin_array();
        writer.number(uint64_t{1});
        writer.number(uint64_t{2});
        writer.end_array();
        writer.compact(false);
        writer.member("next", true);
        writer.end_object();
    });
    EXPECT_EQ(text, "{\n  \"list\": [1,2],\n  \"next\": true\n}\n");
}

TEST(Json, EveryByteOfAsciiComesBack)
{
    std::string text;
    for (int c = 0; c < 128; ++c) text += static_cast<char>(c);
    EXPECT_EQ(json::parse(string_text(text)).get<std::string>(), text);
}

TEST(Json, Utf8PassesAndWhatIsNotUtf8IsReplaced)
{
    const std::string good = "caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x92\xa7";
    EXPECT_EQ(json::parse(string_text(good)).get<std::string>(), good);
    const std::string bad[] = {
        "\x80",              // a continuation alone
        "\xc3",              // cut off at the end
        "\xc0\xaf",          // overlong
        "\xe0\x80\xaf",      // overlong
        "\xed\xa0\x80",      // a surrogate
        "\xf4\x90\x80\x80",  // past U+10FFFF
        "\xf5\x80\x80\x80",
        "\xff",
        "\xe2\x82",
        "\xf0\x9f\x92\"",
    };
    for (const std::string &text : bad) {
        const std::string out = string_text("x" + text + "y");
        SCOPED_TRACE(out);
        ASSERT_TRUE(json::accept(out));
        const auto back = json::parse(out).get<std::string>();
        EXPECT_EQ(back.front(), 'x');
        EXPECT_EQ(back.back(), 'y');
        EXPECT_NE(back.find("\xef\xbf\xbd"), std::string::npos);
    }
}

TEST(Json, IntegersAreExact)
{
    const std::string text = written(0, [](JsonWriter &writer) {
        writer.begin_array();
        writer.number(std::numeric_limits<uint64_t>::max());
        writer.number(std::numeric_limits<int64_t>::min());
        writer.number((uint64_t{1} << 53) + 1);
        writer.end_array();
    });
    const json back = json::parse(text);
    EXPECT_EQ(back[0].get<uint64_t>(), std::numeric_limits<uint64_t>::max());
    EXPECT_EQ(back[1].get<int64_t>(), std::numeric_limits<int64_t>::min());
    EXPECT_EQ(back[2].get<uint64_t>(), (uint64_t{1} << 53) + 1);
}

TEST(Json, DoublesReadBackTheSameAndWhatIsNotFiniteIsNull)
{
    for (const double number : {0.1, -1e-300, 1e300, 5e-324, 1.0 / 3, 123456789.125}) {
        const auto text = written(0, [&](JsonWriter &writer) { writer.number(number); });
        EXPECT_EQ(json::parse(text).get<double>(), number);
    }
    for (const double number : {INFINITY, -INFINITY, NAN}) {
        EXPECT_EQ(written(0, [&](JsonWriter &writer) { writer.number(number); }), "null");
    }
}

TEST(Json, MicrosecondsKeepEveryNanosecond)
{
    const auto text = [](uint64_t ns) {
        return written(0, [&](JsonWriter &writer) { writer.microseconds(ns); });
    };
    EXPECT_EQ(text(0), "0.000");
    EXPECT_EQ(text(1'234'567'089), "1234567.089");
    EXPECT_EQ(text(UINT64_MAX), "18446744073709551.615");
}

TEST(Json, DeepNestingIsStillWellFormed)
{
    const auto body = [](JsonWriter &writer) {
        for (uint32_t i = 0; i < kJsonDepthMax; ++i) writer.begin_array();
        writer.number(uint64_t{1});
        for (uint32_t i = 0; i < kJsonDepthMax; ++i) writer.end_array();
    };
    EXPECT_TRUE(json::accept(written(0, body)));
    EXPECT_TRUE(json::accept(written(8, body)));
}

}  // namespace
}  // namespace stepwell::report
