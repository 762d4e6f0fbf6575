// SPDX-License-Identifier: Apache-2.0
// The machine profile as a file: what the library reads when it opens a tier. docs/tuning.md
// describes it.
#pragma once

#include "tune.h"

#include <string>

namespace stepwell::cli {

// `before`: the text of an older profile, "" if none; its directories on file systems that were not
// tuned now stay, if it is of this machine.
std::string profile_json(const Tuned &tuned, const std::string &before);

// Where the library finds it by itself; "" where the user has no such place.
std::string profile_path_usual();

// "" or why a profile could not be written there. Makes the directory where it is the usual one.
std::string why_not_written(const std::string &path, bool usual);
// Whole or not at all, mode 0644; "" or why not.
std::string write_profile(const std::string &path, const std::string &text);

// For the library alone, gone with this process.
class ProfileInMemory {
public:
    explicit ProfileInMemory(const std::string &text);  // throws Failed
    ~ProfileInMemory();
    ProfileInMemory(const ProfileInMemory &) = delete;
    ProfileInMemory &operator=(const ProfileInMemory &) = delete;
    std::string path() const;

private:
    int file_ = -1;
};

}  // namespace stepwell::cli
