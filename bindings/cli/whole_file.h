// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all, whatever signal ends the program (but for one that
// cannot be held back); and one that is read whole or not at all.
#pragma once

#include <cstddef>
#include <string>

#include <sys/types.h>

namespace stepwell::cli {

// 0 or an errno.
int write_whole(const std::string &path, const std::string &text, mode_t mode);
// What a person named: a file or a pipe, of at most `bytes_max`. 0 or an errno, EFBIG for what has
// more. A pipe is read to its end; one that nobody writes to is empty.
int read_whole(const std::string &path, size_t bytes_max, std::string *text);
bool write_all(int file, const std::string &text);
// "." of "name".
std::string directory_of(const std::string &path);

}  // namespace stepwell::cli
