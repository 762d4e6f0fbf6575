// SPDX-License-Identifier: Apache-2.0
// JsonWriter: one pass, no tree, since a timeline has 65,536 spans. Escaping is nlohmann's.
#include "lib/report/json.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

#include <nlohmann/json.hpp>

namespace stepwell::report {

void JsonWriter::open(char bracket)
{
    value();
    put({&bracket, 1});
    STW_ASSERT(depth_ < kJsonDepthMax);
    depth_ = std::min(depth_ + 1, kJsonDepthMax);
    filled_[depth_] = false;
}

void JsonWriter::close(char bracket)
{
    STW_ASSERT(depth_ > 0);
    const bool filled = filled_[depth_];
    if (depth_ > 0) --depth_;
    if (filled) line_break();
    put({&bracket, 1});
    if (depth_ == 0 && indent_ > 0) put("\n");
}

void JsonWriter::line_break()
{
    if (indent_ == 0 || compact_) return;
    static constexpr char kSpaces[] = "\n                                                       ";
    const size_t spaces = size_t{depth_} * indent_;
    put({kSpaces, 1 + std::min(spaces, sizeof kSpaces - 2)});
}

void JsonWriter::value()
{
    if (after_key_) {
        after_key_ = false;
        return;
    }
    if (depth_ == 0) return;
    if (filled_[depth_]) put(",");
    filled_[depth_] = true;
    line_break();
}

void JsonWriter::key(std::string_view name)
{
    value();
    quoted(name);
    put(indent_ > 0 ? ": " : ":");
    after_key_ = true;
}

void JsonWriter::string(std::string_view text)
{
    value();
    quoted(text);
}

void JsonWriter::quoted(std::string_view text)
{
    using nlohmann::json;
    put(json(text).dump(-1, ' ', false, json::error_handler_t::replace));
}

void JsonWriter::number(uint64_t number)
{
    value();
    char digits[24];
    put({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
}

void JsonWriter::number(int64_t number)
{
    value();
    char digits[24];
    put({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
}

void JsonWriter::number(double number)
{
    if (!std::isfinite(number)) {
        null();
        return;
    }
    value();
    char digits[40];
    put({digits, std::to_chars(digits, digits + sizeof digits, number).ptr});
}

void JsonWriter::microseconds(uint64_t ns)
{
    value();
    char digits[32];
    const int length =
        std::snprintf(digits, sizeof digits, "%llu.%03u",
                      static_cast<unsigned long long>(ns / 1000), static_cast<unsigned>(ns % 1000));
    put({digits, static_cast<size_t>(length)});
}

void JsonWriter::boolean(bool truth)
{
    value();
    put(truth ? "true" : "false");
}

void JsonWriter::null()
{
    value();
    put("null");
}

}  // namespace stepwell::report
