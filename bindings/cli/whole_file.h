// SPDX-License-Identifier: Apache-2.0
// A file that appears whole or not at all, whatever signal ends the program (but for one that
// cannot be held back).
#pragma once

#include <string>

#include <sys/types.h>

namespace stepwell::cli {

// 0 or an errno.
int write_whole(const std::string &path, const std::string &text, mode_t mode);
bool write_all(int file, const std::string &text);
// "." of "name".
std::string directory_of(const std::string &path);

}  // namespace stepwell::cli
