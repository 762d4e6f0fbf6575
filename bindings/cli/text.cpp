// SPDX-License-Identifier: Apache-2.0
#include "text.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>

namespace stepwell::cli {

std::string read_text(const std::string &path)
{
    std::ifstream file(path);
    if (!file) return "";
    std::ostringstream text;
    text << file.rdbuf();
    return std::move(text).str();
}

std::optional<uint64_t> read_number(const std::string &path)
{
    const std::string text = read_text(path);
    return parse_number(trimmed(text));
}

bool is_there(const std::string &path)
{
    std::error_code ignored;
    return std::filesystem::exists(path, ignored);
}

std::optional<uint64_t> parse_number(std::string_view text)
{
    uint64_t number = 0;
    const char *end = text.data() + text.size();
    const auto [stop, error] = std::from_chars(text.data(), end, number);
    if (text.empty() || error != std::errc() || stop != end) return std::nullopt;
    return number;
}

std::string_view next_part(std::string_view *text, char separator)
{
    const size_t length = std::min(text->find(separator), text->size());
    const std::string_view part = text->substr(0, length);
    text->remove_prefix(std::min(length + 1, text->size()));
    return part;
}

std::string_view trimmed(std::string_view text)
{
    constexpr std::string_view kWhite = " \t\r\n";
    const size_t begin = text.find_first_not_of(kWhite);
    if (begin == std::string_view::npos) return {};
    return text.substr(begin, text.find_last_not_of(kWhite) + 1 - begin);
}

std::vector<std::string_view> words_of(std::string_view text)
{
    constexpr std::string_view kWhite = " \t\r\n";
    std::vector<std::string_view> words;
    for (size_t begin = text.find_first_not_of(kWhite); begin < text.size();) {
        const size_t end = std::min(text.find_first_of(kWhite, begin), text.size());
        words.push_back(text.substr(begin, end - begin));
        begin = text.find_first_not_of(kWhite, end);
    }
    return words;
}

std::string_view line_after(std::string_view text, std::string_view key)
{
    while (!text.empty()) {
        const std::string_view line = next_part(&text, '\n');
        if (line.starts_with(key)) return trimmed(line.substr(key.size()));
    }
    return {};
}

std::string chosen_word(std::string_view text)
{
    const size_t open = text.find('[');
    const size_t close = text.find(']', std::min(open, text.size()));
    if (close != std::string_view::npos) text = text.substr(open + 1, close - open - 1);
    return std::string(trimmed(text));
}

uint64_t count_list(std::string_view text)
{
    text = trimmed(text);
    uint64_t count = 0;
    while (!text.empty()) {
        std::string_view range = next_part(&text, ',');
        const auto first = parse_number(next_part(&range, '-'));
        const auto last = range.empty() ? first : parse_number(range);
        if (first && last && *last >= *first) count += *last - *first + 1;
    }
    return count;
}

std::string padded(std::string text, size_t columns)
{
    text.resize(std::max(text.size() + 1, columns), ' ');
    return text;
}

std::string bytes_text(uint64_t bytes)
{
    if (bytes == kNoLimit) return "unlimited";
    if (bytes < 1024) return std::to_string(bytes) + " bytes";
    constexpr const char *kUnits[] = {"KiB", "MiB", "GiB", "TiB", "PiB", "EiB"};
    double number = static_cast<double>(bytes) / 1024;
    size_t unit = 0;
    while (number >= 1023.95 && unit + 1 < std::size(kUnits)) number /= 1024, ++unit;
    char text[32];
    std::snprintf(text, sizeof text, "%.1f", number);
    std::string whole = text;
    if (whole.ends_with(".0")) whole.resize(whole.size() - 2);
    return whole + " " + kUnits[unit];
}

std::string_view parser_words(std::string_view what)
{
    const size_t end = what.substr(0, 1) == "[" ? what.find("] ") : std::string_view::npos;
    return end == std::string_view::npos ? what : what.substr(end + 2);
}

std::string printable(std::string_view text)
{
    std::string clean(text);
    std::replace_if(
        clean.begin(), clean.end(),
        [](char c) { return static_cast<unsigned char>(c) < ' ' || c == '\x7f'; }, '?');
    return clean;
}

std::string shell_word(const std::string &text)
{
    constexpr std::string_view kPlain = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                        "0123456789_-./:,+@%=";
    if (!text.empty() && text.find_first_not_of(kPlain) == std::string::npos) return text;
    std::string quoted = "'";
    for (const char c : text) quoted += c == '\'' ? std::string("'\\''") : std::string(1, c);
    return quoted + "'";
}

}  // namespace stepwell::cli
