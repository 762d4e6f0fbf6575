// SPDX-License-Identifier: Apache-2.0
// JsonWriter: one pass, no tree. Text is copied in runs between the characters that need escaping.
#include "lib/report/json.h"

#include "lib/support/assert.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdio>

namespace stepwell::report {

namespace {

constexpr char kReplacement[] = "\xef\xbf\xbd";

unsigned char byte_at(std::string_view text, size_t i)
{
    return i < text.size() ? static_cast<unsigned char>(text[i]) : 0;
}

// Bytes of the well-formed UTF-8 character at i, 0 when there is none: overlong forms, surrogates
// and values past U+10FFFF are not well-formed (RFC 3629).
size_t character_bytes(std::string_view text, size_t i)
{
    const unsigned char c = byte_at(text, i);
    const auto follows = [&](size_t k) { return (byte_at(text, i + k) & 0xc0) == 0x80; };
    const unsigned char second = byte_at(text, i + 1);
    if (c < 0x80) return 1;
    if (c >= 0xc2 && c <= 0xdf) return follows(1) ? 2 : 0;
    if (c >= 0xe0 && c <= 0xef) {
        if ((c == 0xe0 && second < 0xa0) || (c == 0xed && second > 0x9f)) return 0;
        return follows(1) && follows(2) ? 3 : 0;
    }
    if (c >= 0xf0 && c <= 0xf4) {
        if ((c == 0xf0 && second < 0x90) || (c == 0xf4 && second > 0x8f)) return 0;
        return follows(1) && follows(2) && follows(3) ? 4 : 0;
    }
    return 0;
}

bool is_plain(unsigned char c)
{
    return c >= 0x20 && c < 0x7f && c != '"' && c != '\\';
}

}  // namespace

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
    put("\"");
    size_t i = 0;
    while (i < text.size()) {
        size_t end = i;
        while (end < text.size() && is_plain(byte_at(text, end))) ++end;
        if (end > i) {
            put(text.substr(i, end - i));
            i = end;
            continue;
        }
        const unsigned char c = byte_at(text, i);
        const size_t bytes = character_bytes(text, i);
        if (bytes > 1) {
            put(text.substr(i, bytes));
        } else if (bytes == 0) {
            put(kReplacement);
        } else if (c == '"' || c == '\\') {
            const char escape[2] = {'\\', static_cast<char>(c)};
            put({escape, 2});
        } else {
            char escape[8];
            const int length = std::snprintf(escape, sizeof escape, "\\u%04x", c);
            put({escape, static_cast<size_t>(length)});
        }
        i += std::max<size_t>(bytes, 1);
    }
    put("\"");
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
