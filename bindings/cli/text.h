// SPDX-License-Identifier: Apache-2.0
// Small files of /proc and /sys as text, and numbers as a reader wants them. Knows nothing of what
// the files mean.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace stepwell::cli {

constexpr uint64_t kNoLimit = UINT64_MAX;

// "" for a file that is not there: what it would say does not exist on this machine.
std::string read_text(const std::string &path);
std::optional<uint64_t> read_number(const std::string &path);
bool is_there(const std::string &path);

// All of the text is digits, and they fit.
std::optional<uint64_t> parse_number(std::string_view text);
// What stands before the first `separator`; the text goes on behind it.
std::string_view next_part(std::string_view *text, char separator);
// Without white space at both ends.
std::string_view trimmed(std::string_view text);
std::vector<std::string_view> words_of(std::string_view text);
// The rest of the first line that starts with `key`, trimmed; "" where there is none.
std::string_view line_after(std::string_view text, std::string_view key);
// "madvise" of "always [madvise] never"; a single word stands for itself.
std::string chosen_word(std::string_view text);
// How many numbers "0-3,8" names.
uint64_t count_list(std::string_view text);

// At least one space behind it.
std::string padded(std::string text, size_t columns);
std::string bytes_text(uint64_t bytes);  // "23.5 GiB"; "unlimited" for kNoLimit
// Control characters would do to a terminal what a file's name wants.
std::string printable(std::string_view text);
// What the JSON parser says of a text, without its own number for that: "[json.exception...] ".
std::string_view parser_words(std::string_view what);
// As one word of a shell.
std::string shell_word(const std::string &text);

}  // namespace stepwell::cli
